"""What must hold for any work on any machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.errors import InvalidValue
from flashpoint.hardware.collectives import exchange_seconds
from flashpoint.hardware.cost import CostOptions, StepPricer
from flashpoint.hardware.machine import load_machine, machine_names
from flashpoint.models.work import Exchange, KernelWork, StepWork

MACHINES = st.sampled_from(machine_names()).map(load_machine)
AMOUNTS = st.floats(0, 1e12)
KERNELS = st.builds(
    KernelWork,
    flops=st.dictionaries(st.sampled_from(["fp4", "fp8", "bf16", "fp32"]), st.floats(0, 1e15), max_size=3),
    weight_bytes=AMOUNTS,
    cache_bytes=AMOUNTS,
    activation_bytes=AMOUNTS,
    host_bytes=st.floats(0, 1e9),
    kernels=st.integers(0, 1000),
)
EXCHANGES = st.builds(
    Exchange,
    kind=st.sampled_from(["all_to_all", "all_reduce", "all_gather", "reduce_scatter"]),
    bytes=st.floats(0, 1e9),
    ranks=st.integers(1, 128),
    count=st.integers(0, 100),
)
WORK = st.builds(
    StepWork,
    kernels=st.dictionaries(st.sampled_from(["moe", "attention", "gemm", "head"]), KERNELS, max_size=4),
    exchanges=st.lists(EXCHANGES, max_size=3).map(tuple),
)
OPTIONS = st.builds(CostOptions, st.booleans(), st.booleans(), st.booleans())


@given(WORK, MACHINES, OPTIONS)
@settings(max_examples=150, deadline=None)
def test_a_step_is_no_faster_than_any_limit(work, machine, options):
    time = StepPricer(machine, options)(work)
    assert time.seconds >= max(time.floors["memory"], time.floors["host"]) * (1 - 1e-9)
    assert time.seconds >= time.floors["link"] * (1 - 1e-9) or any(
        e.ranks < 2 or e.ranks > machine.domain for e in work.exchanges
    )
    assert time.seconds == pytest.approx(sum(time.resources.values()), rel=1e-9, abs=1e-12)


@given(WORK, MACHINES, OPTIONS, st.floats(1, 10))
@settings(max_examples=150, deadline=None)
def test_a_better_machine_is_never_slower(work, machine, options, factor):
    before = StepPricer(machine, options)(work).seconds
    for name in (
        "memory_bandwidth",
        "link_bandwidth",
        "nic_bandwidth",
        "host_bandwidth",
        "fp4",
        "fp8",
        "bf16",
        "fp32",
    ):
        better = replace(machine, **{name: getattr(machine, name) * factor})
        assert StepPricer(better, options)(work).seconds <= before * (1 + 1e-9)
    for name in (
        "memory_ramp",
        "math_ramp",
        "kernel_latency",
        "moe_kernel_latency",
        "all_reduce_latency",
        "all_to_all_latency",
        "gather_latency",
        "link_latency",
        "nic_latency",
        "step_overhead",
    ):
        better = replace(machine, **{name: 0.0})
        assert StepPricer(better, options)(work).seconds <= before * (1 + 1e-9)


@given(WORK, MACHINES)
@settings(max_examples=100, deadline=None)
def test_ends_of_ranges_and_switches(work, machine):
    slow, middle, fast = (
        StepPricer(machine.at(end), CostOptions())(work).seconds for end in ("slow", "middle", "fast")
    )
    assert slow >= middle * (1 - 1e-9) >= fast * (1 - 1e-9) ** 2
    assert StepPricer(machine, CostOptions(graphs=False))(work).seconds >= middle
    assert StepPricer(machine, CostOptions(early_loads=True))(work).seconds <= middle * (1 + 1e-9)


@given(EXCHANGES, MACHINES, st.floats(1, 100))
def test_exchanges(exchange, machine, factor):
    alone = exchange_seconds(replace(exchange, ranks=1), machine)
    assert alone == 0.0
    more = exchange_seconds(replace(exchange, bytes=exchange.bytes * factor), machine)
    assert more >= exchange_seconds(exchange, machine)
    twice = exchange_seconds(replace(exchange, count=2 * exchange.count), machine)
    assert twice == pytest.approx(2 * exchange_seconds(exchange, machine))


def test_beyond_the_domain_the_nic_counts():
    machine = load_machine("h100")
    inside = exchange_seconds(Exchange("all_to_all", 1e8, 8, 1), machine)
    beyond = exchange_seconds(Exchange("all_to_all", 1e8, 16, 1), machine)
    assert beyond > 5 * inside


def test_a_missing_precision_runs_in_the_next():
    work = StepWork({"moe": KernelWork({"fp4": 1e15})})
    wider = StepWork({"moe": KernelWork({"fp8": 1e15})})
    machine = load_machine("h100")
    assert machine.fp4 == 0
    times = [StepPricer(machine, CostOptions())(each) for each in (work, wider)]
    assert replace(times[0], counts=times[1].counts) == times[1]


def by_hand(**changes):
    numbers = {
        "memory_bandwidth": 1e12,
        "fp8": 1e15,
        "memory_share": 0.5,
        "memory_ramp": 1e6,
        "math_share_fp8": 0.5,
        "math_ramp": 3e-6,
        "kernel_latency": 1e-6,
        "step_overhead": 0.0,
    }
    return replace(load_machine("gb300-nvl72"), **numbers | changes)


def test_by_hand():
    pricer = StepPricer(by_hand(), CostOptions())
    memory_bound = StepWork({"gemm": KernelWork({"fp8": 1e9}, weight_bytes=1e9, kernels=10)})
    time = pricer(memory_bound)
    # 1 GB and ten ramps of 1 MB at half of 1 TB/s; ten latencies.
    assert time.seconds == pytest.approx(2e-3 + 20e-6 + 10e-6)
    assert time.resources["memory"] == pytest.approx(2e-3)
    assert time.binding == "memory"
    assert time.floors["memory"] == pytest.approx(1e-3)
    math_bound = StepWork({"gemm": KernelWork({"fp8": 1e12}, weight_bytes=1e6, kernels=10)})
    assert pricer(math_bound).seconds == pytest.approx(2e-3 + 30e-6 + 10e-6)
    assert pricer(math_bound).binding == "math"


def test_weights_load_early_and_caches_do_not():
    early = StepPricer(by_hand(kernel_latency=1e-3), CostOptions(early_loads=True))
    weights = StepWork({"gemm": KernelWork(weight_bytes=1e9, kernels=10)})
    assert early(weights).seconds == pytest.approx(10e-3), "2 ms of weights behind ten waits of 1 ms"
    caches = StepWork({"attention": KernelWork(cache_bytes=1e9, kernels=10)})
    assert early(caches).seconds == pytest.approx(10e-3 + 2e-3)


def test_a_machine_without_links_refuses_ranks():
    with pytest.raises(InvalidValue, match="no link between accelerators"):
        exchange_seconds(Exchange("all_reduce", 1e6, 2, 1), by_hand(link_bandwidth=0.0))
    with pytest.raises(InvalidValue, match="links for 8 only and no NIC"):
        exchange_seconds(Exchange("all_reduce", 1e6, 16, 1), by_hand(domain=8, nic_bandwidth=0.0))
