"""How the NVIDIA driver is set up on a node: its version and kind, and the kernel modules beside it (/proc alone)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

__all__ = ["DriverSetup", "read_setup"]


@dataclass(frozen=True)
class DriverSetup:
    """version: of the loaded kernel module, "" unknown. open_modules: NVIDIA's open kernel modules, which offer DMA-BUF.

    kernel: (5, 15); None unknown. modules: loaded ones; None where /proc/modules cannot be read.
    """

    version: str = ""
    open_modules: bool = False
    kernel: Optional[tuple[int, int]] = None
    modules: Optional[frozenset[str]] = None

    @property
    def has_dma_buf(self) -> bool:
        """GPU memory can be given to the HCA without nvidia-peermem: open modules, and Linux 5.12 or newer."""
        return self.open_modules and self.kernel is not None and self.kernel >= (5, 12)


def read_setup(root: Path) -> DriverSetup:
    """From ``NVRM version: NVIDIA UNIX [Open Kernel Module for] x86_64 [Kernel Module]  550.90.07  ...``."""
    first = _text(root / "proc/driver/nvidia/version").partition("\n")[0]
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", first)
    release = re.match(r"(\d+)\.(\d+)", _text(root / "proc/sys/kernel/osrelease"))
    modules = _text(root / "proc/modules")
    return DriverSetup(
        version.group(1) if version else "",
        "Open Kernel Module" in first,
        (int(release.group(1)), int(release.group(2))) if release else None,
        frozenset(line.split()[0] for line in modules.splitlines() if line.strip()) if modules else None,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
