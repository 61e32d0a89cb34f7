"""Packets of plain TrackEvents → columns of numbers, all packets of a block at once; numpy's way.

A packet is plain if it holds nothing but a time, a sequence, flags, a clock, interned data and one TrackEvent, and that
nothing but type, track, name, category, arguments, flows, source location and counter value, each once and in its own
wire type. Whatever is not is left to the reader of single packets. Knows no state: ids are not yet names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

PADDING = 16
"""Zero bytes behind a block, so that a number may be looked at without asking for its length."""
ABSENT = -1
MAX_IID = 1 << 20
"""Interned ids are counted from 1 by all writers known; one that uses larger ones is read packet by packet."""
MAX_TIME = 2**62

AT, SEQUENCE, EVENT, INTERNED, INTERNED_SIZE, FLAGS, CLOCK = range(7)
TYPE, TRACK, HAS_TRACK, NAME, NAME_TEXT, NAME_SIZE, CATEGORY, CATEGORY_TEXT, CATEGORY_SIZE = range(7, 16)
PLACE, VALUE, VALUE_KIND, EVENT_SIZE, SEEN = range(16, 21)
COLUMNS = 21
INTEGER, DOUBLE = 1, 2
ROW, ARGUMENT_NAME, ARGUMENT_KIND, ARGUMENT_VALUE, ARGUMENT_AT, ARGUMENT_SIZE = range(6)
BOOL, UINT, INT, FLOAT, TEXT, OTHER = range(6)
"""Kinds of argument: OTHER is everything that has no number, read as bytes."""

VARINT, FIXED, SIZED = 0, 1, 2
PACKET_FIELDS = {
    8 << 3: (AT, ABSENT),
    10 << 3: (SEQUENCE, ABSENT),
    11 << 3 | SIZED: (EVENT, EVENT_SIZE),
    12 << 3 | SIZED: (INTERNED, INTERNED_SIZE),
    13 << 3: (FLAGS, ABSENT),
    58 << 3: (CLOCK, ABSENT),
}
EVENT_FIELDS = {
    9 << 3: (TYPE, ABSENT),
    11 << 3: (TRACK, ABSENT),
    10 << 3: (NAME, ABSENT),
    23 << 3 | SIZED: (NAME_TEXT, NAME_SIZE),
    3 << 3: (CATEGORY, ABSENT),
    22 << 3 | SIZED: (CATEGORY_TEXT, CATEGORY_SIZE),
    34 << 3: (PLACE, ABSENT),
    30 << 3: (VALUE, ABSENT),
    44 << 3 | FIXED: (VALUE, ABSENT),
}
"""Tag of a field → the columns of its value (or where its bytes are) and of their number."""
ANNOTATION, FLOW, FLOW_END = 4 << 3 | SIZED, 47 << 3 | FIXED, 48 << 3 | FIXED
VALUE_KINDS = {30 << 3: INTEGER, 44 << 3 | FIXED: DOUBLE}
ARGUMENT_KINDS = {2 << 3: BOOL, 3 << 3: UINT, 4 << 3: INT, 7 << 3: UINT, 5 << 3 | FIXED: FLOAT, 17 << 3: TEXT}


@dataclass
class Walked:
    """Columns of a block's packets (see the constants above), of their arguments, and of their flows.

    Values are 64 bits wide, unsigned ones and floats by their bits. `plain` says which packets the columns describe;
    rows of arguments and flows are in order of packets, and of others than plain packets must not be looked at.
    """

    plain: Bools
    packets: Ints
    arguments: Ints
    flow_row: Ints
    flow_id: npt.NDArray[np.uint64]
    flow_ends: Bools


def walk(data: Bytes, starts: Ints, ends: Ints) -> Walked:
    """Walk packets [starts, ends) of padded data."""
    count = len(starts)
    packets = np.zeros((COLUMNS, count), np.int64)
    plain = np.ones(count, bool)
    packets[[INTERNED_SIZE, EVENT_SIZE, NAME_SIZE, CATEGORY, CATEGORY_SIZE]] = ABSENT
    _Walk(data, packets, plain, PACKET_FIELDS).run(np.arange(count), starts, ends)
    plain &= (packets[SEEN] & 1 << AT != 0) & (packets[EVENT_SIZE] >= 0)
    events = np.flatnonzero(plain)
    inner = _Walk(data, packets, plain, EVENT_FIELDS)
    inner.run(events, packets[EVENT][events], packets[EVENT][events] + packets[EVENT_SIZE][events])
    packets[HAS_TRACK] = packets[SEEN] & 1 << TRACK != 0
    judge(packets, plain)
    rows, at, sizes = inner.many(ANNOTATION)
    flows = [inner.many(tag) for tag in (FLOW, FLOW_END)]
    flow_row = np.concatenate([flow[0] for flow in flows])
    order = np.argsort(flow_row, kind="stable")
    flow_ends = np.concatenate([np.zeros(len(flows[0][0]), bool), np.ones(len(flows[1][0]), bool)])
    return Walked(
        plain,
        packets,
        _arguments(data, rows, at, sizes),
        flow_row[order],
        np.concatenate([flow[1] for flow in flows])[order].view(np.uint64),
        flow_ends[order],
    )


def judge(packets: Ints, plain: Bools) -> None:
    """Values that only the reader of single packets understands make a packet not plain."""
    at, kind = packets[AT], packets[TYPE]
    plain &= (at >= 0) & (at < MAX_TIME) & (kind >= 1) & (kind <= 4)
    for column in (SEQUENCE, FLAGS, CLOCK):
        plain &= packets[column] >> 32 == 0
    for column in (NAME, CATEGORY, PLACE):
        plain &= packets[column] < MAX_IID
        plain &= packets[column] >= ABSENT
    plain &= packets[FLAGS] & 1 == 0
    seen = packets[SEEN]
    plain &= ~((seen & 1 << NAME != 0) & (packets[NAME_SIZE] >= 0))
    plain &= ~((seen & 1 << CATEGORY != 0) & (packets[CATEGORY_SIZE] >= 0))


class _Walk:
    """One message a row, field after field: in every step each row that is not at its end gives one field."""

    def __init__(self, data: Bytes, packets: Ints, plain: Bools, fields: dict[int, tuple[int, int]]) -> None:
        self._data = data
        self._packets = packets
        self._plain = plain
        self._fields = fields
        self._many: dict[int, list[tuple[Ints, Ints, Ints]]] = {}

    def run(self, rows: Ints, at: Ints, ends: Ints) -> None:
        """Walk the messages [at, ends) of some rows."""
        data, plain = self._data, self._plain
        while True:
            live = np.flatnonzero(at < ends)
            if len(live) < len(at):
                rows, at, ends = rows[live], at[live], ends[live]
            if not len(live):
                return
            tags, at = _tags(data, at)
            good = np.ones(len(rows), bool)
            for tag in np.flatnonzero(np.bincount(tags)).tolist():
                mine = np.flatnonzero(tags == tag) if tags[0] != tag or tags[-1] != tag else _all_or(tags, tag)
                good[mine] = self._take(tag, rows[mine], mine, at, ends)
            plain[rows[~good]] = False
            at[~good] = ends[~good]

    def _take(self, tag: int, rows: Ints, mine: Any, at: Ints, ends: Ints) -> Bools:
        """Take one field of some rows and move past it; says which rows were good."""
        here = at[mine]
        size = np.zeros(len(here), np.int64)
        if tag & 7 == FIXED:
            value = _words(self._data, here).view(np.int64)
            after = here + 8
        elif tag & 7 == VARINT or tag & 7 == SIZED:
            value, after, good = varints(self._data, here)
            if tag & 7 == SIZED:
                size = np.where(good & (value >= 0) & (value < 1 << 32), value, 1 << 32)
                value, after = after, after + size
        else:
            return np.zeros(len(here), bool)
        right: Bools = after <= ends[mine]
        if tag & 7 != FIXED:
            right &= good
        at[mine] = np.where(right, after, ends[mine])
        if tag in (ANNOTATION, FLOW, FLOW_END) and self._fields is EVENT_FIELDS:
            self._many.setdefault(tag, []).append((rows[right], value[right], size[right]))
            return right
        found = self._fields.get(tag)
        if found is None:
            return np.zeros(len(here), bool)
        column, sized = found
        packets = self._packets
        right &= packets[SEEN][rows] & 1 << column == 0
        packets[SEEN][rows] |= 1 << column
        packets[column][rows] = value
        if sized >= 0:
            packets[sized][rows] = size
        if tag in VALUE_KINDS and column == VALUE:
            packets[VALUE_KIND][rows] = VALUE_KINDS[tag]
        return right

    def many(self, tag: int) -> tuple[Ints, Ints, Ints]:
        """(row, value or place, size) of a field that may come many times, in order of rows."""
        parts = self._many.get(tag, [])
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        rows, values, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return rows[order], values[order], sizes[order]


def _all_or(tags: Ints, tag: int) -> Any:
    """Where a tag stands; a slice where it stands everywhere, which is cheaper."""
    same = tags == tag
    return slice(None) if same.all() else np.flatnonzero(same)


def _words(data: Bytes, at: Ints) -> npt.NDArray[np.uint64]:
    """Eight bytes, little endian, from each place."""
    windows: npt.NDArray[np.uint64] = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    return windows[np.minimum(at, len(windows) - 1)]


def _tags(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """(tag, place behind it); tags of more than two bytes come out as 7, which is no tag."""
    tags = data[at].astype(np.int64)
    after = at + 1
    long = np.flatnonzero(tags > 0x7F)
    if len(long):
        second = data[after[long]].astype(np.int64)
        tags[long] = np.where(second > 0x7F, 7, tags[long] & 0x7F | second << 7)
        after[long] += 1
    return tags, after


_GROUPS = ((0x007F007F007F007F, 0x7F007F007F007F00, 1), (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2))
_STOPS, _ONES, _LOW = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101), np.uint64(0x7F7F7F7F7F7F7F7F)


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints, Bools]:
    """(value as 64 bits, place behind it, whether it is one) of the varint at each place."""
    first = data[np.minimum(at, len(data) - 1)]
    if not (first > 0x7F).any():
        return first.astype(np.int64), at + 1, np.ones(len(at), bool)
    word = _words(data, at)
    stops = ~word & _STOPS
    within = stops ^ (stops - np.uint64(1))
    value = word & within & _LOW
    size = ((within & _ONES) * _ONES >> np.uint64(56)).astype(np.int64)
    for low, high, shift in _GROUPS:
        value = value & np.uint64(low) | (value & np.uint64(high)) >> np.uint64(shift)
    value = value & np.uint64(0x0FFFFFFF) | (value & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    good = np.ones(len(at), bool)
    long = np.flatnonzero(stops == 0)
    if len(long):
        ninth, tenth = (data[np.minimum(at[long] + more, len(data) - 1)] for more in (8, 9))
        longest = ninth > 0x7F
        value[long] |= (ninth & 0x7F).astype(np.uint64) << np.uint64(56)
        value[long] |= np.where(longest, tenth.astype(np.uint64) << np.uint64(63), np.uint64(0))
        size[long] = 9 + longest
        good[long] = ~longest | (tenth <= 1)
    return value.view(np.int64), at + size, good


def _arguments(data: Bytes, rows: Ints, at: Ints, sizes: Ints) -> Ints:
    """The arguments that are an interned name and a number or interned text; all others are OTHER."""
    made = np.zeros((6, len(rows)), np.int64)
    made[ROW], made[ARGUMENT_AT], made[ARGUMENT_SIZE] = rows, at, sizes
    made[ARGUMENT_KIND] = OTHER
    if not len(rows):
        return made
    ends = at + sizes
    named = np.flatnonzero((data[at] == 1 << 3) & (sizes > 3))
    name, after, good = varints(data, at[named] + 1)
    named, name, after = (
        each[good & (name < MAX_IID) & (name > 0) & (after < ends[named])] for each in (named, name, after)
    )
    tags, after = _tags(data, after)
    for tag, kind in ARGUMENT_KINDS.items():
        mine = np.flatnonzero(tags == tag)
        if not len(mine):
            continue
        here = after[mine]
        if kind == FLOAT:
            value, end, good = _words(data, here).view(np.int64), here + 8, np.ones(len(mine), bool)
        else:
            value, end, good = varints(data, here)
        good = good & (end == ends[named[mine]])
        if kind == TEXT:
            good &= (value >= 0) & (value < MAX_IID)
        chosen = named[mine[good]]
        made[ARGUMENT_KIND, chosen] = kind
        made[ARGUMENT_NAME, chosen] = name[mine[good]]
        made[ARGUMENT_VALUE, chosen] = value[good]
    return made
