"""The model: a small decoder; each block has causal attention (no positions, as in GLM-5.3-Flash) and experts.

Weights are random and seeded one by one, so that a process that holds only some experts has the same weights as one
that holds all. This module does not know of ranks, processes or caches: it is given the keys and values to read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tracelens_serving.settings import ModelSettings

NORM_EPS = 1e-6
KV_DTYPE = torch.bfloat16  # of keys and values in a cache; the rest is float32


@dataclass
class Routing:
    """All choices, `top_k` a token, sorted by expert: the first `counts[0]` are those of expert 0, and so on."""

    tokens: Tensor  # [choices] int64, the token that made the choice
    weights: Tensor  # [choices, 1] float32
    counts: list[int]  # [experts], choices of each expert


class Block:
    """Attention and experts of one layer, without the order in which they run."""

    def __init__(self, settings: ModelSettings, seed: int, layer: int, experts: range):
        hidden, wide = settings.hidden, settings.expert_hidden
        self.heads = settings.heads
        self.top_k = settings.top_k
        self.qkv = _weights(seed, layer, "qkv", hidden, 3 * hidden)
        self.out = _weights(seed, layer, "out", hidden, hidden)
        self.router = _weights(seed, layer, "router", hidden, settings.experts)
        self.router_bias = torch.zeros(settings.experts)
        self.router_bias[settings.experts // 2 :] = settings.router_skew
        self.up = {e: _weights(seed, layer, f"up{e}", hidden, 2 * wide) for e in experts}
        self.down = {e: _weights(seed, layer, f"down{e}", wide, hidden) for e in experts}

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries `[tokens, hidden]` and keys with values `[tokens, 2 * hidden]`."""
        width = hidden.shape[-1]
        return (_norm(hidden) @ self.qkv).split([width, 2 * width], dim=-1)

    def attend(self, queries: Tensor, keys_values: Tensor, causal: bool) -> Tensor:
        """Return what `queries [new, hidden]` read from `keys_values [context, 2 * hidden]`, as `[new, hidden]`."""
        keys_values = keys_values.to(queries.dtype)
        keys, values = keys_values.chunk(2, dim=-1)
        read = functional.scaled_dot_product_attention(
            self._split(queries), self._split(keys), self._split(values), is_causal=causal
        )
        return read[0].transpose(0, 1).reshape(queries.shape)

    def route(self, hidden: Tensor) -> tuple[Tensor, Routing]:
        """Return the experts' input `[tokens, hidden]` and which expert gets which token."""
        rows = _norm(hidden)
        weights, experts = (rows @ self.router + self.router_bias).topk(self.top_k, dim=-1)
        experts, order = experts.flatten().sort(stable=True)
        return rows, Routing(
            tokens=order // self.top_k,
            weights=weights.softmax(dim=-1).flatten()[order, None],
            counts=experts.bincount(minlength=len(self.router_bias)).tolist(),
        )

    def expert(self, number: int, rows: Tensor) -> Tensor:
        """Return the output `[rows, hidden]` of one expert (SwiGLU)."""
        gate, up = (rows @ self.up[number]).chunk(2, dim=-1)
        return (functional.silu(gate) * up) @ self.down[number]

    def _split(self, rows: Tensor) -> Tensor:
        """`[tokens, hidden]` as `[1, heads, tokens, head]`."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]


class Model:
    """Embedding, blocks and the way back to tokens. `experts` are those that this process holds."""

    def __init__(self, settings: ModelSettings, seed: int, experts: range):
        self.embedding = _weights(seed, -1, "embedding", settings.hidden, settings.vocab).T.contiguous()
        self.blocks = [Block(settings, seed, layer, experts) for layer in range(settings.layers)]
        self.experts = experts

    def embed(self, tokens: Tensor) -> Tensor:
        """`[tokens]` int64 → `[tokens, hidden]`."""
        return self.embedding[tokens]

    def next_tokens(self, hidden: Tensor) -> Tensor:
        """The most likely next token of each row: `[rows, hidden]` → `[rows]` int64."""
        return (_norm(hidden) @ self.embedding.T).argmax(dim=-1)

    def mix_experts(self, block: Block, hidden: Tensor) -> Tensor:
        """Return `hidden [tokens, hidden]` with the experts' answers added; this process must hold all experts."""
        rows, routing = block.route(hidden)
        inputs = rows[routing.tokens].split(routing.counts)
        answers = torch.cat([block.expert(e, inputs[e]) for e in self.experts if routing.counts[e]])
        return hidden.index_add(0, routing.tokens, answers * routing.weights)


def prompt(seed: int, request: int, tokens: int, vocab: int) -> Tensor:
    """Return the seeded prompt `[tokens]` int64 of a request."""
    generator = torch.Generator().manual_seed(_seed(seed, "prompt", request))
    return torch.randint(vocab, (tokens,), generator=generator)


def _norm(hidden: Tensor) -> Tensor:
    return functional.rms_norm(hidden, hidden.shape[-1:], eps=NORM_EPS)


def _weights(seed: int, layer: int, name: str, rows: int, columns: int) -> Tensor:
    """Return seeded `[rows, columns]` that keep the scale of what they multiply."""
    generator = torch.Generator().manual_seed(_seed(seed, layer, name))
    return torch.randn(rows, columns, generator=generator) / rows**0.5


def _seed(*parts: int | str) -> int:
    """Return a seed that is the same in every process (Python's own `hash` is not)."""
    value = 0
    for byte in repr(parts).encode():
        value = (value * 1_099_511_628_211 + byte) % 2**63
    return value
