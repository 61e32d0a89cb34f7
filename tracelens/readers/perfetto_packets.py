"""Perfetto's framing: a byte stream → the bodies of its packets, in bounded memory; compressed packets → more packets.

A trace is a sequence of `Trace.packet` fields: 0x0a, a length, that many bytes. Where the framing breaks there is no
way to find the next packet with certainty, so reading stops and the rest is counted as lost. Knows no packet's content.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.errors import TracelensError
from tracelens.streams import MAX_FREE, MAX_RATIO

PACKET = 0x0A
MAX_PACKET = 1 << 28
"""Largest packet and largest decompressed packet, 256 MiB; Perfetto's service writes at most 1 MiB at a time."""
MAX_FIELD = 1 << 29
_FIXED = {1: 8, 5: 4}
_DEFLATE_OR_GZIP = 47
_PIECE = 1 << 15


class Damage:
    """Where the framing broke: what was not read."""

    def __init__(self) -> None:
        self.lost_bytes = 0
        self.truncated = 0
        self.broken = 0
        self.foreign = 0
        self.compressed = 0


def varint(data: bytes | memoryview, at: int) -> tuple[int, int] | None:
    """(value, next position) of the varint at `at`; None if the data ends in it. ValueError if it is none."""
    value = shift = 0
    for position in range(at, min(at + 10, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    if len(data) - at >= 10:
        raise ValueError("not a varint")
    return None


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, as it stands in a message; numbers below 16 only."""
    head = bytearray((number << 3 | 2,))
    left = len(content)
    while left > 0x7F:
        head.append(left & 0x7F | 0x80)
        left >>= 7
    head.append(left)
    return bytes(head) + content


@dataclass
class Block:
    """Some whole packets: the bodies are data[start:end] of each pair."""

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def bodies(self, first: int, last: int) -> Iterator[memoryview]:
        """The bodies of packets [first, last)."""
        view = memoryview(self.data)
        for start, end in zip(self.starts[first:last].tolist(), self.ends[first:last].tolist(), strict=True):
            yield view[start:end]


Chain: TypeAlias = Callable[[bytes, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]]
"""(data, place) → starts and ends of whole packets one after another from there, and the place where that ends: at
something that is no packet, is cut, or has a length of more than two bytes."""


def chain(data: bytes, at: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """`Chain` in Python: where each packet would end, were it one, is computed at once, and then only followed."""
    whole = np.frombuffer(data, np.uint8)[at:]
    heads = np.flatnonzero(whole == PACKET)
    length = whole[np.minimum(heads + 1, len(whole) - 1)].astype(np.int64)
    second = whole[np.minimum(heads + 2, len(whole) - 1)].astype(np.int64)
    long = length > 0x7F
    length = np.where(long, length & 0x7F | second << 7, length)
    starts = heads + 2 + long
    ends = starts + length
    short = (heads + 2 + long <= len(whole)) & (ends <= len(whole)) & ~(long & (second > 0x7F))
    number = np.full(len(whole) + 1, len(heads), np.int32)
    number[heads] = np.arange(len(heads), dtype=np.int32)
    following = np.where(short, number[np.where(short, ends, 0)], -1).tolist()
    following.append(-1)
    found: list[int] = []
    place = int(number[0])
    while following[place] >= 0:
        found.append(place)
        place = following[place]
    ends = ends[found]
    return starts[found] + at, ends + at, int(ends[-1]) + at if found else at


def split(pieces: Iterable[bytes], damage: Damage, follow: Chain = chain) -> Iterator[Block]:
    """The packets of a byte stream given in pieces."""
    pieces = iter(pieces)
    rest = b""
    while (data := _enough(pieces, rest)) is not None:
        at = 0
        try:
            while True:
                starts, ends, at = follow(data, at)
                if len(starts):
                    yield Block(data, starts, ends)
                end = _skip(data, at) if at < len(data) else None
                if end is None or end > len(data):
                    break
                if data[at] == PACKET:
                    size, start = varint(data, at + 1) or (0, end)
                    yield Block(data, np.array([start]), np.array([start + size]))
                else:
                    damage.foreign += 1
                at = end
        except ValueError:
            damage.broken += 1
            damage.lost_bytes += len(data) - at + sum(map(len, pieces))
            return
        rest = data[at:]
    if rest:
        damage.truncated += 1
        damage.lost_bytes += len(rest)


def _enough(pieces: Iterator[bytes], rest: bytes) -> bytes | None:
    """What was left plus new data, at least the field that was begun; None at the end."""
    wanted = _skip(rest, 0) or 0
    joined = [rest]
    have = len(rest)
    for piece in pieces:
        joined.append(piece)
        have += len(piece)
        if have >= wanted:
            break
    return b"".join(joined) if len(joined) > 1 else None


def _skip(data: bytes | memoryview, at: int) -> int | None:
    """The position after the field at `at`, perhaps past the data's end; None if the data ends in its head."""
    tag = varint(data, at)
    if tag is None:
        return None
    key, start = tag
    kind = key & 7
    if key < 8 or key >> 3 >= MAX_FIELD or kind in (3, 4, 6, 7):
        raise ValueError("not a field")
    if kind in _FIXED:
        return start + _FIXED[kind]
    value = varint(data, start)
    if value is None:
        return None
    if kind == 0:
        return value[1]
    if value[0] > MAX_PACKET:
        raise ValueError("a field of more than 256 MiB")
    return value[1] + value[0]


def looks_like_packets(head: bytes, known: Iterable[int]) -> int:
    """0 to 100: how much the head of a file looks like packets whose fields have `known` numbers."""
    numbers = frozenset(known)
    at = walked = fields = 0
    data = memoryview(head)
    try:
        while at < len(head):
            if head[at] != PACKET:
                return 0
            found = varint(data, at + 1)
            if found is None:
                break
            length, inside = found
            end = inside + length
            while inside < min(end, len(head)):
                tag = varint(data, inside)
                after = _skip(data, inside)
                if tag is None or after is None:
                    break
                if tag[0] >> 3 not in numbers or after > end:
                    return 0
                fields += after <= len(head)
                inside = after
            walked += length > 0 and inside == end
            at = end
    except ValueError:
        return 100 if walked >= 3 else 0
    return 100 if walked >= 2 else 80 if fields >= 2 else 0


class Inflater:
    """Unpacks compressed packets; what they may add up to is limited by the file's size."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._left = max(MAX_FREE, size * MAX_RATIO)

    def deflated(self, data: bytes) -> tuple[bytes, bool]:
        """(content, whole) of a deflate or gzip packet; damage ends it early."""
        stream = zlib.decompressobj(wbits=_DEFLATE_OR_GZIP)
        pieces: list[bytes] = []
        size = 0
        for at in range(0, len(data), _PIECE):
            try:
                pieces.append(stream.decompress(data[at : at + _PIECE], MAX_PACKET + 1 - size))
            except zlib.error:
                break
            size += len(pieces[-1])
            if size > MAX_PACKET:
                break
        return self._checked(b"".join(pieces)), stream.eof

    def zstandard(self, data: bytes) -> tuple[bytes, bool]:
        """(content, whole) of a zstd packet."""
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
        pieces: list[bytes] = []
        size = 0
        whole = True
        try:
            while size <= MAX_PACKET and (piece := reader.read(1 << 20)):
                pieces.append(piece)
                size += len(piece)
        except zstandard.ZstdError:
            whole = False
        return self._checked(b"".join(pieces)), whole

    def _checked(self, content: bytes) -> bytes:
        self._left -= len(content)
        if len(content) > MAX_PACKET or self._left < 0:
            raise TracelensError(
                f"{self._name}: its compressed packets unpack to more than {MAX_RATIO} times the file, or one of them "
                f"to more than {MAX_PACKET >> 20} MiB",
                "this looks like a compression bomb; unpack it yourself if you trust it",
            )
        return content
