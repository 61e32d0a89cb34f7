"""Merge the Traces of several sources into one: one clock, one set of ids, one track for one thread.

Sources without a known clock may add samples (then without times), artifacts and measurements, never slices: files of
different profiling sessions are never put on one clock. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl

from tracelens import schema
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.trace import Facts, GilFacts, Provenance, Trace

_KEY = ("kind", "process_id", "thread_id", "device", "stream")
_LABELS = ("host", "rank", "name")
"""Two sources may name the same place where these agree, or one of them does not say (threads may differ in name)."""
_TIMED = {
    "slices": "start_ns",
    "steps": "start_ns",
    "counters": "at_ns",
    "samples": "at_ns",
    "ticks": "at_ns",
    "measurements": "at_ns",
}
_IDS = {
    "slices": {"slice_id": "slice", "parent_id": "slice", "step_id": "step"},
    "steps": {"step_id": "step"},
    "launches": {"slice_id": "slice"},
    "flows": {"from_id": "slice", "to_id": "slice"},
    "samples": {"stack_id": "stack"},
    "stacks": {"stack_id": "stack", "parent_id": "stack", "frame_id": "frame"},
    "frames": {"frame_id": "frame"},
    "artifacts": {"artifact_id": "artifact"},
    "dots": {"artifact_id": "artifact"},
}
_KEYED_BY = {
    "slice": ("slices", "slice_id"),
    "step": ("steps", "step_id"),
    "stack": ("stacks", "stack_id"),
    "frame": ("frames", "frame_id"),
    "artifact": ("artifacts", "artifact_id"),
}


@dataclass(frozen=True)
class Part:
    """One source's trace, with the name it goes by in messages."""

    name: str
    trace: Trace


def merge(parts: Sequence[Part]) -> Trace:
    """One Trace of all parts. Raises TracelensError where they cannot share a clock."""
    if len(parts) == 1:
        return parts[0].trace
    traces = [_placed(part, parts).trace for part in parts]
    origins = [trace.origin_unix_ns for trace in traces if trace.origin_unix_ns is not None]
    origin = min(origins) if origins else None
    tracks, track_maps = _merge_tracks([trace.tracks for trace in traces])
    tables: dict[str, list[pl.DataFrame]] = {name: [] for name in schema.TABLES if name not in ("tracks", "health")}
    next_id = dict.fromkeys(_KEYED_BY, 0)
    health = Health()
    for trace, track_map in zip(traces, track_maps, strict=True):
        health.extend(trace.health)
        shift = 0 if origin is None or trace.origin_unix_ns is None else trace.origin_unix_ns - origin
        for name, frames in tables.items():
            table: pl.DataFrame = getattr(trace, name)
            if table.height:
                frames.append(_moved(name, table, shift, track_map, next_id))
        for what, (name, column) in _KEYED_BY.items():
            table = getattr(trace, name)
            if table.height:
                next_id[what] += int(table[column].max()) + 1  # type: ignore[arg-type]
    return Trace(
        origin_unix_ns=origin,
        clock_halfwidth_ns=max(trace.clock_halfwidth_ns for trace in traces),
        tracks=tracks,
        health=health,
        facts=_merge_facts([trace.facts for trace in traces]),
        provenance=Provenance(sources=tuple(s for trace in traces for s in trace.provenance.sources)),
        **{name: pl.concat(frames) if frames else schema.TABLES[name].empty() for name, frames in tables.items()},
    )


def _placed(part: Part, parts: Sequence[Part]) -> Part:
    """The part, checked for a clock it can share: samples of an unknown clock lose their times."""
    trace = part.trace
    others = [other for other in parts if other is not part]
    if trace.origin_unix_ns is not None:
        for other in others:
            _check_overlap(part, other)
        return part
    if trace.slices.height or trace.ticks.height or trace.counters.height:
        if any(_is_timed(other.trace) for other in others):
            raise TracelensError(
                f"{part.name}: has no absolute clock, so it cannot be placed beside the other files",
                "analyse it alone, or record both in one capture with `tracelens record`",
            )
        return part
    if not trace.samples.height:
        return part
    samples = trace.samples.with_columns(pl.lit(None, pl.Int64).alias("at_ns"))
    trace.health.add(
        "clock.unplaced-samples",
        "info",
        "the sampling profiler's own clock is not tied to the trace's: samples are counted, not placed in time",
        need="samples.time",
        count=samples.height,
        where=part.name,
    )
    return Part(part.name, replace(trace, samples=samples))


def _is_timed(trace: Trace) -> bool:
    return bool(trace.slices.height or trace.ticks.height or trace.counters.height)


def _check_overlap(part: Part, other: Part) -> None:
    """Refuse two timed sources whose recordings do not overlap: they are different profiling sessions."""
    mine, theirs = _span(part.trace), _span(other.trace)
    if mine and theirs and (mine[1] < theirs[0] or theirs[1] < mine[0]):
        apart_ns = max(mine[0], theirs[0]) - min(mine[1], theirs[1])
        apart = f"{apart_ns / 1e9:.1f} s" if apart_ns >= 50_000_000 else f"{apart_ns / 1e6:.3f} ms"
        raise TracelensError(
            f"{part.name} and {other.name} were recorded at different times ({apart} apart)",
            "different profiling sessions are never put on one clock: analyse them one by one",
        )


def _span(trace: Trace) -> tuple[int, int] | None:
    """Absolute start and end of a trace's slices, unix ns."""
    timed = trace.slices.filter(pl.col("dur_ns") >= 0)
    if trace.origin_unix_ns is None or not timed.height:
        return None
    start = int(timed["start_ns"].min())  # type: ignore[arg-type]
    end = int((timed["start_ns"] + timed["dur_ns"]).max())  # type: ignore[arg-type]
    return trace.origin_unix_ns + start, trace.origin_unix_ns + end


def _merge_tracks(frames: list[pl.DataFrame]) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """All tracks with new ids, and per source the map from its ids; one thread seen by two sources is one track."""
    rows: list[dict[str, Any]] = []
    index: dict[tuple[Any, ...], list[int]] = {}
    maps: list[dict[int, int]] = []
    for frame in frames:
        mapping: dict[int, int] = {}
        own: set[int] = set()
        for row in frame.iter_rows(named=True):
            same_key = index.setdefault(tuple(row[column] for column in _KEY), [])
            target = next((at for at in same_key if at not in own and _compatible(rows[at], row)), len(rows))
            if target == len(rows):
                rows.append({**row, "track_id": target})
                same_key.append(target)
            else:
                known = rows[target]
                rows[target] = {name: value if value is not None else row[name] for name, value in known.items()}
            own.add(target)
            mapping[row["track_id"]] = target
        maps.append(mapping)
    return schema.TRACKS.build({name: [row[name] for row in rows] for name in schema.TRACKS.dtypes}), maps


def _compatible(known: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether two rows with the same key may be one place."""
    labels = _LABELS[:-1] if row["kind"] == "thread" and row["thread_id"] is not None else _LABELS
    return all(known[name] == row[name] or None in (known[name], row[name]) for name in labels)


def _moved(
    name: str, table: pl.DataFrame, shift: int, track_map: dict[int, int], next_id: dict[str, int]
) -> pl.DataFrame:
    """One source's table with its ids and times in the merged trace's terms."""
    changes = [
        (pl.col(column) + next_id[what]).cast(schema.TABLES[name].dtypes[column])
        for column, what in _IDS.get(name, {}).items()
        if next_id[what]
    ]
    if "track_id" in table.columns:
        changes.append(pl.col("track_id").replace_strict(track_map, return_dtype=pl.UInt32))
    if shift and name in _TIMED:
        changes.append(pl.col(_TIMED[name]) + shift)
    return table.with_columns(changes)


def _merge_facts(facts: Sequence[Facts]) -> Facts:
    """Facts of all sources: lists and maps joined, single values kept where the sources agree."""
    devices = {device.index: device for each in facts for device in each.devices}
    gil: dict[int, GilFacts] = {}
    for each in facts:
        gil.update(each.gil)

    def one(name: str) -> Any:
        values = {getattr(each, name) for each in facts} - {None}
        return values.pop() if len(values) == 1 else None

    events = [each.source_events for each in facts if each.source_events is not None]
    return Facts(
        devices=tuple(devices[index] for index in sorted(devices)),
        gil=gil,
        roofs={name: value for each in facts for name, value in each.roofs.items()},
        kernel_bytes={name: value for each in facts for name, value in each.kernel_bytes.items()},
        versions={name: value for each in facts for name, value in each.versions.items()},
        profiler={name: value for each in facts for name, value in each.profiler.items()},
        recorder_threads=tuple(sorted({thread for each in facts for thread in each.recorder_threads})),
        source_events=sum(events) if events else None,
        **{name: one(name) for name in ("rank", "world_size", "backend", "host", "engine", "parallelism")},
    )


def with_facts(trace: Trace, **changes: Any) -> Trace:
    """The trace with some facts replaced."""
    return replace(trace, facts=msgspec.structs.replace(trace.facts, **changes))
