"""The watchdog is killed at every moment that matters: before and after each command and each write of the journal.

For every such moment one whole recovery is played with a kill there and a new watchdog after it. Each must end with exactly
one requeue, the job running away from the bad node, and nobody's drain touched.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aistation_slurm.errors import SlurmUnavailable
from tests.unit.recovery.sim import DRAIN, SimJob
from tests.unit.recovery.world import Killed, World

RESTART_AFTER_S = (0.0, 3.0)
"""How long no watchdog runs after the kill."""


def pushed_by_the_watchdog(world: World) -> SimJob:
    job = world.running(excluded=["gpu4"])
    world.sim.drain("gpu2")
    return job


def requeued_by_the_agent(world: World) -> SimJob:
    job = world.running()
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    return job


def held_after_a_failed_prolog(world: World) -> SimJob:
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2")
    return job


def failed_with_a_fault(world: World) -> SimJob:
    job = world.running()
    world.sim.drain("gpu2")
    world.sim.script_ends(job, 256)
    return job


def node_failed(world: World) -> SimJob:
    job = world.running()
    world.sim.node_dies("gpu2")
    return job


STORIES = (pushed_by_the_watchdog, requeued_by_the_agent, held_after_a_failed_prolog, failed_with_a_fault, node_failed)


def play(world: World, story: Callable[[World], SimJob], kill_at: int, away_s: float) -> tuple[SimJob, int]:
    """One recovery, killed at the ``kill_at``-th moment (0: never). Returns the job and how many moments there were."""
    moments = 0
    job = story(world)

    def moment(point: str) -> None:
        nonlocal moments
        moments += 1
        if moments == kill_at:
            raise Killed(point)

    world.sim.hook = world.journal_hook = moment

    def restarted() -> bool:
        return len(job.starts) > 1

    try:
        world.run_until(restarted, within_s=200)
    except Killed:
        world.sim.hook = world.journal_hook = lambda point: None
        world.clock.sleep(away_s)
        world.start()
        world.run_until(restarted, within_s=200)
    world.sim.hook = world.journal_hook = lambda point: None
    world.run_for(160, step_s=2.0)  # anything that was to come late would come now
    return job, moments


@pytest.mark.parametrize("away_s", RESTART_AFTER_S)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_exactly_one_requeue_wherever_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, story: Callable[[World], SimJob], away_s: float
) -> None:
    _, moments = play(World(tmp_path_factory.mktemp("w")), story, 0, away_s)
    assert moments > 15, "the hooks are not in the loop"
    for kill_at in range(1, moments + 1):
        world = World(tmp_path_factory.mktemp("w"))
        job, _ = play(world, story, kill_at, away_s)
        where = f"killed at moment {kill_at}: {world.story()}"
        assert len(job.requeues) == 1, where
        assert len(job.starts) == 2, where
        assert job.state == "RUNNING", where
        assert "gpu2" not in job.nodes, where
        assert job.holds == 0, where
        assert world.sim.nodes["gpu2"].reason in (DRAIN, "Not responding"), where
        assert not any("NodeName" in change for change in world.sim.changes), where
        assert [a["state"] for a in world.journal.attempts(job.job_id)][-1] in ("running", "restarted"), where  # type: ignore[union-attr]


def test_a_fault_once_found_counts_although_its_node_is_given_back_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The watchdog is killed after it said why; the node is repaired before the next one looks (found by the torture)."""
    _, moments = play(World(tmp_path_factory.mktemp("w")), failed_with_a_fault, 0, 0.0)
    decided = 0
    for kill_at in range(1, moments + 1):
        world = World(tmp_path_factory.mktemp("w"))
        job = failed_with_a_fault(world)
        count = 0

        def moment(point: str) -> None:
            nonlocal count
            count += 1
            if count == kill_at:  # noqa: B023
                raise Killed(point)

        world.sim.hook = world.journal_hook = moment
        try:
            world.run_until(lambda: len(job.starts) > 1, within_s=200)  # noqa: B023
        except Killed:
            pass
        world.sim.hook = world.journal_hook = lambda point: None
        found = "infrastructure: gpu2" in world.text(job)
        node = world.sim.nodes["gpu2"]
        node.flags, node.reason, node.reason_time = [], "", 0
        world.start()
        world.run_for(160, step_s=2.0)
        if found:
            decided += 1
            where = f"killed at moment {kill_at}: {world.story()}"
            assert (len(job.requeues), len(job.starts), job.state) == (1, 2, "RUNNING"), where
    assert decided > 5, "it was never killed after its decision"


def test_a_request_that_got_no_answer_is_not_sent_twice(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The controller takes the requeue and the answer is lost: the next look finds its effect."""
    world = World(tmp_path_factory.mktemp("w"))
    job = pushed_by_the_watchdog(world)
    lost = False

    def lose(point: str) -> None:
        nonlocal lost
        if point.startswith("after scontrol requeue") and not lost:
            lost = True
            raise SlurmUnavailable("scontrol did not answer within 10 s")

    world.sim.hook = lose
    world.run_until(lambda: len(job.starts) == 2, within_s=60)
    assert lost
    assert len([c for c in world.sim.calls if c.startswith("scontrol requeue")]) == 1
    world.run_for(160, step_s=2.0)
    assert (len(job.requeues), len(job.starts)) == (1, 2)


def test_a_request_that_never_arrived_is_sent_again_later(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World(tmp_path_factory.mktemp("w"))
    job = pushed_by_the_watchdog(world)
    times: list[float] = []

    def lose(point: str) -> None:
        if point.startswith("before scontrol requeue"):
            times.append(world.clock.now())
            if len(times) == 1:
                raise SlurmUnavailable("scontrol did not answer within 10 s")

    world.sim.hook = lose
    world.run_until(lambda: len(job.starts) == 2, within_s=120)
    assert len(times) == 2
    assert times[1] - times[0] >= 12, "the first may still have been on its way"
