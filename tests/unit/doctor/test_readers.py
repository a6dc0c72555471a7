"""slurm.conf and its neighbours as Slurm reads them: includes, continuation, comments, case, ranges."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aistation_slurm.doctor.conf_file import names_of, read_conf, read_records
from aistation_slurm.doctor.elf import spank_release
from aistation_slurm.doctor.files import look_at
from aistation_slurm.doctor.host import dropped_hooks
from aistation_slurm.doctor.plugstack import read_plugstack
from aistation_slurm.doctor.scontrol import nodes_from_text, shown_from_text
from aistation_slurm.errors import ConfigError, SlurmUnavailable


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder / "slurm.conf"


def test_lines(tmp_path: Path) -> None:
    conf = read_conf(
        write(
            tmp_path,
            slurm__conf="# comment\n"
            "ClusterName=Train SlurmctldHost=ctl1(10.0.0.1)  # two on one line\n"
            "slurmctldhost=ctl2\n"
            "SchedulerParameters=a,\\\nb\n"
            "PROLOGFLAGS = Alloc\n"
            'PrEpParameters="x y"\n'
            "JobRequeue=0\njobrequeue=1\n",
        )
    )
    assert conf.faults == ()
    assert [s.value for s in conf.settings["slurmctldhost"]] == ["ctl1(10.0.0.1)", "ctl2"]
    assert conf.get("PrologFlags") is not None
    last = conf.get("JobRequeue")
    assert last is not None
    assert (last.value, last.line) == ("1", 9)
    joined = conf.get("SchedulerParameters")
    assert joined is not None
    assert (joined.value, joined.line) == ("a,b", 4)
    quoted = conf.get("PREPPARAMETERS")
    assert quoted is not None
    assert quoted.value == "x y"


def test_includes_are_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    conf = read_conf(
        write(
            tmp_path,
            slurm__conf="ClusterName=Train\nKillWait=10\ninclude nodes-%c.conf\nInclude conf.d/more.conf\n",
            **{"nodes-train__conf": "NodeName=gpu[1-3] CPUs=4\n", "conf.d/more__conf": "KillWait=20\n"},
        )
    )
    assert conf.faults == ()
    assert conf.nodes() == ("gpu1", "gpu2", "gpu3")
    kill = conf.get("killwait")
    assert kill is not None
    assert (kill.value, kill.file, kill.line) == ("20", f"{tmp_path}/conf.d/more.conf", 1)
    assert [Path(name).name for name in conf.files] == ["slurm.conf", "nodes-train.conf", "more.conf"]


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    conf = read_conf(write(tmp_path, slurm__conf="Include slurm.conf\n"))
    assert "it includes itself" in conf.faults[0].message


def test_defaults_of_nodes_and_partitions(tmp_path: Path) -> None:
    text = (
        "NodeName=DEFAULT Gres=gpu:8 Weight=5\nNodeName=a[1-2]\nNodeName=DEFAULT Gres=gpu:4\nNodeName=b1,b2 Weight=1\n"
    )
    conf = read_conf(write(tmp_path, slurm__conf=text))
    found = {record.name: record.keys for record in conf.of_kind("nodename")}
    assert (found["a[1-2]"]["gres"], found["a[1-2]"]["weight"]) == ("gpu:8", "5")
    assert (found["b1,b2"]["gres"], found["b1,b2"]["weight"]) == ("gpu:4", "1")
    assert conf.nodes() == ("a1", "a2", "b1", "b2")


@pytest.mark.parametrize("text", ["just words\n", "Include a*.conf\n", "Include\n", "NodeName=x[1-\n", "Key=\n"])
def test_what_slurm_would_not_read(text: str, tmp_path: Path) -> None:
    conf = read_conf(write(tmp_path, slurm__conf=f"ClusterName=a\n{text}"))
    assert [(fault.file, fault.line) for fault in conf.faults] == [(str(tmp_path / "slurm.conf"), 2)]


def test_no_slurm_conf_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_conf(tmp_path / "slurm.conf")


def test_gres_conf_is_a_list_of_records(tmp_path: Path) -> None:
    text = "AutoDetect=off\nNodeName=gpu[1-2] Name=gpu Type=h100 \\\n File=/dev/nvidia[0-7] # all\n"
    conf = read_records(write(tmp_path, slurm__conf=text))
    assert [record.keys.get("file") for record in conf.records] == [None, "/dev/nvidia[0-7]"]
    assert conf.records[1].line == 2


def test_plugstack(tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d/b.conf").write_text("required b.so x=1 y\n")
    (tmp_path / "plugstack.conf.d/a.conf").write_text("OPTIONAL /usr/lib/a.so#comment\n")
    path = tmp_path / "plugstack.conf"
    path.write_text("include plugstack.conf.d/*.conf\nwhat is this\n")
    stack = read_plugstack(path)
    assert [(p.required, p.path, p.args) for p in stack.plugins] == [
        (False, "/usr/lib/a.so", ()),
        (True, "b.so", ("x=1", "y")),
    ]
    assert [fault.line for fault in stack.faults] == [2]


CONFIG = """\
Configuration data as of 2026-12-01T12:34:23
EpilogSlurmctld         = (null)
KillWait                = 5 sec
Prolog[0]               = /a
Prolog[1]               = /b
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 24.11.5
Slurmctld(primary) at ctl1 is DOWN
Slurmctld(backup) at ctl2 is UP
"""


def test_show_config() -> None:
    shown = shown_from_text(CONFIG)
    assert (shown.release, shown.conf, shown.silent) == ((24, 11), "/etc/slurm/slurm.conf", ("ctl1",))
    assert (shown.keys["prolog"], shown.keys["killwait"]) == ("/a,/b", "5 sec")
    assert shown.time is not None
    with pytest.raises(SlurmUnavailable):
        shown_from_text("hello")


def test_hooks_that_slurmctld_dropped() -> None:
    start = "[x] slurmctld version 22.05.8 started on cluster a\n"
    missing = "[x] error: Invalid EpilogSlurmctld(`/x`): No such file or directory\n"
    assert dropped_hooks(start + missing) == {"EpilogSlurmctld"}
    assert dropped_hooks(start + missing + start) == frozenset()
    assert dropped_hooks(missing) == frozenset(), "of which start is not known"


def test_show_node() -> None:
    text = (
        "NodeName=n1 Arch=x86_64\n   AvailableFeatures=ib,h100\n   ActiveFeatures=ib\n"
        "   Gres=gpu:h100:8\n   GresDrain=N/A\n   GresUsed=gpu:h100:2(IDX:0-1)\n"
        "   NodeAddr=10.0.0.1 NodeHostName=host1 Version=22.05.8\n   State=IDLE+DRAIN ThreadsPerCore=1\n"
        "   Reason=ais:gpu.lost Version=9 [root@now]\n\nNodeName=n2 \n   NodeAddr=n2 NodeHostName=n2 \n   State=DOWN\n"
    )
    one, two = nodes_from_text(text)
    assert (one.hostname, one.version, one.state, one.features) == ("host1", "22.05.8", "IDLE+DRAIN", ("ib", "h100"))
    assert (two.hostname, two.version, two.features) == ("n2", "", ())
    assert (one.gpus_used, two.gpus_used) == (2, 0)


@pytest.mark.parametrize(("text", "count"), [("n[1-3]", 3), ("n1,n[5-6]", 3), ("n[1-", 0)])
def test_hostlists(text: str, count: int) -> None:
    assert len(names_of(text)) == count


def test_a_spank_plugin_tells_its_release(tmp_path: Path) -> None:
    source, made = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text('const char plugin_name[] = "x";\nconst unsigned int plugin_version = 0x180b05;\n')
    built = subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], capture_output=True, timeout=60, check=False)
    if built.returncode != 0:
        pytest.skip("no C compiler")
    assert spank_release(made) == (24, 11)
    for cut in (0, 10, 100, 1000):
        made.write_bytes(made.read_bytes()[:cut] if cut else b"")
        assert spank_release(made) is None
    assert spank_release(tmp_path / "none.so") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_as_they_lie(tmp_path: Path) -> None:
    script = tmp_path / "hook"
    script.write_text("#!/nowhere/python -I\n# aistation\n")
    fact = look_at(str(script))
    assert (fact.exists, fact.executable, fact.interpreter, fact.interpreter_exists) == (
        True,
        False,
        "/nowhere/python",
        False,
    )
    script.chmod(0o755)
    assert look_at(str(script)).executable
    assert look_at(str(script), (0, script.stat().st_uid)).loose == ""
    script.chmod(0o757)
    assert look_at(str(script), (0, script.stat().st_uid)).loose == f"{script} is writable for everybody"
    script.chmod(0o755)
    script.chmod(0o775)
    os.chown(script, -1, 54321)
    assert look_at(str(script), (0, script.stat().st_uid)).loose == f"{script} is writable for its group"
    script.chmod(0o755)
    assert "belongs to the user" in look_at(str(script), (12345,)).loose
    assert look_at(str(tmp_path / "none")).exists is False
    assert look_at(str(tmp_path)).is_file is False
    link = tmp_path / "link"
    link.symlink_to(link)
    assert look_at(str(link)).exists is False
