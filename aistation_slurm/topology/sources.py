"""Which reader reads what: by name where one is given, else by the look of the text."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from aistation_slurm.slurm.command import run
from aistation_slurm.topology.fabric import Fabric
from aistation_slurm.topology.model import Reading, Topology
from aistation_slurm.topology.plan import plan, select_hosts
from aistation_slurm.topology.readers import ibnetdiscover, lldp, scontrol, site_table, topology_conf, topology_yaml
from aistation_slurm.topology.readers.conf_lines import read_text

__all__ = ["FABRICS", "SOURCES", "ask_slurm", "fabric", "load", "parse", "read_source", "sniff"]

SOURCES = ("conf", "yaml", "scontrol", "table", "ibnetdiscover", "lldp")
FABRICS = ("ibnetdiscover", "lldp")
STDIN = "stdin"


def read_source(name: str) -> tuple[str, str]:
    """Text and a name for messages; ``-`` is standard input."""
    if name == "-":
        return sys.stdin.buffer.read().decode("utf-8", "surrogateescape"), STDIN
    return read_text(Path(name)), name


def sniff(text: str, file: str) -> str:
    """The kind of source, by the name of the file and the first marks in its text."""
    if file.endswith((".yaml", ".yml")):
        return "yaml"
    if file.endswith(".csv"):
        return "table"
    if re.search(r'(?m)^(?:Switch|Ca)\s+\d+\s+"|^# Topology file: generated on|^ibwarn:|^ibnetdiscover:', text):
        return "ibnetdiscover"
    if text.lstrip()[:1] in ("{", "["):
        return "lldp" if '"lldp"' in text else "table"
    if re.search(r"(?m)^\s*-?\s*topology\s*:", text):
        return "yaml"
    if scontrol.looks_like(text):
        return "scontrol"
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return "table" if re.match(r"[\w \"]*(?:node|host)[\w \"]*,", first, re.IGNORECASE) and "=" not in first else "conf"


def load(
    name: str, kind: str = "auto", *, known: Optional[Sequence[str]] = None, base: Optional[Topology] = None
) -> Reading:
    """One file as Slurm would see it. Raises TopologyError when it cannot be read or is not what ``kind`` says.

    known, base: for a fabric, the nodes of slurm.conf and a topology whose names are kept (see ``plan``).
    """
    text, file = read_source(name)
    kind = sniff(text, file) if kind == "auto" else kind
    if kind in FABRICS:
        made = plan(select_hosts(fabric([(text, file)], kind), known), base)
        return Reading((made.topology,), (), file, made.notes)
    return parse(text, file, kind)


def parse(text: str, file: str, kind: str) -> Reading:
    """A text of one of the sources that are no fabric."""
    if kind == "yaml":
        return topology_yaml.read(text, file)
    if kind == "scontrol":
        return scontrol.read(text, file)
    if kind == "table":
        return site_table.read(text, file)
    return topology_conf.read(text, file, folder=None if file == STDIN else Path(file).resolve().parent)


def ask_slurm(timeout_s: float = 15.0) -> Reading:
    """What the running slurmctld has. Raises SlurmError, and TopologyError where its plugin has no topology to show."""
    return scontrol.read(run(("scontrol", "show", "topology"), timeout_s=timeout_s))


def fabric(texts: Sequence[tuple[str, str]], kind: str) -> Fabric:
    """One fabric of the outputs of several runs (rails that are fabrics of their own; hosts' or switches' LLDP).

    texts: pairs of text and name of its file.
    """
    if kind == "lldp":
        return lldp.read(texts)
    # each by itself first: a run that failed must not hide behind one that worked
    found = [ibnetdiscover.read(text, file) for text, file in texts]
    return found[0] if len(found) == 1 else ibnetdiscover.read("\n\n".join(text for text, _ in texts), texts[0][1])
