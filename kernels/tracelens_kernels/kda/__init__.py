"""Kimi delta attention (KDA) with context parallelism: the state as a chain of affine maps.

One head keeps a state S [K, V]. A token with decay exp(g) [K], key k [K], value v [V] and strength beta does

    S ← diag(exp g) S;   u = beta (v − Sᵀk);   S ← S + k uᵀ;   output = Sᵀq

which is affine in S. So a chunk of tokens is one pair (M, H) with S_out = M S_in + H, a block of chunks is the product
of such pairs, and ranks that each hold a block need only exchange pairs to know the state they start from:

    1. block reduce   each block: fold its chunks' pairs into one pair (M, H)
    2. merge          all blocks: S_start of block r = M_{r-1} S_start of block r-1 + H_{r-1}
    3. block scan     each block: run its chunks from S_start and write outputs

The fp32 products of 1 and 2 are the chain whose errors add up with length; `precision` sets exactly those.
"""
