"""Which nodes a sweep asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aistation_slurm.errors import AistationError, SlurmUnavailable
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Node

__all__ = ["Target", "UnknownNodes", "asleep", "choose"]

_ASLEEP_WORDS = "POWERED_DOWN POWERING_DOWN POWER_DOWN POWERING_UP POWER_UP POWER_DRAIN"
_ASLEEP = frozenset(_ASLEEP_WORDS.split())


class UnknownNodes(AistationError):
    """A node or partition that Slurm does not have."""


@dataclass(frozen=True)
class Target:
    """host: where its slurmd runs; the node's own name where Slurm was not asked. node: None there."""

    name: str
    host: str
    node: Optional[Node] = None


def asleep(node: Node) -> str:
    """Why nobody asks this node, "" otherwise. A node whose power Slurm manages is never woken, nor met while it changes."""
    power = node.flags & _ASLEEP
    if power:
        return f"power saving: {'+'.join(sorted(power))}"
    return "not there yet: FUTURE" if node.state == "FUTURE" else ""


def choose(words: Sequence[str], nodes: Optional[Sequence[Node]]) -> tuple[list[Target], dict[str, str]]:
    """Targets in Slurm's order (a hostlist's own order without Slurm), and the nodes left out by why.

    words: hostlists and ``@partition``; none: every node. nodes: None where Slurm does not answer, which a hostlist can do
    without. Raises UnknownNodes, HostlistError, SlurmUnavailable.
    """
    if nodes is None:
        if not words or any(word.startswith("@") for word in words):
            raise SlurmUnavailable(
                "Slurm does not answer, so the nodes of the cluster are not known; name them: gpu[1-8]"
            )
        names = dict.fromkeys(name for word in words for name in hostlist.expand(word))
        return [Target(name, name) for name in names], {}
    known = {node.name: node for node in nodes}
    wanted = set(known) if not words else {name for word in words for name in _names(word, known)}
    targets, skipped = [], {}
    for node in nodes:
        if node.name not in wanted:
            continue
        why = asleep(node)
        if why:
            skipped[node.name] = why
        else:
            targets.append(Target(node.name, node.hostname or node.name, node))
    return targets, skipped


def _names(word: str, known: Mapping[str, Node]) -> list[str]:
    if word.startswith("@"):
        found = [node.name for node in known.values() if word[1:] in node.partitions]
        if not found:
            partitions = sorted({p for node in known.values() for p in node.partitions})
            raise UnknownNodes(f"{word}: no partition of that name has nodes; there are: {', '.join(partitions)}")
        return found
    names = hostlist.expand(word)
    strange = [name for name in names if name not in known]
    if strange:
        raise UnknownNodes(f"{word}: Slurm has no node {hostlist.fold(strange)}; partitions are written @name")
    return names
