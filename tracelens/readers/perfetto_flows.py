"""Flow ids on events, and the slices that these belong to → edges between slices, in time order.

A number that comes again continues its flow until an event ends it; the numbers are global. Legacy flows are keyed by
what their version demands, begin with OUT, and arrive without beginning.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tracelens.readers.perfetto_nesting import Ints, Nested
from tracelens.readers.perfetto_pools import numbers
from tracelens.readers.perfetto_slices import OPEN, OUT, THROUGH, Events


def edges(events: Events, nested: Nested, losses: Counter[str]) -> tuple[Ints, Ints]:
    """(from, to) of all flows; those that arrive without having begun are counted."""
    position = nested.position
    at, first, second = _numbered(events, nested)
    old: list[tuple[int, int, int]] = []
    last: dict[Any, int] = {}
    for event, kind, flow, index in sorted(nested.legacy_flows, key=lambda each: position[each[0]]):
        if kind == OUT:
            last.setdefault(flow, index)
            continue
        if flow not in last:
            losses["flow-without-begin"] += 1
            continue
        old.append((int(position[event]), last[flow], index))
        if kind == THROUGH:
            last[flow] = index
    if old:
        extra = np.array(old, np.int64).T
        at, first, second = (np.concatenate(pair) for pair in zip((at, first, second), extra, strict=True))
    order = np.argsort(at, kind="stable")
    first, second = first[order], second[order]
    turned = nested.start[first] > nested.start[second]
    return np.where(turned, second, first), np.where(turned, first, second)


def _numbered(events: Events, nested: Nested) -> tuple[Ints, Ints, Ints]:
    """(place in time, from, to) of the flows of TrackEvents: each id joins an event with the one before."""
    rows, flows, ends = numbers(events.flow_row), numbers(events.flow_id), numbers(events.flow_ends) != 0
    bound, position = nested.bound[rows], nested.position
    kept = np.flatnonzero(bound != OPEN)
    kept = kept[np.argsort(position[rows[kept]], kind="stable")]
    kept = kept[np.argsort(flows[kept], kind="stable")]
    joined = np.flatnonzero((flows[kept][1:] == flows[kept][:-1]) & ~ends[kept][:-1])
    before, after = kept[joined], kept[joined + 1]
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    return position[rows[after]], bound[before], bound[after]
