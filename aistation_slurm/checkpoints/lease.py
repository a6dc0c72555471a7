"""The attempt lease ``.aistation-lease``: two writers must not share a checkpoint directory.

Slurm can declare a node dead while the job's processes live on and write to a shared file system, and a user can start two jobs
on one directory. Who starts last looks who held the directory before and whether that holder can still be writing. Doubt
starts the job: a lease that nobody can vouch for is taken over, and the job's output says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from aistation_slurm.checkpoints import side_file
from aistation_slurm.checkpoints.folder import plain
from aistation_slurm.errors import CheckpointError

__all__ = ["LEASE", "Busy", "Found", "Holder", "Lease", "Step", "judge", "read", "take", "watch"]

LEASE = side_file.PREFIX + "lease"
_MAX_BYTES = 256 * 1024
_WATCHED = 512
_CLAIM_S = 60.0
"""Far longer than a rename takes, even on a busy file server."""


class Busy(CheckpointError):
    """Another writer holds the checkpoint directory, or may be at work in it."""


class Lease(NamedTuple):
    """Who writes to the directory. nodes: hostlist of the attempt. boot: boot ids, where known, by node. time: unix seconds."""

    job: str
    cluster: str
    attempt: int
    nodes: str
    boot: dict[str, str]
    time: float

    @property
    def who(self) -> str:
        """For a message."""
        return f"attempt {self.attempt} of job {plain(self.job, 20)}"


class Found(NamedTuple):
    """A lease in the directory. owner: uid; inode: to know it again."""

    lease: Lease
    owner: int
    inode: int


class Holder:
    """What Slurm says about the job of a lease."""

    OURS = "ours"
    RUNNING = "running"
    ENDING = "ending"
    GONE = "gone"
    HIDDEN = "hidden"
    """Not shown to us, and the lease is another user's: gone, or a job that this site lets nobody see."""
    ELSEWHERE = "elsewhere"
    """A job of another cluster."""
    UNKNOWN = "unknown"


class Step(NamedTuple):
    """what: take, watch (take if nothing is written for a while) or busy. why: for the job's output, "" where that says nothing."""

    what: str
    why: str = ""


def judge(lease: Lease, holder: str, silent: Optional[Sequence[str]]) -> Step:
    """Whether the directory can be taken from ``lease``. Pure.

    silent: nodes of the lease on which its processes may live unseen, None where Slurm did not say.
    """
    if holder == Holder.RUNNING:
        return Step("busy", f"job {plain(lease.job, 20)} runs on it (attempt {lease.attempt}, {plain(lease.nodes)})")
    if holder == Holder.ENDING:
        return Step("watch", f"job {plain(lease.job, 20)} is only just ending")
    if holder == Holder.HIDDEN:
        return Step("watch", f"it was held by {lease.who}, another user's, of which Slurm says nothing")
    if holder == Holder.ELSEWHERE:
        return Step("watch", f"it was held by {lease.who} on cluster {plain(lease.cluster, 40)}")
    if silent:
        shown = ", ".join(silent[:4]) + (f" and {len(silent) - 4} more" if len(silent) > 4 else "")
        return Step("watch", f"{lease.who} ran on {shown}, which Slurm cannot reach: its processes may be alive")
    if holder == Holder.UNKNOWN or silent is None:
        return Step("take", f"warning: Slurm did not say whether {lease.who} has ended; its lease is taken over unseen")
    return Step("take")


def read(directory: Path) -> Optional[Found]:
    """The lease in the directory; None where there is none that can be understood."""
    file = side_file.read_tail(directory / LEASE, _MAX_BYTES)
    if file is None:
        return None
    try:
        raw = json.loads(file.content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    text = {key: raw[key] if isinstance(raw.get(key), str) else "" for key in ("job", "cluster", "nodes")}
    number = {key: raw[key] if type(raw.get(key)) in (int, float) else 0 for key in ("attempt", "time")}
    boot = raw["boot"] if isinstance(raw.get("boot"), dict) else {}
    if not (text["job"].isascii() and text["job"].isdigit()) or not abs(number["attempt"]) < 1e9:
        return None
    lease = Lease(text["job"], text["cluster"], int(number["attempt"]), text["nodes"], boot, float(number["time"]))
    return Found(lease, file.owner, file.inode)


def take(directory: Path, mine: Lease, before: Optional[Found]) -> bool:
    """Put our lease in the place of ``before``. False where the directory has another one by now: look again.

    Raises OSError where it cannot be written. Of two that start at once only one replaces the old lease, or makes the
    name where there was none.
    """
    path = directory / LEASE
    ours = directory / f"{LEASE}.{mine.job}.{mine.attempt}.{os.getpid()}"
    side_file.write_new(ours, (json.dumps(mine._asdict()) + "\n").encode())
    try:
        there = _stranger(directory) if before is None else before.inode
        if there is not None:
            return _replace(path, there, ours)
        _name(ours, path)
    except FileExistsError:
        return False
    finally:
        try:
            os.unlink(ours)
        except FileNotFoundError:
            pass
    return True


def _name(ours: Path, path: Path) -> None:
    try:
        os.link(ours, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: two that start in the same instant are not told apart
        os.rename(ours, path)


def _stranger(directory: Path) -> Optional[int]:
    """Inode of something under our name that is no lease: it is overwritten. (A folder is not: rename raises OSError.)"""
    try:
        there = os.lstat(
            directory / LEASE
        )  # before it is read: a lease that comes into being in between is none of a stranger
    except FileNotFoundError:
        return None
    if read(directory) is not None:
        return None
    return there.st_ino


def _replace(path: Path, inode: int, ours: Path) -> bool:
    """False where what is there is no longer that, or another replaces it in this moment. The name is never missing."""
    claim = path.with_name(f"{path.name}.{inode}")
    if not _claimed(claim):
        return False
    try:
        if os.lstat(path).st_ino != inode:
            return False
        os.rename(ours, path)
    except FileNotFoundError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(claim)
    return True


def _claimed(claim: Path) -> bool:
    """Who makes the file may replace the lease. One left by a process that died in between is taken away, for the next look."""
    try:
        side_file.write_new(claim, b"")
    except FileExistsError:
        try:
            if abs(time.time() - os.lstat(claim).st_mtime) > _CLAIM_S:
                os.unlink(claim)
        except FileNotFoundError:
            pass
        return False
    return True


def watch(directory: Path, seconds: float, pause: float = 0.5) -> str:
    """Watch for signs of a writer; the path of the first that changed, "" where all was quiet for ``seconds``.

    Looks at names, sizes and times in the directory and in the folders below it that changed last.
    """
    end = time.monotonic() + seconds
    before = _signs(directory)
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return ""
        time.sleep(min(pause, left))
        now = _signs(directory)
        changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if changed:
            return changed[0]


def _signs(directory: Path) -> dict[str, tuple[int, int]]:
    """Path -> (size, mtime in ns) of at most some hundred entries, the newest folders first, two levels down."""
    signs: dict[str, tuple[int, int]] = {}
    level = [str(directory)]
    for _ in range(3):
        folders: list[tuple[int, str]] = []
        for folder in level:
            for path, size, changed, is_folder in _entries(folder):
                if len(signs) >= _WATCHED:
                    return signs
                signs[path] = (size, changed)
                if is_folder:
                    folders.append((changed, path))
        level = [path for _, path in sorted(folders, reverse=True)[:8]]
    return signs


def _entries(folder: str) -> list[tuple[str, int, int, bool]]:
    """(path, size, mtime_ns, is a folder), newest first."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if side_file.is_ours(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.path, status.st_size, status.st_mtime_ns, entry.is_dir(follow_symlinks=False)))
                except OSError:
                    continue
    except OSError:
        return []
    return sorted(found, key=lambda row: (-row[2], row[0]))
