"""Findings, and the GIL probe, as tracks of the Trace itself, so that a timeline shows them beside what happened.

A finding becomes one track with a slice for each of its windows. The probe's ticks, which a timeline has no row for,
become a counter. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl

from tracelens import schema
from tracelens.finding import Finding
from tracelens.trace import Trace

PROBE = "wait for the GIL"


def with_findings(trace: Trace, findings: Sequence[Finding]) -> Trace:
    """The trace with a track for each finding that has windows."""
    first_track, first_slice = _next(trace.tracks, "track_id"), _next(trace.slices, "slice_id")
    tracks: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    for finding in findings:
        if not finding.where.windows:
            continue
        track_id = first_track + len(tracks)
        where = finding.where
        tracks.append(
            {
                "track_id": track_id,
                "kind": "async",
                "name": f"{finding.rule} {finding.name}",
                "process_id": where.process_id if where.process_id is not None else 0,
            }
        )
        said = {
            "finding": finding.message, "severity": finding.severity, "confidence": finding.confidence,
            "fingerprint": finding.fingerprint, "fix": finding.fix.summary,
        }  # fmt: skip
        slices += [
            {
                "slice_id": first_slice + len(slices) + index,
                "track_id": track_id,
                "depth": 0,
                "start_ns": window.start_ns,
                "dur_ns": window.end_ns - window.start_ns,
                "kind": "annotation",
                "name": f"{finding.rule}: {where.kernel or where.function or where.op or finding.name}",
                "file": where.file,
                "line": where.line,
                "args": msgspec.json.encode(said).decode(),
            }
            for index, window in enumerate(where.windows)
        ]
    return _added(trace, tracks=tracks, slices=slices)


def with_probe(trace: Trace) -> Trace:
    """The trace with each GIL probe's net wait as a counter in ns."""
    first = _next(trace.tracks, "track_id")
    probes = trace.ticks["track_id"].unique(maintain_order=True).to_list()
    owners = dict(trace.tracks["track_id", "process_id"].iter_rows())
    tracks = [
        {"track_id": first + index, "kind": "counter", "name": PROBE, "unit": "ns", "process_id": owners[probe]}
        for index, probe in enumerate(probes)
    ]
    ids = {probe: first + index for index, probe in enumerate(probes)}
    waits = trace.ticks.select(
        pl.col("track_id").replace_strict(ids, return_dtype=pl.UInt32),
        "at_ns",
        (pl.col("late_ns") - pl.col("run_delay_ns").fill_null(0)).clip(0).cast(pl.Float64).alias("value"),
    )
    made = _added(trace, tracks=tracks)
    return replace(made, counters=pl.concat([made.counters, waits]))


def _next(table: pl.DataFrame, key: str) -> int:
    largest: Any = table[key].max()
    return 0 if largest is None else int(largest) + 1


def _added(trace: Trace, **rows: list[dict[str, Any]]) -> Trace:
    changes: Any = {}
    for name, new in rows.items():
        if new:
            table = schema.TABLES[name]
            columns = {column: [row.get(column) for row in new] for column in table.dtypes if column in new[0]}
            changes[name] = pl.concat([getattr(trace, name), table.build(columns)])
    return replace(trace, **changes)
