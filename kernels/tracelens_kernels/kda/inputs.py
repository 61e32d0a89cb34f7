"""Seeded inputs of a KDA layer. What they remember decides whether an accuracy test can see anything.

`forgetting` inputs overwrite and decay the state within a few hundred tokens: errors die out as fast, and every
precision passes at any length. `long_memory` inputs keep it (weak updates, almost no decay): only there drift shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """q, k [heads, tokens, K] with unit norm, v [heads, tokens, V], g [heads, tokens, K] ≤ 0, beta [heads, tokens]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def to(self, device: torch.device | str) -> Inputs:
        """The same inputs on another device."""
        return Inputs(*(each.to(device) for each in (self.q, self.k, self.v, self.g, self.beta)))


def forgetting(heads: int, tokens: int, k_dim: int, v_dim: int, seed: int = 0) -> Inputs:
    """Strong updates and per-channel decay, float64."""
    return _inputs(heads, tokens, k_dim, v_dim, seed, max_beta=1.0, max_decay=0.1)


def long_memory(heads: int, tokens: int, k_dim: int, v_dim: int, seed: int = 0) -> Inputs:
    """Weak updates (beta ≤ 0.005) and almost no decay (≤ 1e-6 a token), float64."""
    return _inputs(heads, tokens, k_dim, v_dim, seed, max_beta=0.005, max_decay=1e-6)


def _inputs(heads: int, tokens: int, k_dim: int, v_dim: int, seed: int, *, max_beta: float, max_decay: float) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    return Inputs(
        q=torch.nn.functional.normalize(normal(heads, tokens, k_dim), dim=-1),
        k=torch.nn.functional.normalize(normal(heads, tokens, k_dim), dim=-1),
        v=normal(heads, tokens, v_dim),
        g=-max_decay * uniform(heads, tokens, k_dim),
        beta=max_beta * uniform(heads, tokens),
    )
