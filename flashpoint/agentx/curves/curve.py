"""A curve: the points of one system, from run archives or from published figures.

Source: the project's spec, agentx.md section 7. A point is one concurrency; repeats of it are one point,
whose spread is kept. Curves are computed from archives whenever they are needed and never stored by hand; a
curve file holds what others published, each point with its source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashpoint.agentx import metrics
from flashpoint.agentx.archive import Archive, LevelInfo, read_archive
from flashpoint.agentx.curves.compare_config import Axis
from flashpoint.agentx.curves.frontier import frontier
from flashpoint.agentx.curves.interpolation import Interpolation
from flashpoint.agentx.records import RequestRecord
from flashpoint.errors import InvalidValue

AXIS_NAMES: dict[Axis, str] = {
    "p90": "P90 interactivity (slow tail), tok/s/user",
    "e2e": "P90 E2E-normalised interactivity (slow tail), tok/s/user",
}


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What a point was computed from: the records of one level, and what else the level says."""

    info: LevelInfo
    records: list[RequestRecord]
    accelerators: int


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One concurrency of a system. Rates are tokens/s per accelerator; None is unknown, never zero."""

    source: str
    """The archive's folder, or who published the figure."""
    total: float | None
    x: dict[Axis, float]
    concurrency: int | None = None
    output: float | None = None
    uncached: float | None = None
    hit_share: float | None = None
    in_flight: float | None = None
    """Mean requests at the server per accelerator."""
    acceptance: float | None = None
    """Forced acceptance length of the drafts, where the run names one."""
    problems: tuple[str, ...] = ()
    """Why the point should not be trusted, as far as the run says."""
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Lowest and highest value over repeats, by axis and for `total`."""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one system."""

    name: str
    points: tuple[Point, ...]

    def knots(self, axis: Axis) -> list[Point]:
        """The frontier on `axis`: what the interpolation goes through."""
        return frontier(self.points, lambda p: p.x.get(axis), lambda p: p.total)

    def interpolation(self, axis: Axis) -> Interpolation | None:
        """Total throughput over `axis`; None where no point has both."""
        knots = self.knots(axis)
        if not knots:
            return None
        return Interpolation([p.x[axis] for p in knots], [p.total or 0.0 for p in knots])


def load_curve(argument: str) -> Curve:
    """A curve from `argument`: a run archive, several separated by commas, or a curve file.

    Raises `InvalidValue` or `ArchiveError` naming the path and what is wrong with it.
    """
    paths = [Path(part) for part in argument.split(",") if part]
    if not paths:
        raise InvalidValue("curve", argument, "a run archive, several separated by commas, or a curve file")
    if len(paths) == 1 and paths[0].is_file():
        return _read_curve_file(paths[0])
    points = [point for path in paths for point in archive_points(read_archive(path))]
    if not points:
        raise InvalidValue("curve", argument, "an archive with at least one finished level")
    return Curve(", ".join(path.name or str(path) for path in paths), tuple(points))


def archive_points(archive: Archive) -> list[Point]:
    """The points of an archive, by concurrency. Levels that did not run to their end give none."""
    groups: dict[int, list[Sample]] = defaultdict(list)
    for info in archive.run.levels:
        if info.status == "complete":
            sample = Sample(info, archive.level(info.level), archive.run.accelerators)
            groups[info.concurrency].append(sample)
    return [_archive_point(archive, concurrency, samples) for concurrency, samples in sorted(groups.items())]


def _archive_point(archive: Archive, concurrency: int, samples: Sequence[Sample]) -> Point:
    reported = samples[0].info.reported
    if not any(sample.records for sample in samples):
        return _reported_point(str(archive.path), concurrency, reported)
    count = archive.run.accelerators
    records = [record for sample in samples for record in sample.records]
    each = [
        {
            "p90": metrics.interactivity(sample.records, 90),
            "e2e": metrics.e2e_normalised_interactivity(sample.records, 90),
            "total": metrics.total_throughput(sample.records, count),
        }
        for sample in samples
    ]
    x = {
        "p90": metrics.interactivity(records, 90),
        "e2e": metrics.e2e_normalised_interactivity(records, 90),
    }
    acceptance = archive.run.server.description.get("acceptance")
    return Point(
        source=str(archive.path),
        total=_mean([values["total"] for values in each]),
        x={axis: value for axis, value in x.items() if value is not None},  # type: ignore[misc]
        concurrency=concurrency,
        output=_mean([metrics.output_throughput(s.records, count) for s in samples]),
        uncached=_mean([metrics.uncached_input_throughput(s.records, count) for s in samples]),
        hit_share=metrics.cache_hit_share(records),
        in_flight=_per(_mean([metrics.mean_in_flight(s.records) for s in samples]), count),
        acceptance=float(acceptance) if isinstance(acceptance, int | float) else None,
        problems=tuple(dict.fromkeys(reason for s in samples for reason in s.info.invalid)),
        spread={} if len(samples) == 1 else _spread(each),
        samples=tuple(samples),
    )


def _reported_point(source: str, concurrency: int, reported: dict[str, float]) -> Point:
    names: dict[Axis, str] = {"p90": "interactivity_p90", "e2e": "e2e_normalised_interactivity_p90"}
    return Point(
        source=source,
        total=reported.get("total_token_throughput_per_accelerator"),
        x={axis: reported[name] for axis, name in names.items() if name in reported},
        concurrency=concurrency,
        output=reported.get("output_token_throughput_per_accelerator"),
        problems=("figures as reported, without request records",),
    )


def _spread(each: Sequence[dict[str, float | None]]) -> dict[str, tuple[float, float]]:
    found = {}
    for name in each[0]:
        values = [value for values in each if (value := values[name]) is not None]
        if values:
            found[name] = (min(values), max(values))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _per(value: float | None, count: int) -> float | None:
    return None if value is None else value / count


class _Published(BaseModel):
    model_config = ConfigDict(extra="forbid")

    p90_interactivity: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    e2e_normalised_interactivity: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    total_per_accelerator: float = Field(gt=0, allow_inf_nan=False)
    output_per_accelerator: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    uncached_per_accelerator: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hit_share: float | None = Field(default=None, ge=0, le=1)
    concurrency: int | None = Field(default=None, ge=1)
    acceptance: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    source: str = Field(min_length=1)


class _CurveFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal["flashpoint-curve"]
    format_version: Literal[1]
    name: str = Field(min_length=1)
    points: list[_Published] = Field(min_length=1)


def _read_curve_file(path: Path) -> Curve:
    try:
        content = _CurveFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidValue("curve", str(path), f"a readable file ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidValue(f"{path}, {where}", first["input"], first["msg"]) from error
    return Curve(content.name, tuple(_published_point(point) for point in content.points))


def _published_point(published: _Published) -> Point:
    x: dict[Axis, float | None] = {
        "p90": published.p90_interactivity,
        "e2e": published.e2e_normalised_interactivity,
    }
    return Point(
        source=published.source,
        total=published.total_per_accelerator,
        x={axis: value for axis, value in x.items() if value is not None},
        concurrency=published.concurrency,
        output=published.output_per_accelerator,
        uncached=published.uncached_per_accelerator,
        hit_share=published.hit_share,
        acceptance=published.acceptance,
        problems=("published figure, without request records",),
    )
