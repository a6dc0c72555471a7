"""Refusals that the gate could not tell Slurm of (node/refusals.py), told as soon as Slurm answers.

With the controller silent, Slurm later drains the node itself, with the reason ``Prolog error``
(slurmctld's validate_node_specs, the same text in 22.05 and 26.05), which says nothing and which nobody takes back. Where a
refusal of this boot explains it, ours takes its place; no other reason is ever touched. The node's Comment names the refused
jobs in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Optional

from aistation_slurm.config import Config
from aistation_slurm.node import acted, refusals
from aistation_slurm.node.drain import drain_lock, look
from aistation_slurm.node.lock import agent_is_running
from aistation_slurm.node.own_name import OwnName
from aistation_slurm.node.refusals import Refusal
from aistation_slurm.node.state import boot_id
from aistation_slurm.slurm.client import Node, SlurmClient

__all__ = ["PROLOG_ERROR", "cause_of", "settle", "settle_without_agent", "unsettled"]

log = logging.getLogger(__name__)

PROLOG_ERROR = "Prolog error"
AWAITED_S = 300.0
"""After the controller answers again, slurmd tells it of the failed prolog within seconds; later it is another prolog's."""
CLOCKS_S = 60.0
"""By which the controller's clock may be behind this node's."""


def unsettled(state_dir: str) -> list[Refusal]:
    """Refusals of this boot that Slurm may not know all of, the newest last. Reads files only."""
    return [r for r in refusals.read_all(state_dir, boot_id()) if r.progress != refusals.CLOSED]


def cause_of(node: Node, refused: Sequence[Refusal]) -> Optional[Refusal]:
    """The refusal that made Slurm drain this node: the newest before the drain. None for any other drain, or for none."""
    if not node.drained or node.reason != PROLOG_ERROR:
        return None
    before = [r for r in refused if node.reason_time is None or r.time <= node.reason_time + CLOCKS_S]
    return max(before, key=lambda r: r.time, default=None)


def settle(config: Config, name: str, client: SlurmClient, now: float) -> str:
    """Tell Slurm what is unsettled about this node. What was done, "" for nothing. No request where all is settled.

    Raises SlurmUnavailable and SlurmRefused: call again later.
    """
    state_dir = config.node.state_dir
    refused = unsettled(state_dir)
    if not refused or not config.enforcing(config.agent):
        return ""
    with drain_lock(state_dir):
        node = look(client, name)
        cause = cause_of(node, refused)
        fields = {} if cause is None else {"Reason": cause.reason}
        comment = refusals.comment_field(node.comment, [(r.job_id, r.time) for r in refused])
        if comment is not None:
            fields["Comment"] = comment
        if fields:
            client.update_node(name, **fields)
        said = _adopted(client, name, cause, state_dir) if cause is not None else ""
        for refusal in refused:
            _advance(state_dir, refusal, node.drained, now)
    return said


def settle_without_agent(config: Config, own_name: OwnName, client: SlurmClient, now: float) -> str:
    """The same from cron: an agent that runs does it itself. Raises as :func:`settle` does."""
    if not unsettled(config.node.state_dir) or agent_is_running(config.node.state_dir):
        return ""
    return settle(config, own_name.certain(client), client, now)


def _adopted(client: SlurmClient, name: str, cause: Refusal, state_dir: str) -> str:
    after = look(client, name)
    if not after.drained or after.reason != cause.reason:
        log.warning(
            "%s: changed by someone else in the same moment; %s is now: %s",
            name,
            PROLOG_ERROR,
            after.reason or "resumed",
        )
        return ""
    try:
        acted.write(state_dir, acted.read(state_dir) | {(cause.check, cause.subject)})
    except OSError as exc:
        log.warning("%s/acted: %s", state_dir, exc)
    return f"{name}: the gate refused job {cause.job_id}, so Slurm's {PROLOG_ERROR} is now {cause.reason}"


def _advance(state_dir: str, refusal: Refusal, drained: bool, now: float) -> None:
    """A drain, whosever it is, is the end of it: Slurm adds none of its own to a drained node."""
    waited = refusal.progress == refusals.TOLD and now - refusal.since > AWAITED_S
    if drained or waited:
        refusal.progress, refusal.since = refusals.CLOSED, int(now)
    elif refusal.progress == refusals.OPEN or refusal.since > now:
        refusal.progress, refusal.since = refusals.TOLD, int(now)
    else:
        return
    try:
        refusals.keep(state_dir, refusal)
    except OSError as exc:
        log.warning("%s/refusals: %s", state_dir, exc)
