"""Small charts as inline SVG. Colours are CSS variables of the page, so that they follow its
light or dark theme; sizes suit a phone (420 units wide, text of 13)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 420
_TEXT = 13
_ROW = 44
_PAD = 8


@dataclass(frozen=True)
class Bar:
    """A median with its interval, all in one unit."""

    label: str
    value: float
    low: float
    high: float
    ours: bool = False


@dataclass(frozen=True)
class Point:
    """One evaluation: its speed-up, or None for a failure."""

    index: int
    value: float | None
    title: str


def bars(rows: Sequence[Bar], unit: str, floor: float | None = None) -> str:
    """Horizontal bars from zero, an interval on each end, `floor` as a dashed line."""
    if not rows:
        return ""
    top = max(row.high for row in rows)
    scale = (WIDTH - 2 * _PAD) / top if top > 0 else 0.0
    height = _ROW * len(rows) + (22 if floor else 4)
    parts = []
    for i, row in enumerate(rows):
        y = _ROW * i
        kind = "ours" if row.ours else "base"
        text = f"{number(row.value)} {unit}"
        parts += [
            f'<text x="{_PAD}" y="{y + 14}" class="label">{escape(row.label)}</text>',
            f'<text x="{WIDTH - _PAD}" y="{y + 14}" text-anchor="end">{escape(text)}</text>',
            f'<rect x="{_PAD}" y="{y + 20}" width="{max(1.0, row.value * scale):.1f}" height="14" '
            f'rx="2" class="{kind}"/>',
            _interval(_PAD + row.low * scale, _PAD + row.high * scale, y + 27),
        ]
    if floor:
        x = _PAD + floor * scale
        bottom = _ROW * len(rows)
        anchor = "start" if x < WIDTH / 2 else "end"
        parts += [
            f'<line x1="{x:.1f}" y1="{_ROW * i + 17}" x2="{x:.1f}" y2="{_ROW * i + 37}" '
            'class="floor"/>'
            for i in range(len(rows))
        ]  # not through the labels
        parts += [
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="{anchor}" class="faint">'
            f"physical floor {escape(number(floor))} {escape(unit)}</text>",
        ]
    return _svg(height, "Time of each version", parts)


def progress(points: Sequence[Point], audited: float | None = None) -> str:
    """Speed-up of every evaluation (dots), the best so far (line), failures on the bottom edge."""
    values = [p.value for p in points if p.value is not None]
    if not values:
        return ""
    height, left, right, base = 220, 42, WIDTH - 10, 188
    low, high = min(*values, 1.0), max(*values, 1.0, audited or 1.0)
    low, high = low - 0.08 * (high - low), high + 0.08 * (high - low)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    span = max(len(points) - 1, 1)

    def x(index: float) -> float:
        return left + 8 + (right - left - 16) * index / span

    def y(value: float) -> float:
        return base - (base - 12) * (value - low) / (high - low)

    parts = []
    for tick in ticks(low, high):
        parts += [
            f'<line x1="{left}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}" class="grid"/>',
            f'<text x="{left - 5}" y="{y(tick) + 4:.1f}" text-anchor="end" class="faint">'
            f"{tick:g}×</text>",
        ]
    parts.append(
        f'<line x1="{left}" y1="{y(1):.1f}" x2="{right}" y2="{y(1):.1f}" class="floor"/>'
    )
    best, path = -math.inf, ""
    for i, point in enumerate(points):
        if point.value is not None and point.value > best:
            path += (f" H{x(i):.1f} V{y(point.value):.1f}" if path
                     else f"M{x(i):.1f} {y(point.value):.1f}")
            best = point.value
    parts.append(f'<path d="{path} H{x(len(points) - 1):.1f}" class="best"/>')
    for i, point in enumerate(points):
        title = f"<title>{escape(point.title)}</title>"
        if point.value is None:
            parts.append(
                f'<text x="{x(i):.1f}" y="{base + 4}" text-anchor="middle" class="failed">×{title}'
                "</text>"
            )
        else:
            parts.append(
                f'<circle cx="{x(i):.1f}" cy="{y(point.value):.1f}" r="4" class="dot">{title}'
                "</circle>"
            )
    parts += [
        f'<text x="{x(0):.1f}" y="{height - 8}" text-anchor="middle" class="faint">'
        f"{points[0].index}</text>",
        f'<text x="{(left + right) / 2}" y="{height - 8}" text-anchor="middle" class="faint">'
        "evaluation</text>",
    ]
    if len(points) > 1:
        parts.append(
            f'<text x="{x(span):.1f}" y="{height - 8}" text-anchor="middle" class="faint">'
            f"{points[-1].index}</text>"
        )
    return _svg(height, "Speed-up over eager, by evaluation", parts)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], title: str, x_label: str) -> str:
    """Points (x, y) of each name as a line, of class "line0", "line1", ...; NaN is left out."""
    points = [p for line in series.values() for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    height, left, right, base = 200, 48, WIDTH - 10, 168
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    margin = 0.08 * (high - low) or 0.5 * abs(high) or 0.5
    low, high = low - margin, high + margin

    def place(point: tuple[float, float]) -> str:
        x = left + 4 + (right - left - 8) * (point[0] - x_low) / max(x_high - x_low, 1e-9)
        return f"{x:.1f} {base - (base - 10) * (point[1] - low) / (high - low):.1f}"

    parts = []
    for tick in ticks(low, high, 4):
        y = base - (base - 10) * (tick - low) / (high - low)
        parts += [
            f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>',
            f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" class="faint">{tick:g}</text>',
        ]
    for i, line in enumerate(series.values()):
        finite = [p for p in line if math.isfinite(p[1])]
        path = " L".join(place(p) for p in finite)
        if len(finite) == 1:
            where = place(finite[0]).split()
            parts.append(
                f'<circle cx="{where[0]}" cy="{where[1]}" r="3" class="line{i} filled"/>'
            )
        elif finite:
            parts.append(f'<path d="M{path}" class="line{i}"/>')
    parts += [
        f'<text x="{left + 4}" y="{height - 12}" class="faint">{x_low:g}</text>',
        f'<text x="{(left + right) / 2}" y="{height - 12}" text-anchor="middle" class="faint">'
        f"{escape(x_label)}</text>",
        f'<text x="{right}" y="{height - 12}" text-anchor="end" class="faint">{x_high:g}</text>',
    ]
    return _svg(height, title, parts)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, about `count` of them."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def number(value: float) -> str:
    """Three significant digits without an exponent where it can be."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.2e}"


def _interval(low: float, high: float, y: float) -> str:
    """A whisker with end caps."""
    return (
        f'<path d="M{low:.1f} {y} H{high:.1f} M{low:.1f} {y - 4} V{y + 4} '
        f'M{high:.1f} {y - 4} V{y + 4}" class="whisker"/>'
    )


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'font-size="{_TEXT}">{"".join(parts)}</svg>'
    )
