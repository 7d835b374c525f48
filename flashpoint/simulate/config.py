"""The options of a simulated deployment; the command line is generated from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from flashpoint.errors import InvalidValue
from flashpoint.parallel.layout import Layout, parse_layout
from flashpoint.parallel.router import Policy


@dataclass(frozen=True, kw_only=True)
class DeploymentConfig:
    """What serves, on what. Raises InvalidValue naming the field."""

    model: str = field(
        default="deepseek-v4.1-flash",
        metadata={"help": "deepseek-v4.1-flash, or a checkpoint (its config.json is enough)"},
    )
    hardware: str = field(
        default="gb300-nvl72", metadata={"help": "machine, by name or profile file; see `hardware list`"}
    )
    end: Literal["slow", "middle", "fast"] = field(
        default="middle", metadata={"help": "end of the ranges of the machine's uncertain numbers"}
    )
    layout: str = field(default="DEP8", metadata={"help": "ranks of a replica: TPn, TPn/EPn or DEPn"})
    replicas: int = field(default=1, metadata={"help": "replicas of that layout"})
    prefill_layout: str | None = field(
        default=None, metadata={"help": "layout of prefill replicas; default: no split"}
    )
    prefill_replicas: int = field(default=0, metadata={"help": "prefill replicas; they hand over the rest"})
    routing: Policy = field(
        default="session_sticky",
        metadata={"help": "session_sticky, prefix_aware, round_robin or least_loaded"},
    )
    step_tokens: int = field(default=4096, metadata={"help": "token rows of a rank's step at most"})
    prefill_step_tokens: int = field(
        default=16384, metadata={"help": "token rows of a prefill rank's step at most"}
    )
    sequences: int = field(default=256, metadata={"help": "sequences that run on an engine at once"})
    block_tokens: int = field(default=64, metadata={"help": "tokens of one cache block"})
    memory_use: float = field(default=0.92, metadata={"help": "share of device memory that may be used"})
    drafts: int = field(default=5, metadata={"help": "draft tokens verified in a step; 0: none"})
    acceptance: Fraction = field(
        default=Fraction(351, 100), metadata={"help": "tokens a verify step yields on average"}
    )
    acceptance_rule: Literal["forced", "sampled"] = field(
        default="forced", metadata={"help": "forced: the mean for everyone; sampled: drawn"}
    )
    expert_math: Literal["fp8", "fp4"] = field(
        default="fp8", metadata={"help": "precision in which the experts multiply"}
    )
    skew: float = field(default=1.2, metadata={"help": "load of the busiest experts' rank over the mean"})
    graphs: bool = field(default=True, metadata={"help": "kernels are launched from graphs"})
    fused_reductions: bool = field(
        default=True, metadata={"help": "reductions, norms and casts inside their neighbours' kernels"}
    )
    shared_in_routed: bool = field(
        default=True, metadata={"help": "the shared expert inside the routed experts' kernels"}
    )
    early_loads: bool = field(
        default=True, metadata={"help": "kernels load weights before their inputs are there"}
    )
    front_end_cores: int = field(
        default=0, metadata={"help": "CPU cores that tokenise and stream; 0: as many as it takes"}
    )
    token_times: bool = field(default=False, metadata={"help": "archive when every token came"})

    def __post_init__(self) -> None:
        for name in ("replicas", "step_tokens", "prefill_step_tokens", "sequences", "block_tokens"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "a whole number of at least 1")
        if not 0 < self.memory_use <= 1:
            raise InvalidValue("memory_use", self.memory_use, "a share above 0, up to 1")
        if self.skew < 1:
            raise InvalidValue("skew", self.skew, "a number of at least 1 (all ranks alike)")
        if self.drafts < 0:
            raise InvalidValue("drafts", self.drafts, "a whole number of at least 0")
        if (self.prefill_layout is None) != (self.prefill_replicas == 0):
            raise InvalidValue(
                "prefill_layout, prefill_replicas",
                (self.prefill_layout, self.prefill_replicas),
                "both, or neither",
            )
        self.layouts()

    def layouts(self) -> tuple[Layout, Layout | None]:
        """The layouts of serving (or decode) and of prefill replicas."""
        prefill = None if self.prefill_layout is None else parse_layout(self.prefill_layout)
        return parse_layout(self.layout), prefill

    @property
    def accelerators(self) -> int:
        """All of them, prefill and decode."""
        decode, prefill = self.layouts()
        return self.replicas * decode.ranks + self.prefill_replicas * (prefill.ranks if prefill else 0)

    @property
    def tokens_per_step(self) -> Fraction:
        """Mean tokens of a decode step; 1 without drafts."""
        return self.acceptance if self.drafts else Fraction(1)
