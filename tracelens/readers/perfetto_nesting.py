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

Ints: TypeAlias = npt.NDArray[np.int64]
_STEP = np.zeros(8, np.int64)
_STEP[[BEGIN, END]] = 1, -1


@dataclass
class Nested:
    """Slices in order of their begins, as columns: event, start, length, parent (OPEN for none), depth.

    `bound` is by event the slice that it belongs to, or OPEN; `merged` by slice the ends that bring arguments.
    """

    row: Ints
    start: Ints
    duration: Ints
    parent: Ints
    depth: Ints
    bound: Ints
    merged: dict[int, list[int]]
    legacy_flows: list[tuple[int, str, Any, int]]
    losses: Counter[str]
    lost_ns: int


def nest(events: Events, rows: Ints, times: Ints, last: int) -> Nested:
    """Slices of the events `rows`, which come in order of their times; what never ends is cut at `last`."""
    if not len(rows):
        return _merge(events, _Plain.none(), Slices(events), np.zeros(len(events.at), np.int64))
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
    position = np.zeros(len(events.at), np.int64)
    position[rows] = np.arange(len(rows))
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
        return cls(*(np.empty(0, np.int64) for _ in range(7)), Counter(), np.empty(0, bool))


def _plain(
    events: Events, rows: Ints, times: Ints, tracks: Ints, phases: Ints, mine: npt.NDArray[np.bool_], last: int
) -> _Plain:
    """Match begins and ends of some tracks; `disagreeing` are tracks where that is wrong, by track."""
    order = np.flatnonzero(mine)
    if not len(order):
        return _Plain.none()
    order = order[np.argsort(_narrow(tracks[order]), kind="stable")]
    track, phase = tracks[order], phases[order]
    after, unmatched = _depths(track, _STEP[phase])
    level = after - (phase == BEGIN)
    kept = np.flatnonzero(~unmatched)
    ladder = kept[np.argsort(_narrow(level[kept]), kind="stable")]
    ladder = ladder[phase[ladder] != INSTANT]
    ending = np.flatnonzero(phase[ladder] == END)
    begins, ends = ladder[ending - 1], ladder[ending]
    disagreeing = np.zeros(int(tracks.max()) + 1, bool)
    for column, free in ((events.name, True), (events.category, False)):
        codes = numbers(column)[rows[order]]
        begun, ended = codes[begins], codes[ends]
        wrong = (ended != NONE) & (begun != ended) & ~(free & (begun == NONE))
        disagreeing[track[ends[wrong]]] = True
    disagreeing[track[level > MAX_DEPTH]] = True
    length = np.where(phase == BEGIN, np.maximum(last - times[order], 0), 0)
    unfinished = np.zeros(len(order), bool)
    unfinished[phase == BEGIN] = True
    unfinished[begins] = False
    length[begins] = times[order[ends]] - times[order[begins]]
    parent = _parents(level, phase, ladder)
    made = np.flatnonzero(phase != END)
    made = made[np.argsort(order[made], kind="stable")]
    number = np.full(len(order) + 1, OPEN)
    number[made] = np.arange(len(made))
    return _Plain(
        row=rows[order[made]],
        start=times[order[made]],
        duration=length[made],
        parent=number[parent[made]],
        depth=level[made],
        ends=rows[order[ends]],
        ended=number[begins],
        losses=Counter({"end-without-begin": int(unmatched.sum()), "unfinished": int(unfinished.sum())}),
        disagreeing=disagreeing,
    )


def _narrow(values: Ints) -> npt.NDArray[Any]:
    """The same order in 16 bits, where they fit: sorting those takes linear time."""
    return values.astype(np.uint16) if int(values.max()) < 1 << 16 and int(values.min()) >= 0 else values


def _depths(track: Ints, step: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """(open slices after each event, ends that close nothing) of events grouped by track."""
    first = np.flatnonzero(np.concatenate([[True], track[1:] != track[:-1]]))
    group = np.zeros(len(track), np.int64)
    group[first[1:]] = 1
    group = np.cumsum(group)
    height = np.cumsum(step)
    height -= (height - step)[first][group]
    # Below every value of the groups before, so that one running minimum serves all groups.
    apart = group * (2 * len(track) + 2)
    lowest = np.minimum.accumulate(np.minimum(height, 0) - apart) + apart
    before = np.concatenate([[0], lowest[:-1]])
    before[first] = 0
    return height - lowest, (step < 0) & (lowest < before)


def _parents(level: Ints, phase: Ints, ladder: Ints) -> Ints:
    """By event: the begin one level up that is open around it; len(level) for none."""
    none = len(level)
    begins = ladder[phase[ladder] == BEGIN]
    wide = none + 1
    keys = level[begins] * wide + begins
    asked = np.flatnonzero((phase != END) & (level > 0))
    found = np.searchsorted(keys, (level[asked] - 1) * wide + asked) - 1
    parent = np.full(none, none)
    parent[asked] = begins[found]
    return parent


def _merge(events: Events, plain: _Plain, slices: Slices, position: Ints) -> Nested:
    """Both kinds of tracks, in order of time."""
    own = numbers(slices.row).astype(np.int64)
    row = np.concatenate([plain.row, own])
    order = np.argsort(position[row], kind="stable")
    number = np.empty(len(row) + 1, np.int64)
    number[order] = np.arange(len(row))
    number[len(row)] = OPEN
    split = len(plain.row)
    others = numbers(slices.parent)
    parent = np.concatenate([plain.parent, np.where(others == OPEN, OPEN, others + split)])
    bound = numbers(slices.bound).astype(np.int64)
    bound = number[np.where(bound == OPEN, len(row), bound + split)]
    bound[plain.row] = number[: split]
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
        merged=merged,
        legacy_flows=[(event, kind, flow, int(number[split + index])) for event, kind, flow, index in slices.legacy_flows],
        losses=plain.losses + slices.losses,
        lost_ns=slices.lost_ns,
    )
