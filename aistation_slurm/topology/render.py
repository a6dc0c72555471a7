"""Pictures of a topology: a tree for the terminal, and an SVG."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.tree import Tree

from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import Problem, Switch, Topology, natural

__all__ = ["tree_picture"]

SHOWN_CHILDREN = 40
"""Below one switch, unless all are asked for."""
SHOWN_NAMES = 120


def _nodes(nodes: Sequence[str]) -> str:
    text = hostlist.fold(sorted(nodes, key=natural))
    text = text if len(text) <= SHOWN_NAMES else f"{text[:SHOWN_NAMES]}..."
    return f"{escape(text)} [dim]({len(nodes)} node{'s' * (len(nodes) != 1)})[/dim]"


def tree_picture(topology: Topology, title: str, problems: Sequence[Problem] = (), *, everything: bool = False) -> Tree:
    """A rich tree: roots, what hangs below them, nodes as hostlists. A switch with two parents is opened once."""
    marked = {p.line: "red" if p.severity == "error" else "yellow" for p in reversed(problems) if p.line is not None}
    picture = Tree(f"[bold]{escape(title)}[/bold]")
    if topology.kind != "tree":
        for block in topology.blocks:
            colour = marked.get(block.line or 0, "cyan")
            picture.add(f"[{colour}]{escape(block.name)}[/{colour}]  {_nodes(block.nodes)}")
        if topology.block_sizes:
            picture.add(f"[dim]block sizes (nodes): {', '.join(str(size) for size in topology.block_sizes)}[/dim]")
        return picture
    opened: set[str] = set()
    tops = list(topology.roots) or [switch.name for switch in topology.switches[:1]]
    _add(
        picture,
        topology,
        sorted(tops, key=lambda n: (-topology.by_name[n].level, natural(n))),
        opened,
        marked,
        everything,
    )
    return picture


def _add(
    branch: Tree,
    topology: Topology,
    names: Sequence[str],
    opened: set[str],
    marked: dict[int, str],
    everything: bool,
) -> None:
    again = [name for name in names if name in opened]
    fresh = [name for name in names if name not in opened]
    shown = fresh if everything else fresh[:SHOWN_CHILDREN]
    for name in shown:
        opened.add(name)
        switch = topology.by_name.get(name)
        if switch is None:
            branch.add(f"[red]{escape(name)}  (has no line of its own)[/red]")
            continue
        below = branch.add(_label(switch, marked))
        _add(below, topology, switch.children, opened, marked, everything)
    if len(fresh) > len(shown):
        rest = fresh[len(shown) :]
        opened.update(rest)
        branch.add(f"[dim]{len(rest)} more: {_names(rest)} (--all shows them)[/dim]")
    if again:
        branch.add(f"[dim]{_names(again)}: see above[/dim]")


def _names(names: Sequence[str]) -> str:
    text = hostlist.fold(sorted(names, key=natural))
    return escape(text if len(text) <= SHOWN_NAMES else f"{text[:SHOWN_NAMES]}...")


def _label(switch: Switch, marked: dict[int, str]) -> str:
    colour = marked.get(switch.line or 0, "green" if switch.level == 0 else "cyan")
    label = f"[{colour}]{escape(switch.name)}[/{colour}]"
    if switch.children:
        level = f"level {switch.level}" if switch.level >= 0 else "level unknown"
        label += f"  [dim]{level}, {len(switch.children)} below[/dim]"
    if switch.nodes:
        label += f"  {_nodes(switch.nodes)}"
    elif not switch.children:
        label += "  [dim]no nodes[/dim]"
    return label + (f"  [dim]{escape(switch.note)}[/dim]" if switch.note else "")
