"""A Trace → a native Perfetto file: tracks, slices, counters, flows and arguments, in bounded extra memory.

One packet sequence a process; times on CLOCK_REALTIME where the trace has it, else on BOOTTIME from 0. What Perfetto
has no field for (rank, stream, correlation, module …) goes into a track's description or an argument "tracelens", from
which our reader takes it back. The kind of a slice is its category.

Not written: steps, launches, samples, measurements, artifacts, ticks, health. A flow that goes back in time is drawn
forward, since Perfetto orders flows by time. Slices that overlap without nesting, which no Perfetto track can hold,
move to extra tracks "… (overlapping)".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np
import polars as pl

from tracelens.presenters.perfetto_wire import (
    BEGIN,
    BOOTTIME,
    COUNTER,
    END,
    INSTANT,
    REALTIME,
    Output,
    Sequence,
    blob,
    double,
    fixed64,
    number,
    words,
)
from tracelens.trace import Trace

HINT = "tracelens:"
PROCESS_UUIDS = 1 << 32
OVERLAY_UUIDS = 1 << 33
MAX_OVERLAYS = 64
CHUNK = 1 << 16
_COLUMNS = ("correlation", "bytes", "request", "module")
_HINTED = (
    "kind",
    "name",
    "unit",
    "process_id",
    "thread_id",
    "device",
    "stream",
    "rank",
    "host",
    "process",
    "thread",
    "role",
)


@dataclass
class Written:
    """What went into the file, and what had to change."""

    slices: int = 0
    counters: int = 0
    flows: int = 0
    moved: int = 0
    dropped: int = 0
    turned_flows: int = 0


def write_perfetto(trace: Trace, file: BinaryIO) -> Written:
    """Write one trace; the file must be opened for bytes."""
    written = Written()
    output = Output(file)
    clock, base = _clock(trace)
    output.snapshot({clock: base}, clock)
    _describe(trace.tracks, output)
    writer = _Slices(trace, output, base, written)
    sequences: dict[int, Sequence] = {}
    for row in trace.tracks.iter_rows(named=True):
        sequence = sequences.get(row["process_id"])
        if sequence is None:
            sequence = sequences[row["process_id"]] = Sequence(output, len(sequences) + 1, clock)
        writer.write(row, sequence)
    _counters(trace, sequences, base, written)
    output.flush()
    return written


def _clock(trace: Trace) -> tuple[int, int]:
    """(clock, its reading at time 0 of the trace); readings must not be negative."""
    if trace.origin_unix_ns is not None:
        return REALTIME, trace.origin_unix_ns
    earliest: Any = [trace.slices["start_ns"].min(), trace.counters["at_ns"].min()]
    return BOOTTIME, max([0, *(-at for at in earliest if at is not None)])


def _describe(tracks: pl.DataFrame, output: Output) -> None:
    """Descriptors of all tracks, each below its process."""
    parents: dict[int, int] = {}
    for row in tracks.iter_rows(named=True):
        pid = row["process_id"]
        if pid not in parents and _fits_pid(pid) and row["kind"] != "process":
            parents[pid] = PROCESS_UUIDS + len(parents)
            name = b"" if row["process"] is None else words(6, row["process"])
            output.describe(number(1, parents[pid]) + blob(3, number(1, pid) + name))
        output.describe(_descriptor(row, row["track_id"] + 1, parents.get(pid)))


def _fits_pid(value: int | None) -> bool:
    return value is not None and -(2**31) <= value < 2**31


def _descriptor(row: dict[str, Any], uuid: int, parent: int | None, note: str = "") -> bytes:
    """One track's descriptor, with everything that Perfetto has no field for in its description."""
    hint = {name: row[name] for name in _HINTED if row[name] is not None}
    made = number(1, uuid) + words(14, HINT + msgspec.json.encode(hint).decode())
    if row["kind"] == "thread" and _fits_pid(row["process_id"]) and _fits_pid(row["thread_id"]) and not note:
        name = b"" if row["thread"] is None else words(5, row["thread"])
        return made + blob(4, number(1, row["process_id"]) + number(2, row["thread_id"]) + name)
    made += words(2, (row["name"] or row["thread"] or _title(row)) + note)
    if parent is not None:
        made += number(5, parent)
    if row["kind"] == "counter":
        made += blob(8, b"" if row["unit"] is None else words(6, row["unit"]))
    return made


def _title(row: dict[str, Any]) -> str:
    """What to call a track without a name."""
    if row["stream"] is not None:
        return f"GPU {row['device'] or 0} stream {row['stream']}"
    return f"{row['kind']} {row['track_id']}"


class _Flows:
    """Flow ids to put on each slice."""

    def __init__(self, trace: Trace, written: Written) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        times = trace.slices["slice_id", "start_ns"]
        table = trace.flows.join(times.rename({"start_ns": "from_ns"}), left_on="from_id", right_on="slice_id")
        table = table.join(times.rename({"start_ns": "to_ns"}), left_on="to_id", right_on="slice_id")
        for flow, (first, second, forward) in enumerate(
            table.select("from_id", "to_id", pl.col("from_ns") < pl.col("to_ns")).iter_rows(), 1
        ):
            self._starts[first].append(flow)
            (self._ends if forward else self._starts)[second].append(flow)
            written.turned_flows += not forward
            written.flows += 1

    def of(self, slice_id: int) -> bytes:
        """The flow fields of a slice's begin."""
        if slice_id not in self._starts and slice_id not in self._ends:
            return b""
        return b"".join(fixed64(47, flow) for flow in self._starts.get(slice_id, ())) + b"".join(
            fixed64(48, flow) for flow in self._ends.get(slice_id, ())
        )


class _Slices:
    """Writes slices track by track; the begins and ends of a track come in nesting order."""

    def __init__(self, trace: Trace, output: Output, base: int, written: Written) -> None:
        self._slices = trace.slices
        self._tracks = trace.slices["track_id"].to_numpy()
        self._order = np.argsort(self._tracks, kind="stable")
        self._flows = _Flows(trace, written)
        self._output = output
        self._base = base
        self._written = written
        self._overlays = 0

    def write(self, track: dict[str, Any], sequence: Sequence) -> None:
        """Write the slices of one track."""
        ordered = self._tracks[self._order]
        first, last = np.searchsorted(ordered, (track["track_id"], track["track_id"] + 1))
        mine = self._slices[self._order[first:last]]
        if not mine.height:
            return
        uuid = track["track_id"] + 1
        for layer, steps in enumerate(_layers(mine)):
            if layer > MAX_OVERLAYS:
                self._written.dropped += sum(step >= 0 for step in steps)
                continue
            if layer:
                self._overlays += 1
                uuid = OVERLAY_UUIDS + self._overlays
                self._output.describe(_descriptor(track, uuid, None, " (overlapping)"))
                self._written.moved += sum(step >= 0 for step in steps)
            self._walk(mine, steps, uuid, sequence)

    def _walk(self, mine: pl.DataFrame, steps: list[int], uuid: int, sequence: Sequence) -> None:
        """Write begins and ends in the order of `steps`: a row, or for its end -1 - row."""
        rows = _rows(mine, [step for step in steps if step >= 0])
        ends = (mine["start_ns"] + mine["dur_ns"]).to_list()
        end = sequence.head(END, uuid)
        instants = ((mine["kind"] == "instant") & (mine["dur_ns"] == 0)).to_list()
        for step in steps:
            if step < 0:
                if not instants[-1 - step]:
                    sequence.event(self._base + ends[-1 - step], end)
                continue
            row = next(rows)
            body = sequence.head(INSTANT if instants[step] else BEGIN, uuid, row["name"], row["kind"])
            body += sequence.place(row["file"], row["line"]) + self._flows.of(row["slice_id"])
            sequence.event(self._base + row["start_ns"], body + sequence.arguments(_arguments(row)))
            self._written.slices += 1


def _rows(frame: pl.DataFrame, order: list[int]) -> Iterator[dict[str, Any]]:
    """Rows in an order, a chunk of them in memory."""
    for first in range(0, len(order), CHUNK):
        yield from frame[order[first : first + CHUNK]].iter_rows(named=True)


def _layers(mine: pl.DataFrame) -> Iterator[list[int]]:
    """Walks through one track's slices: each a list of rows (begin) and -1 - rows (end), nested in time.

    The first walk holds all that nests as the parents say; what overlaps goes, with what is inside, to the next.
    """
    ids = {slice_id: row for row, slice_id in enumerate(mine["slice_id"].to_list())}
    starts, ends = mine["start_ns"].to_list(), (mine["start_ns"] + mine["dur_ns"]).to_list()
    children: dict[int, list[int]] = defaultdict(list)
    for row, parent in enumerate(mine["parent_id"].to_list()):
        children[ids.get(parent, -1)].append(row)
    for rows in children.values():
        rows.sort(key=lambda row: (starts[row], ends[row]))
    waiting = children.get(-1, [])
    while waiting:
        steps: list[int] = []
        later: list[int] = []
        levels = [(iter(waiting), -1)]
        free = [starts[waiting[0]]]
        while levels:
            siblings, around = levels[-1]
            row = next(siblings, -1)
            if row < 0:
                levels.pop()
                free.pop()
                if around >= 0:
                    steps.append(-1 - around)
            elif starts[row] < free[-1] or (around >= 0 and ends[row] > ends[around]):
                later.append(row)
            else:
                free[-1] = ends[row]
                steps.append(row)
                levels.append((iter(children.get(row, ())), row))
                free.append(starts[row])
        yield steps
        waiting = sorted(later, key=lambda row: (starts[row], ends[row]))


def _arguments(row: dict[str, Any]) -> dict[str, Any]:
    """The slice's arguments, and under "tracelens" the columns that they do not already say."""
    values: Any = {}
    if row["args"]:
        try:
            values = msgspec.json.decode(row["args"])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            values = {"args": row["args"]}
        if not isinstance(values, dict):
            values = {"args": values}
    own = {name: row[name] for name in _COLUMNS if row[name] is not None and values.get(name) != row[name]}
    return {**values, "tracelens": own} if own else values


def _counters(trace: Trace, sequences: dict[int, Sequence], base: int, written: Written) -> None:
    """Write the values of all counters."""
    owners = dict(trace.tracks["track_id", "process_id"].iter_rows())
    for track_id, at_ns, value in trace.counters.iter_rows():
        sequence = sequences[owners[track_id]]
        sequence.event(base + at_ns, sequence.head(COUNTER, track_id + 1) + double(44, value))
        written.counters += 1
