"""Which op, module and source line GPU work belongs to, through the host call that launched it.

Kernels of a graph replay have no op of their own: whoever replayed the graph did not write them. Lines are those of
function definitions, as Kineto writes them. Knows nothing of ranks' meaning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses import completeness, launches
from tracelens.schema import GPU_WORK
from tracelens.trace import Trace

LAUNCHERS = r"(?:^|/)(?:triton/(?:runtime|backends)|torch/(?:_ops|_inductor|nn/modules/module))[/.]"
"""Frames that only pass a launch on: the line that a reader wants is above them."""


def nearest(trace: Trace, *kinds: str, with_file: bool = False) -> pl.Series:
    """For each slice, in table order: the id of the nearest slice of these kinds that it is or lies in, else null."""
    slices = trace.slices
    wanted = slices["kind"].is_in(list(kinds))
    if with_file:
        wanted = wanted & slices["file"].is_not_null() & ~slices["file"].str.contains(LAUNCHERS).fill_null(False)
    parent = trace.derived(_parent_rows)
    good = wanted.to_numpy()
    current = np.arange(slices.height)
    climbing = np.flatnonzero(~good)
    while len(climbing):
        current[climbing] = parent[current[climbing]]
        at = current[climbing]
        climbing = climbing[(at >= 0) & ~good[at]]
    found = pl.Series("nearest", slices["slice_id"].to_numpy()[current], dtype=pl.UInt32)
    return found.to_frame().select(pl.when(pl.Series(current >= 0)).then("nearest"))["nearest"]


def _parent_rows(trace: Trace) -> npt.NDArray[np.int64]:
    """Row index of each slice's parent, -1 for none."""
    ids = trace.slices["slice_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    parents = trace.slices["parent_id"].fill_null(0).to_numpy()
    rows = order[np.minimum(np.searchsorted(ids, parents, sorter=order), len(ids) - 1)] if len(ids) else order
    return np.where(trace.slices["parent_id"].is_null().to_numpy(), -1, rows)


def attribute(trace: Trace) -> pl.DataFrame:
    """One row per piece of GPU work, by its start: slice_id, kind, name, dur_ns, op_id, op, module, file, line."""
    return trace.derived(_attribute)


def _attribute(trace: Trace) -> pl.DataFrame:
    work = trace.select(*GPU_WORK).select("slice_id", "kind", "name", "dur_ns", "start_ns", "args")
    joined = launches.join(trace).filter(~pl.col("replayed")).select("slice_id", "launch_id")
    owners = trace.slices.select(pl.col("slice_id").alias("launch_id")).with_columns(
        nearest(trace, "op").alias("op_id"),
        nearest(trace, "python", with_file=True).alias("python_id"),
        nearest(trace, "python").alias("inner_id"),
    )
    found = work.join(joined, on="slice_id", how="left").join(owners, on="launch_id", how="left")
    found = found.with_columns(pl.coalesce("op_id", _by_external_id(trace, found)).alias("op_id"))
    names = trace.slices.select(pl.col("slice_id").alias("op_id"), pl.col("name").alias("op"))
    lines = trace.slices.select(pl.col("slice_id").alias("python_id"), "file", "line")
    return (
        found.join(names, on="op_id", how="left")
        .join(lines, on="python_id", how="left")
        .join(_modules(trace), on="launch_id", how="left")
        .sort("start_ns", "slice_id")
        .select("slice_id", "kind", "name", "dur_ns", "op_id", "op", "module", "file", "line")
    )


def _modules(trace: Trace) -> pl.DataFrame:
    """launch_id → the innermost nn.Module around it."""
    if trace.slices["module"].null_count() == trace.slices.height:
        return pl.DataFrame(schema={"launch_id": pl.UInt32, "module": pl.String})
    slices = trace.slices
    module, parent = slices["module"].to_list(), slices["parent_id"].to_list()
    at = {slice_id: index for index, slice_id in enumerate(slices["slice_id"].to_list())}
    # Parents come before their children in no table order that is promised, so climb with a memory.
    known: dict[int, str | None] = {}

    def of(index: int) -> str | None:
        path = []
        found: str | None = None
        while True:
            if index in known:
                found = known[index]
                break
            path.append(index)
            if module[index] is not None:
                found = module[index]
                break
            above = parent[index]
            if above is None:
                break
            index = at[above]
        known.update(dict.fromkeys(path, found))
        return found

    calls = trace.flows.filter(pl.col("kind") == "launch")["from_id"].unique().to_list()
    rows = {"launch_id": calls, "module": [of(at[call]) for call in calls]}
    return pl.DataFrame(rows, schema={"launch_id": pl.UInt32, "module": pl.String})


def _by_external_id(trace: Trace, found: pl.DataFrame) -> pl.Series:
    """The op with the External id of GPU work whose host call was not recorded."""
    external = pl.col("args").str.extract(r'"External id"\s*:\s*"?(\d{1,18})').cast(pl.Int64)
    work = found.select(pl.when(pl.col("launch_id").is_null()).then(external).alias("external"))["external"]
    if work.null_count() == work.len():
        return pl.Series("op", [None] * found.height, dtype=pl.UInt32)
    ops = trace.select("op").select(external.alias("external"), pl.col("slice_id").alias("op"))
    ops = ops.filter(pl.col("external") > 0).unique("external", keep="none")
    return pl.DataFrame({"external": work}).join(ops, on="external", how="left", maintain_order="left")["op"]


def coverage(trace: Trace) -> dict[str, Any]:
    """How much of the recording can be attributed, named as the report's `coverage`; null where it has no meaning."""
    work = attribute(trace)
    total = int(work["dur_ns"].sum())
    covered = launches.counts(trace)
    graphs = launches.graph_launches(trace)
    replayed = launches.join(trace)["launch_id"].implode()
    whole = completeness.window(trace)
    ranks = trace.tracks["rank"].drop_nulls().n_unique()
    return {
        "gpu_time_with_op": _share(work.filter(pl.col("op_id").is_not_null()), total),
        "gpu_time_with_file": _share(work.filter(pl.col("file").is_not_null()), total),
        "launches_with_kernels": _ratio(covered.launches_with_kernels, covered.launches),
        "kernels_with_launch": _ratio(covered.kernels_with_launch, covered.kernels),
        "graph_replays_recorded": _ratio(graphs.filter(pl.col("slice_id").is_in(replayed)).height, graphs.height),
        "ranks_present": ranks or None,
        "ranks_expected": trace.facts.world_size,
        "window_complete": whole.complete if work.height else None,
        "window_because": whole.because if work.height else None,
        "host_times": host_times(trace),
    }


def host_times(trace: Trace) -> str | None:
    """Whether recording slowed the host: torch's profiler makes launch-bound steps 1.5 to 2.5 times as long.

    Rows of ops, Python frames and runtime calls are written by hooks in the very calls they time.
    """
    kinds = set(trace.slices["kind"].unique())
    if kinds & {"op", "python", "runtime"}:
        return "inflated"
    return "clean" if trace.slices.height else None


def _share(rows: pl.DataFrame, total: int) -> float | None:
    return int(rows["dur_ns"].sum()) / total if total else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
