"""Products at a tensor core's precision, computed in float32 on a CPU: how TF32 drift is tested without a GPU.

Triton's TF32 on sm_90 truncates both operands (it emits no conversion, the hardware ignores the 13 low bits), so every
product is biased low; libraries round to nearest. tf32x3 splits each operand in a TF32 head and tail and adds the three
products that matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

_DROPPED = 0x1FFF
"""The 13 low bits of an fp32 mantissa, which TF32 does not have."""
_HALF = 0x1000


def truncated(x: Tensor) -> Tensor:
    """float32 → the TF32 value at or below it in magnitude."""
    return (x.view(torch.int32) & ~_DROPPED).view(torch.float32)


def rounded(x: Tensor) -> Tensor:
    """float32 → the nearest TF32 value, ties away from zero (`cvt.rna.tf32`)."""
    return ((x.view(torch.int32) + _HALF) & ~_DROPPED).view(torch.float32)


def tf32(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as Triton's default computes it on sm_90: truncated operands, fp32 accumulation."""
    return truncated(a.contiguous()) @ truncated(b.contiguous())


def tf32_rounded(a: Tensor, b: Tensor) -> Tensor:
    """a @ b as cuBLAS computes it in TF32: operands rounded to nearest."""
    return rounded(a.contiguous()) @ rounded(b.contiguous())


def tf32x3(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in three TF32 products: tail·head + head·tail + head·head."""
    a, b = a.contiguous(), b.contiguous()
    a_head, b_head = rounded(a), rounded(b)
    a_tail, b_tail = rounded(a - a_head), rounded(b - b_head)
    return a_tail @ b_head + a_head @ b_tail + a_head @ b_head
