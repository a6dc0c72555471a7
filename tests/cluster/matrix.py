"""The tests on a real Slurm, for each release: ``make matrix`` prints how many passed where.

    .venv/bin/python -m tests.cluster.matrix [--releases 22.05,24.11,26.05] [--all] [pytest options]

Without --all, the core set: what of AIStation meets Slurm itself. Exit code 1 where a test failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.cluster import roots
from tests.cluster.namespaces import ClusterError

CORE = (
    "tests/cluster/test_suite_in_force.py",
    "tests/cluster/test_loop_options.py",
    "tests/cluster/test_loop_faults.py",
    "tests/cluster/test_loop_recovery.py",
    "tests/cluster/test_refusal.py",
    "tests/cluster/test_client_contract.py",
    "tests/cluster/test_doctor.py",
)


@dataclass(frozen=True)
class Row:
    """One release's result. why: why nothing ran there."""

    release: str
    slurm: str = ""
    counts: str = ""
    seconds: float = 0.0
    failed: tuple[str, ...] = ()
    why: str = ""


def run(release: str, everything: bool, options: list[str]) -> Row:
    """All tests of one release, their output passed through. A root that cannot be made is told, and is no failure."""
    own = release == roots.machine_version()
    try:
        root = roots.Root() if own else roots.make(roots.RELEASES[release])
    except (ClusterError, OSError, subprocess.SubprocessError) as exc:
        return Row(release, why=str(exc).splitlines()[0])
    chroot = [] if root.top is None else ["chroot", str(root.top)]
    slurm = subprocess.run([*chroot, "slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    files = ["tests/cluster"] if everything else list(CORE)
    argv = [sys.executable, "-m", "pytest", *files, "-n", "2", "--dist", "loadfile", *options]
    began = time.monotonic()
    environment = {**os.environ, roots.VARIABLE: "" if own else release}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    code = process.wait()
    text = "".join(lines)
    counts = re.findall(r"^=* ?(\d+ (?:passed|failed|skipped|error).*?) in [\d.]+s", text, re.MULTILINE)
    failed = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))
    summary = counts[-1] if counts else f"pytest ended with {code}"
    return Row(release, slurm, summary, time.monotonic() - began, failed or (("pytest",) if code else ()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__.splitlines()[0])
    everything = ",".join([roots.machine_version(), *roots.RELEASES])
    parser.add_argument("--releases", default=everything, help=f"which, with commas between (default {everything})")
    parser.add_argument("--all", action="store_true", help="all tests of tests/cluster, not only the core set")
    args, options = parser.parse_known_args()
    known = everything.split(",")
    unknown = [release for release in args.releases.split(",") if release not in known]
    if unknown:
        parser.error(f"no release {', '.join(unknown)}; there are {everything}")
    rows = [run(release, args.all, options) for release in args.releases.split(",")]
    table = Table(title="Tests on a real Slurm, by release")
    for column in ("release", "Slurm", "tests", "minutes", "failed"):
        table.add_column(column, overflow="fold")
    for row in rows:
        minutes = f"{row.seconds / 60:.1f}" if row.slurm else ""
        table.add_row(row.release, row.slurm, row.counts or f"not run: {row.why}", minutes, "\n".join(row.failed))
    Console().print(table)
    sys.exit(1 if any(row.failed for row in rows) else 0)


if __name__ == "__main__":
    main()
