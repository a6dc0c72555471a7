"""aistation.toml: strict decoding, and messages that name file, line and the allowed keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from aistation_slurm import config
from aistation_slurm.errors import ConfigError


def test_no_default_file_means_every_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AISTATION_CONFIG", raising=False)
    monkeypatch.setattr(config.file, "DEFAULT_PATH", tmp_path / "absent.toml")
    assert config.load() == config.Config()


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AISTATION_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigError, match=r"absent\.toml: no such file; name an existing one"):
        config.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[gate]\n# why\nbudjet_s = 3\n",
            "f.toml:3: unknown key 'budjet_s' in [gate] (did you mean 'budget_s'?). "
            "Allowed: budget_s, live_deadline_s, max_age_s, mode, refuse",
        ),
        (
            "[gaet]\nmode = 'observe'\n",
            "f.toml:1: unknown key 'gaet' in the top level (did you mean 'gate'?). Allowed: ",
        ),
        ("\nmode = 'dry-run'\n", "f.toml:2: mode: invalid enum value 'dry-run'. Allowed: enforce, observe"),
        ("[agent]\nmode = 'on'\n", "f.toml:2: agent.mode: invalid enum value 'on'. Allowed: enforce, observe"),
        ("[gate]\n\nbudget_s = '8'\n", "f.toml:3: gate.budget_s: expected `float`, got `str`"),
        ("[gate]\nbudget_s = -1\n", "f.toml:2: gate.budget_s: expected `float` > 0.0"),
        ("[expect]\ndisk_paths = [1]\n", "f.toml:2: expect.disk_paths[0]: expected `str`, got `int`"),
        ("a = \n", "f.toml: not valid TOML: Invalid value (at line 1, column 5)"),
    ],
)
def test_bad_text_is_one_line_with_place_and_choice(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "f.toml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_part_without_its_own_mode_follows_the_top() -> None:
    conf = config.parse("mode = 'observe'\n[watchdog]\nmode = 'enforce'\n", "f.toml")
    assert conf.enforcing(conf.watchdog)
    assert not conf.enforcing(conf.gate)


def test_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "aistation.toml"
    path.write_bytes(b"mode = '\xff'\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[checks."gpu.throttle"]\nenabled = true\nseverty = "warn"\n',
            "f.toml:3: unknown key 'severty' in [checks[...]] (did you mean 'severity'?). Allowed: action, enabled, severity",
        ),
        (
            '[checks."gpu.throttle"]\nseverity = "off"\n',
            "f.toml:2: checks[...].severity: invalid enum value 'off'. Allowed: warn, fail",
        ),
        (
            '[[expect.mounts]]\npath = "/a"\n\n[[expect.mounts]]\npath = "/b"\nwriteable = true\n',
            "f.toml:6: unknown key 'writeable' in [expect.mounts[1]] (did you mean 'writable'?). Allowed: path, type, writable",
        ),
    ],
)
def test_bad_text_inside_tables_of_tables_and_lists(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "f.toml")
    assert str(caught.value) == message


def test_rules_of_checks_by_name_and_pattern() -> None:
    conf = config.parse('[checks."gpu.*"]\nseverity = "warn"\n[checks."host.disk"]\nenabled = false\n', "f.toml")
    assert conf.checks == {"gpu.*": config.CheckRule(severity="warn"), "host.disk": config.CheckRule(enabled=False)}
