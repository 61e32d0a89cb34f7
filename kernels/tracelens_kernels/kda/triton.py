"""The three stages of context-parallel KDA as Triton kernels. `precision` sets the dots of the affine chain only.

All tensors are float32 and contiguous, in the shapes of `chunks.Chunks`. A program owns one tile of columns of a state
and walks the rows' whole extent, so K must fit a tile (K ≤ 128); columns are independent in every stage.
"""

# ruff: noqa: N803 - compile-time constants are upper case, as is the custom in Triton

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tracelens_kernels.kda.chunks import Chunks

COLUMNS = 32
"""Columns of a program's tile: 128 x 32 fp32 accumulators take 32 registers a thread at 4 warps."""
OPTIONS = {"num_warps": 4, "num_stages": 2}
"""A 128 x 128 fp32 tile takes 64 KiB a stage: three stages would exceed the 227 KiB of an sm_90 block."""
SCAN_PRECISION = tl.constexpr("tf32x3")
"""The block scan multiplies the state by decay elementwise: its dots do not compound, and are not under test."""


@triton.jit
def kda_cp_block_reduce_kernel(
    transition,
    addition,
    summary,
    chunks,
    chunks_per_block,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BX: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Fold the chunks of one block into [H | M], columns V and K; grid (columns, blocks, heads)."""
    block = tl.program_id(1)
    head = tl.program_id(2)
    row = tl.arange(0, BK)
    col = tl.program_id(0) * BX + tl.arange(0, BX)
    in_rows = row[:, None] < K
    x = tl.where(row[:, None] == col[None, :] - V, 1.0, 0.0)
    first = block * chunks_per_block
    for chunk in range(first, tl.minimum(first + chunks_per_block, chunks)):
        at = (head * chunks + chunk).to(tl.int64)
        m_at = transition + at * K * K + row[:, None] * K + row[None, :]
        m = tl.load(m_at, mask=in_rows & (row[None, :] < K), other=0.0)
        h_at = addition + at * K * V + row[:, None] * V + col[None, :]
        h = tl.load(h_at, mask=in_rows & (col[None, :] < V), other=0.0)
        x = tl.dot(m, x, h, input_precision=PRECISION)
    at = (head * tl.num_programs(1) + block).to(tl.int64) * K * (V + K)
    tl.store(summary + at + row[:, None] * (V + K) + col[None, :], x, mask=in_rows & (col[None, :] < V + K))


@triton.jit
def kda_cp_merge_kernel(
    summary,
    initial,
    starts,
    blocks,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BX: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Pass the state through all blocks, writing it before each and after the last; grid (columns, heads)."""
    head = tl.program_id(1)
    row = tl.arange(0, BK)
    col = tl.program_id(0) * BX + tl.arange(0, BX)
    tile = row[:, None] * V + col[None, :]
    inside = (row[:, None] < K) & (col[None, :] < V)
    state = tl.load(initial + head * K * V + tile, mask=inside, other=0.0)
    for block in range(blocks):
        out = starts + (head * (blocks + 1) + block).to(tl.int64) * K * V
        tl.store(out + tile, state, mask=inside)
        at = summary + (head * blocks + block).to(tl.int64) * K * (V + K) + row[:, None] * (V + K)
        h = tl.load(at + col[None, :], mask=inside, other=0.0)
        m = tl.load(at + V + row[None, :], mask=(row[:, None] < K) & (row[None, :] < K), other=0.0)
        state = tl.dot(m, state, h, input_precision=PRECISION)
    tl.store(starts + (head * (blocks + 1) + blocks).to(tl.int64) * K * V + tile, state, mask=inside)


@triton.jit
def kda_cp_block_scan_kernel(
    decay,
    w,
    u,
    kg,
    qg,
    attention,
    starts,
    outputs,
    chunks,
    chunks_per_block,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BX: tl.constexpr,
):
    """Run the chunks of one block from its start state and write outputs; grid (columns, blocks, heads)."""
    block = tl.program_id(1)
    head = tl.program_id(2)
    row = tl.arange(0, BK)
    token = tl.arange(0, C)
    col = tl.program_id(0) * BX + tl.arange(0, BX)
    in_cols = col[None, :] < V
    state_at = starts + (head * (tl.num_programs(1) + 1) + block).to(tl.int64) * K * V
    state = tl.load(state_at + row[:, None] * V + col[None, :], mask=(row[:, None] < K) & in_cols, other=0.0)
    first = block * chunks_per_block
    for chunk in range(first, tl.minimum(first + chunks_per_block, chunks)):
        at = (head * chunks + chunk).to(tl.int64)
        by_key = at * C * K + token[:, None] * K + row[None, :]
        in_keys = row[None, :] < K
        by_value = at * C * V + token[:, None] * V + col[None, :]
        fresh = tl.load(u + by_value, mask=in_cols, other=0.0)
        fresh -= tl.dot(tl.load(w + by_key, mask=in_keys, other=0.0), state, input_precision=SCAN_PRECISION)
        out = tl.dot(tl.load(qg + by_key, mask=in_keys, other=0.0), state, input_precision=SCAN_PRECISION)
        scores = tl.load(attention + at * C * C + token[:, None] * C + token[None, :])
        out = tl.dot(scores, fresh, out, input_precision=SCAN_PRECISION)
        tl.store(outputs + by_value, out, mask=in_cols)
        keep = tl.load(decay + at * K + row, mask=row < K, other=0.0)
        keys = tl.trans(tl.load(kg + by_key, mask=in_keys, other=0.0))
        state = tl.dot(keys, fresh, keep[:, None] * state, input_precision=SCAN_PRECISION)


def context_parallel(chunks: Chunks, initial: Tensor, blocks: int, precision: str) -> tuple[Tensor, Tensor]:
    """All three stages: outputs [heads, tokens, V] and states [heads, blocks + 1, K, V], the last one final.

    `chunks` and `initial` [heads, K, V] are float32; `precision` is an input_precision of `tl.dot`. Raises ValueError
    for K > 128 or a chunk size that is no power of two ≥ 16.
    """
    return launch(chunks, initial, blocks, precision)[:2]


def launch(chunks: Chunks, initial: Tensor, blocks: int, precision: str) -> tuple[Tensor, Tensor, list[object]]:
    """As `context_parallel`, and what each launch returned: the compiled kernels (None under the interpreter)."""
    heads, count, k_dim, v_dim = chunks.addition.shape
    size = chunks.w.shape[2]
    if k_dim > 128 or size < 16 or size & (size - 1):
        raise ValueError(f"K = {k_dim} must be ≤ 128, and the chunk size {size} a power of two ≥ 16")
    tile: dict[str, int] = {
        "K": k_dim,
        "V": v_dim,
        "BK": max(16, triton.next_power_of_2(k_dim)),
        "BX": COLUMNS,
        **OPTIONS,
    }
    per_block = -(-count // blocks)
    summary = initial.new_empty(heads, blocks, k_dim, v_dim + k_dim)
    starts = initial.new_empty(heads, blocks + 1, k_dim, v_dim)
    outputs = torch.empty_like(chunks.u)
    compiled = [
        kda_cp_block_reduce_kernel[(triton.cdiv(v_dim + k_dim, COLUMNS), blocks, heads)](
            chunks.transition, chunks.addition, summary, count, per_block, **tile, PRECISION=precision
        ),
        kda_cp_merge_kernel[(triton.cdiv(v_dim, COLUMNS), heads)](
            summary, initial, starts, blocks, **tile, PRECISION=precision
        ),
        kda_cp_block_scan_kernel[(triton.cdiv(v_dim, COLUMNS), blocks, heads)](
            chunks.decay, chunks.w, chunks.u, chunks.kg, chunks.qg, chunks.attention, starts, outputs,
            count, per_block, **tile, C=size,
        ),
    ]  # fmt: skip
    return outputs.reshape(heads, count * size, v_dim)[:, : chunks.tokens], starts, compiled
