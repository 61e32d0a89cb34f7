"""The exclusion test: while a native call holds the GIL, no other thread can start or end a Python row inside it.

Compares what other threads did inside a call with what their own rate outside it would give. Pure arithmetic over
Python rows; the verdict is the rule's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tracelens import intervals
from tracelens_gil.python_rows import Bools, Callee, Ints, Thread, callee

GUARD_NS = 50_000
"""Cut from both ends of a call: row times lie 9 (at most 58) µs from where the lock changes hands."""


@dataclass(frozen=True)
class Spans:
    """Stretches of time in which one thread may have kept the GIL, longer than two guards, sorted, ns.

    `inner_start`/`inner_end` are the stretches less the guards.
    """

    thread: Thread
    start: Ints
    end: Ints

    @property
    def inner_start(self) -> Ints:
        """Starts less the guard."""
        return self.start + GUARD_NS

    @property
    def inner_end(self) -> Ints:
        """Ends less the guard."""
        return self.end - GUARD_NS

    @property
    def total_ns(self) -> int:
        """Summed length."""
        return int((self.end - self.start).sum())

    @property
    def inner_ns(self) -> int:
        """Summed length less the guards."""
        return int((self.inner_end - self.inner_start).sum())


@dataclass(frozen=True)
class Calls(Spans):
    """All calls of one native callable by one thread that are long enough to say something.

    `rows` are their rows in the thread; `all_calls` counts the short ones too, `median_ns` is over all of them.
    """

    callee: Callee
    rows: Ints
    all_calls: int
    median_ns: int


def native_calls(threads: Iterable[Thread]) -> list[Calls]:
    """Innermost native calls longer than two guards, grouped by thread and callable.

    Outer rows contain everything and prove nothing; calls that run Python inside (sort with a key) are outer rows.
    """
    groups = []
    for thread in threads:
        by_callee: dict[Callee, list[int]] = defaultdict(list)
        for index in np.flatnonzero(thread.is_leaf).tolist():
            native = callee(thread.names[index])
            if native is not None:
                by_callee[native].append(index)
        for native, found in by_callee.items():
            rows = np.array(found, np.int64)
            lengths = thread.end[rows] - thread.start[rows]
            long = rows[lengths > 2 * GUARD_NS]
            if len(long):
                groups.append(
                    Calls(
                        thread=thread,
                        callee=native,
                        rows=long,
                        start=thread.start[long],
                        end=thread.end[long],
                        all_calls=len(rows),
                        median_ns=int(np.median(lengths)),
                    )
                )
    return groups


@dataclass(frozen=True)
class Witness:
    """What one other thread did inside spans: `inside` events against `expected` from its rate outside them.

    Counted only over the `calls` (spans) at whose start it was not parked in a lock, queue or poll wait.
    """

    thread: Thread
    inside: int
    expected: float
    calls: int

    @property
    def ratio(self) -> float:
        """Observed over expected; 0 is complete exclusion, about 1 none."""
        return self.inside / self.expected if self.expected else float("nan")


def witness(calls: Spans, other: Thread, wall: tuple[int, int]) -> Witness:
    """What `other` did inside `calls`; `wall` is the recorded window of the process, ns."""
    events = other.events
    awake = ~other.waiting_at(calls.start)
    inside = intervals.count_inside(events, calls.inner_start, calls.inner_end)
    hidden = intervals.union(calls.start, calls.end)
    outside_ns = (wall[1] - wall[0]) - intervals.total(hidden)
    outside_events = len(events) - int(intervals.contains(hidden, events).sum())
    rate = outside_events / outside_ns if outside_ns > 0 else 0.0
    return Witness(
        thread=other,
        inside=int(inside[awake].sum()),
        expected=rate * int((calls.inner_end - calls.inner_start)[awake].sum()),
        calls=int(awake.sum()),
    )


def intruded(calls: Spans, others: Iterable[Thread]) -> Bools:
    """For each call: whether any other thread ran Python inside it."""
    seen = np.zeros(len(calls.start), bool)
    for other in others:
        seen |= intervals.count_inside(other.events, calls.inner_start, calls.inner_end) > 0
    return seen


def releasing_control(calls: Calls, groups: Iterable[Calls], threads: Iterable[Thread]) -> tuple[int, str | None]:
    """Events of other threads inside *other* native calls: proof that the recording would show a release.

    Returns the count and the callable with most of them.
    """
    everyone = list(threads)
    best: tuple[int, str | None] = (0, None)
    total = 0
    for group in groups:
        if group.callee == calls.callee:
            continue
        count = sum(
            int(intervals.count_inside(thread.events, group.inner_start, group.inner_end).sum())
            for thread in everyone
            if thread.track_id != group.thread.track_id
        )
        total += count
        if count > best[0]:
            best = (count, group.callee.label)
    return total, best[1]


def clipped(calls: Calls, start_ns: int, end_ns: int) -> Calls:
    """The calls that lie wholly within [start_ns, end_ns]."""
    keep = (calls.start >= start_ns) & (calls.end <= end_ns)
    return replace(calls, rows=calls.rows[keep], start=calls.start[keep], end=calls.end[keep])
