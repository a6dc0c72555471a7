"""Any bytes in any file of the RDMA class: read and judged without an error. AISTATION_FUZZ=10000 for a long run."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aistation_slurm.config import Expect, Fabric
from aistation_slurm.detectors import fabric
from aistation_slurm.probes.ethtool import parse_statistics
from aistation_slurm.probes.rdma import PortSnapshot, read_ports
from tests.cluster.hardware import Hardware

EXAMPLES = int(os.environ.get("AISTATION_FUZZ", "150"))
PORT, NET = "sys/class/infiniband/mlx5_0/ports/1", "sys/class/net/ibp25s0"
FILES = [
    f"{PORT}/{name}"
    for name in ("state", "phys_state", "rate", "link_layer", "lid", "gids/0", "gids/3", "gid_attrs/types/3")
]
FILES += [f"{PORT}/gid_attrs/ndevs/0", f"{PORT}/counters/link_downed", f"{PORT}/counters/port_xmit_data"]
FILES += [
    f"{NET}/{name}" for name in ("mtu", "flags", "carrier_down_count", "carrier_up_count", "dev_port", "phys_port_name")
]
FILES += [f"sys/class/infiniband/mlx5_0/{name}" for name in ("fw_ver", "board_id", "node_type", "device/config")]
NUMBERS = st.one_of(st.integers(0, 2**64), st.sampled_from([255, 65535, 2**32 - 1])).map(lambda n: f"{n}\n".encode())
KNOWN = st.sampled_from(
    [b"4: ACTIVE\n", b"1: DOWN\n", b"Ethernet\n", b"InfiniBand\n", b"400 Gb/sec (4X NDR)\n", b"", b"\xff\xff\xff\xff"]
)
TEXTS = st.one_of(
    st.binary(max_size=300), NUMBERS, KNOWN, st.text(max_size=20).map(lambda t: t.encode("utf-8", "replace"))
)


@pytest.fixture(scope="module")
def node() -> Iterator[Hardware]:
    with tempfile.TemporaryDirectory() as folder:
        made = Hardware(Path(folder) / "aisim", "gpu1", gpus=0, hcas=2)
        made.folder.mkdir()
        made.roce = True
        made.make_healthy()
        yield made


@functools.lru_cache(maxsize=1)
def _healthy(node: Hardware) -> fabric.Histories:
    return fabric.counted(read_ports(node.root), Expect(), {}, 1000.0, 1e6, Fabric())


@pytest.mark.timeout(300 + EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(FILES), TEXTS, min_size=1, max_size=5))
def test_any_bytes_are_read_and_judged(node: Hardware, changes: dict[str, bytes]) -> None:
    before = {path: (node.root / path).read_bytes() if (node.root / path).exists() else None for path in changes}
    try:
        for path, data in changes.items():
            (node.root / path).write_bytes(data)
        ports = read_ports(node.root)
    finally:
        for path, old in before.items():
            if old is None:
                (node.root / path).unlink()
            else:
                (node.root / path).write_bytes(old)
    assert msgspec.json.decode(msgspec.json.encode(ports), type=list[PortSnapshot]) == ports
    histories = fabric.counted(ports, Expect(), _healthy(node), 1030.0, 1e6, Fabric())
    found = fabric.findings(ports, Expect(hca_ports=2, rate_gbps=400), 1e6, histories)
    assert [p.hca for p in ports] == ["mlx5_0", "mlx5_1"]
    assert all(f.evidence.isprintable() and not f.drains for f in found)
    assert not [
        f for f in found if f.subject == "mlx5_1/1" and f.check == "fabric.port_state" and f.status.value != "ok"
    ]


@settings(max_examples=EXAMPLES, deadline=None)
@given(text=st.text(max_size=500))
def test_any_text_as_ethtool_statistics(text: str) -> None:
    assert all(value >= 0 for value in parse_statistics(text).values())
