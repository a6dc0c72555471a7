"""The node state file ``<state_dir>/state``: what the agent last found, for the gate and for people.

Text, so that the prolog reads it without a parser library, and written by rename, so that nobody sees half of it::

    aistation-state 1 fail 1764550000.123 5f0c...boot-id enforce 9
    root /
    python /opt/aistation/.venv/bin/python
    gate 8 2 150                                      budget, live deadline, max age, all in seconds
    refuse gpu.* fabric.port_state fabric.rate        checks whose fail on a job's own devices refuses it
    slurm /usr/bin -                                  where scontrol is; slurm.conf or "-"
    breaker 3 600 10 4                                together, window in seconds, share in percent, least
    gpu 3 0000:8f:00.0 fail gpu.lost 3 3<TAB>GPU3 0000:8f:00<TAB>fallen off the bus
        minor, PCI address, status, check or "-", gres index, NVML index (-1: unknown)
    port mlx5_3/1 ok - 400<TAB><TAB>                  rate in Gb/s now; 0: not judged
    node warn host.memory<TAB>memory<TAB>3 % available
    end

Line 1: format version, node status, unix time, boot id, mode, number of lines before ``end``. A device with several
findings has several lines. Imports nothing but ``os``: the passing path of the prolog pays for every import.
"""

from __future__ import annotations

import os

from aistation_slurm.errors import StateFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Optional

    from aistation_slurm.config import Config
    from aistation_slurm.findings import Finding
    from aistation_slurm.node.health import NodeReport

__all__ = [
    "MAGIC",
    "VERSION",
    "DeviceLine",
    "NodeState",
    "boot_id",
    "parse",
    "read",
    "render",
    "write_file",
    "write_state",
]

MAGIC = "aistation-state"
VERSION = "1"
MAX_BYTES = 1 << 20
CLOCK_STEP_S = 5.0
"""A time further in the future than this is not an honest clock."""


class DeviceLine:
    """One ``gpu``, ``port`` or ``node`` line. ``device`` is the PCI address, ``hca/port``, or "" for the node."""

    __slots__ = ("check", "device", "evidence", "gres", "index", "kind", "minor", "rate_gbps", "status", "subject")

    def __init__(
        self,
        kind: str,
        device: str,
        status: str,
        check: str,
        subject: str = "",
        evidence: str = "",
        minor: int = -1,
        gres: int = -1,
        index: int = -1,
        rate_gbps: float = 0.0,
    ) -> None:
        self.kind = kind
        self.device = device
        self.status = status
        self.check = check
        self.subject = subject
        self.evidence = evidence
        self.minor = minor
        self.gres = gres
        self.index = index
        self.rate_gbps = rate_gbps


class NodeState:
    """The decoded file. Defaults are those of aistation.toml, for files that lack a line."""

    __slots__ = (
        "bin_dir",
        "boot_id",
        "budget_s",
        "gpus",
        "least",
        "live_deadline_s",
        "max_age_s",
        "mode",
        "node_findings",
        "ports",
        "python",
        "refuse",
        "root",
        "share_percent",
        "slurm_conf",
        "status",
        "time",
        "together",
        "window_s",
    )

    def __init__(self, status: str, time: float, boot_id: str, mode: str) -> None:
        self.status = status
        self.time = time
        self.boot_id = boot_id
        self.mode = mode
        self.root = "/"
        self.python = ""
        self.budget_s = 8.0
        self.live_deadline_s = 2.0
        self.max_age_s = 150.0
        self.refuse: list[str] = ["gpu.*", "fabric.port_state", "fabric.rate"]
        self.together = 3
        self.window_s = 600.0
        self.share_percent = 10.0
        self.least = 4
        self.bin_dir = "/usr/bin"
        self.slurm_conf = ""
        self.gpus: list[DeviceLine] = []
        self.ports: list[DeviceLine] = []
        self.node_findings: list[DeviceLine] = []

    def why_not(self, now: float, boot: str) -> str:
        """Why this state may not be used at ``now`` (unix time) in boot ``boot``; "" when it may."""
        if boot and self.boot_id != boot:
            return "is of an earlier boot"
        if self.time > now + CLOCK_STEP_S:
            return "is from the future"
        if now - self.time > self.max_age_s:
            return f"is {now - self.time:.0f} s old, more than {self.max_age_s:g} s"
        return ""


def parse(text: str, origin: str) -> NodeState:
    """Decode the file's text. Raises StateFileError: another format or version, or cut short."""
    lines = text.split("\n")
    head = lines[0].split()
    if len(head) != 7 or head[0] != MAGIC:
        raise StateFileError(
            f"{origin}: not a node state file; it is written by `aistation agent` or `aistation check`"
        )
    if head[1] != VERSION:
        raise StateFileError(f"{origin}: format version {head[1]}, expected {VERSION}; let the agent write it again")
    try:
        count = int(head[6])
        state = NodeState(head[2], float(head[3]), head[4], head[5])
        if count < 0 or len(lines) != count + 3 or lines[count + 1] != "end" or lines[count + 2]:
            raise StateFileError(f"{origin}: cut short or damaged; let the agent write it again")
        for line in lines[1 : count + 1]:
            _parse_line(state, line)
    except (ValueError, IndexError) as exc:
        raise StateFileError(f"{origin}: damaged ({exc}); let the agent write it again") from exc
    return state


def _parse_line(state: NodeState, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == "gpu":
        facts, subject, evidence = rest.split("\t", 2)
        minor, device, status, check, gres, index = facts.split(" ")
        state.gpus.append(
            DeviceLine("gpu", device, status, check, subject, evidence, int(minor), int(gres), int(index))
        )
    elif word == "port":
        facts, subject, evidence = rest.split("\t", 2)
        device, status, check, rate = facts.split(" ")
        state.ports.append(DeviceLine("port", device, status, check, subject, evidence, rate_gbps=float(rate)))
    elif word == "node":
        facts, subject, evidence = rest.split("\t", 2)
        status, check = facts.split(" ")
        state.node_findings.append(DeviceLine("node", "", status, check, subject, evidence))
    elif word == "root":
        state.root = rest
    elif word == "python":
        state.python = rest
    elif word == "gate":
        budget, live, age = rest.split(" ")
        state.budget_s, state.live_deadline_s, state.max_age_s = float(budget), float(live), float(age)
    elif word == "refuse":
        state.refuse = rest.split()
    elif word == "breaker":
        together, window, share, least = rest.split(" ")
        state.together, state.least = int(together), int(least)
        state.window_s, state.share_percent = float(window), float(share)
    elif word == "slurm":
        state.bin_dir, conf = rest.rsplit(" ", 1)
        state.slurm_conf = "" if conf == "-" else conf
    # other words: written by a newer version, of no use to this one


def read(path: str) -> NodeState:
    """Read and decode. Raises StateFileError; also when someone other than root or ourselves could have written it."""
    try:
        # O_NOFOLLOW and O_NONBLOCK: never a link or a FIFO that somebody left here
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise StateFileError(f"{path}: cannot be opened: {exc.strerror}; is `aistation agent` running?") from exc
    try:
        facts = os.fstat(fd)
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
            raise StateFileError(f"{path}: not owned by root or writable by others; remove it")
        data = os.read(fd, MAX_BYTES)
    except OSError as exc:
        raise StateFileError(f"{path}: cannot be read: {exc.strerror}") from exc
    finally:
        os.close(fd)
    return parse(data.decode("utf-8", "replace"), path)


def boot_id() -> str:
    """The kernel's random id of this boot; "" where it cannot be read."""
    try:
        fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 64).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


# ---- writing (agent, check, refresh) --------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """One line without tabs, so that fields stay fields."""
    return " ".join(text.split())


def _word(text: str) -> str:
    """One word without blanks; "-" for nothing."""
    return "".join(c if c.isprintable() and not c.isspace() else "_" for c in text) or "-"


def render(report: NodeReport, config: Config, gres: Mapping[int, int], python: str) -> str:
    """The file's text. ``gres``: device minor -> index in Slurm's gres (what SLURM_JOB_GPUS counts)."""
    gate, breaker = config.gate, config.breaker
    mode = "enforce" if config.enforcing(gate) else "observe"
    body = [
        f"root {_plain(config.probe.root)}",
        f"python {_plain(python)}",
        f"gate {gate.budget_s:g} {gate.live_deadline_s:g} {gate.max_age_s:g}",
        "refuse " + " ".join(_word(p) for p in gate.refuse),
        f"slurm {_plain(config.slurm.bin_dir)} {_word(config.slurm.conf)}",
        f"breaker {breaker.together} {breaker.window_s:g} {breaker.share_percent:g} {breaker.least}",
    ]
    bad = [f for f in report.findings if f.status.value != "ok"]
    known: set[str] = set()
    for gpu in report.gpus:
        known.add(gpu.pci)
        for status, check, tail in _rows(bad, gpu.pci):
            index = f"{gres.get(gpu.minor, -1)} {gpu.index}"
            body.append(f"gpu {gpu.minor} {_word(gpu.pci)} {status} {check} {index}{tail}")
    for port in report.ports:
        known.add(port.name)
        rate = port.rate_gbps if port.judged else 0.0
        for status, check, tail in _rows(bad, port.name):
            body.append(f"port {_word(port.name)} {status} {check} {rate or 0:g}{tail}")
    for finding in bad:
        if finding.device is None:
            body.append(f"node {finding.status.value} {_word(finding.check)}{_tail(finding)}")
        elif finding.device not in known:
            # a device that is not there any more (a GPU that left the bus before anyone counted it)
            if "/" in finding.device:
                body.append(
                    f"port {_word(finding.device)} {finding.status.value} {_word(finding.check)} 0{_tail(finding)}"
                )
            else:
                facts = f"{_word(finding.device)} {finding.status.value} {_word(finding.check)}"
                body.append(f"gpu -1 {facts} -1 -1{_tail(finding)}")
    head = f"{MAGIC} {VERSION} {report.status.value} {report.time:.3f} {_word(report.boot_id)} {mode} {len(body)}"
    return "\n".join([head, *body, "end", ""])


def _rows(bad: Sequence[Finding], device: str) -> list[tuple[str, str, str]]:
    own = [(f.status.value, _word(f.check), _tail(f)) for f in bad if f.device == device]
    return own or [("ok", "-", "\t\t")]


def _tail(finding: Finding) -> str:
    return f"\t{_plain(finding.subject)}\t{_plain(finding.evidence)}"


def write_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` in one step; readers see the old or the new text, never a part. Its folder is made, 0755."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    fresh = f"{path}.{os.getpid()}.tmp"
    fd: Optional[int] = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        assert fd is not None
        os.fchmod(fd, mode)  # whatever the umask of slurmd or cron is
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.close(fd)
        fd = None
        os.rename(fresh, path)
    except BaseException:
        if fd is not None:
            os.close(fd)
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise


def write_state(report: NodeReport, config: Config, gres: Mapping[int, int], python: str) -> str:
    """Write ``<state_dir>/state``; its path. Raises StateFileError (no permission, disk full)."""
    path = os.path.join(config.node.state_dir, "state")
    try:
        write_file(path, render(report, config, gres, python).encode("utf-8", "replace"))
    except OSError as exc:
        raise StateFileError(f"{path}: cannot be written: {exc.strerror}; run as root, or set node.state_dir") from exc
    return path
