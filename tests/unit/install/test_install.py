"""`aistation install`: idempotent, never over a person's changes, and gone again without a trace."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from aistation_slurm.cli import install as cli
from aistation_slurm.cli.install import command
from aistation_slurm.config import Config, parse
from aistation_slurm.doctor.conf_file import read_conf
from aistation_slurm.doctor.plugstack import read_plugstack
from aistation_slurm.errors import InstallError
from aistation_slurm.install.apply import MANIFEST, apply, read_manifest, uninstall
from aistation_slurm.install.plan import CHAINS, Planned, Settings, plan
from aistation_slurm.install.snippets import sample_toml

PREFIX = str(Path(__file__).resolve().parents[3])


def settings(**changed: object) -> Settings:
    return Settings(**{"prefix": PREFIX, **changed})  # type: ignore[arg-type]


def tree(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def whats(root: Path, planned: list[Planned]) -> dict[str, str]:
    return {Path(done.path).name: done.what for done in apply(root, planned, {})}


def test_twice_is_once(tmp_path: Path) -> None:
    first = apply(tmp_path, plan(settings()), {})
    before = tree(tmp_path)
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in before}
    second = apply(tmp_path, plan(settings()), {})
    assert {done.what for done in first} == {"written"}
    assert {done.what for done in second} == {"unchanged"}
    assert tree(tmp_path) == before
    assert times == {name: (tmp_path / name).stat().st_mtime_ns for name in before}


def test_dry_run_changes_nothing(tmp_path: Path) -> None:
    done = apply(tmp_path, plan(settings()), {}, dry_run=True)
    assert {one.what for one in done} == {"written"}
    assert list(tmp_path.iterdir()) == []


def test_an_edited_file_is_kept_and_the_new_one_lies_beside_it(tmp_path: Path) -> None:
    old, new = Planned("etc/x.conf", "old\n"), Planned("etc/x.conf", "new\n")
    apply(tmp_path, [old], {})
    path = tmp_path / "etc/x.conf"
    assert whats(tmp_path, [new]) == {"x.conf": "updated"}
    path.write_text("mine\n")
    done = apply(tmp_path, [old], {})
    assert (done[0].what, "it was changed" in done[0].why) == ("kept", True)
    assert (path.read_text(), (tmp_path / "etc/x.conf.new").read_text()) == ("mine\n", "old\n")
    assert whats(tmp_path, [old]) == {"x.conf": "kept"}


def test_a_file_of_somebody_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc/x.conf"
    path.write_text("theirs\n")
    assert whats(tmp_path, [Planned("etc/x.conf", "ours\n")]) == {"x.conf": "kept"}
    assert path.read_text() == "theirs\n"
    done = uninstall(tmp_path)
    assert [(Path(one.path).name, one.what) for one in done] == [("x.conf.new", "removed")]
    assert path.read_text() == "theirs\n"


def test_what_is_written_once_is_then_the_sites(tmp_path: Path) -> None:
    apply(tmp_path, plan(settings()), {})
    toml = tmp_path / "etc/aistation/aistation.toml"
    toml.write_text('mode = "enforce"\n')
    assert whats(tmp_path, plan(settings()))["aistation.toml"] == "kept"
    assert toml.read_text() == 'mode = "enforce"\n'
    assert not (tmp_path / "etc/aistation/aistation.toml.new").exists()


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / "etc").mkdir(parents=True)
    (outside / "passwd").write_text("root\n")
    (root / "etc/x.conf").symlink_to(outside / "passwd")
    assert whats(root, [Planned("etc/x.conf", "ours\n")]) == {"x.conf": "kept"}
    assert (outside / "passwd").read_text() == "root\n"
    (root / "var").symlink_to(outside)
    with pytest.raises(InstallError, match="leads out of"):
        apply(root, [Planned("var/y.conf", "ours\n")], {})


def test_uninstall_removes_all_but_the_sites_changes(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=x\n")
    apply(tmp_path, plan(settings()), {})
    (tmp_path / "etc/logrotate.d/aistation").write_text("# mine\n")
    in_use = [f"/{'etc/slurm/aistation.conf'}"]
    kept = {Path(one.path).name: one.why for one in uninstall(tmp_path, in_use) if one.what == "kept"}
    assert set(kept) == {"aistation", "aistation.conf"}
    assert "slurm.conf still names it" in kept["aistation.conf"]
    uninstall(tmp_path)
    assert set(tree(tmp_path)) == {"etc/slurm/slurm.conf", "etc/logrotate.d/aistation"}
    assert not (tmp_path / "etc/systemd").exists()


def test_the_snippets_are_what_slurm_and_doctor_read(tmp_path: Path) -> None:
    apply(tmp_path, plan(settings(chains={"TaskProlog": "/etc/slurm/tp.sh"})), {})
    conf = read_conf(tmp_path / "etc/slurm/aistation.conf")
    assert conf.faults == ()
    given = {key: settings[-1].value for key, settings in conf.settings.items()}
    assert given["prolog"] == f"{PREFIX}/prolog/aistation-prolog"
    assert given["taskprolog"] == "/etc/aistation/wrappers/task-prolog"
    assert given["prologflags"] == "Alloc,DeferBatch"
    [plugin] = read_plugstack(tmp_path / "etc/slurm/plugstack.aistation.conf").plugins
    assert (plugin.required, plugin.path) == (False, f"{PREFIX}/slurm_plugins/spank_aistation.so")


def test_the_settings_file_starts_by_observing_and_the_sample_is_all_defaults(tmp_path: Path) -> None:
    apply(tmp_path, plan(settings()), {})
    assert parse((tmp_path / "etc/aistation/aistation.toml").read_text(), "f").mode == "observe"
    sample = sample_toml()
    assert parse(sample, "sample") == Config()
    # the settings taken out of their comments are the defaults; tables that a site names itself are left out
    lines, skip = [], False
    for line in sample.splitlines():
        if not line.startswith("# ") or line.startswith("# Every"):
            continue
        text = line[2:]
        if text.startswith("["):
            skip = "NAME" in text or text.startswith("[[")
        if not skip and " =  # " not in text:
            lines.append(text)
    assert parse("\n".join(lines), "sample") == Config()


def test_roles() -> None:
    def names(role: str) -> set[str]:
        return {Path(one.path).name for one in plan(settings(role=role))}

    assert "aistation-agent.service" in names("node") - names("controller")
    assert "aistation-watchdog.service" in names("controller") - names("node")
    assert names("submit") == {
        "aistation.toml",
        "aistation.toml.sample",
        "aistation.conf",
        "plugstack.aistation.conf",
    }


def test_another_prefix_user_and_command_reach_every_file() -> None:
    made = plan(settings(command="/srv/ais/.venv/bin/aistation", slurm_user="slurmadm", chains={"Epilog": "/e"}))
    text = {Path(one.path).name: one.text for one in made}
    assert f"{PREFIX}/epilog/aistation-epilog\n" in text["epilog"]
    assert "ExecStart=/srv/ais/.venv/bin/aistation agent" in text["aistation-agent.service"]
    assert "\nUser=slurmadm\nGroup=slurmadm\n" in text["aistation-watchdog.service"]
    assert "0700 slurmadm slurmadm -" in text["aistation-controller.conf"]
    assert parse(text["aistation.toml"], "f").sweep.program == "/srv/ais/.venv/bin/aistation"
    text.pop("aistation.toml.sample")  # has defaults
    assert "/usr/bin/aistation" not in "".join(text.values()).replace("/srv/ais/.venv/bin/aistation", "")


@pytest.mark.parametrize(
    "changed",
    [
        {"prefix": "relative"},
        {"prefix": "/opt/a b"},
        {"slurm_user": "a;b"},
        {"chains": {"Epilog": "/etc/x'; rm -rf /"}},
        {"chains": {"Epilog": "/etc/../x"}},
        {"chains": {"Epilog": "/etc/aistation/wrappers/epilog"}},
        {"prefix": "/nonexistent"},
    ],
    ids=str,
)
def test_what_cannot_stand_in_a_script_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InstallError):
        plan(settings(**changed))


def run(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(command, ["--prefix", PREFIX, *args])
    return done.exit_code, done.output


def test_chains_are_remembered(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert run("--into", root, "--chain", "taskprolog=/etc/slurm/tp.sh")[0] == 0
    assert read_manifest(tmp_path).chains == {"TaskProlog": "/etc/slurm/tp.sh"}
    code, out = run("--into", root)
    assert (code, "updated" in out) == (0, False)
    assert "TaskProlog=/etc/aistation/wrappers/task-prolog" in (tmp_path / "etc/slurm/aistation.conf").read_text()
    run("--into", root, "--chain", "TaskProlog=")
    assert f"TaskProlog={PREFIX}/prolog" in (tmp_path / "etc/slurm/aistation.conf").read_text()


def test_printing_writes_nothing(tmp_path: Path) -> None:
    code, out = run("--into", str(tmp_path), "--print", "--json")
    assert code == 0
    assert {one["path"] for one in json.loads(out)} >= {"/etc/systemd/system/aistation-agent.service"}
    assert list(tmp_path.iterdir()) == []


def test_a_bad_chain_is_wrong_usage() -> None:
    assert run("--print", "--chain", "Foo=/x")[0] == 2
    assert run("--print", "--chain", "Prolog")[0] == 2


def test_uninstall_leaves_what_slurm_conf_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    (tmp_path / "aistation.conf").write_text("Prolog=/etc/aistation/wrappers/prolog\n")
    conf.write_text("Include aistation.conf\nJobSubmitPlugins=lua\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    wanted = {"aistation.conf", "job_submit.lua", "aistation.lua"}
    assert {f"{tmp_path}/{name}" for name in wanted} | {"/etc/aistation/wrappers/prolog"} <= cli._in_use()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    apply(tmp_path, plan(settings(command="/bin/true")), {})
    for name in ("aistation-check.service", "aistation-check.timer"):
        argv = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "etc/systemd/system" / name)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert [line for line in done.stderr.splitlines() if name in line] == []


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="systemd is not installed")
def test_tmpfiles_are_taken(tmp_path: Path) -> None:
    apply(tmp_path, plan(settings(slurm_user="root")), {})
    argv = ["systemd-tmpfiles", "--create", f"--root={tmp_path}"]
    argv += [str(p) for p in (tmp_path / "etc/tmpfiles.d").iterdir()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert stat.S_IMODE((tmp_path / "var/spool/aistation/events").stat().st_mode) == 0o700


def test_the_manifest_is_not_believed_blindly(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(InstallError, match="cannot be read"):
        apply(tmp_path, [], {})


def test_every_chain_has_its_template() -> None:
    for template, _ in CHAINS.values():
        path = Path(PREFIX) / "packaging/wrappers" / template
        assert path.exists()
        assert template.endswith(".lua") or os.access(path, os.X_OK)
