"""Generic resources as Slurm prints them: counts and indices of GPUs. Pure text."""

from __future__ import annotations

import re
from typing import Optional

__all__ = ["gpu_count", "gpu_indices", "tres_gpus", "tres_nodes"]


def gpu_indices(detail: str) -> list[int]:
    """GPU indices of one ``gres_detail`` text: ``gpu:h100:3(IDX:0,3,5)`` -> [0, 3, 5]; ``(S:..)`` lists sockets."""
    found: list[int] = []
    for entry in re.finditer(r"(?:^|,)gpu(?::[^(,]*)?\(IDX:([\d,-]+)\)", detail):
        for part in entry.group(1).split(","):
            low, _, high = part.partition("-")
            if low.isdigit():
                found += range(int(low), int(high or low) + 1)
    return found


def gpu_count(gres: str) -> int:
    """GPUs of a node's ``Gres=``: ``gpu:1080:7,gpu:block:1`` -> 8; a type may be a number, ``(S:0-1)`` lists sockets."""
    total = 0
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = entry.strip().split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 1
    return total


def tres_gpus(tres: str) -> Optional[int]:
    """GPUs of a TRES text, which may hold the total, the typed counts or both: ``gres/gpu=1,gres/gpu:a100=1`` -> 1.

    None for ``N/A`` and other text without ``key=count`` pairs or ``gres:gpu:N``.
    """
    plain = re.search(r"(?:^|,)gres/gpu=(\d+)", tres)
    if plain:
        return int(plain.group(1))
    typed = re.findall(r"(?:^|,)gres/gpu:[^=,]+=(\d+)", tres)
    if typed:
        return sum(int(n) for n in typed)
    request = re.search(r"(?:^|,)gres[:/]gpu(?::[^:,=]+)?[:=](\d+)", tres)
    if request:
        return int(request.group(1))
    return 0 if "=" in tres else None


def tres_nodes(tres: str) -> int:
    """Nodes of a TRES text, 0 where it names none: ``cpu=8,mem=100G,node=2,billing=8`` -> 2."""
    match = re.search(r"(?:^|,)node=(\d{1,9})(?:,|$)", tres, re.ASCII)
    return int(match.group(1)) if match else 0
