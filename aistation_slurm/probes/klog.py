"""A live reader of the kernel log that loses and repeats nothing, and never blocks."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from aistation_slurm.probes.klog_text import Record, read_text

__all__ = ["KernelLog", "Record", "read_text"]


class KernelLog:
    """Reads what is new since the last call, from /dev/kmsg or from a growing plain file of the same form.

    The position is /dev/kmsg's sequence number, which starts anew with each boot: so keep ``seen`` together with the boot id
    when it has to outlive the process. A plain file that was replaced or cut short is read from its beginning. Not
    thread-safe.
    """

    def __init__(self, path: str, seen: int = -1) -> None:
        """Raises OSError where the log cannot be opened (no such file, not permitted)."""
        self.path = path
        self.seen = seen
        self.lost = 0
        """Times that the ring buffer overtook the reader."""
        self._rest = b""
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self._device = stat.S_ISCHR(status.st_mode)
        self._identity = (status.st_dev, status.st_ino)

    def fileno(self) -> int:
        """For poll(); a plain file is always ready, so poll such a one by time."""
        return self._fd

    @property
    def pollable(self) -> bool:
        """True for the device, whose readiness means a new record."""
        return self._device

    def read_new(self) -> list[Record]:
        """Kernel records that were not returned before, oldest first. Raises OSError."""
        if not self._device:
            self._follow_file()
        lines = self._device_lines() if self._device else self._file_lines()
        fresh = [r for r in read_text(lines) if r.seq < 0 or r.seq > self.seen]
        self.seen = max([self.seen, *(r.seq for r in fresh)])
        return fresh

    def _device_lines(self) -> Iterator[str]:
        """Each read(2) of /dev/kmsg returns one record."""
        while True:
            try:
                chunk = os.read(self._fd, 8192)
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno == errno.EPIPE:  # records were overwritten; the next read gives the oldest one left
                    self.lost += 1
                    continue
                if exc.errno == errno.EINVAL:  # a record longer than the buffer is skipped by the kernel
                    continue
                raise
            if not chunk:
                return
            yield from chunk.decode("utf-8", "replace").split("\n")

    def _follow_file(self) -> None:
        """Start over where the file was cut short or replaced (rotation, a new boot of a simulated node)."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return
        if (named.st_dev, named.st_ino) != self._identity:
            os.close(self._fd)
            self._open()
        elif named.st_size >= os.lseek(self._fd, 0, os.SEEK_CUR):
            return
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.seen, self._rest = -1, b""

    def _file_lines(self) -> Iterator[str]:
        chunks = [self._rest]
        while chunk := os.read(self._fd, 1 << 20):
            chunks.append(chunk)
        whole, newline, rest = b"".join(chunks).rpartition(b"\n")
        self._rest = rest
        if newline:
            yield from whole.decode("utf-8", "replace").split("\n")

    def close(self) -> None:
        os.close(self._fd)
