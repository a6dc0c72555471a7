"""Root file systems with other Slurm releases, for the same tests: Debian 13 has 24.11, Debian testing 26.05.

    .venv/bin/python -m tests.cluster.roots            # make what is missing, and list
    AIS_SLURM=24.11 make test-cluster                  # or: make test-cluster SLURM=24.11

A root is made once (some minutes: debootstrap from this machine's own Debian mirror) and kept outside the checkout, in
$AIS_ROOTS or /var/cache/aistation-roots. In it, below /opt/aistation-test: a virtual environment of its own Python with the
product's dependencies, and the SPANK plugin built against its Slurm. Hosts of a cluster then take /usr and /etc from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import msgspec

from tests.cluster.namespaces import ClusterError

__all__ = ["RELEASES", "VARIABLE", "Release", "Root", "chosen", "make"]

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "AIS_SLURM"
INSIDE = "/opt/aistation-test"
"""Folder of a root for what is ours: venv/ and spank/."""
_PACKAGES = (
    "slurmctld slurmd slurm-client munge python3 python3-venv iproute2 gcc libc6-dev libslurm-dev procps make"
    " slurm-wlm-basic-plugins lua5.1"
)
_COMMAND = """#!/bin/sh
exec /opt/aistation/.venv/bin/python -m aistation_slurm "$@"
"""


@dataclass(frozen=True)
class Release:
    """One Slurm release and the Debian suite that has it. script: debootstrap's, where it does not know the suite."""

    version: str
    suite: str
    script: str = ""


RELEASES = {
    "24.11": Release("24.11", "trixie"),
    "26.05": Release("26.05", "forky", "/usr/share/debootstrap/scripts/sid"),
}


@dataclass(frozen=True)
class Root:
    """``top``: the folder on this machine; None: the machine's own / (its own Slurm)."""

    top: Optional[Path] = None

    def path(self, inside: str) -> str:
        """Where a path of the hosts is on this machine."""
        return inside if self.top is None else str(self.top) + inside

    @property
    def spank(self) -> Optional[Path]:
        return None if self.top is None else self.top / INSIDE[1:] / "spank/spank_aistation.so"


def chosen() -> Root:
    """The root that $AIS_SLURM asks for, made where it is missing. Raises ClusterError."""
    version = os.environ.get(VARIABLE, "")
    if not version or version == machine_version():
        return Root()
    if version not in RELEASES:
        known = ", ".join([machine_version(), *RELEASES])
        raise ClusterError(f"{VARIABLE}={version}: expected one of {known} (the first is this machine's own Slurm)")
    return make(RELEASES[version])


def machine_version() -> str:
    """ "22.05" of this machine's slurmctld; "" where there is none."""
    try:
        said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return ".".join(said.split()[-1].split(".")[:2])


def make(release: Release) -> Root:
    """The release's root, complete. Two processes at once: the second waits. Raises ClusterError with what failed."""
    folder = Path(os.environ.get("AIS_ROOTS", "/var/cache/aistation-roots"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{release.suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        top = folder / release.suite
        if not top.exists():
            _say(f"making a root with Slurm {release.version} ({release.suite}) in {top}: some minutes, once")
            _debootstrap(release, top)
        _make_venv(top)
        _build_spank(top)
    return Root(top)


def _debootstrap(release: Release, top: Path) -> None:
    if shutil.which("debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin") is None:
        _run(["apt-get", "install", "-y", "--no-install-recommends", "debootstrap"])
    new = top.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES.split())}", release.suite, str(new)]
    _run([*argv, _mirror(), *([release.script] if release.script else [])])
    new.rename(top)


def _mirror() -> str:
    """The Debian mirror that this machine's apt uses."""
    said = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"])
    uris = [uri for uri in said.split() if uri.rstrip("/").endswith("/debian")]
    if not uris:
        raise ClusterError("no Debian mirror in this machine's apt sources: roots with other Slurm releases need one")
    return uris[0]


def _make_venv(top: Path) -> None:
    """Wheels come by this machine's pip, for the root's Python: nothing inside needs a network."""
    venv = top / INSIDE[1:] / "venv"
    wanted = _dependencies()
    mark = venv / "made-for"
    version = _run(["chroot", str(top), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    text = f"{version}\n" + "\n".join(wanted)
    if mark.exists() and mark.read_text(encoding="utf-8") == text:
        return
    _say(f"installing the product's dependencies for Python {version} into {venv}")
    shutil.rmtree(venv, ignore_errors=True)
    _run(["chroot", str(top), "python3", "-m", "venv", "--without-pip", f"{INSIDE}/venv"])
    site = venv / "lib" / f"python{version}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--implementation=cp"]
    _run([*pip, f"--python-version={version}", f"--target={site}", *wanted])
    (site / "aistation.pth").write_text("/opt/aistation\n", encoding="utf-8")
    command = venv / "bin/aistation"
    command.write_text(_COMMAND, encoding="utf-8")
    command.chmod(0o755)
    mark.write_text(text, encoding="utf-8")


def _dependencies() -> list[str]:
    """``project.dependencies`` of pyproject.toml."""
    project = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]
    return list(project["dependencies"])


def _build_spank(top: Path) -> None:
    source = REPOSITORY / "slurm_plugins"
    folder = top / INSIDE[1:] / "spank"
    files = [source / "spank_aistation.c", source / "Makefile"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    mark = folder / "made-for"
    if mark.exists() and mark.read_text(encoding="utf-8") == digest:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, folder / file.name)
    _run(["chroot", str(top), "make", "-C", f"{INSIDE}/spank", "clean", "all"])
    mark.write_text(digest, encoding="utf-8")


def _say(text: str) -> None:
    print(f"test cluster: {text}", file=sys.stderr, flush=True)


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}\n{tail}")
    return done.stdout


if __name__ == "__main__":
    for one in RELEASES.values():
        print(f"{one.version}  {make(one).top}")
