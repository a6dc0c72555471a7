"""What was tried on this node: ``<healing.dir>/<node>.json``, on a disk, so that neither a crash nor a reboot forgets it.

An attempt is on the disk (fsync) before anything is done; one whose outcome is unknown was cut off, and counts. A file that
cannot be read or written therefore stops healing: without its memory it would have no bound.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Literal, Optional

import msgspec

from aistation_slurm.errors import StateFileError
from aistation_slurm.recovery.local_disk import filesystem

__all__ = ["Attempt", "Case", "HealLock", "History", "Step", "load", "save", "volatile"]

VERSION = 1
MAX_BYTES = 8 << 20
MOST_CASES = 100
MOST_STEPS = 200
KERNEL_LINES = 60


class Step(msgspec.Struct, frozen=True):
    """One line of the story. time: unix seconds."""

    time: float
    text: str


class Attempt(msgspec.Struct):
    """One action. target: PCI addresses, or the program. boot: boot id in which it began; times in unix seconds.

    outcome: ``""`` not known (cut off), ``done``, ``asked`` (a reboot), or ``failed: why``. counted: False where it was taken
    back before anything was done. kernel: what the kernel had said, which a reboot forgets. verdict: what came of it.
    """

    action: str
    target: str
    boot: str
    began: float
    ended: Optional[float] = None
    outcome: str = ""
    counted: bool = True
    kernel: list[str] = []
    verdict: str = ""


class Case(msgspec.Struct):
    """One drain of ours, from the first look at it on. reason: its exact text; subject: "" where it is not known.

    state: ``open`` nothing awaits judgement, ``judging`` the last attempt does, ``returned`` given back by healing,
    ``inspect`` a person is asked, ``left`` somebody else changed the drain. looked: first look after the last attempt.
    left_to: the reason at that moment; repaired: a person gave it back who had been asked to inspect it.
    """

    ident: str
    node: str
    reason: str
    check: str
    opened: float
    subject: str = ""
    state: Literal["open", "judging", "returned", "inspect", "left"] = "open"
    attempts: list[Attempt] = []
    looked: Optional[float] = None
    passes: int = 0
    passed_at: float = 0.0
    inspect_reason: str = ""
    left_to: str = ""
    repaired: bool = False
    evidence: str = ""
    evidence_tried: float = 0.0
    steps: list[Step] = []

    @property
    def closed(self) -> bool:
        return self.state in ("returned", "left")

    @property
    def counted(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.counted]

    def say(self, now: float, text: str) -> bool:
        """Add a step; False for one that says the same as the last."""
        if self.steps and self.steps[-1].text == text:
            return False
        self.steps.append(Step(now, text))
        del self.steps[:-MOST_STEPS]
        return True


class History(msgspec.Struct):
    """All cases of a node, oldest first."""

    version: int = VERSION
    cases: list[Case] = []

    @property
    def current(self) -> Optional[Case]:
        """The case that is not closed; there is at most one."""
        return next((case for case in reversed(self.cases) if not case.closed), None)

    def case_of(self, ident: str) -> Optional[Case]:
        return next((case for case in reversed(self.cases) if case.ident == ident), None)

    def spent(self, case: Case, now: float, same_fault_s: float) -> int:
        """Attempts that count against this case: all under its id, and those at the same fault under other ids.

        Not those before somebody who had been asked to inspect the node gave it back: that person has dealt with them. Anyone
        else who gave it back may have been Slurm itself, after a slow boot.
        """
        count = 0
        for other in self.cases:
            if other.ident == case.ident:
                count += len(other.counted)
            elif not other.repaired and (other.check, other.subject) == (case.check, case.subject):
                count += sum(1 for attempt in other.counted if now - attempt.began < same_fault_s)
        return count


class HealLock:
    """One healing at a time on a node: ``with HealLock(state_dir) as held:``.

    A POSIX record lock, which no child inherits: a child stuck in state D must not keep a dead process's place.
    """

    def __init__(self, state_dir: str) -> None:
        self.path = f"{state_dir}/heal.lock"
        self.fd = -1

    def __enter__(self) -> bool:
        """False where another process holds it. Raises StateFileError where it cannot be made."""
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StateFileError(f"{self.path}: {exc.strerror}; run as root, or set node.state_dir") from exc
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def load(folder: str, node: str) -> History:
    """Empty where there is no file yet. Raises StateFileError: unreadable, damaged, or others could have written it."""
    path = _path(folder, node)
    _require_own(folder)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return History()
    except OSError as exc:
        raise StateFileError(f"{path}: cannot be opened: {exc.strerror}; nothing is healed without it") from exc
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022 or not stat.S_ISREG(facts.st_mode):
            raise StateFileError(f"{path}: not a file of root's alone; look who wrote it, then remove it")
        try:
            found = msgspec.json.decode(file.read(MAX_BYTES), type=History)
        except (OSError, ValueError) as exc:  # msgspec's errors are ValueErrors
            raise StateFileError(
                f"{path}: damaged ({exc}); look at it, then remove it: nothing is healed before"
            ) from exc
    if found.version != VERSION:
        raise StateFileError(f"{path}: format version {found.version}, expected {VERSION}; nothing is healed")
    return found


def _require_own(folder: str) -> None:
    """Who can remove the history can make it begin anew."""
    try:
        facts = os.stat(folder)
    except OSError:
        return  # said where a file in it is read or written
    if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
        raise StateFileError(f"{folder}: not root's alone; chown root and chmod go-w it: nothing is healed before")


def save(folder: str, node: str, history: History) -> None:
    """On the disk when it returns. Raises StateFileError (disk full, read-only, no permission): act on nothing then."""
    path = _path(folder, node)
    done = [case for case in history.cases if case.closed]
    for case in done[: max(0, len(history.cases) - MOST_CASES)]:
        history.cases.remove(case)
    fresh = f"{path}.new"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(msgspec.json.format(msgspec.json.encode(history), indent=1))
            file.flush()
            os.fsync(fd)
        os.rename(fresh, path)
        _sync_folder(folder)
    except OSError as exc:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise StateFileError(f"{path}: cannot be written: {exc.strerror}; nothing is healed without it") from exc


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _path(folder: str, node: str) -> str:
    return f"{folder}/{re.sub(r'[^A-Za-z0-9._-]', '_', node)}.json"


def volatile(folder: str, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """True where the folder is in memory: a reboot would forget the attempts, and so be repeated without bound."""
    return filesystem(Path(folder), mounts) in ("tmpfs", "ramfs", "rootfs")
