"""One row per kernel name: time, launch shape, and the op, module and line that most of its time belongs to.

Knows nothing of what a kernel should cost.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from tracelens.analyses import attribution, families
from tracelens.trace import Trace

TOP = 50
"""Names reported at most: the rest is counted in `truncated`."""
_GRID = ("grid_x", "grid_y", "grid_z")
_BLOCK = ("block_x", "block_y", "block_z")


def rows(trace: Trace) -> tuple[list[dict[str, Any]], int]:
    """The kernel names with the most time, named as the report's `kernels`, and how many names are left out."""
    work = attribution.attribute(trace).filter(pl.col("kind") == "kernel")
    if not work.height:
        return [], 0
    launches = trace.launches.select("slice_id", "attribution", *_GRID, *_BLOCK)
    work = work.with_columns(pl.col("name").cast(pl.String), pl.col("op").cast(pl.String))
    work = work.join(launches, on="slice_id", how="left")
    totals = (
        work.group_by("name")
        .agg(
            pl.len().alias("calls"), pl.col("dur_ns").sum().alias("total_ns"), pl.col("dur_ns").median().alias("p50_ns")
        )
        .sort("total_ns", "name", descending=[True, False])
    )
    kept = totals.head(TOP)
    where = _main(work, "op", "module", "file", "line", "attribution")
    shape = _main(work, *_GRID, *_BLOCK)
    shapes = _shapes(trace, work)
    found = kept.join(where, on="name", how="left", maintain_order="left").join(
        shape, on="name", how="left", maintain_order="left"
    )
    return [_row(row, shapes) for row in found.iter_rows(named=True)], totals.height - kept.height


def _main(work: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """name → the combination of these columns that holds most of its time."""
    return (
        work.group_by("name", *columns)
        .agg(pl.col("dur_ns").sum().alias("held"))
        .sort("held", *columns, descending=[True, *[False] * len(columns)], nulls_last=True)
        .unique("name", keep="first", maintain_order=True)
        .drop("held")
    )


def _shapes(trace: Trace, work: pl.DataFrame) -> dict[str, tuple[str | None, str | None]]:
    """name → input shapes and dtypes of the op that launched its longest kernel."""
    longest = work.filter(pl.col("op_id").is_not_null()).sort("dur_ns", "slice_id", descending=[True, False])
    first = longest.unique("name", keep="first", maintain_order=True).select("name", "op_id")
    arguments = trace.args(first["op_id"].to_list())
    out = {}
    for name, op_id in first.iter_rows():
        given = arguments.get(op_id, {})
        out[name] = (_text(given.get("Input Dims")), _text(given.get("Input type")))
    return out


def _text(value: Any) -> str | None:
    return None if value in (None, [], "") else json.dumps(value, separators=(",", ":"))


def _row(row: dict[str, Any], shapes: dict[str, tuple[str | None, str | None]]) -> dict[str, Any]:
    dims, dtypes = shapes.get(row["name"], (None, None))
    grid, block = (tuple(row[axis] for axis in axes) for axes in (_GRID, _BLOCK))
    return {
        "name": row["name"],
        "family": families.family(row["name"]),
        "backend": families.backend(row["name"]),
        "calls": row["calls"],
        "total_ns": row["total_ns"],
        "p50_ns": int(row["p50_ns"]),
        "grid": None if None in grid else grid,
        "block": None if None in block else block,
        "op": row["op"],
        "module": row["module"],
        "file": row["file"],
        "line": row["line"],
        "shapes": dims,
        "dtypes": dtypes,
        "attribution": row["attribution"] or "none",
    }
