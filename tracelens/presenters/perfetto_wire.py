"""Perfetto's wire format, encoded by hand: packets of one or more sequences with interned names.

About six times as fast as protobuf messages, and without importing them. Field numbers are those of TracePacket,
TrackEvent, TrackDescriptor, DebugAnnotation and InternedData. Knows no Trace.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import msgspec

REALTIME, BOOTTIME = 1, 6
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
FLUSH = 1 << 20
MAX_INTERNED_TEXT = 200
"""Longer texts rarely come twice, and would stay in memory in whoever reads the file."""
MAX_LEVELS = 40
"""Arguments nested deeper are written as JSON text; protobuf readers stop at 100 levels."""
_CLEARED, _NEEDS_STATE = 1, 2
_DOUBLE = struct.Struct("<d").pack
_FIXED64 = struct.Struct("<Q").pack


def varint(value: int) -> bytes:
    """A non-negative integer in base 128; negative ones as 64-bit two's complement."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def blob(field: int, value: bytes) -> bytes:
    """A length-delimited field: bytes, text or message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def words(field: int, value: str) -> bytes:
    """A text field; lone surrogates, which UTF-8 cannot hold, become question marks."""
    return blob(field, value.encode(errors="replace"))


def double(field: int, value: float) -> bytes:
    """A float64 field."""
    return varint(field << 3 | 1) + _DOUBLE(value)


def fixed64(field: int, value: int) -> bytes:
    """A 64-bit field of fixed width."""
    return varint(field << 3 | 1) + _FIXED64(value)


class Output:
    """Packets on their way into a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = bytearray()

    def packet(self, body: bytes) -> None:
        """Append one packet."""
        self._buffer += b"\x0a" + varint(len(body)) + body
        if len(self._buffer) >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.write(self._buffer)
        self._buffer = bytearray()

    def snapshot(self, clocks: dict[int, int], primary: int) -> None:
        """Say which readings (ns) of some clocks belong together, and on which clock the trace is shown."""
        readings = b"".join(blob(1, number(1, clock) + number(2, at)) for clock, at in clocks.items())
        self.packet(number(10, 0xFFFF) + blob(6, readings + number(2, primary)))

    def describe(self, descriptor: bytes) -> None:
        """Write a track descriptor; they belong to no sequence's state."""
        self.packet(number(10, 0xFFFF) + blob(60, descriptor))


class Sequence:
    """One packet sequence: its own interned names, and events on one clock.

    Event bodies are made of `begin_fields`-like pieces by the methods below; new names go out with the packet that
    first uses them.
    """

    def __init__(self, output: Output, sequence_id: int, clock: int) -> None:
        self._output = output
        self._tail = number(10, sequence_id) + number(13, _NEEDS_STATE)
        self._interned: dict[tuple[int, Any], int] = {}
        self._counts: dict[int, int] = {}
        self._new = b""
        start = number(10, sequence_id) + number(13, _CLEARED) + blob(59, number(58, clock)) + number(87, 1)
        output.packet(start)

    def event(self, at_ns: int, body: bytes) -> None:
        """Write one TrackEvent at a time of the sequence's clock."""
        packet = b"\x40" + varint(at_ns) + self._tail + blob(11, body)
        if self._new:
            packet += blob(12, self._new)
            self._new = b""
        self._output.packet(packet)

    def head(self, kind: int, track_uuid: int, name: str | None = None, category: str | None = None) -> bytes:
        """Type, track, name and category of an event."""
        made = b"\x48" + varint(kind) + b"\x58" + varint(track_uuid)
        if name is not None:
            made += b"\x50" + varint(self._intern(2, name, words(2, name)))
        if category is not None:
            made += b"\x18" + varint(self._intern(1, category, words(2, category)))
        return made

    def place(self, file: str | None, line: int | None) -> bytes:
        """The source location of an event."""
        if file is None and line is None:
            return b""
        content = (words(2, file) if file is not None else b"") + (number(4, line) if line else b"")
        return number(34, self._intern(4, (file, line), content))

    def arguments(self, values: dict[str, Any]) -> bytes:
        """Debug annotations of an event."""
        return b"".join(blob(4, self._annotation(name, value, MAX_LEVELS)) for name, value in values.items())

    def _annotation(self, name: str | None, value: Any, levels: int) -> bytes:
        head = b"" if name is None else b"\x08" + varint(self._intern(3, name, words(2, name)))
        kind = type(value)
        if kind is str:
            if len(value) > MAX_INTERNED_TEXT:
                return head + words(6, value)
            return head + number(17, self._intern(29, value, words(2, value)))
        if kind is int and -(2**63) <= value < 2**64:
            return head + (number(4, value) if value < 2**63 else number(3, value))
        if kind is bool:
            return head + number(2, value)
        if kind is float:
            return head + double(5, value)
        if value and levels and kind is dict:
            return head + b"".join(blob(11, self._annotation(k, v, levels - 1)) for k, v in value.items())
        if value and levels and kind is list:
            return head + b"".join(blob(12, self._annotation(None, each, levels - 1)) for each in value)
        return head + blob(9, _json(value))

    def _intern(self, table: int, key: Any, content: bytes) -> int:
        iid = self._interned.get((table, key))
        if iid is None:
            iid = self._counts[table] = self._counts.get(table, 0) + 1
            self._interned[table, key] = iid
            self._new += blob(table, number(1, iid) + content)
        return iid


def _json(value: Any) -> bytes:
    """JSON text of null, empty containers, integers above 64 bits and deep nesting."""
    return str(value).encode() if type(value) is int else msgspec.json.encode(value)
