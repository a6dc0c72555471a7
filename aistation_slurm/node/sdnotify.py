"""Telling systemd that a daemon is ready and alive (sd_notify(3)); silent where there is no systemd."""

from __future__ import annotations

import os
import socket

__all__ = ["notify", "watchdog_interval_s"]


def notify(message: str) -> None:
    """Send ``READY=1``, ``WATCHDOG=1``, ``STOPPING=1`` ... to $NOTIFY_SOCKET. Never fails, never waits."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
            link.setblocking(False)
            link.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
    except OSError:
        pass


def watchdog_interval_s() -> float:
    """How often to send WATCHDOG=1: half of systemd's limit; infinity where none is set."""
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 2e6 if text.isdigit() and int(text) else float("inf")
