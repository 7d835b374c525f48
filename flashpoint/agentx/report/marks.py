"""How runs are told apart: a colour, a shape of points and a dash of lines each, never colour alone.

Colours come from the page (`--s0` … `--s5`), which knows about light and dark.
"""

from __future__ import annotations

from markupsafe import Markup

COLOURS = 6
DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "12 5")
SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z",
    "M-4.6-4.6H4.6V4.6H-4.6Z",
    "M0-6L5.8 4.5H-5.8Z",
    "M0-6.4L6.4 0L0 6.4L-6.4 0Z",
    "M0 6L5.8-4.5H-5.8Z",
    "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
)
"""Outlines of points of about equal weight, around the origin."""


def look(series: int) -> dict[str, int | str]:
    """Colour number, dash and shape of run number `series`; distinct for 36 runs.

    Shape and dash shift with every round of colours.
    """
    variant = (series + series // COLOURS) % len(SHAPES)
    return {"colour": series % COLOURS, "dash": DASHES[variant], "shape": SHAPES[variant]}


def legend_key(series: int) -> Markup:
    """A short stretch of a run's line with its point, for the legend."""
    own = look(series)
    return Markup(
        '<svg class="key" viewBox="-20 -9 40 18" aria-hidden="true">'
        '<path class="line s{0}" stroke-dasharray="{1}" d="M-19 0H19"/>'
        '<path class="mark s{0}" d="{2}"/></svg>'
    ).format(own["colour"], own["dash"], own["shape"])
