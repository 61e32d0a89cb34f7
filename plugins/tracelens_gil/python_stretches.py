"""Stretches in which a thread ran Python and nothing else: no native call of note, no wait.

A thread that calls Python functions leaves rows all the time and so proves that it runs. A loop without calls is
silent, and so is a native call that leaves no row (ctypes). A silence shorter than a switch interval can be either:
stretches that are mostly such silences are cut at them. A longer one stays, and whether others got in amid it decides
what it was. Judges nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracelens_gil.exclusion import GUARD_NS, Spans
from tracelens_gil.python_rows import Bools, Ints, Thread, callee

SILENT_NS = 1_000_000
"""Time without an own row from which on a Python frame says nothing about what it does."""
LONGER = 1.2
"""A silence of this many switch intervals must show a forced turn if Python runs in it; such waits last 5.0–5.3 ms."""
FORCED = 0.8
"""A wait of this many switch intervals was ended by the interpreter, not by the thread that kept the GIL."""
COVERS = 0.8
"""The function of a stretch is the innermost frame that covers this share of it."""


@dataclass(frozen=True)
class Stretches(Spans):
    """Python stretches of one thread in one function; `row` is a row of it, `silent` the time without own rows, ns."""

    row: int
    silent: Ints

    @property
    def silent_ns(self) -> int:
        """Time without own rows in all of them."""
        return int(self.silent.sum())

    @property
    def frame(self) -> str:
        """The function's row name, "path.py(12): function"."""
        return self.thread.names[self.row]

    def clipped(self, start_ns: int, end_ns: int) -> Stretches:
        """Those that lie wholly within [start_ns, end_ns]."""
        keep = (self.start >= start_ns) & (self.end <= end_ns)
        return replace(self, start=self.start[keep], end=self.end[keep], silent=self.silent[keep])


def python_stretches(threads: Iterable[Thread], interval_ns: int, shortest_ns: int) -> list[Stretches]:
    """Stretches of at least `shortest_ns`, grouped by thread and function; `interval_ns` is the switch interval."""
    found = []
    for thread in threads:
        start, end, silent = _stretches(thread, interval_ns, shortest_ns)
        rows = [_function(thread, first, last) for first, last in zip(start.tolist(), end.tolist(), strict=True)]
        groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            if row >= 0:
                groups[thread.names[row], thread.files[row]].append(index)
        for members in groups.values():
            which = np.array(members, np.int64)
            found.append(
                Stretches(
                    thread=thread,
                    start=start[which],
                    end=end[which],
                    row=rows[members[0]],
                    silent=silent[which],
                )
            )
    return found


def _stretches(thread: Thread, interval_ns: int, shortest_ns: int) -> tuple[Ints, Ints, Ints]:
    """Start, end and silent time of each stretch."""
    edges = np.unique(np.concatenate([thread.start, thread.end]))
    start, end = edges[:-1], edges[1:]
    row = thread.innermost_at(start)
    inside = np.maximum(row, 0)
    silent = np.where(end - start > SILENT_NS, end - start, 0)
    unclear = np.where(end - start < LONGER * interval_ns, silent, 0)
    good = (row >= 0) & ~thread.wait[inside] & ~_long_native(thread)[inside]
    first, last = _runs(good)
    doubtful = 2 * _within(unclear, first, last) > end[last] - start[first]
    for begin, finish in zip(first[doubtful].tolist(), last[doubtful].tolist(), strict=True):
        good[begin : finish + 1] &= unclear[begin : finish + 1] == 0
    first, last = _runs(good)
    long = end[last] - start[first] >= max(shortest_ns, 2 * GUARD_NS + 1)
    first, last = first[long], last[long]
    return start[first], end[last], _within(silent, first, last)


def _runs(good: Bools) -> tuple[Ints, Ints]:
    """First and last index of each run of True."""
    changes = np.flatnonzero(np.diff(good.astype(np.int8), prepend=0, append=0))
    return changes[::2], changes[1::2] - 1


def _within(lengths: Ints, first: Ints, last: Ints) -> Ints:
    """Sums of `lengths` over runs."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return np.asarray(sums[last + 1] - sums[first], np.int64)


def _long_native(thread: Thread) -> Bools:
    """Rows of native calls that are long enough to matter by themselves."""
    long = thread.is_leaf & (thread.end - thread.start > 2 * GUARD_NS)
    for index in np.flatnonzero(long).tolist():
        long[index] = callee(thread.names[index]) is not None
    return long


def _function(thread: Thread, start: int, end: int) -> int:
    """The row of the innermost Python frame that covers most of a stretch, or -1."""
    for row in _open_at(thread, (start + end) // 2):
        covered = min(end, int(thread.end[row])) - max(start, int(thread.start[row]))
        if covered >= COVERS * (end - start) and callee(thread.names[row]) is None:
            return row
    return -1


def _open_at(thread: Thread, at: int) -> Iterator[int]:
    """The rows open at a time, innermost first."""
    row = int(thread.innermost_at(np.array([at], np.int64))[0])
    while row >= 0:
        yield row
        row = int(thread.parent[row])


@dataclass(frozen=True)
class Turns:
    """When other threads ran inside some stretches: `taken` turns, of which `forced` ended a wait of a switch interval.

    `amid` of the forced ones came while the stretch had another interval to go: what a call without a row, which keeps
    the GIL to its end, cannot show. About `possible` such turns fit into the stretches.
    """

    taken: int
    forced: int
    amid: int
    possible: float


def turns(spans: Spans, others: Iterable[Thread], interval_ns: int) -> Turns:
    """Count the turns of all other threads together; events closer than a fifth of the interval are one turn."""
    events = [other.events for other in others]
    merged = np.sort(np.concatenate(events)) if events else np.empty(0, np.int64)
    wait_ns = int(FORCED * interval_ns)
    taken = forced = amid = 0
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        low, high = np.searchsorted(merged, [start + GUARD_NS, end - GUARD_NS])
        times = merged[low:high]
        gaps = np.diff(times, prepend=start)
        taken += int((gaps > interval_ns / 5).sum())
        forced += int((gaps >= wait_ns).sum())
        amid += int(((gaps >= wait_ns) & (times <= end - wait_ns)).sum())
    lengths = (spans.end - spans.start) / interval_ns
    return Turns(taken, forced, amid, float(np.maximum(lengths - 1, 0).sum()))
