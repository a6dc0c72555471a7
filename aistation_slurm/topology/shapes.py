"""The JSON of ``aistation topology`` (design: contracts), and one line for people."""

from __future__ import annotations

from collections.abc import Sequence

from aistation_slurm.topology.model import ERROR, Problem, Reading, Topology

__all__ = ["counts", "describe", "plural", "reading_json", "topology_json"]


def counts(problems: Sequence[Problem]) -> tuple[int, int]:
    """Errors and warnings."""
    errors = sum(1 for problem in problems if problem.severity == ERROR)
    return errors, len(problems) - errors


def plural(number: int, word: str) -> str:
    many = {"switch": "switches", "leaf": "leaves", "torus3d": "toruses"}
    return f"{number} {word if number == 1 else many.get(word, word + 's')}"


def describe(topology: Topology) -> str:
    nodes = plural(len(topology.leaf_of), "node")
    if topology.kind == "tree":
        leaves = sum(1 for switch in topology.switches if switch.level == 0)
        return f"tree, {plural(len(topology.switches), 'switch')} ({plural(leaves, 'leaf')}), {nodes}"
    return (
        f"{topology.kind}, {plural(len(topology.blocks), topology.kind)}, {nodes}" if topology.blocks else topology.kind
    )


def reading_json(reading: Reading, problems: Sequence[Problem]) -> dict[str, object]:
    """The contract's shape for the default topology; ``topologies`` too where a topology.yaml has several."""
    shown = topology_json(reading.topology)
    shown["valid"] = not counts(problems)[0]
    shown["problems"] = [problem.as_json() for problem in problems]
    shown["notes"] = list(reading.notes)
    if len(reading.topologies) > 1:
        shown["topologies"] = [topology_json(topology) for topology in reading.topologies]
    return shown


def topology_json(topology: Topology) -> dict[str, object]:
    """fabrics: what a job can span, largest first, with the switches on top of each."""
    return {
        "name": topology.name,
        "kind": topology.kind,
        "cluster_default": topology.cluster_default,
        "switches": [switch.as_json() for switch in topology.switches],
        "blocks": [block.as_json() for block in topology.blocks],
        "block_sizes": list(topology.block_sizes),
        "roots": list(topology.roots),
        "fabrics": [
            {"roots": [root for root in topology.roots if root in fabric], "nodes": len(topology.fabric_nodes(fabric))}
            for fabric in topology.fabrics
        ],
        "node_count": len(topology.leaf_of),
    }
