"""Errors a user can cause. Each says what was wrong and what would be right."""

from __future__ import annotations

from collections.abc import Sequence


class FlashpointError(Exception):
    """Base of every error that is the input's fault, not the program's."""


class InvalidValue(FlashpointError):
    """A named field holds a value that cannot be used.

    `field` is the name the user wrote (dotted for nested ones), `value` what it held, `expected` a
    phrase that completes "expected …".
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        shown = repr(value)
        if len(shown) > 200:
            shown = f"{shown[:200]}…"
        super().__init__(f"{field}: got {shown}; expected {expected}")


class CheckpointError(FlashpointError):
    """A checkpoint folder cannot be used; `problems` lists every reason found."""

    def __init__(self, path: object, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = list(problems)
        listed = "\n  ".join(self.problems)
        super().__init__(f"checkpoint {path}: {len(self.problems)} problem(s)\n  {listed}")


class RequestTooLong(FlashpointError):
    """A request can never fit: `needed` and `limit` are token counts, `what` names the limit."""

    def __init__(self, needed: int, limit: int, what: str) -> None:
        self.needed = needed
        self.limit = limit
        self.what = what
        super().__init__(f"the request needs {needed} tokens, but {what} is {limit} tokens")


class IllegalTransition(FlashpointError):
    """A request received an event that its state does not accept."""

    def __init__(self, request_id: str, state: str, event: str) -> None:
        super().__init__(f"request {request_id}: event {event!r} is not accepted in state {state!r}")


class QueueFull(FlashpointError):
    """The waiting queue is at its bound of `limit` requests; the client may retry later."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the queue is full: {limit} requests are waiting; retry later")


class EngineStopped(FlashpointError):
    """The engine takes no new requests; `reason` says why (it drains, or its thread died)."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the engine takes no new requests: {reason}")
