"""Reading aistation.toml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import msgspec

from aistation_slurm.config.errors import explain
from aistation_slurm.config.model import Config
from aistation_slurm.errors import ConfigError

DEFAULT_PATH = Path("/etc/aistation/aistation.toml")


__all__ = ["DEFAULT_PATH", "chosen_path", "load", "parse"]


def chosen_path(path: Optional[Path] = None) -> tuple[Path, bool]:
    """The file that counts, and whether somebody named it: the path given, ``$AISTATION_CONFIG``, the default."""
    named = path or (Path(os.environ["AISTATION_CONFIG"]) if os.environ.get("AISTATION_CONFIG") else None)
    return (DEFAULT_PATH, False) if named is None else (named, True)


def load(path: Optional[Path] = None) -> Config:
    """Read the configuration.

    Raises ConfigError: the named file is missing or unreadable, is not TOML, or has an unknown key or a wrong type.
    """
    chosen, named = chosen_path(path)
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not named:
            return Config()
        raise ConfigError(f"{chosen}: no such file; name an existing one or unset AISTATION_CONFIG") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{chosen}: cannot be read: {exc}") from exc
    return parse(text, str(chosen))


def parse(text: str, origin: str) -> Config:
    """Decode TOML text; ``origin`` names it in messages."""
    try:
        return msgspec.toml.decode(text, type=Config)
    except msgspec.ValidationError as exc:
        raise ConfigError(explain(text, origin, str(exc))) from exc
    except (msgspec.DecodeError, ValueError) as exc:
        # tomllib's own message already ends with "(at line N, column M)"
        raise ConfigError(f"{origin}: not valid TOML: {exc}") from exc
