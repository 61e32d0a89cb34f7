"""Steps by phase: how long, how much GPU work, which kernel families. Work belongs to a step by correlation.

Knows what the engine called its steps, not what it should have done in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import intervals
from tracelens.analyses import busy
from tracelens.analyses.families import family_of
from tracelens.schema import PHASES
from tracelens.trace import Trace

ALL = "all"
UNATTRIBUTED = "unattributed"
"""GPU work whose launch was not recorded, or lies in no step."""
MAX_OUTLIERS = 10
OUTLIER_RATIO = 2.0
MIN_STEPS = 5
"""A step is an outlier at twice the median of at least five steps of its phase."""
PEER_COPY = r"PtoP|Peer|DtoH|HtoD|Host|Pinned|Pageable"
"""Copies that cross a link: between devices, or between a device and the host."""


def work_by_phase(trace: Trace) -> pl.DataFrame:
    """GPU work by start, with host, rank, device, phase (null: in no step), family and `moves`: it crosses a link."""
    work = busy.gpu_work(trace)
    phases = trace.steps.select("step_id", pl.col("phase").cast(pl.String))
    names = work.select(pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)).unique()
    families = names.with_columns(
        pl.Series("family", [family_of(kind, name) for kind, name in names.iter_rows()], dtype=pl.String)
    )
    return (
        work.with_columns(pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String))
        .join(phases, on="step_id", how="left")
        .join(families, on=["kind", "name"], how="left")
        .with_columns(
            (
                (pl.col("family") == "collective")
                | ((pl.col("kind") == "memcpy") & pl.col("name").str.contains(PEER_COPY))
            ).alias("moves")
        )
        .sort("start_ns", "slice_id")
    )


def exposed_ns(work: pl.DataFrame) -> int | None:
    """Time in which data moved over a link and nothing was computed, summed over devices; None if nothing moved."""
    if not work["moves"].any():
        return None
    total = 0
    for rows in work.partition_by("host", "rank", "device", maintain_order=True):
        moving, computing = (
            _union(rows.filter(pl.col("moves") == moves).filter(moves | (pl.col("kind") == "kernel")))
            for moves in (True, False)
        )
        total += intervals.total(intervals.subtract(moving, computing))
    return total


def busy_ns(work: pl.DataFrame) -> int:
    """Union of this work per device, summed over devices."""
    return sum(intervals.total(_union(rows)) for rows in work.partition_by("host", "rank", "device"))


def _union(rows: pl.DataFrame) -> intervals.IntervalSet:
    starts = rows["start_ns"].to_numpy()
    return intervals.union(starts, starts + rows["dur_ns"].to_numpy())


def step_stats(trace: Trace) -> list[dict[str, Any]]:
    """One entry per phase that has steps, named as the report's `steps`. Times are host windows of steps, ns.

    requests and tokens are sums over the phase's steps; kv_tokens too. None where no step says.
    """
    if not trace.steps.height:
        return []
    work = work_by_phase(trace)
    launched = trace.flows.filter(pl.col("kind") == "launch")
    owners = trace.slices.select(pl.col("slice_id").alias("from_id"), "step_id").drop_nulls()
    calls = launched.select("from_id").unique().join(owners, on="from_id")
    out = []
    for phase in PHASES:
        steps = trace.steps.filter(pl.col("phase") == phase)
        if not steps.height:
            continue
        ids = steps["step_id"].implode()
        own = work.filter(pl.col("step_id").is_in(ids))
        out.append(
            {
                "phase": phase,
                "count": steps.height,
                "requests": _sum(steps, "requests"),
                "tokens": _sum(steps.with_columns(tokens=_tokens()), "tokens"),
                "kv_tokens": _sum(steps, "kv_tokens"),
                "wall_ns": percentiles(steps["dur_ns"].to_numpy()),
                "gpu_busy_ns": busy_ns(own) if work.height else None,
                "launches": calls.filter(pl.col("step_id").is_in(ids)).height if launched.height else None,
                "exposed_comm_ns": exposed_ns(own),
                "outliers": outliers(steps),
            }
        )
    return out


def _tokens() -> pl.Expr:
    both = ("context_tokens", "generation_tokens")
    known = pl.any_horizontal(*(pl.col(name).is_not_null() for name in both))
    return pl.when(known).then(pl.sum_horizontal(*(pl.col(name).fill_null(0) for name in both)))


def _sum(steps: pl.DataFrame, column: str) -> int | None:
    values = steps[column].drop_nulls()
    return int(values.sum()) if values.len() else None


def percentiles(values: npt.NDArray[np.int64]) -> dict[str, int]:
    """Median and 99th percentile, each a value that occurs."""
    ordered = np.sort(values)
    last = len(ordered) - 1
    return {name: int(ordered[min(last, int(share * len(ordered)))]) for name, share in (("p50", 0.5), ("p99", 0.99))}


def outliers(steps: pl.DataFrame) -> list[int]:
    """Ids of up to ten steps at twice the median length, longest first."""
    if steps.height < MIN_STEPS:
        return []
    limit = OUTLIER_RATIO * percentiles(steps["dur_ns"].to_numpy())["p50"]
    found = steps.filter(pl.col("dur_ns") >= limit).sort(["dur_ns", "step_id"], descending=[True, False])
    return found["step_id"].head(MAX_OUTLIERS).to_list() if limit > 0 else []


def breakdown(trace: Trace) -> dict[str, list[dict[str, Any]]]:
    """Kernel families of all GPU work, and of each phase's where there are steps; shares of time add to 1."""
    work = work_by_phase(trace)
    if not work.height:
        return {}
    out = {ALL: _families(work)}
    if trace.steps.height:
        for phase in PHASES:
            own = work.filter(pl.col("phase") == phase)
            if own.height:
                out[phase] = _families(own)
        rest = work.filter(pl.col("phase").is_null())
        if rest.height:
            out[UNATTRIBUTED] = _families(rest)
    return out


def _families(work: pl.DataFrame) -> list[dict[str, Any]]:
    total = int(work["dur_ns"].sum())
    grouped = work.group_by("family").agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("dur_ns").sum().alias("total_ns")
    )
    rows = grouped.sort(["total_ns", "family"], descending=[True, False]).to_dicts()
    return [{**row, "share": row["total_ns"] / total if total else 0.0} for row in rows]
