"""``aistation config``: check aistation.toml, and show what is in force and what there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Optional

import click
import msgspec

from aistation_slurm.cli import EXIT_PROBLEM
from aistation_slurm.config import chosen_path, parse
from aistation_slurm.config.origin import Value, values
from aistation_slurm.config.reference import markdown
from aistation_slurm.config.reference import schema as json_schema
from aistation_slurm.errors import ConfigError

__all__ = ["command"]

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))


@click.group("config")
def command() -> None:
    """Check aistation.toml, and show the settings in force, their reference and their JSON schema."""


def _read(file: Optional[Path]) -> tuple[Path, Optional[str]]:
    """The file that counts and its text; None where nobody named one and the default one is missing."""
    path, named = chosen_path(file)
    try:
        return path, path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not named:
            return path, None
        raise ConfigError(f"{path}: no such file; name an existing one") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc


@command.command("check")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, file: Optional[Path], as_json: bool) -> None:
    """Say whether FILE can be used (default: the one that is used), or in one line what is wrong with it and where.

    \b
    Exit codes: 0 it can be used, 1 it cannot, 3 it cannot be read.
    Examples:
      aistation config check
      aistation config check new.toml && cp new.toml /etc/aistation/aistation.toml
    """
    path, text = _read(file)
    problem = ""
    try:
        parse(text or "", str(path))
    except ConfigError as exc:
        problem = str(exc)
    if as_json:
        click.echo(json.dumps({"file": str(path), "exists": text is not None, "problem": problem or None}, indent=2))
    elif problem:
        click.echo(problem)
    else:
        click.echo(
            f"{path}: can be used" if text is not None else f"{path}: does not exist, so every default is in force"
        )
    if problem:
        ctx.exit(EXIT_PROBLEM)


@command.command("show")
@_FILE
@click.option("--origin", is_flag=True, help="Say for each value which line of the file it comes from.")
@click.option("--changed", is_flag=True, help="Only what the file sets.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Optional[Path], origin: bool, changed: bool, as_json: bool) -> None:
    """Print every setting in force as TOML.

    \b
    Examples:
      aistation config show --origin
      aistation config show --changed --json
    """
    path, text = _read(file)
    config = parse(text or "", str(path))
    found = values(config, msgspec.toml.decode(text or ""), text or "")
    if changed:
        found = [value for value in found if value.line]
    if as_json:
        click.echo(json.dumps([_as_json(value, path) for value in found], indent=2))
        return
    section = ""
    for value in found:
        if value.section != section:
            section = value.section
            one_of_several = re.sub(r"\[\d+\]$", "", section)
            click.echo(f"\n[{section}]" if one_of_several == section else f"\n[[{one_of_several}]]")
        line = f"{value.key} = {value.value}" if value.value != "unset" else f"# {value.key} is unset"
        click.echo(f"{line}  # {f'{path}:{value.line}' if value.line else 'default'}" if origin else line)


def _as_json(value: Value, path: Path) -> dict[str, Any]:
    key = f"{value.section}.{value.key}" if value.section else value.key
    return {"key": key, "value": value.plain, "origin": f"{path}:{value.line}" if value.line else "default"}


@command.command("schema")
def schema() -> None:
    """Print the JSON schema of aistation.toml, for editors and configuration management."""
    click.echo(json.dumps(json_schema(), indent=2))


@command.command("reference")
def reference() -> None:
    """Print the reference page of all keys (docs/configuration.md) as Markdown."""
    click.echo(markdown(), nl=False)
