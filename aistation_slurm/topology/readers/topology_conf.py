"""topology.conf, by the rules of Slurm's own parser and of its tree, block and ring plugins.

::

    SwitchName=leaf1 Nodes=gpu-node-[01-08] LinkSpeed=400
    SwitchName=spine1 Switches=leaf[1-2]

    BlockName=block1 Nodes=node[1-32]
    BlockSizes=30,120
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from aistation_slurm.topology.model import ERROR, WARNING, Block, Problem, Reading, Switch, Topology, resolve_levels
from aistation_slurm.topology.readers.conf_lines import SPACE, Line, Pair, expand_names, pair, read_lines

__all__ = ["block_sizes", "read"]

_KINDS = {"switchname": "tree", "blockname": "block", "blocksizes": "block", "ringname": "ring"}
_KEYS = {
    # first key of a line, lower case: (as Slurm spells it, keys that may follow)
    "switchname": ("SwitchName", ("LinkSpeed", "Nodes", "Switches")),
    "blockname": ("BlockName", ("Nodes",)),
    "ringname": ("RingName", ("Nodes",)),
}
MAX_LEVEL = 15
"""A block size may be at most 2^15 times the base."""


@dataclass
class _File:
    """What was gathered so far; kind "" until the first line that has one."""

    kind: str = ""
    switches: list[Switch] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    sizes: Optional[tuple[str, Line]] = None
    dropped: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def fatal(self, line: Line, message: str, hint: str = "") -> None:
        self.problems.append(Problem(ERROR, message, line.number, "fatal", hint, line.file))

    def warn(self, line: Line, message: str, hint: str = "", slurm: str = "") -> None:
        self.problems.append(Problem(WARNING, message, line.number, slurm, hint, line.file))


def read(text: str, file: str = "topology.conf", *, folder: Optional[Path] = None) -> Reading:
    """Every problem is in the answer; what Slurm would still take from the file is in its topology."""
    found = _File()
    for line in read_lines(text, file, found.problems, folder=folder):
        _read_line(line, found)
    sizes: tuple[int, ...] = ()
    if found.sizes is not None:
        sizes = block_sizes(found.sizes[0].split(","), found.sizes[1], found.problems)
    switches = resolve_levels(found.switches)
    topology = Topology(found.kind or "tree", switches, tuple(found.blocks), sizes)
    known = {switch.name for switch in switches}
    for switch in switches:
        missing = [c for c in dict.fromkeys(switch.children) if c not in known or c == switch.name]
        # Slurm never gets as far as these; telling of them twice would only hide the cause
        for child in [c for c in missing if c not in found.dropped]:
            found.problems.append(invalid_child(switch, child, file))
    return Reading((topology,), tuple(found.problems), file)


def invalid_child(switch: Switch, child: str, file: str) -> Problem:
    hint = "a switch cannot be its own child" if child == switch.name else f"add a line SwitchName={child}, or drop it"
    message = f"Switch configuration {switch.name} has invalid child ({child})"
    return Problem(ERROR, message, switch.line, "fatal", hint, file)


def _read_line(line: Line, found: _File) -> None:
    first = pair(line.text)
    if first is None:
        text = line.text.strip(SPACE)
        hint = "expected key=value; a comment inside a continued list ends the list" if "=" not in text else ""
        found.fatal(
            line, f'Parse error in file {line.file} line {line.number}: "{text[:80]}"', hint or _empty_hint(text)
        )
        return
    key = first.key.lower()
    kind = _KINDS.get(key)
    if kind is None:
        known = ", ".join(name for name, _ in _KEYS.values())
        hint = f"a line starts with one of {known}, BlockSizes"
        if key == "blocklevels":
            hint = "BlockLevels was replaced by BlockSizes (in nodes) in Slurm 24.05"
        found.fatal(line, f"unknown key {first.key} at the start of the line", hint)
        return
    found.kind = found.kind or kind
    if kind != found.kind:
        hint = f"one file is for one plugin, and the lines above are for topology/{found.kind}"
        found.fatal(line, f"unknown key {first.key} for topology/{found.kind}", hint)
        return
    if key == "blocksizes":
        _read_sizes(line, first, found)
        return
    values, clean = _rest(line, first, key, found)
    if kind == "tree":
        _add_switch(line, first.value, values, found)
    else:
        _add_block(line, first.value, values, found, clean)


def _empty_hint(text: str) -> str:
    return "a key without a value: leave the key out" if text.endswith("=") else ""


def _rest(line: Line, first: Pair, key: str, found: _File) -> tuple[dict[str, str], bool]:
    """Values of the keys after the first one, by their names in Slurm; Slurm stops at the first that it does not know."""
    spelled, allowed = _KEYS[key]
    names = {name.lower(): name for name in allowed}
    values: dict[str, str] = {}
    rest = first.rest
    while True:
        following = pair(rest)
        if following is None:
            break
        name = names.get(following.key.lower())
        if name is None:
            hint = f"Slurm knows {', '.join(allowed)} after {spelled}"
            if following.key.lower() in _KINDS:
                hint = "each switch or block needs a line of its own"
            found.fatal(line, f"unknown key {following.key} in the line of {first.value}", hint)
            return values, False
        if name in values:
            found.warn(
                line, f"{name} specified more than once in the line of {first.value}, latest value used", slurm="error"
            )
        swallowed = re.match(r"([A-Za-z]+)=", following.value)
        if swallowed and swallowed.group(1).lower() in {*names, *_KINDS}:
            message = f"{name}= is empty and takes {following.value!r}, which follows it, as its value"
            hint = f"leave {name}= out, or give it a value"
            found.problems.append(Problem(ERROR, message, line.number, "warning", hint, line.file))
        values[name] = following.value
        rest = following.rest
    if rest.strip(SPACE):
        text = rest.strip(SPACE)
        hint = _empty_hint(text) or "blanks separate keys: no blanks inside a list, or put it in double quotes"
        found.fatal(line, f'Parse error in file {line.file} line {line.number}: "{text[:80]}"', hint)
        return values, False
    return values, True


def _add_switch(line: Line, name: str, values: dict[str, str], found: _File) -> None:
    if "Nodes" in values and "Switches" in values:
        hint = "give it one of them; a switch with nodes below a switch with switches needs a line of its own"
        found.fatal(line, f"switch {name} has both child switches and nodes", hint)
        found.dropped.add(name)
        return
    speed = _link_speed(line, name, values.get("LinkSpeed"), found)
    nodes = expand_names(
        values.get("Nodes", ""), lambda why: _bad_list(line, f"Invalid node name in switch config ({name})", why, found)
    )
    children = expand_names(
        values.get("Switches", ""), lambda why: _bad_list(line, f"Invalid switches of {name}", why, found)
    )
    if values.get("Switches", "x").strip(SPACE + ",") == "":
        # its level is never found: slurmctld ends in an assertion
        found.fatal(line, f"switch {name} has an empty list of child switches", "leave Switches= out, or name them")
    bare = not {"Nodes", "Switches"} & set(values)
    found.switches.append(Switch(name, nodes, children, link_speed=speed, line=line.number, bare=bare))


def _bad_list(line: Line, what: str, why: str, found: _File) -> None:
    found.fatal(line, f"{what}: {why}", "expected a hostlist such as node[01-08,12]")


def _link_speed(line: Line, name: str, text: Optional[str], found: _File) -> int:
    """strtoul's numbers (0x10, 010, 4k) below 2^32; Slurm does not use the value."""
    if text is None:
        return 1
    if text.lower() in ("unlimited", "infinite"):
        return 0xFFFFFFFF
    number = re.fullmatch(r"\+?(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})([kK]?)", text)
    if number is None or (number.group(1).startswith("0") and re.search(r"^0[0-7]*[89]", number.group(1))):
        found.fatal(
            line, f"LinkSpeed value ({text}) of {name} is not a valid number", "a whole number, or leave it out"
        )
        return 1
    digits = number.group(1)
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    value = int(digits, base) * (1024 if number.group(2) else 1)
    if value > 0xFFFFFFFF:
        found.fatal(line, f"LinkSpeed value ({text}) of {name} is greater than 4294967295", "a smaller number")
    return min(value, 0xFFFFFFFF)


def _add_block(line: Line, name: str, values: dict[str, str], found: _File, clean: bool) -> None:
    what = f"Invalid node name in {found.kind} config ({name})"
    nodes = expand_names(values.get("Nodes", ""), lambda why: _bad_list(line, what, why, found))
    if found.kind == "ring" and clean and (not nodes or len(nodes) > 16):
        found.fatal(line, f"ring {name} has {len(nodes)} nodes", "a ring has 1 to 16 nodes")
    found.blocks.append(Block(name, nodes, line.number, bare="Nodes" not in values))


def _read_sizes(line: Line, first: Pair, found: _File) -> None:
    if found.sizes is not None:
        found.warn(line, "BlockSizes specified more than once, latest value used", slurm="error")
    if first.rest.strip(SPACE):
        text = first.rest.strip(SPACE)
        hint = "BlockSizes needs a line of its own, without blanks in the list"
        found.fatal(line, f'Parse error in file {line.file} line {line.number}: "{text[:80]}"', hint)
    found.sizes = (first.value, line)


def block_sizes(items: list[str], line: Line, problems: list[Problem]) -> tuple[int, ...]:
    """Sizes in nodes, checked as Slurm does: each a power of two times the first, at most 2^15 times."""
    sizes: list[int] = []
    for item in [text.strip(SPACE) for text in items if text.strip(SPACE)]:
        number = re.match(r"[+]?([0-9]{1,9})", item)
        size = int(number.group(1)) if number else 0
        ratio, left = divmod(size, sizes[0]) if sizes else (1, 0)
        if size <= 0 or left or ratio & (ratio - 1) or ratio.bit_length() - 1 > MAX_LEVEL:
            hint = (
                f"sizes are {sizes[0]} times a power of two, e.g. {sizes[0]},{sizes[0] * 4}" if sizes else "e.g. 30,120"
            )
            problems.append(Problem(ERROR, f"Invalid BlockSizes value: {item}", line.number, "fatal", hint, line.file))
            return tuple(sizes)
        sizes.append(size)
    if not sizes:
        hint = "leave BlockSizes out, or give sizes in nodes, e.g. 30,120"
        problems.append(Problem(ERROR, "Invalid BlockSizes value: empty", line.number, "fatal", hint, line.file))
    return tuple(sizes)
