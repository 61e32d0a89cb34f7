"""Decoded Perfetto events on their own clocks → tables on one clock. Knows no protobuf."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import schema
from tracelens.readers.perfetto_args import merged
from tracelens.readers.perfetto_clocks import Clock, Clocks, Times
from tracelens.readers.perfetto_events import Points, TrackEvents, kind
from tracelens.readers.perfetto_flows import edges
from tracelens.readers.perfetto_nesting import Nested, nest
from tracelens.readers.perfetto_others import Sample
from tracelens.readers.perfetto_pools import NONE, chosen, coded, numbers
from tracelens.readers.perfetto_slices import INSTANT, OPEN, TEXT_COLUMNS, Events
from tracelens.readers.perfetto_tracks import Tracks
from tracelens.readers.stacks import Stacks

LAUNCHED = (*schema.GPU_WORK, "sync")
"""A flow to one of these is a launch; torch draws one also to what a device waits for."""


@dataclass(frozen=True)
class Made:
    """The tables by name, their clock, and what building them lost. Times count from `base_ns` of the trace's clock."""

    frames: dict[str, pl.DataFrame]
    base_ns: int
    origin_unix_ns: int | None
    halfwidth_ns: int
    overlapping_ns: int


def tables(decoded: TrackEvents, samples: list[Sample], tracks: Tracks, clocks: Clocks, losses: Counter[str]) -> Made:
    """Convert every time, sort, and build all tables."""
    sample_clocks = np.array([sample[0] for sample in samples], np.int32)
    groups = [
        (numbers(decoded.events.clock), numbers(decoded.events.at)),
        (numbers(decoded.counters.clock), numbers(decoded.counters.at)),
        (sample_clocks, np.array([sample[1] for sample in samples], np.int64)),
    ]
    target = clocks.target(_uses(decoded.clock_keys, [clock for clock, _ in groups]))
    placed = [_place(clock, at, decoded.clock_keys, clocks, target, losses) for clock, at in groups]
    starts = [int(times.min()) for _, times in placed if len(times)]
    base = min(starts, default=0)
    ends = [int(times.max()) for _, times in placed if len(times)]
    realtime = clocks.realtime(target)
    events = decoded.events
    del groups
    events.forget_times()
    nested = nest(events, *placed.pop(0), max(ends, default=0))
    losses.update(nested.losses)
    kinds = _kinds(events, nested)
    frames = {
        "flows": _flows(*edges(events, nested, losses), kinds),
        "counters": _counters(decoded.counters, *placed[0], base),
        **_samples(samples, *placed[1], base),
        "slices": _slices(events, nested, kinds, base),
    }
    return Made(
        frames={"tracks": tracks.table(), **frames},
        base_ns=base,
        origin_unix_ns=None if realtime is None else realtime[0] + base,
        halfwidth_ns=0 if realtime is None else realtime[1],
        overlapping_ns=nested.lost_ns,
    )


def _uses(keys: list[Clock], groups: list[npt.NDArray[np.int32]]) -> dict[Clock, int]:
    counts = np.bincount(np.concatenate(groups), minlength=len(keys))
    return dict(zip(keys, counts.tolist(), strict=True))


def _place(
    clock: npt.NDArray[np.int32],
    at: Times,
    keys: list[Clock],
    clocks: Clocks,
    target: Clock,
    losses: Counter[str],
) -> tuple[npt.NDArray[np.int32], Times]:
    """(rows, times) in order of time on the target clock; rows that cannot be placed are counted."""
    times = np.zeros(len(at), np.int64)
    valid = np.zeros(len(at), bool)
    for index, key in enumerate(keys):
        mine = clock == index
        converted = clocks.convert(at[mine], key, target) if mine.any() else None
        if converted is not None:
            times[mine], valid[mine] = converted
    losses["unplaced"] += len(at) - int(valid.sum())
    rows = np.flatnonzero(valid).astype(np.int32)
    times = times[rows]
    order = np.argsort(times, kind="stable").astype(np.int32)
    return rows[order], times[order]


def _kinds(events: Events, nested: Nested) -> npt.NDArray[np.uint32]:
    """The kind of each slice, as a number of SLICE_KINDS."""
    code = {name: number for number, name in enumerate(schema.SLICE_KINDS)}
    known = np.array([code[kind(category)] for category in events.categories.values] + [code["other"]], np.uint32)
    kinds: npt.NDArray[np.uint32] = known[numbers(events.category)[nested.row]]
    instants = numbers(events.phase)[nested.row] == INSTANT
    kinds[instants & (kinds == code["other"])] = code["instant"]
    return kinds


def _slices(events: Events, nested: Nested, kinds: npt.NDArray[np.uint32], base: int) -> pl.DataFrame:
    rows = nested.row
    names = pl.Series([*events.names.values, ""], dtype=pl.String).cast(pl.Categorical())
    parents = nested.parent
    columns: dict[str, Any] = {
        "slice_id": np.arange(len(rows), dtype=np.uint32),
        "track_id": numbers(events.track)[rows],
        "parent_id": coded(parents, parents != OPEN),
        "depth": nested.depth,
        "start_ns": nested.start - base,
        "dur_ns": nested.duration,
        "kind": pl.Series(schema.SLICE_KINDS, dtype=schema.SLICES.dtypes["kind"]).gather(kinds),
        "name": names.gather(numbers(events.name)[rows] % len(names)),
        "args": _arguments(events, nested),
    }
    columns.update(_sparse(events, rows))
    return schema.SLICES.build(columns)


def _arguments(events: Events, nested: Nested) -> pl.Series:
    """The arguments of each slice, those of its end merged in."""
    args = numbers(events.args)
    wanted = args[nested.row]
    if nested.merged:
        texts = events.texts.series()
        for index, ends in nested.merged.items():
            said = [texts[int(code)] for code in (wanted[index], *args[ends]) if code != NONE]
            wanted[index] = events.texts.add(reduce(merged, (each.encode() for each in said)))
    return chosen(events.texts.series(), wanted)


def _sparse(events: Events, rows: npt.NDArray[np.int32]) -> dict[str, pl.Series]:
    """Columns that few slices have, only if some slice has them."""
    height = len(events.track)
    columns = {name: column.gather(rows, height) for name, column in events.columns.items() if column.rows}
    words = pl.Series(events.words.values, dtype=pl.String)
    for name in TEXT_COLUMNS:
        if name in columns:
            columns[name] = words.gather(columns[name])
    if events.place.rows:
        places = events.place.gather(rows, height)
        files = [file or None for file, _ in events.places.values]
        lines = [line if 0 < line < 2**31 else None for _, line in events.places.values]
        columns["file"] = pl.Series(files, dtype=pl.String).gather(places)
        columns["line"] = pl.Series(lines, dtype=pl.Int32).gather(places)
    return columns


def _flows(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint32]) -> pl.DataFrame:
    launched = np.array([kind in LAUNCHED for kind in schema.SLICE_KINDS])
    edge_kinds = pl.Series(["async", "launch"], dtype=schema.FLOWS.dtypes["kind"])
    return schema.FLOWS.build(
        {"from_id": first, "to_id": second, "kind": edge_kinds.gather(launched[kinds[second]].astype(np.uint32))}
    )


def _counters(points: Points, rows: npt.NDArray[np.int32], times: Times, base: int) -> pl.DataFrame:
    return schema.COUNTERS.build(
        {
            "track_id": numbers(points.track)[rows],
            "at_ns": times - base,
            "value": numbers(points.value)[rows],
        }
    )


def _samples(samples: list[Sample], rows: npt.NDArray[np.int32], times: Times, base: int) -> dict[str, pl.DataFrame]:
    stacks = Stacks()
    chosen = [samples[row] for row in rows.tolist()]
    table = schema.SAMPLES.build(
        {
            "track_id": [sample[2] for sample in chosen],
            "at_ns": times - base,
            "weight_ns": [sample[4] for sample in chosen],
            "stack_id": [stacks.stack(sample[3]) for sample in chosen],
            "on_cpu": [sample[5] for sample in chosen],
        }
    )
    made, frames = stacks.tables()
    return {"samples": table, "stacks": made, "frames": frames}
