"""The cluster of the torture: disks that can be filled, and a watchdog whose clock and death are ours to set."""

from __future__ import annotations

import mmap
import signal
import struct
import subprocess
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.fleet import CONTROLLER

SHIM = Path(__file__).with_name("shim.c")
JOURNAL_DISK, SPOOL_DISK = "/var/lib/aistation", "/var/spool/aistation/events"
_INSIDE = "/shared/.torture"
_PAGE = struct.Struct("<qqq")
RESTART = {
    "infrastructure": {"limit": 100, "backoff_s": 10.0, "backoff_max_s": 60.0},
    "resume_failed": {"limit": 4, "backoff_s": 10.0, "backoff_max_s": 60.0},
    "transient": {"limit": 2, "backoff_s": 30.0, "backoff_max_s": 60.0},
}
"""The defaults, but with short back-offs: every attempt here is a quick one, and a job that waits for 600 s tests nothing."""


class Site(Cluster):
    """Five nodes of four GPUs and two ports each."""

    def __init__(self, nodes: int = 5) -> None:
        super().__init__(
            nodes=nodes,
            gpus=4,
            hcas=2,
            conf_extra="MinJobAge=900\nSchedulerParameters=bf_interval=5,sched_min_interval=200000",
            config={
                "watchdog": {"poll_s": 5.0},
                **{f"watchdog.restart.{cause}": rule for cause, rule in RESTART.items()},
                "node": {"poll_s": 5.0},
                # so many faults on so few nodes would hold the breaker open all the time
                "breaker": {"least": 1000},
            },
        )
        self._page: mmap.mmap | None = None

    def start(self) -> None:
        super().start()
        self.stop_watchdog()
        for folder, options in ((JOURNAL_DISK, "size=32m"), (SPOOL_DISK, "size=1m,nr_inodes=256")):
            self.run(["mount", "-t", "tmpfs", "-o", f"{options},mode=0700,uid=slurm,gid=slurm", "tmpfs", folder])
        self._build_shim()
        self.start_watchdog()
        self.wait_for(self.journal_exists, 60, "the watchdog to make its journal")

    def stop(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None
        super().stop()

    def journal_exists(self) -> bool:
        return Path(f"/proc/{self.host(CONTROLLER).pid}/root{JOURNAL_DISK}/journal.db").exists()

    # ---- the watchdog's clock and death ---------------------------------------------------------------------------

    def _build_shim(self) -> None:
        folder = self.dir / "shared/.torture"
        folder.mkdir(mode=0o755)
        argv = ["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(SHIM), "-ldl"]
        subprocess.run(argv, check=True, timeout=60)
        page = folder / "page"
        page.write_bytes(bytes(4096))
        page.chmod(0o666)
        with page.open("r+b") as handle:
            self._page = mmap.mmap(handle.fileno(), 4096)

    def _read(self) -> tuple[int, int, int]:
        assert self._page is not None
        offset_ns, fuse, died = _PAGE.unpack_from(self._page)
        return offset_ns, fuse, died

    @property
    def clock_offset_s(self) -> float:
        return self._read()[0] / 1e9

    def set_clock(self, offset_s: float) -> None:
        """Set the watchdog's wall clock this far from the true one, at once, while it runs."""
        assert self._page is not None
        struct.pack_into("<q", self._page, 0, int(offset_s * 1e9))

    def set_fuse(self, calls: int) -> None:
        """The watchdog dies by SIGKILL at its ``calls``-th commit, command or file removal from now; 0: it does not."""
        assert self._page is not None
        struct.pack_into("<q", self._page, 8, calls)

    def start_watchdog(self, host: str = "") -> None:
        argv = ["aistation", "watchdog", "run"]
        if self._page is not None:
            argv = ["env", f"LD_PRELOAD={_INSIDE}/shim.so", f"TORTURE_PAGE={_INSIDE}/page", *argv]
        self.start_service("watchdog", host or CONTROLLER, argv, "slurm")

    def ended(self, service: str) -> int | None:
        """Return code of a daemon that has ended; negative for a signal, None while it runs."""
        return self._services[service].process.poll()

    @property
    def controller_up(self) -> bool:
        return self._services["slurmctld"].alive

    # ---- disks ------------------------------------------------------------------------------------------------------

    def fill(self, folder: str, leave_kib: int) -> None:
        """Fill a disk of the controller but for a little."""
        filler = f"{folder}/filler"
        self.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], check=False)
        if leave_kib:
            self.run(["truncate", f"--size=-{leave_kib}K", filler])

    def empty(self, folder: str) -> None:
        self.run(["rm", "-f", f"{folder}/filler"])

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def is_on(self, name: str) -> bool:
        return name in self._hosts

    def boot(self, name: str) -> None:
        """Switch a node on with healthy hardware, without waiting for slurmctld, which may be away."""
        self.heal(name)
        for mark in (self.dir / "shared/broken").glob(f"{name}.*"):
            mark.unlink()
        self._start_node(name)

    def agent_runs(self, name: str) -> bool:
        return f"agent.{name}" in self._services and self._services[f"agent.{name}"].alive

    def kill_agent(self, name: str) -> None:
        self.end_service(f"agent.{name}", signal.SIGKILL)

    def try_run(self, *argv: str, user: str = "root", timeout: float = 30) -> tuple[bool, str]:
        """Run on the controller; whether it exited with 0, and its output. No answer in time is False."""
        try:
            done = self.run(argv, user, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return False, f"no answer in {timeout:g} s"
        return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr
