"""The node agent: keeps the node's state file fresh, and acts within a second on what the kernel says.

Two things run: this loop, which follows the kernel log and reacts; and one worker thread that checks the whole node every
``node.poll_s`` seconds, because a look at a hung driver takes many seconds and must not delay a lost GPU.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Optional

from aistation_slurm.config import Config
from aistation_slurm.config.reload import Reloader
from aistation_slurm.correlation.reporter import Reporter
from aistation_slurm.detectors import gpu as gpu_detector
from aistation_slurm.detectors.kernel_events import Event, find_events
from aistation_slurm.detectors.rules import apply_rules
from aistation_slurm.errors import AistationError, SlurmError, StateFileError
from aistation_slurm.findings import Finding, Status
from aistation_slurm.node import history, jobs
from aistation_slurm.node.drain import HANG, conclusive, fatal
from aistation_slurm.node.gpu_memory import leftover_memory
from aistation_slurm.node.hang import HangWatch
from aistation_slurm.node.health import NodeReport, check_node
from aistation_slurm.node.job_output import EndedJobs
from aistation_slurm.node.own_name import OwnName
from aistation_slurm.node.publish import gres_indices, publish
from aistation_slurm.node.reaction import Reaction
from aistation_slurm.node.sdnotify import notify, watchdog_interval_s
from aistation_slurm.node.settle import settle, unsettled
from aistation_slurm.placement.node_grade import NodeGrade
from aistation_slurm.probes.klog import KernelLog
from aistation_slurm.probes.nvml import NvmlSnapshot
from aistation_slurm.probes.pci import PciGpu
from aistation_slurm.slurm.client import SlurmClient

if TYPE_CHECKING:
    from aistation_slurm.healing.watch import HealWatch

__all__ = ["RESTART", "Agent", "kernel_findings", "look_at_node"]

log = logging.getLogger(__name__)

FILE_POLL_S = 0.2
"""A plain file (a test's, or a log host's) cannot be waited for."""
IDLE_POLL_S = 1.0
KERNEL_CHECKS = ("gpu.lost", "gpu.xid")
HAND_OVER_S = 10.0
"""The loop may be in the middle of a request to Slurm."""
LINK_LOOK_S = 5.0
"""A link that flaps all the time costs no more than a look in this time."""
RESTART = ("slurm", "node.state_dir", "probe.kmsg", "healing.enabled", "breaker.spread_s")
"""Settings that a running agent cannot change (SIGHUP)."""
HANG_RECHECK_S = 5.0
"""While a driver call is blocked and not yet confirmed as a hang: a look that waits for an old child costs nothing."""


def look_at_node(config: Config, node: str = "") -> NodeReport:
    """One complete look. node: Slurm's name of this node; empty: a guess."""
    age = config.check.slow_every_s
    return check_node(config, now=time.time(), events=history.events(config), node=node, slow_max_age_s=age)


def kernel_findings(last: NodeReport, events: Sequence[Event]) -> list[Finding]:
    """What the kernel's messages alone say about the GPUs that the last look saw.

    Touches no device: sysfs and NVML of a sick GPU can block, and the complete look that follows asks them.
    """
    known = [PciGpu(address=gpu.pci, alive=None, minor=gpu.minor, uuid=gpu.uuid) for gpu in last.gpus]
    found = gpu_detector.findings(gpu_detector.GpuFacts(NvmlSnapshot(), known, events, whole_node=False))
    return [f for f in found if f.check in KERNEL_CHECKS]


class Agent:
    """One agent of one node. ``run`` returns after SIGTERM or SIGINT, or after one look with ``once``."""

    def __init__(
        self,
        config: Config,
        client: SlurmClient,
        check: Optional[Callable[[Config], NodeReport]] = None,
        reloader: Optional[Reloader] = None,
    ) -> None:
        """reloader: reads the settings anew at SIGHUP."""
        self.config = config
        self._reloader = reloader
        self._reload_wanted = False
        self.client = client
        self.check = check or self._look
        self.state_dir = config.node.state_dir
        self.own_name = OwnName(self.state_dir)
        self.reaction: Optional[Reaction] = None
        self.report: Optional[NodeReport] = None
        self.hang = HangWatch(config, client, self._minors_of)
        self.ended = EndedJobs(config, client, self._certain_name)
        self.grade = NodeGrade(config, client, self._certain_name, host=platform.node())
        self.reporter = Reporter(config, client, self._certain_name)
        self.heal = self._healing() if config.healing.enabled else None
        self._checking = threading.Lock()
        """One look at a time: they share files and the driver."""
        self._stopping = False
        self._reports: queue.SimpleQueue[tuple[NodeReport, float]] = queue.SimpleQueue()
        """With the monotonic time at which the look began."""
        self._look_now = threading.Event()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._klog: Optional[KernelLog] = None
        self._klog_retry_at = 0.0
        self._link_look_at = 0.0
        self._leftover: set[str] = set()
        self._gres: dict[str, int] = {}
        self._said: set[str] = set()

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def once(self) -> Status:
        """One complete look: write the state, act, and return the node's status."""
        began = time.monotonic()
        report = self.check(self.config)
        self._take(report, began)
        return report.status

    def run(self) -> None:
        """Until a signal ends it."""
        previous = [(number, signal.signal(number, self._on_signal)) for number in (signal.SIGTERM, signal.SIGINT)]
        previous.append((signal.SIGHUP, signal.signal(signal.SIGHUP, self._on_hangup)))
        old_fd = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        worker = threading.Thread(target=self._work, name="look", daemon=True)
        try:
            self._open_klog()
            worker.start()
            self.hang.start()
            if self.heal is not None:
                self.heal.start()
            self._loop()
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in previous:
                signal.signal(number, handler)
            notify("STOPPING=1")
            self.hang.stop()
            if self.heal is not None:
                self.heal.stop()
            self._look_now.set()

    def _loop(self) -> None:
        alive_every, alive_at = watchdog_interval_s(), 0.0
        while not self._stopping:
            poller = select.poll()
            poller.register(self._wake_reader, select.POLLIN)
            if self._klog is not None and self._klog.pollable:
                poller.register(self._klog.fileno(), select.POLLIN)
            poller.poll(1000 * self._pause(alive_every))
            self._drain_wake_pipe()
            try:
                if self._reload_wanted:
                    self._reload()
                self._step()
            except Exception:
                # a bug in one reaction must not end the watch; it is said each time, and not too often
                log.exception("internal error; going on")
                time.sleep(IDLE_POLL_S)
            if time.monotonic() >= alive_at:
                notify("WATCHDOG=1")
                alive_at = time.monotonic() + min(alive_every, 3600.0)

    def _step(self) -> None:
        """Everything that may be due now."""
        self._follow_kernel()
        while not self._reports.empty():
            report, began = self._reports.get()
            self._take(report, began)
            if report is self.report and conclusive(report):
                self.grade.see(report.findings)
                self.reporter.see(report.findings)
        if (Path(self.state_dir) / "refresh").exists():
            self._refresh_wanted()
        self.grade.act()
        self.reporter.act()
        if self.reaction is not None:
            self.reaction.act()
            self.reaction.watch_for_return()
            self.hang.act(self.reaction.node, self.reaction.done)

    def _pause(self, alive_every: float) -> float:
        wait = IDLE_POLL_S if self._klog is not None and self._klog.pollable else FILE_POLL_S
        if self.reaction is not None and self.reaction.pending is not None:
            wait = min(wait, max(0.05, self.reaction.retry_at - time.monotonic()))
        if self.reporter.due_in_s is not None:
            wait = min(wait, max(0.05, self.reporter.due_in_s))
        return min(wait, alive_every)

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._stopping = True

    def _on_hangup(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._reload_wanted = True

    def _reload(self) -> None:
        """New settings for all parts. What was seen, and what is still to be done about it, stays where it is."""
        self._reload_wanted = False
        new = self._reloader.reload(self.config) if self._reloader is not None else None
        if new is None:
            return
        self.config = new
        for part in (self.hang, self.ended, self.grade, self.reporter, self.reaction, self.heal):
            if part is not None:
                part.reconfigure(new)
        self._said.clear()
        self._look_now.set()

    def _drain_wake_pipe(self) -> None:
        try:
            while os.read(self._wake_reader, 512):
                pass
        except BlockingIOError:
            pass

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"r")
        except BlockingIOError:
            pass  # it is awake already

    def _certain_name(self) -> str:
        return self.own_name.certain(self.client)

    # ---- looking ----------------------------------------------------------------------------------------------------

    def _look(self, config: Config) -> NodeReport:
        """The first look waits for no controller: the gate needs its state."""
        name = self.own_name.known()
        if not name and self.report is not None:
            try:
                name = self._certain_name()
            except SlurmError as exc:
                self._say_once(str(exc))
        return look_at_node(config, name or self.own_name.guess())

    def _healing(self) -> HealWatch:
        """Loaded only where the site wants it, for the memory of all others."""
        from aistation_slurm.healing.healer import full_check
        from aistation_slurm.healing.watch import HealWatch

        def look() -> NodeReport:
            with self._checking:
                return full_check(self.config, self._certain_name())

        return HealWatch(self.config, self.client, self._certain_name, look, self._hand_over)

    def _hand_over(self, report: NodeReport) -> None:
        """From healing's thread: have it published, so that the gate knows when the node is given back."""
        self._reports.put((report, time.monotonic()))
        self._wake()
        until = time.monotonic() + HAND_OVER_S
        while (self.report is None or self.report.time < report.time) and time.monotonic() < until:
            time.sleep(0.05)

    def _work(self) -> None:
        """The worker: a complete look now, then every ``poll_s`` seconds and whenever one is asked for."""
        while not self._stopping:
            self._look_now.clear()
            began = time.monotonic()
            try:
                with self._checking:
                    report = self.check(self.config)
            except AistationError as exc:
                self._say_once(f"the node could not be checked: {exc}")
            except Exception:
                # a bug in one check must not end the watch over the others
                log.exception("the node could not be checked")
            else:
                self._reports.put((report, began))
                self._wake()
                if any(f.check == HANG and f.status is Status.UNKNOWN for f in report.findings):
                    self._look_now.wait(min(HANG_RECHECK_S, self.config.node.poll_s))
                    continue
            self._look_now.wait(self.config.node.poll_s)

    def _open_klog(self) -> None:
        path = self.config.probe.kmsg
        self._klog_retry_at = time.monotonic() + self.config.node.poll_s
        try:
            self._klog = KernelLog(path)
            self._klog.read_new()  # what is there already is judged by the first look
        except OSError as exc:
            self._klog = None
            self._say_once(
                f"{path}: {exc.strerror}; without the kernel log faults are seen every {self.config.node.poll_s:g} s"
            )

    def _follow_kernel(self) -> None:
        """React to fatal messages at once."""
        if self._klog is None:
            if time.monotonic() < self._klog_retry_at:
                return
            self._open_klog()
            if self._klog is None:
                return
        try:
            records = self._klog.read_new()
        except OSError as exc:
            self._say_once(f"{self._klog.path}: {exc.strerror}")
            self._klog.close()
            self._klog = None
            return
        events = find_events(records) if records else []
        if any(event.kind == "link" for event in events) and time.monotonic() >= self._link_look_at:
            self._link_look_at = time.monotonic() + LINK_LOOK_S
            self._look_now.set()
        if not any(event.drain for event in events):
            return
        for event in events:
            if event.drain:
                log.warning("kernel: %s", " ".join(event.raw.split()))
        if self.report is not None:
            # before the first complete look nothing is known of this node; that look will see the message too
            urgent = apply_rules(kernel_findings(self.report, history.events(self.config)), self.config.checks)
            self._reaction_of(self.report).see(fatal(urgent), complete=False)
        self._look_now.set()

    def _take(self, report: NodeReport, began: float) -> None:
        """One complete report: publish first, since the gate needs it, then act."""
        if self.reaction is not None and began < self.reaction.given_back_at:
            self._look_now.set()  # what it tells of was dealt with while it was made: acting on it would drain the node again
            return
        first = self.report is None
        self.report = report
        gres = gres_indices(report, self.config)
        self._gres.update({gpu.pci: gres[gpu.minor] for gpu in report.gpus if gpu.minor in gres})
        try:
            publish(report, self.config)
        except StateFileError as exc:
            self._say_once(str(exc))
        if first:
            notify("READY=1")
            log.info("%s: %s", report.node, report.status.value)
        self._watch_idle_memory(report)
        if self.heal is not None:
            self.heal.learn(report)
        reaction = self._reaction_of(report)  # before what settling notes, so that it is seen as news
        self._settle_refusals()
        reaction.see(fatal(report.findings), complete=conclusive(report))

    def _reaction_of(self, report: NodeReport) -> Reaction:
        if self.reaction is None:
            self.reaction = Reaction(
                self.config, report.node, report.boot_id, self.client, self._gres_of, own_name=self._certain_name
            )
        return self.reaction

    def _settle_refusals(self) -> None:
        """Before the reaction: it then finds its own reason on the node, where the gate could not set it."""
        try:
            if unsettled(self.state_dir):
                said = settle(self.config, self._certain_name(), self.client, time.time())
                if said:
                    log.warning("%s", said)
        except SlurmError as exc:
            self._say_once(f"refused jobs are not yet made known to Slurm: {exc}")

    def _gres_of(self, device: str) -> Optional[int]:
        """gres index of the GPU with this PCI address, also of one that is gone from the bus since an earlier look."""
        return self._gres.get(device)

    def _minors_of(self, record: jobs.JobRecord) -> frozenset[int]:
        """Device minors of a job's GPUs."""
        gres = {} if self.report is None else gres_indices(self.report, self.config)
        return frozenset(minor for minor, index in gres.items() if index in record.gpus)

    def _watch_idle_memory(self, report: NodeReport) -> None:
        """Say once when a GPU that no job holds has memory in use without a process."""
        held = {index for record in jobs.read_all(self.state_dir).values() for index in record.gpus}
        gres = gres_indices(report, self.config)
        idle = [gpu for gpu in report.nvml.gpus if gres.get(gpu.minor, -1) not in held]
        found = {line.partition(":")[0]: line for line in leftover_memory(idle, self.config.epilog.memory_free_mib)}
        for name in found.keys() - self._leftover:
            log.warning("%s; no job holds this GPU", found[name])
        self._leftover = set(found)

    def _refresh_wanted(self) -> None:
        """An epilog asks for a fresh state by leaving this file."""
        try:
            os.unlink(f"{self.state_dir}/refresh")
        except OSError:
            return
        self._look_now.set()
        self.ended.look()

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
