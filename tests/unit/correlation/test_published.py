from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aistation_slurm.correlation.published import comment_with, moment_s, render, shown
from aistation_slurm.placement.grade import comment_with_grade, degraded
from aistation_slurm.slurm import tags

ONE = render([("fabric.port_state", "mlx5_3/1", "port state 1: DOWN, expected 4: ACTIVE")], 1796091300)


def test_what_is_published_is_what_is_read() -> None:
    assert ONE == "[ais-found 1796091300 fabric.port_state@mlx5_3/1=port state 1: DOWN, expected 4: ACTIVE]"
    (found,) = shown(f"rack 12 {ONE} more")
    assert (found.check, found.subject, found.since) == ("fabric.port_state", "mlx5_3/1", 1796091300)
    assert found.evidence == "port state 1: DOWN, expected 4: ACTIVE"


def test_the_other_segments_and_the_sites_words_stay() -> None:
    comment = comment_with_grade("rack 12 [ais refused=7@1000]", "fabric.port_state@mlx5_3/1")
    both = comment_with(comment, ONE)
    assert (degraded(both), tags.refusals_of(both)) == ("fabric.port_state@mlx5_3/1", ((7, 1000),))
    assert comment_with(both, "") == comment
    assert comment_with(comment_with(both, ONE), ONE) == both


@given(st.text(max_size=300))
def test_any_comment_can_be_read(text: str) -> None:
    shown(text)
    assert comment_with(comment_with(text, ONE), "") == comment_with(text, "")


@given(st.lists(st.tuples(st.text(min_size=1, max_size=80), st.text(max_size=80), st.text(max_size=200)), max_size=9))
def test_whatever_a_finding_says_it_is_one_segment_of_bounded_length(found: list[tuple[str, str, str]]) -> None:
    segment = render(found, 1796091300)
    assert len(segment) < 1100
    assert comment_with(f"a {segment} b", "") == ("a b" if segment else "a  b")
    assert len(shown(segment)) <= 4


def test_moments_are_spread_evenly_and_each_node_keeps_its_own() -> None:
    moments = [moment_s(f"gpu{i}", 5.0) for i in range(1000)]
    assert moments == [moment_s(f"gpu{i}", 5.0) for i in range(1000)]
    a_second = [sum(1 for m in moments if s <= m < s + 1) for s in range(5)]
    assert max(a_second) < 260, a_second
