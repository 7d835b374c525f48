"""Growing int32 values with read-only views that never change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class Int32Buffer:
    """Int32 values that are appended to and cut at the end; a view given out never changes.

    Growth, and appending after a cut, move to a new array and leave the old one to its views.
    """

    __slots__ = ("_data", "_length", "_shown", "_written")

    def __init__(self, values: Int32s) -> None:
        self._length = self._written = len(values)
        self._hold(np.empty(self._length + 64, dtype=np.int32))
        self._data[: self._length] = values

    def __len__(self) -> int:
        return self._length

    def extend(self, values: Sequence[int] | Int32s) -> None:
        """Append `values`."""
        end = self._length + len(values)
        if end > len(self._data) or self._length < self._written:
            self._move(end + end // 2)
        self._data[self._length : end] = values
        self._length = self._written = end

    def truncate(self, length: int) -> None:
        """Keep the first `length` values; `length` <= len."""
        self._length = length
        if length < len(self._data) // 4:  # a short rest must not hold a long array in memory
            self._move(length + 64)

    def view(self, end: int) -> Int32s:
        """The first `end` values, read-only and without a copy; `end` <= len."""
        return self._shown[:end]

    @property
    def values(self) -> Int32s:
        """All values, as `view`."""
        return self._shown[: self._length]

    def _move(self, capacity: int) -> None:
        moved = np.empty(capacity, dtype=np.int32)
        moved[: self._length] = self._data[: self._length]
        self._hold(moved)
        self._written = self._length

    def _hold(self, data: Int32s) -> None:
        self._data = data
        self._shown = data.view()
        self._shown.flags.writeable = False  # and so is every slice of it
