"""``aistation status``: the cluster as the suite sees it, on one page."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Optional

import click

from aistation_slurm.cli import EXIT_OK, EXIT_PROBLEM
from aistation_slurm.config import load
from aistation_slurm.correlation.page import breaker_lines, breaker_page
from aistation_slurm.findings import is_our_reason
from aistation_slurm.healing import reason
from aistation_slurm.healing.reason import evidence_path
from aistation_slurm.slurm import connect, hostlist, tags
from aistation_slurm.slurm.client import Job, Node

__all__ = ["command"]


@click.command("status")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="aistation.toml to use.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, config_path: Optional[Path], as_json: bool) -> None:
    """Show drained and silent nodes with their reasons, and the jobs that the suite looks after.

    \b
    Exit codes: 0 every node is fine, 1 at least one is drained, down or silent, 3 Slurm cannot be asked.
    """
    config = load(config_path)
    client = connect(config)
    nodes, jobs = client.nodes(), client.jobs()
    bad = [n for n in nodes if n.drained or not n.responding]
    managed = [j for j in jobs if tags.managed(j.admin_comment) and not j.finished]
    page = {
        "mode": config.mode,
        "nodes": len(nodes),
        "schedulable": sum(1 for n in nodes if n.schedulable),
        "drained_by_us": [_ours(n, config.healing.dir) for n in bad if n.drained and is_our_reason(n.reason)],
        "others": [_node(n) for n in bad if not (n.drained and is_our_reason(n.reason))],
        "jobs": [_job(j) for j in managed],
        "breaker": breaker_page(config, client, nodes),
    }
    if as_json:
        click.echo(json.dumps(page, indent=2))
    else:
        _print(page)
    ctx.exit(EXIT_PROBLEM if bad else EXIT_OK)


def _node(node: Node) -> dict[str, Any]:
    state = "+".join([node.state, *sorted(node.flags)])
    return {"node": node.name, "state": state, "reason": node.reason, "since": node.reason_time}


def _ours(node: Node, folder: str) -> dict[str, Any]:
    """Where healing has given up, the file on that node which tells why."""
    row, ident = _node(node), reason.ident_of(node.reason)
    if ident is not None and reason.asks_to_inspect(node.reason):
        row["evidence"] = f"{node.name}:{evidence_path(folder, node.name, ident)}"
    return row


def _job(job: Job) -> dict[str, Any]:
    return {
        "job": job.argument,
        "user": job.user_name or str(job.user_id),
        "state": job.state,
        "nodes": hostlist.fold(job.nodes) if job.nodes else "",
        "restarts": job.restart_cnt,
        "note": tags.read_note(job.comment),
    }


def _print(page: dict[str, Any]) -> None:
    from rich.markup import escape

    from aistation_slurm.cli import screen

    console = screen.console()
    console.print(f"{page['schedulable']} of {page['nodes']} nodes can take jobs; mode {page['mode']}", highlight=False)
    rows = [("AIStation", r) for r in page["drained_by_us"]] + [("other", r) for r in page["others"]]
    if rows:
        table = screen.table("node", "state", "since", "by", "reason", fixed=4, title="Nodes that need somebody")
        for by, row in rows:
            since = time.strftime("%m-%d %H:%M:%S", time.localtime(row["since"])) if row["since"] else ""
            table.add_row(row["node"], row["state"], since, by, escape(row["reason"]))
        console.print(table)
        for row in (row for row in page["drained_by_us"] if "evidence" in row):
            console.print(escape(f"{row['node']} is to be inspected; evidence, if it could be kept: {row['evidence']}"))
    for line in breaker_lines(page["breaker"]):
        console.print(line, highlight=False, markup=False)
    if page["jobs"]:
        table = screen.table("job", "user", "state", "nodes", "restarts", "note", fixed=5, title="Jobs looked after")
        for row in page["jobs"]:
            table.add_row(*(escape(str(row[k])) for k in ("job", "user", "state", "nodes", "restarts", "note")))
        console.print(table)
