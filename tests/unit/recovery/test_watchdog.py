"""Whole recoveries on the stand-in for Slurm: what is done, what is left alone, and how soon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from aistation_slurm.config import Restart, Restarts
from aistation_slurm.errors import JournalError, SlurmRefused
from aistation_slurm.recovery.journal import Journal
from aistation_slurm.recovery.places import Places
from aistation_slurm.recovery.suspects import BlackHoles
from aistation_slurm.recovery.watchdog import Watchdog
from aistation_slurm.slurm import tags
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.slurm.hostlist import HostlistError
from tests.unit.recovery.sim import DRAIN, OPTED_IN, SimJob, SimNode
from tests.unit.recovery.world import World


@pytest.fixture(params=["22.05", "24.11"])
def world(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> World:
    made = World(tmp_path_factory.mktemp("w"))
    made.sim.new_shape = request.param == "24.11"
    return made


def restarted(job: SimJob, times: int = 1) -> bool:
    return len(job.starts) == times + 1 and job.state == "RUNNING"


def test_the_agents_requeue_is_sped_up_and_kept_away_from_the_node(world: World) -> None:
    job = world.running(excluded=["gpu4"])
    world.sim.drain("gpu2")
    fault = world.clock.now()
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    # 1.5 s of COMPLETING and the start gap of 1 s, where stock Slurm waits for 121 s
    assert 2.5 <= world.clock.now() - fault < 4.0
    assert sorted(job.excluded) == ["gpu2", "gpu4"] or job.nodes == ["gpu1", "gpu3"]
    assert "gpu2" not in job.nodes
    assert (len(job.requeues), job.holds, job.releases) == (1, 0, 0)
    assert job.comment.startswith("mine [ais: restart 1 away from gpu2: ais:gpu.lost GPU3")
    assert job.admin_comment.startswith("site text [ais resume=auto max=3 attempt=1 act=start why=gpu.lost@gpu2")
    assert [change for change in world.sim.changes if "NodeName" in change] == []


def test_the_watchdog_is_second_when_the_agent_does_not_act(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.run_until(lambda: restarted(job))
    assert len(job.requeues) == 1
    assert "gpu1" not in job.nodes


@pytest.mark.parametrize("late_s", [0.4, 5.0])
@pytest.mark.parametrize("completing_s", [0.0, 3.0])
def test_a_job_that_failed_before_its_nodes_agent_judged_does_not_wait_for_the_slow_poll(
    world: World, late_s: float, completing_s: float
) -> None:
    """The rank dies of the lost GPU, and the drain comes after the event of the job's end."""
    job = world.running()
    world.run_for(2)
    world.sim.script_ends(job, 134)
    job.completing_until = world.clock.now() + completing_s if completing_s else None
    failed = world.clock.now()
    world.run_for(late_s)
    world.sim.drain("gpu2")
    world.run_until(lambda: restarted(job))
    # a look after at most half of the time waited or 1 s, 1.5 s of COMPLETING after the requeue and the start gap of 1 s
    assert world.clock.now() - failed < max(late_s, completing_s) * 1.5 + 1.5 + 1.5 + 1.0 + 1.0
    assert (len(job.requeues), "gpu2" in job.nodes) == (1, False)


def test_a_requeue_by_the_agent_within_its_grace_is_not_doubled(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.watchdog.cycle(everything=True)  # type: ignore[union-attr]
    world.run_for(3)
    assert job.requeues == []
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    world.run_for(200)
    assert len(job.requeues) == 1


def test_failed_prolog_is_released_elsewhere(world: World) -> None:
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2")
    world.run_until(lambda: restarted(job), within_s=20)
    assert (job.releases, job.holds, len(job.requeues)) == (1, 0, 1)
    assert job.excluded == ["gpu2"]
    assert job.starts[1][0] >= job.requeues[0] + 1.5 + 1.0 - 1


def test_a_prolog_that_failed_for_someone_elses_reason_stays_held(world: World) -> None:
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2", reason="Prolog error")
    world.run_for(300)
    assert (job.state, job.priority, job.releases) == ("PENDING", 0, 0)
    assert "AIStation drained none of gpu1, gpu2" in world.text(job)


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"])
def test_no_hold_of_anybody_else_is_released(world: World, reason: str) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    job.priority, job.reason = 0, reason
    world.run_for(300)
    assert (job.state, job.priority, job.releases) == ("PENDING", 0, 0)
    assert job.comment == "mine"
    assert f"held ({reason})" in world.text(job)


def test_a_held_launch_that_its_user_then_holds_is_the_users(world: World) -> None:
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2")
    world.run_for(1.0)
    job.reason, job.description = "JobHeldUser", ""
    world.run_for(120)
    assert (job.priority, job.releases) == (0, 0)


def only_said_requeued(world: World) -> bool:
    """The only change is the word to start-up that this end says nothing about the checkpoint."""
    return len(world.sim.changes) == 1 and " last=requeued did=" in world.sim.changes[0]


def test_a_requeue_by_hand_keeps_slurms_delay(world: World) -> None:
    job = world.running()
    world.sim.agent_requeues(job)  # anybody's: no node is drained
    world.run_until(lambda: restarted(job))
    assert job.starts[1][0] - job.requeues[0] > 120
    assert only_said_requeued(world)
    assert "requeued, and no fault was found on gpu1, gpu2" in world.text(job)


def test_an_administrators_drain_is_no_fault(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1", "memory test tomorrow")
    world.run_for(120)
    assert (job.state, world.sim.changes) == ("RUNNING", [])
    world.sim.agent_requeues(job)
    world.run_for(60)
    assert only_said_requeued(world)
    assert world.sim.nodes["gpu1"].reason == "memory test tomorrow"


def test_the_agent_names_a_fault_on_a_node_that_someone_else_drained(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1", "memory test tomorrow")
    job.admin_comment = f"[ais resume=auto fault=gpu.lost@gpu1@{job.start_time}]"
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job), within_s=20)
    assert "gpu1" not in job.nodes
    assert "fault=gpu.lost@gpu1@" in job.admin_comment


def test_exit_1_is_left_alone_and_says_so(world: World) -> None:
    job = world.running()
    world.sim.script_ends(job, 256)
    world.run_for(300)
    assert (job.state, job.requeues, world.sim.changes) == ("FAILED", [], [])
    assert "the job failed with exit code 1, and no fault was found on gpu1, gpu2" in world.text(job)
    assert world.kinds(job).count("left") == 1, "said once"


def test_a_job_that_failed_on_a_node_that_is_then_drained_is_requeued(world: World) -> None:
    job = world.running()
    world.sim.script_ends(job, 256)
    world.run_for(10)
    world.sim.drain("gpu2")
    world.run_until(lambda: restarted(job), within_s=60)
    assert (len(job.requeues), job.excluded) == (1, ["gpu2"])


def test_a_drain_long_after_a_failure_does_not_explain_it(world: World) -> None:
    job = world.running()
    world.sim.script_ends(job, 256)
    world.run_for(90)
    world.sim.drain("gpu2")
    world.run_for(200)
    assert job.requeues == []


def test_a_reboot_after_a_failure_does_not_explain_it(world: World) -> None:
    job = world.running()
    world.run_for(60)
    world.sim.script_ends(job, 256)
    world.sim.nodes["gpu1"].boot_time = int(world.clock.now()) + 20
    world.run_for(90)
    assert job.requeues == []


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"])
def test_what_ended_for_another_reason_is_never_requeued(world: World, state: str) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    job.state, job.end_time = state, int(world.clock.now())
    world.sim._event(job)
    world.run_for(200)
    assert (job.requeues, world.sim.changes) == ([], [])


def test_a_job_that_failed_before_slurm_missed_its_node(world: World) -> None:
    """The other ranks fail at once when a node dies; the job stays COMPLETING until Slurm knows of the node."""
    job = world.running()
    job.state, job.exit_status, job.end_time = "FAILED", 256, int(world.clock.now())
    job.completing_until = world.clock.now() + 200
    world.run_for(180)
    assert job.requeues == []
    world.sim.nodes["gpu2"].boot_time = int(world.clock.now())
    world.run_until(lambda: restarted(job), within_s=60)
    assert (len(job.requeues), job.excluded) == (1, ["gpu2"])


def test_node_failure_is_sped_up_with_the_node_excluded(world: World) -> None:
    job = world.running()
    world.sim.node_dies("gpu2")
    died = world.clock.now()
    world.run_until(lambda: restarted(job))
    assert world.clock.now() - died < 6
    assert (len(job.requeues), job.excluded) == (1, ["gpu2"])
    assert "node is DOWN: Not responding" in world.text(job)


def lose_twice(world: World, job: SimJob) -> None:
    """Two faults of the machine in a row under the job."""
    for _ in range(2):
        world.sim.drain(job.nodes[0])
        world.sim.agent_requeues(job)
        world.run_until(
            lambda: job.holds == 1 or (job.state == "RUNNING" and "DRAIN" not in world.sim.nodes[job.nodes[0]].flags)
        )
        world.run_for(35)


def test_the_limit_of_a_cause_holds_the_job_and_says_why(world: World) -> None:
    world.config = World(world.folder, restart=Restarts(infrastructure=Restart(limit=1))).config
    job = world.running(node_count=1)
    lose_twice(world, job)
    world.run_for(300)
    assert (job.state, job.priority, job.holds, len(job.starts)) == ("PENDING", 0, 1, 2)
    assert job.comment.startswith(
        "mine [ais: held: limit of 1 restarts for this cause (infrastructure) reached; last: gpu2: ais:gpu.lost"
    )


def test_faults_of_the_machine_do_not_use_up_the_jobs_own_budget(world: World) -> None:
    job = world.running(admin_comment="[ais resume=auto max=1]", node_count=1)
    lose_twice(world, job)
    assert (job.state, job.holds, len(job.starts)) == ("RUNNING", 0, 3)
    assert " own=0 " in job.admin_comment


def test_quick_faults_in_a_row_are_backed_off(world: World) -> None:
    """The first restart is at once; then Slurm itself is given the delay, which a dead watchdog does not lose."""
    job = world.running(node_count=1)
    lose_twice(world, job)
    delays = [change.rpartition("StartTime=")[2].split()[0] for change in world.sim.changes if "StartTime=" in change]
    assert delays == ["now", "now+10"]
    assert job.starts[2][0] - job.requeues[1] >= 10


def test_a_restart_without_progress_is_held_in_the_end(world: World) -> None:
    world.config = World(world.folder, no_progress_restarts=2).config
    job = world.running(node_count=1, comment="[ais-run a=0 s=- v=fresh]")
    for attempt, step in ((1, 100), (2, 100), (3, 100)):
        world.sim.drain(job.nodes[0])
        world.sim.agent_requeues(job)
        world.run_until(lambda want=attempt: len(job.starts) == want + 1)
        job.comment = f"[ais-run a={attempt} s={step} v=ok]"
        world.run_for(35)
        for node in world.sim.nodes.values():
            node.flags = []
    world.sim.drain(job.nodes[0])
    world.sim.agent_requeues(job)
    world.run_until(lambda: job.holds == 1)
    assert "held: 2 restarts in a row without a newer checkpoint than step 100; last:" in job.comment


def test_a_hang_uses_the_jobs_own_budget_and_excludes_nobody(world: World) -> None:
    job = world.running(admin_comment="[ais resume=auto max=1]", node_count=1)
    for _ in range(2):
        job.admin_comment = tags.tag_with(job.admin_comment, {"fault": f"job.hang@{job.nodes[0]}@{job.start_time}"})
        world.sim.agent_requeues(job)
        world.run_for(60)
    assert (job.holds, len(job.starts), job.excluded) == (1, 2, [])
    assert "held: restart limit of 1 reached; last: no progress, says the agent of gpu1" in job.comment


def test_a_resume_that_fails_at_once_is_tried_again_and_then_left(world: World) -> None:
    world.config = World(world.folder, restart=Restarts(resume_failed=Restart(limit=2))).config
    job = world.running(node_count=1)
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    for attempt in (1, 2, 3):
        world.run_until(lambda want=attempt: restarted(job, want), within_s=60)
        job.comment = f"[ais-run a={attempt} s=100 v=ok]"
        world.run_for(5)
        world.sim.script_ends(job, 256)
    world.run_for(300)
    assert (job.state, len(job.starts)) == ("FAILED", 4)
    assert "limit of 2 restarts for this cause (resume_failed) reached" in job.comment


def test_a_start_refused_for_another_writer_is_tried_again_later(world: World) -> None:
    job = world.running(node_count=1)
    world.sim.node_dies("gpu1")
    world.run_until(lambda: restarted(job))
    job.comment = "[ais-run a=1 s=100 v=busy]"
    world.sim.script_ends(job, 75 << 8)
    refused = world.clock.now()
    world.run_until(lambda: restarted(job, 2), within_s=100)
    assert world.clock.now() - refused >= 30
    assert " last=requeued " in job.admin_comment


def test_a_second_job_on_a_directory_that_is_in_use_is_its_users(world: World) -> None:
    job = world.running(node_count=1, comment="[ais-run a=0 s=100 v=busy]")
    world.sim.script_ends(job, 75 << 8)
    world.run_for(200)
    assert (job.state, job.requeues) == ("FAILED", [])


def test_a_failure_right_after_the_first_start_is_the_users(world: World) -> None:
    job = world.running(comment="[ais-run a=0 s=100 v=ok]")
    world.sim.script_ends(job, 256)
    world.run_for(100)
    assert (job.state, job.requeues) == ("FAILED", [])


def test_the_wait_for_few_leaf_switches_counts_anew_at_each_restart(world: World) -> None:
    """Slurm counts it from the very first try: what has passed since is added, each time to what was asked at first."""
    job = world.running(node_count=1, switches=(1, 300))
    for restart in (1, 2):
        world.run_for(400, step_s=1.0)
        world.sim.drain(job.nodes[0])
        world.sim.agent_requeues(job)
        world.run_until(lambda want=restart: restarted(job, want))
    asked = [change.rpartition("Switches=1@")[2].split()[0] for change in world.sim.changes if "Switches=" in change]
    waits = [int(text.partition(":")[0]) * 60 + int(text.partition(":")[2]) for text in asked]
    assert [round(wait, -2) for wait in waits] == [700, 1100]


def test_slurms_word_for_a_dead_node_that_is_back_is_enough(world: World) -> None:
    """NODE_FAIL, requeued by us: the restart is sped up though no node shows a fault any more."""
    job = world.running(node_count=1)
    job.state, job.end_time = "NODE_FAIL", int(world.clock.now())
    world.sim._event(job)
    world.run_until(lambda: restarted(job), within_s=20)
    assert len(job.requeues) == 1


def test_what_the_job_asks_for_is_capped(world: World) -> None:
    world.config = World(world.folder, max_restarts_cap=1).config
    job = world.running(admin_comment="[ais resume=auto max=9999]", node_count=1)
    for _ in range(2):
        job.admin_comment = tags.tag_with(job.admin_comment, {"fault": f"job.hang@{job.nodes[0]}@{job.start_time}"})
        world.sim.agent_requeues(job)
        world.run_for(60)
    assert job.holds == 1


def test_a_failure_of_long_ago_is_left_alone(world: World) -> None:
    """Slurm shows it for MinJobAge, which may be days; its owner may have acted on it."""
    world.config = World(world.folder, late_s=20.0).config
    job = world.running(node_count=1)
    world.sim.script_ends(job, 256)
    world.sim.drain("gpu1")
    world.sim.down = True
    world.run_for(30)
    world.sim.down = False
    world.run_for(60)
    assert (job.state, job.requeues) == ("FAILED", [])
    assert "too long ago to act on" in world.text(job)


@pytest.mark.parametrize("restarted_watchdog", [False, True])
def test_a_new_job_with_an_old_id_begins_afresh(world: World, restarted_watchdog: bool) -> None:
    """slurmctld -c or a new StateSaveLocation counts job ids from the first again; the journal stays."""
    world.config = World(world.folder, max_restarts_cap=100).config
    world.start()
    first = world.running(node_count=1)
    for _ in range(2):
        world.sim.drain(first.nodes[0])
        count = len(first.starts)
        world.run_until(lambda: len(first.starts) > count)  # noqa: B023
        world.run_for(40)
    assert world.journal is not None
    assert len(world.journal.past(first.job_id)) == 3
    del world.sim.jobs[first.job_id]
    if not restarted_watchdog:
        world.run_for(40)
    for node in world.sim.nodes.values():
        node.flags, node.reason, node.comment = [], "", ""
    world.start()
    second = world.running(node_count=1)
    assert second.job_id == first.job_id
    world.run_for(40)
    assert len(world.journal.past(second.job_id)) == 1
    assert world.journal.exclusions(second.job_id) == {}
    assert world.kinds(second).count("new_job") == 1
    world.sim.drain("gpu1")
    world.run_until(lambda: restarted(second))
    assert second.comment.startswith("mine [ais: restart 1 away from gpu1")
    world.start()
    world.run_for(40)
    assert world.kinds(second).count("new_job") == 1
    assert [row["restart_cnt"] for row in world.journal.attempts(second.job_id)] == [0, 1]


def test_a_requeue_that_sets_the_submit_time_anew_is_no_new_job(world: World) -> None:
    job = world.running(node_count=1)
    world.sim.drain("gpu1")
    world.run_until(lambda: restarted(job))
    job.submit_time = int(world.clock.now())
    job.start_time += 1
    world.run_for(40)
    world.start()
    world.run_for(40)
    assert "new_job" not in world.kinds(job)


def test_a_node_that_cannot_end_its_processes_is_given_up(world: World) -> None:
    job = world.running(node_count=1)
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    job.completing_until = world.clock.now() + 3600
    world.sim.nodes["gpu1"].flags = ["COMPLETING", "DRAIN"]
    world.run_for(80)
    assert world.sim.nodes["gpu1"].state == "idle"
    world.run_until(lambda: restarted(job), within_s=60)
    assert (world.sim.nodes["gpu1"].state, world.sim.nodes["gpu1"].reason) == ("down", DRAIN)


@pytest.mark.parametrize("how", ["kill wait", "long epilog", "reconfigured", "not told"])
def test_a_node_is_not_given_up_while_slurm_itself_still_ends_its_processes(world: World, how: str) -> None:
    """The setting's 90 s are shorter than this site's own times."""
    if how == "kill wait":
        world.sim.conf["KillWait"] = "300 sec"
    elif how == "long epilog":
        world.sim.conf |= {"Epilog": "/etc/slurm/epilog.sh", "PrologEpilogTimeout": "600"}
    elif how == "not told":
        del world.sim.conf["KillWait"]
    job = world.running(node_count=1)
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    job.completing_until = world.clock.now() + 3600
    world.sim.nodes["gpu1"].flags = ["COMPLETING", "DRAIN"]
    world.run_for(85)
    if how == "reconfigured":
        world.sim.conf["KillWait"] = "300 sec"
    world.run_for(200)
    assert world.sim.nodes["gpu1"].state == "idle"
    world.sim.conf["KillWait"] = "30 sec"
    world.run_until(lambda: restarted(job), within_s=1000)
    assert world.sim.nodes["gpu1"].state == "down"


def test_a_node_where_another_job_runs_is_never_given_up(world: World) -> None:
    job = world.running(node_count=1)
    other = world.sim.submit(node_count=1, admin_comment="")
    other.nodes = ["gpu1"]
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    job.completing_until = world.clock.now() + 3600
    world.sim.nodes["gpu1"].flags = ["COMPLETING", "DRAIN"]
    world.run_for(200)
    assert world.sim.nodes["gpu1"].state == "idle"
    assert "not set DOWN, other jobs run there" in world.text(job)


def test_an_exclusion_of_ours_ends_and_the_users_does_not(world: World) -> None:
    world.config = World(world.folder, exclusion_s=600.0).config
    job = world.running(node_count=1, excluded=["gpu4"])
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    assert sorted(job.excluded) == ["gpu1", "gpu4"]
    world.run_for(700, step_s=5.0)
    world.sim.agent_requeues(job)  # by hand
    world.run_for(60, step_s=1.0)
    assert job.excluded == ["gpu4"]
    assert "may use gpu1 again" in world.text(job)


def test_a_refused_job_whose_event_was_lost_is_found_by_its_nodes_word(world: World) -> None:
    world.sim.spool = None
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2", reason="memory test tomorrow")
    world.sim.nodes["gpu2"].comment = f"rack 4 [ais refused=99@1,{job.job_id}@{int(world.clock.now())}]"
    world.run_until(lambda: restarted(job), within_s=120)
    assert (job.releases, "gpu2" in job.nodes) == (1, False)
    assert world.sim.nodes["gpu2"].reason == "memory test tomorrow"
    assert "gate.refused" in world.text(job)


def test_a_refusal_that_was_not_told_after_a_requeue_by_hand(world: World) -> None:
    """The older attempt was left alone and is still the last that the journal knows."""
    job = world.running()
    world.sim.agent_requeues(job)  # by hand
    world.run_for(90)
    world.sim.spool = None
    world.watchdog = None  # it is down while the job starts and is refused
    world.clock.sleep(60)
    assert job.state == "RUNNING"
    world.sim.prolog_fails(job, "gpu1", reason="memory test tomorrow")
    # and the node's clock is ahead of the controller's
    world.sim.nodes["gpu1"].comment = f"[ais refused={job.job_id}@{int(world.clock.now()) + 90}]"
    world.run_until(lambda: bool(job.releases) and job.state == "RUNNING", within_s=120)
    assert (job.releases, "gpu1" in job.nodes) == (1, False)


def test_a_job_of_another_controllers_watchdog_is_taken_over(world: World) -> None:
    """No journal, no event: the agent's note in the job says why it is in the queue."""
    world.sim.spool = None
    job = world.sim.submit(node_count=1)
    world.clock.sleep(400)
    job.admin_comment = tags.tag_with(job.admin_comment, {"fault": f"gpu.lost@gpu1@{job.start_time}"})
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.clock.sleep(5)
    world.start()
    world.run_until(lambda: restarted(job), within_s=20)
    world.run_for(200)
    assert (len(job.requeues), len(job.starts)) == (1, 2)


def test_a_held_launch_at_the_limit_stays_held_with_a_reason(world: World) -> None:
    world.start()
    job = world.sim.submit(admin_comment="[ais resume=auto max=0]")
    world.sim.prolog_fails(job, "gpu1")
    world.run_for(60)
    assert (job.releases, job.holds, job.priority) == (0, 0, 0)
    assert "[ais: the job asked for no restart (--ais-max-restarts=0)" in job.comment


def test_exclusion_never_makes_a_job_impossible(world: World) -> None:
    job = world.running(node_count=4)
    world.sim.drain("gpu3")
    world.sim.agent_requeues(job)
    world.run_for(30)
    assert job.excluded == []
    assert "not excluded (gpu3): the job needs 4 nodes and 3 would be left" in world.text(job)
    assert job.eligible <= world.clock.now(), "it starts as soon as the node is repaired"


def test_a_node_that_the_job_asked_for_is_not_excluded(world: World) -> None:
    job = world.running(required=["gpu1", "gpu2"])
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_for(30)
    assert job.excluded == []
    assert "asked for it by name" in world.text(job)


def test_names_that_slurm_no_longer_knows_are_dropped(world: World) -> None:
    job = world.running()
    job.excluded = ["gone7"]
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    assert job.excluded == ["gpu2"]


def test_no_requeue_is_honoured(world: World) -> None:
    job = world.running(requeue=False)
    world.sim.drain("gpu1")
    world.run_for(60)
    assert (job.state, world.sim.changes) == ("RUNNING", [])
    world.sim.script_ends(job, 9)
    world.run_for(120)
    assert world.sim.changes == []
    assert "--no-requeue" in world.text(job)


@pytest.mark.parametrize("admin_comment", ["", "[ais resume=none]", "site text", "[ais: resume=auto]"])
def test_jobs_that_did_not_opt_in_are_not_touched(tmp_path_factory: pytest.TempPathFactory, admin_comment: str) -> None:
    world = World(tmp_path_factory.mktemp("w"), spool=False)
    job = world.running(admin_comment=admin_comment)
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_for(60)
    assert world.sim.changes == []
    assert world.kinds(job) == []


def test_a_partition_may_be_managed_as_a_whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World(tmp_path_factory.mktemp("w"), partitions=("gpu",))
    job = world.running(admin_comment="")
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job), within_s=30)
    assert "gpu1" not in job.nodes


def test_a_neighbours_gpu_on_a_shared_node_is_not_this_jobs_fault(world: World) -> None:
    job = world.running(node_count=1, gres="gpu:2(IDX:0-1)")
    mine = world.sim.submit(node_count=1, gres="gpu:2(IDX:2-3)")
    world.sim.drain(job.nodes[0])  # GPU3
    world.watchdog.cycle(everything=True)  # type: ignore[union-attr]
    world.run_for(60)
    assert (job.state, job.requeues) == ("RUNNING", [])
    assert mine.requeues == []


def test_a_refused_job_is_released_though_the_nodes_reason_names_another_gpu(world: World) -> None:
    """Several GPUs of a node are lost; the one reason that it has is of the job that met it first."""
    job = world.running(node_count=1, gres="gpu:1(IDX:0)")
    world.sim.prolog_fails(job, "gpu1")
    world.run_until(lambda: restarted(job), within_s=20)
    assert (job.releases, job.excluded) == (1, ["gpu1"])


def test_a_port_drain_of_the_gate_does_not_push_a_running_job_away(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1", "ais:fabric.port_state mlx5_3/1 DOWN [abc123]")
    world.run_for(120)
    assert (job.state, world.sim.changes) == ("RUNNING", [])


def test_only_the_array_task_that_was_hit(world: World) -> None:
    hit = world.running(node_count=1, array=(70, 0))
    other = world.running(node_count=1, array=(70, 1))
    world.sim.drain(hit.nodes[0])
    world.run_until(lambda: restarted(hit), within_s=60)
    assert other.starts[1:] == []
    assert {change.split()[2] for change in world.sim.changes} == {"70_0", "JobId=70_0"}


def test_a_begin_time_that_somebody_set_is_kept(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_for(2)
    job.eligible = world.clock.now() + 7200
    world.run_for(60)
    assert job.state == "PENDING"
    assert job.excluded == ["gpu1"]
    assert not any("StartTime" in change for change in world.sim.changes)


def test_without_the_epilog_the_poll_finds_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World(tmp_path_factory.mktemp("w"), spool=False)
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    assert job.starts[1][0] - job.requeues[0] < 40


def test_an_attempt_too_short_for_the_poll_is_known_by_its_event(world: World) -> None:
    world.start()
    world.run_for(5)
    job = world.sim.submit()
    world.clock.sleep(1)
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job), within_s=30)
    assert job.excluded == ["gpu2"]


def test_slurmctld_away_loses_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.sim.down = True
    with caplog.at_level(logging.WARNING):
        world.run_for(60)
    assert sum("Slurm cannot be asked" in record.message for record in caplog.records) == 1, "said once"
    assert list(world.spool.glob("*.ev")) == [], "the event is in the journal"
    world.sim.down = False
    world.run_until(lambda: restarted(job), within_s=20)
    assert len(job.requeues) == 1


def test_a_refusal_is_tried_a_few_times_and_then_left_to_people(world: World) -> None:
    job = world.running()
    world.sim.refuse["scontrol update"] = "Access/permission denied"
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_for(119)
    asked = [call for call in world.sim.calls if call.startswith("scontrol update")]
    assert 5 <= len(asked) <= 25, "each try with all fields and with fewer"
    assert "given_up" in world.kinds(job)
    world.run_until(lambda: restarted(job), within_s=60)
    assert job.starts[1][0] - job.requeues[0] > 120, "stock Slurm's delay is the fallback"


def test_an_exclusion_that_is_refused_does_not_cost_the_restart(world: World) -> None:
    job = world.running()
    original = world.sim._update

    def picky(line: str, fields: dict[str, str]) -> None:
        if "ExcNodeList" in fields:
            raise SlurmRefused(f"{line}: Requested node configuration is not available")
        original(line, fields)

    world.sim._update = picky  # type: ignore[method-assign]
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job), within_s=20)
    assert "ExcNodeList could not be set" in world.text(job)


def test_observe_only_changes_nothing_and_says_what_it_would_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    world = World(tmp_path_factory.mktemp("w"), mode="observe")
    job = world.running()
    world.sim.drain("gpu1")
    world.run_for(40)
    world.sim.agent_requeues(job)
    world.run_for(60)
    assert world.sim.changes == []
    assert "observe only: would requeue: gpu1: ais:gpu.lost" in world.text(job)
    assert "observe only: would start: gpu1: ais:gpu.lost" in world.text(job)
    assert world.kinds(job).count("observed") == 2, "each said once"


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0])
def test_a_clock_that_is_set_neither_stops_nor_hurries_it(world: World, jump_s: float) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_for(2.0)
    before = world.clock.monotonic()
    world.clock.set_wall(jump_s)
    world.run_until(lambda: restarted(job), within_s=20)
    assert world.clock.monotonic() - before < 20
    assert len(job.requeues) == 1


def test_the_job_vanishes_in_between(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    world.run_for(0.5)
    del world.sim.jobs[job.job_id]
    world.run_for(60)
    assert world.sim.changes == []
    assert world.watchdog is not None
    assert not world.watchdog.busy


def test_nothing_happens_little_is_asked(world: World) -> None:
    world.running()
    before = len(world.sim.calls)
    world.run_for(600)
    nodes_s = world.config.breaker.look_s  # what nodes report is looked for more often: one request
    assert len(world.sim.calls) - before <= 2 * 600 / 30 + 600 / nodes_s + 2


def test_a_full_disk_stops_every_action_until_it_is_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    job = world.running()
    watchdog = world.watchdog
    assert watchdog is not None
    full = True

    def disk(point: str) -> None:
        if full and point.startswith("before"):
            raise JournalError("journal.db: database or disk is full; check the disk's free space and the file's owner")

    world.journal_hook = disk
    world.sim.drain("gpu1")
    world.sim.agent_requeues(job)
    rounds = 0
    sleep = world.clock.sleep

    def counted(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        watchdog.stopping = rounds > 20
        sleep(seconds)

    world.clock.sleep = counted  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        watchdog.run()
    world.clock.sleep = sleep  # type: ignore[method-assign]
    assert world.sim.changes == []
    assert len(list(world.spool.glob("*.ev"))) == 1, "the event waits on the disk"
    assert sum("nothing is done until it can" in record.message for record in caplog.records) == 1
    full = False
    watchdog.stopping = False
    world.run_until(lambda: restarted(job), within_s=130)
    assert len(job.requeues) == 1


def test_two_jobs_on_one_node_and_many_at_once(world: World) -> None:
    jobs = [world.running(node_count=1) for _ in range(4)]
    for name in ("gpu1", "gpu2"):
        world.sim.drain(name)
    world.run_until(lambda: len(jobs[0].requeues) == len(jobs[1].requeues) == 1, within_s=60)
    world.run_for(30)
    assert [len(job.requeues) for job in jobs] == [1, 1, 0, 0]
    assert all(job.excluded == [job.starts[0][1][0]] for job in jobs[:2])


def test_the_journal_outlives_the_watchdog(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    world.run_for(35)
    reader = Journal(world.folder / "var" / "journal.db", "", read_only=True)
    assert [row["kind"] for row in reader.incidents(job_id=job.job_id)] == [
        "started",
        "ended",
        "judged",
        "start",
        "started",
    ]
    assert [row["state"] for row in reader.attempts(job.job_id)] == ["restarted", "running"]
    assert [(row["kind"], row["outcome"]) for row in reader.actions(job.job_id)] == [("start", "done")]
    assert DRAIN in reader.attempts(job.job_id)[0]["why"]
    assert OPTED_IN[:9] in job.admin_comment


def test_a_failed_job_at_the_limit_is_told_why_it_is_not_requeued(world: World) -> None:
    job = world.running(admin_comment="[ais resume=auto max=0]")
    world.sim.drain("gpu2")
    world.sim.script_ends(job, 256)
    world.run_for(100)
    assert (job.requeues, job.state) == ([], "FAILED")
    assert "[ais: the job asked for no restart (--ais-max-restarts=0)" in job.comment
    assert world.kinds(job).count("annotate") == 1


def test_a_comment_that_is_refused_does_not_cost_the_hold(world: World) -> None:
    job = world.running(admin_comment="[ais resume=auto max=0]")
    world.sim.refuse["scontrol update"] = "Job has already finished"
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: job.holds == 1, within_s=30)
    assert "comment could not be set" in world.text(job)


def test_a_heterogeneous_job_is_requeued_through_its_leader(world: World) -> None:
    world.running(node_count=1, het=100)
    component = world.running(node_count=1, het=100)
    world.sim.drain(component.nodes[0])
    world.run_until(lambda: any("requeue" in change for change in world.sim.changes), within_s=60)
    assert [change for change in world.sim.changes if "requeue" in change.split()] == ["scontrol requeue 100"]


def test_a_users_long_comment_costs_neither_the_restart_nor_the_exclusion(world: World) -> None:
    """Slurm takes 1024 bytes: with ours it would be more, and the whole update would be refused."""
    world.start()
    job = world.sim.submit(comment="x" * 1015)
    world.sim.prolog_fails(job, "gpu2")
    world.run_until(lambda: restarted(job), within_s=20)
    assert (job.comment, job.excluded, job.releases) == ("x" * 1015, ["gpu2"], 1)
    assert "attempt=1" in job.admin_comment
    assert "Comment could not be set" in world.text(job)


def test_an_exclusion_that_makes_the_job_impossible_is_taken_back(world: World) -> None:
    """Only Slurm knows which nodes have the job's features; it holds a job that none can take, for ever."""
    job = world.running(fits=("gpu1", "gpu2"), excluded=["gpu4"])
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: job.reason == "BadConstraints", within_s=20)
    world.run_for(10)
    assert (job.excluded, job.releases) == (["gpu4"], 1)
    assert job.priority > 0
    assert "waits for the repair" in job.comment
    world.sim.nodes["gpu2"].flags = []
    world.run_until(lambda: restarted(job), within_s=20)
    assert sorted(job.nodes) == ["gpu1", "gpu2"]
    assert len(job.requeues) == 1


def test_a_constraint_that_a_user_made_impossible_is_the_users(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    job.priority, job.reason = 0, "BadConstraints"
    world.run_for(60)
    assert (job.releases, job.priority, job.excluded) == (0, 0, [])


def test_the_other_components_of_a_heterogeneous_job_start_too(world: World) -> None:
    """The fault was on a node of the second one; Slurm holds or delays each on its own."""
    leader = world.running(node_count=1, het=100)
    component = world.running(node_count=1, het=100)
    world.sim.drain(component.nodes[0])
    for part in (leader, component):
        world.sim.agent_requeues(part)
    world.run_until(lambda: restarted(leader) and restarted(component), within_s=20)
    assert (len(leader.starts), len(component.starts)) == (2, 2)


def test_a_clock_that_was_set_back_before_the_restart_does_not_hide_the_new_attempt(world: World) -> None:
    job = world.running()
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_for(2.0)
    world.clock.set_wall(-3600.0)
    world.run_until(lambda: restarted(job), within_s=20)
    world.run_for(120)
    assert len(job.requeues) == 1, "the new attempt is not blamed for the old one's node"
    world.sim.drain(job.nodes[0])
    world.run_until(lambda: restarted(job, 2), within_s=60)
    assert len(job.requeues) == 2


def test_the_restart_limit_outlives_the_journal(world: World) -> None:
    world.config = World(world.folder, restart=Restarts(infrastructure=Restart(limit=3))).config
    job = world.running()
    for _ in range(3):
        world.sim.drain(job.nodes[0])
        times = len(job.starts)
        world.run_until(lambda before=times: len(job.starts) == before + 1, within_s=120)  # type: ignore[misc]
        for node in world.sim.nodes.values():
            node.flags, node.reason = [], ""
        job.excluded = []
        world.run_for(1)
    assert world.journal is not None
    world.journal.close()
    world.journal = None
    for path in (world.folder / "var").iterdir():
        path.unlink()
    world.start()
    world.run_for(31)
    world.sim.drain(job.nodes[0])
    world.sim.agent_requeues(job)
    world.run_until(lambda: job.holds == 1, within_s=120)
    assert "limit of 3 restarts for this cause (infrastructure) reached" in job.comment


def test_a_spool_that_events_cannot_be_removed_from_does_not_stop_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    job = world.running()
    monkeypatch.setattr(Path, "unlink", denied)
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job), within_s=20)
    world.run_for(30)
    assert world.kinds(job).count("ended") == 1
    assert sum("cannot be removed" in record.message for record in caplog.records) == 1


def test_a_launch_failure_whose_event_was_lost_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A full spool: the attempt's nodes are not known, so nothing proves that the hold is ours to take off."""
    world = World(tmp_path_factory.mktemp("w"), spool=False)
    world.start()
    job = world.sim.submit()
    world.sim.prolog_fails(job, "gpu2")
    world.run_for(100)
    assert (job.releases, world.kinds(job)) == (0, ["left"])
    assert f"scontrol release {job.job_id}" in world.text(job)


def test_a_defect_that_one_job_brings_out_does_not_keep_the_others_from_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, job = world.running(), world.running()
    honest = Watchdog._step

    def step(self: Watchdog, seen: Job, nodes: Mapping[str, Node]) -> None:
        if seen.job_id == odd.job_id:
            raise ValueError("never thought of")
        honest(self, seen, nodes)

    monkeypatch.setattr(Watchdog, "_step", step)
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    assert odd.requeues == []
    assert "never thought of" in caplog.text
    assert "left alone until the next look" in caplog.text


def test_a_defect_beside_the_recovery_does_not_end_the_watchdog(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise HostlistError("never thought of")

    job = world.running()
    monkeypatch.setattr(Places, "poll", broken)
    monkeypatch.setattr(BlackHoles, "look", broken)
    world.sim.drain("gpu2")
    world.sim.agent_requeues(job)
    world.run_until(lambda: restarted(job))
    world.run_for(40)
    assert "places: unexpected" in caplog.text


def test_a_job_that_ends_in_front_is_told_once(world: World) -> None:
    job = world.running(node_count=4)
    tag = f"[ais resume=auto max=3 nice=0:-5@{int(world.clock.now()) + 300}]"
    job.state, job.reservation, job.nice, job.admin_comment = "CANCELLED", f"ais-{job.job_id}", -5, tag
    world.run_for(300)
    assert world.text(job).count("no longer in front: the job has ended") == 1


def test_many_jobs_that_come_back_at_once_share_the_looks_at_the_whole_cluster(world: World) -> None:
    for i in range(5, 45):
        world.sim.nodes[f"gpu{i}"] = SimNode(f"gpu{i}")
    jobs = [world.sim.submit(node_count=1) for _ in range(20)]
    world.run_for(35)
    before = len(world.sim.calls)
    for job in jobs:
        world.sim.drain(job.nodes[0])
        world.sim.agent_requeues(job)
    world.run_until(lambda: all(map(restarted, jobs)))
    assert sum(call.startswith("sinfo") for call in world.sim.calls[before:]) <= 8
