"""From Slurm's records to the table in force: looks that follow one another, exclusions that bar no job, the thread."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.cli import placement as cli
from aistation_slurm.config import Config, Placement
from aistation_slurm.errors import SlurmRefused, SlurmUnavailable, TopologyError
from aistation_slurm.placement import decision, table_file
from aistation_slurm.placement.publisher import Publisher
from aistation_slurm.placement.refresher import Offer, Refresher
from aistation_slurm.placement.table import TableError
from aistation_slurm.placement.view import View, partition_rows, queue
from aistation_slurm.slurm.client import Job, Node
from aistation_slurm.topology.model import Switch, Topology, resolve_levels

NOW = 1_800_000_000
DEGRADED = "[ais-fabric degraded fabric.errors@mlx5_0/1]"
NAMES = [f"n{number}" for number in range(1, 13)]


def tree(*leaves: int) -> Topology:
    """Leaves of so many nodes each, below one spine."""
    names = iter(NAMES)
    found = [Switch(f"leaf{i}", tuple(next(names) for _ in range(size))) for i, size in enumerate(leaves, start=1)]
    return Topology("tree", resolve_levels([*found, Switch("spine", (), tuple(s.name for s in found))]))


TREE = tree(4, 4, 4)


def node(name: str, state: str = "IDLE", comment: str = "", partitions: str = "gpu", gres: str = "gpu:8") -> Node:
    return Node(name, state, partitions=tuple(partitions.split()), comment=comment, gres=gres)


def idle(**changed: Node) -> list[Node]:
    return [changed.get(name, node(name)) for name in NAMES]


def running(job_id: int, names: str, end: Optional[int]) -> Job:
    limit = 3600 if end is not None else None
    return Job(job_id, "RUNNING", partition="gpu", nodes=tuple(names.split()), end_time=end, time_limit_s=limit)


class Slurm:
    """A client that remembers the updates of jobs."""

    def __init__(self, jobs: Sequence[Job] = (), nodes: Sequence[Node] = ()) -> None:
        self.all, self.there = {job.job_id: job for job in jobs}, list(nodes)
        self.updates: list[tuple[int, dict[str, str]]] = []
        self.refuses = False

    def jobs(self) -> list[Job]:
        return list(self.all.values())

    def job(self, job_id: int) -> Optional[Job]:
        return self.all.get(job_id)

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        return [one for one in self.there if not names or one.name in names]

    def update_job(self, job: Job, **fields: str) -> None:
        if self.refuses:
            raise SlurmRefused("Invalid node name specified")
        self.updates.append((job.job_id, fields))

    def update_node(self, name: str, **fields: str) -> None:
        self.there = [replace(one, comment=fields["Comment"]) if one.name == name else one for one in self.there]


class World:
    def __init__(self, folder: Path, topology: Topology = TREE, **keys: Any) -> None:
        folder.mkdir(mode=0o755, exist_ok=True)
        self.config = Config(placement=Placement(table=str(folder / "decisions"), **keys))
        self.now, self.asked, self.topology = float(NOW), 0, topology
        self.publisher = Publisher(self.config, self.ask, lambda: 300, lambda: self.now)

    def ask(self) -> Topology:
        self.asked += 1
        return self.topology


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "var")


# ---- looks


states = st.sampled_from(["IDLE", "ALLOCATED", "DOWN", "MIXED"])
comments = st.sampled_from(["", DEGRADED])
nodes_lists = st.lists(st.tuples(states, comments), min_size=12, max_size=12).map(
    lambda rows: [node(name, state, comment) for name, (state, comment) in zip(NAMES, rows)]
)
job_lists = st.lists(
    st.builds(
        running,
        st.integers(1, 5),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(" ".join),
        st.one_of(st.none(), st.integers(NOW, NOW + 9999)),
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(nodes_lists, job_lists), min_size=2, max_size=4))
def test_a_look_that_follows_another_sees_what_a_first_one_sees(looks: list[tuple[list[Node], list[Job]]]) -> None:
    view = View()
    for nodes, jobs in looks:
        view.update(TREE, nodes, jobs)
        fresh = View()
        fresh.update(TREE, nodes, jobs)
        assert view.occupancy.partitions == fresh.occupancy.partitions
        assert view.degraded_nodes == fresh.degraded_nodes


def test_a_look_without_news_is_told_apart() -> None:
    view, nodes, jobs = View(), idle(), [running(1, "n1 n2", NOW + 60)]
    assert view.update(TREE, nodes, jobs)
    assert not view.update(TREE, list(nodes), list(jobs))
    assert view.update(TREE, idle(n3=node("n3", "DOWN")), jobs)


def test_nodes_that_come_and_go_are_seen() -> None:
    view = View()
    view.update(TREE, idle(n1=node("n1", comment=DEGRADED)), [])
    assert view.degraded_nodes == {"n1"}
    view.update(TREE, idle()[1:], [])
    assert view.degraded_nodes == frozenset()
    assert len(view.partitions["gpu"].nodes) == 11


def test_the_queue_is_what_may_start() -> None:
    jobs = [
        Job(1, "PENDING", partition="gpu", min_nodes=4, priority=5),
        Job(2, "PENDING", partition="gpu,cpu", min_nodes=2, priority=9),
        Job(3, "PENDING", partition="gpu", priority=0, reason="JobHeldUser"),
        Job(4, "PENDING", partition="gpu", priority=9, reason="Dependency"),
        running(5, "n1", NOW),
    ]
    assert [(one.job_id, one.partition, one.nodes, one.order) for one in queue(jobs)] == [
        (2, "gpu", 2, 0),
        (1, "gpu", 4, 1),
    ]


# ---- rows


def rows_of(nodes: Sequence[Node], *rows: decision.Row, percent: float = 60.0) -> Any:
    view = View()
    view.update(TREE, nodes, [])
    partitions, said = partition_rows(view, rows, percent)
    return {partition.name: partition for partition in partitions}, said


def test_degraded_nodes_are_avoided_as_far_as_others_are_left() -> None:
    nodes = idle(n2=node("n2", comment=DEGRADED), n10=node("n10", "ALLOCATED", comment=DEGRADED))
    partitions, said = rows_of(nodes)
    assert (partitions["gpu"].avoid, partitions["gpu"].clean, partitions["gpu"].gpus) == (("n2", "n10"), 10, 8)
    assert said == []


def test_kinds_of_nodes_are_counted_apart() -> None:
    """A job may want the kind of which most are degraded: exclusions must not make it impossible."""
    nodes = idle(**{f"n{i}": node(f"n{i}", gres="gpu:a100:4") for i in (1, 2, 3)})
    nodes[0] = replace(nodes[0], comment=DEGRADED)
    partitions, _ = rows_of(nodes)
    assert (partitions["gpu"].avoid, partitions["gpu"].clean, partitions["gpu"].gpus) == (("n1",), 2, 0)


def test_where_most_are_degraded_none_is_avoided() -> None:
    nodes = [node(name, comment=DEGRADED if i < 4 else "") for i, name in enumerate(NAMES)]
    partitions, said = rows_of(nodes, percent=25.0)
    assert (partitions["gpu"].avoid, partitions["gpu"].clean) == ((), 12)
    assert "4 of 12 nodes are degraded" in said[0]


def test_an_exclusion_that_some_size_could_not_bear_is_left_out() -> None:
    kept = tuple(NAMES[:8])
    partitions, _ = rows_of(
        idle(), decision.Row("gpu", 2, 4, 4, 0, 60, kept), decision.Row("gpu", 5, 8, 4, 0, 60, kept)
    )
    assert [(row.first, row.last, len(row.excluded)) for row in partitions["gpu"].rows] == [(2, 4, 8), (5, 8, 0)]


def test_rows_that_say_the_same_are_one() -> None:
    partitions, _ = rows_of(idle(), decision.Row("gpu", 2, 4, 4, 0, 60), decision.Row("gpu", 5, 8, 4, 0, 60))
    assert [(row.first, row.last) for row in partitions["gpu"].rows] == [(2, 8)]


# ---- publishing


def test_the_table_is_written_when_something_changes_and_renewed_in_time(world: World) -> None:
    jobs = [running(1, "n1", None)]
    nodes = idle()
    assert world.publisher.write(world.publisher.look(nodes, jobs))
    assert not world.publisher.write(world.publisher.look(nodes, jobs))
    assert world.publisher.write(world.publisher.look(idle(n3=node("n3", comment=DEGRADED)), jobs))
    found = table_file.read(world.publisher.path)
    assert found is not None
    assert found.partitions[0].avoid == ("n3",)
    world.now += world.config.placement.ttl_s / 2
    assert world.publisher.write(world.publisher.look(idle(n3=node("n3", comment=DEGRADED)), jobs))
    world.publisher.path.unlink()
    assert world.publisher.write(world.publisher.look(idle(n3=node("n3", comment=DEGRADED)), jobs))
    assert world.asked <= 2


@pytest.mark.parametrize(
    ("trouble", "asked"),
    [(TopologyError("no topology in it"), 1), (SlurmUnavailable("no answer"), 2)],
    ids=["none", "silent"],
)
def test_without_a_topology_degraded_nodes_are_avoided_still(tmp_path: Path, trouble: Exception, asked: int) -> None:
    world = World(tmp_path / "var")

    def away() -> Topology:
        world.asked += 1
        raise trouble

    publisher = Publisher(world.config, away, lambda: 300, lambda: world.now)
    made = publisher.look(idle(n3=node("n3", comment=DEGRADED)), [])
    assert made.said == (f"no switch limits without a topology: {trouble}",)
    assert (made.partitions[0].avoid, made.partitions[0].rows) == (("n3",), ())
    publisher.look(idle(), [])
    assert world.asked == asked
    world.now += 301
    publisher.look(idle(), [])
    assert world.asked == asked + 1


def test_a_changed_file_of_slurm_means_another_look_at_the_topology(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("", encoding="utf-8")
    world = World(tmp_path / "var")
    world.config = Config(placement=world.config.placement, slurm=replace_conf(str(conf)))
    publisher = Publisher(world.config, world.ask, lambda: 300, lambda: world.now)
    publisher.look(idle(), [])
    (tmp_path / "topology.conf").write_text("SwitchName=a\n", encoding="utf-8")
    world.topology = tree(6, 6)
    made = publisher.look(idle(), [])
    assert world.asked == 2
    row = made.partitions[0].row(6)
    assert row is not None
    world.topology = tree(3, 3, 3, 3)  # slurmctld is told later
    world.now += 60
    assert publisher.look(idle(), []).partitions[0].row(6) != row
    world.now += 601
    publisher.look(idle(), [])
    asked = world.asked
    world.now += 60
    publisher.look(idle(), [])
    assert world.asked == asked


def replace_conf(path: str) -> Any:
    from aistation_slurm.config import Slurm as SlurmSettings

    return SlurmSettings(conf=path)


# ---- the watchdog's thread

WAITING = Job(
    7, "PENDING", partition="gpu", min_nodes=4, priority=9, admin_comment="[ais-place n=4 x=-]", submit_time=NOW - 900
)


def test_an_offer_is_worked_off_beside_the_watchdog(world: World) -> None:
    slurm = Slurm([WAITING])
    refresher = Refresher(world.config, slurm, world.publisher)  # type: ignore[arg-type]
    refresher.offer([WAITING], idle(n3=node("n3", comment=DEGRADED)), {})
    assert refresher.wait(30)
    assert slurm.updates == [(7, {"ExcNodeList": "n3", "AdminComment": "[ais-place n=4 x=n3]"})]
    assert table_file.intact(world.publisher.path)


def test_nodes_are_asked_for_where_the_watchdog_did_not(world: World) -> None:
    slurm = Slurm([WAITING], idle(n3=node("n3", comment=DEGRADED)))
    Refresher(world.config, slurm, world.publisher).take(Offer([WAITING], None, {}))  # type: ignore[arg-type]
    assert [job for job, _ in slurm.updates] == [7]


def test_a_job_that_changed_meanwhile_is_looked_at_again(world: World) -> None:
    slurm = Slurm([replace(WAITING, state="RUNNING"), replace(WAITING, job_id=9, excluded_nodes=("n9",))])
    offer = Offer(
        [WAITING, replace(WAITING, job_id=8), replace(WAITING, job_id=9)], idle(n3=node("n3", comment=DEGRADED)), {}
    )
    Refresher(world.config, slurm, world.publisher).take(offer)  # type: ignore[arg-type]
    assert slurm.updates == [(9, {"ExcNodeList": "n[3,9]", "AdminComment": "[ais-place n=4 x=n3]"})]


def test_corrections_come_at_most_ten_a_second_and_end_with_news(world: World) -> None:
    jobs = [replace(WAITING, job_id=number) for number in range(1, 13)]
    slurm = Slurm(jobs)
    refresher = Refresher(world.config, slurm, world.publisher)  # type: ignore[arg-type]
    began = time.monotonic()
    refresher.take(Offer(jobs, idle(n3=node("n3", comment=DEGRADED)), {}))
    assert len(slurm.updates) == 12
    assert time.monotonic() - began >= 1.0
    slurm.updates.clear()
    refresher._news.set()
    refresher.take(Offer(jobs, idle(n3=node("n3", comment=DEGRADED)), {}))
    assert len(slurm.updates) == 1


def test_a_refusal_is_not_repeated_at_every_look(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm([WAITING])
    slurm.refuses = True
    refresher = Refresher(world.config, slurm, world.publisher)  # type: ignore[arg-type]
    for _ in range(3):
        refresher.take(Offer([WAITING], idle(n3=node("n3", comment=DEGRADED)), {}))
    assert caplog.text.count("could not be corrected") == 1


def test_an_array_of_which_some_tasks_run_is_corrected_in_part(world: World, caplog: pytest.LogCaptureFixture) -> None:
    array = replace(WAITING, array_job_id=7)

    class Array(Slurm):
        def update_job(self, job: Job, **fields: str) -> None:
            self.all[7] = replace(array, excluded_nodes=("n3",), admin_comment=fields["AdminComment"])
            raise SlurmRefused("7_1: Job is no longer pending execution 7_2-3: No error")

    Refresher(world.config, Array([array]), world.publisher).take(
        Offer([array], idle(n3=node("n3", comment=DEGRADED)), {})
    )  # type: ignore[arg-type]
    assert "could not be corrected" not in caplog.text


def test_trouble_neither_ends_the_thread_nor_reaches_the_watchdog(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = Slurm([WAITING])
    refresher = Refresher(world.config, slurm, world.publisher)  # type: ignore[arg-type]
    world.publisher.path.parent.chmod(0o777)
    refresher.offer([WAITING], idle(), {})
    assert refresher.wait(30)
    refresher.offer(None, [None], {})  # type: ignore[arg-type, list-item]
    assert refresher.wait(30)
    world.publisher.path.parent.chmod(0o755)
    refresher.offer([WAITING], idle(), {})
    assert refresher.wait(30)
    assert "others may write there" in caplog.text
    assert "unexpected; left out" in caplog.text
    assert table_file.intact(world.publisher.path)


def test_observe_only_publishes_and_corrects_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "var", mode="observe")
    slurm = Slurm([WAITING])
    refresher = Refresher(world.config, slurm, world.publisher)  # type: ignore[arg-type]
    refresher.offer([WAITING], idle(n3=node("n3", comment=DEGRADED)), {})
    assert refresher.wait(30)
    assert slurm.updates == []
    assert not world.publisher.path.exists()


# ---- the command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, world: World) -> Any:
    slurm = Slurm([WAITING], idle(n3=node("n3", comment=DEGRADED)))
    monkeypatch.setattr(cli, "load", lambda _: world.config)
    monkeypatch.setattr(cli, "connect", lambda _: slurm)
    monkeypatch.setattr(cli, "Publisher", lambda _: world.publisher)

    def run(*args: str) -> Any:
        result = CliRunner().invoke(cli.command, list(args), catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    run.slurm = slurm  # type: ignore[attr-defined]
    return run


def test_publish_shows_first_and_writes_then(command: Any, world: World) -> None:
    shown = json.loads(command("publish", "--dry-run", "--json"))
    assert (shown["written"], world.publisher.path.exists()) == (False, False)
    assert shown["partitions"][0]["avoid"] == ["n3"]
    assert "would write" in command("publish", "--dry-run")
    out = command("publish")
    assert "n3 (degraded fabric)" in out
    assert f"wrote {world.publisher.path}" in out
    assert table_file.intact(world.publisher.path)


def test_publish_in_observe_mode_writes_nothing(command: Any, world: World) -> None:
    world.config = Config(mode="observe", placement=world.config.placement)
    assert json.loads(command("publish", "--json"))["written"] is False
    assert not world.publisher.path.exists()


def test_a_table_that_cannot_be_written_is_an_error(command: Any, world: World) -> None:
    world.publisher.path.parent.chmod(0o777)
    with pytest.raises(TableError, match="others may write"):
        command("publish")


def test_nodes_are_graded_by_hand(command: Any) -> None:
    assert "graded n1: degraded" in command("grade", "n[1-2]", "--degraded", "cable on order")
    assert "n1: degraded: admin: cable on order" in command("grade", "n1")
    assert "would grade n1: well" in command("grade", "n1", "--well", "--dry-run")
    assert "graded n1: well" in command("grade", "n[1,4]", "--well")
    assert command("grade", "n1") == "n1: well\n"
    assert command.slurm.nodes(["n2"])[0].comment == "[ais-fabric degraded admin: cable on order]"


@pytest.mark.parametrize(
    ("keys", "cut_s", "longest"), [({}, 300, 300), ({}, 86400, 86400), ({"wait_max_s": 120.0}, 86400, 120)]
)
def test_no_wait_is_longer_than_slurm_or_the_site_grants(
    tmp_path: Path, keys: dict[str, Any], cut_s: int, longest: int
) -> None:
    world = World(tmp_path / "var", **keys)
    publisher = Publisher(world.config, world.ask, lambda: cut_s, lambda: world.now)
    made = publisher.look(
        [replace(one, state="ALLOCATED") for one in idle()], [running(1, " ".join(NAMES), NOW + 7200)]
    )
    assert max(row.wait_s for row in made.partitions[0].rows) <= longest
    assert any("max_switch_wait" in text for text in made.said) == (cut_s == 300)
