"""What must hold for whole runs: limits, better machines, order of time; nothing lost and nothing made up."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.engine.core import StepRecord
from flashpoint.engine.events import FinishReason
from flashpoint.errors import RequestTooLong
from flashpoint.hardware.machine import load_machine
from flashpoint.hardware.replica import Delivery, joint_shape
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import RankRows
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.fleet import Fleet, Job
from flashpoint.simulate.front_end import FrontEnd, FrontEndCost
from flashpoint.simulate.plan import Planned
from flashpoint.simulate.play import outcome

MACHINE = replace(load_machine("gb300-nvl72"), memory=1e13)
FASTER = ("memory_bandwidth", "link_bandwidth", "host_bandwidth", "fp4", "fp8", "bf16", "fp32")


@dataclass
class Served:
    """What a fleet did with jobs that all arrived at once."""

    end: float
    heard: list[Delivery]
    steps: list[list[StepRecord]]

    def total(self, name):
        """A count of all steps of all engines."""
        return sum(getattr(s, name) for records in self.steps for s in records)


def job(number, prompt, answer, shared=0):
    """A request whose first `shared` blocks are those of every other one."""
    names = np.arange(prompt // 64, dtype=np.int32) + 1_000_000 * (number + 1)
    names[:shared] = np.arange(shared)
    return Job(f"r{number}", f"s{number}", prompt, names, 64, answer, b"")


def serve(jobs, machine=MACHINE, **options):
    clock = VirtualClock()
    deployment = Deployment(DeploymentConfig(**{"layout": "TP1", **options}), machine)
    fleet, cores = deployment.fleet(clock, 1)
    steps: list[list[StepRecord]] = [[] for _ in cores]
    for core, records in zip(cores, steps, strict=True):
        core.add_observer(records.append)
    for one in jobs:
        fleet.arrive(one)
    fleet.settle()
    heard, moments = [], [0.0]
    while (moment := fleet.next_event()) is not None:
        clock.wait_until(moment)
        moments.append(clock.now())
        heard += fleet.advance()
        fleet.settle()
    assert all(a <= b for a, b in pairwise(moments))
    return Served(clock.now(), heard, steps)


def test_without_hits_throughput_is_the_limit_of_prefill():
    """FLOPs of a fresh prompt as the model's specification has them (15.2); the machine only multiplies."""
    flops, length, count = 1e15, 32_768, 24
    shares = {name: 1.0 for name in MACHINE.numbers if "share" in name}
    waits = {name: 0.0 for name in MACHINE.numbers if "latency" in name or "ramp" in name}
    only_math = replace(
        MACHINE, fp4=flops, fp8=flops, bf16=flops, fp32=flops, memory_bandwidth=1e18, host_bandwidth=1e18,
        step_overhead=0.0, **shares, **waits,
    )  # fmt: skip
    served = serve([job(i, length, 1) for i in range(count)], only_math, drafts=0, step_tokens=8192, skew=1.0)
    encoder = length * (17.3 + 6.1e-6 * length) * 1e9
    decoder_tail = 128 * (15.14 + 1.68 + 8.2e-6 * length + 32.8e-6 * 16_384) * 1e9
    limit = flops / (encoder + decoder_tail) * length
    assert count * length / served.end == pytest.approx(limit, rel=0.03)


JOBS = st.lists(
    st.builds(
        lambda prompt, answer, shared: (prompt, answer, min(shared, prompt // 64)),
        st.integers(1, 20_000),
        st.integers(1, 60),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=8,
)
LAYOUTS = st.sampled_from(
    [
        {"layout": "TP1"},
        {"layout": "TP4", "early_loads": False},
        {"layout": "DEP2"},
        {"layout": "DEP4", "prefill_layout": "TP2", "prefill_replicas": 2},
        {"layout": "TP2", "replicas": 2, "routing": "round_robin", "acceptance_rule": "sampled"},
        {"layout": "DEP2", "cache_tokens": 24_576, "host_memory": 2**30},
    ]
)


@given(JOBS, LAYOUTS, st.sampled_from(FASTER), st.floats(1.0, 4.0))
@settings(max_examples=15, deadline=None)
def test_a_better_machine_serves_no_later(sizes, layout, name, factor):
    """Of one engine: what several do depends on which of them is free first, and anomalies are possible."""
    layout = {**layout, "replicas": 1, "prefill_layout": None, "prefill_replicas": 0}
    jobs = [job(i, *size) for i, size in enumerate(sizes)]
    better = replace(MACHINE, **{name: getattr(MACHINE, name) * factor})
    assert serve(jobs, better, **layout).end <= serve(jobs, **layout).end * (1 + 1e-9)


@given(JOBS, LAYOUTS)
@settings(max_examples=15, deadline=None)
def test_nothing_is_lost_and_nothing_made_up(sizes, layout):
    jobs = [job(i, *size) for i, size in enumerate(sizes)]
    served = serve(jobs, **layout)
    answers, hits, ends = {}, {}, {}
    for delivery in served.heard:
        event = delivery.event
        assert event.request_id not in ends, "heard of after its end"
        assert np.all(np.diff(delivery.ends) >= 0) and delivery.ends[-1] <= served.end
        answers[event.request_id] = answers.get(event.request_id, 0) + len(event.tokens)
        hits.setdefault(event.request_id, event.cached_tokens)
        if event.finish is not None:
            assert event.error is None
            ends[event.request_id] = float(delivery.ends[-1])
    assert {one.request_id: one.max_tokens for one in jobs} == answers
    assert set(ends) == set(answers)
    assert served.total("sampled_tokens") == sum(answers.values())
    # After a preemption, and where a decode engine takes over, some of a prompt is computed once more.
    if layout.get("prefill_layout") is None and not served.total("preemptions"):
        computed = sum(one.prompt_tokens - hits[one.request_id] for one in jobs)
        assert served.total("prefill_rows") - served.total("replay_rows") == computed
    for records in served.steps:
        for a, b in pairwise(records):
            assert a.start + a.seconds <= b.start * (1 + 1e-12)


def test_links_that_cost_nothing_make_sharing_experts_no_slower():
    """Two ranks that hold half of the experts each, against two that hold all: the same work, fewer bytes."""
    free = replace(
        MACHINE, link_bandwidth=1e18, link_latency=0.0, all_to_all_latency=0.0, gather_latency=0.0,
        all_reduce_latency=0.0,
    )  # fmt: skip
    for count, answer in ((2, 200), (16, 100), (64, 20)):
        jobs = [job(i, 4096, answer) for i in range(count)]
        same = {"routing": "round_robin", "skew": 1.0}
        apart = serve(jobs, free, layout="TP1", replicas=2, **same).end
        assert serve(jobs, free, layout="DEP2", **same).end <= apart * (1 + 1e-9)


def test_ranks_that_do_different_things_hold_each_other_up():
    """Why `no slower` needs equal ranks: one that decodes waits for each chunk that the other prefills."""
    free = replace(
        MACHINE, link_bandwidth=1e18, link_latency=0.0, all_to_all_latency=0.0, gather_latency=0.0,
        all_reduce_latency=0.0,
    )  # fmt: skip
    jobs = [job(0, 64, 1000)]
    for i in range(1, 20, 2):
        jobs += [job(i, 20_000, 1), job(i + 1, 64, 1)]
    same = {"routing": "round_robin", "skew": 1.0}
    apart = serve(jobs, free, layout="TP1", replicas=2, **same)
    together = serve(jobs, free, layout="DEP2", **same)
    assert together.end > 1.1 * apart.end
    during = [s for s in together.steps[1] if s.prefill_rows > 1000]
    alone = [s for s in apart.steps[0] if s.decode_rows]
    assert min(s.seconds for s in during) > 1.5 * max(s.seconds / s.steps for s in alone)


def test_a_run_does_not_depend_on_the_hashes_of_a_process():
    """The same options give the same bits in another process, where sets of strings have another order."""
    code = (
        "from tests.simulate.test_properties import job, serve\n"
        "served = serve([job(i, 3000 + 500 * i, 40, 20) for i in range(9)], layout='DEP2', replicas=2, "
        "cache_tokens=16384, host_memory=2**30, acceptance_rule='sampled')\n"
        "print(repr(served.end), repr(served.steps), repr([(d.event, list(d.ends)) for d in served.heard]))"
    )
    root = Path(__file__).parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "77")
    ]  # fmt: skip
    assert said[0] == said[1] and len(said[0]) > 10_000


@pytest.mark.parametrize("split", [{}, {"prefill_layout": "TP4", "prefill_replicas": 1}])
def test_an_answer_ends_with_the_context(split):
    """Whoever decodes: a prompt that fills the cache but for one token gets that token."""
    for missing in (3, 2, 1):
        served = serve([job(0, 4096 - missing, 10)], layout="TP4", cache_tokens=4096, **split)
        assert sum(len(d.event.tokens) for d in served.heard) == missing
        assert served.heard[-1].event.finish is FinishReason.LENGTH
    with pytest.raises(RequestTooLong, match="4096"):
        serve([job(0, 4096, 10)], layout="TP4", cache_tokens=4096, **split)


def test_a_prompt_is_refused_when_any_engine_of_its_way_is_too_small():
    small, large = (Deployment(DeploymentConfig(layout="TP4", cache_tokens=n), MACHINE) for n in (4096, 8192))
    clock = VirtualClock()
    (prefill, _), (decode, _) = (d.fleet(clock, 1) for d in (small, large))
    fleet = Fleet(clock, decode._engines, prefill._engines, FrontEnd(0, FrontEndCost(0, 0, 0)), lambda n: 0.0)
    with pytest.raises(RequestTooLong):
        fleet.arrive(job(0, 5000, 10))
    assert fleet.next_event() is None


LOCKSTEP = Deployment(DeploymentConfig(layout="DEP4", skew=1.0), MACHINE)
RANK = st.tuples(
    st.sampled_from([0, 1, 8, 64]),
    st.sampled_from([100, 30_000, 900_000]),
    st.sampled_from([0, 100, 1000, 4000]),
    st.sampled_from([0, 30_000, 500_000]),
)


def rank_rows(decodes, position, prefill, start):
    """A rank that decodes so many sequences at a position, and prefills a middle chunk from another on."""
    work = LOCKSTEP.work
    verified = work.sums_of([position] * decodes, 6)
    return RankRows(verified + work.sums(start, prefill), verified, 6 * decodes, decodes)


def step_seconds(ranks):
    shape = joint_shape([rank_rows(*rank) for rank in ranks], LOCKSTEP.work.load)
    return LOCKSTEP.step_time(shape, LOCKSTEP.layout).seconds


@given(st.lists(RANK, min_size=4, max_size=4), st.sampled_from([(1, 0), (8, 0), (0, 1), (0, 500)]))
@settings(max_examples=150, deadline=None)
def test_more_work_on_a_rank_makes_no_step_of_all_faster(ranks, more):
    """Which rank is busiest is found by FLOPs, which is not quite time: hence one per cent."""
    decodes, position, prefill, start = ranks[0]
    busier = [(decodes + more[0], position, prefill + more[1], start), *ranks[1:]]
    assert step_seconds(busier) >= 0.99 * step_seconds(ranks)


def test_a_prefill_on_one_rank_does_not_hide_decodes_on_another():
    """All ranks wait for each other in every layer, and behind the last source only the decodes go on."""
    decodes, prefill, nothing = (64, 100_000, 0, 0), (0, 0, 4000, 0), (0, 0, 0, 0)
    together = step_seconds([decodes, prefill, nothing, nothing])
    assert together > step_seconds([nothing, prefill, nothing, nothing]) + 0.4 * step_seconds(
        [decodes, nothing, nothing, nothing]
    )


def test_energy_is_power_times_time():
    deployment = Deployment(DeploymentConfig(layout="TP4"))
    empty = outcome(deployment, 1, [], ({}, {}, 1), 10.0)
    planned = Planned(
        deployment.config, replace(empty, total=1000.0, limits={"memory": 0.1}), watts=2000.0, price=3.0
    )
    facts = planned.as_json()
    seconds, accelerators = 3600.0, 4
    tokens = 1000.0 * accelerators * seconds
    assert facts["tokens_per_joule"] * 2000.0 * accelerators * seconds == pytest.approx(tokens)
    assert facts["tokens_per_dollar"] * 3.0 * accelerators == pytest.approx(tokens)
