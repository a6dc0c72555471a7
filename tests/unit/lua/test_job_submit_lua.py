"""job_submit.lua and aistation.lua under the Lua that Slurm loads, with a driver in slurmctld's place (driver.lua)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Optional

import pytest

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

    def publish(self, *rows: str, time: int = NOW, ttl: int = 60) -> None:
        lines = [f"aistation-decisions 1 {time} {ttl}", *rows]
        self.table.write_text("\n".join(lines) + "\n", encoding="utf-8")


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


PLACED = [
    ("by the table", job(partition="gpu", min_nodes=16, max_nodes=16), (2, 600)),
    ("no upper bound", job(partition="gpu", min_nodes=16), (2, 600)),
    ("in the default partition", job(min_nodes=16, max_nodes=16), (2, 600)),
    ("asked to pack", job("AISTATION_SWITCH=pack", partition="gpu", min_nodes=16), (2, 600)),
    ("own patience", job("AISTATION_SWITCH=pack,wait=5", partition="gpu", min_nodes=16), (2, 300)),
    ("own limit", job("AISTATION_SWITCH=pack,max=3,wait=5", min_nodes=99), (3, 300)),
    ("own limit, Slurm's patience", job("AISTATION_SWITCH=any,max=3"), (3, None)),
    ("any", job("AISTATION_SWITCH=any", partition="gpu", min_nodes=16), None),
    ("spread", job("AISTATION_SWITCH=spread", partition="gpu", min_nodes=16), None),
    ("user's --switches", job(partition="gpu", min_nodes=16, req_switch=1, wait4switch=5), None),
    ("size not in the table", job(partition="gpu", min_nodes=17), None),
    ("a range of sizes", job(partition="gpu", min_nodes=16, max_nodes=20), None),
    ("size not given", job(partition="gpu"), None),
    ("other partition", job(partition="cpu", min_nodes=16), None),
    ("two partitions", job(partition="gpu,cpu", min_nodes=16), None),
]


@pytest.mark.parametrize(("case", "wanted"), [(c, w) for _, c, w in PLACED], ids=[name for name, _, _ in PLACED])
def test_the_switch_limit(
    slurmctld: Slurmctld, case: dict[str, Any], wanted: Optional[tuple[int, Optional[int]]]
) -> None:
    slurmctld.publish("cpu 2 1 60", "gpu 16 2 600", "gpu 32 4 900")
    parts = {"cpu": {"name": "cpu", "flag_default": 0}, "gpu": {"name": "gpu", "flag_default": 1}}
    out = slurmctld.submit(case, parts=parts)
    switches, wait_s = wanted or (None, None)
    expected = [f"set req_switch={switches}"] if switches else []
    expected += [f"set wait4switch={wait_s}"] if wait_s is not None else []
    assert [line for line in out if line.startswith("set ")] == expected
    assert any(f"at most {switches} leaf" in line for line in out if line.startswith("user ")) == bool(wanted)
    assert out[-1] == "return 0"


def test_a_bad_switch_request_changes_nothing_and_is_told(slurmctld: Slurmctld) -> None:
    slurmctld.publish("gpu 16 2 600")
    for forged in ("", "pack,", "pack,max", "pack,max=0", "pack,max=2;x", "pack,wait=99999", "max=2", "pack,most=2"):
        out = slurmctld.submit(job(f"AISTATION_SWITCH={forged}", partition="gpu", min_nodes=16))
        assert out == [
            "user aistation: --ais-switch: expected pack, spread or any, then ,max=N and ,wait=MIN where wanted; "
            "nothing is changed",
            "return 0",
        ]


GOOD = f"aistation-decisions 1 {NOW} 60\ngpu 16 2 600\n"
BROKEN = {
    "missing": (None, "there is none"),
    "empty": ("", "it is empty or cannot be read|its last line is cut short"),
    "other version": (GOOD.replace(" 1 ", " 2 ", 1), "its first line is not"),
    "no header": ("gpu 16 2 600\n", "its first line is not"),
    "stale": (GOOD.replace(str(NOW), str(NOW - 61)), "it is stale"),
    "of the future": (GOOD.replace(str(NOW), str(NOW + 3600)), "it is of a later time than now"),
    "cut in a number": (GOOD[:-2], "its last line is cut short"),
    "words": (GOOD + "gpu sixteen 2 600\n", "line 3 is not"),
    "code": (GOOD + "os.exit(1)\n", "line 3 is not"),
    "negative": (GOOD + "gpu 8 -1 600\n", "line 3 is not"),
    "no switch": (GOOD + "gpu 8 0 600\n", "line 3 is not"),
    "huge": (GOOD + "gpu 8 99999999999999999999 600\n", "line 3 is not"),
    "a column more": (GOOD + "gpu 8 1 600 x\n", "line 3 is not"),
    "twice": (GOOD + "gpu 16 1 600\n", "line 3 is there twice"),
    "blank line": (GOOD + "\n", "line 3 is not"),
    "carriage returns": (GOOD.replace("\n", "\r\n"), "its first line is not"),
    "binary": ("\0\1\2%s%d\n", "its first line is not"),
    "over 1 MiB": (GOOD + "gpu 8 1 600\n" * 100_000, "at most 1 MiB"),
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


def test_a_table_that_is_a_folder_costs_no_job(slurmctld: Slurmctld) -> None:
    slurmctld.table.unlink()
    slurmctld.table.mkdir()
    out = slurmctld.submit(job(partition="gpu", min_nodes=16))
    assert [line.split()[0] for line in out] == ["log", "return"]


def test_a_new_table_is_read_and_a_lost_one_is_said_again(slurmctld: Slurmctld) -> None:
    slurmctld.publish("gpu 16 2 600")
    newer = GOOD.replace("16 2 600", "16 4 600").replace(f"{NOW} 60", f"{NOW} 50")
    path = lua(str(slurmctld.table))
    before = f"""
        if n == 2 then local f = io.open({path}, "w") f:write({lua(newer)}) f:close() end
        if n == 3 then os.remove({path}) end
        if n == 4 then local f = io.open({path}, "w") f:write({lua(newer)}) f:close() end
        if n == 5 then os.remove({path}) end"""
    out = slurmctld.submit(*(job(partition="gpu", min_nodes=16) for _ in range(5)), before=before)
    assert [line for line in out if line.startswith("set req")] == [f"set req_switch={n}" for n in (2, 4, 4)]
    assert len([line for line in out if line.startswith("log ") and "there is none" in line]) == 2


@pytest.mark.parametrize("field", ["spank_job_env", "script", "requeue", "admin_comment", "req_switch", "min_nodes"])
def test_a_fault_inside_costs_no_job(slurmctld: Slurmctld, field: str) -> None:
    """The message has a bare %, which raises in slurm.log_info when it is taken for a format."""
    slurmctld.publish("gpu 16 2 600")
    out = slurmctld.submit(job("AISTATION_RESUME=hf", partition="gpu", min_nodes=16, raises_on=field))
    assert out[-1] == "return 0"
    assert len([line for line in out if line.startswith("log ") and f"reading {field} 100% broken" in line]) == 1


def test_a_fault_in_placement_does_not_cost_the_tag(slurmctld: Slurmctld) -> None:
    slurmctld.publish("gpu 16 2 600")
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
