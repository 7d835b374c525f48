"""One play of a session in a lane: where each of its streams stands.

Source: the project's spec, agentx.md sections 3.2 to 3.4. The states of a stream:

    unborn --spawned--> timed --due--> waiting --free--> flying --answered--> timed … --last turn--> done

`timed` has a moment at which the next turn is due; `waiting` is due and waits for joins, for calls of sibling
streams that had ended before it in the recording, or for the warm-up's budget; `flying` is at the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flashpoint.agentx.traces.streams import Session, Turn

State = Literal["unborn", "timed", "waiting", "flying", "done"]


@dataclass(slots=True)
class StreamState:
    """Where one stream stands: `next` is the turn to send next, `ended` how many turns are over."""

    state: State = "unborn"
    next: int = 0
    ended: int = 0
    due: float = 0.0
    """When it is (or was) due, in the caller's seconds."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Play:
    """A session being played in `lane`; `number` is how often its session was begun before at this level."""

    session: Session
    lane: int
    number: int
    marker: str
    origin: float
    """The recorded moment at which the play begins; offsets of later turns count from it."""
    streams: list[StreamState] = field(default_factory=list)
    unfinished: dict[int, int] = field(default_factory=dict)
    """Per spawned branch, how many of its streams are not done."""
    in_flight: int = 0
    idle_since: float = 0.0

    def turn(self, stream: int) -> Turn:
        """The turn that `stream` sends next."""
        return self.session.streams[stream].turns[self.streams[stream].next]

    def live(self) -> Iterator[int]:
        """The streams that are neither done nor unborn."""
        return (i for i, s in enumerate(self.streams) if s.state not in ("done", "unborn"))

    @property
    def over(self) -> bool:
        """Nothing more will be sent: the session itself is done, and so is everything it started."""
        return next(self.live(), None) is None

    def joined(self, stream: int) -> bool:
        """Whether every branch that the stream's next turn waits for is done."""
        if stream:
            return True
        turn = self.streams[0].next
        return not any(
            self.unfinished.get(number)
            for number, b in enumerate(self.session.branches)
            if b.joined_by == turn
        )

    def free(self, stream: int) -> bool:
        """Whether nothing of the session itself holds the stream's next turn back."""
        if not self.joined(stream):
            return False
        return all(self.streams[other].ended > turn for other, turn in self.turn(stream).after)

    def spawned_by(self, turn: int) -> Iterator[tuple[int, list[int]]]:
        """Branches (number, streams not yet born) that the end of the session's turn starts."""
        for number, branch in enumerate(self.session.branches):
            if branch.spawned_by == turn:
                born = [stream for stream in branch.streams if self.streams[stream].state == "unborn"]
                if born:
                    yield number, born

    def stream_done(self, stream: int) -> None:
        """The stream sends nothing more; nobody waits for it any longer."""
        state = self.streams[stream]
        state.state = "done"
        state.ended = len(self.session.streams[stream].turns)
        for number, branch in enumerate(self.session.branches):
            if stream in branch.streams and self.unfinished.get(number):
                self.unfinished[number] -= 1


def marker(cache_bust: str, number: int, lane: int, session_id: str) -> str:
    """The line in front of a play's first user messages: no play hits what another one left in the cache."""
    digest = hashlib.sha256(f"{cache_bust}:{number}:{lane}:{session_id}".encode()).hexdigest()
    return f"[rid:{digest[:12]}]\n\n"


def from_start(session: Session, lane: int, number: int, cache_bust: str) -> Play:
    """A play that begins at the session's first turn."""
    play = Play(
        session,
        lane,
        number,
        marker(cache_bust, number, lane, session.id),
        origin=session.streams[0].turns[0].call.t,
        streams=[StreamState() for _ in session.streams],
    )
    play.streams[0].state = "waiting"
    return play


def start_moment(session: Session, lane: int, seed: int, window: tuple[float, float]) -> float:
    """The recorded moment at which `lane` enters its first session (spec 3.2), uniform in `window`.

    `window` is in shares of the span from the session's first call to its last.
    """
    # Milliseconds and this seed, as in the official harness: the same run starts at the same moments.
    first, last = (t * 1000.0 for t in session.span())
    low, high = (first + share * (last - first) for share in window)
    digest = hashlib.sha256(f"{seed}:{session.id}:{lane}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return float(rng.uniform(low, high) if high > low else low) / 1000.0


def from_middle(session: Session, lane: int, number: int, cache_bust: str, moment: float) -> Play:
    """A play that resumes what was going on at `moment`: streams alive then continue at their next turn."""
    play = Play(
        session,
        lane,
        number,
        marker(cache_bust, number, lane, session.id),
        origin=moment,
        streams=[StreamState() for _ in session.streams],
    )
    for stream, state in zip(session.streams, play.streams, strict=True):
        starts = (i for i, turn in enumerate(stream.turns) if turn.call.t >= moment)
        state.next = state.ended = next(starts, len(stream.turns))
    root = play.streams[0]
    root.state = "waiting" if root.next < len(session.streams[0].turns) else "done"
    for branch_number, branch in enumerate(session.branches):
        if moment < branch.start and root.next <= branch.spawned_by and root.state != "done":
            continue  # the turn that starts it is still to come
        alive = 0
        for child in branch.streams:
            state = play.streams[child]
            ended = state.next == len(session.streams[child].turns)
            state.state = "done" if ended else "waiting"
            alive += not ended
        play.unfinished[branch_number] = alive
    return play
