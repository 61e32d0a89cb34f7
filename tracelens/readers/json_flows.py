"""Flow events and correlation links → the flows table: which slice caused which.

A flow event belongs to the slice around it; the end of a flow without a binding point "e" to the next slice that
starts. Kineto's "ac2g" flows repeat the correlation and serve where a row has none. Knows nothing of files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import schema
from tracelens.health import Health
from tracelens.readers.json_kinds import KIND_CODE

LAUNCH_CATEGORY = "ac2g"
STEPS = {"s": 0, "t": 1, "f": 2}
_WORK = [KIND_CODE[kind] for kind in (*schema.GPU_WORK, "sync")]


def flows(
    rows: pl.DataFrame, items: pl.DataFrame, pairs: pl.DataFrame, origin: int, health: Health, where: str
) -> pl.DataFrame:
    """The flows table of one file. `items` sorted by slice_id, `pairs` of rows linked by correlation."""
    ids = items.select("row", "slice_id")
    linked = (
        pairs.join(ids.rename({"row": "from", "slice_id": "from_id"}), on="from")
        .join(ids.rename({"row": "to", "slice_id": "to_id"}), on="to")
        .select("from_id", "to_id", pl.lit("launch").alias("kind"))
    )
    phase = pl.col("phase").cast(pl.String)
    events = rows.filter(phase.is_in(list(STEPS))).drop_nulls("ts")
    found = [linked]
    if events.height:
        events = events.with_columns(
            phase.alias("phase"), pl.col("category").cast(pl.String), (pl.col("ts") - origin).alias("at")
        )
        launches = events.filter(pl.col("category") == LAUNCH_CATEGORY)
        found.append(_by_flow_event(launches, items, linked))
        others = events.filter(pl.col("category") != LAUNCH_CATEGORY)
        found.append(_chains(others, items, health, where))
    return schema.FLOWS.build(pl.concat(found).unique(maintain_order=True).sort("to_id", "from_id"))


def _by_flow_event(events: pl.DataFrame, items: pl.DataFrame, linked: pl.DataFrame) -> pl.DataFrame:
    """Launches of GPU rows that have no correlation link: by s and f events at their very starts."""
    empty = linked.clear()
    open_work = items.filter(pl.col("kind").is_in(_WORK)).join(linked, left_on="slice_id", right_on="to_id", how="anti")
    if not open_work.height:
        return empty
    at = ["place", "start_ns"]
    calls = items.filter(pl.col("kind") == KIND_CODE["runtime"]).select(*at, pl.col("slice_id").alias("from_id"))
    ids = ["id", "place", pl.col("at").alias("start_ns")]
    begins = events.filter(pl.col("phase") == "s").select(ids).join(calls.unique(at, keep="none"), on=at)
    begins = begins.unique("id", keep="none").select("id", "from_id")
    ends = events.filter(pl.col("phase") == "f").select(ids)
    work = open_work.select(*at, pl.col("slice_id").alias("to_id")).unique(at, keep="none")
    made = ends.join(work, on=at).join(begins, on="id").unique("to_id", keep="none")
    return made.select("from_id", "to_id", pl.lit("launch").alias("kind"))


def _chains(events: pl.DataFrame, items: pl.DataFrame, health: Health, where: str) -> pl.DataFrame:
    """Flows of one category, name and id, step by step in time order."""
    empty = pl.DataFrame(schema={"from_id": pl.UInt32, "to_id": pl.UInt32, "kind": pl.String})
    if not events.height:
        return empty
    bound = _bind(events, items)
    unbound = int((bound < 0).sum())
    if unbound:
        says = "flow events lie in no slice and were left out"
        health.add("flow.unbound", "info", says, count=unbound, where=where)
    key = ["category", "name", "id"]
    chain = (
        events.with_columns(pl.Series("slice_id", bound), pl.col("phase").replace_strict(STEPS).alias("step"))
        .filter(pl.col("slice_id") >= 0)
        .sort(*key, "at", "step", "row")
        .with_columns(pl.col("slice_id", "phase", "place").shift(1).over(key).name.prefix("last_"))
    )
    halves = chain.filter(
        pl.col("phase").is_in(["t", "f"]) & (pl.col("last_slice_id").is_null() | (pl.col("last_phase") == "f"))
    )
    if halves.height:
        says = "flow events end a flow that nothing began"
        health.add("flow.without-begin", "info", says, count=halves.height, where=where)
    made = chain.filter(pl.col("phase").is_in(["t", "f"]) & (pl.col("last_phase") != "f"))
    return made.select(
        pl.col("last_slice_id").cast(pl.UInt32).alias("from_id"),
        pl.col("slice_id").cast(pl.UInt32).alias("to_id"),
        pl.when((pl.col("category") == "fwdbwd") | (pl.col("last_place") == pl.col("place")))
        .then(pl.lit("async"))
        .otherwise(pl.lit("message"))
        .alias("kind"),
    )


def _bind(events: pl.DataFrame, items: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The slice of each flow event, -1 if none."""
    out = np.full(events.height, -1, np.int64)
    wanted = events.select("place", "at", "phase", "mark").with_row_index("index").sort("place", "at", "index")
    slices = items.filter(pl.col("place").is_in(wanted["place"].unique().implode()))
    slices = slices.sort("place", "start_ns", pl.col("dur").neg(), "slice_id")
    by_place = slices.partition_by("place", as_dict=True)
    for (place,), points in wanted.partition_by("place", as_dict=True).items():
        here = by_place.get((place,))
        if here is not None:
            _bind_here(points, here, out)
    return out


def _bind_here(points: pl.DataFrame, slices: pl.DataFrame, out: npt.NDArray[np.int64]) -> None:
    """Bind the flow events of one place, by time, to its slices by start, longest first. Linear time."""
    starts, ids = slices["start_ns"].to_list(), slices["slice_id"].to_list()
    ends = (slices["start_ns"] + slices["dur"]).to_list()
    following = np.searchsorted(slices["start_ns"].to_numpy(), points["at"].to_numpy(), side="left").tolist()
    around: list[int] = []
    reached = 0
    rows = zip(
        points["index"].to_list(), points["at"].to_list(), points["phase"], points["mark"], following, strict=True
    )
    for index, at, phase, mark, after in rows:
        while reached < len(starts) and starts[reached] <= at:
            # As in nesting: an earlier slice that ends before a later one holds no point that the later does not.
            while around and ends[around[-1]] < ends[reached]:
                around.pop()
            around.append(reached)
            reached += 1
        while around and ends[around[-1]] < at:
            around.pop()
        if phase == "f" and mark != "e" and after < len(starts):
            out[index] = ids[after]
        elif around:
            out[index] = ids[around[-1]]
