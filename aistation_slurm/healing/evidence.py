"""One file for the vendor's return desk: ``<healing.dir>/<node>-<id>.tar.gz``, with evidence.json, evidence.txt and kernel.log.

What the card says of itself now, what was known of it before it fell silent, all that the kernel said (also before reboots that
healing asked for), the check's findings, and each attempt with its time.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from aistation_slurm import __version__
from aistation_slurm.config import Config
from aistation_slurm.errors import StateFileError
from aistation_slurm.findings import Status
from aistation_slurm.healing.cards import identities
from aistation_slurm.healing.history import KERNEL_LINES, Case
from aistation_slurm.healing.reason import evidence_path
from aistation_slurm.node.health import NodeReport
from aistation_slurm.probes import pending
from aistation_slurm.probes.klog import KernelLog
from aistation_slurm.probes.nvml import GpuSnapshot

__all__ = ["kernel_lines", "write_evidence"]

_TELLING = re.compile(r"NVRM|nvidia|Xid|AER|pcieport|EDAC|mce:|Machine Check|nvme|mlx5", re.IGNORECASE)
_COUNTERS = (
    "ecc_volatile ecc_aggregate ecc_corrected sram_volatile sram_aggregate sram_threshold remap_correctable "
    "remap_uncorrectable remap_pending remap_failed banks_spent retired_single retired_double retired_pending pcie_replays "
    "nvlink_errors nvlinks throttle temperature temperature_memory power errors recovery_action lost"
)


def kernel_lines(config: Config, most: int = KERNEL_LINES) -> list[str]:
    """The newest telling records of this boot, ``[seconds] text``; what could not be read says so."""
    try:
        log = KernelLog(config.probe.kmsg)
    except OSError as exc:
        return [f"({config.probe.kmsg}: {exc.strerror})"]
    try:
        records = [r for r in log.read_new() if _TELLING.search(r.text)]
    except OSError as exc:
        return [f"({config.probe.kmsg}: {exc.strerror})"]
    finally:
        log.close()
    return [f"[{r.time}] {' '.join(r.text.split())}"[:400] for r in records[-most:]]


def write_evidence(config: Config, case: Case, report: NodeReport, known: dict[str, dict[str, str]], now: float) -> str:
    """Write the file; its path. Raises StateFileError. Only root may read it: it holds the kernel's log."""
    path = evidence_path(config.healing.dir, case.node, case.ident)
    facts = _facts(config, case, report, known, now)
    log = "\n".join(
        [
            *(
                line
                for a in case.attempts
                for line in (f"# before {a.action} at {_when(a.began)}, boot {a.boot}", *a.kernel)
            ),
            f"# at {_when(now)}, boot {report.boot_id}",
            *kernel_lines(config, 2000),
            "",
        ]
    )
    files = {
        "evidence.json": msgspec.json.format(msgspec.json.encode(facts), indent=2),
        "evidence.txt": _text(facts).encode("utf-8", "replace"),
        "kernel.log": log.encode("utf-8", "replace"),
    }
    fresh = f"{path}.new"
    try:
        os.makedirs(config.healing.dir, mode=0o700, exist_ok=True)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(f"{case.node}-{case.ident}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(now), 0o644
                tar.addfile(entry, io.BytesIO(data))
        os.rename(fresh, path)
    except OSError as exc:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise StateFileError(f"{path}: evidence cannot be written: {exc.strerror}") from exc
    return path


def _facts(
    config: Config, case: Case, report: NodeReport, known: dict[str, dict[str, str]], now: float
) -> dict[str, Any]:
    slots = _slots(config, report)
    seen = {gpu.pci: gpu for gpu in report.nvml.gpus if gpu.pci}
    gpus = []
    for pci in sorted({*seen, *known, *(row.pci for row in report.gpus)}):
        counters = _counters(seen[pci]) if pci in seen else {}
        own = identities(report.nvml).get(pci, {})
        identity = {**known.get(pci, {}), **{key: value for key, value in own.items() if value}}
        suspect = any(f.device == pci and f.status is Status.FAIL for f in report.findings) or pci[:-2] in case.reason
        gpus.append({"pci": pci, "slot": slots.get(pci, ""), "suspect": suspect, **identity, "counters": counters})
    return {
        "node": case.node,
        "drain": {"reason": case.reason, "id": case.ident, "check": case.check, "seen": _when(case.opened)},
        "written": _when(now),
        "aistation": __version__,
        "boot_id": report.boot_id,
        "driver": report.nvml.driver,
        "nvml_error": report.nvml.error,
        "gpus": gpus,
        "attempts": [
            {
                "action": a.action,
                "target": a.target,
                "boot_id": a.boot,
                "began": _when(a.began),
                "ended": _when(a.ended) if a.ended else "",
                "outcome": a.outcome or "not known: cut off",
                "verdict": a.verdict,
                "counted": a.counted,
            }
            for a in case.attempts
        ],
        "findings": [f.as_json() for f in report.findings],
        "steps": [{"time": _when(s.time), "text": s.text} for s in case.steps],
        "xids": [line for a in case.attempts for line in a.kernel if "Xid" in line]
        + [line for line in kernel_lines(config, 2000) if "Xid" in line],
    }


def _counters(gpu: GpuSnapshot) -> dict[str, Any]:
    values = {name: getattr(gpu, name) for name in _COUNTERS.split()}
    return {name: value for name, value in values.items() if value not in (None, {}, ())}


def _slots(config: Config, report: NodeReport) -> dict[str, str]:
    """PCI address -> physical slot, where the platform names it (/sys/bus/pci/slots/N/address has no function)."""

    def body(step: Any) -> dict[str, str]:
        folder, found = f"{config.probe.root.rstrip('/')}/sys/bus/pci/slots", {}
        step(folder)
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            with open(f"{folder}/{name}/address", encoding="ascii", errors="replace") as file:
                found[file.read().strip()] = name
        return found

    result, _ = pending.call("heal-slots", body, 3.0, Path(config.node.state_dir), report.boot_id)
    told: dict[str, str] = result.value or {}
    return {row.pci: told[row.pci.rpartition(".")[0]] for row in report.gpus if row.pci.rpartition(".")[0] in told}


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"Evidence for {facts['node']}, written {facts['written']} by AIStation {facts['aistation']}",
        f"Drain reason: {facts['drain']['reason']}",
        f"Driver: {facts['driver'] or 'not told'}{'; ' + facts['nvml_error'] if facts['nvml_error'] else ''}",
        "",
        "GPUs (* is under suspicion)",
    ]
    for gpu in facts["gpus"]:
        told = ", ".join(
            f"{key} {gpu[key]}" for key in ("name", "serial", "uuid", "slot", "vbios", "inforom") if gpu.get(key)
        )
        lines.append(f"{'*' if gpu['suspect'] else ' '} {gpu['pci']}: {told or 'identity not known'}")
        if gpu["suspect"] and gpu["counters"]:
            lines.append("      " + ", ".join(f"{key} {value}" for key, value in gpu["counters"].items()))
    lines += ["", "Attempts"]
    for a in facts["attempts"]:
        lines.append(f"  {a['began']} {a['action']} {a['target']}: {a['outcome']}; {a['verdict'] or 'not judged'}")
    lines += ["", "Findings that are not ok"]
    lines += [
        f"  {f['check']} {f['status']} {f['subject']}: {f['evidence']}"
        for f in facts["findings"]
        if f["status"] != "ok"
    ]
    lines += ["", "Xids", *(f"  {line}" for line in _distinct(facts["xids"])), "", "What healing did"]
    lines += [f"  {s['time']} {s['text']}" for s in facts["steps"]]
    return "\n".join([*lines, ""])


def _distinct(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _when(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(unix))
