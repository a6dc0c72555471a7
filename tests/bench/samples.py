"""Medians with spread, and the one way in which every benchmark prints them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Sample", "ratio"]


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one thing, in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def percentile(self, share: float) -> float:
        """Nearest-rank percentile, ``share`` in 0..1."""
        ordered = sorted(self.seconds)
        return ordered[max(1, math.ceil(share * len(ordered) - 1e-9)) - 1]

    def row(self, scale: float = 1.0, unit: str = "s") -> list[str]:
        """name, n, median, p25..p75, p95, unit: cells of a table row."""
        low, high = self.percentile(0.25), self.percentile(0.75)
        return [
            self.name,
            str(len(self.seconds)),
            f"{self.median * scale:.2f} {unit}",
            f"{low * scale:.2f} .. {high * scale:.2f}",
            f"{self.percentile(0.95) * scale:.2f}",
        ]


def ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Median of ``first`` over the median of ``second``."""
    return statistics.median(first) / statistics.median(second)
