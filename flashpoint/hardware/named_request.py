"""A request of which only lengths and the names of its blocks are known, since nothing of it is computed.

The same state machine, scheduler and prefix cache; a 142K-token prompt is 2,200 names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flashpoint.cache.int32_buffer import Int32Buffer, Int32s
from flashpoint.cache.transfer import Content
from flashpoint.engine.plan import TokenArray
from flashpoint.engine.request import Event, Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import InvalidValue

_NOTHING = np.empty(0, dtype=np.int32)
_ZEROS = np.zeros(2**22, dtype=np.int32)


class FreshNames:
    """Names that no other content has: negative numbers, each given out once."""

    def __init__(self) -> None:
        self._next = -1

    def take(self, count: int) -> Int32s:
        """`count` of them, int32 [count]."""
        first, self._next = self._next, self._next - count
        if self._next < -(2**31):
            raise InvalidValue("simulation", "2^31 blocks without a name of their own", "a shorter run")
        return np.arange(first, self._next, -1, dtype=np.int32)


class NamedRequest(Request):
    """A `Request` without token ids.

    names: int32 [n], what names its first blocks, one for `token_share` tokens each; what they do not cover,
        and the answer, gets fresh names.
    """

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        names: Int32s,
        token_share: int,
        sampling: SamplingParams,
        namespace: bytes,
        fresh: FreshNames,
    ) -> None:
        super().__init__(request_id, _NOTHING, sampling, namespace)
        if not 1 <= prompt_tokens < len(_ZEROS):
            raise InvalidValue("prompt", f"{prompt_tokens} tokens", f"1 to {len(_ZEROS) - 1} tokens")
        self.prompt_tokens = self.length = prompt_tokens
        self._names = Int32Buffer(names)
        self._token_share = token_share
        self._fresh = fresh

    def history(self, end: int) -> TokenArray:
        """An array of the right length in which every id is 0."""
        return _ZEROS[:end]

    def content(self, blocks: int, block_tokens: int) -> Content:
        """The names of the first `blocks` blocks."""
        count = blocks * block_tokens // self._token_share
        if count > len(self._names):
            self._names.extend(self._fresh.take(count - len(self._names)))
        return self._names.view(count)

    def check_ids(self, vocab: int, image: int | None) -> None:
        """There are none."""

    def sample(self, end: int, tokens: Sequence[int]) -> None:
        """Positions up to `end` were computed, and as many tokens chosen as `tokens` has."""
        self._on(Event.SAMPLE)
        self.computed = end
        self.length += len(tokens)
