"""Which host call launched which GPU work: by correlation within a process, never by names.

A correlation of 0, -1 or none links nothing. Where several host calls share one correlation, the innermost of calls
nested in one another is the launch; calls of different processes are told apart by the device they otherwise drive;
what stays ambiguous is not linked. Memory and time are linear. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Links:
    """`pairs`: `to` (row of GPU work) and `from` (row of its host call). `ambiguous`: GPU rows left unlinked."""

    pairs: pl.DataFrame
    ambiguous: int


def link(host: pl.DataFrame, device: pl.DataFrame) -> Links:
    """Join host calls and GPU work. Both: row, label (of the merged rank), correlation; host: place, process, ts, dur;
    device: device.
    """
    key = ["label", "correlation"]
    host = host.filter(pl.col("correlation") > 0)
    device = device.filter(pl.col("correlation") > 0).select("row", *key, "device")
    host = _innermost(host.join(device.select(key).unique(), on=key, how="semi"))
    single = host.filter(pl.len().over(key) == 1)
    pairs = device.join(single.select(*key, "process", pl.col("row").alias("from")), on=key, how="inner")
    doubtful = device.join(pairs.select("row"), on="row", how="anti").join(
        host.select(key).unique(), on=key, how="semi"
    )
    if doubtful.height:
        drives = (
            pairs.group_by("label", "device").agg(pl.col("process").unique()).filter(pl.col("process").list.len() == 1)
        )
        drives = drives.with_columns(pl.col("process").list.first())
        candidates = host.filter(pl.len().over(*key, "process") == 1).select(
            *key, "process", pl.col("row").alias("from")
        )
        told = doubtful.join(drives, on=["label", "device"], how="inner").join(
            candidates, on=[*key, "process"], how="inner"
        )
        pairs = pl.concat([pairs, told.select(pairs.columns)])
    linked = pairs.select(pl.col("row").alias("to"), "from").sort("to")
    return Links(linked, device.join(host.select(key).unique(), on=key, how="semi").height - linked.height)


def _innermost(host: pl.DataFrame) -> pl.DataFrame:
    """Without the calls that contain another call of the same place and correlation."""
    key = ["place", "correlation"]
    repeated = host.filter(pl.len().over(key) > 1)
    if not repeated.height:
        return host
    ends = pl.col("ts") + pl.col("dur")
    repeated = repeated.sort(*key, "ts", pl.col("dur").neg(), "row")
    following = repeated.select(pl.col("ts").shift(-1).over(key) < ends).to_series().fill_null(value=False)
    inside = repeated.select(ends.shift(-1).over(key) <= ends).to_series().fill_null(value=False)
    outer = repeated.filter(following & inside)
    return host.join(outer.select("row"), on="row", how="anti")
