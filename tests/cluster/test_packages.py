"""deb and rpm as a site gets them: installed in a fresh Debian root, and called from there.

`make test-packages` builds them and runs this (minutes, most of them downloads); without it the tests are skipped. The root is an
overlay over the cached one of Debian 13, in a mount namespace of its own that ends with this process: the cached one is only read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.namespaces import ClusterError
from tests.cluster.roots import RELEASES, make

DIST = Path(os.environ.get("AIS_PACKAGES", "/nonexistent"))
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DIST.is_dir(), reason="no packages in $AIS_PACKAGES: run `make test-packages`"),
]
MOUNTS = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
rm -rf "$1/root/opt/aistation-test"
echo ready
cat >/dev/null
"""


class Fresh:
    """A root in the mount namespace of ``holder``."""

    def __init__(self, folder: Path, holder: subprocess.Popen[str]) -> None:
        self.folder, self.holder = folder, holder
        self.installed = ""

    def run(self, *argv: str, codes: tuple[int, ...] = (0,)) -> str:
        enter = ["nsenter", f"--target={self.holder.pid}", "--mount", "chroot", str(self.folder / "root")]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]
        done = subprocess.run(
            [*enter, *clean, *argv], capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode in codes, f"{argv}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def copy(self, source: Path, inside: str) -> None:
        """A file from this machine, through the holder's view of the root."""
        to = Path(f"/proc/{self.holder.pid}/root{self.folder}/root{inside}")
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    try:
        base = make(RELEASES["24.11"]).top
    except ClusterError as exc:
        pytest.skip(f"no Debian root: {exc}")
    folder = tmp_path_factory.mktemp("fresh")
    argv = ["unshare", "--mount", "--propagation=private", "sh", "-c", MOUNTS, "sh", str(folder), str(base)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "ready\n"
            root = Fresh(folder, holder)
            root.copy(one("*.deb"), "/tmp/aistation.deb")
            root.installed = root.run("dpkg", "--install", "/tmp/aistation.deb")
            yield root
        finally:
            holder.stdin.close()


def one(mask: str) -> Path:
    found = list(DIST.glob(mask))
    assert len(found) == 1, f"{DIST} has {len(found)} files {mask}: make packages"
    return found[0]


def test_says_what_to_do_next_and_builds_the_plugin_of_the_slurm_that_is_there(fresh: Fresh) -> None:
    assert "aistation install --role node" in fresh.installed
    assert "building spank_aistation.so for Slurm 24.11" in fresh.installed
    fresh.run("test", "-s", "/opt/aistation/slurm_plugins/spank_aistation.so")


def test_the_installed_command_runs_without_anything_but_python(fresh: Fresh) -> None:
    assert "version" in fresh.run("aistation", "--version")
    for command in ("check", "watchdog", "sweep", "placement", "topology", "ckpt"):
        assert "Usage" in fresh.run("aistation", command, "--help")
    assert fresh.run("aistation", "hostlist", "expand", "gpu[1-2]").split() == ["gpu1", "gpu2"]


def test_every_dependency_is_the_packages_own(fresh: Fresh) -> None:
    code = "import click, rich, msgspec, yaml, ClusterShell, pynvml; print(msgspec.__file__, rich.__file__)"
    for path in fresh.run("/opt/aistation/.venv/bin/python", "-c", code).split():
        assert path.startswith("/opt/aistation/.venv/lib/")


def test_check_judges_a_captured_tree(fresh: Fresh, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sys/class/infiniband").mkdir(parents=True)
    (tree / "proc").mkdir()
    (tree / "dmesg").write_text("[ 10.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n")
    fresh.copy(tree, "/tmp/tree")
    said = json.loads(fresh.run("aistation", "check", "--root", "/tmp/tree", "--json", codes=(1,)))
    assert "fail" in {finding["status"] for finding in said["findings"] if finding["check"] in ("gpu.xid", "gpu.lost")}


def test_doctor_and_install_find_the_packages_files(fresh: Fresh) -> None:
    assert "slurm.conf" in fresh.run("aistation", "doctor", codes=(0, 1, 3))
    said = fresh.run("aistation", "install", "--print")
    assert "Prolog=/opt/aistation/prolog/aistation-prolog" in said
    assert "ExecStart=/usr/bin/aistation agent" in said
    fresh.run("aistation", "install", "--role", "node", "--into", "/tmp/image")
    fresh.run("test", "-s", "/tmp/image/etc/systemd/system/aistation-agent.service")


def test_hooks_load_the_suite_with_the_systems_python(fresh: Fresh) -> None:
    for hook in ("prolog/aistation-prolog", "epilog/aistation-epilog"):
        assert "cannot be loaded" not in fresh.run(f"/opt/aistation/{hook}", codes=(0,))


def test_nobody_but_root_can_change_what_root_runs(fresh: Fresh) -> None:
    wrong = fresh.run(
        "find",
        "/opt/aistation",
        "/usr/bin/aistation",
        "!",
        "-type",
        "l",
        "(",
        "!",
        "-user",
        "root",
        "-o",
        "-perm",
        "/022",
        ")",
    )
    assert wrong == ""


def test_rpm_has_the_debs_files() -> None:
    if shutil.which("rpm") is None:
        pytest.skip("no rpm on this machine (Debian: apt-get install rpm)")
    rpm = subprocess.run(["rpm", "-qlp", one("*.rpm")], capture_output=True, text=True, timeout=60, check=True).stdout
    deb = subprocess.run(
        ["dpkg-deb", "--contents", one("*.deb")], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    paths = {
        line.split(None, 5)[5].split(" -> ")[0].lstrip(".") for line in deb.splitlines() if not line.startswith("d")
    }
    listed = set(rpm.split("\n"))
    assert "/opt/aistation/prolog/aistation-prolog" in paths
    assert paths - listed == set()
    files = {path for path in listed - paths if path and not any(other.startswith(f"{path}/") for other in listed)}
    assert files == {"/etc/aistation"}  # an empty folder


def test_removal_leaves_nothing_behind(fresh: Fresh) -> None:
    fresh.run("dpkg", "--purge", "aistation-slurm")
    fresh.run("test", "!", "-e", "/usr/bin/aistation")
    assert fresh.run("find", "/", "-xdev", "-path", "/opt/aistation/*") == ""
