"""Columns → tables: tracks, slices with parents, flows, counters and launches on one clock, with everything odd noted.

Serves Kineto's files and any Chrome trace JSON. What this file does not know: the file's other top-level keys, steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens import schema
from tracelens.analyses import nesting
from tracelens.health import Health
from tracelens.readers import json_begin_end, json_counters, json_flows, json_links, json_overlap, json_places
from tracelens.readers.json_columns import Columns
from tracelens.readers.json_kinds import KIND_CODE, ON_DEVICE
from tracelens.schema import SLICE_KINDS

FAR_NS = 60 * 10**9
"""Where the other times begin more than a minute from 0, a time of 0 is none: the writer left the field empty."""
INSTANTS = ("i", "I", "R", "n", "T", "p")
THREAD, STREAM, OUTER, ASIDE, ASYNC = range(5)
GROUP_KINDS = {THREAD: "thread", STREAM: "stream", OUTER: "process", ASIDE: "process", ASYNC: "async"}
OUTER_NAME = "frames open when the recording began"
_CODES = {kind: KIND_CODE[kind] for kind in SLICE_KINDS}
_WORK = [_CODES[kind] for kind in schema.GPU_WORK]
_DEVICE = [_CODES[kind] for kind in ON_DEVICE]


@dataclass(frozen=True)
class Tables:
    """What one file's events make. `first_ns` is the source's time of 0 ns; None if nothing has a time.

    `links` holds the raw link arguments of slices, by slice_id.
    """

    tracks: pl.DataFrame
    slices: pl.DataFrame
    launches: pl.DataFrame
    flows: pl.DataFrame
    counters: pl.DataFrame
    links: pl.DataFrame
    first_ns: int | None
    labels: tuple[str, ...]


def assemble(columns: Columns, health: Health, where: str, rank: int | None = None, host: str | None = None) -> Tables:
    """The tables of one file. `rank` and `host` are what its header says of all its tracks."""
    places = json_places.resolve(columns)
    rows = columns.rows.with_row_index("row")
    items = _items(rows, columns, health, where)
    items = items.join(columns.links, on="row", how="left", maintain_order="left")
    items = _placed_in_groups(items, columns, places)
    links = json_links.link(
        items.filter(pl.col("kind") == _CODES["runtime"]), items.filter(pl.col("kind").is_in(_DEVICE))
    )
    if links.ambiguous:
        says = "GPU rows share a correlation with several host calls and stay unlinked"
        health.add("link.ambiguous", "warning", says, need="flows:launch", count=links.ambiguous, where=where)
    items, first = _timed(items, links.pairs, health, where)
    items = json_overlap.clip(items, health, where)
    counters = json_counters.samples(rows, columns, places)
    first = min([time for time in (first, _first(counters["ts"])) if time is not None], default=None)
    origin = first or 0
    items = _nested(items.with_columns((pl.col("ts") - origin).alias("start_ns")))
    tracks, track_of = _tracks(items, counters, columns, places, rank, host)
    slices = _slices(items, track_of)
    flows = json_flows.flows(rows, items, links.pairs, origin, health, where)
    return Tables(
        tracks,
        slices,
        _launches(items, links.pairs),
        flows,
        schema.COUNTERS.build(
            {
                "track_id": counters["key"] + len(track_of),
                "at_ns": counters["ts"] - origin,
                "value": counters["value"],
            }
        ),
        items.select("slice_id", "correlation", "external_id", "device", "stream", "graph_id"),
        first,
        tuple(sorted({process.label for process in places.processes.values() if process.label})),
    )


def _items(rows: pl.DataFrame, columns: Columns, health: Health, where: str) -> pl.DataFrame:
    """Everything that becomes a slice: row, kind, name, place, ts, dur (null: absent), args, async_key."""
    known = ["row", "kind", "category", "name", "place", "ts", "dur", "mark", "args"]
    phase = pl.col("phase").cast(pl.String)
    rows = rows.with_columns(
        pl.when(phase.is_in(["b", "e", "n", "S", "F", "T", "p"]))
        .then(
            pl.concat_str(pl.col("place").cast(pl.String), pl.col("category").cast(pl.String), "id", separator="\x1f")
        )
        .alias("async_key")
    )
    whole = rows.filter(phase == "X").select(*known, "async_key")
    instants = rows.filter(phase.is_in(INSTANTS)).with_columns(
        pl.lit(_CODES["instant"], pl.UInt8).alias("kind"), pl.lit(0, pl.Int64).alias("dur")
    )
    timeless = instants["ts"].null_count()
    halves = rows.filter(phase.is_in(json_begin_end.PAIRED))
    timeless += halves["ts"].null_count()
    if timeless:
        says = "begin, end and instant events without a usable time were left out"
        health.add("time.missing", "warning", says, count=timeless, where=where)
    paired = _paired(halves.drop_nulls("ts"), rows, health, where)
    return pl.concat([whole, instants.drop_nulls("ts").select(*known, "async_key"), paired.select(*known, "async_key")])


def _paired(halves: pl.DataFrame, rows: pl.DataFrame, health: Health, where: str) -> pl.DataFrame:
    last = rows.select((pl.col("ts") + pl.col("dur").fill_null(0).clip(0)).max()).item()
    keyed = halves.with_columns(
        pl.coalesce("async_key", pl.col("place").cast(pl.String)).alias("key"),
    ).select("row", "key", "phase", "name", "ts", "args")
    pairs = json_begin_end.pair(keyed, last or 0)
    if pairs.unmatched_ends:
        says = "end events without a begin were left out"
        health.add("pairs.unmatched-end", "warning", says, count=pairs.unmatched_ends, where=where)
    if pairs.unclosed_begins:
        says = "begin events without an end were closed where the slice around them or the file ends"
        health.add("pairs.unclosed-begin", "warning", says, count=pairs.unclosed_begins, where=where)
    made = pl.DataFrame(pairs.slices, schema={"row": pl.UInt32, "length": pl.Int64, "more": pl.String}, orient="row")
    return (
        halves.join(made, on="row", how="inner", maintain_order="left")
        .with_columns(pl.col("length").alias("dur"), pl.coalesce("args", "more").alias("args"))
        .drop("length", "more")
    )


def _placed_in_groups(items: pl.DataFrame, columns: Columns, places: json_places.Places) -> pl.DataFrame:
    """Adds process, label, device, stream and `key`: the identity of the track, with its group."""
    by_code = sorted((code, place) for place, code in columns.places.items())
    table = pl.DataFrame(
        {
            "place": [code for code, _ in by_code],
            "process": [places.process(place[0]).number for _, place in by_code],
            "label": [places.process(place[0]).label for _, place in by_code],
            "pid_number": [place[0] if isinstance(place[0], int) else None for _, place in by_code],
            "tid_number": [place[1] if isinstance(place[1], int) else None for _, place in by_code],
        },
        schema={
            "place": pl.UInt32, "process": pl.Int64, "label": pl.String, "pid_number": pl.Int64, "tid_number": pl.Int64,
        },
    )  # fmt: skip
    items = items.join(table, on="place", how="left", maintain_order="left")
    kind, category = pl.col("kind"), pl.col("category").cast(pl.String)
    group = (
        pl.when(pl.col("async_key").is_not_null())
        .then(ASYNC)
        .when(kind.is_in(_DEVICE))
        .then(STREAM)
        .when((kind == _CODES["python"]) & (category == "python_function") & (pl.col("tid_number") == 0))
        .then(OUTER)
        .when((kind == _CODES["overhead"]) | (category == "Trace") | pl.col("mark").is_in(["g", "p"]))
        .then(ASIDE)
        .otherwise(THREAD)
        .cast(pl.UInt8)
    )
    numbered = pl.col("process").cast(pl.Int64)
    return items.with_columns(
        group.alias("group"),
        pl.coalesce("device", "pid_number", numbered).alias("device"),
        pl.coalesce("stream", "tid_number").alias("stream"),
        pl.when(pl.col("correlation") > 0).then("correlation").alias("correlation"),
    ).with_columns(
        pl.when(pl.col("group") == STREAM)
        .then(pl.format("{}/{}/{}", "process", "device", pl.col("stream").fill_null(-1)))
        .when(pl.col("group") == ASYNC)
        .then("async_key")
        .otherwise(pl.col("place").cast(pl.String))
        .alias("place_key")
    )


def _timed(items: pl.DataFrame, pairs: pl.DataFrame, health: Health, where: str) -> tuple[pl.DataFrame, int | None]:
    """Items with a ts and a dur each, odd ones noted; and the first time, None if there is none."""
    missing = items["dur"].null_count()
    if missing:
        says = "events have no usable duration; they count with length 0"
        health.add("time.missing-duration", "warning", says, count=missing, where=where)
    negative = items.filter(pl.col("dur") < 0).height
    if negative:
        says = "events have a negative duration; they count with length 0"
        health.add("time.negative-duration", "warning", says, count=negative, where=where)
    items = items.with_columns(pl.col("dur").fill_null(0).clip(0))
    others = items.filter(pl.col("ts") != 0)["ts"].to_numpy()
    far = len(others) > 0 and abs(float(np.median(others))) > FAR_NS
    unplaced = items.select(pl.col("ts").is_null() | ((pl.col("ts") == 0) & far)).to_series()
    count = int(unplaced.sum())
    placed = items.filter(~unplaced)
    first = _first(placed["ts"])
    if not count:
        return items, first
    lost = int(items.filter(unplaced)["dur"].sum())
    says = "events have no usable start time; they count, with length 0, and lie outside every time range"
    health.add("time.unplaced", "warning", says, need="slices:kernel", count=count, lost_ns=lost or None, where=where)
    ends = placed.select(pl.col("row").alias("from"), (pl.col("ts") + pl.col("dur")).alias("launched"))
    windows = placed.filter(pl.col("kind").is_in(_WORK)).group_by("process", "device").agg(
        pl.col("ts").min().alias("from_ts"), (pl.col("ts") + pl.col("dur")).max().alias("to_ts")
    )  # fmt: skip
    launched = pairs.join(ends, on="from", how="inner").select(pl.col("to").alias("row"), "launched")
    near = (
        items.with_columns(unplaced.alias("unplaced"))
        .join(launched, on="row", how="left", maintain_order="left")
        .join(windows, on=["process", "device"], how="left", maintain_order="left")
    )  # fmt: skip
    # Where GPU work without a time is put, it must not widen its device's window: at its launch, within the window.
    somewhere = pl.coalesce("launched", "from_ts", pl.lit(first or 0)).clip(
        pl.coalesce("from_ts", pl.lit(first or 0)), pl.col("to_ts")
    )
    return (
        near.with_columns(
            pl.when("unplaced").then(somewhere).otherwise("ts").alias("ts"),
            pl.when("unplaced").then(0).otherwise("dur").alias("dur"),
        ).drop("unplaced", "launched", "from_ts", "to_ts"),
        first,
    )


def _first(times: pl.Series) -> int | None:
    """The smallest of some times, None of none."""
    return int(times.to_numpy().min()) if times.len() else None


def _nested(items: pl.DataFrame) -> pl.DataFrame:
    """Adds slice_id (by start, longest first), parent_id and depth; sorted by slice_id."""
    items = items.with_columns(pl.struct("group", "place_key").rank("dense").cast(pl.Int64).alias("track_key"))
    items = items.sort("start_ns", pl.col("dur").neg(), "track_key", "row").with_row_index("slice_id")
    order = nesting.order(items["track_key"], items["start_ns"], items["dur"])
    nestable = items[order]
    parent, depth = nesting.nest(nestable["track_key"], nestable["start_ns"], nestable["dur"])
    parents = np.full(items.height, -1, np.int64)
    depths = np.zeros(items.height, np.int64)
    parents[order] = np.where(parent >= 0, order[parent], -1) if len(order) else parent
    depths[order] = depth
    return items.with_columns(
        pl.when(pl.Series(parents) >= 0).then(pl.Series(parents)).cast(pl.UInt32).alias("parent_id"),
        pl.Series("depth", depths).cast(pl.UInt16),
    )


def _tracks(
    items: pl.DataFrame,
    counters: pl.DataFrame,
    columns: Columns,
    places: json_places.Places,
    rank: int | None,
    host: str | None,
) -> tuple[pl.DataFrame, dict[int, int]]:
    """The tracks table and the track_id of each track_key. Counter tracks follow the others."""
    by_code = {code: place for place, code in columns.places.items()}
    firsts = items.group_by("track_key", maintain_order=True).first().sort("group", "process", "place", "track_key")
    rows = []
    for item in firsts.iter_rows(named=True):
        pid, tid = by_code[item["place"]]
        process = places.process(pid)
        stream, thread = item["group"] == STREAM, item["group"] in (THREAD, OUTER)
        name = places.thread_names.get((pid, tid))
        if item["group"] == OUTER:
            name = OUTER_NAME
        elif item["group"] == ASYNC:
            name = item["name"]
        elif name is None and isinstance(tid, str) and tid:
            name = tid
        rows.append(
            {
                "kind": GROUP_KINDS[item["group"]],
                "name": name,
                "process_id": process.number,
                "thread_id": tid if thread and isinstance(tid, int) else None,
                "device": _int16(item["device"]) if stream else None,
                "stream": item["stream"] if stream else None,
                "rank": rank if process.rank is None else process.rank,
                "host": host,
                "process": process.name,
                "thread": name if thread else None,
            }
        )
    for pid, name, unit in json_counters.tracks(counters):
        process = places.process(by_code[pid][0])
        rows.append(
            {
                "kind": "counter",
                "name": name,
                "unit": unit,
                "process_id": process.number,
                "rank": rank if process.rank is None else process.rank,
                "host": host,
                "process": process.name,
            }
        )
    frame = pl.DataFrame(rows, schema={k: v for k, v in schema.TRACKS.dtypes.items() if k != "track_id"})
    return schema.TRACKS.build(frame.with_row_index("track_id")), {
        key: index for index, key in enumerate(firsts["track_key"].to_list())
    }


def _int16(value: int | None) -> int | None:
    return value if value is not None and -(1 << 15) <= value < 1 << 15 else None


def _slices(items: pl.DataFrame, track_of: dict[int, int]) -> pl.DataFrame:
    kinds = pl.Enum(list(SLICE_KINDS))
    named = _located(items)
    return schema.SLICES.build(
        named.select(
            "slice_id",
            pl.col("track_key").replace_strict(track_of, return_dtype=pl.UInt32).alias("track_id")
            if track_of
            else pl.lit(0, pl.UInt32).alias("track_id"),
            "parent_id",
            "depth",
            "start_ns",
            pl.col("dur").alias("dur_ns"),
            pl.col("kind").replace_strict(dict(enumerate(SLICE_KINDS)), return_dtype=kinds),
            "name",
            "correlation",
            "module",
            "file",
            "line",
            pl.when(pl.col("kind").is_in([_CODES["memcpy"], _CODES["memset"]])).then("bytes").alias("bytes"),
            "args",
        )
    )


def _located(items: pl.DataFrame) -> pl.DataFrame:
    """Adds module, file and line, from names like `path.py(12): function` and `nn.Module: Linear_0`."""
    python = items.filter(pl.col("kind") == _CODES["python"])
    names = python.select(pl.col("name").unique()).with_columns(pl.col("name").cast(pl.String).alias("text"))
    parsed = names.with_columns(
        pl.col("text").str.extract_groups(r"^(?<file>.+?)\((?<line>\d{1,9})\): ").alias("place"),
        pl.col("text").str.extract(r"^nn\.Module: (.+)$").alias("module"),
    ).select(
        "name",
        pl.col("place").struct.field("file"),
        pl.col("place").struct.field("line").cast(pl.Int32),
        "module",
        pl.lit(_CODES["python"], pl.UInt8).alias("kind"),
    )
    return items.join(parsed, on=["kind", "name"], how="left", maintain_order="left")


def _launches(items: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel. Attribution is by correlation where the host call launched this kernel alone."""
    alone = pairs.filter(pl.len().over("from") == 1).select(
        pl.col("to").alias("row"), pl.lit(value=True).alias("alone")
    )
    kernels = items.filter(pl.col("kind") == _CODES["kernel"]).join(alone, on="row", how="left", maintain_order="left")
    return schema.LAUNCHES.build(
        kernels.select(
            "slice_id",
            *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"),
            "registers",
            pl.col("shared").alias("shared_bytes"),
            "graph_id",
            pl.col("graph_node").alias("graph_node_id"),
            pl.when(pl.col("alone")).then(pl.lit("correlation")).otherwise(pl.lit("none")).alias("attribution"),
        )
    )
