"""Matrix-vector product y = W x in fp32, one program a row: fast or slow by W's layout alone.

With row-major W neighbouring threads read neighbouring addresses; with column-major W they are a column apart and most
of each memory sector is thrown away. Kernel, grid and bytes are equal in both.
"""

# ruff: noqa: N803 - compile-time constants are upper case, as is the custom in Triton

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gemv_kernel(w, x, y, columns, row_stride, column_stride, BLOCK: tl.constexpr):
    """One row's dot product with x; grid (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        weight = tl.load(w + row * row_stride + at.to(tl.int64) * column_stride, mask=inside, other=0.0)
        total += weight * tl.load(x + at, mask=inside, other=0.0)
    tl.store(y + row, tl.sum(total, axis=0))


def gemv(w: Tensor, x: Tensor) -> Tensor:
    """w [rows, columns] of any strides times x [columns], float32."""
    y = x.new_empty(w.shape[0])
    gemv_kernel[(w.shape[0],)](w, x, y, w.shape[1], *w.stride(), BLOCK=1024, num_warps=8)
    return y


def bytes_moved(w: Tensor) -> int:
    """Bytes one call has to move: every weight, x and y once."""
    rows, columns = w.shape
    return (rows * columns + rows + columns) * w.element_size()
