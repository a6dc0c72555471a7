"""The reference page, the schema and `aistation config`: generated, complete, and in step with the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from aistation_slurm.cli.config import command
from aistation_slurm.config import Config, parse
from aistation_slurm.config.keys import sections, toml_text
from aistation_slurm.config.origin import values
from aistation_slurm.config.reference import markdown, schema

PAGE = Path(__file__).resolve().parents[3] / "docs/configuration.md"


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, list(args))
    return done.exit_code, done.output


def test_every_key_says_what_it_is_for() -> None:
    silent = [f"{section.name}.{key.name}" for section in sections() for key in section.keys if not key.why]
    assert silent == [], "write a docstring below the field in aistation_slurm/config/"
    assert [section.name for section in sections() if not section.why] == []


def test_the_committed_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: aistation config reference > docs/configuration.md"


def test_the_page_has_types_units_defaults_and_reasons() -> None:
    page = markdown()
    assert "| `budget_s` | number > 0 | seconds | `8` | All of the prolog; stays below Slurm's MessageTimeout" in page
    assert "## [watchdog.restart.hang]" in page
    assert "## [[expect.mounts]]" in page
    assert '## [checks."NAME"]' in page


def test_every_default_on_the_page_is_one_that_the_file_takes() -> None:
    lines: list[str] = []
    for section in sections():
        if section.name.startswith("[") or "NAME" in section.name:
            continue  # tables that are only there when a site writes them
        lines.append(f"[{section.name}]" if section.name else "")
        lines += [f"{key.name} = {key.default}" for key in section.keys if key.default != "unset"]
    assert parse("\n".join(lines), "defaults.toml") == Config()


def test_schema_describes_what_the_decoder_takes() -> None:
    made = schema()
    gate = made["$defs"]["Gate"]["properties"]["budget_s"]
    assert gate["description"].endswith("Unit: seconds.")
    assert (gate["type"], gate["exclusiveMinimum"]) == ("number", 0)
    assert made["$defs"]["Config"]["additionalProperties"] is False
    assert set(made["$defs"]["Config"]["properties"]) == set(Config.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[gate]\nbudget_s = '8 s'\n",
            "f.toml:2: gate.budget_s: expected `float`, got `str`; give a plain number, in seconds",
        ),
        ("[gate]\nbudget_ms = 8000\n", "f.toml:2: unknown key 'budget_ms' in [gate] (did you mean 'budget_s'?)"),
        ("unkillable_s = 3\n", "f.toml:1: unknown key 'unkillable_s' in the top level (it belongs into [watchdog])"),
        (
            "[watchdog.restart.hang]\nlimits = 3\n",
            "f.toml:2: unknown key 'limits' in [watchdog.restart.hang] (did you",
        ),
    ],
)
def test_typing_errors(text: str, said: str) -> None:
    with pytest.raises(Exception) as caught:
        parse(text, "f.toml")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


FILE = """\
mode = "observe"
[gate]
budget_s = 9
[checks."gpu.throttle"]
enabled = false
[[expect.mounts]]
path = "/scratch"
[[expect.mounts]]
path = "/home"
writable = false
[watchdog.restart.hang]
limit = 7
"""


def test_origin_of_every_value() -> None:
    found = values(parse(FILE, "f"), msgspec.toml.decode(FILE), FILE)
    given = {(value.section, value.key): (value.value, value.line) for value in found if value.line}
    assert given == {
        ("", "mode"): ('"observe"', 1),
        ("gate", "budget_s"): ("9", 3),
        ('checks."gpu.throttle"', "enabled"): ("false", 5),
        ("expect.mounts[0]", "path"): ('"/scratch"', 7),
        ("expect.mounts[1]", "path"): ('"/home"', 9),
        ("expect.mounts[1]", "writable"): ("false", 10),
        ("watchdog.restart.hang", "limit"): ("7", 12),
    }


def test_show_prints_a_file_that_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "aistation.toml"
    path.write_text(FILE)
    code, out = run("show", "--origin", str(path))
    assert code == 0
    assert parse(out, "shown.toml") == parse(FILE, "f")
    assert f"budget_s = 9  # {path}:3" in out
    assert "poll_s = 30  # default" in out
    code, out = run("show", "--changed", "--json", str(path))
    assert {"key": "gate.budget_s", "value": 9.0, "origin": f"{path}:3"} in json.loads(out)
    assert len(json.loads(out)) == 7


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "aistation.toml"
    path.write_text("[gate]\nbudget = 3\n")
    code, out = run("check", str(path))
    assert (code, out.count("\n")) == (1, 1)
    assert out.startswith(f"{path}:2: unknown key 'budget' in [gate] (did you mean 'budget_s'?)")
    code, out = run("check", "--json", str(path))
    assert (code, json.loads(out)["problem"].startswith(f"{path}:2:")) == (1, True)
    path.write_text("")
    monkeypatch.setenv("AISTATION_CONFIG", str(path))
    assert run("check") == (0, f"{path}: can be used\n")


def test_schema_and_reference_are_commands() -> None:
    assert json.loads(run("schema")[1]) == schema()
    assert run("reference")[1] == markdown()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unset"), (True, "true"), (8.0, "8"), (1e-12, "1e-12"), (("a",), '["a"]'), ('a"b', '"a\\"b"')],
)
def test_defaults_as_toml(value: Any, text: str) -> None:
    assert toml_text(value) == text
