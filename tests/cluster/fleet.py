"""A controller host and its nodes as machines: boot, power cut, network, commands, daemons. Slurm: ``cluster.py``."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar

from tests.cluster import host_root, roots
from tests.cluster.namespaces import ClusterError, CommandError, Host, Service, close_streams, kill_group

T = TypeVar("T")

CONTROLLER = "ctl"
ADDRESS = "10.77.0.1"
PAIR = ("ctl1", "ctl2")
"""Controller hosts of a cluster with a backup: machines of their own, so that one can lose its power. ``ctl`` then is
the login host, which also is the network's bridge."""
PREFIX = "ais-cluster-"
KEEP_VARIABLE = "AIS_KEEP_CLUSTER"
REBOOT_S = 4.0
"""slurmctld takes a node for rebooted when its boot time is later, in whole seconds (rounded thrice on the way), than
its last answer; else it believes that the node's jobs still run."""
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "nsenter", "setpriv", "pivot_root", "ip")


class Fleet:
    """``ctl``, ``names`` and a pair of controllers, all below one folder (``dir``) and one PID namespace."""

    def __init__(self, names: Sequence[str], pair: bool = False) -> None:
        """pair: slurmctld runs on ctl1 and ctl2 and not on ctl."""
        self.names = list(names)
        self.controllers = list(PAIR) if pair else [CONTROLLER]
        self._hosts: dict[str, Host] = {}
        self._addresses = {CONTROLLER: ADDRESS, **{name: _address(i) for i, name in enumerate(self.names)}}
        if pair:
            self._addresses.update({name: f"10.77.0.{11 + i}" for i, name in enumerate(PAIR)})
        self._boots = dict.fromkeys(self._addresses, 0)
        self._off_since = dict.fromkeys(self._addresses, 0.0)
        self._services: dict[str, Service] = {}
        self._commands: list[subprocess.Popen[str]] = []
        self._dir: Optional[Path] = None
        self.root = roots.Root()
        """Whose /usr and /etc the hosts have: which Slurm runs. Chosen when the cluster is made (``roots.chosen``)."""

    @property
    def dir(self) -> Path:
        """The folder on the outer machine; ``dir/"shared"`` is /shared inside."""
        if self._dir is None:
            raise ClusterError("the cluster is not running")
        return self._dir

    @property
    def hosts_on(self) -> list[str]:
        return list(self._hosts)

    def disk(self, name: str) -> Path:
        """The folder of one host that outlives its reboots (its /var, /tmp and /etc/aistation)."""
        return self.dir / "host" / name

    # ---- making and ending --------------------------------------------------------------------------------------

    def _make(self) -> None:
        """Make the folder and boot ctl with the bridge that the nodes are joined to."""
        check_machine()
        self.root = roots.chosen()
        remove_stale()
        atexit.register(self.stop)
        self._dir = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        (self._dir / "owner").write_text(owner_mark(os.getpid()), encoding="utf-8")
        self._dir.chmod(0o755)
        hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self._addresses.items())]
        host_root.copy_etc(self.root, self._dir / "etc", "\n".join(hosts) + "\n")
        host_root.make_shared(self._dir)
        host_root.write_product_files(self._dir)
        (self._dir / "log").mkdir()
        for name in self._addresses:
            host_root.make_disk(self.root, self.disk(name), name)

    def _boot_controller(self) -> None:
        self._new_boot_id(CONTROLLER)
        self._boot(CONTROLLER, [])
        self._hosts[CONTROLLER].net(
            f"link set lo up\nlink add lan type bridge\naddr add {ADDRESS}/16 dev lan\nlink set lan up\n"
        )

    def _boot_node(self, name: str, steps: Sequence[host_root.Step]) -> None:
        """Boot and join the network."""
        if self._boots[name]:
            time.sleep(max(0.0, self._off_since[name] + REBOOT_S - time.time()))
        self._boot(name, steps)
        host = self._hosts[name]
        # A new name at each boot: the kernel takes a killed host's interface away a little later.
        link = f"{name}b{self._boots[name]}"
        self._hosts[CONTROLLER].net(
            f"link add {link} type veth peer name eth0 netns {host.pid}\nlink set {link} master lan up\n"
        )
        host.net(f"link set lo up\naddr add {self._addresses[name]}/16 dev eth0\nlink set eth0 up\n")

    def _new_boot_id(self, name: str) -> None:
        (self.disk(name) / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="utf-8")

    def _boot(self, name: str, steps: Sequence[host_root.Step]) -> None:
        disk = self.disk(name)
        root = disk / "root"
        root.mkdir(exist_ok=True)
        self._boots[name] += 1
        plan = {
            "hostname": name,
            "root": str(root),
            "lifeline": name == CONTROLLER,
            "steps": host_root.steps(self.root, self.dir, disk, disk / "boot_id", steps),
        }
        inside = None if name == CONTROLLER else self._hosts[CONTROLLER]
        self._hosts[name] = Host(name, plan, disk / "plan.json", inside)

    def stop(self) -> None:
        """End every process of the cluster and remove its folder (AIS_KEEP_CLUSTER=1 keeps it). Safe to repeat."""
        atexit.unregister(self.stop)
        # The controller's PID namespace holds all the others, so this one end is everybody's.
        for name in self._addresses:
            if name in self._hosts:
                self._hosts.pop(name).power_off()
        for service in self._services.values():
            service.process.wait(30)
        self._services.clear()
        for command in self._commands:
            kill_group(command)
        self._commands.clear()
        if self._dir is not None and os.environ.get(KEEP_VARIABLE):
            (self._dir / "owner").unlink(missing_ok=True)  # so that no later start takes it for a dead one's
        elif self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = None

    def kill_node(self, name: str) -> None:
        """A power cut: slurmd and all job processes of the node end at once, its network goes away."""
        if name not in self.names:
            raise ClusterError(f"no node {name!r}; there are {', '.join(self.names)}")
        self._cut_power(name)

    def _cut_power(self, name: str) -> None:
        self.host(name).power_off()
        del self._hosts[name]
        self._off_since[name] = time.time()
        for key in [k for k, s in self._services.items() if s.host.name == name]:
            self._services.pop(key).process.wait(30)

    # ---- hosts, daemons, commands -------------------------------------------------------------------------------

    def host(self, name: str) -> Host:
        if name not in self._boots:
            raise ClusterError(f"no host {name!r}; there are {', '.join(self._boots)}")
        if name not in self._hosts:
            raise ClusterError(f"host {name} is switched off; start_node({name!r}) switches it on")
        return self._hosts[name]

    def start_service(self, name: str, host: str, argv: Sequence[str], user: str = "root") -> Service:
        """Start a daemon that stays in the foreground; its output is ``logs(name)``."""
        running = self._services.get(name)
        if running is not None and running.alive:
            raise ClusterError(f"{name} runs already")
        service = Service(self.host(host), name, argv, self.dir / "log" / f"{name}.out", user)
        self._services[name] = service
        return service

    def end_service(self, name: str, sig: int) -> None:
        if name not in self._services:
            raise ClusterError(f"{name} was not started")
        self._services[name].end(sig)

    def popen(
        self,
        argv: Sequence[str],
        user: str = "root",
        host: str = CONTROLLER,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        **streams: Any,
    ) -> subprocess.Popen[str]:
        """Start a command on a host; it ends with the cluster at the latest. Streams as for subprocess (PIPE)."""
        where = cwd or ("/root" if user == "root" else f"/shared/{user}" if user in host_root.USERS else "/")
        process = self.host(host).popen(argv, user, where, env, **streams)
        self._commands = [p for p in self._commands if p.poll() is None] + [process]
        return process

    def run(
        self,
        argv: Sequence[str],
        user: str = "root",
        host: str = CONTROLLER,
        timeout: float = 60,
        env: Optional[Mapping[str, str]] = None,
        check: bool = True,
        input: Optional[str] = None,
        cwd: Optional[str] = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end. Users start in /shared/<user>, root in /root.

        Raises CommandError for a non-zero exit where ``check``; subprocess.TimeoutExpired (the command is then ended).
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.popen(argv, user, host, env, cwd, stdin=stdin)
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            kill_group(process)
            raise
        close_streams(process)
        result = subprocess.CompletedProcess(list(argv), process.returncode, out, err)
        if check and result.returncode != 0:
            raise CommandError(argv, host, result)
        return result

    def wait_for(self, predicate: Callable[[], T], timeout: float, what: str, interval: float = 0.1) -> T:
        """Poll until ``predicate()`` is true; returns its value. Raises ClusterError (``what``, and how the cluster is)
        after ``timeout`` s."""
        deadline = time.monotonic() + timeout
        while True:
            value = predicate()
            if value:
                return value
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {timeout:g} s for {what}\n{self.situation()}")
            time.sleep(interval)

    def situation(self) -> str:
        """Jobs, drains and what controller and watchdog said last, for a failure message."""
        shown: list[str] = []
        jobs = ["squeue", "-a", "-t", "all", "-o", "job %i %T %r start %S node list %N exclude %x comment %k"]
        for argv in (jobs, ["sinfo", "-h", "-N", "-o", "%N %T %E"]):
            try:
                shown += self.run(argv, check=False, timeout=20).stdout.splitlines()
            except (OSError, subprocess.SubprocessError) as exc:
                shown.append(f"{argv[0]}: {exc}")
        for name, lines in (("slurmctld", 25), ("watchdog", 12)):
            shown += [f"{name}: {line}" for line in self.logs(name).splitlines()[-lines:]]
        return "\n".join(shown)

    def logs(self, name: str) -> str:
        """All text of one daemon: "slurmctld", "slurmd.gpu1", "munged.gpu1", "watchdog", "agent.gpu1"."""
        daemon, _, host = name.partition(".")
        own = self.disk(host or CONTROLLER) / "var/log/slurm" / f"{daemon}.log"
        printed = self.dir / "log" / f"{name}.out"
        path = own if own.exists() and own.stat().st_size else printed
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def last_words(self, lines_each: int = 5) -> str:
        """The end of every daemon's log, for a failure message."""
        lines: list[str] = []
        for name in sorted(self._services):
            lines += [f"{name}: {line}" for line in self.logs(name).splitlines()[-lines_each:]]
        return "\n".join(lines)


def remove_stale() -> None:
    """Remove folders of clusters whose owner is gone (killed with SIGKILL); their processes went with it."""
    for path in Path("/tmp").glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if path.is_symlink() or path.stat().st_uid != 0:
                continue
            mark = (path / "owner").read_text(encoding="utf-8")
            if mark != owner_mark(int(mark.split()[0])):
                shutil.rmtree(path, ignore_errors=True)


def owner_mark(pid: int) -> str:
    """pid and start time, which together name one process; "pid gone" for one that no longer exists."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{pid} gone"
    return f"{pid} {stat.rpartition(')')[2].split()[19]}"


def check_machine() -> None:
    """Raises ClusterError where the machine cannot hold a cluster, saying what to do."""
    if os.geteuid() != 0:
        raise ClusterError("the test cluster needs root (it makes namespaces and switches users)")
    missing = [tool for tool in NEEDED if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if missing:
        raise ClusterError(f"not installed: {', '.join(missing)}; `make test` installs them on Debian or Ubuntu")


def _address(index: int) -> str:
    return f"10.77.{1 + index // 250}.{1 + index % 250}"
