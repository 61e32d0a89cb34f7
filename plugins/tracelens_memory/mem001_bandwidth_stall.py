"""A kernel that only moves memory runs far below what the memory can do.

What it sees
    Bytes a launch has to move, its time, and a roof measured on the same machine. A trace holds none of the first and
    last: give them (`--bytes 'KERNEL-GLOB=N'`, `--roof copy_bytes_per_second=N`, the same in tracelens.toml, or as
    measurements with metric `bytes` and `copy_bytes_per_second`). The rule divides; below half of the roof it speaks.

Why it costs
    Memory fetches 32 to 64 bytes at a time. If neighbouring threads ask for addresses far apart, most of each fetch is
    thrown away: a 537 MB matrix-vector product on an H200 took 1.78 ms read along the wrong axis, 0.12 ms along the
    right one, with equal name, grid and registers, and the GPU "busy" in both. Too few blocks, or gathers of pieces
    below 256 bytes, starve the memory in the same way.

When it is wrong
    When the kernel computes much per byte: give bytes only for kernels that should be memory-bound. When N counts bytes
    that the kernel skips or finds in cache: above the roof the rule abstains. Launches short enough that start and tail
    dominate are left out.

What to change
    Let the fastest index of the threads follow the fastest index of the data: transpose the operand once, or swap the
    kernel's index order; load 16 bytes a thread. If the grid is smaller than the device, split the work further first.

How to prove it
    Experiment `access-pattern`: the same bytes in the other layout. The share of the roof must at least double; the
    sectors per request that ncu counts fall with it, while the DRAM bytes stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import polars as pl

from tracelens.analyses.attribution import attribute
from tracelens.finding import MAX_WINDOWS, Evidence, Finding, Fix, Impact, Locality, Prediction, Verify, Window
from tracelens.rule import Abstain, Abstained, Judgement, Need, Option, Options, Rule, detector
from tracelens.trace import Trace

ROOF = "copy_bytes_per_second"

MAX_ROOF_SHARE = 0.5
"""Sound kernels reach 0.9 to 1.0 of the copy roof, gathers of 64 bytes 0.7, of 32 bytes 0.45, strided reads 0.07."""
MIN_ROOF_US = 20.0
"""Start and tail of a kernel take about 5 us: shorter than 20 us at the roof, they alone could cost a quarter."""
MIN_GPU_SHARE = 0.01
"""Below 1 % of kernel time nothing can be gained that a step would show."""
MAX_OVER_ROOF = 1.2
"""A read-only kernel exceeds the copy roof by 1 %; 20 % above it the bytes or the roof are wrong, or a cache serves."""

_GIVE_BYTES = "--bytes 'KERNEL-GLOB=N'"
_GIVE_ROOF = f"--roof {ROOF}=N"

RULE = Rule(
    code="MEM001",
    name="bandwidth-stall",
    summary="A memory-bound kernel moves its bytes at a small share of the measured roof.",
    needs=(Need(("slices:kernel",), "inferred", f"tracelens analyze TRACE {_GIVE_BYTES} {_GIVE_ROOF}"),),
    manual=__doc__ or "",
    options={
        "max_roof_share": Option(MAX_ROOF_SHARE, "a kernel above this share of the roof is sound"),
        "min_roof_us": Option(MIN_ROOF_US, "launches that would take less than this at the roof are left out"),
        "min_gpu_share": Option(MIN_GPU_SHARE, "kernels with less than this share of kernel time are left out"),
    },
)


@dataclass(frozen=True)
class _Group:
    """Launches of one kernel with one number of bytes."""

    kernel: str
    bytes: int
    source: str
    rows: pl.DataFrame

    @property
    def total_ns(self) -> int:
        return int(self.rows["dur_ns"].sum())

    @property
    def median_ns(self) -> float:
        return float(self.rows["dur_ns"].median())  # type: ignore[arg-type]


@detector(RULE)
def detect(trace: Trace, options: Options) -> Iterable[Judgement]:
    """One finding per kernel and size; abstains without bytes or roof, naming which."""
    kernels = trace.select("kernel").with_columns(pl.col("name").cast(pl.String))
    kernels = kernels.join(trace.launches, on="slice_id", how="left").filter(pl.col("dur_ns") > 0)
    kernels = kernels.sort("start_ns", "slice_id")
    if not kernels.height:
        return
    total = int(kernels["dur_ns"].sum())
    roof = _roof(trace)
    groups, doubts = _groups(trace, kernels)
    if roof is None or not groups:
        raise _missing(kernels, roof, bool(groups), doubts)
    for group in groups:
        roof_ns = group.bytes / roof * 1e9
        share = roof_ns / group.median_ns
        if share > MAX_OVER_ROOF:
            doubts.append(
                Abstained(
                    f"kernel {group.kernel}",
                    f"{share:.1f} times the roof: bytes ({group.source}) or roof are wrong, or a cache serves it",
                )
            )
        elif (
            share < options.number("max_roof_share")
            and roof_ns >= options.number("min_roof_us") * 1e3
            and group.total_ns >= options.number("min_gpu_share") * total
        ):
            yield _finding(trace, group, roof, share, total)
    yield from doubts


def _roof(trace: Trace) -> float | None:
    """The measured copy bandwidth, bytes per second: from facts, else from a measurement."""
    given = trace.facts.roofs.get(ROOF)
    if given is None:
        rows = trace.measurements.filter((pl.col("metric") == ROOF) & (pl.col("value") > 0))
        given = float(rows["value"][0]) if rows.height else None
    return given if given and given > 0 else None


def _groups(trace: Trace, kernels: pl.DataFrame) -> tuple[list[_Group], list[Abstained]]:
    """Launches whose bytes are known, and kernels whose one number of bytes cannot hold for all launches."""
    known: list[_Group] = []
    doubts: list[Abstained] = []
    for (name,), rows in kernels.group_by("name", maintain_order=True):
        kernel = str(name)
        told = _told(trace, kernel)
        if told is None:
            own = rows.filter(pl.col("bytes") > 0)
            for (size,), same in own.group_by("bytes", maintain_order=True):
                known.append(_Group(kernel, int(size), "the trace", same))
            continue
        grids = rows.select("grid_x", "grid_y", "grid_z").unique().height
        if grids > 1:
            doubts.append(
                Abstained(
                    f"kernel {kernel}", f"launched with {grids} different grids: one number of bytes cannot fit all"
                )
            )
            continue
        known.append(_Group(kernel, told[0], told[1], rows))
    return known, doubts


def _told(trace: Trace, kernel: str) -> tuple[int, str] | None:
    """Bytes a launch as the user or a measurement gives them, and who says so; the longest pattern wins."""
    given = sorted(trace.facts.kernel_bytes.items(), key=lambda item: (-len(item[0]), item[0]))
    for pattern, size in given:
        if size > 0 and fnmatchcase(kernel, pattern):
            return size, f"given for {pattern!r}"
    rows = trace.measurements.filter((pl.col("metric") == "bytes") & (pl.col("value") > 0))
    for name, size in rows.select("name", "value").iter_rows():
        if fnmatchcase(kernel, name):
            return int(size), f"measurement {name!r}"
    return None


def _missing(kernels: pl.DataFrame, roof: float | None, bytes_known: bool, doubts: list[Abstained]) -> Abstain:
    """What is missing and how to give it."""
    if doubts and roof is not None:
        return Abstain("; ".join(f"{doubt.where}: {doubt.why}" for doubt in doubts), need="slices.bytes")
    top = (
        kernels.group_by("name").agg(pl.col("dur_ns").sum()).sort("dur_ns", "name", descending=[True, False])["name"][0]
    )
    missing = [
        *([] if bytes_known else [f"the bytes a launch moves ({_GIVE_BYTES}; most time goes to {top[:60]})"]),
        *([] if roof is not None else [f"a measured roof ({_GIVE_ROOF})"]),
    ]
    return Abstain(
        f"a bandwidth needs {' and '.join(missing)}", need="slices.bytes" if not bytes_known else f"facts.roofs.{ROOF}"
    )


def _finding(trace: Trace, group: _Group, roof: float, share: float, total: int) -> Finding:
    calls = group.rows.height
    lost_ns = group.total_ns - calls * group.bytes / roof * 1e9
    speed = group.bytes / group.median_ns
    grid = tuple(group.rows[f"grid_{axis}"][0] for axis in "xyz")
    tracks = group.rows.select("track_id").unique().join(trace.tracks, on="track_id", how="left")
    sites = group.rows.select("slice_id").join(attribute(trace), on="slice_id", how="left")
    line = _only(sites["line"])
    return Finding(
        rule=RULE.code,
        name=RULE.name,
        message=f"{group.kernel} moves {group.bytes / 1e6:.4g} MB a launch at {speed:.3g} GB/s, {share:.1%} of the "
        f"measured {roof / 1e9:.4g} GB/s, launches: {calls}",
        severity="warning" if lost_ns >= 0.1 * total else "info",
        confidence="inferred",
        where=Locality(
            device=_only(tracks["device"]),
            stream=_only(tracks["stream"]),
            rank=_only(tracks["rank"]),
            op=_only(sites["op"].cast(pl.String)),
            kernel=group.kernel,
            module=_only(sites["module"]),
            file=_only(sites["file"]),
            line=line,
            line_kind="definition" if line is not None else None,
            windows=tuple(
                Window(start_ns=start, end_ns=start + dur)
                for start, dur in group.rows.select("start_ns", "dur_ns").head(MAX_WINDOWS).iter_rows()
            ),
            windows_total=calls,
        ),
        occurrences=calls,
        steps=tuple(group.rows["step_id"].drop_nulls().unique().sort().to_list()),
        evidence=tuple(_evidence(trace, group, roof, grid)),
        impact=Impact(
            quantity="GPU time above the roof",
            value=lost_ns / 1e6,
            unit="ms",
            share=lost_ns / total if total else None,
            of="summed kernel time",
            bound="upper",
            basis=f"{group.total_ns / 1e6:.4g} ms in {calls} launches, less {group.bytes:,} B each at {roof:.4g} B/s",
        ),
        fix=Fix(
            summary="let neighbouring threads read neighbouring addresses: transpose the operand once or swap the "
            "index order, 16 bytes a thread; with fewer blocks than multiprocessors split the work first",
            safety="measure",
        ),
        verify=Verify(
            experiment="access-pattern",
            changes="the operand's layout, so that neighbouring threads read neighbouring addresses",
            arguments={"kernel": group.kernel, "bytes": group.bytes},
            predicts=Prediction(metric="share of the copy roof", direction="up", at_least=share, unit="share"),
            refuted_if="the share of the roof less than doubles: the access pattern does not limit the kernel",
        ),
    )


def _evidence(trace: Trace, group: _Group, roof: float, grid: tuple[int | None, ...]) -> Iterator[Evidence]:
    yield Evidence(
        says=f"bytes: {group.source}; time: median of {group.rows.height} launches",
        table="slices",
        ids=tuple(group.rows["slice_id"].to_list()[:MAX_WINDOWS]),
        columns=("bytes", "median_ns", "bytes_per_second", "roof_bytes_per_second"),
        rows=((group.bytes, group.median_ns, group.bytes / group.median_ns * 1e9, roof),),
    )
    multiprocessors = trace.facts.devices[0].multiprocessors if trace.facts.devices else None
    if multiprocessors and all(grid):
        blocks = 1
        for extent in grid:
            blocks *= extent or 1
        fills = "fills" if blocks >= multiprocessors else "does not fill"
        yield Evidence(
            says=f"the grid {fills} the device",
            table="launches",
            columns=("blocks", "multiprocessors"),
            rows=((blocks, multiprocessors),),
        )


def _only(values: pl.Series) -> Any:
    """The value that all rows share, or None."""
    found = values.unique().to_list()
    return found[0] if len(found) == 1 else None
