"""Topology files: their text, deterministic and with as few changes to an existing one as can be, and their safe writing."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional, Union

from aistation_slurm.errors import TopologyError
from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import Block, Switch, Topology, natural
from aistation_slurm.topology.readers import topology_conf
from aistation_slurm.topology.readers.conf_lines import join_lines, pair

__all__ = ["conf_text", "merged_text", "replace_file", "yaml_text"]


def names_text(names: Sequence[str]) -> str:
    """A hostlist for a configuration file, sorted."""
    return hostlist.fold(sorted(set(names), key=natural))


def _line(unit: Union[Switch, Block]) -> str:
    """One line of topology.conf; a key without a value is left out: Slurm would take the next word for its value."""
    if isinstance(unit, Block):
        return f"BlockName={unit.name}" + (f" Nodes={names_text(unit.nodes)}" if unit.nodes else "")
    speed = f" LinkSpeed={unit.link_speed}" if unit.link_speed != 1 else ""
    below = ("Switches", unit.children) if unit.children else ("Nodes", unit.nodes)
    return f"SwitchName={unit.name}{speed}" + (f" {below[0]}={names_text(below[1])}" if below[1] else "")


def _ordered(topology: Topology) -> list[Switch]:
    """Leaves first, each level by name."""
    return sorted(topology.switches, key=lambda s: (s.level, natural(s.name)))


def conf_text(topology: Topology, head: str = "") -> str:
    """topology.conf for a tree or for blocks. Raises TopologyError for a kind that the file cannot hold."""
    lines = [f"# {line}" for line in head.splitlines()]
    if topology.kind == "tree":
        for switch in _ordered(topology):
            lines += [f"# {switch.name} {switch.note}"] if switch.note else []
            lines.append(_line(switch))
    elif topology.kind == "block":
        lines += [_line(block) for block in topology.blocks]
        if topology.block_sizes:
            lines.append("BlockSizes=" + ",".join(str(size) for size in topology.block_sizes))
    else:
        raise TopologyError(
            f"topology.conf cannot hold a {topology.kind} topology; write topology.yaml (--format yaml)"
        )
    return "\n".join(lines) + "\n"


def merged_text(topology: Topology, old: str) -> str:
    """``old`` with only the lines changed that mean something else now; comments, order and spelling stay.

    New switches and blocks come last; a line that defines something that is gone is dropped.
    """
    units: dict[str, Union[Switch, Block]] = {s.name: s for s in _ordered(topology)}
    units.update({b.name: b for b in topology.blocks})
    read = topology_conf.read(old).topology
    before: dict[str, Union[Switch, Block]] = {s.name: s for s in read.switches}
    before.update({b.name: b for b in read.blocks})
    physical, kept = old.split("\n"), []
    lines = list(join_lines(old, ""))
    ends = [line.number - 1 for line in lines[1:]] + [len(physical)]
    done: set[str] = set()
    for line, end in zip(lines, ends):
        text = physical[line.number - 1 : end]
        first = pair(line.text)
        key = first.key.lower() if first else ""
        if first is None or key not in ("switchname", "blockname", "blocksizes"):
            kept += text
        elif key == "blocksizes":
            if topology.block_sizes == read.block_sizes:
                kept += text
            elif topology.block_sizes:
                kept.append("BlockSizes=" + ",".join(str(size) for size in topology.block_sizes))
        elif first.value in units and first.value not in done:
            unit = units[first.value]
            done.add(first.value)
            kept += text if _same(unit, before.get(first.value)) else [_line(unit)]
    while kept and not kept[-1].strip():
        kept.pop()
    for name, unit in units.items():
        if name not in done:
            kept += [f"# {name} {unit.note}"] if unit.note else []
            kept.append(_line(unit))
    if topology.block_sizes and not any((p := pair(text)) and p.key.lower() == "blocksizes" for text in kept):
        kept.append("BlockSizes=" + ",".join(str(size) for size in topology.block_sizes))
    return "\n".join(kept) + "\n"


def _same(new: Union[Switch, Block], old: Union[Switch, Block, None]) -> bool:
    if old is None or set(new.nodes) != set(old.nodes):
        return False
    if isinstance(new, Switch) and isinstance(old, Switch):
        return set(new.children) == set(old.children)
    return type(new) is type(old)


def yaml_text(topologies: Sequence[Topology], head: str = "") -> str:
    """topology.yaml (Slurm 25.05 and newer)."""
    out = [f"# {line}" for line in head.splitlines()] + ["---"]
    for index, topology in enumerate(topologies):
        default = topology.cluster_default or (index == 0 and not any(t.cluster_default for t in topologies))
        out += [f"- topology: {_scalar(topology.name)}", f"  cluster_default: {str(default).lower()}"]
        if topology.kind == "tree":
            out += ["  tree:", "    switches:"]
            for switch in sorted(topology.switches, key=lambda s: (-s.level, natural(s.name))):
                out.append(f"      - switch: {_scalar(switch.name)}")
                below = ("children", switch.children) if switch.children else ("nodes", switch.nodes)
                out += [f"        {below[0]}: {_scalar(names_text(below[1]))}"] if below[1] else []
        elif topology.kind == "block":
            out.append("  block:")
            if topology.block_sizes:
                out += ["    block_sizes:", *(f"      - {size}" for size in topology.block_sizes)]
            out.append("    blocks:")
            for block in topology.blocks:
                out.append(f"      - block: {_scalar(block.name)}")
                out += [f"        nodes: {_scalar(names_text(block.nodes))}"] if block.nodes else []
        elif topology.kind == "flat":
            out.append("  flat: true")
        else:
            raise TopologyError(f"writing a {topology.kind} topology is not supported; edit topology.yaml by hand")
    return "\n".join(out) + "\n"


def _scalar(text: str) -> str:
    """A name as YAML: in quotes unless it can be nothing but text (``on``, ``1e3`` and ``[...]`` could)."""
    plain = text[:1].isalpha() and text.replace("-", "").replace("_", "").isalnum() and any(c.isdigit() for c in text)
    return text if plain and text.isascii() else json.dumps(text)


def replace_file(path: Path, text: str, *, keep: bool = True) -> Optional[Path]:
    """Write by rename, with the mode and owner of the old file, which is kept as ``<name>.old``; None where there was none.

    Raises TopologyError with the old file untouched when anything fails.
    """
    path = Path(os.path.realpath(path))
    kept = path.with_name(path.name + ".old")
    temporary = ""
    try:
        before = path.stat() if path.exists() else None
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), before.st_mode & 0o7777 if before else 0o644)
            if before and os.geteuid() == 0:
                os.fchown(stream.fileno(), before.st_uid, before.st_gid)
            os.fsync(stream.fileno())
        if before and keep:
            with contextlib.suppress(FileNotFoundError):
                kept.unlink()
            os.link(path, kept)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as exc:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise TopologyError(f"{path}: cannot be written: {exc.strerror or exc}; the old file is as it was") from exc
    return kept if before and keep else None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
