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

from flashpoint.engine.events import FinishReason
from flashpoint.engine.plan import TokenArray
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import IllegalTransition, InvalidValue


class State(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Event(StrEnum):
    """What can happen to a request."""

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


class Int32Buffer:
    """Growing int32 values whose views are read-only and never change after they were given out.

    Values are only ever appended; growth moves to a new array and leaves the old one to its views.
    """

    def __init__(self, values: npt.NDArray[np.int32]) -> None:
        self._length = len(values)
        self._data = np.empty(self._length + 64, dtype=np.int32)
        self._data[: self._length] = values

    def __len__(self) -> int:
        return self._length

    def extend(self, values: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Append `values`."""
        end = self._length + len(values)
        if end > len(self._data):
            grown = np.empty(end + end // 2, dtype=np.int32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : end] = values
        self._length = end

    def view(self, end: int) -> npt.NDArray[np.int32]:
        """The first `end` values, read-only and without a copy; `end` <= len."""
        view = self._data[:end]
        view.flags.writeable = False
        return view


NO_BLOCKS = np.empty(0, dtype=np.int32)


class Request:
    """A request's tokens and its hold on the engine.

    prompt_tokens: length of the prompt.
    length: known tokens, prompt and answer.
    computed: positions 0 … computed-1 are in the caches. Starts at 0 at each admission; the rest,
        `pending` tokens, is what a step can compute.
    slot: held from admission to release, else None.  blocks: the block table, one id per block.
    finish: why it ended, once FINISHED.
    Raises InvalidValue for a prompt that is not int32 [tokens]; its values are copied.
    """

    def __init__(self, request_id: str, prompt: npt.NDArray[np.int32], sampling: SamplingParams) -> None:
        if prompt.dtype != np.int32 or prompt.ndim != 1:
            raise InvalidValue("prompt", f"{prompt.dtype} {list(prompt.shape)}", "an int32 array [tokens]")
        self.request_id = request_id
        self.sampling = sampling
        self.prompt_tokens = len(prompt)
        self.state = State.WAITING
        self.computed = 0
        self.slot: int | None = None
        self.blocks = Int32Buffer(NO_BLOCKS)
        self.finish: FinishReason | None = None
        self._tokens = Int32Buffer(prompt)

    @property
    def length(self) -> int:
        """Known tokens, prompt and answer."""
        return len(self._tokens)

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

    def admit(self, slot: int, blocks: npt.NDArray[np.int32]) -> None:
        """Start (again) with a slot and the first blocks of its table."""
        self._on(Event.ADMIT)
        self.computed = 0
        self.slot = slot
        self.blocks = Int32Buffer(blocks)

    def advance(self, end: int) -> None:
        """Positions up to `end` were computed, and no token was sampled after them."""
        self._on(Event.ADVANCE)
        self.computed = end

    def sample(self, end: int, tokens: Sequence[int]) -> None:
        """Positions up to `end` were computed and `tokens` chosen to follow (empty: a stop id only)."""
        self._on(Event.SAMPLE)
        self.computed = end
        self._tokens.extend(tokens)

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
