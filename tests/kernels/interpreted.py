"""Run with TRITON_INTERPRET=1: largest errors of the Triton stages against the float64 references, as JSON lines."""

from __future__ import annotations

import json

import torch
from tracelens_kernels import gemv
from tracelens_kernels.kda import chunks, inputs, reference
from tracelens_kernels.kda import triton as kernels

SHAPES = ((2, 100, 16, 24, 16, 3), (1, 77, 20, 12, 16, 4), (1, 64, 32, 40, 32, 2), (1, 5, 16, 16, 16, 1))
"""heads, tokens, K, V, chunk, blocks: odd lengths, extents that are no powers of two, blocks that do not divide."""


def largest(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).abs().max())


for heads, tokens, k_dim, v_dim, size, blocks in SHAPES:
    for make in (inputs.forgetting, inputs.long_memory):
        given = make(heads, tokens, k_dim, v_dim, seed=tokens)
        initial = torch.randn(heads, k_dim, v_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        expected, final = reference.recurrent(given, initial)
        cut = chunks.cut(given, size)
        outputs, states = kernels.context_parallel(cut.float(), initial.float(), blocks, "tf32x3")
        print(
            json.dumps(
                {
                    "input": make.__name__,
                    "shape": list(outputs.shape),
                    "tokens": tokens,
                    "remembered": reference.remembered(cut, blocks),
                    "output": largest(outputs, expected),
                    "state": largest(states[:, -1], final),
                }
            )
        )
for rows, columns in ((3, 1000), (5, 2100)):
    w, x = torch.randn(rows, columns), torch.randn(columns)
    for layout in (w, w.t().contiguous().t()):
        print(json.dumps({"input": "gemv", "error": largest(gemv.gemv(layout, x), w.double() @ x.double())}))
