"""What ``scontrol show topology`` prints, all releases since 22.05.

::

    SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=cn[1,3]
    SwitchName=core1 Level=1 LinkSpeed=1 Nodes=cn[1-3] Switches=leaf[1-2]
    BlockName=b1 BlockIndex=0 Nodes=node[01-04] BlockSize=4
    AggregatedBlock=b[1-2] BlockIndex=2 Nodes=node[01-08] BlockSize=8
    RingName=ring0 Nodes=node[01-08] RingSize=8
    TorusName=pod1 Dims=4x4x2 Nodes=node[01-32]

Unlike in the file, a switch above leaves lists all nodes below it as well; aggregated blocks repeat the nodes of their blocks.
"""

from __future__ import annotations

import re
from typing import Optional

from aistation_slurm.errors import TopologyError
from aistation_slurm.topology.model import ERROR, WARNING, Block, Problem, Reading, Switch, Topology
from aistation_slurm.topology.readers.conf_lines import expand_names

__all__ = ["looks_like", "read"]

_KINDS = {
    "SwitchName": "tree",
    "BlockName": "block",
    "AggregatedBlock": "block",
    "RingName": "ring",
    "TorusName": "torus3d",
}
_FIRST = re.compile(r"\s*(SwitchName|BlockName|AggregatedBlock|RingName|TorusName)=(\S+)")
_MARKS = re.compile(
    r"(?m)^\s*(?:SwitchName=\S+ Level=\d|BlockName=\S+ BlockIndex=\d|AggregatedBlock=|RingName=\S+ .*RingSize=|TorusName=)"
)


def looks_like(text: str) -> bool:
    """Has marks that topology.conf cannot have: Level=, BlockIndex=, aggregated rows."""
    return _MARKS.search(text) is not None


def read(text: str, file: str = "scontrol show topology") -> Reading:
    """Raises TopologyError where the text holds no topology (plugin flat or none prints nothing)."""
    problems: list[Problem] = []
    switches: list[Switch] = []
    blocks: list[Block] = []
    sizes: list[int] = []
    kind = ""
    for number, line in enumerate(text.splitlines(), start=1):
        first = _FIRST.match(line)
        if first is None:
            if line.strip() and not line.lstrip().startswith("TorusName"):
                what = f"{line.strip()[:60]!r} is no line of scontrol show topology"
                problems.append(Problem(WARNING, what, number, "", "left out", file))
            continue
        word, name = first.groups()
        kind = kind or _KINDS[word]
        values = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line[first.end() :]))

        def names(key: str, values: dict[str, str] = values, number: int = number) -> tuple[str, ...]:
            def complain(why: str) -> None:
                hint = "cut by SLURM_TOPO_LEN?" if "[" in values.get(key, "") else ""
                problems.append(Problem(ERROR, f"{key}: {why}", number, "", hint, file))

            return expand_names(values.get(key, ""), complain)

        if word == "SwitchName":
            level = _number(values.get("Level"), 0)
            speed = _number(values.get("LinkSpeed"), 1)
            children = names("Switches")
            switches.append(Switch(name, () if children else names("Nodes"), children, level, speed, number))
        elif word in ("BlockName", "RingName") or (word == "TorusName" and "PlacementDims" not in values):
            blocks.append(Block(name, names("Nodes"), number))
        if word in ("BlockName", "AggregatedBlock") and "BlockSize" in values:
            sizes.append(_number(values["BlockSize"], 0))
    if not kind:
        raise TopologyError(
            f"{file}: no topology in it; scontrol prints one only for topology/tree, block, ring and torus3d"
        )
    block_sizes = tuple(sorted({size for size in sizes if size > 0}))
    return Reading((Topology(kind, tuple(switches), tuple(blocks), block_sizes),), tuple(problems), file)


def _number(text: Optional[str], otherwise: int) -> int:
    return int(text) if text and re.fullmatch(r"[0-9]{1,10}", text) else otherwise
