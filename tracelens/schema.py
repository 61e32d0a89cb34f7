"""Every table of a Trace, declared once: columns, dtypes, units and meaning.

Readers build frames through `build`, so a wrong dtype or a missing column fails in the reader, by name.
`tracelens explain slices` prints what stands here. Knows nothing of files or rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

VERSION = 1
"""Part of every cache key: raise it when a table changes shape or meaning."""

SLICE_KINDS = (
    "python", "op", "runtime", "kernel", "memcpy", "memset", "sync", "annotation", "gpu_annotation",
    "wait", "request", "instant", "overhead", "other",
)  # fmt: skip
TRACK_KINDS = ("thread", "stream", "counter", "process", "async")
PHASES = ("prefill", "decode", "mixed", "encode", "draft", "train", "unknown")
FLOW_KINDS = ("launch", "async", "message", "wakeup")
ATTRIBUTIONS = ("correlation", "graph_node", "capture_trace", "map_trace", "name", "none")
GPU_WORK = ("kernel", "memcpy", "memset")
"""Slice kinds that occupy a device. Annotation and sync rows are not GPU work."""


@dataclass(frozen=True)
class Column:
    """One column: `required` columns may not hold nulls; in all others null means "the source did not say"."""

    name: str
    dtype: Any
    says: str
    required: bool = False


@dataclass(frozen=True)
class Table:
    """One table of the Trace."""

    name: str
    says: str
    columns: tuple[Column, ...]

    @property
    def dtypes(self) -> dict[str, Any]:
        """Column name → polars dtype, in declared order."""
        return {column.name: column.dtype for column in self.columns}

    def empty(self) -> pl.DataFrame:
        """A frame of this table with no rows."""
        return pl.DataFrame(schema=self.dtypes)

    def build(self, columns: Mapping[str, Any] | pl.DataFrame) -> pl.DataFrame:
        """A frame of exactly this table from column data; absent optional columns become null.

        Raises ValueError naming the table and column on an unknown column, a missing or null required one, or a
        value that does not fit the dtype.
        """
        data = columns.get_columns() if isinstance(columns, pl.DataFrame) else columns
        given = {s.name: s for s in data} if isinstance(data, list) else dict(data)
        unknown = sorted(set(given) - set(self.dtypes))
        if unknown:
            raise ValueError(f"table {self.name}: unknown column {unknown[0]!r}")
        height = next((len(values) for values in given.values()), 0)
        series = []
        for column in self.columns:
            values = given.get(column.name)
            if values is None:
                if column.required and height:
                    raise ValueError(f"table {self.name}: column {column.name!r} is missing")
                series.append(pl.Series(column.name, [None] * height, dtype=column.dtype))
                continue
            series.append(_series(self.name, column, values))
        return pl.DataFrame(series)


def _series(table: str, column: Column, values: Any) -> pl.Series:
    try:
        made = (
            values.rename(column.name).cast(column.dtype)
            if isinstance(values, pl.Series)
            else pl.Series(column.name, values, dtype=column.dtype)
        )
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"table {table}: column {column.name!r} does not fit {column.dtype}: {error}") from error
    if column.required and made.null_count():
        raise ValueError(f"table {table}: column {column.name!r} holds nulls")
    return made


def _enum(values: Sequence[str]) -> pl.Enum:
    return pl.Enum(list(values))


_ID = pl.UInt32
_NAME = pl.Categorical()

TRACKS = Table(
    "tracks",
    "a place where things happen",
    (
        Column("track_id", _ID, "key of this table", True),
        Column("kind", _enum(TRACK_KINDS), "what sort of place", True),
        Column("name", pl.String, "the source's name for it"),
        Column("unit", pl.String, "unit of a counter's values"),
        Column("process_id", pl.Int64, "operating system process; a device's number for GPU tracks of Kineto", True),
        Column("thread_id", pl.Int64, "operating system thread, 64 bit"),
        Column("device", pl.Int16, "GPU index"),
        Column("stream", pl.Int64, "GPU stream or queue"),
        Column("rank", pl.Int32, "rank in the distributed job"),
        Column("host", pl.String, "machine"),
        Column("process", pl.String, "process name"),
        Column("thread", pl.String, "thread name"),
        Column("role", pl.String, "what the process does: prefill, decode, router, …"),
    ),
)
SLICES = Table(
    "slices",
    "something with a beginning and an end",
    (
        Column("slice_id", _ID, "key of this table", True),
        Column("track_id", _ID, "where it happened", True),
        Column("parent_id", _ID, "the slice on the same track that contains it"),
        Column("depth", pl.UInt16, "number of slices that contain it", True),
        Column("start_ns", pl.Int64, "start, ns since the trace's origin", True),
        Column("dur_ns", pl.Int64, "length in ns, never negative", True),
        Column("kind", _enum(SLICE_KINDS), "what it is", True),
        Column("name", _NAME, "the source's name, unchanged", True),
        Column("correlation", pl.Int64, "links a launch to its GPU work within a process"),
        Column("step_id", _ID, "the step it belongs to, by correlation"),
        Column("request", pl.String, "request it served"),
        Column("module", pl.String, "nn.Module or Python module"),
        Column("file", pl.String, "source file, as the source wrote it"),
        Column("line", pl.Int32, "source line (Kineto: of the function's definition)"),
        Column("bytes", pl.Int64, "bytes moved"),
        Column("args", pl.String, "raw JSON text of the arguments, parsed on demand"),
    ),
)
STEPS = Table(
    "steps",
    "one engine or training step",
    (
        Column("step_id", _ID, "key of this table", True),
        Column("rank", pl.Int32, "rank"),
        Column("index", pl.Int64, "number the source gave it", True),
        Column("phase", _enum(PHASES), "what the step computes", True),
        Column("start_ns", pl.Int64, "start of its host window", True),
        Column("dur_ns", pl.Int64, "length of its host window", True),
        Column("requests", pl.Int64, "requests in the batch"),
        Column("context_tokens", pl.Int64, "prompt tokens computed"),
        Column("generation_tokens", pl.Int64, "tokens generated"),
        Column("kv_tokens", pl.Int64, "tokens of context read from the cache"),
        Column("source", pl.String, "the annotation that said so"),
    ),
)
LAUNCHES = Table(
    "launches",
    "one row per kernel",
    (
        Column("slice_id", _ID, "the kernel's slice", True),
        *(Column(f"grid_{axis}", pl.Int64, f"blocks in {axis}") for axis in "xyz"),
        *(Column(f"block_{axis}", pl.Int64, f"threads of a block in {axis}") for axis in "xyz"),
        Column("registers", pl.Int64, "registers a thread"),
        Column("shared_bytes", pl.Int64, "shared memory a block, bytes"),
        Column("graph_id", pl.Int64, "graph that replayed it"),
        Column("graph_node_id", pl.Int64, "node in that graph"),
        Column("attribution", _enum(ATTRIBUTIONS), "how its op, module or line is known", True),
    ),
)
FLOWS = Table(
    "flows",
    "this made that",
    (
        Column("from_id", _ID, "slice that caused", True),
        Column("to_id", _ID, "slice that was caused", True),
        Column("kind", _enum(FLOW_KINDS), "how", True),
    ),
)
COUNTERS = Table(
    "counters",
    "a number over time",
    (
        Column("track_id", _ID, "the counter", True),
        Column("at_ns", pl.Int64, "when, ns since origin", True),
        Column("value", pl.Float64, "value in the track's unit", True),
    ),
)
SAMPLES = Table(
    "samples",
    "where a thread was when looked at",
    (
        Column("track_id", _ID, "the thread", True),
        Column("at_ns", pl.Int64, "when; null where the format keeps no time"),
        Column("weight_ns", pl.Int64, "time the sample stands for; 0 where unknown", True),
        Column("stack_id", _ID, "innermost frame of its stack", True),
        Column("on_cpu", pl.Boolean, "the thread was running"),
        Column("gil", pl.Boolean, "the thread held the GIL; null where the recording does not say"),
    ),
)
STACKS = Table(
    "stacks",
    "call stacks as a trie: each row is one frame below its parent",
    (
        Column("stack_id", _ID, "key of this table", True),
        Column("parent_id", _ID, "the caller's row"),
        Column("frame_id", _ID, "the frame", True),
        Column("depth", pl.UInt16, "number of callers", True),
    ),
)
FRAMES = Table(
    "frames",
    "source locations of stacks",
    (
        Column("frame_id", _ID, "key of this table", True),
        Column("function", pl.String, "function", True),
        Column("file", pl.String, "file, as the source wrote it"),
        Column("line", pl.Int32, "executing line"),
        Column("module", pl.String, "module"),
        Column("native", pl.Boolean, "a native frame", True),
    ),
)
MEASUREMENTS = Table(
    "measurements",
    "accuracy tests and micro-benchmarks",
    (
        Column("name", pl.String, "what was measured", True),
        Column("metric", pl.String, "in which respect", True),
        Column("value", pl.Float64, "result; null where it was not a finite number"),
        Column("unit", pl.String, "unit of value", True),
        Column("reference", pl.Float64, "value it is compared with"),
        Column("tolerance", pl.Float64, "allowed distance from reference"),
        Column("params", pl.String, "JSON object of the conditions", True),
        Column("track_id", _ID, "where"),
        Column("at_ns", pl.Int64, "when"),
    ),
)
ARTIFACTS = Table(
    "artifacts",
    "compiled kernels",
    (
        Column("artifact_id", _ID, "key of this table", True),
        Column("kernel", pl.String, "kernel name", True),
        Column("hash", pl.String, "compiler's hash"),
        Column("target", pl.String, "backend and architecture, e.g. cuda:90"),
        Column("warps", pl.Int32, "warps a block"),
        Column("shared_bytes", pl.Int64, "shared memory a block, bytes"),
        Column("registers", pl.Int32, "registers a thread"),
        Column("spills", pl.Int32, "spilled bytes a thread"),
    ),
)
DOTS = Table(
    "dots",
    "one row per tl.dot of an artifact, from TTIR",
    (
        Column("artifact_id", _ID, "the artifact", True),
        Column("file", pl.String, "source file"),
        Column("line", pl.Int32, "source line"),
        Column("precision", pl.String, "tf32, tf32x3, bf16x3, ieee, …", True),
        Column("a_dtype", pl.String, "left operand", True),
        Column("b_dtype", pl.String, "right operand", True),
        Column("acc_dtype", pl.String, "accumulator", True),
    ),
)
TICKS = Table(
    "ticks",
    "the GIL probe: a thread that only sleeps and notes how late it got the GIL back",
    (
        Column("track_id", _ID, "the probe's thread", True),
        Column("at_ns", pl.Int64, "when the probe ran Python again, ns since origin", True),
        Column("late_ns", pl.Int64, "how much later than asked", True),
        Column("run_delay_ns", pl.Int64, "part of late_ns spent waiting for a core; null where unknown"),
    ),
)
HEALTH = Table(
    "health",
    "what was lost, damaged, clipped, unplaced or not recorded",
    (
        Column("code", pl.String, "stable code", True),
        Column("severity", _enum(("info", "warning", "error")), "how much it matters", True),
        Column("need", pl.String, "kind of evidence it touches"),
        Column("count", pl.Int64, "how many", True),
        Column("lost_ns", pl.Int64, "time removed from sums"),
        Column("lost_bytes", pl.Int64, "bytes not read"),
        Column("where", pl.String, "source and place"),
        Column("says", pl.String, "one sentence", True),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        TRACKS, SLICES, STEPS, LAUNCHES, FLOWS, COUNTERS, SAMPLES, STACKS, FRAMES,
        MEASUREMENTS, ARTIFACTS, DOTS, TICKS, HEALTH,
    )
}  # fmt: skip


def reference(name: str) -> str:
    """The reference page of one table, as plain text. Raises KeyError for an unknown table."""
    table = TABLES[name]
    width = max(len(column.name) for column in table.columns)
    dtypes = {column.name: _dtype_name(column) for column in table.columns}
    dtype_width = max(map(len, dtypes.values()))
    rows = (f"  {c.name:<{width}}  {dtypes[c.name]:<{dtype_width}}  {_meaning(c)}" for c in table.columns)
    return "\n".join([f"{table.name}: {table.says}", *rows])


def _dtype_name(column: Column) -> str:
    """The dtype in a word; a question mark where null is allowed."""
    named = {pl.Enum: "enum", pl.Categorical: "categorical"}
    name = next((text for dtype, text in named.items() if isinstance(column.dtype, dtype)), str(column.dtype).lower())
    return name + ("" if column.required else "?")


def _meaning(column: Column) -> str:
    if isinstance(column.dtype, pl.Enum):
        return f"{column.says}: {', '.join(column.dtype.categories)}"
    return column.says
