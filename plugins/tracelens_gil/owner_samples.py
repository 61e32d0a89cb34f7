"""Samples of the thread that owns the GIL (py-spy --gil), and what they say about a native call or a silent thread.

py-spy names the Python caller and its executing line, never the C function. Its durations are not hold times, so only
counts and their order are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.trace import Trace
from tracelens_gil.python_rows import Ints


@dataclass(frozen=True)
class OwnerLine:
    """One executing line under which a thread owned the GIL when looked at.

    `samples` on this line, `same_function` anywhere in its function, `thread_samples` on the thread, `of` in the
    process. `handed_over` counts the samples on this line after which the next owner seen was another thread.
    """

    track_id: int
    process_id: int
    thread_id: int | None
    function: str
    file: str | None
    line: int | None
    samples: int
    handed_over: int
    same_function: int
    thread_samples: int
    of: int

    @property
    def handed_over_share(self) -> float:
        """How often the lock had moved on when looked at next: low while a call keeps it, about even otherwise."""
        return self.handed_over / self.samples

    @property
    def thread_share(self) -> float:
        """Share of the process's GIL samples in which this line's thread was the owner."""
        return self.thread_samples / self.of


def owner_lines(trace: Trace) -> list[OwnerLine]:
    """Where the GIL's owners were, most sampled first. The order of a process's samples is the file's."""
    owned = (
        trace.samples.filter(pl.col("gil"))
        .join(trace.stacks.select("stack_id", "frame_id"), on="stack_id", maintain_order="left")
        .join(trace.frames.select("frame_id", "function", "file", "line"), on="frame_id", maintain_order="left")
        .join(trace.tracks.select("track_id", "process_id", "thread_id"), on="track_id", maintain_order="left")
        .with_columns((pl.col("track_id").shift(-1).over("process_id") != pl.col("track_id")).alias("moved"))
    )
    counted = (
        owned.group_by("track_id", "process_id", "thread_id", "function", "file", "line")
        .agg(pl.len().alias("samples"), pl.col("moved").sum().alias("handed_over"))
        .with_columns(
            pl.col("samples").sum().over("process_id").alias("of"),
            pl.col("samples").sum().over("track_id").alias("thread_samples"),
            pl.col("samples").sum().over("track_id", "function", "file").alias("same_function"),
        )
        .sort("samples", "function", "line", descending=[True, False, False])
    )
    return [OwnerLine(**row) for row in counted.iter_rows(named=True)]


@dataclass(frozen=True)
class SilentGaps:
    """Stretches in which a thread without Python rows recorded nothing, and what others started meanwhile.

    `start`/`end` are the gaps, ns; `inside` rows of other threads started in them where `expected` would by chance.
    """

    start: Ints
    end: Ints
    window_ns: int
    inside: int
    expected: float

    @property
    def total_ns(self) -> int:
        """Summed length of the gaps."""
        return int((self.end - self.start).sum())

    @property
    def ratio(self) -> float:
        """Observed over expected starts of other threads' rows."""
        return self.inside / self.expected if self.expected else float("nan")


def silent_gaps(trace: Trace, track_id: int, shortest_ns: int) -> SilentGaps:
    """Gaps of at least `shortest_ns` between a thread's host rows, against starts of other threads of its process.

    Annotations contain their work and are left out.
    """
    process_id = trace.tracks.row(by_predicate=pl.col("track_id") == track_id, named=True)["process_id"]
    host = (
        trace.slices.filter(pl.col("kind").is_in(["op", "runtime", "python"]))
        .join(trace.tracks.filter(pl.col("kind") == "thread").select("track_id", "process_id"), on="track_id")
        .filter(pl.col("process_id") == process_id)
    )
    mine = host.filter(pl.col("track_id") == track_id)
    starts = np.sort(host.filter(pl.col("track_id") != track_id)["start_ns"].to_numpy().astype(np.int64))
    busy = intervals.union(mine["start_ns"].to_numpy(), (mine["start_ns"] + mine["dur_ns"]).to_numpy())
    if len(busy[0]) < 2 or not len(starts):
        return SilentGaps(*intervals.empty(), window_ns=0, inside=0, expected=0.0)
    window = int(max(busy[0][0], starts[0])), int(min(busy[1][-1], starts[-1]))
    start, end = intervals.complement(busy, *window)
    long = end - start >= shortest_ns
    start, end = start[long], end[long]
    length = max(window[1] - window[0], 1)
    within = int(((starts >= window[0]) & (starts <= window[1])).sum())
    return SilentGaps(
        start=start,
        end=end,
        window_ns=length,
        inside=int(intervals.count_inside(starts, start, end).sum()),
        expected=within * int((end - start).sum()) / length,
    )
