"""What the documentation tells people to type exists: commands with their options, and settings with their keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import click
import pytest

from aistation_slurm.cli import cli
from aistation_slurm.config import parse

TOP = Path(__file__).resolve().parents[3]
PAGES = sorted([TOP / "README.md", TOP / "CONTRIBUTING.md", *(TOP / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEFORE = re.compile(r"^(?:[$#] |sudo |[\w@%-]+: )*(?:(?:clush|srun|dmesg|journalctl)\b[^|]*?\| *)?(?:/\S+/)?aistation ")
END = re.compile(r"\s(?:[|>]|2>|&&|;)|\s{2,}|\s#")
"""Where a command's own words are over: a pipe, a redirection, or the text beside it."""


def fences(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each block of the page."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        yield match.group(1), match.group(2)


def commands(page: Path) -> Iterator[list[str]]:
    """The words after ``aistation`` of each command line in a block of the page, or between backticks in its text."""
    text = page.read_text(encoding="utf-8")
    lines = [line.strip() for _, block in fences(page) for line in block.replace("\\\n", " ").splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    for line in lines:
        start = BEFORE.match(line)
        if start is None:
            continue
        words = END.split(line[start.end() :], maxsplit=1)[0].replace("...", "").strip()
        if words and not words.startswith("<"):
            yield shlex.split(words)


def wrong(words: list[str]) -> Optional[str]:
    """What the command line does not know of these words; None where it knows all."""
    command: click.Command = cli
    context = click.Context(cli, info_name="aistation")
    rest = list(words)
    while isinstance(command, click.Group):
        if not rest or rest[0].startswith("-"):
            break
        name, *after = rest
        options = [name] if "|" not in name else name.split("|")
        found = [command.get_command(context, option.strip("{}")) for option in options]
        if any(each is None for each in found):
            return f"no command {name!r}"
        command, rest = found[0] or command, after
        context = click.Context(command, info_name=name, parent=context)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    for word in rest:
        if word.startswith("-") and word != "-" and word.strip("[]").partition("=")[0] not in known:
            return f"no option {word!r} of {context.command_path}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_commands_exist(page: Path) -> None:
    assert [f"aistation {' '.join(words)}: {why}" for words in commands(page) if (why := wrong(words))] == []


def test_a_wrong_command_is_seen() -> None:
    assert wrong(["check", "--act"]) is None
    assert wrong(["chekc"]) == "no command 'chekc'"
    assert wrong(["check", "--akt"]) == "no option '--akt' of aistation check"
    assert wrong(["ckpt", "inspekt", "DIR"]) == "no command 'inspekt'"
    assert len([words for page in PAGES for words in commands(page)]) > 100


@pytest.mark.parametrize("page", [p for p in PAGES if "toml\n" in p.read_text()], ids=lambda page: page.name)
def test_settings_exist(page: Path) -> None:
    for language, block in fences(page):
        if language == "toml":
            parse(block, page.name)
