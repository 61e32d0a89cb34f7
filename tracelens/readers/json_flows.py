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
    sliced = items.filter(pl.col("dur") >= 0).sort("place", "start_ns", pl.col("dur").neg())
    places, starts = sliced["place"].to_numpy().astype(np.int64), sliced["start_ns"].to_numpy()
    ends, ids = starts + sliced["dur"].to_numpy(), sliced["slice_id"].to_numpy().astype(np.int64)
    parent_of = items["parent_id"].fill_null(items.height).to_numpy().astype(np.int64)
    row_of = np.full(items.height + 1, -1, np.int64)
    row_of[ids] = np.arange(len(ids))
    first = np.searchsorted(places, np.arange(places.max() + 2 if len(places) else 1), side="left")
    out = np.full(events.height, -1, np.int64)
    columns = zip(events["place"].to_list(), events["at"].to_list(), events["phase"], events["mark"], strict=True)
    for index, (place, at, phase, mark) in enumerate(columns):
        if place + 1 >= len(first):
            continue
        low, high = int(first[place]), int(first[place + 1])
        if phase == "f" and mark != "e":
            following = low + int(np.searchsorted(starts[low:high], at, side="left"))
            if following < high:
                out[index] = ids[following]
                continue
        here = low + int(np.searchsorted(starts[low:high], at, side="right")) - 1
        # At one time a leaf that starts there and the slice around it both qualify: the innermost is the flow's.
        while here >= low and ends[here] < at:
            above = parent_of[ids[here]]
            here = int(row_of[above]) if above < items.height else -1
        if here >= low:
            out[index] = ids[here]
    return out
