"""How long an exchange between ranks takes.

Inside a scale-up domain all ranks reach each other at link speed; beyond it at the NIC's. An all-reduce takes
the faster of one shot (every rank sends all to all others) and two phases (reduce-scatter and all-gather).
"""

from __future__ import annotations

from flashpoint.hardware.machine import Machine
from flashpoint.models.work import Exchange


def exchange_seconds(exchange: Exchange, machine: Machine) -> float:
    """Seconds of all `exchange.count` exchanges, one after the other; 0 for a single rank."""
    ranks = exchange.ranks
    if ranks < 2:
        return 0.0
    speed, hop = _speed_and_latency(ranks, machine)
    if exchange.kind == "all_reduce":
        one_shot = hop + (ranks - 1) * exchange.bytes / speed
        two_phases = 2 * hop + 2 * (ranks - 1) / ranks * exchange.bytes / speed
        return exchange.count * (machine.exchange_latency + min(one_shot, two_phases))
    moved = exchange.bytes if exchange.kind == "all_to_all" else (ranks - 1) / ranks * exchange.bytes
    return exchange.count * (machine.exchange_latency + hop + moved / speed)


def transfer_seconds(exchange: Exchange, machine: Machine) -> float:
    """Of an all-to-all, the seconds in which bytes move; the rest is latency."""
    if exchange.ranks < 2:
        return 0.0
    return exchange.count * exchange.bytes / _speed_and_latency(exchange.ranks, machine)[0]


def _speed_and_latency(ranks: int, machine: Machine) -> tuple[float, float]:
    within = ranks <= machine.domain
    speed = machine.link_bandwidth if within else machine.nic_bandwidth
    return speed * machine.link_share, machine.link_latency if within else machine.nic_latency
