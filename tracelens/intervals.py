"""Sets of half-open time intervals [start, end) as sorted, disjoint int64 arrays. Pure and vectorised.

An *interval set* is a pair (starts, ends) of equally long int64 arrays, sorted, disjoint and without empty intervals;
`union` makes one from anything. All times are ns. Knows nothing of traces.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.int64]
IntervalSet: TypeAlias = tuple[Times, Times]


def empty() -> IntervalSet:
    """The interval set without intervals."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> IntervalSet:
    """The interval set covered by any of the given intervals, in any order; touching intervals join, empty ones go."""
    first = np.asarray(starts, dtype=np.int64)
    last = np.asarray(ends, dtype=np.int64)
    keep = last > first
    first, last = first[keep], last[keep]
    if not len(first):
        return empty()
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    opens = np.empty(len(first), bool)
    opens[0] = True
    np.greater(first[1:], last[:-1], out=opens[1:])
    closes = np.append(opens[1:], True)
    return first[opens], last[closes]


def total(intervals: IntervalSet) -> int:
    """Summed length, ns."""
    return int((intervals[1] - intervals[0]).sum())


def intersect(left: IntervalSet, right: IntervalSet) -> IntervalSet:
    """Times in both sets."""
    if not len(left[0]) or not len(right[0]):
        return empty()
    first = np.searchsorted(right[1], left[0], side="right")
    last = np.searchsorted(right[0], left[1], side="left")
    counts = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(left[0])), counts)
    other = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return np.maximum(left[0][which], right[0][other]), np.minimum(left[1][which], right[1][other])


def subtract(left: IntervalSet, right: IntervalSet) -> IntervalSet:
    """Times in `left` and not in `right`."""
    if not len(left[0]):
        return empty()
    return intersect(left, complement(right, int(left[0][0]), int(left[1][-1])))


def complement(intervals: IntervalSet, start: int, end: int) -> IntervalSet:
    """The gaps of a set within [start, end)."""
    starts = np.concatenate([np.array([start], np.int64), intervals[1]])
    ends = np.concatenate([intervals[0], np.array([end], np.int64)])
    starts, ends = np.maximum(starts, start), np.minimum(ends, end)
    keep = ends > starts
    return starts[keep], ends[keep]


def covered(intervals: IntervalSet, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Times:
    """For each query window [start, end): how many ns of it the set covers. Windows may overlap, in any order."""
    first = np.asarray(starts, dtype=np.int64)
    last = np.maximum(np.asarray(ends, dtype=np.int64), first)
    return _covered_before(intervals, last) - _covered_before(intervals, first)


def _covered_before(intervals: IntervalSet, at: Times) -> Times:
    """How many ns of the set lie before each time."""
    if not len(intervals[0]):
        return np.zeros(len(at), np.int64)
    lengths = intervals[1] - intervals[0]
    summed = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    index = np.searchsorted(intervals[0], at, side="right")
    inside = np.zeros(len(at), np.int64)
    has = index > 0
    previous = index[has] - 1
    inside[has] = np.minimum(at[has] - intervals[0][previous], lengths[previous])
    return np.asarray(summed[np.maximum(index - 1, 0)] + inside, dtype=np.int64)


def count_inside(times: Times, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Times:
    """For each window [start, end]: how many of the sorted `times` lie in it; empty windows count 0."""
    first = np.searchsorted(times, np.asarray(starts, dtype=np.int64), side="left")
    last = np.searchsorted(times, np.asarray(ends, dtype=np.int64), side="right")
    return np.asarray(np.maximum(last - first, 0), dtype=np.int64)


def contains(intervals: IntervalSet, at: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """For each time: whether it lies in the set (start inclusive, end exclusive)."""
    times = np.asarray(at, dtype=np.int64)
    if not len(intervals[0]):
        return np.zeros(len(times), bool)
    index = np.searchsorted(intervals[0], times, side="right") - 1
    return (index >= 0) & (times < intervals[1][np.maximum(index, 0)])
