"""Cut a KDA sequence into chunks and reduce each to the factors that the three stages work on.

Within a chunk, with G the running sum of g, the updates u_i depend on the state S at its start as u = U − W S, found by
forward substitution. Exponents are differences G_i − G_j ≤ 0 only, so strong gates cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from tracelens_kernels.kda.inputs import Inputs


@dataclass(frozen=True)
class Chunks:
    """Factors of every chunk; leading dimensions [heads, chunks], C tokens a chunk.

    transition [K, K] and addition [K, V]: the chunk as S_out = transition S + addition. decay [K], w [C, K], u [C, V],
    kg [C, K]: the same as S_out = diag(decay) S + kgᵀ(u − w S). qg [C, K] and attention [C, C]: outputs are
    qg S + attention (u − w S). `tokens` is the length before padding.
    """

    transition: Tensor
    addition: Tensor
    decay: Tensor
    w: Tensor
    u: Tensor
    kg: Tensor
    qg: Tensor
    attention: Tensor
    tokens: int

    def float(self) -> Chunks:
        """All factors in float32."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tokens"}
        return Chunks(**{name: each.float().contiguous() for name, each in tensors.items()}, tokens=self.tokens)


def cut(inputs: Inputs, size: int) -> Chunks:
    """The chunks of `size` tokens, in the inputs' dtype; the last one is padded with tokens that change nothing."""
    heads, tokens, _ = inputs.k.shape
    padding = -tokens % size

    def chunked(each: Tensor) -> Tensor:
        each = torch.nn.functional.pad(each, (0, 0, 0, padding))
        return each.reshape(heads, (tokens + padding) // size, size, each.shape[-1])

    q, k, v, g = (chunked(each) for each in (inputs.q, inputs.k, inputs.v, inputs.g))
    beta = chunked(inputs.beta.unsqueeze(-1))
    total = g.cumsum(dim=2)
    end = total[:, :, -1:]
    w, u = torch.zeros_like(k), torch.zeros_like(v)
    attention = k.new_zeros(*k.shape[:2], size, size)
    for i in range(size):
        faded = k[:, :, : i + 1] * torch.exp(total[:, :, i : i + 1] - total[:, :, : i + 1])
        attention[:, :, i, : i + 1] = (faded @ q[:, :, i].unsqueeze(-1)).squeeze(-1)
        earlier = faded[:, :, :i] @ k[:, :, i].unsqueeze(-1)
        from_state = k[:, :, i] * total[:, :, i].exp()
        w[:, :, i] = beta[:, :, i] * (from_state - (earlier * w[:, :, :i]).sum(dim=2))
        u[:, :, i] = beta[:, :, i] * (v[:, :, i] - (earlier * u[:, :, :i]).sum(dim=2))
    kg = k * torch.exp(end - total)
    decay = end.squeeze(2).exp()
    return Chunks(
        transition=torch.diag_embed(decay) - kg.mT @ w,
        addition=kg.mT @ u,
        decay=decay,
        w=w,
        u=u,
        kg=kg,
        qg=q * total.exp(),
        attention=attention,
        tokens=tokens,
    )
