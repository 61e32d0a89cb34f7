"""The GIL probe's file: `gil.<pid>.jsonl` → the `ticks` table, on CLOCK_REALTIME.

The probe sleeps for one period and notes how late it ran Python again. Line 1 is the header, the last line says how
many rows were written, lines between are JSON arrays of rows `[wake_monotonic_ns, late_ns, run_delay_ns or null]`.

What this file does not know: who held the GIL, and why. CLOCK_MONOTONIC and CLOCK_REALTIME tick at one rate and part
only when somebody sets the wall clock; where between the anchors that happened is not recorded, so the whole
difference counts as uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np

from tracelens import schema
from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.trace import Facts, GilFacts, Trace

FORMAT = "tracelens.gil_probe/1"
THREAD = "tracelens-gil-probe"
"""What the recorder calls the probe's thread."""
ANCHOR_HALFWIDTH_NS = 1_000
"""Two clock reads in a row lie about 1 µs apart; used where an anchor does not say how well it was taken."""
STEP_NS = 1_000_000
"""Anchors that disagree by more than 1 ms mean that the wall clock was set; drift over minutes stays below 3 µs."""

Clock = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Row = tuple[Clock, Int64, Int64 | None]


class Anchor(msgspec.Struct):
    """One moment on both clocks."""

    monotonic_ns: Clock
    realtime_ns: Clock
    halfwidth_ns: Annotated[int, msgspec.Meta(ge=0, le=2**61)] = ANCHOR_HALFWIDTH_NS


class GilState(msgspec.Struct):
    """The lock as the probe's process saw it."""

    build_disabled: bool | None = None
    enabled: bool | None = None


class Header(msgspec.Struct):
    """The first line."""

    format: str
    pid: Int64
    os_tid: Int64
    anchors: list[Anchor]
    period_ns: Int64 | None = None
    clock: str = "CLOCK_MONOTONIC"
    gil: GilState = msgspec.field(default_factory=GilState)
    switch_interval_ns: Int64 | None = None


class End(msgspec.Struct):
    """The last line of a probe that was stopped properly."""

    end: bool
    rows: int
    anchors: list[Anchor] = []


@dataclass
class _Rows:
    """What was read so far, and what had to be left out."""

    good: list[Row] = field(default_factory=list)
    bad: int = 0
    lost_bytes: int = 0
    end: End | None = None


_rows = msgspec.json.Decoder(list[Row])
_loose_rows = msgspec.json.Decoder(list[msgspec.Raw])
_row = msgspec.json.Decoder(Row)
_end = msgspec.json.Decoder(End)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def sniff(head: bytes, name: str) -> int:
    """Certain if the first line carries the format's name."""
    first = head.split(b"\n", 1)[0]
    return 100 if b'"tracelens.gil_probe/' in first and first.lstrip().startswith(b"{") else 0


def read(source: Source, health: Health) -> Trace:
    """Read one probe file.

    Raises TracelensError if the header cannot be used. Everything after it is salvaged row by row.
    """
    lines = source.open(health).lines()
    header = _header(source.name, next(lines, b""))
    rows = _Rows()
    for line in lines:
        if rows.end is not None and line.strip():
            rows.lost_bytes += len(line)
        elif line.strip():
            _take(line, rows)
    _account(source.name, rows, health)
    start = header.anchors[0]
    anchors = rows.end.anchors if rows.end else []
    at_ns, halfwidth_ns = _place(source.name, [row[0] for row in rows.good], start, anchors, health)
    height = len(rows.good)
    return Trace(
        origin_unix_ns=start.realtime_ns,
        clock_halfwidth_ns=halfwidth_ns,
        tracks=schema.TRACKS.build(
            {
                "track_id": [0],
                "kind": ["thread"],
                "process_id": [header.pid],
                "thread_id": [header.os_tid],
                "thread": [THREAD],
            }
        ),
        ticks=schema.TICKS.build(
            {
                "track_id": np.zeros(height, np.uint32),
                "at_ns": at_ns,
                "late_ns": [row[1] for row in rows.good],
                "run_delay_ns": [row[2] for row in rows.good],
            }
        ),
        health=health,
        facts=Facts(
            gil={
                header.pid: GilFacts(
                    enabled=header.gil.enabled,
                    build_disabled=header.gil.build_disabled,
                    switch_interval_ns=header.switch_interval_ns,
                )
            }
        ),
    )


def _header(name: str, line: bytes) -> Header:
    hint = "record it again with `tracelens record --with gil`"
    try:
        header = msgspec.json.decode(line, type=Header)
    except _UNREADABLE as error:
        raise TracelensError(f"{name}: the GIL probe's header is unreadable ({error})", hint) from error
    if header.format != FORMAT:
        raise TracelensError(f"{name}: written as {header.format!r}, this version reads {FORMAT!r}", hint)
    if not header.anchors or header.clock != "CLOCK_MONOTONIC":
        raise TracelensError(f"{name}: the header does not say how its clock maps to CLOCK_REALTIME", hint)
    return header


def _take(line: bytes, rows: _Rows) -> None:
    """Add one line: rows, or the end. A cut or damaged line gives the rows that are whole."""
    try:
        rows.good.extend(_rows.decode(line))
        return
    except _UNREADABLE:
        pass
    try:
        rows.end = _end.decode(line)
        return
    except _UNREADABLE:
        pass
    whole = line
    pieces = _pieces(line)
    if pieces is None:
        whole = line[: line.rfind(b"]") + 1]
        pieces = _pieces(whole + b"]")
    if pieces is None:
        rows.lost_bytes += len(line)
        return
    rows.lost_bytes += len(line) - len(whole)
    for piece in pieces:
        try:
            rows.good.append(_row.decode(piece))
        except _UNREADABLE:
            rows.bad += 1


def _pieces(text: bytes) -> list[Any] | None:
    try:
        return _loose_rows.decode(text)
    except _UNREADABLE:
        return None


def _account(name: str, rows: _Rows, health: Health) -> None:
    if rows.bad:
        health.add(
            "gil.bad-rows",
            "warning",
            f"{rows.bad:,} rows of the GIL probe are not [time, lateness, run delay]; they were left out",
            need="ticks",
            count=rows.bad,
            where=name,
        )
    if rows.lost_bytes:
        health.add(
            "gil.damaged-lines",
            "warning",
            "a damaged or cut line of the GIL probe was left out; its whole rows were kept",
            need="ticks",
            lost_bytes=rows.lost_bytes,
            where=name,
        )
    if rows.end is None:
        health.add(
            "gil.no-end",
            "warning",
            "the GIL probe was killed before it could close its file: the last ticks are missing, and a wall clock "
            "set meanwhile would go unnoticed",
            need="ticks",
            where=name,
        )
    elif missing := rows.end.rows - len(rows.good) - rows.bad:
        health.add(
            "gil.row-count",
            "warning",
            f"the GIL probe says that it wrote {rows.end.rows:,} rows; {len(rows.good) + rows.bad:,} were found",
            need="ticks",
            count=abs(missing),
            where=name,
        )
    if not rows.good:
        health.add("gil.no-ticks", "warning", "the GIL probe wrote no ticks", need="ticks", where=name)


def _place(
    name: str, wakes: list[int], start: Anchor, ends: list[Anchor], health: Health
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Times since `start` on CLOCK_REALTIME, and their half-width in ns; linear between the anchors if they agree."""
    since = np.array(wakes, np.int64) - start.monotonic_ns
    if not ends or ends[-1].monotonic_ns <= start.monotonic_ns:
        return since, start.halfwidth_ns
    end = ends[-1]
    span = end.monotonic_ns - start.monotonic_ns
    apart = end.realtime_ns - start.realtime_ns - span
    halfwidth_ns = max(start.halfwidth_ns, end.halfwidth_ns) + abs(apart)
    if abs(apart) > STEP_NS:
        health.add(
            "gil.clock-set",
            "warning",
            f"the wall clock was set by {apart / 1e9:.3f} s while the GIL probe ran; its ticks may be off by that",
            need="ticks",
            where=name,
        )
        return since, halfwidth_ns
    return since + np.rint(np.clip(since, 0, span) * (apart / span)).astype(np.int64), halfwidth_ns


READER = Reader("gil_probe", "the GIL probe's ticks (gil.<pid>.jsonl)", sniff, read)
