"""The cache against a simple model: no wrong hit, no leak, no orphan, whatever happens in whatever order."""

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flashpoint.cache.block_cache import BlockCache
from flashpoint.cache.chain_hash import chain_keys, root_key
from flashpoint.cache.transfer import Fetch, Remove, Run, Store
from tests.cache.memory import Memory, chain, check

BLOCK = 2
WHICH = st.integers(0, 5)


class CacheMachine(RuleBasedStateMachine):
    """Sequences over a tiny alphabet of blocks, so that they share prefixes, fork and repeat."""

    @initialize(
        blocks=st.integers(4, 14), host=st.sampled_from([0, 3, 8, 20]), disk=st.sampled_from([0, 5, 30])
    )
    def make(self, blocks, host, disk):
        self.sizes = blocks, host, disk if host else 0
        self.memory = Memory()
        self.cache = self.fresh(())
        self.leases = []  # [lease, namespace, content, computed tokens]

    def fresh(self, stored):
        blocks, host, disk = self.sizes
        return BlockCache(blocks, BLOCK, host_blocks=host, disk_blocks=disk, stored=stored)

    @rule(blocks=st.lists(st.integers(0, 1), min_size=1, max_size=8), namespace=st.sampled_from([b"", b"x"]))
    def acquire(self, blocks, namespace):
        content = np.repeat(np.array(blocks, dtype=np.int32), BLOCK)
        lease = self.cache.acquire(namespace, content, len(blocks) + 1, least_hit=1)
        if lease is None:
            idle = not self.leases and not self.cache.in_flight
            assert not idle or len(blocks) + 1 > self.sizes[0], "nothing runs or moves, and still no room"
            return
        assert len(lease.table) == len(blocks) + 1
        hit = lease.hit_blocks
        found = [self.memory.device[b] for b in lease.table.values[:hit].tolist()]
        assert found == chain(content, BLOCK, namespace)[:hit], "a wrong hit"
        self.leases.append([lease, namespace, content, hit * BLOCK])

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, tokens=st.integers(1, 9))
    def compute(self, which, tokens):
        """Write the next blocks as a step does, and publish them."""
        entry = self.leases[which % len(self.leases)]
        lease, namespace, content, computed = entry
        end = min(computed + tokens, len(content))
        expected = chain(content, BLOCK, namespace)
        for index in range(computed // BLOCK, end // BLOCK):
            assert index >= lease.shared, "a sequence writes to a block that it shares"
            self.memory.device[int(lease.table.values[index])] = expected[index]
        entry[3] = end
        self.cache.publish(lease, content[:end])

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, more=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def decode(self, which, more):
        entry = self.leases[which % len(self.leases)]
        longer = np.concatenate([entry[2], np.repeat(np.array(more, dtype=np.int32), BLOCK)])
        blocks = len(longer) // BLOCK + 1
        could = self.cache.could_grow(entry[0], blocks)
        if self.cache.grow(entry[0], blocks):
            assert could
            entry[2] = longer

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, sound=st.booleans())
    def release(self, which, sound):
        lease = self.leases.pop(which % len(self.leases))[0]
        self.cache.release(lease, sound)

    @rule(blocks=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def read_ahead(self, blocks):
        self.cache.read_ahead(b"", np.repeat(np.array(blocks, dtype=np.int32), BLOCK))

    @rule()
    def unpin(self):
        self.cache.unpin()

    @rule()
    def start(self):
        self.memory.start(self.cache.take_transfers())

    @precondition(lambda self: self.memory.started)
    @rule(fails=st.sampled_from([False, False, False, True]), on_disk=st.booleans())
    def land(self, fails, on_disk):
        """Copies land in their order and disk work in its own; the two lines do not wait for each other."""
        line = [
            i for i, t in enumerate(self.memory.started) if isinstance(t, Store | Fetch | Remove) == on_disk
        ]
        if line:
            self.cache.land([self.memory.land(line[0], "broken" if fails else None)])

    @rule()
    def restart(self):
        """The process dies: memory is lost, and what disk holds is found again."""
        self.leases = []
        self.memory = Memory(self.memory.disk)
        self.cache = self.fresh([run for run, _ in self.memory.disk.values()])
        self.start()
        while self.memory.started:
            self.cache.land([self.memory.land()])
        assert set(self.memory.disk) == set(self.cache._tiers._run_blocks)

    @invariant()
    def holds(self):
        check(self.cache, [entry[0] for entry in self.leases], self.memory)

    def teardown(self):
        if not hasattr(self, "leases"):
            return
        for entry in self.leases:
            self.cache.release(entry[0])
        self.cache.unpin()
        for _ in range(50):
            self.start()
            while self.memory.started:
                self.cache.land([self.memory.land()])
        check(self.cache, [], self.memory)
        assert self.cache.free_blocks == self.sizes[0]


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def drive(seed: int, operations: int) -> CacheMachine:
    """Long random lives of sessions that come back, which the state machine above seldom draws."""
    rng = random.Random(seed)
    machine = CacheMachine()
    machine.make(rng.randint(6, 14), rng.choice([0, 2, 5, 9]), rng.choice([0, 6, 12, 40]))
    sessions = [[0], [1], [2, 0], [2, 1]]

    def blocks():
        """A session's next turn: as before, a little longer, or with another ending."""
        which = rng.randrange(len(sessions))
        kept = sessions[which][: rng.choice([99, 99, 99, rng.randint(1, 8)])]
        sessions[which] = kept = (kept + [rng.randint(0, 2) for _ in range(rng.randint(0, 2))])[:9]
        return kept

    def land():
        for _ in range(rng.randint(1, 6)):
            if machine.memory.started:
                machine.land(rng.random() < 0.03, rng.random() < 0.5)

    def compute():
        if machine.leases:
            machine.compute(rng.randint(0, 5), rng.choice([3, 18]))

    moves = {
        "acquire": (4, lambda: machine.acquire(blocks(), rng.choice([b""] * 9 + [b"x"]))),
        "compute": (4, compute),
        "decode": (1, lambda: machine.leases and machine.decode(rng.randint(0, 5), [rng.randint(0, 2)])),
        "release": (3, lambda: machine.leases and machine.release(rng.randint(0, 5), rng.random() < 0.9)),
        "read_ahead": (1, lambda: machine.read_ahead(blocks())),
        "unpin": (0.3, machine.unpin),
        "start": (4, machine.start),
        "land": (4, land),
        "restart": (0.03, machine.restart),
    }
    weights = [weight for weight, _ in moves.values()]
    for _ in range(operations):
        rng.choices([move for _, move in moves.values()], weights)[0]()
        machine.holds()
    machine.teardown()
    return machine


@pytest.mark.parametrize("seed", range(60))
def test_long_lives(seed):
    drive(seed, 250)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_very_long_lives():
    for seed in range(1000, 1300):
        drive(seed, 2000)


def test_runs_that_overlap_are_found_again_as_one_chain():
    """Two files may begin alike; each block is read from a file that has it, and orphans are removed."""
    content = np.repeat(np.arange(5, dtype=np.int32), BLOCK)
    keys = chain_keys(root_key(b""), content, BLOCK)

    def run(first, end):
        parent = keys[first - 1] if first else root_key(b"")
        return Run(keys[end - 1], parent, b"", content[first * BLOCK : end * BLOCK])

    runs = [run(2, 5), run(0, 3), run(0, 2), Run(b"lost", b"nobody", b"", content)]
    expected = chain(content, BLOCK)
    memory = Memory(
        {
            r.key: (r, expected[slice(*span)])
            for r, span in zip(runs[:3], [(2, 5), (0, 3), (0, 2)], strict=True)
        }
    )
    cache = BlockCache(8, BLOCK, host_blocks=8, disk_blocks=20, stored=runs)
    check(cache, [], memory)
    lease = None
    while lease is None:
        lease = cache.acquire(b"", content, 6, 1)
        memory.start(cache.take_transfers())
        while memory.started:
            cache.land([memory.land()])
    assert lease.hits_by_tier == (0, 0, 5)
    assert [memory.device[block] for block in lease.table.values[:5].tolist()] == expected
    assert b"lost" not in cache._tiers._run_blocks


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_state_machine_for_long():
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=1000, stateful_step_count=150, deadline=None)
    )
