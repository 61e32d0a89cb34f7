"""All events in time order → slices with parents and depth: plain tracks at once, all others event by event.

A track is plain if it holds only begins, ends and instants, and every end agrees with the innermost open slice; then
which end closes which begin follows from the depth alone. `Slices` is the oracle: on plain tracks both give the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.readers.perfetto_pools import NONE, numbers
from tracelens.readers.perfetto_slices import BEGIN, END, INSTANT, MAX_DEPTH, OPEN, Events, Slices

Ints: TypeAlias = npt.NDArray[Any]
"""Times are 64 bits wide, rows, tracks and levels 32: of a million events every column counts."""
_STEP = np.zeros(8, np.int32)
_STEP[[BEGIN, END]] = 1, -1


@dataclass
class Nested:
    """Slices in order of their begins, as columns: event, start, length, parent (OPEN for none), depth.

    `bound` is by event the slice that it belongs to, or OPEN, `position` its place in time; `merged` is by slice the
    ends that bring arguments.
    """

    row: Ints
    start: Ints
    duration: Ints
    parent: Ints
    depth: Ints
    bound: Ints
    position: Ints
    merged: dict[int, list[int]]
    legacy_flows: list[tuple[int, str, Any, int]]
    losses: Counter[str]
    lost_ns: int


def nest(events: Events, rows: Ints, times: Ints, last: int) -> Nested:
    """Slices of the events `rows`, which come in order of their times; what never ends is cut at `last`."""
    if not len(rows):
        return _merge(events, _Plain.none(), Slices(events), np.zeros(len(events.track), np.int32))
    tracks = numbers(events.track)[rows]
    phases = numbers(events.phase)[rows]
    unusual = np.zeros(int(tracks.max()) + 1, bool)
    unusual[tracks[~np.isin(phases, (BEGIN, END, INSTANT))]] = True
    legacy = [events.track[row] for row in events.legacy_flows]
    unusual[[track for track in legacy if track < len(unusual)]] = True
    plain = _plain(events, rows, times, tracks, phases, ~unusual[tracks], last)
    if plain.disagreeing.any():
        unusual[plain.disagreeing[: len(unusual)]] = True
        plain = _plain(events, rows, times, tracks, phases, ~unusual[tracks], last)
    slices = Slices(events)
    others = np.flatnonzero(unusual[tracks])
    slices.feed(rows[others].tolist(), times[others].tolist())
    slices.finish(last)
    position = np.zeros(len(events.track), np.int32)
    position[rows] = np.arange(len(rows), dtype=np.int32)
    return _merge(events, plain, slices, position)


@dataclass
class _Plain:
    """Slices of plain tracks, and which event ended which of them."""

    row: Ints
    start: Ints
    duration: Ints
    parent: Ints
    depth: Ints
    ends: Ints
    ended: Ints
    losses: Counter[str]
    disagreeing: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> _Plain:
        none = np.empty(0, np.int64)
        return cls(none, none, none, none, none, none, none, Counter(), np.empty(0, bool))


def _plain(
    events: Events, rows: Ints, times: Ints, tracks: Ints, phases: Ints, mine: npt.NDArray[np.bool_], last: int
) -> _Plain:
    """Match begins and ends of some tracks; `disagreeing` are tracks where that is wrong, by track."""
    order = np.flatnonzero(mine).astype(np.int32)
    if not len(order):
        return _Plain.none()
    order = order[np.argsort(_narrow(tracks[order]), kind="stable")]
    track, phase = tracks[order], phases[order]
    after, unmatched = _depths(track, _STEP[phase])
    level = after - (phase == BEGIN)
    ladder = np.flatnonzero(~unmatched & (phase != INSTANT)).astype(np.int32)
    ladder = ladder[np.argsort(_narrow(level[ladder]), kind="stable")]
    ending = np.flatnonzero(phase[ladder] == END)
    begins, ends = ladder[ending - 1], ladder[ending]
    disagreeing = np.zeros(int(tracks.max()) + 1, bool)
    for column, free in ((events.name, True), (events.category, False)):
        codes = numbers(column)[rows[order]]
        begun, ended = codes[begins], codes[ends]
        wrong = (ended != NONE) & (begun != ended) & ~(free & (begun == NONE))
        disagreeing[track[ends[wrong]]] = True
    disagreeing[track[level > MAX_DEPTH]] = True
    finish = times[order]
    unfinished = phase == BEGIN
    unfinished[begins] = False
    finish[unfinished] = np.maximum(last, finish[unfinished])
    finish[begins] = times[order[ends]]
    parent = _parents(level, phase, ladder)
    made = np.flatnonzero(phase != END).astype(np.int32)
    made = made[np.argsort(order[made], kind="stable")]
    number = np.full(len(order) + 1, OPEN, np.int32)
    number[made] = np.arange(len(made), dtype=np.int32)
    start = times[order[made]]
    return _Plain(
        row=rows[order[made]],
        start=start,
        duration=finish[made] - start,
        parent=number[parent[made]],
        depth=level[made],
        ends=rows[order[ends]],
        ended=number[begins],
        losses=Counter({"end-without-begin": int(unmatched.sum()), "unfinished": int(unfinished.sum())}),
        disagreeing=disagreeing,
    )


def _narrow(values: Ints) -> npt.NDArray[Any]:
    """The same order in 16 bits, where they fit: sorting those takes linear time."""
    return values.astype(np.uint16) if int(values.max(initial=0)) < 1 << 16 else values


def _depths(track: Ints, step: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(open slices after each event, ends that close nothing) of events grouped by track."""
    first = np.flatnonzero(np.concatenate([[True], track[1:] != track[:-1]]))
    group = np.zeros(len(track), np.int32)
    group[first[1:]] = 1
    group = np.cumsum(group, dtype=np.int32)
    height = np.cumsum(step, dtype=np.int32)
    height -= (height - step)[first][group]
    # Below every value of the groups before, so that one running minimum serves all groups.
    apart = group.astype(np.int64) * (2 * len(track) + 2)
    lowest = (np.minimum.accumulate(np.minimum(height, 0) - apart) + apart).astype(np.int32)
    before = np.concatenate([lowest[:1], lowest[:-1]])
    before[first] = 0
    return height - lowest, (step < 0) & (lowest < before)


def _parents(level: Ints, phase: Ints, ladder: Ints) -> Ints:
    """By event: the begin one level up that is open around it; len(level) for none."""
    none = len(level)
    begins = ladder[phase[ladder] == BEGIN]
    asked = np.flatnonzero((phase != END) & (level > 0))
    parent = np.full(none, none, np.int32)
    if len(asked):
        wide = np.int64(none + 1)
        keys = level[begins] * wide + begins
        found = np.searchsorted(keys, (level[asked] - 1) * wide + asked) - 1
        parent[asked] = begins[found]
    return parent


def _merge(events: Events, plain: _Plain, slices: Slices, position: Ints) -> Nested:
    """Both kinds of tracks, in order of time."""
    row = np.concatenate([plain.row, numbers(slices.row)])
    order = np.argsort(position[row], kind="stable")
    number = np.empty(len(row) + 1, np.int32)
    number[order] = np.arange(len(row), dtype=np.int32)
    number[len(row)] = OPEN
    split = len(plain.row)
    others = numbers(slices.parent)
    parent = np.concatenate([plain.parent, np.where(others == OPEN, OPEN, others + split)])
    bound = numbers(slices.bound)
    bound = number[np.where(bound == OPEN, len(row), bound + split)]
    bound[plain.row] = number[:split]
    bound[plain.ends] = number[plain.ended]
    merged: dict[int, list[int]] = defaultdict(list)
    arguments = numbers(events.args)[plain.ends] != NONE
    for end, begun in zip(plain.ends[arguments].tolist(), number[plain.ended[arguments]].tolist(), strict=True):
        merged[begun].append(end)
    for begun, ends in slices.merged.items():
        merged[int(number[split + begun])] += ends
    return Nested(
        row=row[order],
        start=np.concatenate([plain.start, numbers(slices.start)])[order],
        duration=np.concatenate([plain.duration, numbers(slices.duration)])[order],
        parent=number[parent][order],
        depth=np.concatenate([plain.depth, numbers(slices.depth)])[order],
        bound=bound,
        position=position,
        merged=merged,
        legacy_flows=[
            (event, kind, flow, int(number[split + index])) for event, kind, flow, index in slices.legacy_flows
        ],
        losses=plain.losses + slices.losses,
        lost_ns=slices.lost_ns,
    )
