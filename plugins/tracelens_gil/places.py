"""How GIL findings name a thread, a function, a time: the wording that the family's rules share. Judges nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.finding import MAX_WINDOWS, Severity, Window
from tracelens.rule import Abstained, Options
from tracelens.trace import Trace
from tracelens_gil.python_rows import Ints, Thread, callee


def track(trace: Trace, track_id: int) -> dict[str, Any]:
    """The row of one track."""
    return trace.tracks.row(by_predicate=pl.col("track_id") == track_id, named=True)


def frame_function(name: str) -> str:
    """The function of a Kineto Python row "path.py(12): function"."""
    return name.rpartition("): ")[2] or name


def was_in(thread: Thread, times: Ints) -> str | None:
    """The innermost row in which a thread most often was at these times."""
    index = thread.innermost_at(times)
    seen = Counter(thread.names[at] for at in index[index >= 0].tolist())
    if not seen:
        return None
    name = max(sorted(seen), key=lambda name: seen[name])
    native = callee(name)
    return native.label if native else name


def _label(name: str) -> str:
    native = callee(name)
    return native.label if native else frame_function(name)


def thread_name(trace: Trace, thread: Thread) -> str:
    """The thread's name with its id; without a name, the function in which it spends most calls."""
    known = track(trace, thread.track_id)
    name = known["thread"]
    if name and not name.startswith("thread "):
        return f"{name} ({known['thread_id']})"
    busiest = Counter[str]()
    for row in np.flatnonzero(thread.parent >= 0)[:2000].tolist():
        busiest[_label(thread.names[int(thread.parent[row])])] += 1
    inside = max(sorted(busiest), key=lambda name: busiest[name]) if busiest else _label(thread.names[0])
    return f"thread {known['thread_id']} (in {inside})"


def host_threads_beside(trace: Trace, process_id: int, track_id: int) -> str:
    """Names of up to three other threads of a process that ran ops."""
    beside = trace.tracks.filter(
        (pl.col("process_id") == process_id) & (pl.col("kind") == "thread") & (pl.col("track_id") != track_id)
    ).join(trace.slices.filter(pl.col("kind") == "op").select("track_id").unique(), on="track_id")
    names = [row["thread"] or f"thread {row['thread_id']}" for row in beside.iter_rows(named=True)]
    return ", ".join(sorted(names)[:3]) or "the other threads"


def windows(start: Ints, end: Ints) -> tuple[Window, ...]:
    """The first of these stretches of time, joined where they touch."""
    joined = intervals.union(start, end)
    return tuple(
        Window(start_ns=int(first), end_ns=int(last))
        for first, last in zip(joined[0][:MAX_WINDOWS], joined[1][:MAX_WINDOWS], strict=True)
    )


def severity(share: float, options: Options) -> Severity:
    """Error from the rule's `error_share` of wall on."""
    return "error" if share >= options.number("error_share") else "warning"


def ms(ns: int) -> str:
    """A length for people."""
    return f"{ns / 1e6:,.0f} ms" if ns >= 10_000_000 else f"{ns / 1e6:.1f} ms"


def without_gil(trace: Trace, process_id: int) -> Abstained | None:
    """Why a process cannot be judged: it has no GIL, or the recording does not say whether it had."""
    facts = trace.facts.gil.get(process_id)
    if facts is None or facts.enabled:
        return None
    if facts.enabled is False:
        return Abstained(f"process {process_id}", "the GIL is disabled in this interpreter")
    why = "the recording does not say whether the GIL was enabled all the time"
    return Abstained(f"process {process_id}", why)
