"""A make-believe node for unit tests: its hardware tree, its aistation.toml, and a state file as the agent writes it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from aistation_slurm.config import Config, load
from aistation_slurm.findings import Action, Finding, Scope, Status
from aistation_slurm.node import publish, state
from aistation_slurm.node.health import GpuRow, NodeReport, PortRow
from tests.cluster.faults import Fault
from tests.cluster.hardware import Hardware

REPOSITORY = Path(__file__).resolve().parents[3]
PROLOG = REPOSITORY / "prolog/aistation-prolog"
EPILOG = REPOSITORY / "epilog/aistation-epilog"


class SimNode:
    """``folder`` holds sim/ (hardware), run/ (node state), bin/ (scontrol), aistation.toml and gres.conf."""

    def __init__(self, folder: Path, gpus: int = 4, hcas: int = 4, **settings: dict[str, object]) -> None:
        self.folder = folder
        self.hardware = Hardware(folder / "sim", "gpu1", gpus, hcas)
        (folder / "sim").mkdir()
        self.hardware.make_healthy()
        self.hardware.boot(state.boot_id())
        self.run = folder / "run"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "gres.conf").write_text(f"Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n", encoding="utf-8")
        sections: dict[str, dict[str, object]] = {
            "probe": {
                "root": str(self.hardware.root),
                "kmsg": str(folder / "sim/kmsg"),
                "nvml_library": str(folder / "no-nvml"),
            },
            "node": {"state_dir": str(self.run), "gres_conf": str(folder / "gres.conf"), "poll_s": 0.5},
            "slurm": {"bin_dir": str(self.bin), "timeout_s": 5.0},
            "expect": {"disk_free_percent": 0.0, "disk_paths": ["/"]},
        }
        for name, values in settings.items():
            sections.setdefault(name, {}).update(values)
        lines = []
        for name, values in sections.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), ""]
        self.toml = folder / "aistation.toml"
        self.toml.write_text("\n".join(lines), encoding="utf-8")

    @property
    def config(self) -> Config:
        return load(self.toml)

    def inject(self, fault: Fault) -> None:
        fault.apply(self.hardware)

    def finding(self, check: str, gpu: int, status: Status = Status.FAIL, evidence: str = "evidence") -> Finding:
        pci = self.hardware.gpu(gpu).pci
        return Finding(check, status, f"GPU{gpu} {pci[:-2]}", evidence, Action.REBOOT, device=pci)

    def port_finding(self, check: str, hca: str) -> Finding:
        return Finding(check, Status.FAIL, f"{hca}/1", "evidence", scope=Scope.SHARED, device=f"{hca}/1")

    def report(self, *findings: Finding, age_s: float = 0.0, boot: str = "") -> NodeReport:
        gpus = tuple(GpuRow(g.slot, g.slot, g.pci, g.uuid) for g in self.hardware.gpus)
        ports = tuple(PortRow(f"{h.name}/1", 400.0, "InfiniBand", True) for h in self.hardware.hcas)
        ok = Finding("gpu.lost", Status.OK, "GPUs", "every GPU answers on the bus")
        return NodeReport(
            "gpu1", boot or state.boot_id(), time.time() - age_s, "quick", (*findings, ok), gpus=gpus, ports=ports
        )

    def write_state(self, *findings: Finding, age_s: float = 0.0, boot: str = "") -> Path:
        """The state file as the agent would have written it ``age_s`` ago."""
        return Path(publish.publish(self.report(*findings, age_s=age_s, boot=boot), self.config))

    def scontrol(self, shown: str = "NodeName=gpu1 State=MIXED", update: str = "exit 0", show: str = "") -> None:
        """A scontrol that notes its arguments, one line each call, NUL-free and in order."""
        script = (
            "#!/bin/sh\n"
            f'for a in "$@"; do printf \'<%s>\' "$a"; done >>{self.folder}/calls; echo >>{self.folder}/calls\n'
            "case $* in *'show reservation'*) echo 'No reservations in the system'; exit ;; esac\n"
            f"case $* in *show*) {show or ':'}; echo '{shown}' ;; *update*) {update} ;; esac\n"
        )
        path = self.bin / "scontrol"
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """Arguments of each scontrol call as ``<a><b>``."""
        try:
            return (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def environment(self, **more: str) -> dict[str, str]:
        """What Slurm gives a prolog, and nothing else; the last two tell our own code where this test's files are."""
        own = {"AISTATION_STATE_DIR": str(self.run), "AISTATION_CONFIG": str(self.toml)}
        job = {
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_UID": "20001",
            "SLURM_JOB_GPUS": "0,1",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURMD_NODENAME": "gpu1",
        }
        return {**job, **more, **own}
