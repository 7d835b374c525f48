"""How long an exchange between ranks takes.

Inside a scale-up domain all ranks reach each other at link speed; beyond it at the NIC's. An all-reduce takes
the faster of one shot (every rank sends all to all others) and two phases (reduce-scatter and all-gather).
"""

from __future__ import annotations

from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import Machine
from flashpoint.models.work import Exchange


def exchange_seconds(exchange: Exchange, machine: Machine) -> float:
    """Seconds of all `exchange.count` exchanges, one after the other; 0 for a single rank. Launches excluded.

    Raises InvalidValue where the machine has no way to that many ranks.
    """
    ranks = exchange.ranks
    if ranks < 2:
        return 0.0
    bandwidth, hop = _reach(ranks, machine)
    if exchange.kind == "all_reduce":
        speed = bandwidth * machine.all_reduce_share
        one_shot = hop + (ranks - 1) * exchange.bytes / speed
        two_phases = 2 * hop + 2 * (ranks - 1) / ranks * exchange.bytes / speed
        return exchange.count * (machine.all_reduce_latency + min(one_shot, two_phases))
    if exchange.kind == "all_to_all":
        return exchange.count * (machine.all_to_all_latency + hop) + transfer_seconds(exchange, machine)
    moved = (ranks - 1) / ranks * exchange.bytes
    return exchange.count * (machine.gather_latency + hop + moved / (bandwidth * machine.gather_share))


def transfer_seconds(exchange: Exchange, machine: Machine) -> float:
    """Of all-to-alls, the seconds in which bytes move; the rest is latency. Raises as `exchange_seconds`."""
    if exchange.ranks < 2:
        return 0.0
    bandwidth, _ = _reach(exchange.ranks, machine)
    return exchange.count * exchange.bytes / (bandwidth * machine.all_to_all_share)


def copy_seconds(copied: float, accelerators: int, machine: Machine) -> float:
    """Seconds in which `copied` bytes go from one accelerator to another of `accelerators`.

    Raises as `exchange_seconds`.
    """
    bandwidth, hop = _reach(accelerators, machine)
    return machine.gather_latency + hop + copied / (bandwidth * machine.gather_share)


def check_reach(ranks: int, machine: Machine) -> None:
    """Raise InvalidValue where the machine cannot join `ranks` accelerators."""
    if ranks > 1:
        _reach(ranks, machine)


def _reach(ranks: int, machine: Machine) -> tuple[float, float]:
    """(bytes/s, s a hop) of the network that joins so many."""
    within = ranks <= machine.domain
    bandwidth = machine.link_bandwidth if within else machine.nic_bandwidth
    if not bandwidth:
        what = "no link between accelerators" if within else f"links for {machine.domain} only and no NIC"
        raise InvalidValue("ranks", ranks, f"fewer: {machine.name} has {what}")
    return bandwidth, machine.link_latency if within else machine.nic_latency
