"""The gate: may this job start on this node? Run as Slurm's Prolog by ``prolog/aistation-prolog``.

Passing path: read the node's state file, re-read the live facts of the job's own devices in one child, exit 0; no RPC,
no import beyond ``os``, ``select`` and ``time``. Exit code 1 (which makes Slurm drain the node and requeue the job) only
for a proven fault of this node that concerns this job; everything in doubt passes with a line in syslog.

Order: 1. state file, read again in place by the full interpreter where it is stale; 2. its findings about the job's
devices, confirmed once; 3. live facts, confirmed once; 4. refuse: own drain reason first, then exit 1.
"""

from __future__ import annotations

import os
import time

from aistation_slurm.errors import StateFileError
from aistation_slurm.node import bounded, live, state
from aistation_slurm.node.breaker import breaker_open
from aistation_slurm.node.gate_job import GateJob, matches, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional

    from aistation_slurm.node.state import DeviceLine, NodeState

__all__ = ["PASS", "REFUSE", "Gate", "main"]

PASS, REFUSE = 0, 1

STATE_DIR = "/run/aistation"
DEFAULT_BUDGET_S = 8.0
REFUSING_S = 2.5
"""Kept back of the budget for the failing path: two requests to the controller."""
CONFIRM_PAUSE_S = 0.4
"""Between two looks at a live fact that would refuse the job: a port that the subnet manager just moves is not down."""
FRESH_S = 3.0
"""A finding in a state file younger than this needs no second look."""
LIVE_PORT_CHECKS = ("fabric.port_state", "fabric.rate")
"""What the gate itself sees of a port; one that has errors or flapped and is up is looked at like any other."""
CONFIRMED_BY_AGENT = ("gpu.driver_hang",)
"""Findings that take more than one look to establish, which a single new look cannot refute."""


class Gate:
    """One decision. ``prefix`` is the folder that holds ``aistation_slurm/``; ``env`` is the prolog's environment."""

    def __init__(self, env: Mapping[str, str], prefix: str, state_dir: str = "") -> None:
        self.begin = time.monotonic()
        self.env = env
        self.prefix = prefix
        self.state_dir = state_dir or env.get("AISTATION_STATE_DIR") or STATE_DIR
        self.job = GateJob(env)
        self.state: Optional[NodeState] = None
        self.refreshed = False
        self.one_cause = False
        """Other nodes have what this one has apart from its GPUs: nothing of that kind refuses the job."""

    # ---- the decision -----------------------------------------------------------------------------------------------

    def run(self) -> int:
        job = self.job
        if not job.job_id:
            self.say("no usable SLURM_JOB_ID: this is for Slurm's Prolog=; nothing is checked")
            return PASS
        self.load(always_refresh=job.health == "full")
        if self.state is None:
            self.say("health of this node is not known; the job starts unchecked")
            self.record()
            return PASS
        blame = self.judge()
        while blame is not None:
            if self.refuse(blame):
                return REFUSE
            if self.state.mode != "enforce":
                break
            self.forgive(blame)
            blame = self.judge()  # a fault that is dealt with hides no other one
        self.record()
        return PASS

    def judge(self) -> Optional[DeviceLine]:
        """The finding that keeps this job from this node, confirmed by a second look, or None."""
        blame = self.known_fault()
        if blame is not None and self.must_look_again(blame) and self.refresh():
            blame = self.known_fault()
        return blame or self.live_fault()

    def must_look_again(self, blame: DeviceLine) -> bool:
        assert self.state is not None
        if self.refreshed or blame.check in CONFIRMED_BY_AGENT:
            return False
        return time.time() - self.state.time > FRESH_S

    def left(self) -> float:
        """Seconds of the budget that may still be spent before the failing path."""
        budget = self.state.budget_s if self.state is not None else DEFAULT_BUDGET_S
        return budget - REFUSING_S - (time.monotonic() - self.begin)

    # ---- 1. the state file ------------------------------------------------------------------------------------------

    def load(self, always_refresh: bool = False) -> None:
        """Find a usable state; read the node again in place where there is none."""
        why, old = self.read(f"{self.state_dir}/state")
        if not why and not always_refresh:
            self.state = old
            return
        if old is not None and old.boot_id == state.boot_id():
            self.state = old  # its map of devices and its settings still hold
        if self.refresh(full=always_refresh):
            return
        if why:
            self.say(f"{why}, and looking again did not end in time or failed")
        if self.state is not None and why:
            # what it says of faults is too old; what it says of addresses, and of links that were in order, is not
            for line in self.state.gpus + self.state.ports + self.state.node_findings:
                if line.status != "ok":
                    line.status = "unknown"

    def read(self, path: str) -> tuple[str, Optional[NodeState]]:
        """Why the state cannot be used ("" when it can), and the state where it could be decoded at all."""
        try:
            found = state.read(path)
        except StateFileError as exc:
            return str(exc), None
        why = found.why_not(time.time(), state.boot_id())
        return (f"{path} {why}" if why else ""), found

    def refresh(self, full: bool = False) -> bool:
        """Check the node now, in the full interpreter, within the budget. True when a new state is loaded."""
        self.refreshed = True
        deadline = self.left() - (self.state.live_deadline_s if self.state is not None else 2.0)
        python = self.interpreter()
        if not python or deadline < 0.5:
            return False
        env = dict(bounded.PLAIN_ENV)
        for name in ("AISTATION_CONFIG", "SLURM_CONF", "SLURMD_NODENAME"):
            if name in self.env:
                env[name] = self.env[name]
        env["PYTHONPATH"] = self.prefix
        profile = "full" if full else "quick"
        argv = [python, "-s", "-m", "aistation_slurm.node.refresh", profile, f"{deadline:.2f}"]
        outcome = bounded.run(argv, deadline, env)
        if outcome.code != 0:
            why = "did not end in time" if outcome.code is None else plain(outcome.output)[-300:]
            self.say(f"check in place: {why}")
            return False
        text = outcome.output
        unwritten = text.find(f"{state.MAGIC} {state.VERSION} ")
        if unwritten >= 0:
            self.say(f"check in place: {plain(text[:unwritten])[-300:]}")
            try:
                self.state = state.parse(text[unwritten:], "check in place")
            except StateFileError as exc:
                self.say(str(exc))
                return False
            return True
        # it prints where it wrote: node.state_dir may be set elsewhere in aistation.toml, which is not read here
        path = text.strip().rpartition("\n")[2]
        why, found = self.read(path)
        if why or found is None:
            self.say(f"check in place: {why}")
            return False
        self.state = found
        self.state_dir = os.path.dirname(path)
        return True

    def interpreter(self) -> str:
        known = [self.state.python] if self.state is not None and self.state.python else []
        for path in (*known, f"{self.prefix}/.venv/bin/python", f"{self.prefix}/bin/python"):
            if os.access(path, os.X_OK):
                return path
        self.say(f"no interpreter of the suite below {self.prefix}; run `make setup` there")
        return ""

    # ---- 2. findings of the state file ------------------------------------------------------------------------------

    def known_fault(self) -> Optional[DeviceLine]:
        """The first refusing finding about this job's GPUs, its ports, or the whole node."""
        assert self.state is not None
        own = {line.device for line in self.job.own_gpus(self.state.gpus)}
        for line in self.state.gpus:
            if line.device in own and self.refuses(line):
                return line
        if self.job.uses_fabric(self.state.gpus):
            for line in self.state.ports:
                if self.refuses(line):
                    return line
        for line in self.state.node_findings:
            if self.refuses(line) and self.concerns(line):
                return line
        return None

    def concerns(self, line: DeviceLine) -> bool:
        """Whether a node-wide finding matters to this job: GPU findings only to those with GPUs.

        A wrong GPU count only matters where one of the job's own GPUs is the one that is not there.
        """
        assert self.state is not None
        if not line.check.startswith("gpu."):
            return True
        if line.check == "gpu.count":
            return len(self.job.own_gpus(self.state.gpus)) < len(self.job.gpus)
        return bool(self.job.gpus)

    def refuses(self, line: DeviceLine) -> bool:
        assert self.state is not None
        if line.status != "fail":
            return False
        if not any(matches(pattern, line.check) for pattern in self.state.refuse):
            return False
        if self.job.health == "off":
            return line.check == "gpu.lost"
        return line.check.startswith("gpu.") or not (self.one_cause or self.breaker_is_open())

    def breaker_is_open(self) -> bool:
        return breaker_open(self.state_dir, time.time())

    # ---- 3. live facts ----------------------------------------------------------------------------------------------

    def live_fault(self) -> Optional[DeviceLine]:
        """A live fact that refuses the job, seen twice."""
        fault = self.live_look()
        if fault is None:
            return None
        time.sleep(CONFIRM_PAUSE_S)
        return self.live_look()

    def live_look(self) -> Optional[DeviceLine]:
        assert self.state is not None
        own = {line.device: line for line in self.job.own_gpus(self.state.gpus)}
        ports = {}
        if self.job.health != "off" and self.job.uses_fabric(self.state.gpus):
            # only ports that were in order: one that was down and is judged leniently by the site stays its business
            known = self.state.ports
            lenient = {line.device for line in known if line.status != "ok" and line.check in LIVE_PORT_CHECKS}
            ports = {line.device: line for line in known if line.device not in lenient and line.rate_gbps > 0}
        deadline = min(self.state.live_deadline_s, max(self.left(), 0.1))
        for fact in live.read_facts(self.state.root, own, ports, deadline):
            if fact.error:
                self.say(f"{fact.device}: {fact.error}; not judged")
                continue
            line = own[fact.device] if fact.kind == "gpu" else ports[fact.device]
            found = gpu_fault(line, fact) if fact.kind == "gpu" else port_fault(line, fact)
            if found is not None and self.refuses(found):
                return found
        return None

    # ---- 4. the outcome ---------------------------------------------------------------------------------------------

    def refuse(self, line: DeviceLine) -> bool:
        """Drain for this finding. False where the gate only observes."""
        from aistation_slurm.node import refusal

        assert self.state is not None
        what = f"{line.check} {line.subject}: {line.evidence}"
        if self.state.mode != "enforce":
            self.say(f"would refuse the job and drain the node: {what} (observe mode)")
            return False
        budget = self.state.budget_s - (time.monotonic() - self.begin)
        refused, why = refusal.refuse(self.state, self.state_dir, line, self.env, budget)
        self.say(f"{'refused' if refused else 'passes'}: {what}; {why}")
        return refused

    def forgive(self, line: DeviceLine) -> None:
        """The node was given back after a drain for this fault, or other nodes have it too: nothing of that kind refuses."""
        from aistation_slurm.node import acted, refusal

        assert self.state is not None
        if not line.check.startswith("gpu."):
            self.one_cause = True
            return
        known = acted.read(self.state_dir)
        line.status = "unknown"
        for other in self.state.gpus + self.state.node_findings:
            if other.status == "fail" and refusal.of_the_past(other) and (other.check, other.subject) in known:
                other.status = "unknown"

    def record(self) -> None:
        from aistation_slurm.node import jobs

        if self.breaker_is_open():
            self.say("the mass-drain breaker is open: only an unusable GPU of the job's own would be refused")
        try:
            jobs.write(self.state_dir, jobs.from_environment(self.env, time.time()))
        except OSError as exc:
            self.say(f"{self.state_dir}/jobs: cannot be written: {exc.strerror}; an agent will not requeue this job")

    def say(self, text: str) -> None:
        """One line to stderr (slurmd's log) and syslog."""
        from aistation_slurm.node import nodelog

        nodelog.say("gate", f"job {self.job.job_id or '?'}: {text}", self.state_dir)


def gpu_fault(line: DeviceLine, fact: live.Fact) -> Optional[DeviceLine]:
    """``gpu.lost`` where the GPU does not answer on the PCI bus."""
    if fact.state == live.PRESENT:
        return None
    evidence = "gone from the PCI bus" if fact.state == live.GONE else "PCI configuration reads 0xffff: off the bus"
    name = f"GPU{line.minor}" if line.minor >= 0 else "GPU"
    subject = f"{name} {line.device.rpartition('.')[0] or line.device}"
    return state.DeviceLine("gpu", line.device, "fail", "gpu.lost", subject, evidence)


def port_fault(line: DeviceLine, fact: live.Fact) -> Optional[DeviceLine]:
    """``fabric.port_state`` or ``fabric.rate`` where the port is worse than when the state was written."""
    if fact.state == live.GONE:
        return state.DeviceLine("port", line.device, "fail", "fabric.port_state", line.device, "the port is gone")
    if not fact.state.startswith("4:"):
        evidence = f"port state {fact.state}, expected 4: ACTIVE"
        return state.DeviceLine("port", line.device, "fail", "fabric.port_state", line.device, evidence)
    if 0 < fact.rate_gbps < line.rate_gbps:
        evidence = f"{fact.rate_gbps:g} Gb/s, was {line.rate_gbps:g} Gb/s"
        return state.DeviceLine("port", line.device, "fail", "fabric.rate", line.device, evidence)
    return None


def main(prefix: str) -> int:
    """The prolog. Never raises: what we ourselves get wrong must not drain a node."""
    try:
        return Gate(os.environ, prefix).run()
    except Exception as exc:
        try:
            from aistation_slurm.node import nodelog

            nodelog.say("gate", f"internal error, the job passes unchecked: {type(exc).__name__}: {exc}", STATE_DIR)
        except Exception:
            pass
        return PASS
