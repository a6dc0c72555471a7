"""What the TaskProlog runs, as the user, at each start of a managed job: which checkpoint, which arguments.

    python -m aistation_slurm.checkpoints.startup ANSWER_FILE

Writes ``export NAME=value`` and ``print text`` lines (the TaskProlog's own language) and a last line ``exit CODE``. Code 1
only where checkpoints exist and cannot be read: training from step 0 without a word would be worse than a failed job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aistation_slurm.checkpoints.choose import check_path, resume_args
from aistation_slurm.checkpoints.inspect import inspect
from aistation_slurm.errors import CheckpointError

__all__ = ["answer", "main"]

ATTEMPTS = ".aistation-attempts"
_PREFIX = "SLURM_SPANK_AISTATION_"


def answer(env: Mapping[str, str]) -> tuple[list[str], int]:
    """Lines for slurmstepd and the exit code, from the job's environment alone."""
    attempt = env.get("SLURM_RESTART_COUNT", "0")
    exports = {
        "AISTATION_ATTEMPT": attempt if attempt.isdigit() else "0",
        "AISTATION_RESUME_ARGS": "",
        "AISTATION_RESUME_PATH": "",
        "AISTATION_RESUME_STEP": "",
        "AISTATION_EXCLUDED_NODES": "",
    }
    lines: list[str] = []
    code = 0
    directory = env.get(_PREFIX + "CKPT_DIR", "")
    if directory:
        try:
            code = _choose(Path(directory), env, exports, lines)
        except CheckpointError as exc:
            lines.append(f"print aistation: {_one_line(str(exc))}")
            lines.append(
                "print aistation: not starting from step 0 without being asked to (--ais-resume=none asks for it)"
            )
            code = 1
    return [*(f"export {k}={v}" for k, v in exports.items()), *lines], code


def _choose(directory: Path, env: Mapping[str, str], exports: dict[str, str], lines: list[str]) -> int:
    if not directory.exists():
        lines.append(f"print aistation: {_one_line(str(directory))} does not exist yet: first start, step 0")
        return 0
    found = inspect(directory, env.get(_PREFIX + "RESUME", "auto"))
    for warning in found.warnings[:5]:
        lines.append(f"print aistation: warning: {_one_line(warning)}")
    chosen = found.resume
    if chosen is None:
        torn = (
            f"; {len(found.checkpoints)} incomplete: {_one_line(found.checkpoints[0].why)}" if found.checkpoints else ""
        )
        lines.append(f"print aistation: no valid checkpoint in {_one_line(str(directory))}{torn}: starting at step 0")
        return 0
    exports["AISTATION_RESUME_PATH"] = check_path(chosen.path)
    exports["AISTATION_RESUME_ARGS"] = resume_args(chosen, env.get(_PREFIX + "RESUME_ARGS_TEMPLATE", ""))
    exports["AISTATION_RESUME_STEP"] = "" if chosen.step is None else str(chosen.step)
    step = "unknown step" if chosen.step is None else f"step {chosen.step}"
    lines.append(f"print aistation: attempt {exports['AISTATION_ATTEMPT']} resumes from {chosen.path} ({step})")
    return 0


def _one_line(text: str) -> str:
    """User-made text as one printable line; slurmstepd reads each line as an order."""
    return "".join(c if c.isprintable() else "?" for c in text)[:300]


def _record(directory: Path, exports: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Append this start to the attempts file in the checkpoint directory; best effort."""
    entry = {
        "attempt": int(exports.get("AISTATION_ATTEMPT", "0")),
        "time": round(time.time()),
        "job": env.get("SLURM_JOB_ID", ""),
        "nodes": env.get("SLURM_JOB_NODELIST", ""),
        "path": exports.get("AISTATION_RESUME_PATH", ""),
        "step": exports.get("AISTATION_RESUME_STEP", ""),
    }
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(directory / ATTEMPTS, flags, 0o644)
        try:
            os.write(fd, (json.dumps(entry) + "\n").encode())
        finally:
            os.close(fd)
    except OSError:
        pass


def main() -> int:
    """Write the answer beside its name and rename it: a reader sees all of it or none."""
    target = Path(sys.argv[1])
    lines, code = answer(os.environ)
    partial = target.with_name(target.name + ".partial")
    partial.write_text("\n".join([*lines, f"exit {code}"]) + "\n", encoding="utf-8", errors="surrogateescape")
    partial.rename(target)
    directory = os.environ.get(_PREFIX + "CKPT_DIR", "")
    if directory and code == 0 and Path(directory).is_dir():
        exports = dict(line[7:].partition("=")[::2] for line in lines if line.startswith("export "))
        _record(Path(directory), exports, os.environ)
    return 0


if __name__ == "__main__":
    sys.exit(main())
