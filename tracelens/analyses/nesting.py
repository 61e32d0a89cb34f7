"""Which slice contains which: parents, depths and self time, from times alone.

Slices of one track that overlap without containing one another are all kept; a slice belongs to the nearest one that
contains it. Knows nothing of kinds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_DEPTH = 0xFFFF
Ints = npt.NDArray[np.int64]


def order(track: npt.ArrayLike, start: npt.ArrayLike, dur: npt.ArrayLike) -> Ints:
    """The order that `nest` wants: by track, start, longest first; equal ones in the given order."""
    return np.lexsort((-np.asarray(dur, np.int64), np.asarray(start, np.int64), np.asarray(track))).astype(np.int64)


def nest(track: npt.ArrayLike, start: npt.ArrayLike, dur: npt.ArrayLike) -> tuple[Ints, Ints]:
    """(index of the nearest containing slice or -1, number of containing slices) of slices in `order`.

    A slice contains another one of its track that starts and ends within it; of two with equal times the earlier one
    contains the later. A slice that starts exactly where another ends is not in it. Linear time.
    """
    tracks = np.asarray(track).tolist()
    starts = np.asarray(start, np.int64).tolist()
    ends = (np.asarray(start, np.int64) + np.asarray(dur, np.int64)).tolist()
    parents = [-1] * len(starts)
    depths = [0] * len(starts)
    open_slices: list[int] = []
    current = None
    for index, (place, begin, end) in enumerate(zip(tracks, starts, ends, strict=True)):
        if place != current:
            open_slices.clear()
            current = place
        # An earlier slice that ends before this one can contain no later slice that this one does not contain too.
        while open_slices and (ends[open_slices[-1]] < end or ends[open_slices[-1]] <= begin):
            open_slices.pop()
        if open_slices:
            parents[index] = open_slices[-1]
            depths[index] = min(depths[open_slices[-1]] + 1, MAX_DEPTH)
        open_slices.append(index)
    return np.array(parents, np.int64), np.array(depths, np.int64)


def self_time(parent: npt.ArrayLike, start: npt.ArrayLike, dur: npt.ArrayLike) -> Ints:
    """ns of each slice that none of its direct children covers; never negative. `parent` are indices, -1 for none."""
    parents = np.asarray(parent, np.int64)
    starts, lengths = np.asarray(start, np.int64), np.asarray(dur, np.int64)
    inside = np.flatnonzero(parents >= 0)
    if not len(inside):
        return lengths.copy()
    by_parent = inside[np.lexsort((starts[inside], parents[inside]))]
    owner = parents[by_parent]
    begin, end = starts[by_parent], starts[by_parent] + lengths[by_parent]
    # One running maximum over all parents: each parent's times are moved into a range of their own.
    base = int(starts.min())
    width = int((starts + lengths).max()) - base + 1
    group = np.unique(owner, return_inverse=True)[1]
    if (int(group.max()) + 1) * width < np.iinfo(np.int64).max:
        offset = group * width - base
        reached = np.maximum.accumulate(end + offset)
        before = np.concatenate([np.full(1, -1, np.int64), reached[:-1]])
        covered = np.maximum(end + offset - np.maximum(begin + offset, before), 0)
    else:
        covered = _covered_slowly(owner, begin, end)
    out = lengths.copy()
    np.subtract.at(out, owner, covered)
    return np.maximum(out, 0)


def _covered_slowly(owner: Ints, begin: Ints, end: Ints) -> Ints:
    """As the running maximum above, for time spans too long to lie side by side in int64."""
    covered = np.zeros(len(owner), np.int64)
    current, reached = -1, 0
    for index, (parent, first, last) in enumerate(zip(owner.tolist(), begin.tolist(), end.tolist(), strict=True)):
        if parent != current:
            current, reached = parent, first
        covered[index] = max(last - max(first, reached), 0)
        reached = max(reached, last)
    return covered
