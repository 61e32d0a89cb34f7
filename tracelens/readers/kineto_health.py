"""What is odd about a torch profiler recording, said once each: missing ranks, missing devices, graphs, old formats.

Facts about the file only; whether they matter is for whoever judges.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tracelens import schema
from tracelens.health import Health
from tracelens.readers.json_columns import Columns
from tracelens.readers.json_kinds import UNREADABLE_DEVICES
from tracelens.trace import Trace


def note(
    trace: Trace, header: dict[str, Any], labels: tuple[str, ...], columns: Columns, health: Health, where: str
) -> None:
    """Add what is odd about one file to health."""
    if not trace.slices.height:
        return
    work = trace.select(*schema.GPU_WORK)
    _devices(trace, work, columns, health, where)
    if trace.facts.rank is None and not labels:
        says = "the file does not say its rank; it is taken as rank 0 of one"
        health.add("rank.unknown", "info", says, where=where)
    if labels:
        says = f"the file merges {len(labels)} ranks: {', '.join(labels[:8])}"
        health.add("rank.merged", "info", says, count=len(labels), where=where)
    if trace.origin_unix_ns is None:
        says = "the file does not say when it was recorded; it shares no clock with other files"
        health.add("clock.unknown", "info", says, where=where)
    if not trace.steps.height:
        health.add("steps.none", "info", "no step annotations: the whole recording is one window", where=where)
    if work.height:
        _links(trace, work, health, where)
        _graphs(trace, health, where)


def _devices(trace: Trace, work: pl.DataFrame, columns: Columns, health: Health, where: str) -> None:
    if not work.height:
        others = sorted({UNREADABLE_DEVICES[cat] for cat in columns.categories if cat in UNREADABLE_DEVICES})
        if others:
            says = f"{others[0]} recording: its device rows hold no kernels, copies or streams that can be read"
            health.add("device.unreadable", "warning", says, need="slices:kernel", where=where)
        else:
            says = "no GPU rows: a CPU-only recording says nothing about any device"
            health.add("device.none", "info", says, need="slices:kernel", where=where)
        return
    known = {device.index for device in trace.facts.devices}
    seen = set(trace.tracks["device"].drop_nulls())
    if missing := sorted(seen - known):
        says = f"deviceProperties does not describe device {missing[0]}: its size is unknown"
        health.add("device.undescribed", "info", says, count=len(missing), where=where)


def _links(trace: Trace, work: pl.DataFrame, health: Health, where: str) -> None:
    linked = trace.flows.filter(pl.col("kind") == "launch")["to_id"]
    kernels = work.filter(pl.col("kind") == "kernel")
    alone = kernels.filter(~pl.col("slice_id").is_in(linked.implode()))
    if alone.height:
        says = f"{alone.height:,} of {kernels.height:,} kernels have no host call that launched them"
        health.add("link.kernels-without-launch", "info", says, need="flows:launch", count=alone.height, where=where)


def _graphs(trace: Trace, health: Health, where: str) -> None:
    """Kernels that share one launch come from a graph replay: no op or line is known for each."""
    launches = trace.flows.filter(pl.col("kind") == "launch")
    replayed = launches.filter(pl.len().over("from_id") > 1).join(
        trace.launches.select("slice_id"), left_on="to_id", right_on="slice_id"
    )
    if replayed.height:
        calls = replayed["from_id"].n_unique()
        says = f"{replayed.height:,} kernels were replayed by {calls:,} graph launches: no op is known for each of them"
        health.add("graph.replayed", "info", says, need="slices:kernel", count=replayed.height, where=where)
