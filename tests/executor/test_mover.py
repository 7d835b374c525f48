"""Blocks between device, host memory and disk: every byte where the plan says, and nowhere else."""

import resource
import signal
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.cache.chain_hash import KEY_BYTES
from flashpoint.cache.disk_store import DiskStore
from flashpoint.cache.transfer import Fetch, Load, Remove, Run, Save, Store
from flashpoint.engine.plan import WAIT_SECONDS
from flashpoint.executor.mover import Mover

BLOCKS, HOST_BLOCKS, BLOCK_TOKENS = 9, 7, 2
WIDTHS = (5, 1, 12)  # bytes of a block in each pool: odd, narrow, even
BLOCK_BYTES = sum(WIDTHS)


def open_disk(folder, block_bytes=BLOCK_BYTES):
    return DiskStore(folder, BLOCK_TOKENS, block_bytes, b"format")


def pools(seed):
    """Device pools, made as a model's are: in-place writes from another thread must be allowed on them."""
    rng = np.random.default_rng(seed)
    with torch.inference_mode():
        return [torch.from_numpy(rng.integers(0, 256, (BLOCKS, w)).astype(np.uint8)).clone() for w in WIDTHS]


def rows_of(device):
    """Device blocks as bytes, all pools side by side."""
    return [row.tobytes() for row in torch.cat(device, dim=1).numpy()]


def ids(*blocks):
    return np.array(blocks, dtype=np.int32)


def run_of(number, blocks):
    key = number.to_bytes(KEY_BYTES, "big")
    return Run(key, bytes(KEY_BYTES), b"", np.full(blocks * BLOCK_TOKENS, number, dtype=np.int32))


def finish(mover, count, seconds=20):
    """Wait for `count` transfers: errors by transfer id."""
    landed, end = {}, time.monotonic() + seconds
    while len(landed) < count:
        assert time.monotonic() < end, f"only {sorted(landed)} of {count} landed"
        for item in mover.landed(wait=True):
            assert item.transfer_id not in landed, "landed twice"
            landed[item.transfer_id] = item.error
    return landed


class Model:
    """What dicts say the tiers hold, and the mover that must agree. It keeps the control plane's rule: a
    block or a run is in one transfer at a time."""

    def __init__(self, folder, seed):
        self.pools = pools(seed)
        self.disk_store = open_disk(folder)
        self.mover = Mover(self.pools, HOST_BLOCKS, self.disk_store)
        self.device = dict(enumerate(rows_of(self.pools)))
        self.host = {}
        self.disk = {}
        self.busy = {}
        self.started = 0
        self.batch = []

    def begin(self, make, *things):
        """Start a transfer that has `things` to itself, once all before it on them have landed."""
        if any(thing in self.busy.values() for thing in things):
            self.settle()
        self.started += 1
        self.busy.update({(self.started, n): thing for n, thing in enumerate(things)})
        self.batch.append(make(self.started))

    def settle(self):
        self.mover.start(self.batch)
        self.batch = []
        count = len({number for number, _ in self.busy})
        assert all(error is None for error in finish(self.mover, count).values())
        self.busy = {}

    def save(self, device, host):
        self.begin(
            lambda n: Save(n, ids(*device), ids(*host)), *blocks("device", device), *blocks("host", host)
        )
        self.host.update({h: self.device[d] for d, h in zip(device, host, strict=True)})

    def load(self, host, device):
        self.begin(
            lambda n: Load(n, ids(*host), ids(*device)), *blocks("device", device), *blocks("host", host)
        )
        self.device.update({d: self.host[h] for d, h in zip(device, host, strict=True)})

    def store(self, host, number):
        run = run_of(number, len(host))
        self.begin(lambda n: Store(n, ids(*host), run), *blocks("host", host), ("disk", number))
        self.disk[number] = [self.host[h] for h in host]

    def fetch(self, number, first, host):
        key = run_of(number, 1).key
        self.begin(lambda n: Fetch(n, key, first, ids(*host)), *blocks("host", host), ("disk", number))
        self.host.update(zip(host, self.disk[number][first : first + len(host)], strict=True))

    def remove(self, number):
        self.begin(lambda n: Remove(n, run_of(number, 1).key), ("disk", number))
        self.disk.pop(number)

    def check(self):
        self.settle()
        assert dict(enumerate(rows_of(self.pools))) == self.device
        assert {int.from_bytes(run.key, "big") for run in self.disk_store.scan()} == set(self.disk)


def blocks(tier, numbers):
    return [(tier, number) for number in numbers]


def distinct(data, pool, count):
    return data.draw(st.permutations(sorted(pool)))[:count]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_moves_leave_each_block_where_the_plan_says(tmp_path_factory, data, seed):
    model = Model(tmp_path_factory.mktemp("runs"), seed)
    try:
        for number in range(data.draw(st.integers(1, 25))):
            count = data.draw(st.integers(1, 4))
            held = distinct(data, model.host, count)
            match data.draw(st.sampled_from(["save", "load", "store", "fetch", "remove", "poison", "check"])):
                case "load" if held:
                    model.load(held, distinct(data, range(BLOCKS), len(held)))
                case "store" if held:
                    model.store(held, number)
                case "fetch" if model.disk:
                    run = data.draw(st.sampled_from(sorted(model.disk)))
                    first = data.draw(st.integers(0, len(model.disk[run]) - 1))
                    length = data.draw(st.integers(1, len(model.disk[run]) - first))
                    model.fetch(run, first, distinct(data, range(HOST_BLOCKS), length))
                case "remove" if model.disk:
                    model.remove(data.draw(st.sampled_from(sorted(model.disk))))
                case "poison":
                    model.settle()
                    block = data.draw(st.integers(0, BLOCKS - 1))
                    with torch.inference_mode():
                        for pool in model.pools:
                            pool[block] = 0xA5
                    model.device[block] = b"\xa5" * BLOCK_BYTES
                case "check":
                    model.check()
                case _:
                    model.save(
                        distinct(data, range(BLOCKS), count), distinct(data, range(HOST_BLOCKS), count)
                    )
        for host in sorted(model.host):  # what the host pool holds is seen on the device
            model.load([host], [0])
            model.check()
    finally:
        model.mover.close()


def test_copies_keep_the_order_they_were_given_in():
    """Block 0 travels through all others by one host block: a copy out of turn carries another's bytes."""
    device = pools(3)
    before = rows_of(device)
    mover = Mover(device, 1, None)
    moves = []
    for at in range(BLOCKS - 1):
        moves += [Save(2 * at, ids(at), ids(0)), Load(2 * at + 1, ids(0), ids(at + 1))]
    mover.start(moves)
    assert list(finish(mover, len(moves)).items()) == [(n, None) for n in range(len(moves))]
    assert rows_of(device) == [before[0]] * BLOCKS
    mover.close()


def test_other_blocks_may_be_computed_meanwhile():
    """The step loop writes even blocks of the pools while odd ones are loaded into them."""
    count, width = 64, 4099
    with torch.inference_mode():
        pool = torch.zeros(count, width, dtype=torch.uint8)
    mover = Mover([pool], count, None)
    odd, even = np.arange(1, count, 2, dtype=np.int32), torch.arange(0, count, 2)
    for value in range(1, 60):
        with torch.inference_mode():
            pool[odd] = value
        mover.start([Save(2 * value, odd, odd)])
        finish(mover, 1)
        with torch.inference_mode():
            pool[odd] = 0xA5
            mover.start([Load(2 * value + 1, odd, odd)])
            for other in range(4):
                pool[even] = value + other
        finish(mover, 1)
        assert (pool[odd] == value).all() and (pool[even] == value + 3).all()
    mover.close()


def test_waiting_ends_when_something_lands_or_after_a_while():
    mover = Mover(pools(0), HOST_BLOCKS, None)
    began = time.monotonic()
    assert mover.landed() == ()
    assert time.monotonic() - began < WAIT_SECONDS / 2
    assert mover.landed(wait=True) == ()
    assert time.monotonic() - began >= WAIT_SECONDS * 0.9
    mover.start([Save(1, ids(0), ids(0))])
    assert [item.transfer_id for item in mover.landed(wait=True)] == [1]
    mover.close()


def test_a_transfer_that_fails_lands_with_its_cause_and_the_next_ones_go_on(tmp_path):
    mover = Mover(pools(1), HOST_BLOCKS, open_disk(tmp_path))
    stored = run_of(1, 2)
    mover.start([Save(0, ids(1, 2), ids(0, 1))])
    finish(mover, 1)
    mover.start([Store(1, ids(0, 1), stored)])
    finish(mover, 1)
    (path,) = tmp_path.glob("*/*.run")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    mover.start(
        [
            Fetch(2, run_of(9, 1).key, 0, ids(3)),
            Fetch(3, stored.key, 1, ids(3)),
            Fetch(4, stored.key, 0, ids(3)),
            Save(5, ids(BLOCKS), ids(0)),
            Load(6, ids(HOST_BLOCKS), ids(0)),
            Save(7, ids(4), ids(4)),
            Store(8, ids(0, 1), stored),
            Fetch(9, stored.key, 0, ids(5, 6)),
        ]
    )
    errors = finish(mover, 8)
    assert "No such file" in errors[2]
    assert "block 1" in errors[3] and "checksum" in errors[3] and str(path) in errors[3]
    assert "No such file" in errors[4], "a damaged run was read again"
    assert "IndexError" in errors[5] and "IndexError" in errors[6]
    assert [errors[n] for n in (7, 8, 9)] == [None] * 3
    mover.close()


def test_a_full_disk_is_an_error_of_that_transfer_alone(tmp_path):
    """As in the disk store's own test, the size limit of files stands for the full disk."""
    with torch.inference_mode():
        wide = [torch.full((1, 2**16), 3, dtype=torch.uint8)]
    mover = Mover(wide, 1, open_disk(tmp_path, block_bytes=2**16))
    mover.start([Save(0, ids(0), ids(0))])
    finish(mover, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        mover.start([Store(1, ids(0), run_of(1, 1))])
        (error,) = finish(mover, 1).values()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "File too large" in error
    assert not list(tmp_path.glob("*/*.run*"))
    mover.start([Store(2, ids(0), run_of(1, 1))])
    assert finish(mover, 1) == {2: None}
    mover.close()


def test_a_disk_transfer_without_a_disk_is_an_error():
    mover = Mover(pools(2), HOST_BLOCKS, None)
    mover.start([Remove(1, run_of(1, 1).key)])
    assert "no disk tier" in finish(mover, 1)[1]
    mover.close()


def test_closing_finishes_what_was_started_and_frees_the_folder(tmp_path):
    threads = threading.active_count()
    mover = Mover(pools(4), HOST_BLOCKS, open_disk(tmp_path))
    mover.start([Save(0, ids(0), ids(0))])
    finish(mover, 1)
    mover.start([Store(number, ids(0), run_of(number, 1)) for number in range(1, 30)])
    mover.close()
    assert threading.active_count() == threads
    assert [(item.transfer_id, item.error) for item in mover.landed()] == [(n, None) for n in range(1, 30)]
    again = open_disk(tmp_path)
    assert len(again.scan()) == 29
    again.close()


@pytest.mark.parametrize("blocks_at_once", [1, BLOCKS])
def test_blocks_are_copied_pairwise_and_the_rest_is_untouched(blocks_at_once):
    device = pools(5)
    before = rows_of(device)
    mover = Mover(device, BLOCKS, None)
    order = np.random.default_rng(6).permutation(BLOCKS).astype(np.int32)[:blocks_at_once]
    target = order[::-1].copy()
    mover.start([Save(1, order, order), Load(2, order, target)])
    finish(mover, 2)
    expected = list(before)
    for source, place in zip(order, target, strict=True):
        expected[place] = before[source]
    assert rows_of(device) == expected
    mover.close()
