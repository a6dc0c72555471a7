"""A cluster of many nodes for benchmarks of scheduling: the real slurmctld, and one emulated slurmd a node, on one host.

The slurmd of Debian's slurm-wlm-emulator (``slurmd -N NAME``: many on one host, 5 MB each) is unpacked from its package into
the cluster's folder: installing it would switch the machine's slurmd and slurmctld to the emulator's.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from tests.cluster import Cluster, ClusterError
from tests.cluster.suite import HOOKS, Settings

__all__ = ["EmulatedCluster", "emulator_binaries", "tree"]

PACKAGE = "slurm-wlm-emulator"
VARIABLE = "AIS_SLURMD_EMULATOR"
"""Folder that holds slurmd-wlm-emulator and slurmstepd-wlm-emulator already."""
FIRST_PORT = 20_001


def emulator_binaries(folder: Path) -> Path:
    """Folder with the emulator's slurmd and slurmstepd; fetched into ``folder`` unless $AIS_SLURMD_EMULATOR names one.

    Raises ClusterError with what to do where the package cannot be had.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    with tempfile.TemporaryDirectory(prefix="ais-emulator-") as scratch:
        for argv in (
            ["apt-get", "download", "-q", PACKAGE],
            ["sh", "-c", f'dpkg -x {PACKAGE}_*.deb "$0"', str(folder)],
        ):
            got = subprocess.run(argv, cwd=scratch, capture_output=True, text=True, timeout=120, check=False)
            if got.returncode != 0:
                raise ClusterError(
                    f"{PACKAGE} could not be fetched ({got.stderr.strip()[-200:]}); unpack the package of the Slurm that is "
                    f"installed somewhere (do not install it) and set {VARIABLE} to the folder of slurmd-wlm-emulator"
                )
    return folder / "usr/sbin"


def tree(leaves: int, per_leaf: int, spines: int) -> str:
    """topology.conf of ``leaves * per_leaf`` nodes n001, n002, ...: leaves below spines below one core."""
    lines = []
    for leaf in range(leaves):
        first = leaf * per_leaf + 1
        lines.append(f"SwitchName=leaf{leaf + 1:02} Nodes=n[{first:03}-{first + per_leaf - 1:03}]")
    each = leaves // spines
    for spine in range(spines):
        lines.append(f"SwitchName=spine{spine + 1} Switches=leaf[{spine * each + 1:02}-{spine * each + each:02}]")
    lines.append(f"SwitchName=core Switches=spine[1-{spines}]")
    return "\n".join(lines) + "\n"


class EmulatedCluster(Cluster):
    """``nodes`` emulated nodes n001.. on the controller's host; no GPUs, no agents; with ``aistation`` plugins and watchdog."""

    def __init__(
        self, nodes: int, topology: str, conf: Sequence[str], aistation: bool, config: Optional[Settings] = None
    ) -> None:
        """topology: text of topology.conf, "" for topology/none. conf: more lines of slurm.conf."""
        self.emulated = [f"n{number:03}" for number in range(1, nodes + 1)]
        last = FIRST_PORT + nodes - 1
        lines = [
            f"NodeName=n[001-{nodes:03}] NodeHostName=ctl NodeAddr=10.77.0.1 Port=[{FIRST_PORT}-{last}] CPUs=8"
            " RealMemory=1000 State=UNKNOWN",
            "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            "SlurmdSpoolDir=/var/spool/slurmd/%n",
            "SlurmdPidFile=/run/slurm/slurmd.%n.pid",
            "SlurmdLogFile=/var/log/slurm/slurmd.%n.log",
            f"TopologyPlugin=topology/{'tree' if topology else 'none'}",
            "SlurmdDebug=error",
            "SlurmctldDebug=info",
            *conf,
        ]
        super().__init__(nodes=0, gpus=0, hcas=0, aistation=aistation, conf_extra="\n".join(lines), config=config)
        self._topology = topology

    def _write_conf(self) -> None:
        super()._write_conf()
        # AIStation's hooks are for real nodes, and would share one /run here; none of them has to do with placement
        left_out = (*(f"{hook}=" for hook in HOOKS), "PrologFlags=")
        conf = self.conf_dir / "slurm.conf"
        lines = [line for line in conf.read_text(encoding="utf-8").splitlines() if not line.startswith(left_out)]
        conf.write_text("\n".join([*lines, ""]), encoding="utf-8")
        (self.conf_dir / "topology.conf").write_text(self._topology, encoding="utf-8")

    def start_slurmctld(self, host: str = "") -> None:
        super().start_slurmctld(host)
        if "emulator" in self._services:
            return
        binaries = emulator_binaries(self.dir / "shared/emulator")
        inside = "/shared/emulator/bin"
        (self.dir / "shared/emulator").mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", f"{binaries}/.", str(self.dir / "shared/emulator/bin")], check=True, timeout=60)
        start = f"mkdir -p /var/spool/slurmd; for n in {' '.join(self.emulated)}; do mkdir -p /var/spool/slurmd/$n; "
        start += f"{inside}/slurmd-wlm-emulator -D -N $n -d {inside}/slurmstepd-wlm-emulator & done; wait"
        self.start_service("emulator", "ctl", ["sh", "-c", start])
