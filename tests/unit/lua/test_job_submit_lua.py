"""job_submit.lua and aistation.lua under the Lua that Slurm loads, with a driver in slurmctld's place (driver.lua)."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aistation_slurm.placement.note import read_note
from aistation_slurm.placement.table import PartitionRow, Row, body, render
from aistation_slurm.slurm import hostlist

PLUGINS = Path(__file__).resolve().parents[3] / "slurm_plugins"
NOW = 1_800_000_000
NO_VAL, NO_VAL16 = 4294967294, 65534

# Debian's Slurm loads 5.1; other builds may load a newer one
INTERPRETERS = [name for name in ("lua5.1", "lua5.3", "lua5.4") if shutil.which(name)] or ["lua5.1"]

pytestmark = pytest.mark.skipif(not shutil.which(INTERPRETERS[0]), reason="lua5.1 is missing (make setup installs it)")


def lua(value: Any) -> str:
    """A Python value as Lua text; dictionaries and lists are tables (lists count from 0, as spank_job_env does)."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(key)}] = {lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return lua(dict(enumerate(value)))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
    return str(value)


def job(*spank: str, **fields: Any) -> dict[str, Any]:
    """A batch job as sbatch describes it: `job("AISTATION_RESUME=hf", min_nodes=4)`."""
    unset = {"requeue": NO_VAL16, "req_switch": NO_VAL, "wait4switch": NO_VAL, "min_nodes": NO_VAL, "max_nodes": NO_VAL}
    env = {"spank_job_env": list(spank), "spank_job_env_size": len(spank)} if spank else {}
    return {"script": "#!/bin/sh\n", **unset, **env, **fields}


class Slurmctld:
    """Loads the files of a folder under one Lua and submits jobs to them."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        self.interpreter = interpreter
        self.folder = folder
        self.table = folder / "decisions"
        for name in ("aistation.lua", "job_submit.lua"):
            text = (PLUGINS / name).read_text(encoding="utf-8")
            (folder / name).write_text(text.replace("/var/lib/aistation/decisions", str(self.table)), encoding="utf-8")

    def submit(
        self, *jobs: dict[str, Any], parts: Optional[dict[str, Any]] = None, before: str = "", modify: str = "nil"
    ) -> list[str]:
        script = self.folder / "job_submit.lua"
        listed = ", ".join(lua(fields) for fields in jobs)
        case = f"return {{ script = {lua(str(script))}, jobs = {{ {listed} }}, parts = {lua(parts or {})}, now = {NOW}"
        case += f", before = function(n) {before} end, modify = {modify} }}"
        driver = str(Path(__file__).with_name("driver.lua"))
        result = subprocess.run(
            [self.interpreter, driver], input=case, capture_output=True, text=True, timeout=30, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout.splitlines()

    def publish(self, *partitions: PartitionRow, time: int = NOW, ttl: int = 60) -> None:
        self.table.write_text(render(body(partitions), time, ttl), encoding="utf-8")


@pytest.fixture(params=INTERPRETERS)
def slurmctld(request: pytest.FixtureRequest, tmp_path: Path) -> Slurmctld:
    up = Slurmctld(request.param, tmp_path)
    up.publish()
    return up


TAGS = [
    (["AISTATION_RESUME=auto"], "[ais resume=auto]"),
    (["AISTATION_RESUME=hf", "AISTATION_MAX_RESTARTS=3"], "[ais resume=hf max=3]"),
    (["AISTATION_MAX_RESTARTS=0", "OTHER=x", "AISTATION_RESUME=dcp"], "[ais resume=dcp max=0]"),
    (["AISTATION_RESUME=dcp", "AISTATION_HANG_TIMEOUT=30"], "[ais resume=dcp hang=30]"),
    (["AISTATION_RESUME=auto", "AISTATION_CKPT_DIR=/a] b"], "[ais resume=auto]"),
    # forged: only values that are whole and in bounds get into the tag
    (["AISTATION_RESUME=auto", "AISTATION_MAX_RESTARTS=3 act=drain"], "[ais resume=auto]"),
    (["AISTATION_RESUME=auto", "AISTATION_MAX_RESTARTS=5000"], "[ais resume=auto]"),
    (["AISTATION_RESUME=auto", "AISTATION_MAX_RESTARTS=0x10"], "[ais resume=auto]"),
    (["AISTATION_RESUME=none", "AISTATION_RESUME=hf"], "[ais resume=hf]"),
]


@pytest.mark.parametrize(("spank", "tag"), TAGS, ids=[tag for _, tag in TAGS])
def test_a_job_that_opted_in_gets_its_tag(slurmctld: Slurmctld, spank: list[str], tag: str) -> None:
    assert slurmctld.submit(job(*spank)) == [
        f"set admin_comment={tag}",
        "set requeue=1",
        f"user aistation: this job is restarted after a hardware fault {tag}",
        "return 0",
    ]


@pytest.mark.parametrize(
    ("fewest", "most", "told"),
    [(2, 4, " nodes=2-4"), (4, 4, ""), (4, NO_VAL, ""), (NO_VAL, 4, ""), (0, 4, ""), (4, 2, ""), (2, 1000000, "")],
)
def test_a_range_of_nodes_is_kept_in_the_tag(slurmctld: Slurmctld, fewest: int, most: int, told: str) -> None:
    out = slurmctld.submit(job("AISTATION_RESUME=hf", "AISTATION_MAX_RESTARTS=3", min_nodes=fewest, max_nodes=most))
    assert out[0] == f"set admin_comment=[ais resume=hf max=3{told}]"


def test_the_sites_own_admin_comment_stays(slurmctld: Slurmctld) -> None:
    out = slurmctld.submit(
        job("AISTATION_RESUME=hf", admin_comment="rack 3 [ais resume=dcp act=x] since May", requeue=1)
    )
    assert out[0] == "set admin_comment=rack 3 since May [ais resume=hf]"
    assert not any(line.startswith("set requeue") for line in out)


@pytest.mark.parametrize(
    ("spank", "fields", "told"),
    [
        ([], {}, ""),
        (["AISTATION_RESUME=none"], {}, ""),
        (["AISTATION_HEALTH=full"], {}, ""),
        (["AISTATION_RESUME=auto"], {"requeue": 0}, "--no-requeue stands"),
        (["AISTATION_RESUME=auto"], {"script": ""}, "only batch jobs"),
        (["AISTATION_RESUME="], {}, "expected one of auto, megatron, deepspeed, hf, lightning, dcp, nemo, none"),
        (["AISTATION_RESUME=hf] [ais act=drain"], {}, "expected one of auto, megatron"),
    ],
)
def test_a_job_that_is_not_managed_is_left_alone_and_told(
    slurmctld: Slurmctld, spank: list[str], fields: dict[str, Any], told: str
) -> None:
    out = slurmctld.submit(job(*spank, **fields))
    assert not [line for line in out if line.startswith(("set ", "fault "))]
    assert out[-1] == "return 0"
    assert any(told in line for line in out if line.startswith("user ")) if told else len(out) == 1


GPU = PartitionRow("gpu", nodes=64, clean=60, gpus=8, rows=(Row(2, 32, 8, 0, 600), Row(33, 64, 8, 1, 900)))
CPU = PartitionRow("cpu", nodes=64, clean=64, gpus=0, rows=(Row(2, 64, 16, 0, 60),))
AVOIDING = replace(GPU, avoid=("gpu1", "gpu2", "gpu3", "r7n04"))
PARTS = {
    "cpu": {"name": "cpu", "flag_default": 0, "total_nodes": 64, "total_cpus": 6400},
    "gpu": {"name": "gpu", "flag_default": 1, "total_nodes": 64, "total_cpus": 2048},
    "odd": {"name": "odd", "flag_default": 0, "total_nodes": 3, "total_cpus": 100},
}
SPREAD_JOB = 131072

LIMITED = [
    ("by the table", job(partition="gpu", min_nodes=16, max_nodes=16), (2, 600)),
    ("no upper bound", job(partition="gpu", min_nodes=16), (2, 600)),
    ("in the default partition", job(min_nodes=16, max_nodes=16), (2, 600)),
    ("another row", job(min_nodes=33, max_nodes=33), (6, 900)),
    ("the last size", job(min_nodes=64, max_nodes=64), (9, 900)),
    ("asked to pack", job("AISTATION_SWITCH=pack", partition="gpu", min_nodes=16), (2, 600)),
    ("own patience", job("AISTATION_SWITCH=pack,wait=5", partition="gpu", min_nodes=16), (2, 300)),
    ("own limit", job("AISTATION_SWITCH=pack,max=3,wait=5", min_nodes=99), (3, 300)),
    ("own limit, Slurm's patience", job("AISTATION_SWITCH=any,max=3"), (3, None)),
    ("any", job("AISTATION_SWITCH=any", partition="gpu", min_nodes=16), None),
    ("spread", job("AISTATION_SWITCH=spread", partition="gpu", min_nodes=16), None),
    ("user's --switches", job(partition="gpu", min_nodes=16, req_switch=1, wait4switch=5), None),
    ("user's --nodelist", job(partition="gpu", min_nodes=16, req_nodes="gpu[1-16]"), None),
    ("user's --constraint", job(partition="gpu", min_nodes=16, features="h100"), None),
    ("user's --contiguous", job(partition="gpu", min_nodes=16, contiguous=1), None),
    ("user's --spread-job", job(partition="gpu", min_nodes=16, bitflags=503316480 + SPREAD_JOB), None),
    ("other flags", job(partition="gpu", min_nodes=16, bitflags=503316480), (2, 600)),
    ("user's --exclude", job(partition="gpu", min_nodes=16, exc_nodes="gpu9"), (2, 600)),
    ("size not in the table", job(partition="gpu", min_nodes=65), None),
    ("one node", job(partition="gpu", min_nodes=1), None),
    ("a range of sizes", job(partition="gpu", min_nodes=10, max_nodes=20), (3, 600)),
    ("size not given", job(partition="gpu"), None),
    ("other partition", job(partition="special", min_nodes=16), None),
    ("two partitions", job(partition="gpu,cpu", min_nodes=32), (4, 60)),
    ("two partitions, one unknown", job(partition="gpu,special", min_nodes=32), None),
    ("in a reservation", job(partition="gpu", min_nodes=16, reservation="course"), None),
    ("an array", job(partition="gpu", min_nodes=16, array_inx="1-9"), (2, 600)),
    ("a part of a heterogeneous job", job(partition="gpu", min_nodes=16, het_job_offset=1), None),
    ("--gpus", job(tres_per_job="gres:gpu:64"), (1, 600)),
    ("--gpus of a type", job(tres_per_job="gres:gpu:h100:65"), (2, 600)),
    ("--gpus since 23.11", job(tres_per_job="gres/gpu=128"), (2, 600)),
    ("--gpus since 23.11, of a type", job(tres_per_job="license/x:2,gres/gpu:h100=128"), (2, 600)),
    ("--gpus and --gpus-per-node", job(tres_per_job="gres:gpu:64", tres_per_node="gres:gpu:4"), (2, 600)),
    ("--gpus of one node", job(tres_per_job="gres:gpu:8"), None),
    ("--gpus in words", job(tres_per_job="gres:gpu:4K"), None),
    ("--gpus where nodes have none", job(partition="cpu", tres_per_job="gres:gpu:64"), None),
    ("other gres", job(tres_per_job="gres:fpga:64"), None),
    ("-n", job(num_tasks=512, min_cpus=512), (2, 600)),
    ("-n that one node holds", job(num_tasks=32), None),
    ("-n -c", job(num_tasks=64, cpus_per_task=16), (4, 600)),
    ("-n --ntasks-per-node", job(num_tasks=64, ntasks_per_node=4), (2, 600)),
    ("-n --gpus-per-task", job(num_tasks=64, tres_per_task="gres:gpu:2"), (2, 600)),
    ("-n where nodes differ", job(partition="odd", num_tasks=512), None),
]


@pytest.mark.parametrize(("case", "wanted"), [(c, w) for _, c, w in LIMITED], ids=[name for name, _, _ in LIMITED])
def test_the_switch_limit(
    slurmctld: Slurmctld, case: dict[str, Any], wanted: Optional[tuple[int, Optional[int]]]
) -> None:
    slurmctld.publish(GPU, CPU, replace(CPU, name="odd"))
    out = slurmctld.submit(case, parts=PARTS)
    switches, wait_s = wanted or (None, None)
    expected = [f"set req_switch={switches}"] if switches else []
    expected += [f"set wait4switch={wait_s}"] if wait_s is not None else []
    assert [line for line in out if line.startswith(("set req_s", "set wait"))] == expected
    assert any(f"at most {switches} leaf" in line for line in out if line.startswith("user ")) == bool(wanted)
    assert out[-1] == "return 0"
    noted = [read_note(line) for line in out if line.startswith("set admin_comment=")]
    ours = wanted is not None and not any("max=" in word for word in case.get("spank_job_env", ()))
    assert [(note.switches, note.wait_s) for note in noted if note is not None and note.switches] == [wanted] * ours


AVOIDED = "gpu[1-3],r7n04"
EXCLUDED = [
    ("several nodes", job(min_nodes=16, max_nodes=16), AVOIDED),
    ("one node", job(min_nodes=1, max_nodes=1), None),
    ("nothing said", job(), None),
    ("maybe several", job(min_nodes=1, max_nodes=4), AVOIDED),
    ("as many as there are others", job(min_nodes=60), AVOIDED),
    ("more than there are others", job(min_nodes=61), None),
    ("a range that fits at its low end", job(min_nodes=2, max_nodes=64), AVOIDED),
    ("--gpus", job(tres_per_job="gres:gpu:64"), AVOIDED),
    ("--gpus of one node", job(tres_per_job="gres:gpu:8"), None),
    ("--switches", job(min_nodes=16, req_switch=2), AVOIDED),
    ("any switch", job("AISTATION_SWITCH=any", min_nodes=16), AVOIDED),
    ("heterogeneous", job(min_nodes=16, het_job_offset=0), AVOIDED),
    ("an array", job(min_nodes=16, array_inx="0-3"), AVOIDED),
    ("user's --exclude", job(min_nodes=16, exc_nodes="gpu9"), None),
    ("user's --nodelist", job(min_nodes=16, req_nodes="gpu1"), None),
    ("user's --constraint", job(min_nodes=16, features="h100"), None),
    ("in a reservation", job(min_nodes=16, reservation="course"), None),
    ("two partitions", job(min_nodes=16, partition="gpu,cpu"), AVOIDED),
    ("two partitions with nodes to avoid", job(min_nodes=16, partition="gpu,deg"), f"{AVOIDED},d1"),
    ("another partition of the same nodes", job(min_nodes=16, partition="same"), AVOIDED),
    ("one of the two too small", job(min_nodes=16, partition="gpu,tiny"), None),
]


@pytest.mark.parametrize(("case", "wanted"), [(c, w) for _, c, w in EXCLUDED], ids=[name for name, _, _ in EXCLUDED])
def test_degraded_nodes_are_excluded_from_jobs_of_several(
    slurmctld: Slurmctld, case: dict[str, Any], wanted: Optional[str]
) -> None:
    degraded, tiny = replace(CPU, name="deg", avoid=("d1",)), replace(AVOIDING, name="tiny", clean=5)
    slurmctld.publish(AVOIDING, CPU, degraded, tiny, replace(AVOIDING, name="same"))
    out = slurmctld.submit(case, parts=PARTS)
    assert [line for line in out if line.startswith("set exc")] == ([f"set exc_nodes={wanted}"] if wanted else [])
    told = [line for line in out if line.startswith("user ") and "degraded fabric" in line]
    assert [wanted in line for line in told] == ([True] if wanted else [])
    notes = [read_note(line) for line in out if line.startswith("set admin_comment=")]
    if wanted:
        assert notes
        assert notes[0] is not None
        assert notes[0].ours
        assert hostlist.fold(notes[0].excluded) == hostlist.fold(hostlist.expand(wanted))
    else:
        assert not [note for note in notes if note is not None and note.ours]
    assert out[-1] == "return 0"


KEPT = replace(
    GPU,
    avoid=("gpu1",),
    rows=(Row(1, 1, 8, 0, 0, ("gpu9",)), Row(2, 4, 8, 0, 60, ("gpu[9-12]",)), Row(5, 64, 8, 0, 60)),
)


@pytest.mark.parametrize(
    ("nodes", "wanted"), [(1, "gpu9"), (2, "gpu1,gpu[9-12]"), (4, "gpu1,gpu[9-12]"), (5, "gpu1"), (64, None)]
)
def test_nodes_may_be_kept_for_larger_jobs(slurmctld: Slurmctld, nodes: int, wanted: Optional[str]) -> None:
    rows = tuple(row._replace(excluded=tuple(hostlist.expand(",".join(row.excluded)))) for row in KEPT.rows)
    slurmctld.publish(replace(KEPT, rows=rows))
    out = slurmctld.submit(job(min_nodes=nodes, max_nodes=nodes), parts=PARTS)
    assert [line for line in out if line.startswith("set exc")] == ([f"set exc_nodes={wanted}"] if wanted else [])
    assert any("kept for larger jobs" in line for line in out) == (nodes < 5)
    assert any(line.startswith("set req_switch") for line in out) == (nodes > 1)


def test_what_was_done_is_noted_beside_what_stands_there(slurmctld: Slurmctld) -> None:
    """The note also says who answers for the exclusions, so that pending jobs are corrected and the user's are not."""
    slurmctld.publish(AVOIDING)
    theirs = "rack 3 [ais-place n=1 x=gpu9]"
    out = slurmctld.submit(job("AISTATION_RESUME=hf", partition="gpu", min_nodes=16, requeue=1, admin_comment=theirs))
    note = "[ais-place n=16 s=2 w=600 x=gpu{1-3},r7n04]"
    assert [line for line in out if line.startswith("set admin")][
        -1
    ] == f"set admin_comment=rack 3 [ais resume=hf] {note}"
    out = slurmctld.submit(job(partition="gpu", min_nodes=16, exc_nodes="gpu9"))
    assert "set admin_comment=[ais-place n=16 s=2 w=600 x=user]" in out
    slurmctld.publish(GPU)
    out = slurmctld.submit(job(partition="gpu", min_nodes=16, req_switch=1))
    assert out == ["set admin_comment=[ais-place n=16 x=-]", "return 0"]


def test_a_bad_switch_request_changes_nothing_and_is_told(slurmctld: Slurmctld) -> None:
    slurmctld.publish(AVOIDING)
    for forged in ("", "pack,", "pack,max", "pack,max=0", "pack,max=2;x", "pack,wait=99999", "max=2", "pack,most=2"):
        out = slurmctld.submit(job(f"AISTATION_SWITCH={forged}", partition="gpu", min_nodes=16))
        assert out == [
            "user aistation: --ais-switch: expected pack, spread or any, then ,max=N and ,wait=MIN where wanted; "
            "nothing is changed",
            "return 0",
        ]


BODY = "list 1 gpu[1-3]\npartition gpu 64 60 8 1\n2-32 8 0 600 0\n"
GOOD = render(BODY, NOW, 60)
BROKEN: dict[str, tuple[Optional[str], str]] = {
    "missing": (None, "there is none"),
    "empty": ("", "it is empty or cannot be read|its first line"),
    "other version": (GOOD.replace(" 2 ", " 1 ", 1), "its first line is not"),
    "no header": (BODY, "its first line is not"),
    "stale": (render(BODY, NOW - 61, 60), "it is stale"),
    "of the future": (render(BODY, NOW + 3600, 60), "it is of a later time than now"),
    "cut in a number": (GOOD[:-2], "its sum does not match"),
    "cut after a line": (GOOD[: GOOD.rindex("2-32")], "its sum does not match"),
    "another digit": (GOOD.replace("8 0 600", "8 1 600"), "its sum does not match"),
    "bytes swapped": (GOOD.replace("gpu 64", "gup 64"), "its sum does not match"),
    "only its first line": (GOOD.partition("\n")[0] + "\n", "its sum does not match"),
    "words": (render(BODY + "sixteen\n", NOW, 60), "line 5 is neither"),
    "code": (render(BODY + "os.exit(1)\n", NOW, 60), "line 5 is neither"),
    "negative": (render(BODY + "33-64 8 -1 600 0\n", NOW, 60), "line 5 is neither"),
    "no leaf": (render(BODY + "33-64 0 1 600 0\n", NOW, 60), "line 5 is neither"),
    "huge": (render(BODY + "33-64 8 1 99999999999999999999 0\n", NOW, 60), "line 5 is neither"),
    "a column more": (render(BODY + "33-64 8 1 600 0 x\n", NOW, 60), "line 5 is neither"),
    "backwards": (render(BODY + "64-33 8 1 600 0\n", NOW, 60), "line 5 is neither"),
    "overlapping": (render(BODY + "32-64 8 1 600 0\n", NOW, 60), "line 5 overlaps"),
    "a row of no partition": (render("2-32 8 0 600 0\n" + BODY, NOW, 60), "line 2 is neither"),
    "a partition twice": (render(BODY + BODY, NOW, 60), "partition gpu is there twice"),
    "quotes in a list": (render(BODY.replace("gpu[1-3]", 'gpu1";x'), NOW, 60), "line 2 is neither"),
    "blank line": (render(BODY + "\n", NOW, 60), "line 5 is neither"),
    "carriage returns": (GOOD.replace("\n", "\r\n"), "its first line is not"),
    "binary": ("\0\1\2%s%d\n", "its first line is not"),
    "a list that is not there": (render(BODY.replace(" 8 1\n", " 8 2\n"), NOW, 60), "line 3 is neither"),
    "a list that is not there in a row": (render(BODY.replace("600 0", "600 2"), NOW, 60), "line 4 is neither"),
    "over 24 KiB": (render(BODY + "33-64 8 1 600 0\n" * 6000, NOW, 60), "at most 24 KiB"),
    "over 600 rows": (
        render(BODY + "".join(f"{n}-{n} 8 1 600 0\n" for n in range(33, 933)), NOW, 60),
        "more than 600 rows",
    ),
}


@pytest.mark.parametrize(("text", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_table_that_cannot_be_used_costs_one_line_and_no_job(
    slurmctld: Slurmctld, text: Optional[str], why: str
) -> None:
    slurmctld.table.unlink() if text is None else slurmctld.table.write_bytes(text.encode())
    case = job("AISTATION_RESUME=hf", partition="gpu", min_nodes=16, requeue=1)
    out = slurmctld.submit(case, dict(case), dict(case))
    assert [line for line in out if line.startswith("set ")] == ["set admin_comment=[ais resume=hf]"] * 3
    assert [line for line in out if line.startswith("return ")] == ["return 0"] * 3
    (complaint,) = [line for line in out if line.startswith("log ")]
    assert re.search(why, complaint)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.text(alphabet="0123456789 -\ngpuartion[],", max_size=300).map(str.encode))
def test_the_sum_is_adler32_and_any_other_text_is_refused(slurmctld: Slurmctld, content: bytes) -> None:
    header = f"aistation-decisions 2 {NOW} 60 {zlib.adler32(content)}\n".encode()
    slurmctld.table.write_bytes(header + content)
    out = slurmctld.submit(job(min_nodes=2), parts=PARTS)
    assert out[-1] == "return 0"
    assert not any("its sum" in line or "fault" in line for line in out)


def test_a_table_that_is_a_folder_costs_no_job(slurmctld: Slurmctld) -> None:
    slurmctld.table.unlink()
    slurmctld.table.mkdir()
    out = slurmctld.submit(job(partition="gpu", min_nodes=16))
    assert [line.split()[0] for line in out] == ["log", "return"]


def test_a_new_table_is_read_and_a_lost_one_is_said_again(slurmctld: Slurmctld) -> None:
    slurmctld.publish(GPU)
    newer = render(BODY.replace("32 8 0", "32 4 0"), NOW, 60)
    path = lua(str(slurmctld.table))
    before = f"""
        os.time = function() return {NOW} + n end
        if n == 2 then local f = io.open({path}, "w") f:write({lua(newer)}) f:close() end
        if n == 3 then os.remove({path}) end
        if n == 4 then local f = io.open({path}, "w") f:write({lua(newer)}) f:close() end
        if n == 5 then os.remove({path}) end"""
    out = slurmctld.submit(*(job(partition="gpu", min_nodes=16) for _ in range(5)), before=before)
    assert [line for line in out if line.startswith("set req")] == [f"set req_switch={n}" for n in (2, 4, 4)]
    assert len([line for line in out if line.startswith("log ") and "there is none" in line]) == 2


@pytest.mark.parametrize(
    "field", ["spank_job_env", "script", "requeue", "admin_comment", "req_switch", "min_nodes", "exc_nodes"]
)
def test_a_fault_inside_costs_no_job(slurmctld: Slurmctld, field: str) -> None:
    """The message has a bare %, which raises in slurm.log_info when it is taken for a format."""
    slurmctld.publish(AVOIDING)
    out = slurmctld.submit(job("AISTATION_RESUME=hf", partition="gpu", min_nodes=16, raises_on=field))
    assert out[-1] == "return 0"
    said = [line for line in out if line.startswith("log ") and f"reading {field} 100% broken" in line]
    assert len(said) == (2 if field == "admin_comment" else 1)  # one for each step that needs it


def test_a_fault_in_placement_does_not_cost_the_tag(slurmctld: Slurmctld) -> None:
    slurmctld.publish(AVOIDING)
    out = slurmctld.submit(job("AISTATION_RESUME=hf", partition="gpu", min_nodes=16, refuses="req_switch"))
    assert "set admin_comment=[ais resume=hf]" in out
    assert out[-1] == "return 0"


def test_text_of_users_is_never_a_format_or_code(slurmctld: Slurmctld) -> None:
    nasty = ["AISTATION_RESUME=%s%n", "AISTATION_SWITCH=%d", "AISTATION_CKPT_DIR=]]..os.exit()", "=", "", "\n%"]
    out = slurmctld.submit(job(*nasty, partition="%s", name="%s", min_nodes=16))
    assert out[-1] == "return 0"
    assert not [line for line in out if line.startswith(("set ", "fault "))]


@pytest.mark.parametrize("text", ["this is not Lua %s", "return 5", "error('100%')", None], ids=str)
def test_a_broken_module_costs_no_job(slurmctld: Slurmctld, text: Optional[str]) -> None:
    module = slurmctld.folder / "aistation.lua"
    module.unlink() if text is None else module.write_text(text, encoding="utf-8")
    out = slurmctld.submit(job("AISTATION_RESUME=hf"), job())
    assert [line.split()[0] for line in out] == ["log", "return", "log", "return"]
    assert out[1::2] == ["return 0", "return 0"]


def test_modifications_pass_untouched(slurmctld: Slurmctld) -> None:
    out = slurmctld.submit(modify="{ admin_comment = 'x', requeue = 0 }")
    assert out == ["modify 0"]


def test_the_module_reads_no_data_as_code() -> None:
    text = (PLUGINS / "aistation.lua").read_text(encoding="utf-8")
    code = re.sub(r"--.*", "", text)
    assert not re.search(r"\b(loadfile|loadstring|dofile|load|require|os\.execute|io\.popen)\b", code)
