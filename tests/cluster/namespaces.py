"""Hosts made of Linux namespaces: start one, run a command in it, cut its power.

The controller host is a PID namespace; each node is a PID namespace inside it. So the death of the controller's PID 1
ends the whole cluster, and the controller's PID 1 dies with the process that made the cluster (see ``Host.lifeline``).
Nothing here has a name outside: no /run/netns entry, no mount in the outer mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Optional, Union

HOLDER = Path(__file__).with_name("holder.py")
SYSTEM_PYTHON = "/usr/bin/python3"
SEARCH_PATH = "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterError(RuntimeError):
    """The test cluster itself could not do what was asked (not a failed test)."""


class CommandError(ClusterError):
    """A command run in the cluster exited non-zero where success was required."""

    def __init__(self, argv: Sequence[str], host: str, result: subprocess.CompletedProcess[str]) -> None:
        self.result = result
        super().__init__(
            f"{' '.join(argv)} on {host}: exit code {result.returncode}\n"
            f"stdout: {result.stdout.strip()}\nstderr: {result.stderr.strip()}"
        )


class Host:
    """One running host. ``pid`` is the outer process id of its PID 1."""

    def __init__(self, name: str, plan: Mapping[str, Any], plan_file: Path, inside: Optional[Host] = None) -> None:
        """Start it. ``inside`` is the controller host whose PID namespace a node lives in.

        Raises ClusterError when it does not come up within 30 s.
        """
        self.name = name
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
        boot = ["unshare", "--fork", "--kill-child", "--pid", "--mount", "--net", "--uts", "--ipc"]
        boot += [*_fresh_uptime(), "--", SYSTEM_PYTHON, "-ISE", str(HOLDER), str(plan_file)]
        if inside is not None:
            boot = ["nsenter", f"--target={inside.pid}", "--pid", "--", *boot]
        self._errors = plan_file.with_suffix(".err")
        # The write end of stdin is the lifeline: the kernel closes it however this process ends.
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                boot,
                stdin=subprocess.PIPE if plan["lifeline"] else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd="/",
                env={"PATH": SEARCH_PATH},
            )
        self.lifeline = self.process.stdin
        try:
            self._await_ready(30)
            self.pid = _last_descendant(self.process.pid)
        except BaseException:
            self.power_off()
            raise

    def _await_ready(self, seconds: float) -> None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if line != b"ready\n":
            why = self._errors.read_text(encoding="utf-8", errors="replace").strip() or f"no answer in {seconds:g} s"
            raise ClusterError(f"host {self.name} did not start: {why}")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def power_off(self) -> None:
        """End every process of the host at once, as a power cut does; returns when they are gone."""
        if self.lifeline is not None:
            self.lifeline.close()
        pid = getattr(self, "pid", None)
        try:
            if pid is not None and self.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
            elif pid is None:
                # Not up yet: --kill-child passes the end of unshare on to the holder.
                for child in [*_descendants(self.process.pid), self.process.pid]:
                    os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def enter_argv(self, argv: Sequence[str], user: str, cwd: str) -> list[str]:
        """The outer command line that runs ``argv`` in this host as ``user``."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--uts", "--ipc", "--pid"]
        if os.path.exists(f"/proc/{self.pid}/ns/time"):
            enter.append("--time")
        who = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return [*enter, "--", *who, "env", f"--chdir={cwd}", *argv]

    def environment(self, user: str) -> dict[str, str]:
        """What a fresh login of ``user`` would have."""
        home = "/root" if user == "root" else f"/home/{user}"
        return {
            "PATH": SEARCH_PATH,
            "LANG": "C.UTF-8",
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "HOME": home,
        }

    def popen(
        self,
        argv: Sequence[str],
        user: str = "root",
        cwd: str = "/",
        env: Optional[Mapping[str, str]] = None,
        stdin: Union[int, IO[Any], None] = subprocess.DEVNULL,
        stdout: Union[int, IO[Any], None] = subprocess.PIPE,
        stderr: Union[int, IO[Any], None] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command in this host, in a session of its own, with a clean environment plus ``env``."""
        if not self.alive:
            raise ClusterError(f"host {self.name} is switched off; start it before running {argv[0]} there")
        return subprocess.Popen(
            self.enter_argv(argv, user, cwd),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**self.environment(user), **(env or {})},
        )

    def net(self, batch: str) -> None:
        """Apply ``ip -batch`` lines in this host's network namespace (process ids in them are outer ones)."""
        argv = ["nsenter", f"--target={self.pid}", "--net", "--", "ip", "-batch", "-"]
        done = subprocess.run(argv, input=batch, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise ClusterError(f"host {self.name}: network set-up failed: {done.stderr.strip()}")


class Service:
    """A daemon that runs in the foreground in a host; its output goes to a file."""

    def __init__(self, host: Host, name: str, argv: Sequence[str], log: Path, user: str = "root") -> None:
        self.name = name
        self.host = host
        with log.open("a", encoding="utf-8") as out:
            self.process = host.popen(argv, user, stdout=out, stderr=subprocess.STDOUT)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def pid(self) -> int:
        """Outer process id of the daemon itself (nsenter waits as its parent)."""
        deadline = time.monotonic() + 10
        while self.alive and time.monotonic() < deadline:
            children = _children(self.process.pid)
            if children:
                return children[0]
            time.sleep(0.005)
        raise ClusterError(f"{self.name} is not running")

    def end(self, sig: int = signal.SIGTERM, timeout: float = 30) -> None:
        """Signal the daemon alone (not its children) and wait until it is gone."""
        if self.alive:
            try:
                os.kill(self.pid, sig)
            except (ProcessLookupError, ClusterError):
                pass
        self.process.wait(timeout)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """End what ``Host.popen`` started, with its children."""
    # nsenter, the leader, last and by itself: it reaps the command, which else stays a zombie in the host.
    for pid in _group_members(process.pid):
        if pid != process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
    close_streams(process)


def close_streams(process: subprocess.Popen[Any]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _fresh_uptime() -> list[str]:
    """unshare options for a time namespace in which the host has just booted; none where the kernel has no such thing.

    Slurm tells a restarted slurmd from a rebooted node by the boot time, so it must move.
    """
    if not os.path.exists("/proc/self/ns/time"):
        return []
    options = ["--time"]
    for name, clock in (("boottime", time.CLOCK_BOOTTIME), ("monotonic", time.CLOCK_MONOTONIC)):
        options.append(f"--{name}=-{int(time.clock_gettime(clock))}")
    return options


def _process_table() -> list[tuple[int, int, int]]:
    """(pid, parent, process group) of all, from /proc/*/stat: .../children needs a kernel option that many lack."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            found.append((int(entry), int(fields[1]), int(fields[2])))
    return found


def _children(pid: int) -> list[int]:
    return [child for child, parent, _ in _process_table() if parent == pid]


def _group_members(group: int) -> list[int]:
    return [pid for pid, _, its_group in _process_table() if its_group == group]


def _descendants(pid: int) -> list[int]:
    """All below ``pid``, deepest first."""
    found: list[int] = []
    for child in _children(pid):
        found += [*_descendants(child), child]
    return found


def _last_descendant(pid: int) -> int:
    """End of a chain of only children: nsenter, unshare, holder."""
    children = _children(pid)
    while children:
        pid = children[0]
        children = _children(pid)
    return pid
