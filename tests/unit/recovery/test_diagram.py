"""The diagram of states is what the code does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from aistation_slurm.recovery.diagram import TRANSITIONS, render
from tests.unit.recovery.sim import SimJob
from tests.unit.recovery.world import World

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recovery-states.md"


def test_the_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run: python -m aistation_slurm.recovery.diagram > docs/recovery-states.md"
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.start()
    db = sqlite3.connect(made.config.watchdog.journal)
    db.executescript(
        "CREATE TABLE changes (old TEXT, new TEXT);"
        "CREATE TRIGGER made AFTER INSERT ON attempts BEGIN INSERT INTO changes VALUES ('', new.state); END;"
        "CREATE TRIGGER changed AFTER UPDATE OF state ON attempts BEGIN INSERT INTO changes VALUES (old.state, new.state); END;"
    )
    db.close()
    return made


def changes(world: World) -> set[tuple[str, str]]:
    with sqlite3.connect(world.config.watchdog.journal) as db:
        return set(db.execute("SELECT DISTINCT old, new FROM changes WHERE old != new").fetchall())


def faults(world: World) -> list[SimJob]:
    """A lost GPU, a failed prolog, a dead node, a user's failure, a cancellation, a limit, a job that Slurm forgets."""
    lost = world.running(node_count=1)
    world.sim.drain(lost.nodes[0])
    world.sim.agent_requeues(lost)
    refused = world.sim.submit(node_count=1)
    world.sim.prolog_fails(refused, refused.nodes[0])
    world.run_for(20)
    world.sim.node_dies(refused.nodes[0])
    world.run_for(150)
    for node in world.sim.nodes.values():
        node.state, node.flags = "idle", []
    failed = world.running(node_count=1)
    world.sim.script_ends(failed, 256)
    limited = world.running(node_count=1, admin_comment="[ais resume=auto max=0]")
    world.sim.drain(limited.nodes[0])
    world.sim.agent_requeues(limited)
    world.run_for(100)
    for node in world.sim.nodes.values():
        node.flags = []
    gone = world.running(node_count=1)
    world.run_for(31)
    del world.sim.jobs[gone.job_id]
    world.run_for(100)
    return [lost, refused, failed, limited]


def test_no_state_changes_in_another_way(world: World) -> None:
    faults(world)
    seen = changes(world)
    assert seen <= {(old, new) for old, new, _ in TRANSITIONS}
    assert {
        ("", "running"),
        ("running", "ended"),
        ("ended", "restarted"),
        ("ended", "done"),
        ("running", "done"),
    } <= seen
