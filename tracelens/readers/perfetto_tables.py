"""Decoded Perfetto events on their own clocks → tables on one clock. Knows no protobuf."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import schema
from tracelens.readers.perfetto_args import merged
from tracelens.readers.perfetto_clocks import Clock, Clocks, Times
from tracelens.readers.perfetto_events import Points, TrackEvents
from tracelens.readers.perfetto_others import Sample
from tracelens.readers.perfetto_slices import INSTANT, OPEN, Slices
from tracelens.readers.perfetto_tracks import Tracks
from tracelens.readers.stacks import Stacks

_GPU_WORK = frozenset(schema.GPU_WORK)


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
        (_numbers(decoded.events.clock, np.int32), _numbers(decoded.events.at, np.int64)),
        (_numbers(decoded.counters.clock, np.int32), _numbers(decoded.counters.at, np.int64)),
        (sample_clocks, np.array([sample[1] for sample in samples], np.int64)),
    ]
    target = clocks.target(_uses(decoded.clock_keys, [clock for clock, _ in groups]))
    placed = [_place(clock, at, decoded.clock_keys, clocks, target, losses) for clock, at in groups]
    starts = [int(times.min()) for _, times in placed if len(times)]
    base = min(starts, default=0)
    ends = [int(times.max()) for _, times in placed if len(times)]
    realtime = clocks.realtime(target)
    slices = Slices(decoded.events)
    rows, times = placed[0]
    slices.feed(rows.tolist(), times.tolist())
    slices.finish(max(ends, default=0))
    losses.update(slices.losses)
    kinds = decoded.kinds([decoded.events.category[row] for row in slices.row])
    frames = {
        "slices": _slices(decoded, slices, kinds, base),
        "flows": _flows(slices, kinds),
        "counters": _counters(decoded.counters, *placed[1], base),
        **_samples(samples, *placed[2], base),
    }
    return Made(
        frames={"tracks": tracks.table(), **frames},
        base_ns=base,
        origin_unix_ns=None if realtime is None else realtime[0] + base,
        halfwidth_ns=0 if realtime is None else realtime[1],
        overlapping_ns=slices.lost_ns,
    )


def _numbers(values: Any, dtype: Any) -> npt.NDArray[Any]:
    return np.frombuffer(values, dtype) if len(values) else np.empty(0, dtype)


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
) -> tuple[npt.NDArray[np.int64], Times]:
    """(rows, times) in order of time on the target clock; rows that cannot be placed are counted."""
    times = np.zeros(len(at), np.int64)
    valid = np.zeros(len(at), bool)
    for index, key in enumerate(keys):
        mine = np.flatnonzero(clock == index)
        converted = clocks.convert(at[mine], key, target) if len(mine) else None
        if converted is not None:
            times[mine], valid[mine] = converted
    losses["unplaced"] += len(at) - int(valid.sum())
    rows = np.flatnonzero(valid)
    order = np.argsort(times[rows], kind="stable")
    return rows[order], times[rows][order]


def _slices(decoded: TrackEvents, slices: Slices, kinds: list[str], base: int) -> pl.DataFrame:
    events, rows = decoded.events, slices.row
    args = [events.args[row] for row in rows]
    for index, ends in slices.merged.items():
        for row in ends:
            args[index] = merged(args[index], events.args[row] or b"{}")
    phases = events.phase
    height = len(rows)
    parents = pl.Series(_numbers(slices.parent, np.int64))
    columns: dict[str, Any] = {
        "slice_id": np.arange(height, dtype=np.uint32),
        "track_id": [events.track[row] for row in rows],
        "parent_id": pl.select(pl.when(parents != OPEN).then(parents)).to_series(),
        "depth": _numbers(slices.depth, np.int32),
        "start_ns": _numbers(slices.start, np.int64) - base,
        "dur_ns": _numbers(slices.duration, np.int64),
        "kind": [
            "instant" if kind == "other" and phases[row] == INSTANT else kind
            for kind, row in zip(kinds, rows, strict=True)
        ],
        "name": [events.name[row] or "" for row in rows],
        "args": pl.Series(args, dtype=pl.Binary).cast(pl.String),
    }
    columns.update(_sparse(decoded, rows))
    return schema.SLICES.build(columns)


def _sparse(decoded: TrackEvents, rows: Any) -> dict[str, list[Any]]:
    """Columns that few slices have, only if some slice has them."""
    events = decoded.events
    columns: dict[str, list[Any]] = {}
    if events.place:
        places = [events.place.get(row, (None, None)) for row in rows]
        columns["file"] = [file or None for file, _ in places]
        columns["line"] = [line if line and line < 2**31 else None for _, line in places]
    for name in ("correlation", "bytes", "request", "module"):
        wanted = str if name in ("request", "module") else int
        values = {row: found[name] for row, found in events.extra.items() if type(found.get(name)) is wanted}
        if wanted is int:
            values = {row: value for row, value in values.items() if -(2**63) <= value < 2**63}
        if values:
            columns[name] = [values.get(row) for row in rows]
    return columns


def _flows(slices: Slices, kinds: list[str]) -> pl.DataFrame:
    return schema.FLOWS.build(
        {
            "from_id": [first for first, _ in slices.flows],
            "to_id": [second for _, second in slices.flows],
            "kind": ["launch" if kinds[second] in _GPU_WORK else "async" for _, second in slices.flows],
        }
    )


def _counters(points: Points, rows: npt.NDArray[np.int64], times: Times, base: int) -> pl.DataFrame:
    return schema.COUNTERS.build(
        {
            "track_id": _numbers(points.track, np.int32)[rows],
            "at_ns": times - base,
            "value": _numbers(points.value, np.float64)[rows],
        }
    )


def _samples(samples: list[Sample], rows: npt.NDArray[np.int64], times: Times, base: int) -> dict[str, pl.DataFrame]:
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
