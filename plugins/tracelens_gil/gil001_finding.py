"""What a GIL001 finding says: address, evidence rows, price, fix and experiment. The verdict is made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tracelens.finding import (
    Confidence,
    Evidence,
    Finding,
    Fix,
    Impact,
    Locality,
    Prediction,
    Verify,
)
from tracelens.rule import Options
from tracelens.trace import Trace
from tracelens_gil import places
from tracelens_gil.exclusion import Calls, Witness
from tracelens_gil.owner_samples import OwnerLine, SilentGaps
from tracelens_gil.probe import ProbeVerdict

MIN_OWNER_SAMPLES = 10
"""GIL samples on the calling thread in the calling function that corroborate the stacks."""
CURED_SHARE = 0.01
"""Net GIL wait of a healthy process as a share of wall is below this (released calls: 0.1–0.4 %)."""
CODE, NAME = "GIL001", "native-call-holds-gil"
FIX = Fix(
    summary="Release the GIL around the wait, after argument conversion and before any Python object is touched.",
    change="Py_BEGIN_ALLOW_THREADS … Py_END_ALLOW_THREADS, or py::gil_scoped_release in pybind11",
    safety="measure",
)


@dataclass(frozen=True)
class Hold:
    """Calls of one thread that hold the GIL, whom they starve and how we know; `wall` is the recorded window, ns."""

    calls: Calls
    starved: tuple[Witness, ...]
    seen: ProbeVerdict | None
    control: tuple[int, str | None]
    wall: tuple[int, int]

    @property
    def wall_ns(self) -> int:
        """Length of the recorded window."""
        return self.wall[1] - self.wall[0]

    @property
    def share(self) -> float:
        """Share of wall in which the GIL was held."""
        return self.calls.total_ns / self.wall_ns

    @property
    def caller(self) -> str | None:
        """The function that calls it."""
        row = _caller(self.calls)
        return None if row is None else places.frame_function(self.calls.thread.names[row])


def finding(trace: Trace, holds: tuple[Hold, ...], options: Options) -> Finding:
    """The finding for one native callable; `holds` are its processes, worst first."""
    worst = holds[0]
    calls = worst.calls
    label = calls.callee.label
    owners = _owner_samples(trace, calls)
    names = ", ".join(places.thread_name(trace, one.thread) for one in worst.starved)
    confidence: Confidence = (
        "observed" if worst.seen else "inferred" if owners and owners["samples"] >= MIN_OWNER_SAMPLES else "suspected"
    )
    elsewhere = f"; {len(holds) - 1} more processes do the same" if len(holds) > 1 else ""
    held = f"{places.ms(calls.total_ns)} of {places.ms(worst.wall_ns)}"
    return Finding(
        rule=CODE,
        name=NAME,
        message=(
            f"{label} kept the GIL for {held} ({worst.share:.1%} of wall, {len(calls.rows)} calls); "
            f"meanwhile {names} could not run Python{elsewhere}."
        ),
        severity=places.severity(worst.share, options),
        confidence=confidence,
        where=_where(trace, calls, label, owners),
        occurrences=sum(len(hold.calls.rows) for hold in holds),
        evidence=tuple(_evidence(trace, holds, owners)),
        impact=_impact(
            calls.total_ns,
            worst.wall_ns,
            "estimate" if worst.seen else "upper",
            f"{len(calls.rows)} calls of {label} lasted {held} recorded: {worst.share:.1%}",
        ),
        fix=FIX,
        verify=_verify(label, worst.share),
    )


def sampled_finding(trace: Trace, lines: tuple[OwnerLine, ...], gaps: SilentGaps, options: Options) -> Finding:
    """The finding for lines seen to keep the GIL, likeliest first, without Python stacks in the trace."""
    line = lines[0]
    track = places.track(trace, line.track_id)
    share = gaps.total_ns / gaps.window_ns
    others = places.host_threads_beside(trace, line.process_id, line.track_id)
    return Finding(
        rule=CODE,
        name=NAME,
        message=(
            f"A native call under {line.function} keeps the GIL: its thread owned it in {line.thread_share:.0%} of the "
            f"samples, and in the {places.ms(gaps.total_ns)} ({share:.1%} of wall) in which that thread recorded "
            f"nothing, {others} started {gaps.inside} rows where {gaps.expected:.0f} were expected."
        ),
        severity=places.severity(share, options),
        confidence="inferred",
        where=Locality(
            process=track["process"],
            process_id=line.process_id,
            rank=track["rank"],
            role=track["role"],
            thread=track["thread"],
            thread_id=track["thread_id"],
            function=line.function,
            file=line.file,
            line=line.line,
            line_kind="executing",
            windows=places.windows(gaps.start, gaps.end),
            windows_total=len(gaps.start),
        ),
        occurrences=len(gaps.start),
        evidence=(
            Evidence(
                says="lines that kept the GIL when sampled, likeliest first; a loop would be seen on several: "
                + ", ".join(f"{one.function} line {one.line} ({one.samples} samples)" for one in lines[:3]),
                table="samples",
                columns=("function", "file", "line", "gil_samples", "then_another_thread", "in_function", "in_process"),
                rows=tuple(
                    (one.function, one.file, one.line, one.samples, one.handed_over, one.same_function, one.of)
                    for one in lines
                ),
            ),
            Evidence(
                says="rows that other threads started while this thread recorded nothing",
                table="slices",
                columns=("gaps", "total_ms", "started", "expected", "ratio"),
                rows=(
                    (len(gaps.start), gaps.total_ns / 1e6, gaps.inside, round(gaps.expected, 1), round(gaps.ratio, 3)),
                ),
            ),
        ),
        impact=_impact(
            gaps.total_ns,
            gaps.window_ns,
            "upper",
            f"{len(gaps.start)} silent gaps of the thread sum to {places.ms(gaps.total_ns)}",
        ),
        fix=FIX,
        verify=_verify(f"the call under {line.function}", share),
    )


def _where(trace: Trace, calls: Calls, label: str, owners: dict[str, Any] | None) -> Locality:
    thread = calls.thread
    track = places.track(trace, thread.track_id)
    caller = _caller(calls)
    name = thread.names[caller] if caller is not None else None
    file = thread.files[caller] if caller is not None else None
    line = thread.lines[caller] if caller is not None else None
    executing = owners is not None and owners["file"] is not None
    if name is None and owners is not None:
        name = owners["function"]
    return Locality(
        process=track["process"],
        process_id=thread.process_id,
        rank=track["rank"],
        role=track["role"],
        thread=track["thread"],
        thread_id=track["thread_id"],
        function=label,
        caller=places.frame_function(name) if name else None,
        file=owners["file"] if owners and executing else file,
        line=owners["line"] if owners and executing else line,
        line_kind="executing" if executing else "definition" if line is not None else None,
        windows=places.windows(calls.start, calls.end),
        windows_total=len(calls.rows),
    )


def _evidence(trace: Trace, holds: tuple[Hold, ...], owners: dict[str, Any] | None) -> Iterator[Evidence]:
    worst = holds[0]
    calls, inner_ns = worst.calls, max(worst.calls.inner_ns, 1)
    longest = np.argsort(calls.start - calls.end, kind="stable")[:5]
    longest_ns = int((calls.end - calls.start).max())
    yield Evidence(
        says=f"{len(calls.rows)} calls, {places.ms(calls.median_ns)} median, the longest {places.ms(longest_ns)}",
        table="slices",
        ids=tuple(int(calls.thread.slice_id[calls.rows[index]]) for index in longest),
        columns=("start_ns", "dur_ns"),
        rows=tuple((int(calls.start[index]), int(calls.end[index] - calls.start[index])) for index in longest),
    )
    if (seen := worst.seen) is not None:
        waited = seen.waited_ns / inner_ns
        yield Evidence(
            says=(
                f"the GIL probe woke {seen.ticks} times inside the calls (at least {seen.expected:.0f} expected) and "
                f"waited for the GIL {waited:.0%} of their time"
            ),
            table="ticks",
            columns=("ticks", "expected_at_least", "net_wait_ms", "inside_ms", "net_wait_share"),
            rows=((seen.ticks, round(seen.expected, 1), seen.waited_ns / 1e6, inner_ns / 1e6, round(waited, 3)),),
        )
    inside = ", ".join(
        f"{places.thread_name(trace, one.thread)} in {places.was_in(one.thread, calls.start) or 'no call'}: "
        f"{one.inside} of {one.expected:.0f} expected events"
        for one in worst.starved
    )
    yield Evidence(
        says=f"threads that had work and ran no Python inside the calls: {inside}",
        table="slices",
        columns=("thread", "thread_id", "events_inside", "expected", "was_in", "calls"),
        rows=tuple(
            (
                places.thread_name(trace, one.thread),
                one.thread.thread_id,
                one.inside,
                round(one.expected, 1),
                places.was_in(one.thread, calls.start),
                one.calls,
            )
            for one in worst.starved
        ),
    )
    if worst.control[1] is not None:
        yield Evidence(
            says=f"control: in the same recording threads do run inside other native calls ({worst.control[1]})",
            table="slices",
            columns=("events", "most_of_them_inside"),
            rows=((worst.control[0], worst.control[1]),),
        )
    if owners:
        yield Evidence(
            says=f"{owners['samples']} of {owners['of']} GIL samples found this thread's calling function as the owner",
            table="samples",
            columns=("samples", "of", "file", "line"),
            rows=((owners["samples"], owners["of"], owners["file"], owners["line"]),),
        )
    if len(holds) > 1:
        yield Evidence(
            says="the same call, process by process",
            columns=("process_id", "rank", "thread_id", "calls", "held_ms", "share", "starved"),
            rows=tuple(
                (
                    hold.calls.thread.process_id,
                    places.track(trace, hold.calls.thread.track_id)["rank"],
                    hold.calls.thread.thread_id,
                    len(hold.calls.rows),
                    round(hold.calls.total_ns / 1e6, 3),
                    round(hold.share, 4),
                    ", ".join(places.thread_name(trace, one.thread) for one in hold.starved),
                )
                for hold in holds
            ),
        )


def _owner_samples(trace: Trace, calls: Calls) -> dict[str, Any] | None:
    """GIL samples of the calling thread in the calling function, with their most frequent line.

    A caller that was entered before the recording has no row: then it is the function that most samples found.
    """
    caller = _caller(calls)
    if not trace.samples.height:
        return None
    owned = (
        trace.samples.filter(pl.col("gil"))
        .join(trace.tracks.select("track_id", "process_id"), on="track_id")
        .filter(pl.col("process_id") == calls.thread.process_id)
    )
    mine = (
        owned.filter(pl.col("track_id") == calls.thread.track_id)
        .join(trace.stacks.select("stack_id", "frame_id"), on="stack_id")
        .join(trace.frames.select("frame_id", "function", "file", "line"), on="frame_id")
        .with_columns(pl.col("function").str.split(".").list.last())
    )
    if not mine.height:
        return None
    function = (
        places.frame_function(calls.thread.names[caller])
        if caller is not None
        else mine["function"].value_counts().sort("count", "function", descending=[True, False])["function"][0]
    )
    mine = mine.filter(pl.col("function") == function)
    if not mine.height:
        return None
    lines = mine.group_by("file", "line").agg(pl.len().alias("count")).sort("count", "line", descending=[True, False])
    best = lines.row(0, named=True)
    return {
        "function": function,
        "samples": mine.height,
        "of": owned.height,
        "file": best["file"],
        "line": best["line"],
    }


def _caller(calls: Calls) -> int | None:
    """Index of the Python row that calls most of the time, or None at top level."""
    parents = Counter[str]()
    first: dict[str, int] = {}
    for row, length in zip(calls.rows.tolist(), (calls.end - calls.start).tolist(), strict=True):
        parent = int(calls.thread.parent[row])
        if parent >= 0:
            name = calls.thread.names[parent]
            parents[name] += length
            first.setdefault(name, parent)
    return first[max(sorted(parents), key=lambda name: parents[name])] if parents else None


def _impact(held_ns: int, wall_ns: int, bound: str, basis: str) -> Impact:
    return Impact(
        quantity="time in which other Python threads of the process could not run",
        value=round(held_ns / 1e6, 3),
        unit="ms",
        share=round(held_ns / wall_ns, 4),
        of="wall of the recorded window",
        bound="estimate" if bound == "estimate" else "upper",
        basis=basis,
        end_to_end="the starved threads lose about this share of their throughput; the calling thread loses nothing",
    )


def _verify(label: str, share: float) -> Verify:
    return Verify(
        experiment="release-gil",
        changes=f"release the GIL inside {label} while it waits; nothing else",
        predicts=Prediction(
            metric="net GIL wait of the probe, share of wall",
            direction="down",
            at_least=round(share - CURED_SHARE, 4),
            unit="share",
        ),
        refuted_if=f"it stays above {CURED_SHARE:.0%} although the probe's ticks now land inside the call",
    )
