from __future__ import annotations

from typing import Optional

from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.config import Breaker
from aistation_slurm.correlation.decide import Decision, Found, NodeView, Settle, decide, limit_of

NOW = 100_000.0
SETTLE_S = 10.0
SETTLE = Settle(SETTLE_S, SETTLE_S)
PORT, MOUNT = "fabric.port_state", "host.mounts"


def sick(
    index: int, leaf: str = "", since: float = NOW - 60, check: str = PORT, subject: str = "", partition: str = "gpu"
) -> NodeView:
    subject = subject or (f"mlx5_{index % 8}/1" if check == PORT else "/home")
    return NodeView(f"gpu{index}", (partition,), leaf, (Found(check, subject, "", since),))


def well(index: int, leaf: str = "", drained_at: Optional[float] = None, partition: str = "gpu") -> NodeView:
    return NodeView(f"gpu{index}", (partition,), leaf, (), drained_at is not None, drained_at)


def drained(decision: Decision) -> set[str]:
    return {drain.node for drain in decision.drains}


def leaf_of(index: int) -> str:
    return f"leaf{index // 8}"


def cluster(*bad: NodeView, size: int = 64) -> list[NodeView]:
    names = {node.name for node in bad}
    return [*bad, *(well(i, leaf_of(i)) for i in range(size) if f"gpu{i}" not in names)]


def test_a_node_that_is_alone_is_drained_for_its_oldest_finding() -> None:
    node = sick(3, "leaf0")._replace(
        found=(Found("fabric.rate", "mlx5_1/1", "", NOW - 20), Found(PORT, "mlx5_3/1", "", NOW - 30))
    )
    decision = decide(cluster(node), Breaker(), SETTLE, NOW)
    assert [(d.node, d.found.check) for d in decision.drains] == [("gpu3", PORT)]
    assert (decision.causes, decision.open) == ((), ())


def test_it_first_waits_for_others() -> None:
    decision = decide(cluster(sick(3, "leaf0", NOW - SETTLE_S + 1)), Breaker(), SETTLE, NOW)
    assert decision.drains == ()
    assert "others may have it too" in decision.waiting["gpu3"]


def test_a_whole_leaf_is_one_cause_and_is_named() -> None:
    decision = decide(cluster(*(sick(i, "leaf1") for i in range(8, 16))), Breaker(), SETTLE, NOW)
    assert decision.drains == ()
    assert [(c.where, len(c.nodes)) for c in decision.causes] == [("leaf switch leaf1", 8)]


def test_a_leaf_of_two_nodes_is_down_when_both_are() -> None:
    nodes = [sick(0, "a", subject="x/1"), sick(1, "a", subject="y/1"), well(2, "b"), well(3, "b")]
    decision = decide(nodes, Breaker(), SETTLE, NOW)
    assert (drained(decision), [c.where for c in decision.causes]) == (set(), ["leaf switch a"])


def test_nodes_of_different_leaves_are_drained_each_for_itself() -> None:
    decision = decide(cluster(sick(0, "leaf0"), sick(9, "leaf1")), Breaker(), SETTLE, NOW)
    assert drained(decision) == {"gpu0", "gpu9"}


def test_one_rail_over_many_leaves_is_one_cause() -> None:
    bad = [sick(i * 8, leaf_of(i * 8), subject="mlx5_3/1") for i in range(8)]
    decision = decide(cluster(*bad), Breaker(), SETTLE, NOW)
    assert (drained(decision), [c.where for c in decision.causes]) == (set(), ["rail mlx5_3/1"])


def test_a_mount_that_many_miss_is_the_servers() -> None:
    decision = decide(cluster(*(sick(i * 9, check=MOUNT) for i in range(4))), Breaker(), SETTLE, NOW)
    assert (drained(decision), [c.where for c in decision.causes]) == (set(), ["host.mounts /home"])


def test_a_mount_that_one_misses_is_its_own() -> None:
    assert drained(decide(cluster(sick(5, check=MOUNT)), Breaker(), SETTLE, NOW)) == {"gpu5"}


def test_what_began_at_other_times_does_not_belong_together() -> None:
    bad = [sick(i, "leaf0", NOW - 60 - i * 1000) for i in range(4)]
    assert drained(decide(cluster(*bad), Breaker(), SETTLE, NOW)) == {n.name for n in bad}


def test_one_that_was_drained_before_the_others_came_counts_among_them() -> None:
    first = sick(8, "leaf1")._replace(drained=True, drained_at=NOW - 30)
    decision = decide(cluster(first, sick(9, "leaf1"), sick(10, "leaf1")), Breaker(), SETTLE, NOW)
    assert drained(decision) == set()
    assert decision.causes[0].nodes == ("gpu10", "gpu8", "gpu9")


def test_a_person_who_gave_the_node_back_is_not_argued_with() -> None:
    node = sick(3, "leaf0")
    known = node._replace(found=tuple(f._replace(dealt=True) for f in node.found))
    assert drained(decide(cluster(known), Breaker(), SETTLE, NOW)) == set()


def test_a_node_that_does_not_answer_is_slurms_to_judge() -> None:
    assert drained(decide(cluster(sick(3, "leaf0")._replace(candidate=False)), Breaker(), SETTLE, NOW)) == set()


def test_a_booting_leaf_does_not_keep_nodes_from_draining_themselves_for_a_lost_gpu() -> None:
    decision = decide(cluster(*(sick(i, "leaf1") for i in range(8, 16))), Breaker(), SETTLE, NOW)
    assert [(o.would, o.limit, o.everything) for o in decision.open] == [(8, 6, False)]


def test_too_many_drains_of_any_kind_open_the_breaker_for_everything() -> None:
    nodes = [well(i, leaf_of(i), NOW - 5 if i < 7 else None) for i in range(64)]
    decision = decide(nodes, Breaker(), SETTLE, NOW)
    assert [(o.drained, o.limit, o.everything) for o in decision.open] == [(7, 6, True)]
    later = decide(nodes, Breaker(), SETTLE, NOW + 600)
    assert later.open == ()


def test_reports_that_still_wait_for_others_do_not_open_the_breaker() -> None:
    fresh = [sick(i * 8, leaf_of(i * 8), NOW - 1) for i in range(2)]
    decision = decide(cluster(*fresh, size=16), Breaker(least=1), SETTLE, NOW)
    assert (decision.open, decision.drains) == ((), ())


def test_another_partition_goes_on() -> None:
    full = [well(i, "", NOW - 5) for i in range(6)]
    lone = sick(20, "leafx", partition="other")
    decision = decide([*full, lone, well(21, "leafx", partition="other")], Breaker(), SETTLE, NOW)
    assert (drained(decision), [o.partition for o in decision.open]) == ({"gpu20"}, ["gpu"])


def test_at_a_limited_rate() -> None:
    bad = [sick(i * 8, leaf_of(i * 8), NOW - 60 - 1000 * i) for i in range(8)]
    options = Breaker(share_percent=50.0)
    first = decide(cluster(*bad), options, SETTLE, NOW)
    assert drained(first) == {"gpu56", "gpu48", "gpu40", "gpu32"}  # those known longest
    assert drained(decide(cluster(*bad), options, SETTLE, NOW, drained_last_min=3)) == {"gpu56"}


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[float, int, str, float]], Breaker]:
    """A cluster, events (seconds after the last, node, kind, how long known before) and settings."""
    size = draw(st.integers(1, 60))
    events = draw(
        st.lists(
            st.tuples(
                st.floats(0, 400),
                st.integers(0, size - 1),
                st.sampled_from(["port", "mount", "heal", "resume", "look", "look"]),
                st.floats(0, 900),
            ),
            max_size=60,
        )
    )
    options = Breaker(
        share_percent=draw(st.sampled_from([0.0, 5.0, 10.0, 30.0])),
        least=draw(st.integers(1, 5)),
        together=draw(st.integers(1, 6)),
        together_s=draw(st.sampled_from([1.0, 300.0])),
        drains_per_min=draw(st.integers(1, 10)),
    )
    return size, events, options


@settings(max_examples=300, deadline=None)
@given(histories())
def test_never_more_than_the_share_in_the_window_whatever_the_order(
    history: tuple[int, list[tuple[float, int, str, float]], Breaker],
) -> None:
    """Drains are carried out as decided; nodes fall sick, heal and are given back in any order in between."""
    size, events, options = history
    nodes = [
        NodeView(f"gpu{i}", ("all", "odd") if i % 2 else ("all",), f"leaf{i // 4}" if i % 5 else "")
        for i in range(size)
    ]
    now = NOW
    for wait_s, index, kind, known_s in events:
        now += wait_s
        node = nodes[index]
        if kind == "port":
            node = node._replace(found=(Found(PORT, f"mlx5_{index % 3}/1", "", now - known_s),))
        elif kind == "mount":
            node = node._replace(found=(Found(MOUNT, "/home", "", now - known_s),))
        elif kind == "heal":
            node = node._replace(found=())
        elif kind == "resume":
            node = node._replace(drained=False, drained_at=None)
        nodes[index] = node
        if kind != "look":
            continue
        decision = decide(nodes, options, SETTLE, now)
        assert decision == decide(nodes[::-1], options, SETTLE, now)
        assert len(decision.drains) <= options.drains_per_min
        shared = {name for cause in decision.causes for name in cause.nodes}
        for drain in decision.drains:
            at = next(i for i, n in enumerate(nodes) if n.name == drain.node)
            assert not nodes[at].drained
            assert drain.node not in shared
            nodes[at] = nodes[at]._replace(drained=True, drained_at=now)
        for partition in ("all", "odd"):
            own = [n for n in nodes if partition in n.partitions]
            recent = [n for n in own if n.drained_at is not None and n.drained_at > now - options.window_s]
            assert len(recent) <= limit_of(len(own), options)
