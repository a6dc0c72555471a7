"""What TaskProlog runs as the user at each start of a job that opted in: which checkpoint, which arguments.

The answer goes to standard output in slurmstepd's own language, ``export NAME=value`` and ``print text`` lines, with exit
code 0; or the checkpoint directory cannot be used: one line that says why, with exit code ``UNUSABLE``. TaskProlog
(prolog/aistation-task-prolog) keeps the time limit, since a read of a hung file system cannot be interrupted.
Standard library only, and few imports: it runs once per start, but a training waits for it.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.checkpoints.choose import resume_args
from aistation_slurm.checkpoints.inspect import Inspection, inspect
from aistation_slurm.checkpoints.model import Checkpoint
from aistation_slurm.errors import CheckpointError

__all__ = ["ATTEMPTS", "UNUSABLE", "answer", "main", "record"]

ATTEMPTS = ".aistation-attempts"
UNUSABLE = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) of a start that must not go on."""

_PREFIX = "SLURM_SPANK_AISTATION_"
_ATTEMPTS_TAIL_BYTES = 64 * 1024
_EXPAND = "*?["
"""A script leaves $AISTATION_RESUME_ARGS unquoted: the shell would expand these."""


class _Start:
    """One start of the job, as its environment tells. The environment is the user's: every value is checked."""

    def __init__(self, env: Mapping[str, str]) -> None:
        count = env.get("SLURM_RESTART_COUNT", "")
        self.attempt = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
        self.job = env.get("SLURM_JOB_ID", "")
        self.nodes = env.get("SLURM_JOB_NODELIST", "")
        self.framework = env.get(_PREFIX + "RESUME", "auto")
        self.directory = Path(env.get(_PREFIX + "CKPT_DIR", ""))
        self.template = env.get(_PREFIX + "RESUME_ARGS_TEMPLATE", "")


def answer(env: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Lines for slurmstepd, and the record of this start for the attempts file (empty where there shall be none).

    Raises CheckpointError: there is a checkpoint directory with something in it, and it cannot be used.
    """
    start = _Start(env)
    notes: list[str] = []
    chosen: Optional[Checkpoint] = None
    empty = True
    if start.directory.is_absolute():
        empty = _is_empty(start.directory)
        if empty:
            notes.append(f"{start.directory} has no checkpoint yet: starting from the beginning")
        else:
            # every=False: only as much as decides; the training waits
            chosen = _choose(start, inspect(start.directory, start.framework, every=False), notes)
    values = {
        "ATTEMPT": str(start.attempt),
        "RESUME_ARGS": "",
        "RESUME_PATH": "",
        "RESUME_STEP": "",
        "EXCLUDED_NODES": "",
    }
    if chosen is not None:
        values["RESUME_ARGS"] = resume_args(chosen, start.template)
        values["RESUME_PATH"] = str(chosen.path)
        values["RESUME_STEP"] = "" if chosen.step is None else str(chosen.step)
        at = "a step that its files do not tell" if chosen.step is None else f"step {chosen.step}"
        notes.append(f"attempt {start.attempt} resumes from {chosen.path}, {at}")
    lines = [f"export AISTATION_{name}={_checked(name, value)}" for name, value in values.items()]
    lines += [f"print aistation: {_one_line(note)}" for note in notes]
    if empty:
        # An empty directory stays empty: transformers' example scripts refuse to start on one that has a stray file.
        return lines, {}
    return lines, {
        "attempt": start.attempt,
        "time": round(time.time()),
        "job": start.job,
        "nodes": start.nodes,
        "step": chosen.step if chosen else None,
        "path": str(chosen.path) if chosen else "",
    }


def _is_empty(directory: Path) -> bool:
    """True for a directory that is missing or has no entry but our own. Raises CheckpointError where that cannot be told."""
    try:
        with os.scandir(directory) as entries:
            return all(entry.name == ATTEMPTS for entry in entries)
    except FileNotFoundError:
        return True
    except OSError as exc:
        raise CheckpointError(f"{directory}: cannot be read: {exc.strerror}") from exc


def _choose(start: _Start, found: Inspection, notes: list[str]) -> Optional[Checkpoint]:
    """The checkpoint to resume from, None to start from the beginning; adds what the user should know to ``notes``.

    Raises CheckpointError where starting from the beginning would silently throw work away: something was saved and
    nothing of it can be used. One torn checkpoint is no such case after a restart that had found nothing before: the
    fault struck during the very first save.
    """
    notes.extend(f"warning: {warning}" for warning in found.warnings[:5])
    if found.resume is not None:
        newer = found.checkpoints[: found.checkpoints.index(found.resume)]
        notes.extend(f"skipped {c.path}: {c.why}" for c in newer[:3] if not c.valid)
        return found.resume
    if not found.unusable:
        notes.append(f"{start.directory} has no checkpoint: starting from the beginning")
        return None
    torn = found.checkpoints[0] if len(found.checkpoints) == 1 else None
    if torn is not None and not torn.unreadable and start.attempt > 0 and not _saw_something(start):
        notes.append(f"{torn.path} was cut short in its first save ({torn.why}): starting from the beginning")
        return None
    raise CheckpointError(found.unusable)


def _saw_something(start: _Start) -> bool:
    """True where an earlier attempt of this job found the directory not empty."""
    return any(entry.get("job") == start.job for entry in _attempts(start.directory))


def _attempts(directory: Path) -> list[dict[str, Any]]:
    """Latest records of the attempts file, oldest first; lines that are none are left out."""
    try:
        fd = os.open(directory / ATTEMPTS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return []
        text = os.pread(fd, _ATTEMPTS_TAIL_BYTES, max(0, status.st_size - _ATTEMPTS_TAIL_BYTES))
    except OSError:
        return []
    finally:
        os.close(fd)
    entries = []
    for line in text.split(b"\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def record(directory: Path, entry: Mapping[str, Any]) -> None:
    """Append one line to the attempts file of a checkpoint directory; a directory that cannot be written stays as it is."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(directory / ATTEMPTS, flags, 0o644)
        try:
            os.write(fd, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(fd)
    except OSError:
        pass


def _checked(name: str, value: str) -> str:
    """A value for an ``export`` line. Raises CheckpointError for what would forge a second line or be expanded."""
    for character in value:
        code = ord(character)
        if code < 0x20 or 0x7F <= code <= 0x9F or code in (0x2028, 0x2029):
            raise CheckpointError(f"AISTATION_{name} would have the control character {character!r}: {value!r}")
        if name == "RESUME_ARGS" and character in _EXPAND:
            raise CheckpointError(
                f"AISTATION_{name} would have the character {character!r}, which a shell expands: {value!r}"
            )
    return value


def _one_line(text: str) -> str:
    """Text made by users as one printable line: slurmstepd takes each line for an order."""
    return "".join(c if c.isprintable() else "?" for c in text)[:1000]


def main() -> int:
    """Print the answer; exit code 0 or ``UNUSABLE``."""
    code = 0
    entry: dict[str, Any] = {}
    try:
        lines, entry = answer(os.environ)
    except CheckpointError as exc:
        lines, code = [_one_line(str(exc))], UNUSABLE
    # bytes: a path that is not UTF-8 goes through unchanged
    sys.stdout.buffer.write(b"".join(os.fsencode(line) + b"\n" for line in lines))
    sys.stdout.flush()
    if entry:
        record(Path(os.environ[_PREFIX + "CKPT_DIR"]), entry)
    return code


if __name__ == "__main__":
    sys.exit(main())
