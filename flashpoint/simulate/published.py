"""Published measurements and claims about deployments, as data with their sources.

`published/points.json` says what was published, what of its configuration is known, and its use: `fit` to
fit free efficiencies, `check` to judge them, `check-immature` to judge direction only, `headline` for
self-reported claims. Where a configuration was not published, `deployments` lists candidates.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from flashpoint.errors import InvalidValue
from flashpoint.simulate.config import DeploymentConfig

Use = Literal["fit", "check", "check-immature", "headline"]
_FOLDER = resources.files("flashpoint.simulate") / "published"


class Figures(BaseModel):
    """Published figures, each may be absent: tok/s per accelerator, tok/s of a user, s."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    total: float | None = None
    output: float | None = None
    interactivity_mean: float | None = None
    interactivity_p90: float | None = None
    ttft_mean: float | None = None
    ttft_p90: float | None = None
    single: float | None = None


class Point(BaseModel):
    """One published point. concurrency: sessions held live, where stated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    use: Use
    engine: str
    date: str
    hardware: str
    stated: str
    deployments: list[dict[str, Any]]
    published: Figures
    source: str
    concurrency: int | None = None

    def configs(self, **changes: Any) -> list[DeploymentConfig]:
        """The deployments to try."""
        return [
            DeploymentConfig(hardware=self.hardware, **{**deployment, **changes})
            for deployment in self.deployments
        ]

    @property
    def group(self) -> str:
        """Hardware and engine: what one set of efficiencies is fitted for."""
        return f"{self.hardware} {self.engine.split()[0]} {self.date}"


class Fit(BaseModel):
    """Efficiencies fitted for one group of points, and what they were fitted on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: str
    hardware: str
    numbers: dict[str, float]
    points: list[str]
    rms_log_ratio: float
    seed: int
    duration: float
    corpus: str


def load_points() -> list[Point]:
    """All points that come with flashpoint."""
    return [Point.model_validate(p) for p in json.loads((_FOLDER / "points.json").read_text())]


def load_fits() -> dict[str, Fit]:
    """The committed fits, by group."""
    path = _FOLDER / "fits.json"
    fits = [Fit.model_validate(f) for f in json.loads(path.read_text())] if path.is_file() else []
    return {fit.group: fit for fit in fits}


def choose(points: list[Point], uses: tuple[str, ...], text: str | None) -> list[Point]:
    """Points of some uses whose id holds `text`. Raises InvalidValue when none is left."""
    chosen = [p for p in points if p.use in uses and (text is None or text in p.id)]
    if not chosen:
        raise InvalidValue(
            "points", f"{', '.join(uses)}, {text}", "uses and a text that some point's id holds"
        )
    return chosen
