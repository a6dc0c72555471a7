"""The facts of slurm.conf that a topology is checked against: nodes, TopologyPlugin and TopologyParam."""

from __future__ import annotations

import re
from pathlib import Path

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import ERROR, Problem
from aistation_slurm.topology.readers.conf_lines import expand_names, pair, read_lines, read_text
from aistation_slurm.topology.validate import ClusterFacts

__all__ = ["facts_of_list", "read"]


def read(path: Path) -> ClusterFacts:
    """Facts of a slurm.conf, with the files that it includes. Raises TopologyError when it cannot be read or names no node."""
    problems: list[Problem] = []
    nodes: dict[str, None] = {}
    aliases: dict[str, str] = {}
    plugin, params, dynamic = "", [""], False
    for line in read_lines(read_text(path), str(path), problems, folder=path.parent):
        first = pair(line.text)
        if first is None:
            continue
        key, value = first.key.lower(), first.value
        if key == "nodename" and value.lower() != "default":

            def complain(why: str, number: int = line.number, file: str = line.file) -> None:
                problems.append(Problem(ERROR, f"NodeName: {why}", number, "fatal", "", file))

            names = expand_names(value, complain)
            nodes.update(dict.fromkeys(names))
            host = re.search(r"\bNodeHostname[ \t]*=[ \t]*(\S+)", first.rest, re.IGNORECASE)
            if host:
                aliases.update(zip(expand_names(host.group(1).strip('"'), complain), names))
        elif key == "topologyplugin":
            plugin = value
        elif key == "topologyparam":
            params = re.split(r"[,\s]+", value)
        elif key == "maxnodecount":
            dynamic = True
    if problems:
        raise TopologyError("; ".join(problem.text for problem in problems))
    if not nodes and not dynamic:
        raise TopologyError(f"{path}: no NodeName line; give the slurm.conf of the cluster (or --nodes LIST)")
    return ClusterFacts(tuple(nodes), tuple(aliases.items()), plugin, tuple(p for p in params if p), dynamic)


def facts_of_list(text: str) -> ClusterFacts:
    """``--nodes LIST``: names only. Raises TopologyError for what is no hostlist."""
    try:
        names = hostlist.expand(text)
    except hostlist.HostlistError as exc:
        raise TopologyError(f"--nodes: {exc}; expected a hostlist such as node[01-16]") from exc
    if not names:
        raise TopologyError("--nodes: the list is empty; expected a hostlist such as node[01-16]")
    return ClusterFacts(tuple(dict.fromkeys(names)))
