"""A whole tracelens plugin: one rule that flags a Python thread which spends its time in a sleep poll.

What it sees
    A Python thread that calls a sleeping builtin at least 50 times and spends more than 90 % of its recorded time
    there: it polls for something that could notify it.

Why it costs
    Every wake-up takes the GIL from threads that work, and each event is found half a sleep too late on average.

When it is wrong
    A heartbeat or a probe is meant to do this. Nothing in a trace tells it from a poll, so the finding is an info.

What to change
    Wait on an event, a condition or a queue instead of sleeping.

How to prove it
    Replace the sleep by a wait with a timeout and compare the latency of what the thread waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

import tracelens
from tracelens.finding import Evidence, Finding, Fix, Impact, Locality, Prediction, Verify
from tracelens.rule import Detector, Judgement

RULE = tracelens.Rule(
    code="EXA001",
    name="thread-polls-by-sleeping",
    summary="A thread looks for work by sleeping in a loop.",
    needs=(tracelens.Need(("slices:python",), "suspected", "tracelens record --with torch -- COMMAND"),),
    manual=__doc__ or "",
    options={
        "min_calls": tracelens.Option(50, "fewer sleeps than this are not a loop"),
        "min_share": tracelens.Option(0.9, "share of the thread's recorded time spent asleep"),
    },
)


@tracelens.detector(RULE)
def detect(trace: tracelens.Trace, options: tracelens.Options) -> Iterator[Judgement]:
    """One finding for each thread that polls."""
    probes = trace.ticks["track_id"].unique()
    python = trace.select("python").filter(~pl.col("track_id").is_in(probes.implode()))
    python = python.with_columns(pl.col("name").cast(pl.String))
    spans = python.group_by("track_id").agg(
        (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns"), pl.col("start_ns").min().alias("first_ns")
    )
    sleeps = (
        python.filter(pl.col("name").str.contains("built-in function sleep", literal=True))
        .group_by("track_id")
        .agg(pl.len().alias("calls"), pl.col("dur_ns").sum().alias("slept_ns"))
        .join(spans, on="track_id")
        .join(trace.tracks.select("track_id", "process_id", "thread_id", "thread"), on="track_id")
        .sort("track_id")
    )
    for row in sleeps.iter_rows(named=True):
        wall_ns = row["end_ns"] - row["first_ns"]
        share = row["slept_ns"] / wall_ns if wall_ns else 0.0
        if row["calls"] < options.number("min_calls") or share < options.number("min_share"):
            continue
        yield Finding(
            rule=RULE.code,
            name=RULE.name,
            message=f"Thread {row['thread'] or row['thread_id']} slept {row['calls']} times, {share:.0%} of its time.",
            severity="info",
            confidence="suspected",
            where=Locality(process_id=row["process_id"], thread=row["thread"], thread_id=row["thread_id"]),
            occurrences=row["calls"],
            evidence=(Evidence(says="sleeps of this thread", columns=("calls",), rows=((row["calls"],),)),),
            impact=Impact(
                quantity="wake-ups that find nothing",
                value=row["calls"],
                unit="calls",
                bound="upper",
                basis=f"{row['calls']} sleeps in {wall_ns / 1e6:.0f} ms",
            ),
            fix=Fix(summary="Wait on an event, condition or queue.", safety="measure"),
            verify=Verify(
                experiment="wait-instead-of-sleep",
                changes="the sleep becomes a wait with the same timeout",
                predicts=Prediction(
                    metric="latency of the awaited event", direction="down", at_least=0.3, unit="share"
                ),
                refuted_if="the latency stays the same",
            ),
        )


@tracelens.hookimpl
def detectors() -> Iterable[Detector]:
    """EXA001."""
    return [detect]
