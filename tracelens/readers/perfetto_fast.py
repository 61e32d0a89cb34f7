"""Which packets of a block are read in batches, and by what: numpy always, numba's compiled loops if it is installed.

A block's plain packets form runs; long runs go to `Batches`, everything else to the reader of single packets, in file
order. Knows neither what a packet means nor what a batch becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tracelens.readers.perfetto_batch import Batches
from tracelens.readers.perfetto_packets import Block, Chain, chain
from tracelens.readers.perfetto_pools import NONE
from tracelens.readers.perfetto_walk import (
    ARGUMENT_AT,
    ARGUMENT_KIND,
    ARGUMENT_SIZE,
    ARGUMENT_VALUE,
    OTHER,
    PADDING,
    ROW,
    Bytes,
    Ints,
    Walked,
    walk,
)

Walk: TypeAlias = Callable[[Bytes, Ints, Ints], Walked]

MAX_BATCH = 1 << 15
"""Packets a batch: its columns then fit the processor's cache, and memory is bounded."""
MIN_BATCH = 128
"""Packets below which the fixed cost of a batch, about 100 single packets, is not worth it."""
MAX_RETRIES = 3
NUMBA_SIZE = 256 << 20
"""Bytes on disk from which numba pays: its code takes 1.3 s and 140 MB to load, and saves a tenth of the time."""


@dataclass(frozen=True)
class Way:
    """How to find packets, and how to walk plain ones; without `walk` every packet is read by itself."""

    chain: Chain
    walk: Walk | None


GENERIC = Way(chain, None)
NUMPY = Way(chain, walk)


def numba_way() -> Way | None:
    """The compiled way; None without numba, or if it does not run here."""
    try:
        from tracelens.readers.perfetto_compiled import chain as compiled_chain
        from tracelens.readers.perfetto_compiled import walk as compiled_walk
    except (ImportError, RuntimeError):  # RuntimeError: numba finds no folder for its compiled code
        return None
    return Way(compiled_chain, compiled_walk)


def suited(size: int) -> Way:
    """The way for a file of `size` bytes."""
    return (numba_way() if size >= NUMBA_SIZE else None) or NUMPY


def single_runs(block: Block, batches: Batches, walker: Walk) -> Iterator[tuple[int, int]]:
    """Give long plain runs of a block to `batches`; yields in file order the ranges that must be read one by one."""
    count = len(block.starts)
    if count < MIN_BATCH:
        yield 0, count
        return
    low = int(block.starts[0])
    data = block.data[low : int(block.ends[-1])]
    walked = walker(np.frombuffer(data + bytes(PADDING), np.uint8), block.starts - low, block.ends - low)
    _number_others(data, walked, batches)
    yield from _runs(data, walked, batches, 0, count, np.flatnonzero(~walked.plain), 0)


def _runs(
    data: bytes, walked: Walked, batches: Batches, first: int, last: int, single: Ints, tries: int
) -> Iterator[tuple[int, int]]:
    """The runs of [first, last) between packets that must be read one by one."""
    waiting = first
    start = first
    for each in [*single.tolist(), last]:
        if each - start >= MIN_BATCH and tries < MAX_RETRIES:
            if waiting < start:
                yield waiting, start
            bad = batches.take(data, walked, start, each)
            if bad is not None:
                yield from _runs(data, walked, batches, start, each, bad, tries + 1)
            waiting = each
        start = each + 1
    if waiting < last:
        yield waiting, last


def _number_others(data: bytes, walked: Walked, batches: Batches) -> None:
    """Number the arguments that have no number; packets with one that is no argument are damaged, and so not plain."""
    args = walked.arguments
    others = np.flatnonzero(args[ARGUMENT_KIND] == OTHER)
    ids = batches.others.ids(data, args[ARGUMENT_AT, others], args[ARGUMENT_SIZE, others])
    args[ARGUMENT_VALUE, others] = ids
    walked.plain[args[ROW, others[ids == NONE]]] = False
