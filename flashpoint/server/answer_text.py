"""One answer's text: token ids to reasoning and content, cut before a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from flashpoint.server.text_stream import StopMatcher, TextStream


class AnswerText:
    """Splits an answer at the token that ends its reasoning and looks for stop strings in its content.

    As in the authors' own server, stop strings are not looked for in reasoning, nor in text before
    the answer has more than `min_tokens` tokens.

    reasoning_end: the id that closes the reasoning the answer starts in; None when it has none.
    """

    def __init__(
        self, stream: TextStream, stops: Sequence[str], min_tokens: int, reasoning_end: int | None
    ) -> None:
        self._stream = stream
        self._matcher = StopMatcher(stops)
        self._unmatched_tokens = min_tokens
        self._reasoning_end = reasoning_end

    @property
    def in_reasoning(self) -> bool:
        """True until the token that ends the reasoning has come."""
        return self._reasoning_end is not None

    @property
    def stopped(self) -> bool:
        """True once a stop string has come; the text before it is complete."""
        return self._matcher.matched is not None

    def push(self, token: int) -> tuple[str, str]:
        """The reasoning and the content that a token adds."""
        self._unmatched_tokens -= 1
        if self._reasoning_end is None:
            return "", self._content(self._stream.push(token))
        if token == self._reasoning_end:
            self._reasoning_end = None
            return self._stream.finish(), ""
        return self._stream.push(token), ""

    def finish(self) -> tuple[str, str]:
        """What is left when no more tokens come."""
        rest = self._stream.finish()
        if self.in_reasoning:
            return rest, ""
        return "", self._content(rest) + self._matcher.finish()

    def _content(self, text: str) -> str:
        return text if self._unmatched_tokens >= 0 else self._matcher.push(text)
