"""The loops of `perfetto_packets.chain` and `perfetto_walk.walk`, compiled by numba: the same output, faster.

Importing this needs numba (extra `fast`); compiled code is cached beside this file or in numba's cache folder. The
loops hold no GIL.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tracelens.readers.perfetto_packets import MAX_PACKET, PACKET
from tracelens.readers.perfetto_walk import (
    ABSENT,
    ANNOTATION,
    ARGUMENT_AT,
    ARGUMENT_KIND,
    ARGUMENT_KINDS,
    ARGUMENT_NAME,
    ARGUMENT_SIZE,
    ARGUMENT_VALUE,
    AT,
    CATEGORY,
    CATEGORY_SIZE,
    COLUMNS,
    EVENT,
    EVENT_FIELDS,
    EVENT_SIZE,
    FIXED,
    FLOW,
    FLOW_END,
    HAS_TRACK,
    INTERNED_SIZE,
    MAX_IID,
    NAME_SIZE,
    OTHER,
    PACKET_FIELDS,
    ROW,
    SEEN,
    SIZED,
    TEXT,
    TRACK,
    VALUE,
    VALUE_KIND,
    VALUE_KINDS,
    VARINT,
    Bytes,
    Ints,
    Walked,
    judge,
)

_TAGS = 512
_MANY = 64
"""Mark of fields that may come many times."""


def _table(fields: dict[int, tuple[int, int]]) -> Ints:
    """By tag (column, column of the size), ABSENT for tags that are not plain."""
    table = np.full((_TAGS, 2), ABSENT, np.int64)
    for tag, columns in fields.items():
        table[tag] = columns
    return table


_PACKET_TABLE = _table(PACKET_FIELDS)
_EVENT_TABLE = _table({**EVENT_FIELDS, **dict.fromkeys((ANNOTATION, FLOW, FLOW_END), (_MANY, ABSENT))})
_KIND_TABLE = np.full(_TAGS, OTHER, np.int64)
_KIND_TABLE[list(ARGUMENT_KINDS)] = list(ARGUMENT_KINDS.values())
_VALUE_TABLE = np.zeros(_TAGS, np.int64)
_VALUE_TABLE[list(VALUE_KINDS)] = list(VALUE_KINDS.values())
_compiled = numba.njit(cache=True, nogil=True)
_inlined = numba.njit(cache=True, nogil=True, inline="always")


@_inlined
def _varint(data: Any, at: Any) -> Any:
    """(value, place behind it); the place is -1 if it is no varint. Data is padded."""
    value = np.uint64(0)
    shift = np.uint64(0)
    for position in range(at, min(at + 10, len(data))):
        byte = np.uint64(data[position])
        if position == at + 9 and byte > 1:
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value), position + 1
        shift += np.uint64(7)
    return np.int64(0), -1


@_inlined
def _fixed(data: Any, at: Any) -> Any:
    """Eight bytes, little endian; data is padded."""
    value = np.uint64(0)
    for more in range(8):
        value |= np.uint64(data[at + more]) << np.uint64(8 * more)
    return np.int64(value)


@_inlined
def _tag(data: Any, at: Any) -> Any:
    """(tag, place behind it); 0 for a tag of more than two bytes or out of range."""
    tag = np.int64(data[at])
    if tag < 0x80:
        return tag, at + 1
    tag = tag & 0x7F | np.int64(data[at + 1]) << 7
    return (tag if tag < _TAGS and data[at + 1] < 0x80 else np.int64(0)), at + 2


@_inlined
def _field(data: Any, at: Any, end: Any) -> Any:
    """(tag, value or place, size, place behind the field); that is -1 if the field is not whole or has another type."""
    tag, at = _tag(data, at)
    kind = tag & 7
    if at >= end:
        return tag, np.int64(0), np.int64(0), np.int64(-1)
    if kind == FIXED:
        if at + 8 > end:
            return tag, np.int64(0), np.int64(0), np.int64(-1)
        return tag, _fixed(data, at), np.int64(0), np.int64(at + 8)
    if kind != VARINT and kind != SIZED:
        return tag, np.int64(0), np.int64(0), np.int64(-1)
    value, after = _varint(data, at)
    if after < 0 or after > end:
        return tag, np.int64(0), np.int64(0), np.int64(-1)
    if kind == VARINT:
        return tag, value, np.int64(0), np.int64(after)
    if value < 0 or value > end - after:
        return tag, np.int64(0), np.int64(0), np.int64(-1)
    return tag, np.int64(after), value, np.int64(after + value)


@_inlined
def _argument(data: Any, at: Any, size: Any, made: Any) -> None:
    """Fill in one argument."""
    made[ARGUMENT_KIND] = OTHER
    made[ARGUMENT_NAME] = made[ARGUMENT_VALUE] = 0
    made[ARGUMENT_AT], made[ARGUMENT_SIZE] = at, size
    end = at + size
    if size <= 3 or data[at] != 8:
        return
    name, after = _varint(data, at + 1)
    if after < 0 or after >= end or name <= 0 or name >= MAX_IID:
        return
    tag, value, _, after = _field(data, after, end)
    kind = _KIND_TABLE[tag]
    if after != end or kind == OTHER or (kind == TEXT and (value < 0 or value >= MAX_IID)):
        return
    made[ARGUMENT_KIND], made[ARGUMENT_NAME], made[ARGUMENT_VALUE] = kind, name, value


@_compiled
def _walk(data: Any, starts: Any, ends: Any, packets: Any, plain: Any, made: Any, flows: Any) -> Any:
    """Fill in everything; returns how many arguments and flows there are."""
    arguments = many = 0
    for row in range(len(starts)):
        first_argument, first_flow = arguments, many
        good = True
        for level in range(2):
            at, end = (
                (packets[EVENT, row], packets[EVENT, row] + packets[EVENT_SIZE, row])
                if level
                else (starts[row], ends[row])
            )
            while good and at < end:
                tag, value, size, at = _field(data, at, end)
                column = (_EVENT_TABLE if level else _PACKET_TABLE)[tag, 0]
                if at < 0 or column == ABSENT:
                    good = False
                elif column == _MANY and tag == ANNOTATION:
                    made[arguments, ROW] = row
                    _argument(data, value, size, made[arguments])
                    arguments += 1
                elif column == _MANY:
                    flows[many, 0], flows[many, 1], flows[many, 2] = row, value, tag == FLOW_END
                    many += 1
                else:
                    good = packets[SEEN, row] & 1 << column == 0
                    packets[SEEN, row] |= 1 << column
                    packets[column, row] = value
                    sized = (_EVENT_TABLE if level else _PACKET_TABLE)[tag, 1]
                    if sized >= 0:
                        packets[sized, row] = size
                    if column == VALUE:
                        packets[VALUE_KIND, row] = _VALUE_TABLE[tag]
            if packets[SEEN, row] & 1 << AT == 0 or packets[EVENT_SIZE, row] < 0:
                good = False
            if not good:
                break
        plain[row] = good
        if not good:
            arguments, many = first_argument, first_flow
    return arguments, many


def walk(data: Bytes, starts: Ints, ends: Ints) -> Walked:
    """`perfetto_walk.walk`."""
    count = len(starts)
    packets = np.zeros((COLUMNS, count), np.int64)
    packets[[INTERNED_SIZE, EVENT_SIZE, NAME_SIZE, CATEGORY, CATEGORY_SIZE]] = ABSENT
    plain = np.ones(count, bool)
    # An argument takes two bytes, a flow ten; pages that are not written to cost nothing.
    made = np.empty((len(data) // 2, 6), np.int64)
    flows = np.empty((len(data) // 10, 3), np.int64)
    arguments, many = _walk(data, starts, ends, packets, plain, made, flows)
    packets[HAS_TRACK] = packets[SEEN] & 1 << TRACK != 0
    judge(packets, plain)
    order = np.lexsort((flows[:many, 2], flows[:many, 0]))
    found = flows[:many][order]
    return Walked(
        plain,
        packets,
        np.ascontiguousarray(made[:arguments].T),
        found[:, 0],
        np.ascontiguousarray(found[:, 1]).view(np.uint64),
        found[:, 2] != 0,
    )


@_compiled
def _chain(data: Any, at: Any, starts: Any, ends: Any) -> Any:
    size = len(data)
    count = 0
    while at + 1 < size and data[at] == PACKET:
        length, start = _varint(data, at + 1)
        if start < 0 or length < 0 or length > MAX_PACKET or start + length > size:
            break
        at = start + length
        starts[count], ends[count] = start, at
        count += 1
    return count, at


def chain(data: bytes, at: int) -> tuple[Ints, Ints, int]:
    """`perfetto_packets.chain`."""
    view = np.frombuffer(data, np.uint8)
    starts, ends = np.empty((2, (len(data) - at) // 2 + 1), np.int64)
    count, at = _chain(view, at, starts, ends)
    return starts[:count].copy(), ends[:count].copy(), int(at)
