"""What ops read cached vectors from: a tensor, or a pool that decodes the rows it is asked for."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Rows(Protocol):
    """Vectors [P, D] by row."""

    def __getitem__(self, index: Tensor, /) -> Tensor:
        """Rows int64 [...] -> [..., D]."""
        ...
