"""A vendor's sentence as data: what follows from it, what contradicts it, and what is missing to check it.

Only arithmetic on what was published; nothing is measured or assumed beyond the workload that the file names.
Amounts are written as the vendor wrote them ("1.7M", "58"), because the last digit says how far they were
rounded, and a contradiction counts only where rounding cannot explain it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from flashpoint.errors import InvalidValue

SHIPPED = Path(__file__).parent / "claims"
CHECKS = {
    "accelerators": "how many accelerators served, by role",
    "layout": "the layout (TP, DP, EP, prefill and decode split)",
    "precision": "weight and cache precision",
    "concurrency": "the concurrency of each point",
    "hit_share": "the cache hit share actually reached",
    "acceptance": "the forced acceptance length of the drafts",
    "corpus": "corpus and its revision",
    "harness": "harness and version, validity of the run",
    "duration": "the length of the measured window",
    "repeats": "repeats and their spread",
    "engine": "engine, version and image of both sides",
    "records": "the request records or the archive of the run",
}
_AMOUNT = re.compile(r"([0-9]+(?:\.([0-9]+))?)\s*([KMG]?)")


@dataclass(frozen=True, slots=True)
class Amount:
    """A published figure and how far it may be off by rounding alone."""

    value: float
    rounding: float

    @property
    def low(self) -> float:
        """The smallest value that is written so."""
        return self.value - self.rounding

    @property
    def high(self) -> float:
        """The largest value that is written so."""
        return self.value + self.rounding


def parse_amount(text: object) -> Amount:
    """`1.7M` as 1 700 000 ± 50 000, `58` as 58 ± 0.5. Raises ValueError."""
    match = _AMOUNT.fullmatch(text.replace(",", "")) if isinstance(text, str) else None
    if match is None:
        raise ValueError("an amount as text, such as 1.7M, 954K or 387")
    unit = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}[match[3]]
    decimals = len(match[2] or "")
    if not 0 < float(match[1]) * unit < float("inf"):
        raise ValueError("an amount above 0 that a float can hold")
    return Amount(float(match[1]) * unit, 0.5 * 10**-decimals * unit)


Text = Annotated[str, Field(min_length=1)]
Figure = Annotated[Amount, BeforeValidator(parse_amount)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class ClaimedPoint(_Model):
    """A point of a curve: total tokens/s per accelerator at a speed."""

    p90_interactivity: Figure
    total_per_accelerator: Figure
    date: str = ""
    source: Text


class ClaimedPeak(_Model):
    """The highest throughput of a system, at whatever speed."""

    total_per_accelerator: Figure
    date: str = ""
    source: Text


class ClaimedSingle(_Model):
    """The speed of a session alone on the system."""

    tokens_per_second: Figure
    date: str = ""
    source: Text


class ClaimedSystem(_Model):
    """What was published about one system."""

    name: Text
    points: tuple[ClaimedPoint, ...] = ()
    peak: ClaimedPeak | None = None
    single_session: ClaimedSingle | None = None

    def best(self) -> ClaimedPoint | ClaimedPeak | None:
        """The highest throughput that was published."""
        found: list[ClaimedPoint | ClaimedPeak] = [*self.points, *([self.peak] if self.peak else [])]
        return max(found, key=lambda p: p.total_per_accelerator.value, default=None)


class ClaimedRatio(_Model):
    """A published ratio a / b, at a speed or at the peak."""

    a: Text
    b: Text
    at: Literal["peak"] | Figure
    ratio: Figure
    source: Text


class Workload(_Model):
    """Mean lengths of the work, to turn total tokens into output tokens and requests."""

    input_tokens: float = Field(gt=0)
    output_tokens: float = Field(gt=0)
    hit_share: float = Field(ge=0, le=1)
    source: Text

    @property
    def output_share(self) -> float:
        """Output tokens / all counted tokens."""
        return self.output_tokens / (self.input_tokens + self.output_tokens)


class Claim(_Model):
    """The content of a claim file."""

    format: Literal["flashpoint-claim"]
    format_version: Literal[1]
    sentence: Text
    model: str = ""
    systems: tuple[ClaimedSystem, ...] = Field(min_length=1)
    ratios: tuple[ClaimedRatio, ...] = ()
    workload: Workload | None = None
    stated: dict[str, str] = {}
    """What the publication says of the things that a check needs, by the keys of `CHECKS`."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that can be said about a claim, with its number where it has one."""

    kind: Literal["follows", "inconsistent", "missing"]
    text: str
    value: float | None = None


def load_claim(name: str) -> Claim:
    """Read a claim file, or one of the shipped ones by name. Raises `InvalidValue`."""
    path = Path(name)
    shipped = SHIPPED / f"{name}.json"
    if not path.exists() and shipped.is_file():
        path = shipped
    try:
        claim = Claim.model_validate_json(path.read_bytes())
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.json")))
        raise InvalidValue("claim", name, f"a claim file, or one of: {known} ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidValue(f"{path}, {where}", first["input"], first["msg"]) from error
    names = [system.name for system in claim.systems]
    if len(set(names)) < len(names):
        raise InvalidValue(f"{path}, systems", names, "every system once")
    for number, ratio in enumerate(claim.ratios):
        for side in ("a", "b"):
            if getattr(ratio, side) not in names:
                raise InvalidValue(
                    f"{path}, ratios.{number}.{side}", getattr(ratio, side), f"one of {', '.join(names)}"
                )
        if ratio.a == ratio.b:
            raise InvalidValue(f"{path}, ratios.{number}.b", ratio.b, "another system than a")
    unknown = sorted(set(claim.stated) - set(CHECKS))
    if unknown:
        raise InvalidValue(f"{path}, stated", unknown, f"keys out of {', '.join(CHECKS)}")
    return claim


def check_claim(claim: Claim) -> list[Statement]:
    """Everything that follows from a claim, contradicts it, or is missing to check it."""
    systems = {system.name: system for system in claim.systems}
    found: list[Statement] = []
    for system in claim.systems:
        found += _system(system, claim.workload)
    for ratio in claim.ratios:
        a, b = systems[ratio.a], systems[ratio.b]
        found += _peak_ratio(ratio, a, b) if ratio.at == "peak" else _ratio(ratio, a, b, claim.workload)
    found += [s for a, b in _pairs(claim.systems) for s in _between(a, b)]
    return [*found, *_missing(claim)]


def _follows(text: str, value: float | None = None) -> Statement:
    return Statement("follows", text, value)


def _inconsistent(text: str, value: float | None = None) -> Statement:
    return Statement("inconsistent", text, value)


def short(value: float) -> str:
    """A figure with three digits and K or M."""
    for unit, letter in ((1e6, "M"), (1e3, "K")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def _system(system: ClaimedSystem, workload: Workload | None) -> list[Statement]:
    found = []
    for point in system.points:
        speed, total = point.p90_interactivity.value, point.total_per_accelerator.value
        found += _load(system.name, speed, total, workload)
    single = system.single_session
    for point in system.points:
        if single and single.tokens_per_second.high < point.p90_interactivity.low:
            found.append(
                _inconsistent(
                    f"{system.name}: a session alone is slower ({single.tokens_per_second.value:.4g}) than "
                    f"the slow tail of a loaded system ({point.p90_interactivity.value:.4g})"
                )
            )
        if system.peak and system.peak.total_per_accelerator.high < point.total_per_accelerator.low:
            found.append(
                _inconsistent(
                    f"{system.name}: the peak {short(system.peak.total_per_accelerator.value)} is below the "
                    f"point {short(point.total_per_accelerator.value)}"
                )
            )
    ordered = sorted(system.points, key=lambda p: p.p90_interactivity.value)
    for slow, fast in pairwise(ordered):
        if fast.total_per_accelerator.low > slow.total_per_accelerator.high:
            found.append(
                _inconsistent(
                    f"{system.name}: the point at {slow.p90_interactivity.value:.4g} is dominated by the "
                    f"faster one at {fast.p90_interactivity.value:.4g}: the curve would rise with speed"
                )
            )
    return found


def _load(name: str, speed: float, total: float, workload: Workload | None) -> list[Statement]:
    """What a throughput at a speed says about requests, output and computed prompt (Little's law)."""
    point = f"{name}, {short(total)} at {speed:.4g}"
    found = [_follows(f"{point}: load (throughput / speed) {short(total / speed)}", total / speed)]
    if workload is not None:
        output = total * workload.output_share
        prompt = total * (1 - workload.output_share) * (1 - workload.hit_share)
        found.append(
            _follows(
                f"{point}: about {output / speed:.2g} requests decoding at once per accelerator, "
                f"{short(output)} output and {short(prompt)} uncached prompt tokens/s",
                output / speed,
            )
        )
    return found


def _ratio(
    ratio: ClaimedRatio, a: ClaimedSystem, b: ClaimedSystem, workload: Workload | None
) -> list[Statement]:
    """A ratio at a speed: the other side's throughput there, and whether its own points allow that."""
    assert isinstance(ratio.at, Amount)
    at = ratio.at.value
    here = [p for p in a.points if abs(p.p90_interactivity.value - at) <= ratio.at.rounding]
    if not here:
        return [Statement("missing", f"{a.name} at {at:.4g}, to follow {ratio.ratio.value:g}x")]
    total = here[0].total_per_accelerator
    implied = total.value / ratio.ratio.value
    low, high = total.low / ratio.ratio.high, total.high / ratio.ratio.low
    found = [
        _follows(
            f"{b.name} at {at:.4g} must be {short(implied)} tok/s per accelerator ({short(low)} to "
            f"{short(high)} with rounding): {short(total.value)} / {ratio.ratio.value:g}",
            implied,
        ),
        *_load(f"{b.name} (implied)", at, implied, workload),
    ]
    for point in b.points:
        speed, known = point.p90_interactivity.value, point.total_per_accelerator
        if abs(speed - at) <= ratio.at.rounding and not low <= known.value <= high:
            found.append(
                _inconsistent(
                    f"{b.name} at {at:.4g} was published as {short(known.value)}: the ratio there is "
                    f"{total.value / known.value:.3g}x, not {ratio.ratio.value:g}x",
                    total.value / known.value,
                )
            )
        elif (speed < at and known.high < low) or (speed > at and known.low > high):
            found.append(
                _inconsistent(
                    f"{b.name}: the implied {short(implied)} at {at:.4g} does not lie on a falling curve "
                    f"with {short(known.value)} at {speed:.4g}"
                )
            )
        elif speed < at:
            found.append(
                _follows(
                    f"{b.name} would fall from {short(known.value)} at {speed:.4g} to {short(implied)} at "
                    f"{at:.4g}: {known.value / implied:.3g}x less for {at / speed:.3g}x the speed, so the "
                    f"ratio is that of the end of its curve",
                    known.value / implied,
                )
            )
    if workload is not None and implied * workload.output_share / at < 1:
        found.append(
            _follows(
                f"{b.name} would have less than one request decoding per accelerator at {at:.4g}: the ratio "
                f"compares a loaded system with a nearly empty one"
            )
        )
    return found


def _peak_ratio(ratio: ClaimedRatio, a: ClaimedSystem, b: ClaimedSystem) -> list[Statement]:
    best_a, best_b = a.best(), b.best()
    if best_a is None:
        return [
            Statement("missing", f"{a.name} has no throughput, so {ratio.ratio.value:g}x has no numerator")
        ]
    peak = best_a.total_per_accelerator
    implied = peak.value / ratio.ratio.value
    found = [
        _follows(
            f"{b.name} must peak at {short(implied)} tok/s per accelerator: {short(peak.value)} / "
            f"{ratio.ratio.value:g}",
            implied,
        )
    ]
    if best_b is not None:
        known = best_b.total_per_accelerator
        most = peak.high / known.low
        if most < ratio.ratio.low:
            found.append(
                _inconsistent(
                    f"{b.name} was published with {short(known.value)}, so the ratio of the peaks is at "
                    f"most {peak.value / known.value:.3g}x, not {ratio.ratio.value:g}x (rounding allows "
                    f"{most:.4g})",
                    peak.value / known.value,
                )
            )
    return found


def _pairs(systems: tuple[ClaimedSystem, ...]) -> list[tuple[ClaimedSystem, ClaimedSystem]]:
    return [(a, b) for i, a in enumerate(systems) for b in systems[i + 1 :]]


def _between(a: ClaimedSystem, b: ClaimedSystem) -> list[Statement]:
    """Ratios that need no common speed: of sessions alone, of highest throughputs, of points at like load."""
    found = []
    if a.single_session and b.single_session:
        ratio = a.single_session.tokens_per_second.value / b.single_session.tokens_per_second.value
        found.append(_follows(f"{a.name} / {b.name}, one session alone: {ratio:.3g}x", ratio))
    best_a, best_b = a.best(), b.best()
    if best_a and best_b:
        ratio = best_a.total_per_accelerator.value / best_b.total_per_accelerator.value
        found.append(_follows(f"{a.name} / {b.name}, highest published throughputs: {ratio:.3g}x", ratio))
    for p in a.points:
        for q in b.points:
            loads = [point.total_per_accelerator.value / point.p90_interactivity.value for point in (p, q)]
            speed = p.p90_interactivity.value / q.p90_interactivity.value
            total = p.total_per_accelerator.value / q.total_per_accelerator.value
            found.append(
                _follows(
                    f"{a.name} at {p.p90_interactivity.value:.4g} and {b.name} at "
                    f"{q.p90_interactivity.value:.4g} differ by {loads[0] / loads[1]:.3g}x in load: "
                    f"{total:.3g}x the throughput at {speed:.3g}x the speed",
                    loads[0] / loads[1],
                )
            )
    return found


def _missing(claim: Claim) -> list[Statement]:
    found = [Statement("missing", text) for key, text in CHECKS.items() if key not in claim.stated]
    for system in claim.systems:
        if len(system.points) < 2:
            found.append(
                Statement("missing", f"the curve of {system.name}: {len(system.points)} point(s) published")
            )
    dates = sorted({p.date for s in claim.systems for p in s.points if p.date})
    if len(dates) > 1:
        found.append(
            Statement(
                "missing", f"points of one date: they are of {', '.join(dates)}, software changes between"
            )
        )
    if claim.workload is None:
        found.append(Statement("missing", "the workload's lengths: without them tokens are no requests"))
    return found


def claim_json(claim: Claim, statements: list[Statement]) -> dict[str, Any]:
    """The result as plain data."""
    return {
        "sentence": claim.sentence,
        "statements": [{"kind": s.kind, "text": s.text, "value": s.value} for s in statements],
        "consistent": not any(s.kind == "inconsistent" for s in statements),
    }
