"""The cheap live facts of a job's own GPUs and ports, read from sysfs in one child that may block for ever.

Sources: the first two bytes of a PCI device's ``config`` are its vendor id, and read 0xffff when the device no longer
answers on the bus (shared/cases/022); ``/sys/class/infiniband/<hca>/ports/<n>/state`` is ``4: ACTIVE`` and ``rate`` is
``400 Gb/sec (4X NDR)``.
"""

from __future__ import annotations

import os

from aistation_slurm.node import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ALL_ONES", "GONE", "PRESENT", "Fact", "read_facts"]

GONE, ALL_ONES, PRESENT = "gone", "all-ones", "present"


class Fact:
    """About one device: ``gpu`` (state ``present``, ``gone``, ``all-ones``) or ``port`` (sysfs state or ``gone``; Gb/s).

    ``error`` is set instead where the file could not be read, or did not answer in time.
    """

    __slots__ = ("device", "error", "kind", "rate_gbps", "state")

    def __init__(self, kind: str, device: str, state: str = "", rate_gbps: float = 0.0, error: str = "") -> None:
        self.kind = kind
        self.device = device
        self.state = state
        self.rate_gbps = rate_gbps
        self.error = error


def read_facts(root: str, gpus: Iterable[str], ports: Iterable[str], deadline_s: float) -> list[Fact]:
    """Facts of these GPUs (PCI addresses) and ports (``hca/port``), in that order; never later than the deadline."""
    wanted = [("gpu", device) for device in gpus] + [("port", device) for device in ports]
    if not wanted:
        return []
    base = root.rstrip("/")

    def body(fd: int) -> None:
        for kind, device in wanted:
            text = _gpu(base, device) if kind == "gpu" else _port(base, device)
            os.write(fd, text.encode("utf-8", "replace") + b"\n")

    outcome = bounded.call(body, deadline_s)
    answers = outcome.output.split("\n")[:-1]
    facts = []
    for number, (kind, device) in enumerate(wanted):
        if number >= len(answers):
            stuck = number == len(answers)
            error = f"sysfs did not answer within {deadline_s:g} s" if stuck else "not reached"
            facts.append(Fact(kind, device, error=error))
            continue
        state, rate, error = answers[number].split("\t")
        facts.append(Fact(kind, device, state, float(rate or 0), error))
    return facts


def _gpu(base: str, pci: str) -> str:
    folder = f"{base}/sys/bus/pci/devices/{pci}"
    try:
        vendor = _read(f"{folder}/config", 4)[:2]
    except FileNotFoundError:
        # only the device's own absence counts: without any PCI tree nothing can be said
        if os.path.isdir(f"{base}/sys/bus/pci/devices"):
            return f"{GONE}\t\t"
        return f"\t\t{base}/sys/bus/pci/devices does not exist"
    except OSError as exc:
        return f"\t\t{folder}/config: {exc.strerror}"
    if len(vendor) < 2:
        return f"\t\t{folder}/config is empty"
    return f"{ALL_ONES if vendor == bytes((255, 255)) else PRESENT}\t\t"


def _port(base: str, name: str) -> str:
    hca, _, port = name.partition("/")
    folder = f"{base}/sys/class/infiniband/{hca}/ports/{port}"
    try:
        state = _read(f"{folder}/state", 64).decode("ascii", "replace").strip()
        rate = _read(f"{folder}/rate", 64).split()
        return f"{state}\t{float(rate[0]):g}\t"
    except FileNotFoundError:
        if os.path.isdir(f"{base}/sys/class/infiniband"):
            return f"{GONE}\t0\t"
        return f"\t\t{base}/sys/class/infiniband does not exist"
    except OSError as exc:
        return f"\t\t{folder}: {exc.strerror}"
    except (ValueError, IndexError):
        return f"\t\t{folder}/rate: not understood"


def _read(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)
