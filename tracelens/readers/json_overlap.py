"""GPU rows of one stream that overlap: noted, and clipped where a length is impossible.

A stream runs its work in order, yet devices do report small overlaps (and programmatic launches are real ones): those
stay as they are. A row that swallows the rows after it by far more than itself ever takes is a writer's fault. Knows
nothing of files.
"""

from __future__ import annotations

import polars as pl

from tracelens import schema
from tracelens.analyses.families import family
from tracelens.health import Health
from tracelens.readers.json_kinds import KIND_CODE

MIN_OVERFLOW_NS = 1_000_000
"""Overlaps below 1 ms are left alone: concurrent kernels of one queue overlap by tens of µs."""
MIN_RATIO = 20
"""A clipped row is 20 times longer than the time to the next start, and than other rows of its name."""
_WORK = [KIND_CODE[kind] for kind in schema.GPU_WORK]


def clip(items: pl.DataFrame, health: Health, where: str) -> pl.DataFrame:
    """The items with impossible lengths cut at the next start of their stream."""
    stream = ["process", "device", "stream"]
    work = (
        items.filter(pl.col("kind").is_in(_WORK))
        .select("row", *stream, "name", "ts", "dur")
        .sort(*stream, "ts", "row")
        .with_columns(
            (pl.col("ts").shift(-1).over(stream) - pl.col("ts")).alias("room"),
            pl.col("dur").shift(-1).over(stream).alias("next_dur"),
            pl.col("dur").median().over("name").alias("usual"),
            pl.len().over("name").alias("calls"),
        )
        .filter((pl.col("dur") > pl.col("room")) & (pl.col("room") > 0))
    )
    if not work.height:
        return items
    alone = (pl.col("calls") == 1) | (pl.col("dur") > MIN_RATIO * pl.col("usual"))
    corrupt = work.filter(
        (pl.col("dur") - pl.col("room") > MIN_OVERFLOW_NS)
        & (pl.col("dur") > MIN_RATIO * pl.col("room"))
        & (pl.col("room") + pl.col("next_dur") <= pl.col("dur"))
        & alone
    )
    corrupt = corrupt.filter(pl.Series([family(name) != "collective" for name in corrupt["name"]], dtype=pl.Boolean))
    if overlapping := work.height - corrupt.height:
        says = "GPU rows of one stream overlap; all are kept, busy time is their union"
        health.add("time.stream-overlap", "info", says, need="slices:kernel", count=overlapping, where=where)
    if not corrupt.height:
        return items
    lost = int((corrupt["dur"] - corrupt["room"]).sum())
    says = f"GPU rows last impossibly far into the next rows of their stream and were cut there ({lost:,} ns in all)"
    health.add("time.clipped", "warning", says, need="slices:kernel", count=corrupt.height, lost_ns=lost, where=where)
    return items.join(corrupt.select("row", "room"), on="row", how="left", maintain_order="left").with_columns(
        pl.coalesce("room", "dur").alias("dur")
    ).drop("room")  # fmt: skip
