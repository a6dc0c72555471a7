"""gres.conf: which device file, and so which minor number, is GPU 0, 1, 2 ... of Slurm on this node (gres.conf(5))."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from aistation_slurm.slurm import hostlist

__all__ = ["gpu_minors"]


def gpu_minors(path: Path, node: str) -> Optional[list[int]]:
    """Minor numbers in Slurm's index order: SLURM_JOB_GPUS=2 is ``/dev/nvidia<gpu_minors[2]>``.

    None where the file is missing, uses AutoDetect, or names no NVIDIA device file for this node: then nothing is known.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    minors: list[int] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        fields = {k.lower(): v for k, v in re.findall(r"(\w+)=(\S+)", line.partition("#")[0])}
        if fields.get("name", "").lower() != "gpu" or "file" not in fields:
            continue
        if "nodename" in fields and not _named(fields["nodename"], node):
            continue
        for name in _brackets(fields["file"]):
            match = re.search(r"nvidia(\d+)$", name)
            if match:
                minors.append(int(match.group(1)))
    return minors or None


def _named(text: str, node: str) -> bool:
    try:
        return node in hostlist.expand(text)
    except hostlist.HostlistError:
        return False


def _brackets(text: str) -> list[str]:
    """``/dev/nvidia[0-3,5]``: a hostlist with a path in front."""
    match = re.fullmatch(r"(.*?)\[([\d,-]+)\](.*)", text)
    if match is None:
        return [text]
    try:
        return [f"{match.group(1)}{name[1:]}{match.group(3)}" for name in hostlist.expand(f"x[{match.group(2)}]")]
    except hostlist.HostlistError:
        return []
