"""A changed aistation.toml under a running daemon (SIGHUP): taken whole, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import msgspec

from aistation_slurm.config.file import chosen_path, load
from aistation_slurm.config.model import Config
from aistation_slurm.errors import ConfigError

__all__ = ["Reloader"]

log = logging.getLogger(__name__)


class Reloader:
    """Reads the file that was read at the start.

    restart: keys such as ``slurm`` or ``node.state_dir`` that only a new start can put in force; their old values stay.
    """

    def __init__(self, restart: Sequence[str], path: Optional[Path] = None) -> None:
        self.path = chosen_path(path)[0]
        self._given, self._restart = path, restart
        self._existed = self.path.exists()

    def reload(self, old: Config) -> Optional[Config]:
        """The new settings, or None where the file cannot be used and the old ones stay. Says what became of it; never raises."""
        try:
            if self._existed and not self.path.exists():
                # a default file that is gone would mean every default, enforcing included: rather a mistake than a wish
                raise ConfigError(f"{self.path}: no such file any more; an empty file means every default")
            new = load(self._given)
        except ConfigError as exc:
            log.error("settings not changed, the old ones stay in force: %s", exc)
            return None
        self._existed = self.path.exists()
        waiting = []
        for key in self._restart:
            if _get(old, key) != _get(new, key):
                waiting.append(key)
                new = _with(new, key, _get(old, key))
        if waiting:
            log.warning("%s: %s changed: put in force by a restart alone", self.path, ", ".join(waiting))
        log.warning("%s", f"settings read anew from {self.path}" if new != old else f"{self.path} has nothing new")
        return new


def _get(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _with(struct: Any, key: str, value: Any) -> Any:
    name, _, rest = key.partition(".")
    inner = _with(getattr(struct, name), rest, value) if rest else value
    return msgspec.structs.replace(struct, **{name: inner})
