"""A CPU-bound Python thread makes the others wait a switch interval each time they want the GIL back.

What it sees
    A Python function that computes for longer than a switch interval (5 ms by default) without a wait or a native call
    of note, while another Python thread of its process has work and gets a turn only now and then. Three grades of
    evidence. *observed*: the GIL probe (a thread that wakes every millisecond) waited for the GIL, not for a core, for
    most of that time. *inferred*: samples of the GIL's owner (py-spy --gil) find the thread on changing lines of the
    function while the other threads start next to nothing. *suspected*: Python stacks alone show that the others ran
    at a fraction of their own rate, in turns that are a switch interval apart.

Why it costs
    A thread that blocks in I/O gives up the GIL, and has to ask for it again when the I/O is done. A computing thread
    gives it up only after the switch interval. So every read, send or lock of the waiting thread costs it 5 ms more,
    however short its own work: a transfer of many small blocks falls to 200 blocks a second. Nothing looks slow in the
    computing thread.

When it is wrong
    A function that leaves no rows of its own may be a native call that leaves none either (ctypes, nanobind). One that
    keeps the GIL to its end shows no turn amid it and is not reported; many short ones in a loop look like Python, and
    the experiment tells them apart. A thread that is parked in a lock, queue or poll wait is no witness. A busy machine
    delays everybody: the probe's time without a core is subtracted, and where that leaves little the rule abstains.
    Native calls that keep the GIL are another cause (GIL001). Without the GIL the rule abstains.

What to change
    Move the computation to another process, or make it native code that releases the GIL (numpy, torch and hashlib do
    on large inputs). Fewer, larger I/O operations make fewer re-acquisitions. A shorter switch interval
    (sys.setswitchinterval(0.0005)) bounds each wait, for a few per cent more switching in the computing thread.

How to prove it
    Experiment `switch-interval`: the same workload, runs with a ten times shorter switch interval interleaved. The
    waits must shrink with it (measured: 6.5 to 0.36 ms a wait), while they do not inside a native call that keeps the
    GIL (19.9 to 19.8 ms).
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.rule import Abstain, Abstained, Judgement, Need, Option, Options, Rule, detector
from tracelens.trace import Trace
from tracelens_gil import exclusion, owner_samples, places, probe, python_rows, python_stretches
from tracelens_gil.gil002_finding import Convoy, finding, sampled_finding
from tracelens_gil.owner_samples import OwnerLine
from tracelens_gil.probe import Probe
from tracelens_gil.python_rows import Thread
from tracelens_gil.python_stretches import Stretches

SWITCH_INTERVAL_NS = 5_000_000
"""CPython's default, where the recording does not say."""
SHORTEST = 0.5
"""Stretches of Python shorter than half a switch interval are ordinary sharing of the GIL."""
SHORTEST_UNWITNESSED = 1.2
"""Without the probe only stretches count in which an interval must have passed."""
MIN_EXPECTED = 20.0
"""Events of a thread that must have been expected inside before their lack means anything."""
MAX_RATIO = 0.35
"""Observed/expected events of the waiting thread: hogs 0.02–0.27, the H200 one 0.19; sha256 0.75, and 1 at rest."""
MAX_RATIO_PROBED = 0.5
"""The same where the probe agrees: from here on the thread was hardly kept."""
MIN_WAITED = 0.3
"""Net GIL wait of the probe as a share of the stretches: hogs 0.48–0.89; releasing calls, sleep, sha256 under 0.15."""
MIN_TURNS = 2
"""Turns of others that came a switch interval late; the H200 recording of two steps has two."""
MIN_FORCED = 0.5
"""Share of the others' turns that came so late: hogs 0.9 and more."""
MIN_AMID = 0.1
"""Late turns amid silent stretches against those that fit in: loops 0.3–0.46, a ctypes call that keeps the GIL 0."""
MIN_SILENT = 3
"""Silent stretches that nobody could enter are worth a word from here on; one or two were open when recording began."""
MIN_SAMPLES = 20
"""GIL samples in one function before their lines say something."""
MAX_LINE = 0.7
"""Share of a function's GIL samples on one line: a loop moves about, a native call keeps its line (0.9 and more)."""
MIN_THREAD_SHARE = 0.5
"""The computing thread owns the GIL in most samples of its process."""

RECORD = "tracelens record --with torch,gil,pyspy -- COMMAND"
RULE = Rule(
    code="GIL002",
    name="gil-convoy",
    summary="A CPU-bound Python thread makes others wait a switch interval at each of many re-acquisitions of the GIL.",
    needs=(
        Need(("ticks", "slices:python"), "observed", RECORD),
        Need(("samples.gil", "slices"), "inferred", RECORD),
        Need(("slices:python",), "suspected", RECORD),
    ),
    manual=__doc__ or "",
    options={
        "min_share": Option(0.05, "share of wall that others must wait: below it Python threads merely share the GIL"),
        "error_share": Option(0.25, "from this share on it is an error: the waiting threads lose a quarter"),
    },
)


@detector(RULE)
def detect(trace: Trace, options: Options) -> Iterator[Judgement]:
    """One finding for each Python function that computes while others wait, whatever number of processes."""
    probes = probe.probes(trace)
    by_process: dict[int, list[Thread]] = {}
    for thread in trace.derived(python_rows.threads):
        by_process.setdefault(thread.process_id, []).append(thread)
    convoys: dict[str, list[Convoy]] = {}
    reasons: list[Abstained] = []
    judged = False
    for process_id, members in sorted(by_process.items()):
        answers = list(_judge_process(trace, process_id, members, probes.get(process_id), options))
        judged |= not answers
        reasons += [answer for answer in answers if isinstance(answer, Abstained)]
        for answer in answers:
            if isinstance(answer, Convoy):
                convoys.setdefault(answer.stretches.frame, []).append(answer)
    findings: list[Judgement] = [
        finding(trace, tuple(sorted(same, key=lambda convoy: -convoy.share)), options) for same in convoys.values()
    ]
    lines = [line for line in owner_samples.owner_lines(trace) if line.process_id not in by_process]
    judged |= bool(lines)
    findings += [
        sampled_finding(trace, moving, gaps, options) for moving, gaps in _judge_samples(trace, lines, options)
    ]
    if reasons and not findings and not judged:
        raise Abstain("; ".join(dict.fromkeys(f"{reason.where}: {reason.why}" for reason in reasons)))
    yield from (*findings, *reasons)


def _judge_process(
    trace: Trace, process_id: int, members: list[Thread], prober: Probe | None, options: Options
) -> Iterator[Convoy | Abstained]:
    if (unjudged := places.without_gil(trace, process_id)) is not None:
        yield unjudged
        return
    threads = python_rows.of_program(trace, members, prober.track_id if prober is not None else None)
    if len(threads) < 2:
        yield Abstained(f"process {process_id}", "only one thread left Python rows, so nobody can be seen to wait")
        return
    facts = trace.facts.gil.get(process_id)
    interval_ns = (facts.switch_interval_ns if facts is not None else None) or SWITCH_INTERVAL_NS
    wall = min(int(thread.start[0]) for thread in threads), max(int(thread.end.max()) for thread in threads)
    if prober is not None:
        wall = max(wall[0], int(prober.at[0])), min(wall[1], int(prober.at[-1]))
    shortest = SHORTEST if prober is not None else SHORTEST_UNWITNESSED
    wall_ns = max(wall[1] - wall[0], 1)
    for stretches in python_stretches.python_stretches(threads, interval_ns, int(shortest * interval_ns)):
        within = stretches.clipped(*wall)
        if within.total_ns >= options.number("min_share") * wall_ns:
            yield from _judge_stretches(within, threads, prober, wall, interval_ns, options)


def _judge_stretches(
    stretches: Stretches,
    threads: list[Thread],
    prober: Probe | None,
    wall: tuple[int, int],
    interval_ns: int,
    options: Options,
) -> Iterator[Convoy | Abstained]:
    others = [thread for thread in threads if thread.track_id != stretches.thread.track_id]
    witnesses = [exclusion.witness(stretches, other, wall) for other in others]
    most = MAX_RATIO if prober is None else MAX_RATIO_PROBED
    kept = tuple(one for one in witnesses if one.expected >= MIN_EXPECTED and one.ratio < most)
    if not kept:
        return
    seen = probe.inside(prober, stretches) if prober is not None else None
    where = f"{places.frame_function(stretches.frame)} in process {stretches.thread.process_id}"
    if seen is not None and seen.waited_ns < MIN_WAITED * stretches.inner_ns:
        if seen.late_ns >= MIN_WAITED * stretches.inner_ns:
            share = seen.waited_ns / stretches.inner_ns
            yield Abstained(
                where, f"the probe was late during it, but waited for a core rather than the GIL ({share:.2f})"
            )
        return
    turns = python_stretches.turns(stretches, [one.thread for one in kept], interval_ns)
    silent = stretches.silent_ns > stretches.total_ns / 2
    if silent and (turns.amid < MIN_TURNS or turns.amid < MIN_AMID * turns.possible):
        if len(stretches.start) >= MIN_SILENT:
            yield Abstained(
                where, "it left no rows and let nobody in until its end: a native call without a row, maybe"
            )
        return
    if seen is None and (turns.forced < MIN_TURNS or turns.forced < MIN_FORCED * turns.taken):
        return
    convoy = Convoy(stretches, kept, seen, turns, interval_ns, wall)
    if convoy.share >= options.number("min_share"):
        yield convoy


def _judge_samples(
    trace: Trace, lines: list[OwnerLine], options: Options
) -> Iterator[tuple[tuple[OwnerLine, ...], owner_samples.SilentGaps]]:
    """Threads of processes without Python rows that own the GIL on changing lines while the others start nothing."""
    for track_id in dict.fromkeys(line.track_id for line in lines if line.thread_share >= MIN_THREAD_SHARE):
        mine = [line for line in lines if line.track_id == track_id]
        fixed = {(line.function, line.file) for line in mine if line.samples > MAX_LINE * line.same_function}
        moving = tuple(
            line for line in mine if line.same_function >= MIN_SAMPLES and (line.function, line.file) not in fixed
        )
        if 2 * sum(line.samples for line in moving) < mine[0].thread_samples:
            continue
        gaps = owner_samples.silent_gaps(trace, track_id, SWITCH_INTERVAL_NS)
        enough = gaps.expected >= MIN_EXPECTED and gaps.ratio < MAX_RATIO
        if enough and gaps.total_ns >= options.number("min_share") * gaps.window_ns:
            yield moving, gaps
