"""Running one command on many nodes with ClusterShell's Task: through its ssh worker, or a site's own command.

Each local process runs below timeout(1), which makes a process group and ends all of it, since ClusterShell kills only the
process that it started. The command on the node runs below timeout(1) as well: ending ssh does not end what it began there.
"""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

from aistation_slurm.config import Sweep
from aistation_slurm.sweep.targets import Target

__all__ = ["Answer", "Fanout", "node_command"]

ANSWER_MAX = 4 << 20
"""Bytes of one node's answer: a report has some tens of kilobytes."""
GRACE_S = 5
PASSED_ON_S = 0.5
TIMED_OUT = (124, 137)


@dataclass
class Answer:
    """What came back from one node. rc: None where nothing ended by itself. lost: ended for its time or its size."""

    rc: Optional[int] = None
    out: bytes = b""
    err: bytes = b""
    lost: str = ""


@dataclass
class _Open:
    target: Target
    out: list[bytes] = field(default_factory=list)
    err: list[bytes] = field(default_factory=list)
    size: int = 0
    answer: Answer = field(default_factory=Answer)


class Fanout:
    """Asks nodes. Not thread-safe: ClusterShell's task belongs to the thread."""

    def __init__(self, settings: Sweep) -> None:
        self._settings = settings

    def ask(
        self, targets: Sequence[Target], words: Sequence[str], done: Callable[[], None] = lambda: None
    ) -> dict[str, Answer]:
        """Run ``aistation <words>`` on each; an answer for each, whatever happens. done: called after each node."""
        from ClusterShell.Event import EventHandler
        from ClusterShell.Task import task_self

        settings, opened = self._settings, dict[int, _Open]()

        class Handler(EventHandler):  # type: ignore[misc]
            def ev_read(self, worker: Any, node: Any, sname: Any, msg: bytes) -> None:
                state = opened[id(worker)]
                state.size += len(msg) + 1
                (state.err if sname == worker.SNAME_STDERR else state.out).append(msg)
                if state.size > ANSWER_MAX and not state.answer.lost:
                    state.answer.lost = f"answered with more than {ANSWER_MAX >> 20} MiB"
                    worker.abort()

            def ev_hup(self, worker: Any, node: Any, rc: Any) -> None:
                opened[id(worker)].answer.rc = rc

            def ev_close(self, worker: Any, timedout: bool) -> None:
                state = opened[id(worker)]
                answer = state.answer
                answer.out, answer.err = b"\n".join(state.out), b"\n".join(state.err)
                if timedout or answer.rc in TIMED_OUT:
                    answer.lost = answer.lost or f"no answer within {settings.timeout_s:g} s"
                done()

        task = task_self()
        task.set_default("stdout_msgtree", False)
        task.set_default("stderr_msgtree", False)
        task.set_info("fanout", settings.fanout)
        task.set_info("connect_timeout", settings.connect_timeout_s)
        local_s = math.ceil(settings.timeout_s) + GRACE_S + settings.connect_timeout_s
        limit = ["timeout", f"--kill-after={GRACE_S}", str(local_s)]
        ssh = task.info("ssh_path") or "ssh"
        if not ssh.startswith("timeout "):
            task.set_info("ssh_path", f"{shlex.join(limit)} {ssh}")
        if settings.ssh_options:
            task.set_info("ssh_options", settings.ssh_options)
        command, handler, keep = node_command(settings, words), Handler(), []
        for target in targets:
            options = {"handler": handler, "stderr": True, "stdin": False, "timeout": local_s + 2 * GRACE_S}
            if settings.via == "command":
                own = [word.replace("{node}", target.name).replace("{host}", target.host) for word in settings.command]
                worker = task.shell("exec " + shlex.join([*limit, *own, *command]), **options)
            else:
                worker = task.shell(shlex.join(command), nodes=target.host, **options)
            keep.append(worker)
            opened[id(worker)] = _Open(target)
        if keep:
            with _ended_with_us(keep):
                task.resume()
        return {state.target.name: state.answer for state in opened.values()}


@contextmanager
def _ended_with_us(workers: Sequence[Any]) -> Iterator[None]:
    """A sweep that is interrupted or terminated leaves nothing behind.

    timeout(1), which is outside the terminal's process group, passes SIGTERM on; ClusterShell, which sends SIGKILL, comes later.
    """

    def end(signum: int, frame: Any) -> None:
        for worker in workers:
            for client in worker._engine_clients():
                process = getattr(client, "popen", None)
                if process is not None and process.poll() is None:
                    process.terminate()
        time.sleep(PASSED_ON_S)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def node_command(settings: Sweep, words: Sequence[str]) -> list[str]:
    """What runs on the node, with its own time limit there."""
    limit = ["timeout", f"--kill-after={GRACE_S}", f"{settings.timeout_s:g}"]
    return [*limit, settings.program, *words]
