"""A study as one SVG: bars for each policy, by size of job. Stands alone, needs no script and no font."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from aistation_slurm.placement.simulation.figures import Figures
from aistation_slurm.placement.simulation.study import Study

__all__ = ["picture"]

FILLS = ("#9aa5b1", "#5b8def", "#2f9e6e", "#e0913a", "#9a6dd7", "#c8553d")
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, LEGEND = 460, 220, 56, 52
Bars = list[tuple[str, list[tuple[float, float]]]]
"""Label of a group -> for each policy the value and half of its interval."""


def picture(studies: Sequence[tuple[str, Study]]) -> str:
    """One row a study (such as a load): leaves over optimum, mean wait, and both by size."""
    names = list(studies[0][1].runs)
    width = 3 * (PANEL_WIDTH + MARGIN) + MARGIN
    height = LEGEND + len(studies) * (PANEL_HEIGHT + 2 * MARGIN)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="ui-sans-serif, Helvetica, Arial, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for at, name in enumerate(names):
        out.append(f'<rect x="{MARGIN + at * 190}" y="18" width="14" height="14" fill="{_fill(at)}"/>')
        out.append(f'<text x="{MARGIN + at * 190 + 20}" y="30">{escape(name)}</text>')
    for row, (title, study) in enumerate(studies):
        top = LEGEND + row * (PANEL_HEIGHT + 2 * MARGIN) + MARGIN
        sizes = study.sizes
        several = [size for size in sizes if size != "1"]
        panels: list[tuple[str, Bars]] = [
            (f"{title}: leaves over optimum, by nodes", _by_size(study, several, "over", lambda f: f.over)),
            (f"{title}: mean wait in s, by nodes", _by_size(study, sizes, "wait_s", lambda f: f.wait_s)),
            (f"{title}: p95 wait in s, by nodes", _by_size(study, sizes, "wait_p95_s", lambda f: f.wait_p95_s)),
        ]
        for column, (heading, bars) in enumerate(panels):
            out += _panel(MARGIN + column * (PANEL_WIDTH + MARGIN), top, heading, bars)
    return "\n".join((*out, "</svg>")) + "\n"


def _by_size(study: Study, sizes: Sequence[str], key: str, whole: Callable[[Figures], float]) -> Bars:
    bars: Bars = [("all", [study.value(name, whole) for name in study.runs])]
    for size in sizes:

        def of(figures: Figures, size: str = size) -> float:
            return float(getattr(figures.by_size[size], key)) if size in figures.by_size else math.nan

        bars.append((size, [study.value(name, of) for name in study.runs]))
    return bars


def _panel(left: int, top: int, heading: str, bars: Bars) -> list[str]:
    most = max((value for _, found in bars for value, _ in found if not math.isnan(value)), default=0.0) or 1.0
    step = _step(most)
    scale = PANEL_HEIGHT / (step * math.ceil(most / step))
    bottom = top + PANEL_HEIGHT
    out = [f'<text x="{left}" y="{top - 12}" font-weight="600">{escape(heading)}</text>']
    for tick in range(math.ceil(most / step) + 1):
        y = bottom - tick * step * scale
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + PANEL_WIDTH}" y2="{y:.1f}" stroke="#e3e7eb"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{tick * step:g}</text>')
    group = PANEL_WIDTH / len(bars)
    for at, (label, found) in enumerate(bars):
        wide = group * 0.8 / len(found)
        for policy, (value, half) in enumerate(found):
            if math.isnan(value):
                continue
            x, tall = left + at * group + group * 0.1 + policy * wide, value * scale
            out.append(
                f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{wide * 0.92:.1f}" height="{tall:.1f}" '
                f'fill="{_fill(policy)}"><title>{escape(label)}: {value:.4g}</title></rect>'
            )
            if not math.isnan(half):
                high, low = bottom - (value + half) * scale, bottom - max(0.0, value - half) * scale
                middle = x + wide * 0.46
                out.append(f'<line x1="{middle:.1f}" y1="{high:.1f}" x2="{middle:.1f}" y2="{low:.1f}" stroke="#333"/>')
        out.append(
            f'<text x="{left + (at + 0.5) * group:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>'
        )
    return out


def _step(most: float) -> float:
    """A round distance between ticks, four to eight of them."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _fill(at: int) -> str:
    return FILLS[at % len(FILLS)]
