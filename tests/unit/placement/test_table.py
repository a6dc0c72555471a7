"""The decision table: what is written is what is read, and what aistation.lua would refuse is never written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aistation_slurm.placement.table import (
    BYTES_MAX,
    ROWS_MAX,
    PartitionRow,
    Row,
    Table,
    TableError,
    body,
    coarser,
    compact,
    parse,
    render,
)
from aistation_slurm.placement.table_file import intact, read, write

limits = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 60, 600])), min_size=1, max_size=80).map(
    lambda pairs: [(nodes, switches, wait) for nodes, (switches, wait) in enumerate(pairs, start=2)]
)


@given(limits, st.integers(1, 20))
def test_rows_lose_nothing(wanted: list[tuple[int, int, int]], per: int) -> None:
    partition = PartitionRow("gpu", 100, 100, rows=compact(wanted, per))
    for nodes, switches, wait_s in wanted:
        row = partition.row(nodes)
        assert row is not None
        assert (row.switches(nodes), row.wait_s) == (switches, wait_s)
    assert partition.row(1) is None
    assert partition.row(len(wanted) + 2) is None


def test_a_large_cluster_takes_few_rows() -> None:
    wanted = [(nodes, -(-nodes // 16), 600 if nodes < 4096 else 1200) for nodes in range(2, 16_385)]
    assert compact(wanted, 16) == (Row(2, 4095, 16, 0, 600), Row(4096, 16_384, 16, 0, 1200))


@given(limits, st.integers(1, 20), st.integers(1, 10))
def test_fewer_rows_only_loosen(wanted: list[tuple[int, int, int]], per: int, most: int) -> None:
    rows = coarser(compact(wanted, per), most)
    partition = PartitionRow("gpu", 100, 100, rows=rows)
    assert len(rows) <= most
    for nodes, switches, wait_s in wanted:
        row = partition.row(nodes)
        assert row is not None
        assert row.switches(nodes) >= switches
        assert row.wait_s <= wait_s


def test_what_is_rendered_is_parsed() -> None:
    bad = ("gpu1", "gpu2", "r7n04")
    partitions = (
        PartitionRow("gpu", 64, 60, 8, bad, (Row(2, 32, 8, 0, 600), Row(33, 64, 8, 1, 900, ("n7",)))),
        PartitionRow("gpu-long", 64, 60, 8, bad),
        PartitionRow("cpu", 9, 9),
    )
    text = body(partitions)
    assert text.count("r7n04") == 1  # the same list is not written twice
    found = parse(render(text, 1_800_000_000, 600))
    assert (found.time, found.ttl_s) == (1_800_000_000, 600)
    assert {row.name: row for row in found.partitions} == {row.name: row for row in partitions}


def test_too_many_rows_are_joined_until_they_fit() -> None:
    rows = tuple(Row(n, n, 8, n % 3, 60) for n in range(2, 602))
    found = parse(render(body([PartitionRow(f"p{i}", 700, 700, rows=rows) for i in range(4)]), 1, 60))
    assert sum(len(row.rows) for row in found.partitions) <= ROWS_MAX
    assert all(row.rows[0].first == 2 and row.rows[-1].last == 601 for row in found.partitions)


@pytest.mark.parametrize(
    "partition",
    [
        PartitionRow("two words", 4, 4),
        PartitionRow("gpu", 9999, 1, avoid=tuple(f"n{i}" for i in range(0, 9000, 2))),
    ],
    ids=["a name with a blank", "too many nodes to avoid"],
)
def test_what_lua_would_refuse_is_not_written(partition: PartitionRow) -> None:
    with pytest.raises(TableError):
        body([partition])


def test_many_partitions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TableError, match=str(BYTES_MAX)):
        body([PartitionRow(f"a-partition-with-a-long-name-{i}", 4, 4) for i in range(900)])


GOOD = render("partition gpu 4 4 8 0\n2-4 2 0 60 0\n", 1_800_000_000, 600)


@pytest.mark.parametrize("cut", range(0, len(GOOD), 3))
def test_a_text_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(TableError):
        parse(GOOD[:cut])


def test_the_file_is_replaced_as_a_whole_and_only_in_a_guarded_folder(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    folder.mkdir(mode=0o755)
    path = folder / "decisions"
    assert read(path) is None
    write(path, GOOD)
    assert read(path) == Table(1_800_000_000, 600, (PartitionRow("gpu", 4, 4, 8, (), (Row(2, 4, 2, 0, 60),)),))
    assert intact(path)
    assert [p.name for p in folder.iterdir()] == ["decisions"]
    path.chmod(0o666)
    assert not intact(path)
    path.write_text("not a table\n", encoding="utf-8")
    with pytest.raises(TableError):
        read(path)
    folder.chmod(0o777)
    with pytest.raises(TableError, match="others may write there"):
        write(path, GOOD)
    assert path.read_text(encoding="utf-8") == "not a table\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_the_file_gets_the_folders_owner_and_a_given_away_one_is_not_intact(tmp_path: Path) -> None:
    folder = tmp_path / "var"
    folder.mkdir(mode=0o755)
    os.chown(folder, 12345, 12345)
    path = folder / "decisions"
    write(path, GOOD)
    assert path.stat().st_uid == 12345
    assert intact(path)
    os.chown(path, 54321, 54321)
    assert not intact(path)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "decisions")
    with pytest.raises(TableError, match="not a plain file"):
        read(tmp_path / "decisions")
    with pytest.raises(TableError, match="directory"):
        read(tmp_path)
