"""A native call waits or computes while it holds the GIL, and another Python thread is starved.

What it sees
    A native callable (C, C++, pybind11), called often or long, inside which no other Python thread of its process
    ran, or next to none, although it had work. A call through ctypes leaves no row and cannot be named: then the rule
    says how long the probe waited without an explanation.

    Three grades of evidence. *observed*: the GIL probe (a thread that wakes every millisecond) never woke inside the
    calls and waited for the GIL, not for a core. *inferred*: samples of the GIL's owner (py-spy --gil) agree with the
    call, or with the silence of its thread. *suspected*: Python stacks alone show the exclusion, and other native calls
    of the same recording do let threads run.

Why it costs
    One thread at a time runs Python. While a native call keeps the lock, every other thread of the process stands
    still: transfer workers, schedulers, tokenizers. The share of time held is about the share of their throughput that
    is lost. The calling thread itself gets no slower, so its own metrics do not move.

When it is wrong
    A thread that works in lock step with the caller is silent in any case: it is not counted as a witness while it is
    parked in a lock, queue or poll wait. A busy machine delays the probe too: time spent waiting for a core is
    subtracted, and where that leaves little the rule abstains. A Python loop that keeps the GIL is another cause
    (GIL002), and so is work on Python objects by the interpreter's builtins (sort, sum), which cannot release it.
    Without the GIL (free-threaded builds) the rule abstains.

What to change
    Release the GIL around the wait, after the arguments are converted and before any Python object is touched:
    Py_BEGIN_ALLOW_THREADS / Py_END_ALLOW_THREADS in C, py::gil_scoped_release or
    py::call_guard<py::gil_scoped_release>() in pybind11. If the library cannot be changed, avoid the blocking path (a
    worst-case size instead of a wait for the real one) or move the starved work to another process.

How to prove it
    Experiment `release-gil`: the same workload, only the release added, runs interleaved. The probe's net GIL wait must
    fall below 1 % of wall and its ticks must land inside the call. Cheaper: a shorter `sys.setswitchinterval` does
    nothing against a native hold, while it cures a Python loop.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens import intervals
from tracelens.rule import Abstain, Abstained, Judgement, Need, Option, Options, Rule, detector
from tracelens.trace import Trace
from tracelens_gil import exclusion, owner_samples, places, probe, python_rows
from tracelens_gil.exclusion import Calls
from tracelens_gil.gil001_finding import Hold, finding, sampled_finding
from tracelens_gil.probe import Probe
from tracelens_gil.python_rows import Thread

MIN_CALLS = 5
"""Fewer calls than this can be silent by chance; the recorded pairs have 16 and more."""
MIN_MEDIAN_NS = 100_000
"""A callable whose typical call is shorter is a quick one that was preempted now and then (monotonic_ns, 15 ms)."""
MIN_EXPECTED = 20.0
"""Events (or ticks) that must have been expected inside the calls before their absence means anything."""
MAX_RATIO = 0.05
"""Observed/expected of a hold. Held: 0 of 80,511; released: 0.9–1.5; calls of the victim itself: 0.2–0.7."""
RELEASED_RATIO = 0.5
"""From here on the call plainly lets others run."""
MAX_INTRUDED = 0.05
"""Share of calls that may have another thread's event inside (clock noise): the true holder has none."""
MIN_WAITED = 0.3
"""Net GIL wait of the probe inside the calls as a share of them: held 0.39–0.86, released 0.003."""
MIN_PROBE_RATE = 0.3
"""Probe ticks a ms outside the calls; healthy 0.8–1.0. Below, something else starves the probe."""
MIN_UNEXPLAINED = 0.05
"""Share of wall that the probe waited at times no row explains; healthy processes wait under 1 % in all."""
SILENT_NS = 2_000_000
"""Python that computes for 2 ms without calling anything is rare; a longer silence is no evidence of Python."""
MIN_CONTROL = 10
"""Events inside other native calls that show the recording would reveal a release."""
MIN_SAMPLES = 20
"""GIL samples on one line before their share is a figure."""
MIN_LINE = 0.9
"""Share of a function's GIL samples on that one line: a native call keeps one line, a Python loop moves about."""
MIN_THREAD_SHARE = 0.5
"""A holder's thread owns the GIL in most samples of its process (held 0.65; the victim, also silent, 0.35)."""
MAX_HANDED_OVER = 0.3
"""Share of a line's samples after which another thread owned the GIL next: held 0.24 and 0.25, released 0.54."""
MIN_GAP_NS = 300_000
"""Silent gaps of a thread shorter than this are ordinary Python between two ops."""
MAX_GAP_RATIO = 0.3
"""Starts of others in those gaps against chance, no stacks: held under py-spy 0.25, released 1.18."""

RECORD = "tracelens record --with torch,gil,pyspy -- COMMAND"
RULE = Rule(
    code="GIL001",
    name="native-call-holds-gil",
    summary="A native call keeps the GIL and starves another Python thread of its process.",
    needs=(
        Need(("ticks", "slices:python"), "observed", RECORD),
        Need(("samples.gil", "slices"), "inferred", RECORD),
        Need(("slices:python",), "suspected", RECORD),
        Need(("samples", "slices"), "inferred", "py-spy record --gil (then `tracelens analyze … --pyspy-gil`)"),
    ),
    manual=__doc__ or "",
    options={
        "min_share": Option(0.02, "share of wall a call must hold the GIL; 2 % is the reporting line"),
        "error_share": Option(0.05, "from this share on it is an error: the accepted gap of a transfer is 5 %"),
    },
)


@detector(RULE)
def detect(trace: Trace, options: Options) -> Iterator[Judgement]:
    """One finding for each native callable that holds the GIL and starves a thread, whatever number of processes."""
    probes = probe.probes(trace)
    by_process: dict[int, list[Thread]] = {}
    for thread in trace.derived(python_rows.threads):
        by_process.setdefault(thread.process_id, []).append(thread)
    holds: dict[tuple[str, str | None], list[Hold]] = {}
    findings: list[Judgement] = []
    reasons: list[Abstained] = []
    silent = False
    for process_id, members in sorted(by_process.items()):
        answers = list(_judge_process(trace, process_id, members, probes.get(process_id), options))
        silent |= not answers
        for answer in answers:
            if isinstance(answer, Abstained):
                reasons.append(answer)
            else:
                holds.setdefault((answer.calls.callee.label, answer.caller), []).append(answer)
    findings += [finding(trace, tuple(sorted(same, key=lambda hold: -hold.share)), options) for same in holds.values()]
    sampled = _judge_samples(trace, set(by_process), options)
    silent |= sampled == []
    findings += [answer for answer in sampled or () if not isinstance(answer, Abstained)]
    reasons += [answer for answer in sampled or () if isinstance(answer, Abstained)]
    if reasons and not findings and not silent:
        raise Abstain("; ".join(dict.fromkeys(f"{reason.where}: {reason.why}" for reason in reasons)))
    yield from (*findings, *reasons)


def _judge_process(
    trace: Trace, process_id: int, threads: list[Thread], prober: Probe | None, options: Options
) -> Iterator[Hold | Abstained]:
    where = f"process {process_id}"
    if (unjudged := places.without_gil(trace, process_id)) is not None:
        yield unjudged
        return
    others = python_rows.of_program(trace, threads, prober.track_id if prober is not None else None)
    if len(others) < 2 and prober is None:
        yield Abstained(where, "only one thread left Python rows, so nobody can witness who held the GIL")
        return
    if not others:
        yield Abstained(where, "no thread of the program left Python rows")
        return
    wall = min(int(thread.start[0]) for thread in others), max(int(thread.end.max()) for thread in others)
    if prober is not None:
        wall = max(wall[0], int(prober.at[0])), min(wall[1], int(prober.at[-1]))
    groups = [exclusion.clipped(group, *wall) for group in exclusion.native_calls(others)]
    wall_ns = max(wall[1] - wall[0], 1)
    for calls in groups:
        if (
            len(calls.rows) >= MIN_CALLS
            and calls.median_ns >= MIN_MEDIAN_NS
            and calls.total_ns >= options.number("min_share") * wall_ns
            and not calls.callee.waits
            and not calls.callee.is_python_work
        ):
            yield from _judge_calls(calls, others, groups, prober, wall)
    if prober is not None:
        yield from _unexplained(where, prober, others, groups, wall)


def _unexplained(
    where: str, prober: Probe, threads: list[Thread], groups: list[Calls], wall: tuple[int, int]
) -> Iterator[Abstained]:
    """Say so if the probe waited for the GIL at times that neither native calls nor Python rows of the trace cover.

    A call through ctypes leaves no row: its time looks like a silent stretch of its Python caller.
    """
    start, end = intervals.complement(_active(threads, groups), *wall)
    waited_ns = prober.waited(start, end)
    share = waited_ns / max(wall[1] - wall[0], 1)
    if share >= MIN_UNEXPLAINED:
        yield Abstained(
            where,
            f"the probe waited for the GIL {share:.0%} of wall while no recorded call or Python code ran: a call that "
            "leaves no row (ctypes) or a loop without calls may hold it",
        )


def _active(threads: list[Thread], groups: list[Calls]) -> intervals.IntervalSet:
    """Times that recorded rows explain: native calls, and Python within SILENT_NS of a row's start or end."""
    events = np.concatenate([thread.events for thread in threads])
    starts = np.concatenate([events - SILENT_NS, *(calls.start for calls in groups if not calls.callee.waits)])
    ends = np.concatenate([events + SILENT_NS, *(calls.end for calls in groups if not calls.callee.waits)])
    return intervals.union(starts, ends)


def _judge_calls(
    calls: Calls, threads: list[Thread], groups: list[Calls], prober: Probe | None, wall: tuple[int, int]
) -> Iterator[Hold | Abstained]:
    where = f"{calls.callee.label} in process {calls.thread.process_id}"
    others = [thread for thread in threads if thread.track_id != calls.thread.track_id]
    if exclusion.intruded(calls, others).mean() > MAX_INTRUDED:
        return
    witnesses = [exclusion.witness(calls, other, wall) for other in others]
    starved = tuple(one for one in witnesses if one.expected >= MIN_EXPECTED and one.ratio < MAX_RATIO)
    seen = probe.inside(prober, calls) if prober is not None else None
    if prober is not None and seen is not None:
        if seen.ratio >= RELEASED_RATIO:
            return
        if seen.expected < MIN_EXPECTED:
            yield Abstained(where, f"recorded too briefly: only {seen.expected:.0f} probe ticks expected inside it")
            return
        if seen.ratio >= MAX_RATIO:
            yield Abstained(where, f"the probe woke inside it, but rarely ({seen.ratio:.2f} of the least expected)")
            return
        rate = probe.ticks_per_ms_outside(prober, calls, wall)
        if rate < MIN_PROBE_RATE:
            yield Abstained(
                where, f"the probe ran only {rate:.2f} times a ms outside the calls: the cores were too busy"
            )
            return
        if seen.waited_ns < MIN_WAITED * calls.inner_ns:
            share = seen.waited_ns / calls.inner_ns
            yield Abstained(
                where, f"the probe was late inside it, but waited for a core rather than the GIL ({share:.2f})"
            )
            return
        if not starved:
            yield Abstained(where, "it holds the GIL, but no other Python thread had work at the time")
            return
    elif not starved:
        if not any(one.expected >= MIN_EXPECTED for one in witnesses):
            yield Abstained(where, "the other threads were parked or idle when it was called: no witness")
        return
    control = exclusion.releasing_control(calls, groups, threads)
    if seen is None and control[0] < MIN_CONTROL:
        yield Abstained(where, f"no other native call let a thread run ({control[0]} events): no control for the test")
        return
    yield Hold(calls, starved, seen, control, wall)


def _judge_samples(trace: Trace, with_stacks: set[int], options: Options) -> list[Judgement] | None:
    """Processes with GIL samples and host rows but no Python rows; None if there are none."""
    lines = [line for line in owner_samples.owner_lines(trace) if line.process_id not in with_stacks]
    if not lines:
        if trace.samples.height and not with_stacks and not trace.samples["gil"].any():
            why = "the sampling profile does not say that it was recorded with --gil (pass --pyspy-gil if it was)"
            raise Abstain(f"samples: {why}", need="samples.gil", unlock="tracelens analyze TRACE SAMPLES --pyspy-gil")
        return None
    answers: list[Judgement] = []
    for track_id in dict.fromkeys(line.track_id for line in lines if line.thread_share >= MIN_THREAD_SHARE):
        keeping = tuple(
            line
            for line in lines
            if line.track_id == track_id
            and line.samples >= max(MIN_SAMPLES, MIN_LINE * line.same_function)
            and line.handed_over_share <= MAX_HANDED_OVER
        )
        if not keeping:
            continue
        gaps = owner_samples.silent_gaps(trace, track_id, MIN_GAP_NS)
        if gaps.expected < MIN_EXPECTED:
            answers.append(Abstained(keeping[0].function, "no other thread's rows to compare its silence with"))
        elif gaps.ratio < MAX_GAP_RATIO and gaps.total_ns >= options.number("min_share") * gaps.window_ns:
            ordered = tuple(sorted(keeping, key=lambda line: line.handed_over - line.samples))
            answers.append(sampled_finding(trace, ordered, gaps, options))
    return answers
