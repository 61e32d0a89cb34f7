"""Bytes → elements: the events and the other top-level keys of a trace in JSON, whatever shape it is in.

Reads block by block. A block that a strict decoder accepts is taken as it is (the fast path); any other is read
element by element, mended where that is certain (`json_salvage`), and otherwise dropped with its exact price in
health. Object form with keys in any order, bare array form, missing ends, byte order mark and junk are all known.

What this file does not know: what an event means, clocks, tracks, categories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.json_event import DAMAGE, Event, decode_events, decode_lenient, decode_strict
from tracelens.readers.json_losses import Losses
from tracelens.readers.json_salvage import Mended, mend, mend_value, requote
from tracelens.readers.json_window import Window
from tracelens.streams import Stream

PATIENCE = 8 << 20
"""Bytes to read on for the end of an element before damage is assumed; real events stay below 1 MiB."""
MAX_ELEMENT = 256 << 20
"""Bytes without a readable element after which the rest of them is dropped: it bounds memory on nonsense."""
SLICE = 1 << 16
"""Bytes looked at together when reading one by one: an error of the standard library costs time by its position."""
MEND_FIRST = 1 << 12
"""Bytes looked at to mend an element where it stands, before its neighbours are searched for."""
CANDIDATE = 1 << 14
"""Bytes in which an event after damage has to end to be recognised as whole."""
MAX_CANDIDATES = 1_000
"""Objects tried as the first whole event after damage; where none is, reading goes on there: it bounds time."""
LOOK_AHEAD = 1 << 12
"""Bytes after a closing bracket that are enough to see whether a top-level key follows."""
SPARE = 1 << 14
"""Events read one by one before they are handed on."""

_scan = json.JSONDecoder(strict=False, parse_constant=lambda _: None).raw_decode
_SEPARATOR = re.compile(rb"\}\s*,\s*\Z")
_GAP = re.compile(r"[ \t\r\n,]*")
_OBJECT = re.compile(r'\{(?=[ \t\r\n]*")')
_CLOSED = re.compile(r'\][ \t\r\n]*(?:,[ \t\r\n]*"(?:[^"\\]|\\.)*+"[ \t\r\n]*:|\}|\Z)')
_CLOSED_INSIDE = re.compile(r'\}[ \t\r\n,]*(\])[ \t\r\n]*,[ \t\r\n]*"[^"\\]{1,200}"[ \t\r\n]*:')
_CLOSED_AT_END = re.compile(r"\}[ \t\r\n,]*(\])[ \t\r\n]*\}?[ \t\r\n]*\Z")
_BOUNDARY = re.compile(r'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"(?:ph|name|cat|pid|tid|ts|dur|id|args)"[ \t\r\n]*:)')
_EVENTS_KEY = re.compile(r'"traceEvents"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_PHASE = re.compile(rb'"ph"\s*:')


class Elements:
    """The elements of one JSON trace. Iterate `batches()` to the end, then read the other attributes.

    `header` holds the other top-level keys (empty for the bare array form), `count` the elements that were kept,
    `found_events` whether there was an array of events at all.
    """

    def __init__(self, stream: Stream, health: Health) -> None:
        self.header: dict[str, Any] = {}
        self.count = 0
        self.found_events = False
        self._bare_array = False
        self._stream = stream
        self._health = health
        self._losses = Losses(stream.name)
        self._window = Window(stream)
        self._spare: list[Event] = []
        self._damaged_until = 0

    def batches(self) -> Iterator[list[Event]]:
        """All elements in file order. Raises TracelensError if the content is not JSON at all."""
        try:
            for batch in self._content():
                self.count += len(batch)
                yield batch
        finally:
            self._losses.report(self._health)

    def _content(self) -> Iterator[list[Event]]:
        window = self._window
        window.fill()
        if window.buffer.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise TracelensError(f"{self._stream.name}: UTF-16 text, not UTF-8", "convert it: iconv -f UTF-16 -t UTF-8")
        if window.buffer.startswith(b"\xef\xbb\xbf"):
            window.drop(3)
        first = window.peek()
        if first not in ("[", "{"):
            raise self._not_json(first)
        window.drop(1)
        if first == "[":
            self._bare_array = self.found_events = True
            yield from self._array()
            self._rest()
        else:
            yield from self._object()

    def _not_json(self, first: str) -> TracelensError:
        if not first:
            return TracelensError(
                f"{self._stream.name}: the file is empty",
                "the profiler wrote nothing (known bug: pytorch/pytorch#167601); record again",
            )
        return TracelensError(
            f"{self._stream.name}: not JSON at byte {self._window.base:,}",
            "a trace in JSON begins with { or [; is this another format?",
        )

    # Top level --------------------------------------------------------------------------------------------------

    def _object(self) -> Iterator[list[Event]]:
        while (key := self._key()) is not None:
            if key == "traceEvents" and self._window.peek() == "[":
                self.found_events = True
                self._window.drop(1)
                yield from self._array()
            elif not key or not self._value(key):
                yield from self._damaged_header()
                return
        self._rest()

    def _key(self) -> str | None:
        """The next top-level key, its colon consumed; "" if it is damaged; None at the end of the object or file."""
        window = self._window
        while window.peek() == ",":
            window.drop(1)
        found = window.peek()
        if found == "}":
            window.drop(1)
            return None
        if found == "":
            if not self._losses.has("json.truncated"):
                says = "the file ends before its closing brace (was the writer killed?)"
                self._losses.add("json.truncated", "warning", says, window.base, events=0)
            return None
        scanned = self._value_here() if found == '"' else None
        if scanned is None:
            return ""
        window.drop(scanned[1])
        if window.peek() != ":":
            return ""
        window.drop(1)
        window.peek()
        return str(scanned[0])

    def _value(self, key: str) -> bool:
        """Keep a top-level value; False if it cannot be read."""
        window = self._window
        scanned = self._value_here()
        if scanned is None:
            mended = mend_value(window.buffer)
            if mended is None:
                return False
            faults = ", ".join(sorted(mended.faults))
            self._losses.add("json.mended", "info", f"top-level key {key!r} was mended ({faults})", window.base)
            text, length = mended.text, mended.end
        else:
            text, length = window.buffer[: scanned[1]], scanned[1]
        try:
            value = json.loads(text.decode("utf-8", "replace"), strict=False, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return False
        self.header[key] = value
        window.drop(length)
        return True

    def _value_here(self) -> tuple[Any, int] | None:
        """The JSON value at the start of the window and its length; None if it is damaged. Reads on as needed."""
        window = self._window
        size = LOOK_AHEAD
        while True:
            text = window.buffer[:size].decode("latin-1")
            whole = size >= len(window.buffer)
            try:
                value, end = _scan(text)
            except (ValueError, RecursionError):
                pass
            else:
                if end < len(text) or (whole and window.final):
                    return value, end
            if whole:
                if window.final or len(window.buffer) > PATIENCE:
                    return None
                window.grow()
            size *= 4

    def _damaged_header(self) -> Iterator[list[Event]]:
        """Skip to the events, if they are still to come; else all the rest is lost."""
        window = self._window
        start = window.base
        while not self.found_events:
            found = _EVENTS_KEY.search(window.buffer.decode("latin-1"))
            if found:
                self.found_events = True
                window.drop(found.end())
                lost = window.base - start
                says = "unreadable top-level keys before the events"
                self._losses.add("json.damaged-header", "warning", says, start, events=0, lost_bytes=lost)
                window.drop(1)
                yield from self._array()
                yield from self._object()
                return
            if window.final:
                break
            window.drop(max(0, len(window.buffer) - LOOK_AHEAD))
            window.fill()
        head = window.buffer[:80]
        window.discard()
        says = "a top-level value is damaged; it and all that follows was dropped"
        lost = window.base - start
        self._losses.add("json.damaged-header", "warning", says, start, events=0, lost_bytes=lost, text=head)

    def _rest(self) -> None:
        """After the end: nothing but white space should follow."""
        window = self._window
        if window.peek():
            at, head = window.base, window.buffer[:80]
            lost = window.discard()
            says = "data after the end of the trace"
            self._losses.add("json.trailing-data", "warning", says, at, events=0, lost_bytes=lost, text=head)

    # Elements ---------------------------------------------------------------------------------------------------

    def _array(self) -> Iterator[list[Event]]:
        """The elements up to and including the array's end."""
        window = self._window
        while True:
            window.fill()
            while batch := self._fast():
                yield batch
                window.fill()
            ended = self._slow()
            if self._spare:
                batch, self._spare = self._spare, []
                yield batch
            if ended:
                return
            if window.final:
                if not window.buffer.strip(b" \t\r\n,"):
                    window.drop(len(window.buffer))
                    self._end_missing()
                    return
            else:
                window.grow()

    def _fast(self) -> list[Event] | None:
        """All whole elements of the window, if a strict decoder takes them; else None and nothing is consumed."""
        buffer = self._window.buffer
        end = _last_separator(buffer)
        if not end:
            return None
        try:
            events = decode_events(b"[" + buffer[:end].lstrip(b" \t\r\n,") + b"]")
        except DAMAGE:
            return None
        self._window.drop(end)
        return events

    def _slow(self) -> bool:
        """Element by element as far as the window goes. True once the array's end was consumed."""
        window = self._window
        at, size = 0, SLICE
        ended = False
        while not ended and len(self._spare) < SPARE and at < len(window.buffer):
            final = window.final and at + size >= len(window.buffer)
            used, ended = self._walk(window.buffer[at : at + size], window.base + at, final=final)
            at += used
            if used:
                size = SLICE
            elif at + size < len(window.buffer):
                size *= 4
            else:
                break
        window.drop(at)
        return ended

    def _walk(self, data: bytes, base: int, *, final: bool) -> tuple[int, bool]:
        """Take the elements of `data`, which stands at `base`; nothing follows it if `final`.

        Returns how many bytes were used and whether the array ended there.
        """
        text = data.decode("latin-1")
        at = 0
        while len(self._spare) < SPARE:
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
            if at == len(text):
                break
            if text[at] == "]" and not final and len(text) - at < LOOK_AHEAD:
                break
            if text[at] == "]" and _CLOSED.match(text, at):
                return at + 1, True
            try:
                value, end = _scan(text, at)
            except (ValueError, RecursionError) as error:
                if not final and _may_be_cut(error, text, at):
                    break
                end = self._mend(data, text, at, base, final=final)
                if not end:
                    break
            else:
                if end == len(text) and not final and not isinstance(value, dict):
                    break
                self._take(data[at:end], value, base + at)
            at = end
        return at, False

    def _take(self, raw: bytes, value: Any, at: int) -> None:
        """Keep one element that is balanced JSON, mending what a strict decoder refuses."""
        if not isinstance(value, dict):
            says = "an element is not an object"
            self._losses.add("json.not-an-object", "info", says, at, lost_bytes=len(raw), text=raw)
        elif event := decode_strict(raw):
            self._spare.append(event)
        else:
            mended = mend(raw)
            if not self._accept(mended, raw, at):
                self._lost(raw, at)

    def _accept(self, mended: Mended | None, raw: bytes, at: int) -> bool:
        """Keep a mended event, if it is one, and note what was wrong with it."""
        decoded = decode_lenient(mended.text) if mended else None
        if mended is None or decoded is None:
            return False
        event, odd = decoded
        if mended.faults:
            faults = ", ".join(sorted(mended.faults))
            code = "bytes.not-utf8" if mended.faults == {"not UTF-8"} else "json.mended"
            doubtful = mended.faults & {"unescaped quote", "not UTF-8"}
            self._losses.add(code, "warning" if doubtful else "info", f"an event was mended ({faults})", at, text=raw)
        if odd:
            says = f"members of an event have an impossible type and count as absent ({', '.join(odd)})"
            self._losses.add("json.odd-member", "info", says, at, text=raw)
        self._spare.append(event)
        return True

    def _mend(self, data: bytes, text: str, at: int, base: int, *, final: bool) -> int:
        """Mend or drop the damaged element at `at`. Returns where reading goes on; 0 if more data is needed."""
        standing = data[at : at + MEND_FIRST]
        if end := self._try(mend(standing), standing, at, base):
            return end
        # Where the next whole event begins is looked for once, however many damaged ones stand before it.
        end = self._damaged_until - base
        if not at < end <= len(text):
            end = _resynchronise(text, at, final=final)
        if end == len(text) and not final and end - at < MAX_ELEMENT:
            return 0
        self._damaged_until = base + end
        raw = data[at:end]
        if mended_end := self._try(requote(raw[:SLICE]), raw, at, base):
            return mended_end
        if len(raw) > MEND_FIRST and (mended_end := self._try(mend(raw), raw, at, base)):
            return mended_end
        if (boundary := _BOUNDARY.search(text, at, end)) and boundary.end() < end:
            end = boundary.end()
            raw = data[at:end]
        if end == len(text) and final:
            says = "the file ends inside an event, which was dropped with all that should follow"
            self._losses.add("json.truncated", "warning", says, base + at, lost_bytes=len(raw), text=raw)
        else:
            self._lost(raw.rstrip(b" \t\r\n,"), base + at)
        return end

    def _try(self, mended: Mended | None, raw: bytes, at: int, base: int) -> int:
        """Keep a mended event and return where it ends, or 0 if it is none."""
        decoded = decode_lenient(mended.text) if mended else None
        if mended is None or decoded is None or not isinstance(decoded[0].ph, str):
            return 0
        self._accept(mended, raw, base + at)
        return at + mended.end

    def _lost(self, raw: bytes, at: int) -> None:
        events = max(1, len(_PHASE.findall(raw)))
        says = "unreadable events were dropped"
        self._losses.add("json.damaged", "warning", says, at, events=events, lost_bytes=len(raw), text=raw)

    def _end_missing(self) -> None:
        """The file ended where an element or the end of the array was due."""
        at = self._window.base
        if self._losses.has("json.truncated"):
            return
        if self._bare_array and self._stream.complete:
            self._losses.add("json.no-end", "info", "the array is not closed, which its format allows", at, events=0)
        else:
            says = "the file ends before its events do (was the writer killed?)"
            self._losses.add("json.truncated", "warning", says, at, events=0)


def _last_separator(buffer: bytes) -> int:
    """Offset after the last object in the buffer that is followed by a comma and another object; 0 if none."""
    at = len(buffer)
    for _ in range(64):
        at = buffer.rfind(b"{", 0, at)
        if at <= 0:
            return 0
        if found := _SEPARATOR.search(buffer, max(0, at - 256), at):
            return found.start() + 1
    return 0


def _may_be_cut(error: Exception, text: str, at: int) -> bool:
    """Whether an element that does not parse may only be cut by the end of the text."""
    if len(text) - at > PATIENCE or not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text) - 16 or error.msg.startswith("Unterminated string")


def _resynchronise(text: str, at: int, *, final: bool) -> int:
    """Where, after damage at `at`, the next readable event or the array's end begins; else the end of the text.

    Gives up after MAX_CANDIDATES objects that are no events, where the last element seems to begin.
    """
    limit = len(text)
    for tried, found in enumerate(_OBJECT.finditer(text, at + 1)):
        start = found.start()
        if tried == MAX_CANDIDATES:
            limit = max((boundary.end() for boundary in _BOUNDARY.finditer(text, at, start)), default=start)
            break
        try:
            value, _ = _scan(text[start : start + CANDIDATE])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("ph"), str):
            limit = start
            break
    closed = _CLOSED_INSIDE.search(text, at, limit)
    if closed is None and limit == len(text) and final:
        closed = _CLOSED_AT_END.search(text, at)
    return closed.start(1) if closed else limit
