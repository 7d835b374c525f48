"""The schedule of a level, in virtual time."""

import itertools
import json
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.format import parse_trace
from flashpoint.agentx.traces.streams import build_session
from tests.agentx.messy_traces import messy_trace
from tests.agentx.schedule.virtual_server import play_lanes


def session_of(data):
    return build_session(parse_trace(json.dumps(data).encode(), "made"))


def call(t, tokens, out=10, api=1.0, ids=None):
    ids = list(range(1, tokens // 64 + 1)) if ids is None else ids
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": out, "hash_ids": ids, "api_time": api}


def trace(requests, id="s"):
    return {"id": id, "models": [], "block_size": 64, "hash_id_scope": "local", "requests": requests}


def endless(*sessions):
    return itertools.cycle(sessions).__next__


def config(lanes=1, **fields):
    defaults = {
        "warmup_requests": 0,
        "session_idle_cap": None,
        "system_idle_cap": None,
        "start_window": (0, 0),
    }
    return ScheduleConfig(lanes, **(defaults | fields))


def one_second(send, number):
    return 1.0, "ok"


def measured(sent):
    return [s for s in sent if s.send.stage == "measured"]


def test_a_turn_follows_the_live_end_of_the_one_before():
    session = session_of(trace([call(0, 640), call(5, 1280, api=2.0), call(20, 1920)]))
    sent = measured(play_lanes(Lanes(config(), endless(session), "x"), 30, lambda s, n: (3.0, "ok")))
    # Recorded waits: 5 - 0 - 1 and 20 - 5 - 2; live answers take 3 s.
    starts = [s.start - sent[0].start for s in sent[:4]]
    assert starts == pytest.approx([0, 3 + 4, 7 + 3 + 13, 23 + 3])
    assert [s.send.turn for s in sent[:4]] == [0, 1, 2, 0]
    assert sent[3].send.play.number == 1
    assert sent[3].send.play.marker != sent[0].send.play.marker


def agent(t, requests, duration=None, id="a"):
    entry = {"t": t, "type": "subagent", "agent_id": id, "subagent_type": "E", "status": "completed"}
    entry |= {"requests": requests, "models": []}
    return entry | ({} if duration is None else {"duration_ms": duration * 1000})


def test_a_join_waits_for_the_sub_agent_and_for_its_own_time():
    inner = [call(2, 640, ids=[901 + i for i in range(10)]), call(4, 704, ids=[901 + i for i in range(11)])]
    session = session_of(trace([call(0, 640), agent(2, inner), call(8, 1280), call(9, 1920)]))
    slow = measured(play_lanes(Lanes(config(), endless(session), "x"), 60, lambda s, n: (10.0, "ok")))
    by = {(s.send.stream, s.send.turn): s for s in reversed(slow)}
    assert by[1, 0].start == by[0, 0].end  # spawned when the turn before it ended
    assert by[1, 1].start == by[1, 0].end + 1  # 4 - 2 - 1
    assert by[0, 1].start == by[1, 1].end  # its own wait of 7 s was over
    quick = measured(play_lanes(Lanes(config(), endless(session), "x"), 60, lambda s, n: (0.1, "ok")))
    by = {(s.send.stream, s.send.turn): s for s in reversed(quick)}
    assert by[0, 1].start == pytest.approx(by[0, 0].end + 7)


def test_a_flat_agent_waits_for_what_had_ended_before_it():
    main = [call(0, 6400), call(10, 6464), call(40, 6528)]
    other = [call(5, 20_480, ids=[5000 + i for i in range(320)], out=5000, api=30)]
    session = session_of(trace([main[0], other[0], main[1], main[2]]))
    assert [s.id for s in session.streams] == ["s", "s::fa:000"]
    sent = measured(
        play_lanes(
            Lanes(config(), endless(session), "x"), 400, lambda s, n: (100.0 if s.stream else 0.5, "ok")
        )
    )
    by = {(s.send.stream, s.send.turn): s for s in reversed(sent)}
    assert by[0, 1].start < by[1, 0].end  # side by side, as recorded
    assert by[0, 2].start == by[1, 0].end  # began after its end, so it waits


def test_idle_caps():
    session = session_of(trace([call(0, 640), call(1000, 1280), call(1400, 1920)]))
    sent = measured(play_lanes(Lanes(config(session_idle_cap=300), endless(session), "x"), 1000, one_second))
    assert [s.start - sent[0].start for s in sent[:3]] == pytest.approx([0, 301, 602])
    lanes = Lanes(config(system_idle_cap=10), endless(session), "x")
    sent = measured(play_lanes(lanes, 22.5, one_second))
    assert [s.start - sent[0].start for s in sent] == pytest.approx([0, 11, 22])
    assert lanes.idle_skipped == pytest.approx({"session": 0, "system": (999 - 10) + (399 - 10)})


def test_an_overflow_ends_the_session_and_frees_the_lane():
    session = session_of(trace([call(0, 640), call(2, 1280), call(4, 1920)]))
    outcomes = iter(["ok", "overflow", "ok", "ok", "ok", "ok"])
    sent = measured(
        play_lanes(Lanes(config(), endless(session), "x"), 9, lambda s, n: (1.0, next(outcomes, "ok")))
    )
    assert [(s.send.play.number, s.send.turn) for s in sent[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_error_does_not_end_the_session():
    session = session_of(trace([call(0, 640), call(2, 1280), call(4, 1920)]))
    sent = measured(play_lanes(Lanes(config(), endless(session), "x"), 9, lambda s, n: (1.0, "error")))
    assert [s.send.turn for s in sent[:3]] == [0, 1, 2]


def test_a_failed_primer_is_known():
    session = session_of(trace([call(0, 640), call(2, 1280), call(4, 1920)]))
    lanes = Lanes(config(start_window=(0.9, 0.9)), endless(session), "x")
    play_lanes(lanes, 5, lambda s, n: (1.0, "error" if s.stage == "primers" else "ok"))
    assert lanes.failed_primer is not None
    assert lanes.failed_primer.turn == 1


def test_primers_are_aligned_and_at_most_ten_seconds_early():
    sessions = [
        session_of(trace([call(0, 640), call(t, 1280), call(100, 1920)], f"s{t}")) for t in (49, 30, 1)
    ]
    lanes = Lanes(config(lanes=3, start_window=(0.5, 0.5)), endless(*sessions), "x")
    sent = play_lanes(lanes, 1, one_second)
    primers = sorted((s for s in sent if s.send.stage == "primers"), key=lambda s: s.send.play.lane)
    assert [s.start - 1000 for s in primers] == pytest.approx([9, 0, 0])
    assert {s.send.max_tokens for s in primers} == {1}


WAITS = st.sampled_from([0.0, 0.01, 1.0, 30.0])


@settings(max_examples=60, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 5000), min_size=1, max_size=5, unique=True),
    lanes=st.integers(1, 6),
    warmup=st.integers(0, 6),
    server=st.integers(0, 10**6),
    session_cap=st.sampled_from([None, 0.0, 5.0, 300.0]),
    system_cap=st.sampled_from([None, 0.0, 10.0]),
    late=st.booleans(),
    failures=st.sampled_from([0.0, 0.2]),
)
def test_rules_hold_on_messy_sessions(seeds, lanes, warmup, server, session_cap, system_cap, late, failures):
    sessions = [session_of(messy_trace(seed)) for seed in seeds]
    rng = random.Random(server)

    def answer(send, number):
        outcome = "ok"
        if send.stage == "measured" and rng.random() < failures:
            outcome = rng.choice(["error", "overflow"])
        return rng.choice([0.001, 0.5, 3.0, 40.0]), outcome

    schedule = Lanes(
        ScheduleConfig(lanes, server, (0.25, 0.75), warmup, session_cap, system_cap), endless(*sessions), "x"
    )
    sent = play_lanes(schedule, 2000, answer, lambda: rng.choice([0.0, 0.02]) if late else 0.0)
    assert schedule.failed_primer is None
    assert schedule.broken_waits == 0
    warmed = [s for s in sent if s.send.stage == "warmup"]
    for lane in range(lanes):
        assert sum(s.send.play.lane == lane for s in warmed) == warmup
    assert all(s.send.max_tokens == 1 for s in sent if s.send.stage != "measured")
    by_play = defaultdict(list)
    for s in sent:
        if s.send.stage != "primers":
            by_play[s.send.play].append(s)
    for play, requests in by_play.items():
        check_play(play, requests)
    for lane in range(lanes):
        check_one_session_at_a_time([p for p in by_play if p.lane == lane], by_play)
    if system_cap is not None:
        check_idle(measured(sent), system_cap, 0.5 if late else 1e-6)  # late wakes add up while blocked


def check_play(play, requests):
    times = {(s.send.stream, s.send.turn): s for s in requests}
    assert len(times) == len(requests), "a turn was sent twice"
    for (stream, turn), s in times.items():
        recorded = play.session.streams[stream].turns[turn]
        assert s.send.due <= s.start + 1e-6
        before = times.get((stream, turn - 1))
        if before is not None:
            assert before.end <= s.start
        for key in recorded.after:
            if key in times:
                assert times[key].end <= s.start, "a barrier was not kept"
        if stream == 0:
            for branch in play.session.branches:
                if branch.joined_by == turn:
                    for child in branch.streams:
                        ends = [r.end for (st_, _), r in times.items() if st_ == child]
                        assert all(end <= s.start for end in ends), "a join was not kept"
        else:
            branch = next(b for b in play.session.branches if stream in b.streams)
            spawn = times.get((0, branch.spawned_by))
            if turn == 0 and spawn is not None:
                assert spawn.end <= s.start


def check_one_session_at_a_time(plays, by_play):
    spans = sorted((min(s.start for s in by_play[p]), max(s.end for s in by_play[p])) for p in plays)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start + 1e-9


def check_idle(requests, cap, tolerance):
    end = None
    for s in sorted(requests, key=lambda s: s.start):
        if end is not None:
            assert s.start - end <= cap + tolerance
        end = s.end if end is None else max(end, s.end)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_same_seed_plays_the_same(seed):
    def run():
        sessions = [session_of(messy_trace(s)) for s in (seed, seed + 1)]
        rng = random.Random(seed)
        lanes = Lanes(ScheduleConfig(3, seed), endless(*sessions), "x")
        sent = play_lanes(lanes, 300, lambda s, n: (rng.uniform(0.1, 5), "ok"))
        return [(s.send.conversation_id, s.send.turn, s.start, s.send.play.marker) for s in sent]

    assert run() == run()


@pytest.mark.parametrize(
    ("field", "value"),
    [("lanes", 0), ("warmup_requests", -1), ("start_window", (0.8, 0.2)), ("session_idle_cap", -1.0)],
)
def test_bad_values(field, value):
    with pytest.raises(Exception, match=field):
        ScheduleConfig(**({"lanes": 1} | {field: value}))
