"""What fits, what does not, and single steps against the spec's estimates (performance-model.md 5, 6, 9b)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import load_machine
from flashpoint.models.work import StepShape
from flashpoint.parallel.layout import parse_layout
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment


def deployment(**options) -> Deployment:
    return Deployment(DeploymentConfig(**options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layout": "TP1"}, "weights"),
        ({"layout": "DEP2", "hardware": "h100"}, "weights"),
        ({"layout": "DEP5"}, "divides 384"),
        ({"layout": "TP16"}, "groups"),
        ({"layout": "PP2"}, "TPn"),
        ({"layout": "DEP0"}, "layout"),
        ({"hardware": "gb999"}, "gb300-nvl72"),
        ({"model": "gpt"}, "deepseek-v4.1-flash"),
        ({"replicas": 0}, "replicas"),
        ({"prefill_replicas": 2}, "prefill_layout"),
        ({"prefill_layout": "DEP2"}, "prefill_replicas"),
        ({"routing": "random"}, "routing"),
        ({"acceptance": 9}, "acceptance"),
        ({"skew": 0.5}, "skew"),
        ({"memory_use": 1.5}, "memory_use"),
        ({"block_tokens": 100}, "block_tokens"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, said):
    from flashpoint.hardware.virtual_clock import VirtualClock

    with pytest.raises(InvalidValue) as caught:
        deployment(**options).fleet(VirtualClock(), 0)
    assert said in str(caught.value)


def test_minimax_m3_is_not_built():
    with pytest.raises(NotImplementedError, match="minimax-m3"):
        deployment(model="minimax-m3")


def test_memory_of_dep2():
    """158 GB of weights, about 100 GB for caches: some 750 sessions of 152K (performance-model.md 4)."""
    memory = deployment(layout="DEP2").memory(parse_layout("DEP2"), 4096)
    assert memory.weights / 1e9 == pytest.approx(158, rel=0.01)
    sessions = memory.blocks * 64 / 152_000
    assert 600 < sessions < 900


def decode(per_gpu: int, layout: str, hardware: str, **numbers):
    machine = replace(load_machine(hardware), **numbers)
    made = Deployment(DeploymentConfig(layout=layout, hardware=hardware, skew=1.0), machine)
    spread = parse_layout(layout)
    verify = made.work.sums(152_000, 6)
    sums = made.work.sums(0, 0)
    for _ in range(per_gpu):
        sums = sums + verify
    rows = 6 * per_gpu * spread.dp
    shape = StepShape(sums, sums, 6 * per_gpu, per_gpu, rows, rows)
    return made.step_time(shape, spread), made


@pytest.mark.parametrize(
    ("hardware", "ranks", "per_gpu", "speed", "floor"),
    [
        ("gb300-nvl72", 2, 6, 187, 40e-6),
        ("gb300-nvl72", 2, 64, 105, 40e-6),
        ("gb300-nvl72", 8, 64, 195, 40e-6),
        ("gb300-nvl72", 16, 64, 228, 40e-6),
        ("vr200-nvl72", 2, 64, 282, 30e-6),
        ("vr200-nvl72", 8, 64, 500, 30e-6),
        ("vr200-nvl72", 16, 64, 574, 30e-6),
    ],
)
def test_decode_steps_of_the_spec(hardware, ranks, per_gpu, speed, floor):
    """Section 6 adds up bytes at 85 %, FLOPs at 50 % of the FP8 peak, exchanges at 60 % and a floor for each
    of 43 layers. So added, our counts give its speeds within 15 %. Our own steps are faster: bytes and FLOPs
    of a kernel overlap."""
    fp8 = {precision: load_machine(hardware).fp8 for precision in ("fp4", "bf16")}
    floors = decode(per_gpu, f"DEP{ranks}", hardware, **fp8)[0].floors
    serial = floors["memory"] / 0.85 + floors["math"] / 0.5 + floors["link"] / 0.6 + 43 * floor
    assert 3.51 / serial == pytest.approx(speed, rel=0.15)


def test_the_step_of_section_9b():
    """GB300, EP8, 64 requests a GPU: 11 to 16 ms by the measured MegaMoE."""
    assert 11e-3 < decode(64, "DEP8", "gb300-nvl72")[0].seconds < 16e-3


@pytest.mark.parametrize(("hardware", "published"), [("gb300-nvl72", 826), ("vr200-nvl72", 1810)])
def test_one_session_alone(hardware, published):
    """The published single-session speeds lie within the priors' range, and within 1.35x of its middle."""
    speeds = []
    for end in ("slow", "middle", "fast"):
        made = deployment(layout="TP4", hardware=hardware, end=end)
        sums = made.work.sums(152_000, 6)
        speeds.append(3.51 / made.step_time(StepShape(sums, sums, 6, 1, 6, 6), parse_layout("TP4")).seconds)
    assert speeds[0] < published < speeds[2]
    assert 1 / 1.35 < speeds[1] / published < 1.35


def test_switches_of_the_decode_path():
    """Each switch alone makes a decode step of one sequence faster; all of them together the fastest."""

    def seconds(**switches):
        off = {"fused_reductions": False, "shared_in_routed": False, "early_loads": False}
        made = deployment(layout="TP4", **{**off, **switches})
        sums = made.work.sums(152_000, 6)
        return made.step_time(StepShape(sums, sums, 6, 1, 6, 6), parse_layout("TP4")).seconds

    standard = seconds()
    alone = [seconds(**{name: True}) for name in ("fused_reductions", "shared_in_routed", "early_loads")]
    assert all(value < standard for value in alone)
    assert seconds(fused_reductions=True, shared_in_routed=True, early_loads=True) < min(alone)
    assert seconds(fused_reductions=True) < seconds()


def test_a_prefix_hit_costs_a_hand_over_less():
    made = deployment(layout="DEP8", prefill_layout="DEP8", prefill_replicas=1)
    assert made.hand_over_seconds(0) < made.hand_over_seconds(152_000)
    # 138 MB over 900 GB/s at 48 %: a third of a millisecond, and a latency.
    assert made.hand_over_seconds(152_000) == pytest.approx(138e6 / (900e9 * 0.48) + 11e-6, rel=0.05)


def test_the_machine_can_be_given():
    machine = replace(load_machine("gb300-nvl72"), memory=1e12)
    assert Deployment(DeploymentConfig(layout="TP1"), machine).memory(parse_layout("TP1"), 4096).blocks > 0
