"""Figures of runs that can be counted by hand, and how they are shown."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner

from aistation_slurm.cli.placement import command
from aistation_slurm.placement.simulation.engine import TraceJob, simulate
from aistation_slurm.placement.simulation.figures import Estimate, estimate, figures_of, ratio, size_class
from aistation_slurm.placement.simulation.machine import Machine
from aistation_slurm.placement.simulation.policy import Stock
from aistation_slurm.placement.simulation.study import clos, offered_load, scaled

TWO = Machine(clos(2, 4, 1))
HELD = [TraceJob(1, 0, 3, 40, 60), TraceJob(2, 0, 3, 40, 60), TraceJob(3, 10, 2, 10, 60), TraceJob(4, 20, 8, 10, 60)]
"""The third spans both leaves since each has one free node; the fourth waits for all."""


def test_figures_by_hand() -> None:
    found = figures_of(simulate(HELD, TWO, Stock()), crossing=0.5)
    assert found.over == (1 + 1 + 2 + 1) / 4
    assert found.wait_s == 20 / 4
    assert found.makespan_s == 50
    assert found.utilisation == (6 * 20 + 2 * 10) / (8 * 20)
    assert found.fragmentation == 1.0
    # 3*40 + 3*40 + 8*10, and 2*10 that is slowed by half of 0.5
    assert found.node_s == 320 + 20 * 1.25
    assert {name: (of.jobs, of.over) for name, of in found.by_size.items()} == {
        "2": (1, 2.0),
        "3-4": (2, 1.0),
        "5-8": (1, 1.0),
    }


def test_sizes_are_put_into_classes() -> None:
    assert [size_class(n) for n in (1, 2, 3, 4, 5, 8, 9, 32)] == ["1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "17-32"]


def test_intervals() -> None:
    assert estimate([1.0, 3.0]) == Estimate(2.0, pytest.approx(12.71))
    assert math.isnan(estimate([1.0]).half)
    assert math.isnan(estimate([]).value)
    assert ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == Estimate(2.0, 0.0)
    assert math.isnan(ratio([1.0], [0.0]).value)


def test_a_trace_is_brought_to_a_load() -> None:
    trace = [TraceJob(1, 0, 4, 10, 60), TraceJob(2, 20, 4, 10, 60)]
    assert offered_load(trace, 8) == 0.5
    assert [job.submit_s for job in scaled(trace, 8, 1.0)] == [0, 10]


def run(*args: str) -> str:
    result = CliRunner().invoke(command, ["simulate", *args])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_simulates_made_traces(tmp_path: Path) -> None:
    svg = tmp_path / "s.svg"
    args = ("--jobs", "40", "--seeds", "2", "--fabric", "4x8x2", "--load", "0.8", "--load", "1.1", "--svg", str(svg))
    shown = json.loads(run(*args, "--json")[len(f"wrote {svg}\n") :])
    assert [one["load"] for one in shown["studies"]] == [0.8, 1.1]
    policies = shown["studies"][0]["policies"]
    assert list(policies) == ["none", "tree", "aistation"]
    assert policies["aistation"]["over"]["mean"] <= policies["none"]["over"]["mean"]
    root = ElementTree.fromstring(svg.read_text())
    assert root.tag.endswith("svg")
    assert "leaves over optimum" in run(*args)


def test_the_command_reads_a_trace_and_a_topology(tmp_path: Path) -> None:
    trace, conf = tmp_path / "jobs.txt", tmp_path / "topology.conf"
    lines = ["JobIDRaw|Submit|Start|End|NNodes|TimelimitRaw"]
    lines += [f"{n}|2026-11-01T10:00:{n:02}|2026-11-01T10:00:{n:02}|2026-11-01T10:20:00|{n}|60" for n in range(1, 10)]
    trace.write_text("\n".join(lines) + "\n")
    conf.write_text("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\nSwitchName=c Switches=a,b\n")
    output = run(str(trace), "--topology", str(conf), "--policy", "tree", "--policy", "fixed:60")
    assert "left out: 1 larger than the machine" in output
    assert "fixed:60" in output


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--policy", "best"], 2, "expected one of none, tree"),
        (["--fabric", "16"], 2, "such as 16x8x4"),
        (["--load", "0"], 2, "0.01<=x<=10"),
    ],
)
def test_usage(args: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(command, ["simulate", *args])
    assert result.exit_code == code
    assert message in result.output
