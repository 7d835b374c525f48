"""Runs a validation, or a fit: which points, on which sessions, and what is shown meanwhile."""

from __future__ import annotations

import json

from rich.console import Console

from flashpoint.agentx.files import whole_file
from flashpoint.agentx.traces.corpus import open_corpus, recipe_corpus
from flashpoint.agentx.traces.recipe import Recipe
from flashpoint.errors import InvalidValue
from flashpoint.simulate.config import ValidateConfig
from flashpoint.simulate.fit import fit_group
from flashpoint.simulate.play import Sessions
from flashpoint.simulate.published import Fit, Point, choose, load_fits, load_points
from flashpoint.simulate.validate import Compared, Predictor, compare

RECIPE = Recipe(sessions=393, seed=1)
USES = ("fit", "check", "check-immature", "headline")


def run_validate(config: ValidateConfig, console: Console) -> list[Compared]:
    """Compare the chosen points; with `config.fit`, fit first and compare with that fit."""
    uses = USES if config.uses == "all" else (config.uses,)
    corpus = recipe_corpus(RECIPE) if config.corpus is None else open_corpus(config.corpus)
    sessions = Sessions(corpus)
    predictor = Predictor(sessions, config.duration, config.seed, config.end)
    points = choose(load_points(), uses, config.points)
    fits = load_fits()
    if config.fit is not None:
        fits = _fit(config, points, predictor, corpus.sha256, console)

    def show(point: Point) -> None:
        console.print(f"{point.id}: {point.stated}", highlight=False)

    return list(compare(points, predictor, fits, show))


def _fit(
    config: ValidateConfig, points: list[Point], predictor: Predictor, corpus: str, console: Console
) -> dict[str, Fit]:
    assert config.fit is not None
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.use == "fit":
            groups.setdefault(point.group, []).append(point)
    if not groups:
        raise InvalidValue("fit", config.points, "points marked fit among those chosen")
    fits = {
        group: fit_group(
            members, predictor, seed=config.seed, duration=config.duration, corpus=corpus, note=console.print
        )
        for group, members in groups.items()
    }
    with whole_file(config.fit) as file:
        file.write(json.dumps([fit.model_dump() for fit in fits.values()], indent=1).encode() + b"\n")
    return fits
