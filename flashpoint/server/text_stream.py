"""From token ids to text while they arrive: bytes to characters, and stop strings.

Knows nothing of requests or HTTP. Both classes do constant work per token, whatever came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns token ids into text piece by piece; never emits half a character.

    The pieces of `push` and `finish`, joined, equal decoding all ids at once: bytes that are no UTF-8
    become U+FFFD in the same places.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is still incomplete.

        An id beyond the tokenizer's vocabulary has no text.
        """
        if token >= len(self._token_bytes):
            return ""
        return self._decoder.decode(self._token_bytes[token])

    def finish(self) -> str:
        """What is left: one U+FFFD if the last character never became whole."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """Cuts a text stream before the first stop string, which may span pieces.

    Only text that could still be the start of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is safe to show; once `matched` is set, nothing more is."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        pending = self._held + text
        found = [(pending.find(stop), stop) for stop in self._stops if stop in pending]
        if found:
            # The one that is complete first, so that the cut does not depend on how the text was split.
            start, self.matched = min(found, key=lambda match: (match[0] + len(match[1]), match[0]))
            self._held = ""
            return pending[:start]
        keep = max(_overlap(pending, stop) for stop in self._stops)
        safe = len(pending) - keep
        self._held = pending[safe:]
        return pending[:safe]

    def finish(self) -> str:
        """The held text, which turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
