"""A make-believe node for ``aistation check``: real pynvml on the fake NVML, a sysfs tree, a kernel log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from aistation_slurm.config import Config, load
from aistation_slurm.findings import Status
from aistation_slurm.node.health import NodeReport, check_node
from tests.cluster import fakenvml
from tests.cluster.faults import Fault
from tests.cluster.hardware import Hardware
from tests.unit.cases_health.commands import Answer, aistation

__all__ = ["Node"]


class Node:
    """``check`` calls the command; ``report`` the library. Both look at the same hardware."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.hardware = Hardware(folder / "aisim", "gpu1", gpus=4, hcas=2, boot_id="")
        self.hardware.install(library)
        self.state_dir = folder / "run"
        self.gres = folder / "gres.conf"
        self.gres.write_text("Name=gpu File=/dev/nvidia[0-3]\n")
        self.toml = folder / "aistation.toml"
        self.configure()

    def configure(self, **probe: object) -> None:
        facts: dict[str, object] = {
            "root": str(self.hardware.root),
            "kmsg": str(self.hardware.folder / "kmsg"),
            "nvml_library": str(self.hardware.folder / fakenvml.SONAME),
            "nvml_deadline_s": 60.0,
            **probe,
        }
        lines = ["[probe]", *(f"{key} = {json.dumps(value)}" for key, value in facts.items())]
        lines += [
            "[node]",
            f"state_dir = {json.dumps(str(self.state_dir))}",
            f"gres_conf = {json.dumps(str(self.gres))}",
        ]
        lines += ["[expect]", "disk_free_percent = 0.0", 'disk_paths = ["/"]', "[slurm]", 'bin_dir = "/nowhere"']
        self.toml.write_text("\n".join(lines) + "\n")

    @property
    def config(self) -> Config:
        return load(self.toml)

    def inject(self, *injected: Fault) -> None:
        for fault in injected:
            fault.apply(self.hardware)

    def report(self, **options: Any) -> NodeReport:
        return check_node(self.config, now=time.time(), node="gpu1", **options)

    def check(self, *options: str) -> Answer:
        return aistation("check", "--config", self.toml, "--json", *options)

    def bad(self) -> list[tuple[str, str, str]]:
        found = self.report().findings
        return [(f.check, f.status.value, f.subject) for f in found if f.status is not Status.OK]
