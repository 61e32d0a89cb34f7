"""The specification: KDA token by token, and as affine chain, in whatever dtype the inputs have (float64 to be exact).

`dot` replaces the product of the chain (block reduce and merge), and nothing else, to emulate a precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tracelens_kernels.kda.chunks import Chunks
from tracelens_kernels.kda.inputs import Inputs

Dot = Callable[[Tensor, Tensor], Tensor]


def recurrent(inputs: Inputs, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [heads, tokens, V] and final state [heads, K, V], one token after the other from `initial`."""
    state, outputs = initial, []
    for t in range(inputs.k.shape[1]):
        k = inputs.k[:, t].unsqueeze(-1)
        state = inputs.g[:, t].exp().unsqueeze(-1) * state
        u = inputs.beta[:, t, None, None] * (inputs.v[:, t].unsqueeze(1) - k.mT @ state)
        state = state + k @ u
        outputs.append((inputs.q[:, t].unsqueeze(1) @ state).squeeze(1))
    return torch.stack(outputs, dim=1), state


def block_reduce(chunks: Chunks, blocks: int, dot: Dot = torch.matmul) -> tuple[Tensor, Tensor]:
    """M [heads, blocks, K, K] and H [heads, blocks, K, V] of every block of chunks; the last may be shorter."""
    heads, count, k_dim, v_dim = chunks.addition.shape
    size = -(-count // blocks)
    m = torch.eye(k_dim, dtype=chunks.w.dtype, device=chunks.w.device).repeat(heads, blocks, 1, 1)
    h = m.new_zeros(heads, blocks, k_dim, v_dim)
    for c in range(count):
        transition = chunks.transition[:, c]
        h[:, c // size] = dot(transition, h[:, c // size]) + chunks.addition[:, c]
        m[:, c // size] = dot(transition, m[:, c // size])
    return m, h


def merge(m: Tensor, h: Tensor, initial: Tensor, dot: Dot = torch.matmul) -> Tensor:
    """The state at the start of every block, and after the last: [heads, blocks + 1, K, V]."""
    states = [initial]
    for r in range(m.shape[1]):
        states.append(dot(m[:, r], states[-1]) + h[:, r])
    return torch.stack(states, dim=1)


def block_scan(chunks: Chunks, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [heads, tokens, V] and the state after every block [heads, blocks, K, V], from the start states."""
    count = chunks.w.shape[1]
    blocks = starts.shape[1] - 1
    size = -(-count // blocks)
    states, outputs = starts[:, :blocks].clone(), []
    for c in range(count):
        state = states[:, c // size]
        fresh = chunks.u[:, c] - chunks.w[:, c] @ state
        outputs.append(chunks.qg[:, c] @ state + chunks.attention[:, c] @ fresh)
        states[:, c // size] = chunks.decay[:, c].unsqueeze(-1) * state + chunks.kg[:, c].mT @ fresh
    return torch.cat(outputs, dim=1)[:, : chunks.tokens], states


def context_parallel(chunks: Chunks, initial: Tensor, blocks: int, dot: Dot = torch.matmul) -> tuple[Tensor, Tensor]:
    """All three stages: outputs [heads, tokens, V] and states [heads, blocks + 1, K, V], the last one final."""
    starts = merge(*block_reduce(chunks, blocks, dot), initial, dot)
    return block_scan(chunks, starts)[0], starts


def remembered(chunks: Chunks, blocks: int) -> float:
    """Smallest spectral norm over heads of the whole sequence's transition: 1 keeps everything, 0 keeps nothing."""
    m, _ = block_reduce(chunks, blocks)
    whole = m[:, 0]
    for r in range(1, blocks):
        whole = m[:, r] @ whole
    return float(torch.linalg.matrix_norm(whole, ord=2).min())
