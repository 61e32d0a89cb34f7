"""A program's own events in its recording: slices, counters, instants, flows and request ids, as native Perfetto.

    from tracelens import events            # or load this one file from the path in $TRACELENS_EVENTS
    with events.slice("prefill", request="r7", tokens=512): ...
    events.counter("queue", 3, unit="requests")

Standard library only and a single file, so that a server can load it without tracelens. It records when the process
runs under `tracelens record` (or inside `tracelens.recording`), from the first event to the process's end, and costs
a microsecond a slice otherwise. A killed process loses the last quarter of a second. Knows no Trace.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import struct
import sys
import threading
from functools import lru_cache
from time import monotonic_ns, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

SETTINGS = "TRACELENS_RECORD"
"""Path of a recording's settings, two levels inside the capture folder; gone when the recording is over."""
MODULE = "TRACELENS_EVENTS"
"""Path of this file, set where events are wanted."""
FLUSH_BYTES = 1 << 16
FLUSH_NS = 250_000_000
MOST_BYTES = 1 << 28
"""256 MiB a process: some three million slices."""
MOST_TEXT = 4096
"""Longer texts are cut: this is no place for prompts."""

_REALTIME, _MONOTONIC = 1, 3
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_DOUBLE, _FIXED64 = struct.Struct("<d").pack, struct.Struct("<Q").pack


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _blob(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


@lru_cache(maxsize=4096)
def _words(field: int, value: str) -> bytes:
    return _blob(field, value[:MOST_TEXT].encode(errors="replace"))


@lru_cache(maxsize=4096)
def _head(kind: int, track: int) -> bytes:
    """Type and track of an event."""
    return _number(9, kind) + _number(11, track)


def _annotation(name: str, value: Any) -> bytes:
    made = _words(10, name)
    if isinstance(value, bool):
        return made + _number(2, value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return made + _number(4, value)
    if isinstance(value, float):
        return made + _varint(5 << 3 | 1) + _DOUBLE(value)
    if isinstance(value, dict):
        return made + b"".join(_blob(11, _annotation(str(key), each)) for key, each in value.items())
    return made + _words(6, str(value))


def _arguments(request: str | int | None, values: dict[str, Any]) -> bytes:
    made = b"".join(_blob(4, _annotation(name, value)) for name, value in values.items())
    if request is not None:
        made += _blob(4, _annotation("tracelens", {"request": str(request)}))
    return made


class _Writer:
    """The file of this process; every packet stands for itself, so that a cut file loses only its end."""

    def __init__(self, folder: str, until: str) -> None:
        self.pid = os.getpid()
        self._until = until
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._written = 0
        self._flushed_ns = 0
        self._tracks: dict[Any, int] = {}
        self._file = os.open(
            os.path.join(folder, f"events.{self.pid}.pftrace"),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
            0o600,
        )
        self._process = self.pid << 32
        self._tail = _number(10, 1) + _number(58, _MONOTONIC)
        name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) and sys.argv[0] else "python"
        self._put(self._snapshot())
        self._describe(self._process, _blob(3, _number(1, self.pid) + _words(6, name)))

    def thread(self) -> int:
        """The track of the calling thread."""
        key = threading.get_ident()
        found = self._tracks.get(key)
        if found is None:
            tid = threading.get_native_id()
            thread = _number(1, self.pid) + _number(2, tid) + _words(5, threading.current_thread().name)
            found = self._track(key, _blob(4, thread))
        return found

    def named(self, name: str) -> int:
        """A track of this name below the process, for what overlaps on a thread."""
        found = self._tracks.get(name)
        return found if found is not None else self._track(name, _words(2, name) + _number(5, self._process))

    def counted(self, name: str, unit: str | None) -> int:
        """The track of a counter."""
        key = (name, unit)
        found = self._tracks.get(key)
        if found is None:
            kind = _blob(8, b"" if unit is None else _words(6, unit))
            found = self._track(key, _words(2, name) + _number(5, self._process) + kind)
        return found

    def event(self, kind: int, track: int, rest: bytes) -> None:
        """Write one TrackEvent now."""
        at = monotonic_ns()
        body = _head(kind, track) + rest
        self._put(b"\x40" + _varint(at) + self._tail + b"\x5a" + _varint(len(body)) + body, at)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lock:
            self._flush(monotonic_ns())

    def _track(self, key: Any, what: bytes) -> int:
        uuid = self._process + 1 + len(self._tracks)
        self._tracks[key] = uuid
        self._describe(uuid, what)
        return uuid

    def _describe(self, uuid: int, what: bytes) -> None:
        self._put(_number(10, 1) + _blob(60, _number(1, uuid) + what))

    def _snapshot(self) -> bytes:
        before, real, after = monotonic_ns(), time_ns(), monotonic_ns()
        readings = ((_MONOTONIC, (before + after) // 2), (_REALTIME, real))
        pairs = b"".join(_blob(1, _number(1, clock) + _number(2, at)) for clock, at in readings)
        return _number(10, 1) + _blob(6, pairs + _number(2, _REALTIME))

    def _put(self, packet: bytes, now: int = 0) -> None:
        with self._lock:
            self._buffer += b"\x0a" + _varint(len(packet)) + packet
            if len(self._buffer) >= FLUSH_BYTES or now > self._flushed_ns + FLUSH_NS:
                self._flush(now)

    def _flush(self, now: int) -> None:
        self._flushed_ns = now
        full = self._written + len(self._buffer) > MOST_BYTES
        if self._file < 0 or full or not os.path.exists(self._until):
            self._end()
            return
        self._written += len(self._buffer)
        try:
            os.write(self._file, self._buffer)
        except OSError:
            self._end()
        self._buffer.clear()

    def _end(self) -> None:
        """The recording is over, the disk or the file is full: be silent from now on."""
        global _writer
        if _writer is self:
            _writer = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._buffer.clear()


_writer: _Writer | None = None


class _Slice:
    """A slice that ends when its block does."""

    __slots__ = ("_rest", "_track", "_writer")

    def __init__(self, writer: _Writer, track: int, rest: bytes) -> None:
        self._writer, self._track, self._rest = writer, track, rest

    def __enter__(self) -> None:
        self._writer.event(_BEGIN, self._track, self._rest)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._writer.event(_END, self._track, b"")


_NOTHING = contextlib.nullcontext()


def recording() -> bool:
    """Whether events are written; ask before computing costly arguments."""
    return _writer is not None


def slice(  # noqa: A001
    name: str,
    *,
    request: str | int | None = None,
    track: str | None = None,
    kind: str = "annotation",
    flow: int | None = None,
    ends: int | None = None,
    **values: Any,
) -> contextlib.AbstractContextManager[None]:
    """Record the body of a `with` as a slice of the calling thread, with `values` as its arguments.

    What may overlap on one thread (coroutines, requests in flight) names a `track` of its own. `kind` "request" or
    "wait" says what it is. `flow` ties slices of one id in the order of time; `ends` is the id whose last it is.
    """
    writer = _writer
    if writer is None:
        return _NOTHING
    rest = _words(23, name) + _words(22, kind) + _arguments(request, values)
    if flow is not None:
        rest += _varint(47 << 3 | 1) + _FIXED64(flow & 0xFFFF_FFFF_FFFF_FFFF)
    if ends is not None:
        rest += _varint(48 << 3 | 1) + _FIXED64(ends & 0xFFFF_FFFF_FFFF_FFFF)
    return _Slice(writer, writer.thread() if track is None else writer.named(track), rest)


def instant(name: str, *, request: str | int | None = None, **values: Any) -> None:
    """Record a moment on the calling thread."""
    if (writer := _writer) is not None:
        rest = _words(23, name) + _words(22, "instant") + _arguments(request, values)
        writer.event(_INSTANT, writer.thread(), rest)


def counter(name: str, value: float, unit: str | None = None) -> None:
    """Record a counter's value from now on."""
    if (writer := _writer) is not None:
        writer.event(_COUNTER, writer.counted(name, unit), _varint(44 << 3 | 1) + _DOUBLE(float(value)))


def new_flow() -> int:
    """An id for `flow` and `ends` that no other process gives out; hand it over with the message."""
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


def start(folder: str, until: str | None = None) -> None:
    """Write into `folder` while the path `until` (by default the folder) exists; called by the recorder."""
    global _writer
    with contextlib.suppress(OSError):
        _writer = _Writer(folder, until or folder)


def stop() -> None:
    """Write what is buffered and be silent."""
    global _writer
    writer, _writer = _writer, None
    if writer is not None and writer.pid == os.getpid():
        writer.flush()


def _start_if_recorded() -> None:
    settings = os.environ.get(SETTINGS)
    if settings and os.environ.get(MODULE):
        start(os.path.dirname(os.path.dirname(settings)), settings)


def _after_fork() -> None:
    """The child writes its own file, and none of what the parent had buffered."""
    global _writer
    if _writer is not None:
        _writer = None
        _start_if_recorded()


_start_if_recorded()
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
