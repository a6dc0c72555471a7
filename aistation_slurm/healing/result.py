"""What one step of healing came to, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from aistation_slurm.healing.history import Case

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """What one step came to. kind: ``none`` (nothing of ours here), ``waiting``, ``acted``, ``passed``, ``returned``,
    ``inspect``, ``left`` (somebody else changed the drain), ``busy`` (another process heals). open: there is more to do."""

    kind: str
    text: str
    case: Optional[Case] = None
    open: bool = False

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"result": self.kind, "text": self.text, "open": self.open}
        if self.case is not None:
            case = self.case
            out |= {"node": case.node, "id": case.ident, "reason": case.reason, "state": case.state}
            out |= {"passes": case.passes, "evidence": case.evidence}
            out["attempts"] = [
                {"action": a.action, "target": a.target, "began": a.began, "outcome": a.outcome, "verdict": a.verdict}
                for a in case.counted
            ]
            out["steps"] = [{"time": s.time, "text": s.text} for s in case.steps]
        return out
