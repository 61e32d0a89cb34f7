"""Trace: what happened, as a few columnar tables on one clock, and how far they can be trusted.

All times are int64 ns since `origin_unix_ns`. Knows no file format and no rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import polars as pl

from tracelens import schema
from tracelens.health import Health

if TYPE_CHECKING:
    from tracelens.capture import Manifest

T = TypeVar("T")


class GilFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording says about one process's global interpreter lock; None where it does not say."""

    enabled: bool | None = None
    build_disabled: bool | None = None
    switch_interval_ns: int | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator, as the source describes it."""

    index: int
    name: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the sources say about the run beyond its events; empty or None where they do not say.

    `gil` maps process id to its lock's facts, `roofs` names measured ceilings (e.g. "copy_bytes_per_second"),
    `kernel_bytes` maps a kernel name pattern to bytes moved a launch. `recorder_threads` are (process id, thread id) of
    threads that belong to the recording, not to the program.
    """

    devices: tuple[Device, ...] = ()
    gil: dict[int, GilFacts] = {}
    roofs: dict[str, float] = {}
    kernel_bytes: dict[str, int] = {}
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    engine: str | None = None
    parallelism: str | None = None
    versions: dict[str, str] = {}
    profiler: dict[str, bool] = {}
    recorder_threads: tuple[tuple[int, int], ...] = ()
    source_events: int | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file that went into a Trace, named as the user gave it."""

    path: str
    reader: str
    size_bytes: int


@dataclass(frozen=True)
class Provenance:
    """Where a Trace came from. Detectors never see it: they judge behaviour, not names or commands."""

    sources: tuple[SourceFile, ...] = ()
    manifest: Manifest | None = None


def _table(name: str) -> Any:
    return field(default_factory=schema.TABLES[name].empty)


@dataclass(frozen=True)
class Trace:
    """The tables of `tracelens.schema`, their common clock and their health.

    `origin_unix_ns` is what 0 ns means on CLOCK_REALTIME, or None if the sources' clock is unknown.
    `clock_halfwidth_ns` bounds the error between sources merged on that clock.
    """

    origin_unix_ns: int | None = None
    clock_halfwidth_ns: int = 0
    tracks: pl.DataFrame = _table("tracks")
    slices: pl.DataFrame = _table("slices")
    steps: pl.DataFrame = _table("steps")
    launches: pl.DataFrame = _table("launches")
    flows: pl.DataFrame = _table("flows")
    counters: pl.DataFrame = _table("counters")
    samples: pl.DataFrame = _table("samples")
    stacks: pl.DataFrame = _table("stacks")
    frames: pl.DataFrame = _table("frames")
    measurements: pl.DataFrame = _table("measurements")
    artifacts: pl.DataFrame = _table("artifacts")
    dots: pl.DataFrame = _table("dots")
    ticks: pl.DataFrame = _table("ticks")
    health: Health = field(default_factory=Health)
    facts: Facts = field(default_factory=Facts)
    provenance: Provenance = field(default_factory=Provenance)
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def derived(self, make: Callable[[Trace], T]) -> T:
        """What `make` computes from this trace, computed once: a Trace never changes. Callers must not change it."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(T, self._derived[make])

    def tables(self) -> dict[str, pl.DataFrame]:
        """Every table by name, without health."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in schema.TABLES and f.name != "health"}

    def blind(self) -> Trace:
        """The same trace without provenance: what a detector gets."""
        return replace(self, provenance=Provenance())

    def select(self, *kinds: str) -> pl.DataFrame:
        """The slices of these kinds, in table order."""
        return self.slices.filter(pl.col("kind").is_in(list(kinds)))

    def within(self, start_ns: int, end_ns: int) -> pl.DataFrame:
        """The slices that overlap [start_ns, end_ns)."""
        return self.slices.filter((pl.col("start_ns") < end_ns) & (pl.col("start_ns") + pl.col("dur_ns") > start_ns))

    def children(self, slice_id: int) -> pl.DataFrame:
        """The slices directly inside one slice."""
        return self.slices.filter(pl.col("parent_id") == slice_id)

    def args(self, slice_ids: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Parsed arguments of some slices: slice id → object; empty where the source gave none."""
        wanted = self.slices.filter(pl.col("slice_id").is_in(list(slice_ids))).select("slice_id", "args")
        return {slice_id: _parsed(text) for slice_id, text in wanted.iter_rows()}

    def evidence(self) -> frozenset[str]:
        """The kinds of evidence present, in the needs-vocabulary: "ticks", "slices:kernel", "samples.gil", …"""
        found = {name for name, table in self.tables().items() if table.height and name != "tracks"}
        if self.slices.height:
            found |= {f"slices:{kind}" for kind in self.slices["kind"].unique().to_list()}
            if self.slices["file"].null_count() < self.slices.height:
                found.add("slices.file")
        if self.flows.height:
            found |= {f"flows:{kind}" for kind in self.flows["kind"].unique().to_list()}
        if self.samples["gil"].any():
            found.add("samples.gil")
        return frozenset(found)


def _parsed(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
