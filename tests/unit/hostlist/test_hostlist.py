"""Hostlists through the command, by the public cases and against Slurm's own scontrol."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.cli import EXIT_USAGE
from aistation_slurm.cli.hostlist import command
from aistation_slurm.slurm import hostlist
from tests.unit.public_cases import case

SCONTROL = shutil.which("scontrol")


def call(*words: str, stdin: str = "") -> Result:
    return CliRunner().invoke(command, list(words), input=stdin)


def expand(text: str) -> list[str]:
    result = call("expand", "--json", text)
    assert result.exit_code == 0, result.output
    found: list[str] = json.loads(result.output)
    return found


def test_080_dashes_before_the_bracket() -> None:
    known = case("080")
    lines = known["input"].splitlines()
    assert expand(lines[0]) == known["expected"]["line1"]
    assert expand(lines[1]) == known["expected"]["line2"]
    third = expand(lines[2])
    assert len(third) == known["expected"]["line3_count"]
    assert [third[0], third[-1]] == known["expected"]["line3_first_last"]
    assert expand(lines[3]) == known["expected"]["line4"]
    assert call("count", lines[2]).output == "20\n"
    assert call("count", "--unique", lines[2]).output == "18\n"


def test_082_paddings_stay_apart() -> None:
    known = case("082")
    lines = [line.split(": ", 1) for line in known["input"].splitlines()]
    assert [expand(text) for kind, text in lines if kind == "expand"] == known["expected"]["expand"]
    for text, folded in zip([text for kind, text in lines if kind == "fold"], known["expected"]["fold"]):
        assert call("fold", text).output.strip() == folded
        assert sorted(expand(folded)) == sorted(text.split(",")), "what was folded opens to the same names"


def test_083_plain_names_before_a_bracket() -> None:
    known = case("083")
    lines = known["input"].splitlines()
    assert [expand(line) for line in lines[:3]] == [known["expected"][f"line{i}"] for i in (1, 2, 3)]
    assert len(expand(lines[3])) == known["expected"]["line4_count"]
    assert [expand(line)[0] for line in lines] == known["expected"]["first_host"]


@pytest.mark.parametrize("text", case("085")["expected"]["errors"])
def test_085_malformed_text_is_an_error_that_names_it(text: str) -> None:
    for verb in ("expand", "fold", "count"):
        result = call(verb, "gpu1", text)
        assert result.exit_code == EXIT_USAGE
        assert text in result.output
        assert not any(wrong in result.stdout.split() for wrong in case("085")["expected"]["must_not_return"])


def test_085_placeholders_line_breaks_and_double_commas() -> None:
    known = case("085")["expected"]
    assert [expand(text) for text in known["empty_result"]] == [[]] * 3
    assert call("expand", "").output == ""
    assert expand("a1\na2") == known["newline_separated"]
    assert expand("a[1-2],,b1") == known["double_comma"]


@pytest.mark.parametrize(
    "text",
    ["a]", "[", "n[[1-2]]", "n[1-2]-ib", "n[1-", "n[1,,2]", "n[1-2-3]", "n[x]", "n[1-99999999]", "a;b", "-x", "n[1-2]x[1-",
     "r[1-3000]n[1-3000]", "a b", "n[١-٢]"],
)  # fmt: skip
def test_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(hostlist.HostlistError):
        hostlist.expand(text)


def test_standard_input_and_lines() -> None:
    assert call("expand", "-", stdin="gpu[1-2]\nlogin\n").output == "gpu1\ngpu2\nlogin\n"
    assert call("fold", "gpu3", "gpu1", "gpu2", "gpu9", "gpu10").output == "gpu[1-3,9-10]\n"
    assert json.loads(call("count", "--json", "gpu[001-128]").output) == 128


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu1"], "gpu1"),
        (["gpu01", "gpu1"], "gpu[01,1]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["gpu", "gpu0", "gpu1"], "gpu,gpu[0-1]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n998", "n999", "n1000"], "n[998-1000]"),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert hostlist.fold(names) == folded
    assert hostlist.expand(folded) == names


hosts = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["gpu", "a-b", "r1n", "x1y"]),
    st.integers(0, 130),
    st.integers(1, 4),
)


@given(st.lists(hosts, min_size=1, max_size=60))
def test_folding_loses_and_invents_nothing(names: list[str]) -> None:
    assert sorted(hostlist.expand(hostlist.fold(names))) == sorted(set(names))


@pytest.mark.skipif(SCONTROL is None, reason="needs Slurm's scontrol")
@settings(max_examples=40, deadline=None)
@given(st.lists(hosts, min_size=1, max_size=30))
def test_slurm_reads_what_we_fold(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folded = hostlist.fold(names)
    assert slurm_expands(tmp_path_factory, folded) == hostlist.expand(folded)


@pytest.mark.skipif(SCONTROL is None, reason="needs Slurm's scontrol")
@pytest.mark.parametrize(
    "text",
    ["n[8-0010]", "r[1-2]n[1-2]", "n[1-2][3-4]", "[1-3]", "a[1-2],,b1", ",a", "n[001-1000]", "c09,c010", "n[1]", "5", "n[2,1,2]"],
)  # fmt: skip
def test_slurm_expands_the_same(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    assert slurm_expands(tmp_path_factory, text) == hostlist.expand(text)


def slurm_expands(tmp_path_factory: pytest.TempPathFactory, text: str) -> list[str]:
    """``scontrol show hostnames``, which needs a slurm.conf and no slurmctld."""
    conf = Path(tmp_path_factory.getbasetemp()) / "slurm.conf"
    if not conf.exists():
        conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=a\nPartitionName=p Nodes=ALL\n")
    argv = [str(SCONTROL), "show", "hostnames", text]
    env = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60, env=env).stdout.split()
