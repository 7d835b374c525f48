"""Machines as data: every number has a source, and bad files are refused by name."""

from __future__ import annotations

import json

import pytest

from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import NUMBERS, load_machine, machine_names

# (FP8 PF, memory bandwidth TB/s, link GB/s, domain) of spec hardware.json.
SPEC = {
    "h100": (1.979, 3.35, 450, 8),
    "h200": (1.979, 4.8, 450, 8),
    "b200": (4.5, 8.0, 900, 8),
    "gb200-nvl72": (5.0, 8.0, 900, 72),
    "b300": (4.5, 8.0, 900, 8),
    "gb300-nvl72": (5.0, 8.0, 900, 72),
    "vr200-nvl72": (17.5, 22.0, 1800, 72),
    "vr200-nvl72-implied": (17.5, 19.2, 1530, 72),
    "mi355x": (5.033, 8.0, 576, 8),
}


@pytest.mark.parametrize("name", machine_names())
def test_every_number_has_a_source(name):
    machine = load_machine(name)
    assert set(machine.numbers) == set(NUMBERS)
    for field, number in machine.numbers.items():
        assert number.source.strip()
        if number.kind == "prior":
            assert number.low < number.high, field
    assert isinstance(machine.domain, int)


@pytest.mark.parametrize("name", SPEC)
def test_peaks_are_the_published_ones(name):
    m = load_machine(name)
    fp8, bandwidth, link, domain = SPEC[name]
    assert (m.fp8 / 1e15, m.memory_bandwidth / 1e12, m.link_bandwidth / 1e9, m.domain) == pytest.approx(
        (fp8, bandwidth, link, domain)
    )


@pytest.mark.parametrize("name", machine_names())
def test_ends_of_ranges_are_ordered(name):
    slow, middle, fast = (load_machine(name).at(end) for end in ("slow", "middle", "fast"))
    assert middle == load_machine(name)
    assert slow.memory_share <= middle.memory_share <= fast.memory_share
    assert slow.kernel_latency >= middle.kernel_latency >= fast.kernel_latency
    assert slow.all_to_all_latency > fast.all_to_all_latency


def changed(tmp_path, change):
    profile = load_machine("h100").as_json()
    change(profile)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(profile))
    return str(path)


def test_a_machine_of_one_s_own(tmp_path):
    def faster(profile):
        profile["name"] = "mine"
        profile["numbers"]["memory_bandwidth"]["value"] = 5e12

    machine = load_machine(changed(tmp_path, faster))
    assert (machine.name, machine.memory_bandwidth) == ("mine", 5e12)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda p: p["numbers"].pop("fp8"), "fp8"),
        (lambda p: p["numbers"].update(fp16={"value": 1, "kind": "published", "source": "abc"}), "fp16"),
        (lambda p: p["numbers"]["fp8"].update(value=-1), "numbers.fp8.value"),
        (lambda p: p["numbers"]["fp8"].update(source=""), "numbers.fp8.source"),
        (lambda p: p["numbers"]["fp8"].update(kind="guess"), "numbers.fp8.kind"),
        (lambda p: p["numbers"]["moe_memory_share"].pop("low"), "numbers.moe_memory_share"),
        (lambda p: p["numbers"]["moe_memory_share"].update(low=0.9, high=0.95), "numbers.moe_memory_share"),
        (lambda p: p.update(colour="red"), "colour"),
    ],
)
def test_a_bad_profile_names_the_field(tmp_path, change, named):
    path = changed(tmp_path, change)
    with pytest.raises(InvalidValue) as caught:
        load_machine(path)
    assert path in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', ""])
def test_what_is_no_profile(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=r"x\.json"):
        load_machine(str(path))


def test_an_unknown_machine_lists_the_known():
    with pytest.raises(InvalidValue, match="gb300-nvl72"):
        load_machine("gb400")
