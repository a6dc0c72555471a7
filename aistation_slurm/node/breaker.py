"""The mass-drain breaker as nodes see it: ``<state_dir>/breaker`` with ``open <expires, unix time> <why>``.

The controller opens it when more nodes than a site allows would be drained at once; then a common cause is likelier than
so many broken nodes. A missing, expired or damaged file means: closed.
"""

from __future__ import annotations

import os

__all__ = ["breaker_open"]


def breaker_open(state_dir: str, now: float) -> bool:
    """True while no node should be drained (``now``: unix time)."""
    try:
        fd = os.open(f"{state_dir}/breaker", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        words = os.read(fd, 512).split(None, 2)
        return len(words) >= 2 and words[0] == b"open" and float(words[1]) > now
    except (OSError, ValueError):
        return False
    finally:
        os.close(fd)
