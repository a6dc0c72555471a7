"""The ``aistation`` command. Each command group is one file here, loaded only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Optional

import click

from aistation_slurm import __version__
from aistation_slurm.errors import AistationError

__all__ = ["EXIT_COULD_NOT_RUN", "EXIT_OK", "EXIT_PROBLEM", "EXIT_USAGE", "main"]

EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, EXIT_COULD_NOT_RUN = 0, 1, 2, 3

COMMANDS = {
    # command: (module below aistation_slurm.cli, one line of help; kept here so that --help imports nothing else)
    "agent": ("agent", "Watch this node: write its state, drain on fatal faults (the node daemon)."),
    "check": ("check", "Check the health of this node, or of a captured /sys and /proc tree."),
    "ckpt": ("ckpt", "Inspect checkpoint directories: every checkpoint, valid or why not."),
    "config": ("config", "Check aistation.toml; show the settings in force, their reference and schema."),
    "doctor": ("doctor", "Check the site's Slurm configuration and daemons: what to change, where, and why."),
    "explain": ("explain", "Tell the story of one job: starts, faults, decisions, checkpoints, time lost."),
    "heal": ("heal", "Heal this node of a fault AIStation drained it for (opt-in): reset, reboot, verify."),
    "hostlist": ("hostlist", "Expand, fold and count Slurm hostlists."),
    "incidents": ("incidents", "List what happened: faults, drains, requeues, holds."),
    "install": ("install", "Write units, wrappers and snippets for slurm.conf; never slurm.conf itself."),
    "klog": ("klog", "Find Xid, SXid, lost GPUs, link and NVMe events in kernel logs."),
    "placement": (
        "placement",
        "Place jobs on few leaf switches: publish decisions, explain a job, order ranks, simulate.",
    ),
    "status": ("status", "Show nodes, drains, managed jobs and the state of the suite's parts."),
    "sweep": ("sweep", "Check many nodes at once; drain what failed, give back what passes."),
    "topology": ("topology", "Read, check, compare, draw and generate topology.conf and topology.yaml."),
    "watchdog": ("watchdog", "Recover failed jobs: requeue away from bad nodes (the controller daemon)."),
}


class LazyGroup(click.Group):
    """Imports a command's module only when it is called: ``aistation agent`` must not pay for ``rich`` tables."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Optional[click.Command]:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"aistation_slurm.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="aistation")
def cli() -> None:
    """AIStation for Slurm: health gates, placement, fault watch and checkpoint-resume requeue.

    \b
    Exit codes: 0 fine, 1 problem found, 2 wrong usage, 3 could not run.
    Examples:
      aistation check                     check this node
      aistation ckpt inspect /ckpt/run7   which checkpoint would a restart resume from
      aistation explain 4711              what happened to job 4711
    """


def main() -> None:
    """Console entry point: every expected error becomes one clear line and exit code 3."""
    try:
        # outside of standalone mode click hands ctx.exit()'s code back as the return value
        code = cli(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else EXIT_OK)
    except click.exceptions.Exit as exc:
        sys.exit(exc.exit_code)
    except click.Abort:
        click.echo("aistation: interrupted", err=True)
        sys.exit(130)
    except click.ClickException as exc:
        exc.show()
        sys.exit(EXIT_USAGE)
    except AistationError as exc:
        click.echo(f"aistation: {exc}", err=True)
        sys.exit(EXIT_COULD_NOT_RUN)
    except BrokenPipeError:
        # the reader (head, less) went away; nothing of ours failed
        sys.stderr.close()
        sys.exit(EXIT_OK)
