"""What a job's output says of its failure: kinds, and the first rank to fail among many that shout."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aistation_slurm.detectors.job_output import KINDS, judge_output

ROOT = """============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_03:00:{second}
  host      : {host}
  rank      : {rank} (local_rank: 3)
  exitcode  : -7 (pid: 4242)
  error_file: <N/A>
  traceback : Signal 7 (SIGBUS) received by PID 4242
============================================================
"""
CLOSED = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, remote process exited or there "
    "was a network error, NCCL version 2.21.5"
)
TIMEOUT = (
    "[rank0]:[E1201 03:10:02 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: Work(7)"
)
IB = "gpu1:311:390 [5] net_ib.cc:1112 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0"
PEER = "gpu1:311:390 [2] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer gpu2<40512>"

LIMIT = "slurmstepd: error: *** JOB 608 ON gpu5 CANCELLED AT 2022-08-12T02:06:12 DUE TO TIME LIMIT ***"
SHOUTS = [CLOSED, IB, PEER, TIMEOUT, "Root Cause (first observed failure):", "  rank : x", "\x1b["]

CASES: list[tuple[str, str, str, Optional[int], str]] = [
    ("nothing", "step 1 loss 0.3\nstep 2 loss 0.2\n", "", None, ""),
    ("empty", "", "", None, ""),
    ("closed by a peer", CLOSED, "communication", 0, ""),
    ("a collective that timed out", TIMEOUT, "communication", 0, ""),
    ("InfiniBand's retry count exceeded", IB, "communication", None, ""),
    ("the program first, then all others shout", f"[rank3]: ValueError: bad batch\n{CLOSED}\n{PEER}", "program", 3, ""),
    ("the network first, then a trace of it", f"{PEER}\n[rank1]: RuntimeError: aborted", "communication", None, ""),
    ("uncorrectable ECC", "[rank6]: RuntimeError: CUDA error: uncorrectable ECC error encountered", "device", 6, ""),
    ("GPU memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory", None, ""),
    ("host memory", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.0", "memory", None, ""),
    ("illegal access", "RuntimeError: CUDA error: an illegal memory access was encountered", "program", None, ""),
    ("a full disk", "OSError: [Errno 28] No space left on device: '/ckpt/x'", "storage", None, ""),
    ("srun's first task", "srun: error: gpu2: task 9: Bus error\nsrun: error: gpu1: task 0: Terminated", "device", 9, "gpu2"),
    ("torchrun's root cause", f"{CLOSED}\n" + ROOT.format(second="10", host="gpu2", rank=11), "communication", 11, "gpu2"),
    (
        "two hosts' root causes, clearly apart",
        f"{CLOSED}\n" + ROOT.format(second="30", host="gpu1", rank=1) + ROOT.format(second="10", host="gpu2", rank=11),
        "communication",
        11,
        "gpu2",
    ),
    (
        "two hosts' root causes within the clocks' skew",
        f"{CLOSED}\n" + ROOT.format(second="11", host="gpu1", rank=1) + ROOT.format(second="10", host="gpu2", rank=11),
        "communication",
        None,
        "",
    ),
    (
        "the rank's own words count where the lines carry ranks",
        f"{CLOSED}\n[rank11]: KeyError: 'lr'\n" + ROOT.format(second="10", host="gpu2", rank=11),
        "program",
        11,
        "gpu2",
    ),
    ("a time limit", LIMIT + "\n" + CLOSED, "slurm", None, ""),
    ("a requeue", LIMIT.replace("TIME LIMIT", "JOB REQUEUE"), "slurm", None, ""),
    ("a word that only looks like it", "INFO: no Errors so far, 3 exceptions handled", "", None, ""),
    ("srun's labels", "3: ValueError: bad batch", "program", 3, ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "rank", "host"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_kind_and_first_rank(text: str, kind: str, rank: Optional[int], host: str) -> None:
    found = judge_output(text)
    assert (found.kind, found.rank, found.host) == (kind, rank, host), found
    assert bool(found.line) == bool(kind)


@given(
    st.text(max_size=400)
    | st.lists(
        st.sampled_from([CLOSED, IB, PEER, TIMEOUT, "Root Cause (first observed failure):", "  rank : x", "\x1b["])
    ).map("\n".join)
)
def test_any_text_is_judged(text: str) -> None:
    found = judge_output(text)
    assert found.kind in ("", *KINDS)
    assert found.line.isprintable()
    assert len(found.line) <= 200
