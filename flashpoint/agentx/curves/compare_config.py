"""The options of a comparison; light to import, so that a command line can list them without numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flashpoint.errors import InvalidValue

Axis = Literal["p90", "e2e"]


@dataclass(frozen=True)
class CompareConfig:
    """Where and in what unit two curves are compared."""

    at: float | None = field(
        default=None, metadata={"help": "speed at which to compare, tok/s/user on the chosen axis"}
    )
    at_throughput: float | None = field(
        default=None, metadata={"help": "compare the speeds at this total throughput per accelerator instead"}
    )
    x_axis: Axis = field(
        default="p90", metadata={"help": "p90: P90 interactivity; e2e: E2E-normalised interactivity"}
    )
    per_dollar: bool = field(default=False, metadata={"help": "compare tokens per dollar"})
    dollars_a: float | None = field(default=None, metadata={"help": "$ per accelerator and hour of A"})
    dollars_b: float | None = field(default=None, metadata={"help": "$ per accelerator and hour of B"})
    per_watt: bool = field(default=False, metadata={"help": "compare tokens/s per MW"})
    kw_a: float | None = field(default=None, metadata={"help": "all-in kW per accelerator of A"})
    kw_b: float | None = field(default=None, metadata={"help": "all-in kW per accelerator of B"})

    def __post_init__(self) -> None:
        if (self.at is None) == (self.at_throughput is None):
            raise InvalidValue("at, at_throughput", (self.at, self.at_throughput), "one of the two")
        for name in ("at", "at_throughput", "dollars_a", "dollars_b", "kw_a", "kw_b"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidValue(name, value, "a number above 0")
        if self.per_dollar and self.per_watt:
            raise InvalidValue("per_dollar, per_watt", "both", "one of the two")
        if self.at_throughput is not None and (self.per_dollar or self.per_watt):
            raise InvalidValue("at_throughput", self.at_throughput, "--at, as costs divide throughputs only")
        for unit, names in (("per_dollar", ("dollars_a", "dollars_b")), ("per_watt", ("kw_a", "kw_b"))):
            for name in names:
                if getattr(self, name) is not None and not getattr(self, unit):
                    flag = unit.replace("_", "-")
                    raise InvalidValue(
                        name, getattr(self, name), f"--{flag} beside it, or it changes nothing"
                    )
        if self.per_dollar and (self.dollars_a is None or self.dollars_b is None):
            raise InvalidValue("dollars_a, dollars_b", (self.dollars_a, self.dollars_b), "the price of both")
        if self.per_watt and (self.kw_a is None or self.kw_b is None):
            raise InvalidValue("kw_a, kw_b", (self.kw_a, self.kw_b), "the power of both")
