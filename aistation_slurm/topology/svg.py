"""A topology as an SVG: one row a level, leaves with their nodes, a line for each link that Slurm knows of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from aistation_slurm.slurm import hostlist
from aistation_slurm.topology.model import Switch, Topology, natural

__all__ = ["picture"]

CHAR = 6.7
"""Width of a character at 11 px, in px."""
ROW = 120
BOX_HEIGHT, GAP, MARGIN = 46, 14, 24
WIDE, NARROW = 4000, 3
"""Up to ``WIDE`` px the boxes of a row are as wide as their texts; above it they shrink, and texts show on hovering."""
FILLS = ("#e6f4ea", "#e3eefc", "#f1e8fb", "#fdebd8")


def picture(topology: Topology, title: str) -> str:
    """The SVG's text; stands alone, needs no script and no font."""
    if topology.kind != "tree":
        boxes = [Switch(block.name, block.nodes) for block in topology.blocks]
        rows: list[list[Switch]] = [boxes]
        links: list[tuple[str, str]] = []
    else:
        known = list(topology.by_name.values())
        height = max(0, *(switch.level for switch in known), 0)
        rows = [[s for s in known if max(s.level, 0) == level] for level in range(height, -1, -1)]
        rows[-1] = _leaf_order(topology, rows[-1])
        links = [(s.name, child) for s in known for child in dict.fromkeys(s.children) if child in topology.by_name]
    widths: dict[str, float] = {}
    gaps: list[float] = []
    for row in rows:
        natural_width = sum(_width(s) + GAP for s in row)
        room = WIDE / max(1, len(row))
        gaps.append(GAP if natural_width <= WIDE else min(GAP, max(1.0, room / 8)))
        for switch in row:
            fits = natural_width <= WIDE
            widths[switch.name] = _width(switch) if fits else max(NARROW, min(_width(switch), room - gaps[-1]))
    needed = max(sum(widths[s.name] + gap for s in row) for row, gap in zip(rows, gaps))
    centre = _places(rows, widths, links, needed, gaps)
    width, height = needed + 2 * MARGIN, _top(len(rows) - 1) + BOX_HEIGHT + MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
        f'<rect width="100%" height="100%" fill="#ffffff"/><text x="{MARGIN}" y="22" font-size="13" fill="#222">'
        f"{_text(title)}</text>",
    ]
    row_of = {s.name: index for index, row in enumerate(rows) for s in row}
    for above, below in links:
        start, end = _top(row_of[above]) + BOX_HEIGHT, _top(row_of[below])
        out.append(
            f'<path d="M{centre[above]:.1f} {start} C{centre[above]:.1f} {start + 40} {centre[below]:.1f} {end - 40} '
            f'{centre[below]:.1f} {end}" fill="none" stroke="#9aa5b1" stroke-width="1"/>'
        )
    for index, row in enumerate(rows):
        for switch in row:
            out += _box(switch, centre[switch.name], _top(index), widths[switch.name])
    return "\n".join((*out, "</svg>")) + "\n"


def _top(row: int) -> int:
    return 40 + row * ROW


def _lines(switch: Switch) -> tuple[str, str]:
    if switch.children:
        return switch.name, f"{len(switch.children)} switches"
    nodes = hostlist.fold(sorted(switch.nodes, key=natural))
    nodes = nodes if len(nodes) <= 26 else nodes[:24] + ".."
    return switch.name, f"{nodes} ({len(switch.nodes)})" if switch.nodes else "no nodes"


def _width(switch: Switch) -> float:
    return max(len(line) for line in _lines(switch)) * CHAR + 18


def _leaf_order(topology: Topology, leaves: Sequence[Switch]) -> list[Switch]:
    """Leaves of one parent side by side, so that lines do not cross."""
    order: dict[str, None] = {}
    stack = sorted(topology.roots, key=natural, reverse=True)
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name in seen or name not in topology.by_name:
            continue
        seen.add(name)
        order[name] = None
        stack += reversed(topology.by_name[name].children)
    place = {name: index for index, name in enumerate(order)}
    return sorted(leaves, key=lambda s: (place.get(s.name, len(place)), natural(s.name)))


def _places(
    rows: Sequence[Sequence[Switch]],
    widths: dict[str, float],
    links: Sequence[tuple[str, str]],
    needed: float,
    gaps: Sequence[float],
) -> dict[str, float]:
    """Middles of the boxes: the lowest row is packed, and each row above centred over its children, without overlap."""
    below: dict[str, list[str]] = {}
    for above, child in links:
        below.setdefault(above, []).append(child)
    centre: dict[str, float] = {}
    for row, gap in reversed(list(zip(rows, gaps))):
        total = sum(widths[s.name] + gap for s in row) - gap
        wished: dict[str, float] = {}
        at = (needed - total) / 2
        for switch in row:
            middles = [centre[child] for child in below.get(switch.name, ()) if child in centre]
            wished[switch.name] = sum(middles) / len(middles) if middles else at + widths[switch.name] / 2
            at += widths[switch.name] + gap
        ordered = sorted(row, key=lambda s: wished[s.name])
        edge = 0.0
        left: dict[str, float] = {}
        for switch in ordered:
            left[switch.name] = max(edge, wished[switch.name] - widths[switch.name] / 2)
            edge = left[switch.name] + widths[switch.name] + gap
        edge = needed
        for switch in reversed(ordered):
            left[switch.name] = min(left[switch.name], edge - widths[switch.name])
            edge = left[switch.name] - gap
        for switch in row:
            centre[switch.name] = MARGIN + max(0.0, left[switch.name]) + widths[switch.name] / 2
    return centre


def _box(switch: Switch, centre: float, top: int, width: float) -> list[str]:
    fill = FILLS[min(max(switch.level, 0), len(FILLS) - 1)] if switch.level >= 0 else "#fbd5d5"
    name, second = _lines(switch)
    inside = hostlist.fold(sorted(switch.nodes or switch.children, key=natural))
    hover = f"{switch.name} level {switch.level}: {inside} {switch.note}"
    out = [
        f"<g><title>{_text(hover)}</title>"
        f'<rect x="{centre - width / 2:.1f}" y="{top}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="5" fill="{fill}" '
        'stroke="#5b6776"/>'
    ]
    for text, y, colour in ((name, top + 19, "#111"), (second, top + 35, "#52606d")):
        room = int((width - 8) / CHAR)
        if room >= 4:
            shown = text if len(text) <= room else text[: room - 2] + ".."
            out.append(f'<text x="{centre:.1f}" y="{y}" text-anchor="middle" fill="{colour}">{_text(shown)}</text>')
    return [*out, "</g>"]


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() else "?" for c in text), quote=True)
