"""Section ``[breaker]`` of aistation.toml: who is drained for what nodes may share, and when nobody is drained."""

from __future__ import annotations

from typing import Annotated, Optional

import msgspec

from aistation_slurm.config.values import Mode, Percent, Seconds

Few = Annotated[int, msgspec.Meta(ge=1, le=100000)]


class Breaker(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Correlated findings and the mass-drain breaker (docs/breaker.md)."""

    mode: Optional[Mode] = None
    """Unset: the watchdog's mode. ``observe``: say what would be drained and where the breaker would be open."""
    checks: tuple[str, ...] = ("fabric.*", "host.mounts", "host.clock", "host.services")
    """Checks (shell patterns) whose fail may have one cause for many nodes. Nodes publish them, the watchdog drains."""
    share_percent: Percent = 10.0
    """Of a partition's nodes, that may be drained by AIStation in the window; beyond it the breaker opens."""
    least: Few = 4
    """As many may be drained in the window in any partition: 10 % of a small one would be none."""
    window_s: Seconds = 600.0
    """A drain of ours counts for this long, unless the node is given back before."""
    together: Few = 3
    """As many nodes of one leaf switch (or with one rail, mount or service in common) have one cause; none is drained."""
    together_s: Seconds = 300.0
    """Findings that began within this time of each other belong together: a switch takes minutes to boot."""
    spread_s: Annotated[float, msgspec.Meta(ge=0, le=300)] = 10.0
    """Nodes publish a finding at a moment of this span that their name decides: no storm of requests."""
    settle_s: Optional[Annotated[float, msgspec.Meta(ge=0, le=3600)]] = None
    """A published finding waits this long for others before its node is drained. Unset: until every other node that has the
    same cause can have told so: ``node.poll_s`` (for ``host.*``: ``check.slow_every_s``), a look's length and ``spread_s``."""
    drains_per_min: Few = 4
    """The watchdog drains no more nodes than this in any minute."""
    look_s: Seconds = 10.0
    """How often the watchdog reads the nodes for this: one request."""
    calm_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    """The breaker closes when its cause has been away for this long."""
    open_s: Annotated[float, msgspec.Meta(ge=60, le=86400)] = 300.0
    """Nodes believe an open breaker for at most this long after the watchdog last said so."""
