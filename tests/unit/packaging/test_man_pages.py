"""Manual pages: one for each command, with its options, and without a fault that a formatter knows."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from aistation_slurm.cli import COMMANDS

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/man_pages.py"


@pytest.fixture(scope="module")
def man_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("man_pages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_its_subcommands_have_a_page(man_pages: ModuleType) -> None:
    pages = man_pages.pages()
    for command in COMMANDS:
        assert f"aistation-{command}.1" in pages
    assert "aistation-watchdog-run.1" in pages
    assert "\\fB\\-\\-root PATH\\fP" in pages["aistation-check.1"]
    assert "\\fBbudget_s\\fP" in pages["aistation.toml.5"]


def test_examples_keep_their_lines(man_pages: ModuleType) -> None:
    assert "\n  aistation check\n" in man_pages.pages()["aistation-check.1"]


def test_a_line_never_begins_like_a_request(man_pages: ModuleType) -> None:
    assert man_pages._line(".so /etc/shadow") == "\\&.so /etc/shadow"
    assert man_pages._line("'x") == "\\&'x"


@pytest.mark.parametrize(
    "tool", [["mandoc", "-Tlint", "-Wwarning"], ["man", "--warnings=all", "-l"]], ids=lambda t: t[0]
)
def test_formatters_find_no_fault(man_pages: ModuleType, tool: list[str], tmp_path: Path) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    pages = man_pages.write(tmp_path)
    done = subprocess.run([*tool, *pages], capture_output=True, text=True, timeout=240, check=False)
    said = done.stderr if tool[0] == "man" else done.stdout + done.stderr
    assert (done.returncode, said) == (0, "")
