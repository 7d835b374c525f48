"""Mixing weights by one C++ loop behind the matrix product."""

from __future__ import annotations

import ctypes

from torch import Tensor

from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.hyper_connections.reference import COPIES


class NativeMix:
    """`reference.mix` on the CPU, over the compiled kernels."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self._mix = library.flashpoint_mix
        self._mix.restype = None
        self._mix.argtypes = [
            *(pointer,) * 4,
            integer,
            integer,
            ctypes.c_int,
            real,
            real,
            *(pointer,) * 3,
        ]

    def __call__(
        self,
        stream: Tensor,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
        iterations: int,
        eps: float,
        norm_eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `reference.mix`."""
        flat = stream.flatten(1).float().contiguous()
        rows, width = flat.shape
        dots = linear(flat, fn)
        pre, post = flat.new_empty(rows, COPIES), flat.new_empty(rows, COPIES)
        comb = flat.new_empty(rows, COPIES, COPIES)
        self._mix(
            flat.data_ptr(),
            dots.data_ptr(),
            base.data_ptr(),
            scale.data_ptr(),
            rows,
            width,
            iterations,
            eps,
            norm_eps,
            pre.data_ptr(),
            post.data_ptr(),
            comb.data_ptr(),
        )
        return pre, post, comb
