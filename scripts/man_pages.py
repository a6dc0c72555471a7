"""Manual pages from the commands' own help and from the configuration's reference, into a folder.

    .venv/bin/python scripts/man_pages.py dist/man          # aistation.1, aistation-check.1, ..., aistation.toml.5

click-man was tried: it joins the lines of click's verbatim paragraphs (the examples) and sees no commands that are loaded when they
are called, as ours are.
"""

from __future__ import annotations

import datetime
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from aistation_slurm import __version__
from aistation_slurm.cli import cli
from aistation_slurm.config.keys import sections

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """File name -> roff text, for every command and subcommand and for aistation.toml."""
    found = {f"{name}.1": text for name, text in _commands(cli, click.Context(cli, info_name="aistation"))}
    found["aistation.toml.5"] = _configuration()
    return found


def _commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    subcommands = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            subcommand = command.get_command(ctx, name)
            if subcommand is not None and not subcommand.hidden:
                subcommands[name] = subcommand
    yield ctx.command_path.replace(" ", "-"), _page(command, ctx, subcommands)
    for name, subcommand in subcommands.items():
        yield from _commands(subcommand, click.Context(subcommand, info_name=name, parent=ctx))


def _page(command: click.Command, ctx: click.Context, subcommands: dict[str, click.Command]) -> str:
    name = ctx.command_path.replace(" ", "-")
    summary, body = _help(command)
    lines = [_title(name, 1), ".SH NAME", f"{_text(name)} \\- {_text(summary)}", ".SH SYNOPSIS"]
    lines += [f"\\fB{_text(ctx.command_path)}\\fP {_text(' '.join(command.collect_usage_pieces(ctx)))}"]
    lines += [".SH DESCRIPTION", _line(summary + "."), *_paragraphs(body)]
    records = [record for param in command.get_params(ctx) if (record := param.get_help_record(ctx))]
    if records:
        lines.append(".SH OPTIONS")
        for option, said in records:
            lines += [".TP", f"\\fB{_text(option)}\\fP", _line(" ".join(said.split()) or "No further meaning.")]
    if subcommands:
        lines.append(".SH COMMANDS")
        for sub, subcommand in subcommands.items():
            lines += [".TP", f"\\fB{_text(name)}\\-{_text(sub)}\\fP(1)", _line(_help(subcommand)[0] + ".")]
    lines += [".SH EXIT STATUS", "0 fine, 1 a problem was found, 2 wrong usage, 3 could not run."]
    lines += [".SH SEE ALSO", "\\fBaistation\\fP(1), \\fBaistation.toml\\fP(5), \\fBslurm.conf\\fP(5)"]
    return "\n".join(lines) + "\n"


def _help(command: click.Command) -> tuple[str, str]:
    """First sentence without its full stop; the other paragraphs."""
    text = inspect.cleandoc(command.help or "").split("\f")[0]
    first, _, rest = text.partition("\n\n")
    first = " ".join(first.split())
    end = re.search(r"\.(?= [A-Z`])", first)
    if end:
        rest = f"{first[end.end() :].strip()}\n\n{rest}"
        first = first[: end.start()]
    return first.rstrip(".") or command.get_short_help_str(100).rstrip("."), rest


def _paragraphs(text: str) -> Iterator[str]:
    """click's paragraphs; one that begins with a line of \\b alone keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = paragraph.splitlines()
        if not lines:
            continue
        yield ".PP"
        if lines[0].strip() == "\b":
            yield from [".nf", *(_line(line) for line in lines[1:]), ".fi"]
        else:
            yield _line(" ".join(line.strip() for line in lines))


def _configuration() -> str:
    lines = [
        _title("aistation.toml", 5),
        ".SH NAME",
        "aistation.toml \\- settings of AIStation for Slurm",
        ".SH DESCRIPTION",
    ]
    lines.append(
        _line(
            "Read from /etc/aistation/aistation.toml; AISTATION_CONFIG names another file. Every key may be left out."
        )
    )
    lines += [
        ".PP",
        _line("`aistation config check` tests a file, `aistation config show --origin` tells what is in force."),
    ]
    for section in sections():
        if not section.keys:
            continue
        lines.append(f".SH {_text(f'[{section.name}]' if section.name else 'TOP LEVEL')}")
        if section.why:
            lines.append(_line(" ".join(section.why.replace("``", "`").split())))
        for key in section.keys:
            what = f"{key.type}, {key.unit}" if key.unit else key.type
            default = f"; default {key.default}" if key.default else ""
            lines += [".TP", f"\\fB{_text(key.name)}\\fP ({_text(what + default)})"]
            lines.append(_line(" ".join(key.why.replace("``", "`").split()) or "See the section."))
    lines += [".SH SEE ALSO", "\\fBaistation\\fP(1), \\fBaistation\\-config\\fP(1)"]
    return "\n".join(lines) + "\n"


def _title(name: str, section: int) -> str:
    # the same sources give the same pages
    made = datetime.datetime.fromtimestamp(
        int(os.environ.get("SOURCE_DATE_EPOCH", "1796083200")), datetime.timezone.utc
    )
    return f'.TH "{name.upper()}" "{section}" "{made:%Y-%m-%d}" "AIStation {__version__}" "AIStation for Slurm"'


def _text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")


def _line(text: str) -> str:
    """A line of text, which must not begin like a request of roff."""
    text = _text(text.rstrip())
    return f"\\&{text}" if text.startswith((".", "'")) else text


def write(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: man_pages.py FOLDER")
    print(f"{len(write(Path(sys.argv[1])))} manual pages in {sys.argv[1]}")
