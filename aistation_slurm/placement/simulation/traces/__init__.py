"""Readers of real traces: one file for each format, one shape out of all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from aistation_slurm.placement.simulation.traces import acme, alibaba, helios, philly, sacct
from aistation_slurm.placement.simulation.traces.loaded import Loaded, TraceError

__all__ = ["READERS", "Loaded", "TraceError", "read", "sniff", "text_of"]

READERS: Mapping[str, Callable[[str, str, int], Loaded]] = MappingProxyType(
    {"sacct": sacct.read, "helios": helios.read, "acme": acme.read, "philly": philly.read, "alibaba": alibaba.read}
)
"""Each takes the text, its name for messages, and the GPUs of a node."""


def text_of(path: str) -> tuple[str, str]:
    """A trace's text and its name for messages; ``-`` is standard input. Raises TraceError."""
    if path == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace"), "stdin"
    try:
        return Path(path).read_bytes().decode("utf-8", "replace"), path
    except OSError as exc:
        raise TraceError(f"{path}: cannot be read: {exc.strerror or exc}; give the path of a readable file") from exc


def sniff(text: str, source: str) -> str:
    """Which format it is. Raises TraceError where nothing fits."""
    head = text.lstrip("\ufeff \n")[:4096]
    first = head.split("\n", 1)[0]
    if head.startswith(("[", "{")):
        return "philly"
    if "|" in first and "Submit" in first:
        return "sacct"
    columns = {name.strip().lower() for name in first.split(",")}
    if {"node_num", "gpu_num", "vc"} <= columns:
        return "helios"
    if {"node_num", "gpu_num", "submit_time"} <= columns:
        return "acme"
    if {"inst_num", "plan_gpu"} <= columns or first.count(",") == len(alibaba.COLUMNS) - 1:
        return "alibaba"
    raise TraceError(f"{source}: not known as a trace by its first line; say which with --from: {', '.join(READERS)}")


def read(text: str, source: str, kind: str = "auto", gpus_per_node: int = 8) -> Loaded:
    """The jobs of a trace. Raises TraceError with the line that cannot be read, or where no job is left."""
    chosen = sniff(text, source) if kind == "auto" else kind
    loaded = READERS[chosen](text, source, gpus_per_node)
    if not loaded.jobs:
        left = ", ".join(f"{count} {why}" for why, count in loaded.left_out.items())
        raise TraceError(f"{source}: no job of whole nodes that ran is in it" + (f" ({left})" if left else ""))
    return loaded
