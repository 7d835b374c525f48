"""Files of blocks: what was written comes back, and what did not survive is a miss, never something else."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.cache.chain_hash import KEY_BYTES
from flashpoint.cache.disk_store import MAGIC, DamagedRun, DiskStore
from flashpoint.cache.transfer import Run
from flashpoint.errors import InvalidValue

BLOCK_TOKENS, BLOCK_BYTES = 4, 37


def open_store(folder, format_key=b"format"):
    return DiskStore(folder, BLOCK_TOKENS, BLOCK_BYTES, format_key)


def make(seed, blocks, namespace=b""):
    rng = np.random.default_rng(seed)
    content = rng.integers(-(2**31), 2**31, blocks * BLOCK_TOKENS).astype(np.int32)
    run = Run(rng.bytes(KEY_BYTES), rng.bytes(KEY_BYTES), namespace, content)
    return run, rng.integers(0, 256, (blocks, BLOCK_BYTES)).astype(np.uint8)


def read(store, key, first, count):
    rows = np.full((count, BLOCK_BYTES), 0xA5, dtype=np.uint8)
    store.read(key, first, list(rows))
    return rows


def same(one, other):
    return (one.key, one.parent, one.namespace, one.content.tolist()) == (
        (other.key, other.parent, other.namespace, other.content.tolist())
    )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 9), blocks=st.integers(1, 9), namespace=st.binary(max_size=40), data=st.data())
def test_what_was_written_comes_back_in_any_part(tmp_path_factory, seed, blocks, namespace, data):
    folder = tmp_path_factory.mktemp("runs")
    run, rows = make(seed, blocks, namespace)
    store = open_store(folder)
    store.write(run, rows)
    store.close()
    store = open_store(folder)
    (found,) = store.scan()
    assert same(found, run)
    first = data.draw(st.integers(0, blocks - 1))
    count = data.draw(st.integers(1, blocks - first))
    assert np.array_equal(read(store, run.key, first, count), rows[first : first + count])
    store.remove(run.key)
    store.remove(run.key)
    assert store.scan() == ()
    store.close()


def test_every_damaged_byte_and_every_cut_is_noticed(tmp_path, caplog):
    run, rows = make(1, 2, b"n")
    store = open_store(tmp_path)
    store.write(run, rows)
    (path,) = tmp_path.glob("*/*.run")
    whole = path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(len(whole))]
    damaged += [whole[:i] for i in range(0, len(whole), 7)] + [whole + b"x"]
    for content in damaged:
        path.write_bytes(content)
        if not content.startswith(MAGIC):
            assert store.scan() == () and path.exists(), "not ours any more, so not ours to remove"
            with pytest.raises(DamagedRun):
                read(store, run.key, 0, 2)
            continue
        if store.scan():  # the header is sound, so it is a block
            assert path.exists()
            with pytest.raises(DamagedRun, match="checksum"):
                read(store, run.key, 0, 2)
        assert not path.exists(), "a damaged file stays"
    assert all(str(path) in record.getMessage() for record in caplog.records)
    store.close()


def test_a_damaged_block_does_not_hide_its_neighbours(tmp_path):
    run, rows = make(2, 3)
    store = open_store(tmp_path)
    store.write(run, rows)
    (path,) = tmp_path.glob("*/*.run")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert np.array_equal(read(store, run.key, 0, 2), rows[:2])
    with pytest.raises(DamagedRun, match="block 2"):
        read(store, run.key, 1, 2)
    with pytest.raises(FileNotFoundError):
        read(store, run.key, 0, 1)
    store.close()


def test_formats_do_not_mix_and_strange_files_stay(tmp_path):
    store = open_store(tmp_path, b"one")
    run, rows = make(3, 1)
    store.write(run, rows)
    store.close()
    (file,) = tmp_path.glob("*/*.run")
    (file.parent / "notes.run").write_text("mine")
    (file.parent / "half.run.partial").write_bytes(b"...")
    other = open_store(tmp_path, b"two")
    assert other.scan() == ()
    shutil.copy(file, other._folder)
    assert other.scan() == (), "another format's file"
    other.close()
    store = open_store(tmp_path, b"one")
    assert [found.key for found in store.scan()] == [run.key]
    assert sorted(path.name for path in file.parent.iterdir()) == sorted([file.name, "lock", "notes.run"])
    store.close()


@pytest.mark.parametrize("sizes", [(2 * BLOCK_TOKENS, 2 * BLOCK_BYTES), (BLOCK_TOKENS, BLOCK_BYTES + 1)])
def test_another_block_size_neither_reads_nor_removes_these_runs(sizes, tmp_path):
    store = open_store(tmp_path)
    run, rows = make(7, 2)
    store.write(run, rows)
    store.close()
    other = DiskStore(tmp_path, *sizes, b"format")
    assert other.scan() == ()
    other.close()
    store = open_store(tmp_path)
    assert np.array_equal(read(store, run.key, 0, 2), rows)
    store.close()


def test_what_does_not_open_stays_and_stops_nothing(tmp_path, caplog):
    store = open_store(tmp_path)
    run, rows = make(6, 1)
    store.write(run, rows)
    folder = next(tmp_path.glob("*/*.run")).parent
    (folder / "folder.run").mkdir()
    (folder / "link.run").symlink_to(tmp_path / "nowhere")
    assert [found.key for found in store.scan()] == [run.key]
    assert (folder / "folder.run").is_dir() and (folder / "link.run").is_symlink()
    assert {"folder.run", "link.run"} <= {
        name for record in caplog.records for name in record.getMessage().replace("/", " ").split()
    }
    store.close()


def test_a_folder_has_one_process(tmp_path):
    store = open_store(tmp_path)
    with pytest.raises(InvalidValue, match="no other process") as caught:
        open_store(tmp_path)
    assert caught.value.field == "disk_folder"
    store.close()
    open_store(tmp_path).close()


HOLDER = """
    import sys
    from pathlib import Path
    from tests.cache.test_disk_store import open_store
    store = open_store(Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_another_process_keeps_the_folder_until_it_dies(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=os.getcwd(),
    ) as holder:
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(InvalidValue, match="no other process"):
            open_store(tmp_path)
        holder.kill()
    open_store(tmp_path).close()


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="disk_folder"):
        open_store(tmp_path / "file")
    with pytest.raises(InvalidValue, match="disk_folder"):
        open_store(tmp_path / "file" / "below")


def test_a_full_disk_leaves_nothing(tmp_path):
    """The size limit of files stands for the full disk: both fail in the middle of a write."""
    store = open_store(tmp_path)
    small, big = make(4, 1), make(5, 400)
    store.write(*small)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(OSError):
            store.write(*big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.glob("*/*.partial"))
    (found,) = store.scan()
    assert same(found, small[0])
    store.write(*big)
    assert len(store.scan()) == 2
    store.close()


WRITER = """
    import sys
    from pathlib import Path
    from tests.cache.test_disk_store import make, open_store
    store = open_store(Path(sys.argv[1]))
    print("ready", flush=True)
    for seed in range(10_000):
        store.write(*make(seed, 200))
"""


def test_a_process_killed_while_writing_leaves_whole_runs_only(tmp_path):
    kills = whole = 0
    for delay in (0.0, 0.003, 0.01, 0.02, 0.05):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=os.getcwd(),
        )
        writer.stdout.readline()
        time.sleep(delay)
        writer.kill()
        writer.wait()
        writer.stdout.close()
        kills += 1
        store = open_store(tmp_path)
        runs = {run.key: run for run in store.scan()}
        for seed in range(len(runs)):
            run, rows = make(seed, 200)
            assert same(runs.pop(run.key), run)
            assert np.array_equal(read(store, run.key, 0, 200), rows)
            whole += 1
        assert not runs
        assert {path.suffix for path in tmp_path.glob("*/*")} <= {".run", ""}
        store.close()
    assert kills == 5 and whole
