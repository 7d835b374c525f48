"""A machine as data: what one accelerator can do, how much of it engines get, and who says so.

Every number is published, measured or a prior. Published and measured numbers may have a range, priors must:
`Machine.at` gives the machine at the slow, middle or fast end of all ranges, and reports carry the three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashpoint.errors import InvalidValue

PROFILES = Path(__file__).parent / "profiles"
End = Literal["slow", "middle", "fast"]

# Numbers of which less is faster.
_COSTS = {
    "memory_ramp", "math_ramp", "kernel_latency", "launch_gap", "moe_kernel_latency", "link_latency",
    "nic_latency", "all_reduce_latency", "all_to_all_latency", "gather_latency", "step_overhead",
}  # fmt: skip


class Number(BaseModel):
    """A number with its source. `low` and `high` are the smallest and the largest it may be."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float = Field(ge=0)
    kind: Literal["published", "measured", "prior"]
    source: str = Field(min_length=3)
    low: float | None = Field(default=None, ge=0)
    high: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Number:
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high go together")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ValueError("expected low <= value <= high")
        if self.kind == "prior" and self.low is None:
            raise ValueError("a prior states its range: low and high")
        return self


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of accelerator in its rack; numbers are per accelerator.

    fp4 … fp32: dense FLOP/s.  memory, memory_bandwidth: bytes usable, bytes/s.
    locality: share of that bandwidth when half of an accelerator reads what lies at its other half.
    link_bandwidth, link_latency: scale-up link, bytes/s one way and s a hop.  domain: accelerators it joins.
    nic_bandwidth, nic_latency: beyond the domain.  host_bandwidth: to CPU memory, bytes/s.
    watts: all in.  price: $ per hour.

    What kernels reach, as functions of their size: of a kernel that moves b bytes and computes for t s at the
    peak, bytes take (b + memory_ramp) / (bandwidth · memory_share), mathematics t / math_share + math_ramp.
    moe_*: of grouped expert kernels, whose ramps are part of their latency; math_share_bf16 and _fp32 count
    there, too.
    kernel_latency, moe_kernel_latency: s between dependent kernels in a graph.  launch_gap: s more without.
    all_reduce_*, all_to_all_*: s of one that moves nothing, and the share of the link that it reaches; the
    launch of an all-reduce is not part of it.  gather_*: all-gather, reduce-scatter and copies.
    step_overhead: s of a step on the host, in sight.
    """

    name: str
    fp4: float
    fp8: float
    bf16: float
    fp32: float
    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    link_latency: float
    domain: int
    nic_bandwidth: float
    nic_latency: float
    host_bandwidth: float
    watts: float
    price: float
    locality: float
    memory_share: float
    memory_ramp: float
    math_share_fp4: float
    math_share_fp8: float
    math_share_bf16: float
    math_share_fp32: float
    math_ramp: float
    kernel_latency: float
    launch_gap: float
    moe_memory_share: float
    moe_math_share_fp4: float
    moe_math_share_fp8: float
    moe_kernel_latency: float
    all_reduce_latency: float
    all_reduce_share: float
    all_to_all_latency: float
    all_to_all_share: float
    gather_latency: float
    gather_share: float
    step_overhead: float
    numbers: dict[str, Number] = field(default_factory=dict, compare=False, hash=False, repr=False)
    note: str = ""

    @classmethod
    def of(cls, name: str, numbers: dict[str, Number], note: str = "") -> Machine:
        """A machine of all of its numbers (`NUMBERS`), at the middle of their ranges."""
        values: dict[str, Any] = {key: _at(key, number, "middle") for key, number in numbers.items()}
        return cls(name=name, numbers=numbers, note=note, **values)

    def at(self, end: End) -> Machine:
        """The machine with every number at the slow, middle or fast end of its range."""
        values: dict[str, Any] = {name: _at(name, number, end) for name, number in self.numbers.items()}
        return replace(self, **values)

    def with_numbers(self, numbers: Mapping[str, Number]) -> Machine:
        """The machine with some numbers replaced, at the middle of their ranges."""
        values: dict[str, Any] = {name: _at(name, number, "middle") for name, number in numbers.items()}
        return replace(self, numbers={**self.numbers, **numbers}, **values)

    def as_json(self) -> dict[str, Any]:
        """As a profile file holds it."""
        shown = {name: number.model_dump(exclude_none=True) for name, number in self.numbers.items()}
        return {"name": self.name, "note": self.note, "numbers": shown}


NUMBERS = tuple(f.name for f in fields(Machine) if f.name not in ("name", "numbers", "note"))


class _Profile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    note: str = ""
    numbers: dict[str, Number]


def load_machine(name: str) -> Machine:
    """A machine by its profile's name, or from a profile file. Raises InvalidValue naming file and field."""
    path = PROFILES / f"{name.lower()}.json"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        raise InvalidValue("hardware", name, f"a profile file, or one of {', '.join(machine_names())}")
    return read_machine(path)


def read_machine(path: Path) -> Machine:
    """A machine from a profile file. Raises InvalidValue naming file and field."""
    try:
        profile = _Profile.model_validate(json.loads(path.read_bytes()))
    except (OSError, json.JSONDecodeError) as error:
        raise InvalidValue(f"{path}", "the file", f"a JSON object ({error})") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "profile"
        raise InvalidValue(f"{path}, {place}", repr(first["input"])[:80], first["msg"]) from error
    unknown, missing = profile.numbers.keys() - set(NUMBERS), set(NUMBERS) - profile.numbers.keys()
    if unknown:
        raise InvalidValue(f"{path}, numbers", sorted(unknown), f"some of {', '.join(NUMBERS)}")
    if missing:
        raise InvalidValue(f"{path}, numbers", f"without {', '.join(sorted(missing))}", "all of them")
    return Machine.of(profile.name, profile.numbers, profile.note)


def write_machine(machine: Machine, path: Path) -> None:
    """Write a profile file, by a rename: an interrupted run leaves no half file."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(machine.as_json(), indent=1) + "\n")
    part.replace(path)


def check_out(path: Path) -> None:
    """Raise InvalidValue where no profile can be written: before the work and not after it."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InvalidValue("out", str(path), "a file in a folder that exists")


def machine_names() -> list[str]:
    """The machines that come with flashpoint."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def _at(name: str, number: Number, end: End) -> float:
    value = number.value
    if number.low is not None and number.high is not None and end != "middle":
        value = number.low if (end == "slow") != (name in _COSTS) else number.high
    return int(value) if name == "domain" else value
