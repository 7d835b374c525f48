"""The options of a simulated deployment; the command line is generated from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
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
    cache_tokens: int | None = field(
        default=None, metadata={"help": "tokens that an engine's cache holds; default: what memory leaves"}
    )
    host_memory: int = field(
        default=0,
        metadata={
            "help": "CPU memory of an engine that prefills for cached blocks that left the device; 0: none",
            "size": True,
        },
    )
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
    formats: Literal["released", "float32", "bfloat16"] = field(
        default="released",
        metadata={"help": "weights and caches as released, or as this project's torch executor holds them"},
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
    front_end_request: float = field(
        default=1e-3, metadata={"help": "CPU seconds of a request in the front end"}
    )
    front_end_prompt_token: float = field(
        default=7e-8, metadata={"help": "and of each prompt token; 2.85e-6 where the whole text is encoded"}
    )
    front_end_answer_token: float = field(default=2e-5, metadata={"help": "and of each answer token"})
    token_times: bool = field(default=False, metadata={"help": "archive when every token came"})

    def __post_init__(self) -> None:
        for name in ("replicas", "step_tokens", "prefill_step_tokens", "sequences", "block_tokens"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "a whole number of at least 1")
        if self.cache_tokens is not None and self.cache_tokens < self.block_tokens:
            raise InvalidValue("cache_tokens", self.cache_tokens, f"at least {self.block_tokens}, one block")
        if self.host_memory < 0:
            raise InvalidValue("host_memory", self.host_memory, "0 or more bytes")
        if not 0 < self.memory_use <= 1:
            raise InvalidValue("memory_use", self.memory_use, "a share above 0, up to 1")
        if self.skew < 1:
            raise InvalidValue("skew", self.skew, "a number of at least 1 (all ranks alike)")
        for name in ("front_end_request", "front_end_prompt_token", "front_end_answer_token"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "seconds, a number of at least 0")
        if self.drafts < 0:
            raise InvalidValue("drafts", self.drafts, "a whole number of at least 0")
        for name, each in (("step_tokens", self.drafts + 1), ("prefill_step_tokens", 1)):
            rows = each * self.sequences
            if getattr(self, name) < rows:
                raise InvalidValue(
                    name,
                    getattr(self, name),
                    f"at least {rows}: {each} for each of {self.sequences} sequences",
                )
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


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What `plan` searches; layouts and replicas of the deployment's own options are not used."""

    corpus: Path = field(metadata={"help": "a corpus file, a trace file or a folder of traces"})
    accelerators: int = field(metadata={"help": "how many accelerators there are"})
    interactivity: float | None = field(
        default=None, metadata={"help": "P90 interactivity that users need, tok/s"}
    )
    ttft: float | None = field(default=None, metadata={"help": "P90 time to the first token at most, s"})
    kilowatts: float | None = field(default=None, metadata={"help": "power at most, for all accelerators"})
    dollars: float | None = field(default=None, metadata={"help": "price at most, for all, per hour"})
    duration: float = field(default=300.0, metadata={"help": "measured virtual seconds per level"})
    seed: int = field(default=42, metadata={"help": "seed of start moments"})
    max_sessions: int = field(default=100, metadata={"help": "use the first sessions of the corpus only"})

    def __post_init__(self) -> None:
        for name in ("accelerators", "max_sessions"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "a whole number of at least 1")
        for name in ("interactivity", "ttft", "kilowatts", "dollars", "duration"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidValue(name, value, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class ValidateConfig:
    """Which published points are predicted, on which sessions."""

    uses: Literal["all", "fit", "check", "headline", "check-immature"] = field(
        default="all", metadata={"help": "all, fit, check, check-immature or headline points"}
    )
    points: str | None = field(default=None, metadata={"help": "only points whose id holds this text"})
    corpus: Path | None = field(
        default=None, metadata={"help": "sessions to play; default: 393 of the published recipe, seed 1"}
    )
    end: Literal["slow", "middle", "fast"] = field(
        default="middle", metadata={"help": "end of the ranges of the machines' uncertain numbers"}
    )
    duration: float = field(default=600.0, metadata={"help": "measured virtual seconds per level"})
    seed: int = field(default=42, metadata={"help": "seed of start moments"})
    fit: Path | None = field(
        default=None,
        metadata={"help": "fit free efficiencies on the points marked fit, and write them to this file"},
    )

    def __post_init__(self) -> None:
        if not 0 < self.duration < float("inf"):
            raise InvalidValue("duration", self.duration, "seconds, a number above 0")
