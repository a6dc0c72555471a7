"""``site.<name>``: what a site's own check said (node/site_checks.py runs it). Pure.

Exit codes: 0 ok, 1 fail, 2 warn, 3 unknown; anything else, and a check that did not end in time, is unknown. The first line
of its output is the evidence. Reported only, unless ``[checks."site.<name>"] action = "drain"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

import msgspec

from aistation_slurm.findings import Action, Finding, Scope, Status

__all__ = ["SiteResult", "findings"]

_STATUS = {0: Status.OK, 1: Status.FAIL, 2: Status.WARN, 3: Status.UNKNOWN}
EVIDENCE_MAX = 200


class SiteResult(msgspec.Struct, frozen=True):
    """code: None where it was not run to its end; error says why. line: first line of its output that is not empty."""

    name: str
    code: Optional[int] = None
    line: str = ""
    error: str = ""


def findings(results: Iterable[SiteResult]) -> Iterator[Finding]:
    for result in results:
        status = Status.UNKNOWN if result.code is None else _STATUS.get(result.code, Status.UNKNOWN)
        text = result.error or _printable(result.line)
        if result.code is not None and result.code not in _STATUS:
            how = f"signal {-result.code}" if result.code < 0 else f"exit code {result.code}"
            text = f"{how} is none of 0 ok, 1 fail, 2 warn, 3 unknown" + (f": {text}" if text else "")
        action = Action.INSPECT if status in (Status.FAIL, Status.WARN) else Action.NONE
        yield Finding(f"site.{result.name}", status, "site check", text[:EVIDENCE_MAX], action, Scope.SHARED)


def _printable(line: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in line).split())
