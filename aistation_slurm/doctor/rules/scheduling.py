"""GPUs as Slurm counts and names them, features, and the topology that placement goes by."""

from __future__ import annotations

import re
from collections.abc import Iterator

from aistation_slurm.doctor.conf_file import Record, names_of
from aistation_slurm.doctor.model import Item, Severity, Site
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.gres import gpu_count
from aistation_slurm.topology.model import ERROR, WARNING

__all__ = ["judge"]

TRES_DEFAULT_SINCE = (23, 11)
SHOWN = 20
RANKS = "breaks rank order"
"""In a problem's message (topology/validate.py)."""
_CONSEQUENCE = {ERROR: "Slurm would not start with it, or drops it", WARNING: "Slurm takes it and says so in its log"}
FLAT = ("", "(null)", "topology/none", "topology/default", "topology/flat", "none", "default", "flat")


def judge(site: Site) -> Iterator[Item]:
    gpu_nodes = {
        name: gpu_count(record.keys.get("gres", ""))
        for record in site.conf.of_kind("nodename")
        for name in names_of(record.name)
        if gpu_count(record.keys.get("gres", ""))
    }
    if gpu_nodes:
        yield from _select(site)
        yield from _gres_types(site)
        yield from _gres_files(site, gpu_nodes)
        yield from _isolation(site)
    elif site.conf.of_kind("nodename"):
        yield Item(
            "gres.none",
            Severity.NOTE,
            "no NodeName line has Gres=gpu",
            "the gate judges the GPUs of a job by what Slurm gave it; of a job without GPUs it judges none",
            "Gres=gpu:8 on the NodeName lines, GresTypes=gpu, and gres.conf",
            site.conf.path,
        )
    yield from _features(site)
    yield from _topology(site)


def _select(site: Site) -> Iterator[Item]:
    default = "select/linear" if site.version < TRES_DEFAULT_SINCE else "select/cons_tres"
    kind = site.value("SelectType", default)
    if kind.lower() != "select/cons_tres":
        yield site.advise(
            "select.type",
            Severity.ERROR,
            "SelectType",
            f"SelectType={kind}" + ("" if site.conf.get("SelectType") else ", the default of this release"),
            "GPUs are not given to jobs one by one: --gpus-per-node is refused, and a job is not told its GPUs",
            "select/cons_tres",
            "with SelectTypeParameters=CR_Core_Memory; all daemons must be restarted and, from select/linear, jobs are lost",
        )


def _gres_types(site: Site) -> Iterator[Item]:
    types = site.words("GresTypes")
    if "gpu" not in types:
        given = site.value("GresTypes")
        yield site.advise(
            "gres.types",
            Severity.ERROR,
            "GresTypes",
            f"GresTypes={given or '(unset)'} has no gpu, but NodeName lines have Gres=gpu",
            "slurmctld takes these nodes' Gres for invalid",
            ",".join(word for word in ("gpu", given) if word),
        )


def _gres_files(site: Site, gpu_nodes: dict[str, int]) -> Iterator[Item]:
    if site.gres is None:
        return
    lines = [record for record in site.gres.records if record.keys.get("name", "").lower() == "gpu"]
    automatic = any(record.keys.get("autodetect", "off").lower() not in ("off", "none") for record in site.gres.records)
    for record in lines:
        if "file" not in record.keys and "multiplefiles" not in record.keys and not automatic:
            yield Item(
                "gres.file",
                Severity.ERROR,
                "Name=gpu without File= and without AutoDetect=nvml",
                "Slurm then gives out a number and no device: jobs do not know their GPUs (CUDA_VISIBLE_DEVICES), and the gate "
                "cannot judge them",
                f"{record.file}:{record.line}: add File=/dev/nvidia[0-7]",
                record.file,
                record.line,
            )
    if automatic:
        return
    if not lines:
        yield Item(
            "gres.file",
            Severity.ERROR,
            "no line with Name=gpu and no AutoDetect",
            "Slurm then gives out a number and no device: jobs do not know their GPUs",
            f"{site.gres.path}: add `Name=gpu File=/dev/nvidia[0-7]` or `AutoDetect=nvml`",
            site.gres.path,
        )
        return
    if all("file" in record.keys for record in lines):
        yield from _gres_counts(site, lines, gpu_nodes)


def _gres_counts(site: Site, lines: list[Record], gpu_nodes: dict[str, int]) -> Iterator[Item]:
    wrong: dict[tuple[int, int], list[str]] = {}
    by_node: dict[str, int] = {}
    for record in lines:
        files = _file_count(record.keys["file"])
        for name in names_of(record.keys["nodename"]) if "nodename" in record.keys else gpu_nodes:
            by_node[name] = by_node.get(name, 0) + files
    for name, wanted in gpu_nodes.items():
        if by_node.get(name, 0) != wanted:
            wrong.setdefault((by_node.get(name, 0), wanted), []).append(name)
    for (files, wanted), names in wrong.items():
        yield Item(
            "gres.count",
            Severity.ERROR if files < wanted else Severity.WARNING,
            f"{hostlist.fold(names)}: gres.conf names {files} GPUs, slurm.conf {wanted}",
            "slurmd then reports another count than slurm.conf has, and slurmctld drains the node"
            if files < wanted
            else "the surplus GPUs are given to nobody",
            f"{lines[0].file}:{lines[0].line}: File=/dev/nvidia[0-{wanted - 1}]",
            lines[0].file,
            lines[0].line,
        )


def _file_count(text: str) -> int:
    """``/dev/nvidia[0-3],/dev/nvidia7`` -> 5."""
    parts = re.split(r",(?![^\[]*\])", text)
    return sum(len(names_of(part.rpartition("/")[2])) for part in parts)


def _isolation(site: Site) -> Iterator[Item]:
    confined = site.cgroup is not None and (s := site.cgroup.get("ConstrainDevices")) and s.value.lower() == "yes"
    if site.cgroup is not None and not (confined and "task/cgroup" in site.words("TaskPlugin")):
        yield Item(
            "gres.constrain_devices",
            Severity.NOTE,
            "jobs can open each other's GPUs",
            "ConstrainDevices=yes in cgroup.conf and task/cgroup in TaskPlugin keep a job to its own; faults are then put on the "
            "right job",
            f"{site.cgroup.path}: `ConstrainDevices=yes`; slurm.conf: `TaskPlugin=task/cgroup,task/affinity`",
            site.cgroup.path,
        )


def _features(site: Site) -> Iterator[Item]:
    declared = {
        word
        for record in site.conf.of_kind("nodename")
        for key in ("feature", "features")
        for word in record.keys.get(key, "").split(",")
        if word
    }
    for record in site.conf.of_kind("nodeset"):
        unknown = [w for w in re.split(r"[,&|]", record.keys.get("feature", "")) if w and w not in declared]
        if unknown:
            yield Item(
                "features.declared",
                Severity.WARNING,
                f"NodeSet={record.name}: no NodeName line has Feature={unknown[0]}",
                "the set is empty, and so are partitions made of it",
                "add the feature to the NodeName lines",
                record.file,
                record.line,
            )
    given: dict[str, list[str]] = {}
    for node in site.nodes or ():
        for word in node.features:
            if word not in declared and word.lower() not in ("cloud", "dynamic"):
                given.setdefault(word, []).append(node.name)
    for word, names in list(given.items())[:SHOWN]:
        yield Item(
            "features.declared",
            Severity.WARNING,
            f"{hostlist.fold(names)} {'has' if len(names) == 1 else 'have'} the feature {word}, which slurm.conf does not declare",
            "`scontrol reconfigure` takes it away, and jobs that ask for it then wait for ever (BadConstraints)",
            f"slurm.conf: add Feature={word} to their NodeName lines",
            site.conf.path,
        )


def _topology(site: Site) -> Iterator[Item]:
    plugin = site.value("TopologyPlugin").lower()
    if plugin in FLAT:
        yield site.advise(
            "topology.plugin",
            Severity.NOTE,
            "TopologyPlugin",
            f"TopologyPlugin={plugin or '(unset)'}",
            "Slurm knows no switches, so jobs are not packed on few of them; right where all nodes are on one switch",
            "topology/tree",
            "topology.conf: `aistation topology import`",
        )
        return
    for problem in (site.topology or ())[:SHOWN]:
        order = RANKS in problem.message
        yield Item(
            "topology.order" if order else "topology.file",
            Severity.ERROR if problem.severity == ERROR else Severity.WARNING,
            problem.message,
            "a ring over the ranks then crosses the spine far more often than it must"
            if order
            else _CONSEQUENCE[problem.severity],
            (problem.hint or "`aistation topology validate` says more")
            + ("; before that release: `aistation placement hostfile` in job scripts" if order else ""),
            problem.file,
            problem.line or 0,
        )
    yield from _weights(site)


def _weights(site: Site) -> Iterator[Item]:
    leaf_of = {node: leaf for leaf, nodes in site.leaves for node in nodes}
    weights: dict[str, set[str]] = {}
    for record in site.conf.of_kind("nodename"):
        for name in names_of(record.name):
            if name in leaf_of:
                weights.setdefault(leaf_of[name], set()).add(record.keys.get("weight", "1"))
    if any(len(found) > 1 for found in weights.values()):
        leaf = next(name for name, found in weights.items() if len(found) > 1)
        yield Item(
            "topology.weight",
            Severity.NOTE,
            f"nodes of the leaf switch {leaf} differ in Weight",
            "Slurm takes the lowest weight first and the topology only second, so jobs are spread over more leaf switches",
            "the same Weight for the nodes of a leaf",
            site.conf.path,
        )
