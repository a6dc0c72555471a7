"""``aistation agent``: the node daemon."""

from __future__ import annotations

import logging
import os

import click

from aistation_slurm import log_line
from aistation_slurm.cli import EXIT_PROBLEM
from aistation_slurm.config import load
from aistation_slurm.findings import Status

__all__ = ["command"]


@click.command("agent")
@click.option("--once", is_flag=True, help="One look: write the state, act on it, and exit (0 fine, 1 problem found).")
@click.option("--verbose", "-v", is_flag=True, help="Say also what needs no attention.")
@click.pass_context
def command(ctx: click.Context, once: bool, verbose: bool) -> None:
    """Watch this node: keep its state fresh for the gate, drain it on a fatal local fault, and requeue the opted-in jobs
    that the fault met. One per node, as root; SIGTERM ends it, SIGHUP has it read aistation.toml anew.

    \b
    Examples:
      aistation agent           as a service
      aistation agent --once    from cron, where no daemon is wanted
    """
    from aistation_slurm.config.reload import Reloader
    from aistation_slurm.node.agent import RESTART, Agent
    from aistation_slurm.node.lock import take_agent_lock
    from aistation_slurm.slurm import connect

    log_line.start(
        level=logging.INFO if verbose else logging.WARNING,
        form="aistation agent: %(message)s"
        if "JOURNAL_STREAM" in os.environ
        else "%(asctime)s aistation agent: %(message)s",
    )
    config = load()
    lock = take_agent_lock(config.node.state_dir)
    try:
        agent = Agent(config, connect(config), reloader=Reloader(RESTART))
        if not once:
            agent.run()
        elif agent.once() is Status.FAIL:
            ctx.exit(EXIT_PROBLEM)
    finally:
        os.close(lock)
