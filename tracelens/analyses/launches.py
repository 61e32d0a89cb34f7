"""The host call behind each piece of GPU work: the join, its coverage, and graph replays.

A link is a flow of kind "launch". Several kernels of one host call are a graph replay. Knows nothing of ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracelens.schema import GPU_WORK
from tracelens.trace import Trace

LAUNCH_NAME = r"[lL]aunch(?:Cooperative)?Kernel|LaunchCooperative|GraphLaunch|launch_kernel"
"""Calls named so launch kernels even where none was recorded; others are known by what they launched elsewhere."""
GRAPH_NAME = r"GraphLaunch"


@dataclass(frozen=True)
class LaunchCounts:
    """How much of the launching was recorded on both sides; copies and sets are not counted."""

    kernels: int
    kernels_with_launch: int
    launches: int
    launches_with_kernels: int

    @property
    def kernels_without_launch_share(self) -> float:
        """Share of kernels whose host call is not in the recording; 0 without kernels."""
        return 1 - self.kernels_with_launch / self.kernels if self.kernels else 0.0

    @property
    def launches_without_kernels_share(self) -> float:
        """Share of launching host calls whose kernel is not in the recording; 0 without launches."""
        return 1 - self.launches_with_kernels / self.launches if self.launches else 0.0


def join(trace: Trace) -> pl.DataFrame:
    """One row per linked piece of GPU work, by its start.

    slice_id, kind, name, start_ns, dur_ns, track_id of the work; launch_id, launch_name, launch_start_ns,
    launch_end_ns, launch_track_id of its host call; replayed: the call launched several pieces of work.
    """
    return trace.derived(_join)


def _join(trace: Trace) -> pl.DataFrame:
    links = trace.flows.filter(pl.col("kind") == "launch").select("from_id", "to_id").unique("to_id", keep="first")
    work = trace.select(*GPU_WORK).select("slice_id", "kind", "name", "start_ns", "dur_ns", "track_id", "step_id")
    calls = trace.slices.select(
        pl.col("slice_id").alias("launch_id"),
        pl.col("name").alias("launch_name"),
        pl.col("start_ns").alias("launch_start_ns"),
        (pl.col("start_ns") + pl.col("dur_ns")).alias("launch_end_ns"),
        pl.col("track_id").alias("launch_track_id"),
    )
    return (
        work.join(links.rename({"to_id": "slice_id", "from_id": "launch_id"}), on="slice_id", how="inner")
        .join(calls, on="launch_id", how="inner")
        .with_columns((pl.len().over("launch_id") > 1).alias("replayed"))
        .sort("start_ns", "slice_id")
    )


def launching_calls(trace: Trace, joined: pl.DataFrame) -> pl.DataFrame:
    """Host calls that launch kernels: named so, or of a name that launched one somewhere in this recording."""
    names = joined.filter(pl.col("kind") == "kernel")["launch_name"].unique()
    name = pl.col("name").cast(pl.String)
    return trace.select("runtime").filter(name.is_in(names.cast(pl.String).implode()) | name.str.contains(LAUNCH_NAME))


def counts(trace: Trace, joined: pl.DataFrame | None = None) -> LaunchCounts:
    """Coverage of the launch join."""
    joined = join(trace) if joined is None else joined
    with_kernel = joined.filter(pl.col("kind") == "kernel")
    calls = launching_calls(trace, joined)
    # A call that launched a copy or a set was recorded on both sides too.
    recorded = calls.filter(pl.col("slice_id").is_in(joined["launch_id"].implode()))
    return LaunchCounts(trace.select("kernel").height, with_kernel.height, calls.height, recorded.height)


def graph_launches(trace: Trace) -> pl.DataFrame:
    """Host calls that replay a graph. Only their name says so where nothing of the replay was recorded."""
    return trace.select("runtime").filter(pl.col("name").cast(pl.String).str.contains(GRAPH_NAME))
