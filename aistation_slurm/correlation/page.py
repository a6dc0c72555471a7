"""What ``aistation status`` shows of correlated findings and of the breaker: judged anew from Slurm, so that any host can tell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from aistation_slurm.config import Config
from aistation_slurm.correlation.decide import decide
from aistation_slurm.correlation.marker import open_until
from aistation_slurm.correlation.published import shown
from aistation_slurm.correlation.view import Leaves, settle_of, views
from aistation_slurm.slurm.client import Node, SlurmClient

__all__ = ["breaker_lines", "breaker_page"]


def breaker_page(config: Config, client: SlurmClient, nodes: Sequence[Node]) -> dict[str, Any]:
    """``open``: partitions; ``causes``: what several nodes share; ``reported``: what nodes report and are not drained for.

    Raises SlurmUnavailable and SlurmRefused.
    """
    now = time.time()
    reporting = [node for node in nodes if shown(node.comment)]
    leaf_of = Leaves(config).of(len(nodes), 0.0) if reporting else {}
    decision = decide(views(nodes, leaf_of, config.breaker, now), config.breaker, settle_of(config), now)
    told = {partition for partition, until in open_until(client.reservations()).items() if until > now}
    opened = [
        {"partition": o.partition, "drained": o.drained, "would": o.would, "limit": o.limit, "everything": o.everything}
        for o in decision.open
    ]
    over = told - {o.partition for o in decision.open}
    opened += [{"partition": p, "drained": 0, "would": 0, "limit": 0, "everything": True} for p in sorted(over)]
    return {
        "open": opened,
        "causes": [{"where": c.where, "nodes": list(c.nodes), "checks": list(c.checks)} for c in decision.causes],
        "reported": [
            {
                "node": node.name,
                "findings": [f"{p.check} {p.subject}: {p.evidence}" for p in shown(node.comment)],
                "why_not_drained": decision.waiting.get(node.name, ""),
            }
            for node in reporting
            if not node.drained
        ],
    }


def breaker_lines(page: dict[str, Any]) -> list[str]:
    """The same in a few lines; none where all is well."""
    lines = []
    for entry in page["open"]:
        who = "nobody is drained" if entry["everything"] else "the watchdog and gates drain nobody"
        why = f": {entry['would']} nodes would go, {entry['limit']} may" if entry["limit"] else ", closing soon"
        lines.append(f"The mass-drain breaker is open for partition {entry['partition']}{why}; {who}")
    for cause in page["causes"]:
        lines.append(f"One cause: {cause['where']}, {len(cause['nodes'])} nodes with {', '.join(cause['checks'])}")
    for row in page["reported"]:
        why = f" ({row['why_not_drained']})" if row["why_not_drained"] else ""
        lines.append(f"{row['node']} reports {'; '.join(row['findings'])}{why}")
    return lines
