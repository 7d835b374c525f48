"""What a sequence computes besides its new tokens, and what it may leave out (spec 2.3 to 2.5).

The prefix cache keeps no windows. After a hit the last tokens of the prefix are computed again, only to
refill them: with `replay` semantics one window's worth, which is approximate; with `full` as many as it takes
until nothing differs any more. `replay` also runs the layers behind the last KV source on the end of a
prefill only.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashpoint.cache.spec import CacheSpec
from flashpoint.engine.config import EngineConfig
from flashpoint.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Replay:
    """How much is computed again and how much is left out, in tokens.

    replayed: computed again after a hit, at most.
    tail: the last tokens of a prefill that run every layer; None: all of them do.
    """

    replayed: int
    tail: int | None

    @staticmethod
    def of(config: EngineConfig, spec: CacheSpec) -> Replay:
        """The rule for a model. Raises InvalidValue when a step is too small to hold a tail and a row for
        every other sequence: a prefill could wait for ever."""
        if config.semantics == "full":
            return Replay(spec.exact_replay_tokens, None)
        tail = spec.prefill_tail
        if tail is not None and config.max_step_tokens < config.max_running + tail:
            raise InvalidValue(
                "max_step_tokens",
                config.max_step_tokens,
                f"at least {config.max_running + tail}: with semantics replay the last {tail} tokens of a "
                f"prompt run in one step, beside a row for each of max_running = {config.max_running}",
            )
        return Replay(spec.replay_tokens, tail)

    @property
    def least_hit(self) -> int:
        """A shorter hit saves nothing: all of it would be computed again."""
        return self.replayed + 1 if self.replayed else 0

    def start(self, hit: int) -> int:
        """Where computing starts after a hit of `hit` tokens."""
        return max(0, hit - self.replayed)

    def prefill_rows(self, pending: int, budget: int) -> int:
        """Rows of a prefill's next chunk: all that is pending, or a piece that leaves a whole tail."""
        if pending <= budget:
            return pending
        return max(0, min(budget, pending - (self.tail or 0)))

    def decoder_rows(self, rows: int, last: bool) -> int | None:
        """Of a prefill chunk's `rows`, those that run every layer; `last`: the prefill ends with it."""
        if self.tail is None:
            return None
        return min(self.tail, rows) if last else 0

    def decoder_start(self, window_start: int, end: int) -> int:
        """The first position a prefill that ends at `end` has run through every layer."""
        return window_start if self.tail is None else max(window_start, end - self.tail)
