"""One request inside the engine: its tokens, its place in the caches, and its state machine.

             admit             sample
WAITING ───────────> PREFILLING ─────> DECODING      advance: rows computed, no token yet
                      ^   │ preempt      │ preempt
                admit │   v              v
                     PREEMPTED <─────────┘           finish: PREFILLING, DECODING -> FINISHED
                                                     abort: every state -> FINISHED
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from flashpoint.cache.block_cache import Lease
from flashpoint.cache.int32_buffer import Int32Buffer
from flashpoint.cache.transfer import Content
from flashpoint.engine.events import FinishReason
from flashpoint.engine.plan import TokenArray
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import IllegalTransition, InvalidValue


class State(StrEnum):
    """Where a request is."""

    __hash__ = str.__hash__  # Enum's is written in Python, and every step of every request asks for it

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Event(StrEnum):
    """What can happen to a request."""

    __hash__ = str.__hash__

    ADMIT = "admit"
    ADVANCE = "advance"
    SAMPLE = "sample"
    PREEMPT = "preempt"
    FINISH = "finish"
    ABORT = "abort"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.ADMIT): State.PREFILLING,
    (State.PREEMPTED, Event.ADMIT): State.PREFILLING,
    (State.PREFILLING, Event.ADVANCE): State.PREFILLING,
    (State.PREFILLING, Event.SAMPLE): State.DECODING,
    (State.PREFILLING, Event.PREEMPT): State.PREEMPTED,
    (State.PREFILLING, Event.FINISH): State.FINISHED,
    (State.DECODING, Event.ADVANCE): State.DECODING,
    (State.DECODING, Event.SAMPLE): State.DECODING,
    (State.DECODING, Event.PREEMPT): State.PREEMPTED,
    (State.DECODING, Event.FINISH): State.FINISHED,
    **{(state, Event.ABORT): State.FINISHED for state in State},
}


class Request:
    """A request's tokens and its hold on the engine.

    namespace: requests share cached blocks within one only (an adapter, for instance).
    prompt_tokens: length of the prompt.
    length: known tokens, prompt and answer.
    computed: positions 0 … computed-1 are in the caches, windows included. What follows, `pending` tokens, is
        what a step can compute. Set at each admission.
    cached_tokens: prompt tokens that were found in the cache when it was first admitted.
    slot, lease: held from admission to release, else None.
    write_from, window_start, decoder_start: see Chunk.
    finish: why it ended, once FINISHED.
    received: another engine computed its prompt but for the last token, and sent the caches along.
    Raises InvalidValue for a prompt that is not int32 [tokens]; its values are copied.
    """

    def __init__(
        self,
        request_id: str,
        prompt: npt.NDArray[np.int32],
        sampling: SamplingParams,
        namespace: bytes = b"",
    ) -> None:
        if prompt.dtype != np.int32 or prompt.ndim != 1:
            raise InvalidValue("prompt", f"{prompt.dtype} {list(prompt.shape)}", "an int32 array [tokens]")
        self.request_id = request_id
        self.sampling = sampling
        self.namespace = namespace
        self.prompt_tokens = self.length = len(prompt)
        self.state = State.WAITING
        self.computed = 0
        self.cached_tokens: int | None = None
        self.slot: int | None = None
        self.lease: Lease | None = None
        self.write_from = self.window_start = self.decoder_start = 0
        self.finish: FinishReason | None = None
        self.received = False
        self._tokens = Int32Buffer(prompt)

    @property
    def generated(self) -> int:
        """Answer tokens so far."""
        return self.length - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Known tokens that are not in the caches yet."""
        return self.length - self.computed

    def history(self, end: int) -> TokenArray:
        """Ids of positions 0 … end-1, int32 [end], a read-only view that later tokens do not disturb."""
        return self._tokens.view(end)

    def content(self, blocks: int, block_tokens: int) -> Content:
        """What names the content of the first `blocks` blocks to the cache: the ids of their tokens."""
        return self._tokens.view(blocks * block_tokens)

    def check_ids(self, vocab: int, image: int | None) -> None:
        """Raise InvalidValue for ids beyond the vocabulary, and for one that stands for an image."""
        ids = self.history(self.length)
        if ids.size == 0:
            raise InvalidValue("prompt", [], "at least one token")
        if ids.min() < 0 or ids.max() >= vocab:
            bad = ids[(ids < 0) | (ids >= vocab)][0]
            raise InvalidValue("prompt", int(bad), f"token ids from 0 to {vocab - 1}")
        if image is not None and (ids == image).any():
            raise InvalidValue(
                "prompt", image, "text tokens; this id stands for an image, and images are not built"
            )

    def admit(self, slot: int, lease: Lease, hit: int, start: int) -> None:
        """Start (again) at position `start` <= `hit`, the tokens whose blocks were found in the cache."""
        self._on(Event.ADMIT)
        self.slot, self.lease = slot, lease
        self.write_from, self.computed = hit, start
        self.window_start = self.decoder_start = start
        if self.cached_tokens is None:
            self.cached_tokens = hit

    def advance(self, end: int) -> None:
        """Positions up to `end` were computed, and no token was sampled after them."""
        self._on(Event.ADVANCE)
        self.computed = end

    def sample(self, end: int, tokens: Sequence[int]) -> None:
        """Positions up to `end` were computed and `tokens` chosen to follow (empty: a stop id only)."""
        self._on(Event.SAMPLE)
        self.computed = end
        self._tokens.extend(tokens)
        self.length += len(tokens)

    def preempt(self) -> None:
        """Leave the running set; slot and blocks are the scheduler's to free."""
        self._on(Event.PREEMPT)

    def end(self, reason: FinishReason) -> None:
        """Finish; ABORT is accepted in every state and keeps an earlier reason."""
        self._on(Event.ABORT if reason is FinishReason.ABORT else Event.FINISH)
        self.finish = self.finish or reason

    def _on(self, event: Event) -> None:
        """Follow the transition table; IllegalTransition names the state and the event (INV-5)."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise IllegalTransition(self.request_id, self.state.value, event.value)
        self.state = after
