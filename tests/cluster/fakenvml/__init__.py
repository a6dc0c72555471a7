"""A libnvidia-ml.so.1 of our own that real pynvml loads: builder, and writer of the state file that it reads.

The library answers from ``/run/aisim/nvml.state`` (or ``$FAKE_NVML_STATE``), read anew by every call, so a test can
change a GPU under a running program. ``state.h`` lists the keys.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Union

__all__ = ["SONAME", "NvmlState", "build"]

SONAME = "libnvidia-ml.so.1"
SOURCES = Path(__file__).parent
Value = Union[int, str]


def build(folder: Path) -> Path:
    """Compile the library into ``folder``; returns its path. Raises RuntimeError with the compiler's words."""
    target = folder / SONAME
    argv = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    argv += ["-pthread", f"-Wl,-soname,{SONAME}", "-o", str(target), *map(str, sorted(SOURCES.glob("*.c")))]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            "no C compiler (cc) for the fake NVML; `make test` installs one on Debian or Ubuntu"
        ) from None
    if done.returncode != 0:
        raise RuntimeError(f"the fake NVML does not compile:\n{done.stderr}")
    return target


class NvmlState:
    """The state file's lines. Nothing is seen by the library before ``write``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, list[str]] = {}
        self._events = 0

    def set(self, key: str, value: Value) -> None:
        self._lines[key] = [str(value)]

    def add(self, key: str, value: Value) -> None:
        """One more line with this key (``gpu.N.process``, ``event``)."""
        self._lines.setdefault(key, []).append(str(value))

    def unset(self, key: str) -> None:
        self._lines.pop(key, None)

    def clear(self) -> None:
        self._lines.clear()

    def number(self, key: str, default: int = 0) -> int:
        return int(self._lines.get(key, [str(default)])[0], 0)

    def event(self, gpu: int, code: int) -> None:
        """An Xid for those who wait on an event set."""
        self._events += 1
        self.add("event", f"{self._events} {gpu} {code}")

    def text(self) -> str:
        return "".join(f"{key} {value}\n" for key, values in self._lines.items() for value in values)

    def write(self) -> None:
        """Replace the file by rename: a reader sees the old or the new state, never a part."""
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(self.text(), encoding="ascii")
        os.replace(fresh, self.path)
