"""Counts and sums of a trace, every one an integer with one definition (the report's `trace.summary`).

Knows nothing of rules. Where a source has no such thing, the value is None, never 0 by default.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tracelens.analyses import busy, completeness, launches
from tracelens.schema import GPU_WORK
from tracelens.trace import Trace

TOP = 10
HOST_ROWS = ("instant",)
"""Rows that alone make no thread: they mark a moment."""


def summarize(trace: Trace) -> dict[str, Any]:
    """The summary, named as the report names it."""
    slices = trace.slices
    kernels = trace.select("kernel")
    copies = trace.select("memcpy")
    found = busy.devices(trace)
    samples = trace.samples
    return {
        "source_events": trace.facts.source_events,
        "slices": slices.height,
        "threads": threads(trace),
        "devices": len(found),
        "streams": busy.gpu_work(trace).select("host", "rank", "device", "stream").n_unique() if found else 0,
        "kernels": kernels.height,
        "kernel_total_ns": _total(kernels),
        "kernel_busy_ns": busy.busy_ns(trace, "kernel"),
        "memcpy": copies.height,
        "memcpy_total_ns": _total(copies),
        "memset": trace.select("memset").height,
        "gpu_busy_ns": sum(device.busy_ns for device in found),
        "launches_matched": launches_matched(trace),
        "graph_launches": launches.graph_launches(trace).height,
        "python_functions": trace.select("python").height,
        "samples": samples.height or None,
        "samples_with_gil": int(samples["gil"].sum()) if samples["gil"].null_count() < samples.height else None,
        "flows": trace.flows.height,
        "counters": trace.counters.height,
        "steps": trace.steps.height,
        "span_ns": span_ns(trace),
        "gpu_window_ns": sum(device.window_ns for device in found) if found else None,
        "gpu_idle_ns": busy.idle(trace, complete=completeness.window(trace).complete) if found else None,
        "top_kernels": top_kernels(kernels),
        "top_functions": top_functions(trace),
    }


def _total(slices: pl.DataFrame) -> int:
    return int(slices["dur_ns"].sum())


def threads(trace: Trace) -> int:
    """Distinct process and thread that carry a row on a CPU thread, or samples."""
    carrying = (
        trace.slices.filter(~pl.col("kind").is_in([*HOST_ROWS, *GPU_WORK, "gpu_annotation", "overhead"]))["track_id"]
        .append(trace.samples["track_id"])
        .unique()
    )
    hosts = trace.tracks.filter(
        pl.col("track_id").is_in(carrying.implode())
        & ((pl.col("kind") == "thread") | ((pl.col("kind") == "process") & pl.col("thread_id").is_not_null()))
    )
    named = hosts.filter(pl.col("thread_id").is_not_null())
    return named.select("host", "process_id", "thread_id").n_unique() + (hosts.height - named.height)


def launches_matched(trace: Trace) -> int:
    """Kernels whose correlation a host call of the same process carries."""
    linked = trace.flows.filter(pl.col("kind") == "launch")["to_id"]
    return trace.select("kernel").filter(pl.col("slice_id").is_in(linked.implode())).height


def span_ns(trace: Trace) -> int | None:
    """First start to last end of slices with a length of their own; None without any."""
    timed = trace.slices.filter(pl.col("kind") != "instant")
    if not timed.height:
        return None
    return timed.select((pl.col("start_ns") + pl.col("dur_ns")).max() - pl.col("start_ns").min()).item()  # type: ignore[no-any-return]


def top_kernels(kernels: pl.DataFrame) -> list[dict[str, Any]]:
    """The ten kernel names with the most time."""
    grouped = kernels.group_by(pl.col("name").cast(pl.String)).agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("dur_ns").sum().alias("total_ns")
    )
    return grouped.sort(["total_ns", "name"], descending=[True, False]).head(TOP).to_dicts()


def top_functions(trace: Trace) -> list[dict[str, Any]]:
    """The ten functions most often innermost in samples."""
    leaves = trace.samples.join(trace.stacks.select("stack_id", "frame_id"), on="stack_id").join(
        trace.frames.select("frame_id", pl.col("function").alias("name"), "file"), on="frame_id"
    )
    grouped = leaves.group_by("name", "file").agg(pl.len().cast(pl.Int64).alias("self_samples"))
    return grouped.sort(["self_samples", "name", "file"], descending=[True, False, False]).head(TOP).to_dicts()
