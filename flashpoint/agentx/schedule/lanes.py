"""N lanes, each always playing one session: what is to be sent next, and when.

Source: the project's spec, agentx.md section 3. A pure object: the caller says what time it is, sends what
`take` returns and reports every end to `ended`. So the same lanes drive a server over HTTP, an engine in
this process, and an engine in virtual time.

Three stages. *Primers*: each stream that was going on at its lane's start moment sends its last turn before
it, one token, so that the server's cache holds it; aligned so that all start moments coincide. *Warm-up*:
each lane sends up to `warmup_requests` further turns, one token, without waiting. *Measured*: recorded waits
from the end of the live answer, joins and barriers; a session that is over is followed by the next one from
its first turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flashpoint.agentx.schedule.play import Play, from_middle, from_start, start_moment
from flashpoint.agentx.traces.streams import Session, Turn
from flashpoint.errors import InvalidValue

LONGEST_LEAD = 10.0
"""Seconds before the start moment at which the earliest primer is sent at most."""

Stage = Literal["primers", "warmup", "measured"]
Outcome = Literal["ok", "error", "overflow"]


@dataclass(frozen=True)
class ScheduleConfig:
    """How a level is played (spec 3.1); seconds and counts as named."""

    lanes: int
    seed: int = 42
    start_window: tuple[float, float] = (0.25, 0.75)
    """Where in its first session a lane begins, as shares of the session's span."""
    warmup_requests: int = 10
    """Turns per lane that are sent without waiting before the measurement."""
    session_idle_cap: float | None = 300.0
    """Longest time in which a session may have nothing at the server."""
    system_idle_cap: float | None = 10.0
    """Longest time in which no session at all may have something at the server."""

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidValue("lanes", self.lanes, "a whole number of at least 1")
        if self.warmup_requests < 0:
            raise InvalidValue("warmup_requests", self.warmup_requests, "a whole number of at least 0")
        low, high = self.start_window
        if not 0 <= low <= high <= 1:
            raise InvalidValue("start_window", self.start_window, "two shares, 0 <= first <= second <= 1")
        for name in ("session_idle_cap", "system_idle_cap"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InvalidValue(name, value, "seconds, a number of at least 0")


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """One request to be sent now: a turn of a stream of a play."""

    play: Play
    stream: int
    turn: int
    max_tokens: int
    stage: Stage
    due: float

    @property
    def recorded(self) -> Turn:
        """The turn as it was recorded."""
        return self.play.session.streams[self.stream].turns[self.turn]

    @property
    def conversation_id(self) -> str:
        """Id of the stream."""
        return self.play.session.streams[self.stream].id


class Lanes:
    """The schedule of one level. Times are seconds of the caller's clock, never going back."""

    def __init__(self, config: ScheduleConfig, next_session: Callable[[], Session], cache_bust: str) -> None:
        """`next_session` gives the sessions in the order in which lanes take them, endlessly."""
        self.config = config
        self.stage: Stage = "primers"
        self.measured_from: float | None = None
        self.sessions_started = 0
        self.idle_skipped: dict[Literal["session", "system"], float] = {"session": 0.0, "system": 0.0}
        self.failed_primer: Send | None = None
        self.broken_waits = 0
        """Turns sent although their waits could never end (a trace whose waits run in a circle)."""
        self._next_session = next_session
        self._cache_bust = cache_bust
        self._numbers: Counter[str] = Counter()
        self._plays: list[Play] = []
        self._timers: list[tuple[float, int, Play, int]] = []
        self._count = itertools.count()
        self._ready: list[Send] = []
        self._primers: list[Send] = []
        self._primers_open = 0
        self._warmed: Counter[int] = Counter()
        self._in_flight = 0
        self._idle_since = 0.0

    def prepare(self) -> list[tuple[Play, int, int]]:
        """Give every lane its first session; returns what will be sent first: (play, stream, turn).

        Apart from `start`, so that sessions can be read and prompts made before the clock runs.
        """
        for lane in range(self.config.lanes):
            session = self._next_session()
            moment = start_moment(session, lane, self.config.seed, self.config.start_window)
            self._plays.append(from_middle(session, lane, self._number(session), self._cache_bust, moment))
            self.sessions_started += 1
        return [
            (play, stream, max(0, play.streams[stream].next - 1))
            for play in self._plays
            for stream in play.live()
        ]

    def start(self, now: float) -> None:
        """Schedule the primers."""
        leads: list[tuple[float, Play, int]] = []
        for play in self._plays:
            for stream in play.live():
                if before := play.streams[stream].next:
                    sent = play.session.streams[stream].turns[before - 1].call.t
                    leads.append((min(play.origin - sent, LONGEST_LEAD), play, stream))
        longest = max((lead for lead, _, _ in leads), default=0.0)
        self._primers = [
            Send(play, stream, play.streams[stream].next - 1, 1, "primers", now + longest - lead)
            for lead, play, stream in leads
        ]
        self._primers.sort(key=lambda send: send.due, reverse=True)
        self._primers_open = len(self._primers)
        if not self._primers:
            self._begin_warmup(now)

    def next_due(self) -> float | None:
        """When `take` will next have something, if nothing ends before; None: only an end can bring more."""
        if self._ready:
            return self._ready[0].due
        if self._primers:
            return self._primers[-1].due
        self._drop_stale()
        return self._timers[0][0] if self._timers else None

    def take(self, now: float) -> list[Send]:
        """What is to be sent at `now`. Each must be reported to `ended` exactly once."""
        while self._primers and self._primers[-1].due <= now:
            self._ready.append(self._primers.pop())
        self._fire(now)
        taken, self._ready = self._ready, []
        for send in taken:
            self._in_flight += 1
            send.play.in_flight += 1
        return taken

    def ended(self, send: Send, now: float, outcome: Outcome) -> None:
        """A request is over, well or not. An overflow ends its stream: later prompts are longer still."""
        play = send.play
        self._in_flight -= 1
        play.in_flight -= 1
        if not play.in_flight:
            play.idle_since = now
        if not self._in_flight:
            self._idle_since = now
        if send.stage == "primers":
            self._primer_ended(send, now, outcome)
            return
        if outcome == "overflow" or send.turn + 1 == len(play.session.streams[send.stream].turns):
            self._last_turn_ended(play, send, now, stopped=outcome == "overflow")
        else:
            self._turn_ended(play, send, now)
        self._release(play, now)
        if play.over:
            self._follow(play, now)
        if self.stage == "warmup":
            self._fire(now)
            if not self._in_flight and not self._ready:
                self._begin_measured(now)
        self._cap_session(play, now)
        self._cap_system(now)

    # Primers and warm-up

    def _primer_ended(self, send: Send, now: float, outcome: Outcome) -> None:
        if outcome != "ok" and self.failed_primer is None:
            self.failed_primer = send
        self._primers_open -= 1
        if not self._primers_open:
            self._begin_warmup(now)

    def _begin_warmup(self, now: float) -> None:
        self.stage = "warmup"
        for play in list(self._plays):
            for stream in list(play.live()):
                play.streams[stream].due = now
            self._release(play, now)
        if not self._ready:
            self._begin_measured(now)

    def _begin_measured(self, now: float) -> None:
        """Put every stream back on its session's recorded clock; the earliest of all is due now."""
        self.stage = "measured"
        self.measured_from = self._idle_since = now
        offsets = [
            (max(0.0, play.turn(stream).call.t - play.origin), play, stream)
            for play in self._plays
            for stream in play.live()
        ]
        earliest = min((offset for offset, play, stream in offsets if play.joined(stream)), default=0.0)
        for offset, play, stream in offsets:
            self._schedule(play, stream, now + max(0.0, offset - earliest))
        for play in self._plays:
            play.idle_since = now
            self._cap_session(play, now)
        self._fire(now)

    # Turns

    def _turn_ended(self, play: Play, send: Send, now: float) -> None:
        state = play.streams[send.stream]
        state.ended = state.next = send.turn + 1
        if send.stream == 0:
            self._spawn(play, send.turn, now)
        delay = play.turn(send.stream).delay or 0.0
        self._schedule(play, send.stream, now + (delay if self.stage == "measured" else 0.0))

    def _last_turn_ended(self, play: Play, send: Send, now: float, *, stopped: bool) -> None:
        if send.stream == 0 and not stopped:
            self._spawn(play, send.turn, now)
        play.stream_done(send.stream)
        if send.stream == 0 and stopped:
            for stream, state in enumerate(play.streams):
                if state.state == "unborn":  # what it would have started will never be
                    play.stream_done(stream)

    def _spawn(self, play: Play, turn: int, now: float) -> None:
        for number, streams in play.spawned_by(turn):
            branch = play.session.branches[number]
            play.unfinished[number] = len(streams)
            for stream in streams:
                late = max(0.0, play.session.streams[stream].turns[0].call.t - branch.start)
                self._schedule(play, stream, now + (late if self.stage == "measured" else 0.0))

    def _follow(self, over: Play, now: float) -> None:
        """The next session takes the lane of one that is over."""
        session = self._next_session()
        play = from_start(session, over.lane, self._number(session), self._cache_bust)
        play.streams[0].due = play.idle_since = now
        self._plays[over.lane] = play
        self.sessions_started += 1
        self._release(play, now)

    def _number(self, session: Session) -> int:
        number = self._numbers[session.id]
        self._numbers[session.id] += 1
        return number

    # Timers

    def _schedule(self, play: Play, stream: int, due: float) -> None:
        state = play.streams[stream]
        state.state, state.due = "timed", due
        heapq.heappush(self._timers, (due, next(self._count), play, stream))

    def _drop_stale(self) -> None:
        """Timers that were moved, or whose play is over, stay in the heap until they come up."""
        while self._timers:
            due, _, play, stream = self._timers[0]
            state = play.streams[stream]
            if state.state == "timed" and state.due == due:
                return
            heapq.heappop(self._timers)

    def _fire(self, now: float) -> None:
        """Everything that is due becomes waiting, and is sent if nothing holds it back."""
        touched: list[Play] = []
        self._drop_stale()
        while self._timers and self._timers[0][0] <= now:
            _, _, play, stream = heapq.heappop(self._timers)
            play.streams[stream].state = "waiting"
            if play not in touched:
                touched.append(play)
            self._drop_stale()
        for play in touched:
            self._release(play, None)
            self._cap_session(play, now)
        self._cap_system(now)

    def _release(self, play: Play, freed: float | None) -> None:
        """Send what waits in a play and is free. In the warm-up, up to the lane's budget.

        `freed` is when the end of another request may have freed it; None: its own time has come.
        """
        waiting = [stream for stream in play.live() if play.streams[stream].state == "waiting"]
        free = [stream for stream in waiting if play.free(stream)]
        if waiting and not free and len(waiting) == sum(1 for _ in play.live()):
            # Recorded waits that run in a circle would hold the lane for ever.
            free = [min(waiting, key=lambda s: play.turn(s).call.t)]
            self.broken_waits += 1
        for stream in sorted(free, key=lambda s: (play.session.streams[s].id, play.streams[s].next)):
            if self.stage == "warmup":
                if self._warmed[play.lane] >= self.config.warmup_requests:
                    continue
                self._warmed[play.lane] += 1
            state = play.streams[stream]
            state.state = "flying"
            tokens = play.turn(stream).call.forced_output if self.stage == "measured" else 1
            due = state.due if freed is None else max(state.due, freed)
            self._ready.append(Send(play, stream, state.next, tokens, self.stage, due))

    # Idle caps (spec 3.4). Nothing but its own timers can move an idle session, so they are moved at once.

    def _cap_session(self, play: Play, now: float) -> None:
        cap = self.config.session_idle_cap
        states = [play.streams[stream].state for stream in play.live()]
        if cap is None or self.stage != "measured" or "flying" in states or "timed" not in states:
            return
        self.idle_skipped["session"] += self._pull([play], max(now, play.idle_since + cap))

    def _cap_system(self, now: float) -> None:
        cap = self.config.system_idle_cap
        if cap is None or self.stage != "measured" or self._in_flight or self._ready:
            return
        self.idle_skipped["system"] += self._pull(self._plays, max(now, self._idle_since + cap))

    def _pull(self, plays: list[Play], limit: float) -> float:
        """Move the timers of `plays` forward together, so that the first is due by `limit`; seconds moved."""
        timed = [(play, s) for play in plays for s in play.live() if play.streams[s].state == "timed"]
        first = min((play.streams[s].due for play, s in timed), default=limit)
        excess = first - limit
        if excess <= 0:
            return 0.0
        for play, stream in timed:
            due = play.streams[stream].due
            # The first is put at the limit itself: rounding must neither leave it behind nor change order.
            self._schedule(play, stream, limit if due == first else max(limit, due - excess))
        return excess
