"""What a job's own output says about its failure: which rank failed first, and of what kind the failure is. Pure.

The text is the user's to write, so this never blames a node; it tells a failure of communication or of a device that no
probe has seen from a failure of the program. The first to fail counts and not the last to shout: when one rank dies, all
others report a closed connection or a timeout.

Sources of the wordings: PyTorch (torch/distributed/elastic/multiprocessing/errors, c10d/ProcessGroupNCCL.cpp, NCCLUtils.hpp),
NCCL (src/misc/socket.cc, src/transport/net_ib.cc), the CUDA runtime's cudaGetErrorString texts, Slurm (slurmstepd's and
srun's messages).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Optional

__all__ = ["KINDS", "OutputVerdict", "judge_output"]

KINDS = ("communication", "device", "storage", "memory", "program", "slurm")
"""slurm: ended by Slurm itself (time limit, preemption, requeue, cancellation), whatever the ranks shout then."""

_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        "slurm",
        r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAILURE)",
    ),
    ("slurm", r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ \*\*\*"),
    (
        "memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA(?: error:)? out of memory|oom-kill event|Out Of Memory|MemoryError",
    ),
    (
        "device",
        r"uncorrectable ECC error|CUDA-capable device\(s\) is/are busy or unavailable|no CUDA-capable device is detected",
    ),
    (
        "device",
        r"CUDA error: (?:unknown error|system not yet initialized|hardware stack error|an exception occurred in the device)",
    ),
    ("device", r"cudaErrorEccUncorrectable|cudaErrorDevicesUnavailable|cudaErrorSystemNotReady|GPU is lost|Bus error"),
    (
        "storage",
        r"No space left on device|Stale file handle|Input/output error|Read-only file system|Disk quota exceeded",
    ),
    (
        "communication",
        r"ncclRemoteError|ncclSystemError|unhandled system error|remote process exited or there was a network error",
    ),
    (
        "communication",
        r"Watchdog caught collective operation timeout|NCCL watchdog thread terminated|Timed out waiting \d+ms for",
    ),
    ("communication", r"Got completion from peer .* (?:status|error)|ibv_\w+ failed|Connection closed by remote peer"),
    ("communication", r"NCCL WARN .*(?:Connection (?:refused|reset|timed out)|socket|No route to host|Net ?: )"),
    (
        "communication",
        r"Rendezvous(?:Connection|Timeout|Closed)Error|DistNetworkError|DistStoreError|Connection reset by peer",
    ),
    ("communication", r"Gloo connect.* failed|gloo/transport/\S+.*(?:Connection closed|timed out)"),
    ("program", r"^\s*(?:\[\S+\]:?\s*|\d{1,6}: )?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::|$)"),
    (
        "program",
        r"CUDA error: (?:an illegal memory access|device-side assert|invalid)|Segmentation fault|command not found",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)
_RANK = re.compile(r"^\s*\[(?:rank)?(\d{1,6})\]:|^\s*(\d{1,6}): ")
_SRUN = re.compile(r"^srun: error: ([A-Za-z0-9_.-]+): tasks? (\d{1,6})[^:]*: (.+)$")
_ROOT = re.compile(r"^Root Cause \(first observed failure\):")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (\S+)")
CLOCK_SKEW_S = 2.0
"""Below this gap between two hosts' clocks it is not known which of two ranks was the first."""
LINE_MAX = 2000


@dataclass(frozen=True)
class OutputVerdict:
    """kind: one of KINDS, "" where nothing is recognised. rank, host: the first to fail, None and "" where not known.

    line: the evidence, at most 200 characters of printable text.
    """

    kind: str = ""
    rank: Optional[int] = None
    host: str = ""
    line: str = ""


@dataclass(frozen=True)
class _Root:
    """One torchrun agent's "first observed failure"."""

    time: Optional[datetime]
    host: str
    rank: Optional[int]


def judge_output(text: str, skew_s: float = CLOCK_SKEW_S) -> OutputVerdict:
    """text: the end of a job's output, of any length and content."""
    lines = [line[:LINE_MAX] for line in text.split("\n")]
    events = [event for event in map(_event, lines) if event.kind]
    root = _first(_roots(lines), skew_s)
    ended_by_slurm = next((e for e in events if e.kind == "slurm"), None)
    if ended_by_slurm is not None and events[0] is ended_by_slurm:
        return ended_by_slurm
    if root is not None:
        # what that rank itself said, where lines carry ranks
        said = (
            next((e for e in events if e.rank == root.rank and e.kind != "slurm"), None)
            if root.rank is not None
            else None
        )
        first = said or next((e for e in events if e.kind != "slurm"), OutputVerdict())
        return OutputVerdict(first.kind, root.rank, root.host, first.line)
    if not events:
        return OutputVerdict()
    first = events[0]
    task = next(filter(None, map(_srun, lines)), None)
    if first.rank is None and task is not None:
        return OutputVerdict(first.kind, task.rank, task.host, first.line)
    return first


def _event(line: str) -> OutputVerdict:
    for kind, pattern in _COMPILED:
        if pattern.search(line):
            found = _RANK.match(line)
            rank = int(next(filter(None, found.groups()))) if found else None
            return OutputVerdict(kind, rank, "", _shown(line))
    return OutputVerdict()


def _srun(line: str) -> Optional[OutputVerdict]:
    """srun names tasks in the order in which they ended."""
    match = _SRUN.match(line)
    return OutputVerdict("program", int(match.group(2)), match.group(1), _shown(line)) if match else None


def _roots(lines: Sequence[str]) -> list[_Root]:
    found = []
    for number, line in enumerate(lines):
        if _ROOT.match(line.strip()):
            following = map(_FIELD.match, lines[number + 1 : number + 9])
            fields = {m.group(1): m.group(2) for m in following if m}
            rank = fields.get("rank", "")
            found.append(
                _Root(_time(fields.get("time", "")), fields.get("host", ""), int(rank) if rank.isdigit() else None)
            )
    return found


def _time(text: str) -> Optional[datetime]:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S")
    except ValueError:
        return None


def _first(roots: Sequence[_Root], skew_s: float) -> Optional[_Root]:
    """The earliest; its host and rank are left out where another host's came within the clocks' skew."""
    if not roots:
        return None
    timed = sorted((r for r in roots if r.time is not None), key=lambda r: r.time or datetime.min)
    if not timed:
        return roots[0] if len({r.host for r in roots}) == 1 else _Root(None, "", None)
    first = timed[0]
    gaps = [(r.time - first.time).total_seconds() for r in timed if r.time and first.time and r.host != first.host]
    if gaps and gaps[0] < skew_s:
        return _Root(None, "", None)
    return first


def _shown(line: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in line.strip())[:200]
