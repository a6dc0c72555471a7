"""Sum of vectors over all ranks through rank 0: plain TCP, one connection for each other rank.

Who takes part comes from Slurm (SLURM_PROCID, SLURM_NTASKS, first host of the step's node list) or, without Slurm, from the
names that torchrun uses (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Ranks are added in their order, so that the sum is the
same in every run.
"""

from __future__ import annotations

import array
import os
import re
import socket
import time
from collections.abc import Mapping

__all__ = ["Group", "LostRank", "first_host"]

_RETRY_S = 0.1


class LostRank(Exception):
    """Another rank went away, did not come, or did not answer in time."""


def first_host(nodelist: str) -> str:
    """``gpu[3-4,9]`` -> ``gpu3``; ``a1,b2`` -> ``a1``."""
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodelist)
    return "".join(part or "" for part in match.groups()) if match else nodelist


class Group:
    """All ranks of one attempt. timeout_s: longest wait for the others inside one sum."""

    def __init__(
        self, rank: int, world: int, host: str, port: int, token: str, meet_s: float = 120, timeout_s: float = 1800
    ) -> None:
        self.rank, self.world = rank, world
        self._peers: list[socket.socket] = []
        if world == 1:
            return
        hello = f"{token[:40]}:".encode()
        deadline = time.monotonic() + meet_s
        self._peers = self._gather(port, hello, deadline) if rank == 0 else [self._join(host, port, hello, deadline)]
        for peer in self._peers:
            peer.settimeout(timeout_s)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def from_environment(cls, meet_s: float, timeout_s: float, env: Mapping[str, str] = os.environ) -> Group:
        """The ranks of this Slurm step, or of torchrun's variables; alone where neither is set."""
        if "SLURM_PROCID" in env and "RANK" not in env:
            job = int(env.get("SLURM_JOB_ID", "0"))
            nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost"
            host, port = env.get("MASTER_ADDR") or first_host(nodes), int(env.get("MASTER_PORT") or 10000 + job % 20000)
            rank, world = int(env["SLURM_PROCID"]), int(env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or 1)
            # ranks of an attempt that still dies must not meet those of the next one
            token = f"{job}.{env.get('SLURM_STEP_ID', '')}.{env.get('SLURM_RESTART_COUNT', '0')}"
        else:
            rank, world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
            host, port = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "29500"))
            token = env.get("TORCHELASTIC_RUN_ID", "local")
        return cls(rank, world, host, port, token, meet_s, timeout_s)

    def sum(self, values: array.array[float]) -> array.array[float]:
        """Element-wise sum over all ranks; every rank calls it with a vector of the same length. Raises LostRank."""
        size = len(values) * values.itemsize
        try:
            if self.rank != 0:
                self._peers[0].sendall(values.tobytes())
                return _vector(_receive(self._peers[0], size))
            total = array.array("d", values)
            for peer in self._peers:
                for i, value in enumerate(_vector(_receive(peer, size))):
                    total[i] += value
            for peer in self._peers:
                peer.sendall(total.tobytes())
        except OSError as exc:
            raise LostRank(f"rank {self.rank}: another rank is lost ({exc or 'no answer'})") from exc
        return total

    def _gather(self, port: int, hello: bytes, deadline: float) -> list[socket.socket]:
        peers: dict[int, socket.socket] = {}
        with self._listen(port, deadline) as server:
            while len(peers) < self.world - 1:
                server.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except OSError as exc:
                    missing = sorted(set(range(1, self.world)) - set(peers))
                    raise LostRank(f"rank 0: ranks {missing} did not come within the rendezvous timeout") from exc
                peer.settimeout(5)
                try:
                    greeting = _receive(peer, len(hello) + 8)
                except OSError:
                    greeting = b""
                if not greeting.startswith(hello):
                    peer.close()  # a stranger, or a rank of an earlier attempt
                    continue
                peer.sendall(b"welcome!")
                peers[int(greeting[len(hello) :])] = peer
        return [peers[rank] for rank in sorted(peers)]

    def _listen(self, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                return socket.create_server(("", port), backlog=self.world, reuse_port=False)
            except OSError as exc:  # rank 0 of the attempt before may still hold the port
                if time.monotonic() > deadline:
                    raise LostRank(f"rank 0: port {port} cannot be used ({exc})") from exc
                time.sleep(_RETRY_S)

    def _join(self, host: str, port: int, hello: bytes, deadline: float) -> socket.socket:
        last: OSError | None = None
        while time.monotonic() < deadline:
            peer: socket.socket | None = None
            try:
                peer = socket.create_connection((host, port), timeout=5)
                peer.sendall(hello + f"{self.rank:08d}".encode())
                _receive(peer, len(b"welcome!"))
                return peer
            except OSError as exc:
                last = exc
                if peer is not None:
                    peer.close()
                time.sleep(_RETRY_S)
        raise LostRank(f"rank {self.rank}: no rank 0 at {host}:{port} within the rendezvous timeout ({last})")


def _vector(raw: bytes) -> array.array[float]:
    out = array.array("d")
    out.frombytes(raw)
    return out


def _receive(peer: socket.socket, size: int) -> bytes:
    parts = []
    while size > 0:
        part = peer.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("connection closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
