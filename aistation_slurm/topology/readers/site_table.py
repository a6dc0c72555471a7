"""A site's own table: CSV with a header, a JSON list of the same rows, or the JSON of ``aistation topology show``.

::

    node,leaf,spine,core            node,block
    gpu[001-008],leaf1,spine1,core  gpu[001-018],nvl1
    gpu[009-016],leaf2,spine1,core  gpu[019-036],nvl2

Only ``node`` and one of ``leaf`` and ``block`` are needed. With both, there are two topologies (topology.yaml).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import Block, Reading, Switch, Topology, natural, resolve_levels

__all__ = ["read"]

_COLUMNS = {
    "node": ("node", "nodes", "nodename", "host", "hostname", "server"),
    "leaf": ("leaf", "leaf_switch", "leafswitch", "tor", "switch", "access"),
    "spine": ("spine", "spine_switch", "spineswitch", "aggregation", "pod", "parent"),
    "core": ("core", "core_switch", "coreswitch", "superspine", "root"),
    "block": ("block", "nvl_domain", "nvlink_domain", "domain", "clique"),
}
_LEVELS = ("leaf", "spine", "core")


@dataclass
class _Table:
    file: str
    leaf_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    block_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    parent_of: dict[str, tuple[str, int]] = field(default_factory=dict)
    level_of: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, where: dict[str, tuple[str, int]], what: str, name: str, value: str, line: int) -> None:
        before = where.setdefault(name, (value, line))
        if before[0] != value:
            raise TopologyError(
                f"{self.file}:{line}: {what} of {name} is {value} here and {before[0]} in line {before[1]}; "
                "Slurm's tree has one place for each"
            )


def read(text: str, file: str = "table") -> Reading:
    """Raises TopologyError with file and line for a table that contradicts itself or lacks a column."""
    start = text.lstrip("\ufeff \t\r\n")
    if start[:1] in ("{", "["):
        try:
            data = msgspec.json.decode(start.encode("utf-8", "surrogateescape"))
        except (msgspec.DecodeError, RecursionError, ValueError) as exc:
            raise TopologyError(f"{file}: not JSON: {exc}") from exc
        if isinstance(data, dict):
            return _shown(data, file)
        rows = [(number, row) for number, row in enumerate(data, start=1)]
    else:
        rows = _csv_rows(text.lstrip("\ufeff"), file)
    table = _Table(file)
    for number, row in rows:
        if not isinstance(row, dict):
            raise TopologyError(f"{file}:{number}: expected a row such as {{'node': 'gpu1', 'leaf': 'leaf1'}}")
        _row(table, number, row)
    return _reading(table)


def _csv_rows(text: str, file: str) -> list[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    rows: list[tuple[int, Any]] = []
    try:
        for row in reader:
            if None in row:
                raise TopologyError(
                    f"{file}:{reader.line_num}: more cells than the header has; put a list such as gpu[1,3] in double quotes"
                )
            first = next(iter(row.values()), None) or ""
            if not first.startswith("#"):
                rows.append((reader.line_num, row))
    except csv.Error as exc:
        raise TopologyError(f"{file}:{reader.line_num}: not CSV: {exc}") from exc
    return rows


def _row(table: _Table, line: int, row: dict[Any, Any]) -> None:
    cells: dict[str, str] = {}
    for key, value in row.items():
        wanted = str(key).strip().lower().replace(" ", "_").replace("-", "_")
        column = next((name for name, spellings in _COLUMNS.items() if wanted in spellings), None)
        if column is None:
            note = f"column {str(key)!r} is not used"
            if note not in table.notes:
                table.notes.append(note)
            continue
        if value is not None and not isinstance(value, (str, int)):
            raise TopologyError(f"{table.file}:{line}: {key}: expected a name, found {type(value).__name__}")
        cells[column] = str(value if value is not None else "").strip()
    if "node" not in cells or not {"leaf", "block"} & set(cells):
        raise TopologyError(
            f"{table.file}:{line}: no column for {'node' if 'node' not in cells else 'leaf or block'}; "
            f"columns are {', '.join(str(key) for key in row)}, expected e.g. node,leaf,spine"
        )
    try:
        nodes = hostlist.expand(cells["node"])
    except hostlist.HostlistError as exc:
        raise TopologyError(f"{table.file}:{line}: {exc}") from exc
    chain = [(level, cells[name]) for level, name in enumerate(_LEVELS) if cells.get(name)]
    for node in nodes:
        if chain and chain[0][0] == 0:
            table.put(table.leaf_of, "leaf", node, chain[0][1], line)
        if cells.get("block"):
            table.put(table.block_of, "block", node, cells["block"], line)
        if not cells.get("leaf") and not cells.get("block"):
            table.notes.append(f"{node} has no switch and was left out")
    for level, name in chain:
        if table.level_of.setdefault(name, level) != level:
            raise TopologyError(
                f"{table.file}:{line}: {name} is a {_LEVELS[level]} here and a {_LEVELS[table.level_of[name]]} before"
            )
    for (_, child), (_, parent) in zip(chain, chain[1:]):
        table.put(table.parent_of, "switch above", child, parent, line)


def _reading(table: _Table) -> Reading:
    topologies = []
    if table.leaf_of:
        nodes: dict[str, list[str]] = {}
        for node, (leaf, _) in table.leaf_of.items():
            nodes.setdefault(leaf, []).append(node)
        children: dict[str, list[str]] = {}
        for child, (parent, _) in table.parent_of.items():
            children.setdefault(parent, []).append(child)
        switches = [
            Switch(name, _sorted(nodes.get(name, ())), _sorted(children.get(name, ())))
            for name in sorted(table.level_of, key=lambda n: (table.level_of[n], natural(n)))
        ]
        topologies.append(Topology("tree", resolve_levels(switches)))
    if table.block_of:
        blocks: dict[str, list[str]] = {}
        for node, (block, _) in table.block_of.items():
            blocks.setdefault(block, []).append(node)
        made = tuple(Block(name, _sorted(blocks[name])) for name in sorted(blocks, key=natural))
        topologies.append(Topology("block", (), made, name="blocks" if topologies else "default"))
    if not topologies:
        raise TopologyError(f"{table.file}: no row with a node and its switch or block in it")
    if len(topologies) > 1:
        table.notes.append(
            "topology.conf takes the tree only; --format yaml has the blocks too (Slurm 25.05 and newer)"
        )
    return Reading(tuple(topologies), (), table.file, tuple(table.notes))


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=natural))


def _shown(data: dict[Any, Any], file: str) -> Reading:
    """The shape of ``topology show --json``; lists of names may be hostlists as well."""
    switches = []
    for number, row in enumerate(_rows(data, "switches", file), start=1):
        name, speed = row.get("name"), row.get("link_speed", 1)
        nodes = _names(row.get("nodes", ()), file, f"switch {number}")
        children = _names(row.get("children", row.get("switches", ())), file, f"switch {number}")
        switches.append(Switch(str(name or ""), nodes, children, link_speed=speed if isinstance(speed, int) else 1))
    blocks = [
        Block(str(row.get("name") or ""), _names(row.get("nodes", ()), file, f"block {number}"))
        for number, row in enumerate(_rows(data, "blocks", file), start=1)
    ]
    sizes = data.get("block_sizes", ())
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) and 0 < size < 1 << 31 for size in sizes):
        raise TopologyError(f"{file}: block_sizes: expected whole numbers, e.g. [30, 120]")
    if not all(switch.name for switch in switches) or not all(block.name for block in blocks):
        raise TopologyError(f"{file}: a switch or block without a name")
    if not switches and not blocks:
        raise TopologyError(
            f'{file}: neither "switches" nor "blocks" in it; expected the JSON of aistation topology show'
        )
    topologies = []
    if switches:
        topologies.append(Topology("tree", resolve_levels(switches)))
    if blocks:
        name = "blocks" if switches else "default"
        topologies.append(Topology("block", (), tuple(blocks), tuple(sizes), name=name))
    return Reading(tuple(topologies), (), file)


def _rows(data: dict[Any, Any], key: str, file: str) -> list[dict[Any, Any]]:
    rows = data.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TopologyError(f'{file}: "{key}": expected a list of objects with name and nodes')
    return rows


def _names(value: Any, file: str, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TopologyError(f"{file}: {what}: expected names or a hostlist")
    try:
        return tuple(name for item in value for name in hostlist.expand(item))
    except hostlist.HostlistError as exc:
        raise TopologyError(f"{file}: {what}: {exc}") from exc
