"""The stack snapshot of a hung job, kept for its user in the job's work directory.

The file is created and written by a child that has become the user; root only adds what the kernel alone tells root of
that user's processes. py-spy runs as the user too, unless the site says otherwise (``hang.py_spy_as``), since it reads a
stranger's memory.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aistation_slurm.config import Hang
from aistation_slurm.node import bounded
from aistation_slurm.node.gate_job import plain
from aistation_slurm.node.hang_processes import Process
from aistation_slurm.probes.child import Step, run_child
from aistation_slurm.probes.user import Credentials, of_process

__all__ = ["Kept", "dump", "find_py_spy", "keep_stacks", "kernel_facts"]

MAX_PROCESSES = 64
MAX_THREADS = 64
MAX_DUMPS = 16
DUMP_S = 15.0
WRITE_S = 5.0
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
MAX_TEXT = 256 * 1024
MAX_FILE_BYTES = 16 << 20
SYSTEM_PLACES = ("/usr/local/bin/py-spy", "/usr/bin/py-spy")
STATUS_LINES = ("State:", "Threads:", "VmRSS:", "SigQ:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


@dataclass(frozen=True)
class Kept:
    """path: the user's file; empty where none could be written, and then why."""

    path: str = ""
    why: str = ""


def find_py_spy(settings: Hang) -> str:
    """The program, or "" where it is not installed. Never from a PATH that a user could have a say in."""
    places = (
        [settings.py_spy]
        if settings.py_spy
        else [os.path.join(os.path.dirname(sys.executable), "py-spy"), *SYSTEM_PLACES]
    )
    return next((path for path in places if os.access(path, os.X_OK)), "")


def keep_stacks(
    settings: Hang,
    user: Credentials,
    work_dir: str,
    name: str,
    heading: Sequence[str],
    processes: Sequence[Process],
    elsewhere: Optional[Callable[[float], str]] = None,
) -> Kept:
    """Write ``<work_dir>/<name>.txt`` (0600, the user's), within ``hang.stack_deadline_s``; never replaces a file.

    heading: lines for the beginning. elsewhere: gives the text of the job's other nodes within so many seconds, called as the
    user. A process that ends meanwhile or cannot be looked at is said so in its place.
    """
    if not work_dir.startswith("/"):
        return Kept(why="Slurm shows no work directory of the job")
    deadline = time.monotonic() + settings.stack_deadline_s
    py_spy = find_py_spy(settings)
    python = [process for process in processes if process.python][:MAX_DUMPS]
    as_root = settings.py_spy_as == "root"

    def by_root(step: Step) -> str:
        parts = []
        for process in processes[:MAX_PROCESSES]:
            step(f"/proc/{process.pid}")
            # a process that runs as somebody else (a setuid program, or a pid used again) is not this user's to read
            theirs = of_process(process.pid, user.uid) is not None
            parts.append(kernel_facts(process) if theirs else f"== process {process.pid} is gone\n")
        for process in python if as_root and py_spy else ():
            step(f"py-spy of process {process.pid}")
            if of_process(process.pid, user.uid) is not None:
                parts.append(dump(py_spy, process, deadline - 1.0))
        return "\n".join(parts)[:MAX_TEXT]

    facts = run_child(by_root, settings.stack_deadline_s / (1 if as_root else 3))
    text = "\n".join([*heading, "", facts.value or f"the kernel's side could not be read: {facts.error}", ""])

    def by_user(step: Step) -> str:
        step(f"becoming uid {user.uid}")
        user.become()
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        step(f"creating a file in {work_dir}")
        path, fd = _create(work_dir, name)
        step(path)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
            if not py_spy:
                file.write("\nNo Python stacks: py-spy is not installed on this node.\n")
            for process in python if py_spy and not as_root else ():
                file.flush()
                file.write(dump(py_spy, process, deadline - 1.0))
            left = deadline - 1.0 - time.monotonic()
            if elsewhere is not None and left > WRITE_S:
                file.flush()
                file.write(f"\n\nThe job's other nodes:\n{elsewhere(left)}")
        return path

    written = run_child(by_user, max(WRITE_S, deadline - time.monotonic()))
    if written.value is not None:
        return Kept(str(written.value))
    # perhaps late, but with the file made already: then the step is its path
    path = written.step if written.step.startswith("/") else ""
    return Kept(path, written.error)


def _create(folder: str, name: str) -> tuple[str, int]:
    """A new file, and no other: neither a link nor what is there already is written to. Raises OSError."""
    for number in range(1, 100):
        path = os.path.join(folder, f"{name}.txt" if number == 1 else f"{name}-{number}.txt")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"{folder}: {name}.txt and 99 more are there already")


def dump(py_spy: str, process: Process, deadline: float) -> str:
    """``py-spy dump`` of one process, or why there is none. It pauses the process for some milliseconds."""
    left = min(deadline - time.monotonic(), DUMP_S)
    title = f"\n== Python stacks of process {process.pid} ({plain(process.name)})\n"
    if left <= 0:
        return f"{title}no time left\n"
    outcome = bounded.run([py_spy, "dump", "--pid", str(process.pid)], left, ENVIRONMENT)
    text = outcome.output[:MAX_TEXT]
    if outcome.code is None:
        text += f"py-spy did not finish within {left:.0f} s\n"
    elif outcome.code != 0 and "ermission" in text:
        text += 'Where kernel.yama.ptrace_scope is 1, an administrator may set py_spy_as = "root" in [hang].\n'
    return title + text


def kernel_facts(process: Process) -> str:
    """State, where each thread waits in the kernel, and the main thread's kernel stack."""
    base = Path(f"/proc/{process.pid}")
    status = [line for line in (_text(base / "status") or "").splitlines() if line.startswith(STATUS_LINES)]
    lines = [f"== process {process.pid} ({plain(process.name)})"]
    lines += [" ".join(line.split()) for line in status]
    waits: dict[str, int] = {}
    try:
        threads = sorted(int(name) for name in os.listdir(base / "task"))
    except OSError:
        threads = []
    for thread in threads[:MAX_THREADS]:
        where = _text(base / "task" / str(thread) / "wchan") or "?"
        name = plain(_text(base / "task" / str(thread) / "comm") or "?")
        waits[f"{name} in {where}"] = waits.get(f"{name} in {where}", 0) + 1
    lines += [f"{count} thread{'s' if count > 1 else ''}: {what}" for what, count in waits.items()]
    stack: Optional[str] = _text(base / "stack")
    if stack:
        lines += ["kernel stack of the main thread:", *(f"  {line}" for line in stack.splitlines())]
    return "\n".join(lines) + "\n"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
