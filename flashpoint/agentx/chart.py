"""The curve as inline SVG: throughput against P90 interactivity, several runs in one picture.

Runs differ in colour, in the shape of their points and in the dash of their line, so no two are told apart
by colour alone. Colours come from the page (`--s0` … `--s5`), which knows about light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

SERIES_COLOURS = 6
_DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
_SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
    "M-4.6-4.6H4.6V4.6H-4.6Z",
    "M0-6L5.8 4.5H-5.8Z",
    "M0-6.4L6.4 0L0 6.4L-6.4 0Z",
    "M0 6L5.8-4.5H-5.8Z",
    "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured level: where it lies, its short label, and the text shown on hover."""

    x: float
    y: float
    label: str
    hover: str


@dataclass(frozen=True, slots=True)
class Size:
    """A drawing's size and margins in SVG units; text is 13 units high."""

    width: int
    height: int
    left: int = 62
    right: int = 22
    top: int = 30
    bottom: int = 50


WIDE = Size(960, 440)
NARROW = Size(370, 330)


def short(value: float) -> str:
    """A number for an axis: 950, 1.2k, 36k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def ticks(top: float, count: int) -> list[float]:
    """About `count` round values from 0; the last one is the first not below `top`."""
    step = 10 ** math.floor(math.log10(top / count))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step * count >= top)
    return [number * step for number in range(math.ceil(top / step - 1e-9) + 1)]


def mark(series: int) -> Markup:
    """The shape of a run's points, at the origin."""
    return Markup('<path class="mark s{}" d="{}"/>').format(
        series % SERIES_COLOURS, _SHAPES[_variant(series)]
    )


def legend_key(series: int) -> Markup:
    """A short stretch of a run's line with its point, for the legend."""
    return Markup(
        '<svg class="key" viewBox="-20 -9 40 18" aria-hidden="true">'
        '<path class="line s{}" stroke-dasharray="{}" d="M-19 0H19"/>{}</svg>'
    ).format(series % SERIES_COLOURS, _DASHES[_variant(series)], mark(series))


def _variant(series: int) -> int:
    """Shape and dash: shifted in every round of colours, so that 36 runs stay distinct."""
    return (series + series // SERIES_COLOURS) % len(_SHAPES)


def draw(runs: Sequence[Sequence[Point]], size: Size, x_title: str, y_title: str) -> Markup:
    """The picture; each run is a line through its points in the order given."""
    points = [point for run in runs for point in run]
    xs = ticks(max(point.x for point in points) * 1.06, 8 if size.width > 600 else 4)
    ys = ticks(max(point.y for point in points) * 1.06, 6)
    bottom, right = size.height - size.bottom, size.width - size.right

    def px(x: float) -> float:
        return round(size.left + (right - size.left) * x / xs[-1], 1)

    def py(y: float) -> float:
        return round(bottom - (bottom - size.top) * y / ys[-1], 1)

    parts = [_axes(size, [(px(x), short(x)) for x in xs], [(py(y), short(y)) for y in ys], x_title, y_title)]
    for series, run in enumerate(runs):
        path = "".join(f"{'L' if i else 'M'}{px(p.x)} {py(p.y)}" for i, p in enumerate(run))
        parts.append(
            Markup('<path class="line s{}" stroke-dasharray="{}" d="{}"/>').format(
                series % SERIES_COLOURS, _DASHES[_variant(series)], path
            )
        )
    spots = [(px(p.x), py(p.y)) for p in points]
    labels: list[_Box] = []
    for series, run in enumerate(runs):
        for point in run:
            x, y = px(point.x), py(point.y)
            others = [spot for spot in spots if spot != (x, y)]
            lx, ly = _place_label(x, y, point.label, others, labels, size)
            parts.append(
                Markup(
                    '<g class="point" tabindex="0" role="img"><title>{}</title>'
                    '<circle class="hit" cx="{}" cy="{}" r="15"/>'
                    '<g transform="translate({} {})">{}</g><text x="{}" y="{}">{}</text></g>'
                ).format(point.hover, x, y, x, y, mark(series), lx, ly, point.label)
            )
    name = f"{y_title} against {x_title}"
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        size.width, size.height, name, Markup("").join(parts)
    )


def _axes(
    size: Size,
    xs: Sequence[tuple[float, str]],
    ys: Sequence[tuple[float, str]],
    x_title: str,
    y_title: str,
) -> Markup:
    bottom, right = size.height - size.bottom, size.width - size.right
    parts = ['<g class="axes" aria-hidden="true">']
    for y, text in ys:
        parts.append(f'<path d="M{size.left} {y}H{right}"/>')
        parts.append(f'<text x="{size.left - 9}" y="{y + 4}" text-anchor="end">{escape(text)}</text>')
    for x, text in xs:
        parts.append(f'<path d="M{x} {size.top}V{bottom}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 19}" text-anchor="middle">{escape(text)}</text>')
    parts.append(
        f'<text class="title" x="{right}" y="{bottom + 42}" text-anchor="end">{escape(x_title)}</text>'
    )
    parts.append(f'<text class="title" x="2" y="14">{escape(y_title)}</text></g>')
    return Markup("".join(parts))


_Box = tuple[float, float, float, float]


def _place_label(
    x: float, y: float, label: str, others: Sequence[tuple[float, float]], labels: list[_Box], size: Size
) -> tuple[float, float]:
    """Where the label of the point at x, y covers no other label and is near no other point.

    The first place is taken where there is no such place.
    """
    width = 7.2 * len(label)
    places = [(x + 9, y - 9), (x + 10, y + 4), (x + 9, y + 18)]
    places += [(x - 9 - width, y - 9), (x - 10 - width, y + 4), (x - 9 - width, y + 18)]

    def box(place: tuple[float, float]) -> _Box:
        left, base = place
        return (left, base - 11, left + width, base + 3)

    def free(place: tuple[float, float]) -> bool:
        left, top, right, bottom = box(place)
        if left < size.left or right > size.width - 2 or bottom > size.height - size.bottom:
            return False
        near_point = any(left - 12 < px < right + 12 and top - 5 < py < bottom + 5 for px, py in others)
        return not near_point and not any(
            left < other[2] and other[0] < right and top < other[3] and other[1] < bottom for other in labels
        )

    place = next(filter(free, places), places[0])
    labels.append(box(place))
    return round(place[0], 1), round(place[1], 1)
