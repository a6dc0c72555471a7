"""The prolog as Slurm starts it: its own process, an environment of a few variables, a make-believe node."""

from __future__ import annotations

import subprocess
from typing import Optional

from tests.unit.node.sim import PROLOG, SimNode


def gate(node: SimNode, env: Optional[dict[str, str]] = None, **more: str) -> subprocess.CompletedProcess[str]:
    environment = env if env is not None else node.environment(**more)
    return subprocess.run([str(PROLOG)], env=environment, capture_output=True, text=True, timeout=120, check=False)


def update(node: SimNode) -> dict[str, str]:
    """Fields of the one update that was made."""
    (call,) = [c for c in node.calls() if "<update>" in c]
    words = call[1:-1].split("><")
    assert words[:2] == ["update", "NodeName=gpu1"]
    return dict(word.split("=", 1) for word in words[2:])


def drained_with(node: SimNode) -> str:
    """The reason in the one update that was made."""
    fields = update(node)
    assert fields["State"] == "DRAIN"
    return fields["Reason"]
