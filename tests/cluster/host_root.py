"""The root file system of a host, as the steps that ``holder.py`` carries out.

/usr is the machine's own, or that of a root with another Slurm (``roots.py``); /sys is the machine's, but without cgroups,
so that no daemon here writes into the machine's. /etc is a copy with our users and Slurm's configuration. /var, /tmp and
/home are folders of the cluster's directory (a disk: they survive a reboot), /run is a tmpfs (it does not), /shared is the
same on every host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.namespaces import ClusterError
from tests.cluster.roots import INSIDE, Root

REPOSITORY = Path(__file__).resolve().parents[2]
USERS = {"alice": 20001, "bob": 20002}

Step = list[Any]

_AISTATION_COMMAND = """#!/bin/sh
exec /opt/aistation/.venv/bin/python -m aistation_slurm "$@"
"""


def account(root: Root, name: str) -> tuple[int, int]:
    """uid and gid of a system account of the root (slurm, munge)."""
    for line in Path(root.path("/etc/passwd")).read_text(encoding="utf-8").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2]), int(fields[3])
    raise ClusterError(f"user {name!r} is missing: install Slurm and munge first (make test does)")


def copy_etc(root: Root, target: Path, hosts: str) -> None:
    """Copy /etc once for the cluster and add our users and host names."""
    shutil.copytree(
        root.path("/etc"), target, symlinks=True, ignore=shutil.ignore_patterns("slurm", "munge", "aistation", "ssl")
    )
    for name in ("slurm", "munge", "aistation", "ssl"):
        (target / name).mkdir()
    with (target / "passwd").open("a", encoding="utf-8") as passwd, (target / "group").open("a") as group:
        for name, uid in USERS.items():
            passwd.write(f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n")
            group.write(f"{name}:x:{uid}:\n")
    (target / "hosts").write_text(hosts, encoding="utf-8")
    for stale in ("hostname", "resolv.conf"):
        (target / stale).unlink(missing_ok=True)
    (target / "resolv.conf").write_text("", encoding="utf-8")
    (target / "hostname").write_text("", encoding="utf-8")


def steps(root: Root, cluster_dir: Path, disk: Path, boot_id: Path, extra: Sequence[Step]) -> list[Step]:
    """The plan of the host whose own folder in the cluster's directory is ``disk``."""
    plan: list[Step] = []
    for top in ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"):
        path, source = "/" + top, root.path("/" + top)
        if os.path.islink(source):
            plan.append(["symlink", path, os.readlink(source)])
        elif os.path.isdir(source):
            plan.append(["bind", path, source])
    plan += [["bind", "/etc", str(cluster_dir / "etc")], ["bind", "/etc/hostname", str(disk / "hostname")]]
    plan += [["bind", "/etc/ssl", root.path("/etc/ssl")]] if os.path.isdir(root.path("/etc/ssl")) else []
    plan += [["bind", "/etc/aistation", str(disk / "aistation")]]
    plan += [["bind", "/sys", "/sys"], ["tmpfs", "/sys/fs/cgroup"], ["proc", "/proc"]]
    plan += [["bind", "/proc/sys/kernel/random/boot_id", str(boot_id)]]
    plan += _dev()
    plan += [["tmpfs", "/run"], ["dir", "/run/lock", 0o1777], ["dir", "/run/munge", 0o755, account(root, "munge")]]
    plan += [["dir", "/run/slurm", 0o755, account(root, "slurm")]]
    plan += [["bind", "/var", str(disk / "var")], ["bind", "/tmp", str(disk / "tmp")]]
    plan += [["bind", "/home", str(cluster_dir / "home")], ["dir", "/root", 0o700]]
    plan += [["bind", "/shared", str(cluster_dir / "shared")], ["dir", "/mnt"], ["dir", "/srv"]]
    return [*plan, *_product(root, cluster_dir), *extra]


def make_disk(root: Root, disk: Path, hostname: str) -> None:
    """The folders of a host that outlive its reboots."""
    for folder in ("var", "var/lib", "var/spool", "var/cache", "var/log", "aistation"):
        (disk / folder).mkdir(parents=True, exist_ok=True)
    for sticky in ("tmp", "var/tmp"):
        (disk / sticky).mkdir()
        (disk / sticky).chmod(0o1777)
    for link, target in (("var/run", "/run"), ("var/lock", "/run/lock")):
        (disk / link).symlink_to(target)
    for folder in ("var/spool/slurmctld", "var/log/slurm", "var/lib/aistation", "var/spool/aistation/events"):
        (disk / folder).mkdir(parents=True)
        os.chown(disk / folder, *account(root, "slurm"))
    for folder in ("var/log/munge", "var/lib/munge"):
        (disk / folder).mkdir(mode=0o700)
        os.chown(disk / folder, *account(root, "munge"))
    (disk / "var/spool/slurmd").mkdir()
    (disk / "hostname").write_text(hostname + "\n", encoding="utf-8")


def make_shared(cluster_dir: Path) -> None:
    """The "parallel file system" and the home directories."""
    for top in ("shared", "home"):
        (cluster_dir / top).mkdir()
        for user, uid in USERS.items():
            (cluster_dir / top / user).mkdir()
            os.chown(cluster_dir / top / user, uid, uid)
    (cluster_dir / "shared").chmod(0o1777)


def write_product_files(cluster_dir: Path) -> None:
    """What makes the repository work at /opt/aistation although it was installed (editable) at another path."""
    folder = cluster_dir / "product"
    folder.mkdir()
    (folder / "aistation").write_text(_AISTATION_COMMAND, encoding="utf-8")
    (folder / "aistation").chmod(0o755)
    (folder / "editable.pth").write_text("/opt/aistation\n", encoding="utf-8")


def _product(root: Root, cluster_dir: Path) -> list[Step]:
    plan: list[Step] = [["bind", "/opt/aistation", str(REPOSITORY)]]
    command = str(cluster_dir / "product" / "aistation")
    plan.append(["bind", "/opt/bin/aistation", command])
    if root.spank is not None:
        plan.append(["bind", "/opt/aistation/.venv", root.path(f"{INSIDE}/venv")])
        return [*plan, ["bind", "/opt/aistation/slurm_plugins/spank_aistation.so", str(root.spank)]]
    if (REPOSITORY / ".venv/bin/aistation").exists():
        plan.append(["bind", "/opt/aistation/.venv/bin/aistation", command])
    for pth in REPOSITORY.glob(".venv/lib/python3*/site-packages/__editable__*aistation*.pth"):
        inside = f"/opt/aistation/{pth.relative_to(REPOSITORY)}"
        plan.append(["bind", inside, str(cluster_dir / "product/editable.pth")])
    return plan


def _dev() -> list[Step]:
    plan: list[Step] = [["devtmpfs", "/dev"], ["tmpfs", "/dev/shm", "mode=1777"]]
    for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
        plan.append(["device", f"/dev/{name}", 1, minor])
    plan.append(["device", "/dev/tty", 5, 0])
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd")):
        plan.append(["symlink", f"/dev/{name}", target])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        plan.append(["symlink", f"/dev/{name}", f"/proc/self/fd/{number}"])
    return plan
