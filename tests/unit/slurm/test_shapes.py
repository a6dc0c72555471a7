"""One job and one node in the JSON of every release from 22.05 to 26.05, and output that nobody has ever seen.

The shapes follow Slurm's data_parser plugins (v0.0.39 of 23.02 to v0.0.45 of 26.05; PARSER_ARRAY(JOB_INFO) and (NODE)) and,
for 22.05, recorded output. The plugin of a release is its newest.
"""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aistation_slurm.errors import SlurmUnavailable
from aistation_slurm.slurm.client import FINISHED, Job, Node
from aistation_slurm.slurm.decode import Reader, jobs_from_json, nodes_from_json
from aistation_slurm.slurm.record import jobs_from_text, nodes_from_text
from aistation_slurm.slurm.states import JOB_STATES, NODE_STATES, UNKNOWN, job_state, node_state
from tests.unit.slurm.replies import recorded

RELEASES = {
    "22.05": 38, "23.02": 39, "23.11": 40, "24.05": 41, "24.11": 42, "25.05": 43, "25.11": 44, "26.05": 45,
}  # fmt: skip
FORMS = [
    (release, compact) for release in RELEASES for compact in (False, True) if not compact or RELEASES[release] >= 40
]
"""compact: ``--json=v0.0.4x+complex``, which has plain numbers, null and "Infinity"."""


class Shape:
    """How one release writes values."""

    def __init__(self, release: str, compact: bool) -> None:
        self.parser, self.compact = RELEASES[release], compact

    def number(self, value: Optional[int], infinite: bool = False) -> Any:
        """NO_VAL types: an object since v0.0.39."""
        if self.parser < 39:
            return None if infinite else value
        if self.compact:
            return "Infinity" if infinite else value
        return {"set": value is not None, "infinite": infinite, "number": value or 0}

    def time(self, value: int) -> Any:
        """Plain up to v0.0.39."""
        return value if self.parser < 40 else self.number(value)

    def state(self, *words: str) -> Any:
        """job_state_string prints a flag, where there is one, in place of the base state."""
        return words[-1] if self.parser < 40 else list(words)

    def exit(self, code: int, signal: int) -> Any:
        if self.parser < 40:
            status = code << 8 | signal
            return status if self.parser < 39 else self.number(status)
        said = "SIGNALED" if signal else "ERROR" if code else "SUCCESS"
        return {
            "status": [said],
            "return_code": self.number(None if signal else code),
            "signal": {"id": self.number(signal or None), "name": "KILL" if signal else ""},
        }

    def job(self, **changes: Any) -> dict[str, Any]:
        row = {
            "job_id": 4711,
            "job_state": self.state("RUNNING"),
            "state_reason": "None",
            "state_description": "",
            "name": "train",
            "user_id": 20001,
            "user_name": "alice",
            "partition": "gpu",
            "nodes": "gpu[1-2]",
            "required_nodes": "gpu1",
            "excluded_nodes": "gpu[7,9]",
            "start_time": self.time(1796091137),
            "eligible_time": self.time(1796091135),
            "end_time": self.time(0),
            "submit_time": self.time(1796091134),
            "restart_cnt": 2,
            "comment": "mine",
            "admin_comment": "[ais resume=auto]",
            "exit_code": self.exit(0, 0),
            "derived_exit_code": self.exit(0, 0),
            "priority": self.number(100),
            "hold": False,
            "node_count": self.number(2),
            "max_nodes": self.number(4),
            "tres_req_str": "cpu=2,mem=1000000M,node=2,billing=2",
            "time_limit": self.number(90),
            "array_job_id": self.number(4700),
            "array_task_id": self.number(0),
            "array_task_string": "",
            "het_job_id": self.number(0),
            "het_job_offset": self.number(0),
            "requeue": True,
            "batch_flag": True,
            "gres_detail": ["gpu:8(IDX:0-7)", "gpu:8(IDX:0-7)"],
            "standard_output": "/shared/alice/o.%j" if self.parser >= 43 else "/shared/alice/o.4711",
            "cron": None if self.parser < 39 else "",
            "flags": ["JOB_WAS_RUNNING"],
            "job_resources": {"nodes": {"list": "gpu[1-2]", "allocation": [{"name": "gpu1"}]}},
            "tasks_per_node": self.number(8),
            "nice": 0 if self.parser >= 39 else None,
        }
        if self.parser >= 39:
            row["required_switches" if self.parser >= 42 else "minimum_switches"] = 1
        if self.parser >= 43:
            row["stdout_expanded"] = "/shared/alice/o.4711"
        if self.parser >= 44:
            row["step_id"] = {"job_id": 4711, "step_id": "batch", "sluid": "s1"}
        return {**row, **changes}

    def node(self, base: str, *flags: str) -> dict[str, Any]:
        old = self.parser < 39
        return {
            "name": "gpu1",
            "state": base.lower() if old else [base, *flags],
            **({"state_flags": list(flags)} if old else {}),
            "reason": "ais:gpu.lost GPU3 [abc]",
            "reason_set_by_user": "root",
            "reason_changed_at": self.time(1796091137),
            "boot_time": self.time(1796000000),
            "slurmd_start_time": self.time(1796000100),
            "partitions": ["gpu", "all"],
            "comment": "c",
            "extra": "e",
            "gres": "gpu:8",
            "hostname": "gpu1",
        }


EXPECTED = Job(
    job_id=4711, state="RUNNING", reason="None", name="train", user_id=20001, user_name="alice", partition="gpu",
    nodes=("gpu1", "gpu2"), required_nodes=("gpu1",), excluded_nodes=("gpu7", "gpu9"), start_time=1796091137,
    eligible_time=1796091135, submit_time=1796091134, restart_cnt=2, comment="mine", admin_comment="[ais resume=auto]",
    priority=100, node_count=2, min_nodes=2, max_nodes=4, time_limit_s=5400, array_job_id=4700, array_task_id=0, requeue=True,
    required_switches=1, gres_detail=("gpu:8(IDX:0-7)", "gpu:8(IDX:0-7)"), std_out="/shared/alice/o.4711", tasks_per_node=8,
)  # fmt: skip


@pytest.fixture(params=FORMS, ids=lambda form: f"{form[0]}{'+complex' if form[1] else ''}")
def shape(request: pytest.FixtureRequest) -> Shape:
    return Shape(*request.param)


def decoded(*rows: dict[str, Any]) -> list[Job]:
    return jobs_from_json(json.dumps({"meta": {}, "warnings": [], "errors": [], "jobs": rows}).encode())


def test_a_job(shape: Shape) -> None:
    (job,) = decoded(shape.job())
    for name, value in vars(EXPECTED).items():
        told = name != "required_switches" or shape.parser >= 39
        assert getattr(job, name) == (value if told else 0), name


def test_what_is_not_set(shape: Shape) -> None:
    unset = dict.fromkeys(("time_limit", "array_task_id", "max_nodes", "tasks_per_node"), shape.number(None))
    row = shape.job(
        **unset, array_job_id=shape.number(0), nodes="", required_nodes="", excluded_nodes="", requeue=False
    )
    (job,) = decoded(row)
    assert (job.time_limit_s, job.array_job_id, job.array_task_id, job.max_nodes) == (None, None, None, 0)
    assert (job.nodes, job.required_nodes, job.excluded_nodes, job.requeue) == ((), (), (), False)
    assert decoded(shape.job(time_limit=shape.number(None, infinite=True)))[0].time_limit_s is None
    assert decoded(shape.job(start_time=shape.time(0)))[0].start_time is None


def test_ends(shape: Shape) -> None:
    failed, killed = decoded(
        shape.job(job_id=1, job_state=shape.state("FAILED"), exit_code=shape.exit(3, 0)),
        shape.job(job_id=2, job_state=shape.state("FAILED"), exit_code=shape.exit(0, 9)),
    )
    assert (failed.state, failed.exit_code, failed.exit_signal, failed.finished) == ("FAILED", 3, 0, True)
    assert (killed.state, killed.exit_code, killed.exit_signal, killed.finished) == ("FAILED", 0, 9, True)


def test_a_job_that_ends_is_not_finished(shape: Shape) -> None:
    (job,) = decoded(shape.job(job_state=shape.state("FAILED", "COMPLETING")))
    assert (job.completing, job.finished) == (True, False)
    assert job.state == ("FAILED" if shape.parser >= 40 else UNKNOWN)


def test_holds(shape: Shape) -> None:
    held = shape.job(
        job_state=shape.state("PENDING"), priority=shape.number(0), hold=True, state_reason="JobHeldUser",
        state_description="launch failed requeued held",
    )  # fmt: skip
    (job,) = decoded(held)
    assert (job.state, job.priority, job.held_by_failed_launch) == ("PENDING", 0, True)
    (job,) = decoded(shape.job(job_state=shape.state("PENDING"), priority=shape.number(None)))
    assert job.priority == -1, "a priority that is not told is no hold"


@pytest.mark.parametrize(
    "word", ["REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "EXPEDITING", "NEW_IN_30_05"]
)
def test_flags_are_no_states(shape: Shape, word: str) -> None:
    (job,) = decoded(shape.job(job_state=shape.state("PENDING", word)))
    assert job.state == ("PENDING" if shape.parser >= 40 else UNKNOWN)
    assert word in job.flags


def test_a_cron_job(shape: Shape) -> None:
    assert decoded(shape.job(flags=["CRON_JOB"]))[0].cron
    assert decoded(shape.job(cron="*/5 * * * *"))[0].cron


def test_a_node(shape: Shape) -> None:
    def node(base: str, *flags: str) -> Node:
        (found,) = nodes_from_json(json.dumps({"nodes": [shape.node(base, *flags)], "errors": []}).encode())
        return found

    assert node("IDLE") == Node(
        "gpu1", "IDLE", reason="ais:gpu.lost GPU3 [abc]", reason_user="root", reason_time=1796091137, boot_time=1796000000,
        slurmd_start_time=1796000100, partitions=("gpu", "all"), comment="c", extra="e", gres="gpu:8", hostname="gpu1",
    )  # fmt: skip
    assert node("IDLE").schedulable
    mixed = node("MIXED", "DRAIN", "NOT_RESPONDING")
    assert (mixed.state, mixed.drained, mixed.responding, mixed.schedulable) == ("MIXED", True, False, False)
    assert node("IDLE", "PLANNED", "DYNAMIC_NORM").schedulable
    for flag in ("INVALID_REG", "POWERED_DOWN", "POWERING_DOWN", "MAINTENANCE", "REBOOT_ISSUED", "FAIL"):
        assert not node("IDLE", flag).schedulable
    assert node("FROZEN").state == UNKNOWN


# ---- what is not known


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("RUNNING", ("RUNNING", set())), (["FAILED", "COMPLETING"], ("FAILED", {"COMPLETING"})), ("?", (UNKNOWN, {"?"})),
        ({"current": ["COMPLETED"], "reason": "None"}, ("COMPLETED", set())),
        (["RUNNING", "FAILED"], (UNKNOWN, {"RUNNING", "FAILED"})),
        ([], (UNKNOWN, set())), (None, (UNKNOWN, set())), (5, (UNKNOWN, set())), ([5, None], (UNKNOWN, set())),
        ("pending", ("PENDING", set())),
    ],
)  # fmt: skip
def test_job_states(value: Any, expected: tuple[str, set[str]]) -> None:
    assert job_state(value) == (expected[0], frozenset(expected[1]))


@pytest.mark.parametrize(
    ("value", "base", "flag"),
    [("IDLE~", "IDLE", "POWERED_DOWN"), ("mixed-", "MIXED", "PLANNED"), ("DOWN*+DRAIN", "DOWN", "NOT_RESPONDING"),
     ("IDLE$", "IDLE", "MAINTENANCE"), ("ALLOCATED@", "ALLOCATED", "REBOOT_REQUESTED"), ("DRAINED", UNKNOWN, "DRAIN"),
     ("draining*", UNKNOWN, "DRAIN"), ("MAINT", UNKNOWN, "MAINTENANCE"), ("IDLE^", "IDLE", "REBOOT_ISSUED")],
)  # fmt: skip
def test_node_states_with_marks(value: str, base: str, flag: str) -> None:
    state, flags = node_state(value)
    assert state == base
    assert flag in flags


def test_a_job_that_cannot_be_read_hides_no_other(shape: Shape, caplog: pytest.LogCaptureFixture) -> None:
    broken, fine, once, again = decoded(
        shape.job(job_id=1, nodes="gpu[1-"), shape.job(job_id=2), shape.job(job_id=3), shape.job(job_id=4)
    )
    assert (broken.state, broken.admin_comment, fine.state) == (UNKNOWN, "", "RUNNING")
    twice = decoded(shape.job(job_id=3), shape.job(job_id=3, job_state=shape.state("FAILED")))
    assert [(job.job_id, job.state) for job in twice] == [(3, UNKNOWN)]
    assert caplog.text.count("not believed") == 2
    assert (once.state, again.state) == ("RUNNING", "RUNNING")


def test_what_has_not_changed_is_the_same_record(shape: Shape) -> None:
    reader = Reader()

    def look(*rows: dict[str, Any]) -> dict[int, Job]:
        return {job.job_id: job for job in reader.jobs(json.dumps({"jobs": rows, "errors": []}))}

    first = look(shape.job(job_id=1), shape.job(job_id=2), shape.job(job_id=3))
    second = look(shape.job(job_id=1), shape.job(job_id=2, admin_comment="[ais resume=auto attempt=1]"))
    assert second[1] is first[1]
    assert (second[2].admin_comment, set(second)) == ("[ais resume=auto attempt=1]", {1, 2})
    assert look(shape.job(job_id=1), shape.job(job_id=1))[1].state == UNKNOWN
    assert look(shape.job(job_id=1))[1] == first[1], "twice, once, does not stay"
    assert look() == {}
    nodes = [reader.nodes(json.dumps({"nodes": [shape.node("IDLE", *flags)]}))[0] for flags in ((), (), ("DRAIN",), ())]
    assert nodes[0] is nodes[1]
    assert [node.drained for node in nodes] == [False, False, True, False]


def test_bytes_that_are_no_utf_8() -> None:
    row = Shape("22.05", False).job(name="NAME", comment="COMMENT")
    text = json.dumps({"jobs": [row], "errors": []}).encode().replace(b"NAME", b"\xc3(").replace(b"COMMENT", b"\xff")
    (job,) = jobs_from_json(bytearray(text))
    assert (job.name, job.comment, job.state) == ("\ufffd(", "\ufffd", "RUNNING")


def test_accounting_shape_of_comments() -> None:
    (job,) = decoded({"job_id": 5, "comment": {"job": "mine", "administrator": "[ais resume=auto]", "system": ""}})
    assert (job.comment, job.admin_comment) == ("mine", "[ais resume=auto]")


INNER = ["set", "infinite", "number", "id", "signal", "return_code", "current", "x"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["Infinity", "RUNNING", "gpu[1-2]", "gpu[2-1]", "-5", "9" * 5000, 0xFFFFFFFE, 2**64]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(INNER), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
JOB_KEYS = sorted(Shape("26.05", False).job())
NODE_KEYS = [*sorted(Shape("26.05", False).node("IDLE")), "state_flags"]
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(st.dictionaries(st.sampled_from(JOB_KEYS), ANY, max_size=6), st.sampled_from(FORMS))
def test_any_value_in_any_field_of_a_job(changes: dict[str, Any], form: tuple[str, bool]) -> None:
    try:
        jobs = decoded(Shape(*form).job(**changes), Shape(*form).job(job_id=1))
    except SlurmUnavailable:
        return
    assert jobs[-1].job_id == 1 or changes.get("job_id") is not None
    for job in jobs:
        assert job.job_id > 0
        assert job.state in JOB_STATES | {UNKNOWN}
        assert job.state == UNKNOWN or "job_state" in changes or job.state == "RUNNING"
        assert (job.state in FINISHED and not job.completing) == job.finished
        assert all(isinstance(name, str) and name for name in job.nodes)
        assert job.start_time is None or job.start_time > 0
        assert min(job.node_count, job.max_nodes, job.min_nodes, job.restart_cnt, job.exit_code, job.exit_signal) >= 0
        assert hash(job) is not None


@FUZZ
@given(st.dictionaries(st.sampled_from(NODE_KEYS), ANY, max_size=6), st.sampled_from(FORMS))
def test_any_value_in_any_field_of_a_node(changes: dict[str, Any], form: tuple[str, bool]) -> None:
    row = {**Shape(*form).node("IDLE", "DRAIN"), **changes}
    try:
        (node,) = nodes_from_json(json.dumps({"nodes": [row]}).encode())
    except SlurmUnavailable:
        return
    assert node.name
    assert node.state in NODE_STATES | {UNKNOWN}
    assert node.drained or {"state", "state_flags"} & set(changes), "a drain is never lost over another field"
    assert not (node.schedulable and node.drained)


@FUZZ
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | ANY.map(json.dumps).map(str.encode))
def test_any_output_at_all(text: bytes) -> None:
    for decode in (jobs_from_json, nodes_from_json):
        with pytest.raises(SlurmUnavailable):
            decode(text)


@FUZZ
@given(st.integers(0, 4000), st.integers(0, 60), st.binary(max_size=12))
def test_output_that_is_cut_or_overwritten(at: int, gone: int, put: bytes) -> None:
    whole = recorded("running.squeue.json").encode()
    text = whole[:at] + put + whole[at + gone :]
    try:
        jobs = jobs_from_json(text)
    except SlurmUnavailable:
        return
    assert all(job.state in JOB_STATES | {UNKNOWN} for job in jobs)


@FUZZ
@given(
    st.text(alphabet=st.sampled_from("\n\n  =JobStateRUNINGFLD[],-0123456789()*+é"), max_size=60),
    st.integers(0, 12_000),
)
def test_text_in_the_midst_of_records(put: str, at: int) -> None:
    whole = recorded("mixed.jobs.txt")
    for job in jobs_from_text(whole[:at] + put + whole[at:]):
        assert job.state in JOB_STATES | {UNKNOWN}
    nodes = recorded("node_down.nodes.txt")
    for node in nodes_from_text(nodes[: at % len(nodes)] + put + nodes[at % len(nodes) :]):
        assert node.state in NODE_STATES | {UNKNOWN}
