"""A site's own layouts: through the command, at the start of a job, and what a wrong description says."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aistation_slurm.checkpoints import startup
from aistation_slurm.checkpoints.layouts import KNOWN, Layout, LayoutError, from_table, read_layouts
from aistation_slurm.checkpoints.readers import ALL
from aistation_slurm.cli import cli
from aistation_slurm.config import parse
from aistation_slurm.errors import CheckpointError, ConfigError
from tests.unit.checkpoints.trees import Inspected, inspect, put, real, zip_bytes
from tests.unit.task_prolog.slurm_tools import Tools

SITE = """
[[checkpoints.layout]]
name = "mysite"
glob = "ckpt_{step}"
marker = "DONE"
require = ["model*.bin"]
resume_args = "--restore {path}"
"""


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("etc") / "aistation.toml"
    path.write_text(SITE)
    monkeypatch.setenv("AISTATION_CONFIG", str(path))
    return path


def describe(config: Path, **more: Any) -> None:
    """One layout with these keys; TOML's strings and lists of strings look as Python's do."""
    table = {"name": "mysite", "glob": "ckpt_{step}", "resume_args": "--restore {path}", **more}
    config.write_text("[[checkpoints.layout]]\n" + "\n".join(f"{key} = {value!r}" for key, value in table.items()))


def save(root: Path, step: int, **files: bytes) -> None:
    names = {"DONE": b"", "model_0.bin": zip_bytes(), **{n.replace("__", "."): raw for n, raw in files.items()}}
    put(root, {f"ckpt_{step}/{name}": content for name, content in names.items()})


@pytest.mark.parametrize("framework", ["auto", "mysite"])
def test_the_newest_whole_one(tmp_path: Path, config: Path, framework: str) -> None:
    for step in (9, 10, 11, 12, 13):
        save(tmp_path, step)
    (tmp_path / "ckpt_11/DONE").unlink()
    (tmp_path / "ckpt_12/model_0.bin").write_bytes(b"")
    (tmp_path / "ckpt_13/model_0.bin").unlink()
    put(tmp_path, {"ckpt_best/DONE": b"", "ckpt_99": b"", "ckpt_": None})
    seen = inspect(tmp_path, ".", "--framework", framework)
    assert seen.resume == "ckpt_10"
    assert seen.json["resume"]["args"] == f"--restore {tmp_path}/ckpt_10"
    assert seen.json["resume"]["framework"] == "mysite"
    assert "DONE is missing" in seen.invalid["ckpt_11"]
    assert "model_0.bin is empty" in seen.invalid["ckpt_12"]
    assert "no file model*.bin" in seen.invalid["ckpt_13"]
    assert "DONE is missing" in seen.invalid["ckpt_99"]
    assert seen.valid == ["ckpt_10", "ckpt_9"]


def test_a_torn_file_of_a_known_format(tmp_path: Path, config: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2, model_0__bin=zip_bytes()[:200])
    seen = inspect(tmp_path)
    assert seen.step == 1
    assert "model_0.bin is cut short" in seen.invalid["ckpt_2"]


def test_empty_data_are_damage_even_where_all_are_like_that(tmp_path: Path, config: Path) -> None:
    save(tmp_path, 1, model_0__bin=b"")
    assert inspect(tmp_path).exit_code == 1


@pytest.mark.parametrize(
    ("marker", "file"),
    [("DONE", "ckpt_7.DONE"), (".done", "ckpt_7.done"), ("{name}.ok", "ckpt_7.ok"), ("saved-{step}", "saved-7")],
)
@pytest.mark.parametrize("checkpoint", ["ckpt_7/model_0.bin", "ckpt_7"])
def test_a_marker_beside(tmp_path: Path, config: Path, marker: str, file: str, checkpoint: str) -> None:
    describe(config, marker=marker, glob="ckpt_{step}*")
    put(tmp_path, {checkpoint: real})
    assert inspect(tmp_path).resume is None
    put(tmp_path, {file: b""})
    seen = inspect(tmp_path)
    assert seen.resume == "ckpt_7"
    assert len(seen.json["checkpoints"]) == 1, "a marker is no checkpoint"


def test_files_as_checkpoints_with_zeros_before_the_step(tmp_path: Path, config: Path) -> None:
    describe(config, glob="model.{step}.pth", marker="model.{step}.ok", resume_args="--resume {name} --at {step}")
    put(tmp_path, {"model.0009.pth": real, "model.0010.pth": real, "model.0009.ok": b"", "model.10.ok": b""})
    seen = inspect(tmp_path)
    assert seen.resume == "model.0009.pth"
    assert seen.json["resume"]["args"] == "--resume model.0009.pth --at 9"


def test_shards(tmp_path: Path, config: Path) -> None:
    describe(config, shards="rank_*/shard_{i}_of_{n}.bin")
    for step, count in ((1, 4), (2, 4), (3, 4)):
        put(tmp_path, {f"ckpt_{step}/rank_{i}/shard_{i}_of_{count}.bin": real for i in range(count)})
    (tmp_path / "ckpt_2/rank_3/shard_3_of_4.bin").unlink()
    put(tmp_path, {f"ckpt_3/rank_{i}/shard_{i}_of_2.bin": real for i in range(2)})
    put(tmp_path, {f"ckpt_0/rank_{i}/shard_{i}_of_2.bin": real for i in (1, 2)})
    seen = inspect(tmp_path)
    assert seen.resume == "ckpt_1"
    assert "shards 3 of 4 are missing" in seen.invalid["ckpt_2"]
    assert "different saves" in seen.invalid["ckpt_3"]
    assert seen.valid == ["ckpt_1", "ckpt_0"], "shards may count from 1"


def test_known_layouts_come_first_in_auto(tmp_path: Path, config: Path) -> None:
    describe(config, glob="checkpoint-{step}", marker="")
    put(tmp_path, {"checkpoint-1/model.safetensors": real, "checkpoint-1/trainer_state.json": real})
    assert inspect(tmp_path).json["resume"]["framework"] == "hf"
    assert inspect(tmp_path, ".", "--framework", "mysite").json["resume"]["framework"] == "mysite"


def test_below_run_folders_and_given_one_checkpoint(tmp_path: Path, config: Path) -> None:
    save(tmp_path / "runs/version_1", 5)
    assert inspect(tmp_path).resume == "runs/version_1/ckpt_5"
    assert inspect(tmp_path, "runs/version_1/ckpt_5").resume == "runs/version_1/ckpt_5"


def test_links_and_special_files(tmp_path: Path, config: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "ckpt_2").symlink_to("gone")
    save(tmp_path, 3)
    (tmp_path / "ckpt_3/model_0.bin").unlink()
    os.mkfifo(tmp_path / "ckpt_3/model_0.bin")
    seen = inspect(tmp_path)
    assert seen.resume == "ckpt_1"
    assert "dangling link" in seen.invalid["ckpt_2"]
    assert "no regular file" in seen.invalid["ckpt_3"]


def test_an_unknown_framework_names_the_known_ones(tmp_path: Path, config: Path) -> None:
    result = CliRunner().invoke(cli, ["ckpt", "inspect", str(tmp_path), "--framework", "other"])
    assert result.exit_code == 2
    assert "mysite" in result.output
    assert "megatron" in result.output


WRONG = {
    "glob without step": ({"glob": "ckpt_*"}, "glob: .* must have {step} exactly once"),
    "glob with a folder": ({"glob": "a/ckpt_{step}"}, "glob: .* has a '/'"),
    "unknown placeholder": ({"marker": "{file}"}, "marker: .* unknown placeholder {file}"),
    "open brace": ({"glob": "{step}{"}, "glob: .* not closed"),
    "way out": ({"require": ["../x"]}, "require: .* relative"),
    "absolute": ({"require": ["/etc/*"]}, "require: .* relative"),
    "shards without i": ({"shards": "of_{n}"}, "shards: .*{i}"),
    "a known name": ({"name": "hf"}, "name: 'hf' is the name of a layout that AIStation knows"),
    "no name": ({"name": "My Site"}, "name: 'My Site' is no name"),
    "no arguments": ({"resume_args": " "}, "resume_args: is empty"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_layout_is_told_with_its_key(change: dict[str, Any], message: str) -> None:
    table = {"name": "a", "glob": "c_{step}", "resume_args": "--x {path}", **change}
    with pytest.raises(LayoutError, match=message):
        from_table(table)
    text = SITE + "\n[[checkpoints.layout]]\n" + "\n".join(f"{key} = {value!r}" for key, value in table.items())
    with pytest.raises(ConfigError, match=rf"site\.toml:\d+: .*{message}"):
        parse(text, "site.toml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('globs = "x"', r"site\.toml:14: .*'globs'.*did you mean 'glob'"),
        ("marker = 5", r"site\.toml:14: .*marker"),
        ('marker = "{x}"', r"site\.toml:14: .*marker"),
        ('require = "x"', r"site\.toml:14: .*require"),
        ("[checkpoints.other]", "other"),
    ],
)
def test_a_wrong_layout_is_told_with_its_line(line: str, message: str) -> None:
    second = SITE.replace("mysite", "second").partition("marker")[0] + 'resume_args = "--r {path}"\n'
    with pytest.raises(ConfigError, match=message):
        parse(f"{SITE}{second}\n{line}\n", "site.toml")


def test_two_of_one_name() -> None:
    with pytest.raises(ConfigError, match="'mysite' is given twice"):
        parse(SITE + SITE, "site.toml")


def test_known_names() -> None:
    assert sorted(KNOWN) == sorted(reader.NAME for reader in ALL)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("ckpt_{step}", ["ckpt_7", "ckpt_007"], ["ckpt_", "xckpt_7", "ckpt_7x", "ckpt_\u0667", "ckpt_" + "9" * 19]),
        ("*_{step}.pt", ["a_7.pt", "_7.pt"], [".a_7.pt", "a_7_pt"]),
        ("s[0-9]-{step}", ["s1-7"], ["sx-7", "s-7"]),
        ("s[!a]-{step}", ["sb-7"], ["sa-7"]),
        ("s[^a]-{step}", ["s^-7", "sa-7"], ["sb-7"]),
        ("s[]a]-{step}", ["s]-7", "sa-7"], ["sb-7"]),
        ("s[-{step}", ["s[-7"], ["s-7"]),
        ("a?+(b|c)-{step}", ["ax+(b|c)-7"], ["a+b-7"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    layout = Layout("a", pattern, "--x")
    assert [name for name in yes if not layout.names.fullmatch(name)] == []
    assert [name for name in no if layout.names.fullmatch(name)] == []


def start(directory: Path, tools: Tools) -> tuple[list[str], startup.StartUp]:
    env = {
        "SLURM_JOB_ID": "5",
        "SLURM_SPANK_AISTATION_RESUME": "auto",
        "SLURM_SPANK_AISTATION_CKPT_DIR": str(directory),
    }
    this = startup.StartUp(env, slurm=tools.view())
    return this.answer(), this


@pytest.fixture
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(Path(tmp_path_factory.mktemp("slurm")))


def test_a_start_resumes_from_it(tmp_path: Path, config: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "CONFIG", config)
    save(tmp_path, 7)
    save(tmp_path, 8)
    (tmp_path / "ckpt_8/DONE").unlink()
    lines, _ = start(tmp_path, tools)
    assert f"export AISTATION_RESUME_ARGS=--restore {tmp_path}/ckpt_7" in lines
    assert "export AISTATION_RESUME_STEP=7" in lines


@pytest.mark.parametrize(
    "text",
    [
        "[checkpoints\n",
        "checkpoints = 5\n",
        "[checkpoints]\nlayout = 5\n",
        "[[checkpoints.layout]]\nname = 'x'\n",
        "[[checkpoints.layout]]\nname = 'x'\nglob = 'c_{step}'\nresume_args = '--x'\nmore = 1\n",
        "checkpoints = " + "[" * 5000 + "\n",
        "\xff checkpoints",
    ],
)
def test_a_broken_configuration_never_stops_a_job(
    tmp_path: Path, config: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(startup, "CONFIG", config)
    config.write_bytes(text.encode("latin-1"))
    put(tmp_path, {"checkpoint-3/model.safetensors": real, "checkpoint-3/trainer_state.json": real})
    lines, this = start(tmp_path, tools)
    assert "export AISTATION_RESUME_STEP=3" in lines
    assert any(note.startswith(f"warning: {config}") for note in this.notes)
    assert all(line.isprintable() for line in lines)


def test_one_wrong_layout_leaves_the_others(config: Path) -> None:
    config.write_text(SITE.replace("mysite", "Bad Name") + SITE)
    layouts, warnings = read_layouts(config)
    assert [layout.name for layout in layouts] == ["mysite"]
    assert "number 1 is not used: name: 'Bad Name'" in warnings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user")
def test_a_file_that_the_user_can_write_is_not_used(config: Path) -> None:
    for parent in config.parents:
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    for mode, owner, used in ((0o644, 0, 1), (0o666, 0, 0), (0o644, 65534, 0), (0o600, 0, 0)):
        config.chmod(mode)
        os.chown(config, owner, owner)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.setuid(65534)
            layouts, warnings = read_layouts(config)
            os.write(write, f"{len(layouts)}{len(warnings)}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        answer = os.read(read, 10).decode()
        os.close(read)
        assert answer == f"{used}{int(not used and mode != 0o600)}", f"{mode:o} of {owner}"


def test_without_the_section_nothing_is_parsed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aistation_slurm.checkpoints import layouts

    def never(raw: bytes) -> dict[str, Any]:
        raise AssertionError("parsed")

    monkeypatch.setattr(layouts, "_decode", never)
    config.write_text('mode = "observe"\n' + "# comment\n" * 100)
    assert read_layouts(config) == ([], [])
    assert read_layouts(config.with_name("missing")) == ([], [])


def test_a_broken_configuration_is_told_by_the_command(tmp_path: Path, config: Path) -> None:
    config.write_text("[checkpoints")
    seen: Inspected = inspect(tmp_path)
    assert seen.exit_code == 3
    assert str(config) in seen.output
    assert inspect(tmp_path, ".", "--framework", "hf").exit_code == 0, "not needed for that"


def test_the_start_says_nothing_usable_where_the_only_one_is_torn(
    tmp_path: Path, config: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "CONFIG", config)
    save(tmp_path, 7, model_0__bin=b"")
    with pytest.raises(CheckpointError, match="is empty"):
        start(tmp_path, tools)
