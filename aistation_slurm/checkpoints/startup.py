"""What TaskProlog runs as the user at each start of a job that opted in: which checkpoint, which arguments.

The answer goes to standard output in slurmstepd's own language, ``export NAME=value`` and ``print text`` lines, with exit
code 0; or the job must not start: one line that says why, with exit code ``UNUSABLE`` (no checkpoint can be used) or
``BUSY`` (another writer in the directory). TaskProlog (prolog/aistation-task-prolog) keeps the time limit, since a read of
a hung file system cannot be interrupted. Standard library only, and few imports: it runs once per start, but a
training waits for it.
"""

from __future__ import annotations

import binascii
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.checkpoints import attempts, claim, side_file
from aistation_slurm.checkpoints.attempts import ATTEMPTS
from aistation_slurm.checkpoints.choose import resume_args
from aistation_slurm.checkpoints.inspect import Inspection, inspect
from aistation_slurm.checkpoints.layouts import read_layouts
from aistation_slurm.checkpoints.lease import Busy
from aistation_slurm.checkpoints.model import Checkpoint
from aistation_slurm.checkpoints.run_note import read_run, run_note, with_run
from aistation_slurm.checkpoints.slurm_view import Deadline, JobRecord, SlurmView, hostlist_text
from aistation_slurm.errors import CheckpointError

__all__ = ["BUSY", "UNUSABLE", "StartUp", "main"]

UNUSABLE = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) of a start that must not go on, unless the user asked for it in any case."""
BUSY = 76
"""The same where another writer is at work: it must not go on whatever the user asked for."""

LIMIT_S = 30.0
CONFIG = Path("/etc/aistation/aistation.toml")
"""Read for a site's own layouts only; never the file that the user's environment names."""
_PUBLISH_S = 2.5
_PREFIX = "SLURM_SPANK_AISTATION_"
_EXPAND = "*?["
"""A script leaves $AISTATION_RESUME_ARGS unquoted: the shell would expand these."""


class Start:
    """One start of the job, as its environment tells. The environment is the user's: every value is checked."""

    def __init__(self, env: Mapping[str, str]) -> None:
        count = env.get("SLURM_RESTART_COUNT", "")
        self.attempt = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
        self.job = env.get("SLURM_JOB_ID", "")
        self.cluster = env.get("SLURM_CLUSTER_NAME", "")
        self.node = env.get("SLURMD_NODENAME", "")
        self.nodes = _all_nodes(env)
        self.framework = env.get(_PREFIX + "RESUME", "auto")
        self.directory = Path(env.get(_PREFIX + "CKPT_DIR", ""))
        self.template = env.get(_PREFIX + "RESUME_ARGS_TEMPLATE", "")
        self.in_any_case = env.get("AISTATION_IF_UNREADABLE") == "start"
        self.time = round(time.time())

    @property
    def digest(self) -> str:
        """Names the checkpoint directory in a Comment, where its path does not fit."""
        return f"{binascii.crc32(os.fsencode(os.path.realpath(self.directory))):08x}"


def _all_nodes(env: Mapping[str, str]) -> str:
    """The hostlist of the job; of a heterogeneous job those of all its components, which write to one directory."""
    size = env.get("SLURM_HET_SIZE", "")
    if not (size.isascii() and size.isdigit() and len(size) < 4):
        return env.get("SLURM_JOB_NODELIST", "")
    parts = [env.get(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", "") for i in range(int(size))]
    return ",".join(part for part in parts if part)


class StartUp:
    """One run of the helper: ``answer``, then ``publish``."""

    def __init__(self, env: Mapping[str, str], limit_s: float = LIMIT_S, slurm: Optional[SlurmView] = None) -> None:
        self.start = Start(env)
        self.notes: list[str] = []
        self.chosen: Optional[Checkpoint] = None
        self.verdict = "fresh"
        self._whole = Deadline(max(limit_s - 4.0, limit_s / 2))
        # reading the directory, which comes after the questions, keeps at least half of the time
        self.slurm = slurm or SlurmView(env, Deadline(limit_s / 2))
        self.record = self.slurm.job(self.start.job) or JobRecord("")
        self._asked = time.monotonic()
        self._leased = False
        self._claimed = claim.Claimed(None)
        self._records: Optional[list[Mapping[str, Any]]] = None

    def answer(self) -> list[str]:
        """Lines for slurmstepd. Takes the lease and notes the attempt where the directory is not empty.

        Raises CheckpointError: there is a checkpoint directory with something in it, and it cannot be used; Busy, one of
        these: somebody else may be writing to it.
        """
        try:
            return self._answer()
        except CheckpointError as exc:
            self.chosen, self.verdict = None, "busy" if isinstance(exc, Busy) else "unusable"
            if self.verdict == "unusable" and self.start.in_any_case:
                self._enter_in_any_case()
            raise

    def _enter_in_any_case(self) -> None:
        """TaskProlog starts the job from the beginning, and it writes to the directory all the same."""
        try:
            self.verdict = "fresh"
            self._enter()
        except Busy:
            self.verdict = "busy"
            raise

    def _answer(self) -> list[str]:
        start = self.start
        empty = True
        if start.directory.is_absolute():
            empty = _is_empty(start.directory)
            self._claim()
            if empty:
                self.notes.append(f"{start.directory} has no checkpoint yet: starting from the beginning")
            else:
                self._choose()
        values = {
            "ATTEMPT": str(start.attempt),
            "RESUME_ARGS": "",
            "RESUME_PATH": "",
            "RESUME_STEP": "",
            "EXCLUDED_NODES": self.record.excluded_nodes,
        }
        chosen = self.chosen
        if chosen is not None:
            values["RESUME_ARGS"] = resume_args(chosen, start.template)
            values["RESUME_PATH"] = str(chosen.path)
            values["RESUME_STEP"] = "" if chosen.step is None else str(chosen.step)
            at = "a step that its files do not tell" if chosen.step is None else f"step {chosen.step}"
            self.notes.append(f"attempt {start.attempt} resumes from {chosen.path}, {at}")
        lines = [f"export AISTATION_{name}={_checked(name, value)}" for name, value in values.items()]
        if not empty or self._claimed.before is not None:
            # An empty directory stays empty: transformers' example scripts refuse to start on one that has a stray file.
            self._enter()
        return lines + [f"print aistation: {_one_line(note)}" for note in self.notes]

    def _claim(self) -> None:
        """Raises Busy where another writer may be at work."""
        start = self.start
        known = read_run(self.record.comment) if start.attempt else {}
        self._claimed = claim.claim(start.directory, self._lease(), known, start.digest, self.slurm, self.notes)

    def _enter(self) -> None:
        """From here on the directory is ours: lease and attempt are written. Raises Busy where somebody was faster."""
        start = self.start
        for _ in range(3):
            try:
                if claim.take(start.directory, self._lease(), self._claimed.before):
                    self._leased = True
                    break
            except OSError as exc:
                self.notes.append(
                    f"warning: no lease can be written in {start.directory} ({exc.strerror}): {claim.OPEN}"
                )
                break
            self._claim()
        attempts.record(start.directory, self._entry())

    def _lease(self) -> claim.Lease:
        start = self.start
        boot = {start.node: _boot_id()} if start.node else {}
        return claim.Lease(start.job, start.cluster, start.attempt, start.nodes, boot, start.time)

    def _entry(self) -> dict[str, Any]:
        start, chosen = self.start, self.chosen
        return {
            "attempt": start.attempt,
            "time": start.time,
            "job": start.job,
            "cluster": start.cluster,
            "nodes": start.nodes,
            "step": chosen.step if chosen else None,
            "path": str(chosen.path) if chosen else "",
            "stamp": attempts.stamp(str(chosen.path)) if chosen else 0,
            "verdict": self.verdict,
            "start": self.record.start,
            "tag": self.record.tag_text,
            "last": self._ended_last(),
        }

    def _earlier(self) -> list[Mapping[str, Any]]:
        """Records of this job's earlier attempts, oldest first."""
        if self._records is None:
            start = self.start
            entries = attempts.read(start.directory)
            mine = [
                e for e in entries if e.get("job") == start.job and e.get("cluster", start.cluster) == start.cluster
            ]
            self._records = [e for e in mine if isinstance(e.get("attempt"), int) and e["attempt"] < start.attempt]
        return self._records

    def _ended_last(self) -> str:
        before = self._earlier()
        if self._claimed.lost:
            return attempts.INFRA
        return attempts.ended(before[-1] if before else None, self.record.tag, self.record.tag_text)

    def _choose(self) -> None:
        """The checkpoint to resume from, None to start from the beginning; adds what the user should know to the notes.

        Raises CheckpointError where starting from the beginning would silently throw work away: something was saved and
        nothing of it can be used. One torn checkpoint is no such case after a restart that had found nothing before: the
        fault struck during the very first save.
        """
        start = self.start
        bad = attempts.failed_twice(attempts.given_to(self._earlier(), self._ended_last()))
        refused = {
            path: f"{count} attempts of this job were given it, and none of them saved a newer one"
            for path, count in bad.items()
        }
        # every=False: only as much as decides; the training waits
        layouts, complaints = read_layouts(CONFIG)
        self.notes.extend(f"warning: {complaint}" for complaint in complaints[:5])
        found = inspect(start.directory, start.framework, every=False, refused=refused, layouts=layouts)
        self.notes.extend(f"warning: {warning}" for warning in found.warnings[:5])
        if found.resume is not None:
            newer = found.checkpoints[: found.checkpoints.index(found.resume)]
            self.notes.extend(f"skipped {c.path}: {c.why}" for c in newer[:3] if not c.valid)
            back = any(str(c.path) in refused for c in newer)
            if back:
                self.notes.append(f"rolled back one further; to try it again: rm {start.directory / ATTEMPTS}")
            self.chosen, self.verdict = found.resume, "back" if back else "ok"
            return
        if refused and any(str(c.path) in refused for c in found.checkpoints):
            raise CheckpointError(_all_failed(start.directory, found, refused))
        if not found.unusable:
            self.notes.append(f"{start.directory} has no checkpoint: starting from the beginning")
            return
        torn = found.checkpoints[0] if len(found.checkpoints) == 1 else None
        if torn is not None and not torn.unreadable and start.attempt > 0 and not self._earlier():
            self.notes.append(f"{torn.path} was cut short in its first save ({torn.why}): starting from the beginning")
            return
        raise CheckpointError(found.unusable)

    def publish(self) -> None:
        """Say in the job's Comment what was decided. Best effort: the job starts all the same."""
        start, record = self.start, self.record
        self.slurm.deadline = Deadline(self._whole.left(_PUBLISH_S))
        if record.argument and time.monotonic() - self._asked > 1.0:
            record = self.slurm.job(start.job) or JobRecord("")  # others write to the Comment too
        if not record.argument or not start.directory.is_absolute() or "\ufffd" in record.comment:
            return
        more = {}
        if self.verdict in ("ok", "back", "fresh") and not self._leased:
            # what the lease would say: the next attempt, and other jobs of this user, look here
            nodes = hostlist_text(start.nodes).replace("[", "{").replace("]", "}")
            more = {"d": start.digest, "t": str(start.time), "n": nodes}
        note = run_note(start.attempt, self.chosen.step if self.chosen else None, self.verdict, more)
        self.slurm.set_comment(record.argument, with_run(record.comment, note))


def _all_failed(directory: Path, found: Inspection, refused: Mapping[str, str]) -> str:
    newest = next(c for c in found.checkpoints if str(c.path) in refused)
    return (
        f"every valid checkpoint in {directory} was given to two attempts of this job that got nowhere, the newest of them "
        f"{newest.path}: the fault is rather in the program or its data; to try them again: rm {directory / ATTEMPTS}"
    )


def _is_empty(directory: Path) -> bool:
    """True for a directory that is missing or has no entry but our own. Raises CheckpointError where that cannot be told."""
    try:
        with os.scandir(directory) as entries:
            return all(side_file.is_ours(entry.name) for entry in entries)
    except FileNotFoundError:
        return True
    except OSError as exc:
        raise CheckpointError(f"{directory}: cannot be read: {exc.strerror}") from exc


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


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


def main(limit_s: float = LIMIT_S) -> int:
    """Print the answer and publish it; exit code 0, ``UNUSABLE`` or ``BUSY``. limit_s: when TaskProlog gives up."""
    code = 0
    this = StartUp(os.environ, limit_s)
    try:
        lines = this.answer()
    except CheckpointError as exc:
        lines, code = [_one_line(str(exc))], BUSY if isinstance(exc, Busy) else UNUSABLE
    # bytes: a path that is not UTF-8 goes through unchanged
    sys.stdout.buffer.write(b"".join(os.fsencode(line) + b"\n" for line in lines))
    sys.stdout.flush()
    this.publish()
    return code


if __name__ == "__main__":
    sys.exit(main())
