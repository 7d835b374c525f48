"""Carries out transfers between cache tiers beside the step loop, on threads of its own.

One thread copies between device and host memory, another reads and writes disk, each in the order given. The
two need no order between them: a block is in one transfer at a time (`cache/transfer.py`).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashpoint.cache.block_pool import BlockIds
from flashpoint.cache.disk_store import DamagedRun, DiskStore
from flashpoint.cache.transfer import Fetch, Landed, Load, Remove, Save, Store, Transfer
from flashpoint.engine.plan import WAIT_SECONDS

log = logging.getLogger(__name__)

Rows = npt.NDArray[np.uint8]


class Mover:
    """The host pool and, if there is one, the disk store, with their threads.

    device: uint8 views [blocks, bytes] of the device pools; the bytes of a block over all views make one row
        of the host pool.
    host_blocks: rows of the host pool.
    """

    def __init__(self, device: Sequence[Tensor], host_blocks: int, disk: DiskStore | None) -> None:
        self._device = device
        self._disk = disk
        # Not zeroed: the system gives the memory when it is first used.
        self._host = np.empty((host_blocks, sum(view.shape[1] for view in device)), dtype=np.uint8)
        self._landed: queue.SimpleQueue[Landed] = queue.SimpleQueue()
        self._copies: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._disk_work: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(line,), name=name, daemon=True)
            for line, name in ((self._copies, "cache-copies"), (self._disk_work, "cache-disk"))
        ]
        for thread in self._threads:
            thread.start()

    def start(self, transfers: Iterable[Transfer]) -> None:
        """Begin transfers, in order."""
        for transfer in transfers:
            (self._copies if isinstance(transfer, Save | Load) else self._disk_work).put(transfer)

    def landed(self, wait: bool = False) -> tuple[Landed, ...]:
        """Transfers that are over since the last call; `wait`: for one, at most `WAIT_SECONDS`."""
        landed = []
        try:
            if wait:
                landed.append(self._landed.get(timeout=WAIT_SECONDS))
            while True:
                landed.append(self._landed.get_nowait())
        except queue.Empty:
            return tuple(landed)

    def close(self) -> None:
        """End the threads once what was started is done, and let go of the disk."""
        for line in (self._copies, self._disk_work):
            line.put(None)
        for thread in self._threads:
            thread.join()
        if self._disk is not None:
            self._disk.close()

    def _work(self, line: queue.SimpleQueue[Transfer | None]) -> None:
        while (transfer := line.get()) is not None:
            error = None
            try:
                with torch.inference_mode():
                    self._carry_out(transfer)
            except (DamagedRun, OSError) as expected:
                error = str(expected)
            except Exception as unexpected:
                log.exception("a transfer between cache tiers failed")
                error = f"{type(unexpected).__name__}: {unexpected}"
            self._landed.put(Landed(transfer.transfer_id, error))

    def _carry_out(self, transfer: Transfer) -> None:
        match transfer:
            case Save(device=device, host=host):
                self._copy(device, host, to_host=True)
            case Load(host=host, device=device):
                self._copy(device, host, to_host=False)
            case Store(host=host, run=run):
                self._disk_store().write(run, self._host[host])
            case Fetch(key=key, first=first, host=host):
                self._disk_store().read(key, first, [self._host[block] for block in host])
            case Remove(key=key):
                self._disk_store().remove(key)

    def _copy(self, device: BlockIds, host: BlockIds, to_host: bool) -> None:
        start = 0
        for view in self._device:
            part = self._host[:, start : start + view.shape[1]]
            start += view.shape[1]
            if to_host:
                part[host] = _gather(view, device)
            else:
                _scatter(view, device, part[host])

    def _disk_store(self) -> DiskStore:
        if self._disk is None:
            raise RuntimeError("a transfer to disk, and no disk tier")
        return self._disk


def _gather(view: Tensor, blocks: BlockIds) -> Rows:
    """Rows of a device pool. In host memory numpy copies whole rows; torch would go byte by byte."""
    if view.device.type == "cpu":
        return view.numpy()[blocks]
    return view[_index(view, blocks)].cpu().numpy()


def _scatter(view: Tensor, blocks: BlockIds, rows: Rows) -> None:
    """Write rows of a device pool, as `_gather` reads them."""
    if view.device.type == "cpu":
        view.numpy()[blocks] = rows
    else:
        view[_index(view, blocks)] = torch.from_numpy(rows).to(view.device)


def _index(view: Tensor, blocks: BlockIds) -> Tensor:
    return torch.from_numpy(blocks.astype(np.int64)).to(view.device)
