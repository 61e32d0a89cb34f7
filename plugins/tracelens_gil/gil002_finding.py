"""What a GIL002 finding says: address, evidence rows, price, fix and experiment. The verdict is made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
from tracelens_gil.exclusion import Witness
from tracelens_gil.owner_samples import OwnerLine, SilentGaps
from tracelens_gil.probe import ProbeVerdict
from tracelens_gil.python_stretches import Stretches, Turns

CODE, NAME = "GIL002", "gil-convoy"
SHORTER_S = 0.0005
"""The experiment's switch interval: a tenth of the default."""
FIX = Fix(
    summary="Move the computation out of this process, or into native code that releases the GIL.",
    change=f"cheapest first: sys.setswitchinterval({SHORTER_S:g}) bounds each wait by a tenth of the default",
    safety="measure",
)


@dataclass(frozen=True)
class Convoy:
    """Python stretches of one function, whom they keep waiting and how we know; `wall` is the recorded window, ns."""

    stretches: Stretches
    kept: tuple[Witness, ...]
    seen: ProbeVerdict | None
    turns: Turns
    interval_ns: int
    wall: tuple[int, int]

    @property
    def wall_ns(self) -> int:
        """Length of the recorded window."""
        return self.wall[1] - self.wall[0]

    @property
    def waited_ns(self) -> int:
        """How long the probe waited for the GIL in the stretches; without one, all their time."""
        return self.seen.waited_ns if self.seen is not None else self.stretches.total_ns

    @property
    def share(self) -> float:
        """The wait as a share of wall."""
        return self.waited_ns / self.wall_ns


def finding(trace: Trace, convoys: tuple[Convoy, ...], options: Options) -> Finding:
    """The finding for one Python function; `convoys` are its threads and processes, worst first."""
    worst = convoys[0]
    stretches = worst.stretches
    function = places.frame_function(stretches.frame)
    names = ", ".join(places.thread_name(trace, one.thread) for one in worst.kept)
    probed = worst.seen is not None
    confidence: Confidence = "observed" if probed else "suspected"
    price = f"; the GIL probe waited {places.ms(worst.waited_ns)} of it ({worst.share:.1%} of wall)" if probed else ""
    elsewhere = f"; {len(convoys) - 1} more threads do the same" if len(convoys) > 1 else ""
    return Finding(
        rule=CODE,
        name=NAME,
        message=(
            f"{function} computes in Python for {places.ms(stretches.total_ns)} of {places.ms(worst.wall_ns)} "
            f"in {len(stretches.start)} stretches{price}, and {names} waits up to a switch interval "
            f"({places.ms(worst.interval_ns)}) each time it wants the GIL back{elsewhere}."
        ),
        severity=places.severity(worst.share, options),
        confidence=confidence,
        where=_where(trace, stretches, function),
        occurrences=sum(len(convoy.stretches.start) for convoy in convoys),
        evidence=tuple(_evidence(trace, convoys)),
        impact=_impact(
            worst.waited_ns,
            worst.wall_ns,
            probed,
            "net GIL wait of the probe within the stretches"
            if probed
            else f"{len(stretches.start)} stretches of Python sum to {places.ms(stretches.total_ns)}",
        ),
        fix=FIX,
        verify=_verify(function, worst.share, worst.interval_ns),
    )


def sampled_finding(trace: Trace, lines: tuple[OwnerLine, ...], gaps: SilentGaps, options: Options) -> Finding:
    """The finding for a thread seen to own the GIL on changing `lines`, most sampled first, without Python rows."""
    line = lines[0]
    known = places.track(trace, line.track_id)
    share = gaps.total_ns / gaps.window_ns
    others = places.host_threads_beside(trace, line.process_id, line.track_id)
    return Finding(
        rule=CODE,
        name=NAME,
        message=(
            f"{line.function} computes in Python: its thread owned the GIL in {line.thread_share:.0%} of the samples, "
            f"on changing lines, and in the {places.ms(gaps.total_ns)} ({share:.1%} of wall) in which that thread "
            f"recorded nothing, {others} started {gaps.inside} rows where {gaps.expected:.0f} were expected."
        ),
        severity=places.severity(share, options),
        confidence="inferred",
        where=Locality(
            process=known["process"],
            process_id=line.process_id,
            rank=known["rank"],
            role=known["role"],
            thread=known["thread"],
            thread_id=known["thread_id"],
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
                says="lines that kept the GIL when sampled; a native call would stay on one",
                table="samples",
                columns=("function", "file", "line", "gil_samples", "in_function", "in_process"),
                rows=tuple(
                    (one.function, one.file, one.line, one.samples, one.same_function, one.of) for one in lines[:8]
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
            False,
            f"{len(gaps.start)} silent gaps of the thread sum to {places.ms(gaps.total_ns)}",
        ),
        fix=FIX,
        verify=_verify(line.function, share, None),
    )


def _where(trace: Trace, stretches: Stretches, function: str) -> Locality:
    thread = stretches.thread
    known = places.track(trace, thread.track_id)
    line = thread.lines[stretches.row]
    return Locality(
        process=known["process"],
        process_id=thread.process_id,
        rank=known["rank"],
        role=known["role"],
        thread=known["thread"],
        thread_id=thread.thread_id,
        function=function,
        file=thread.files[stretches.row],
        line=line,
        line_kind="definition" if line is not None else None,
        windows=places.windows(stretches.start, stretches.end),
        windows_total=len(stretches.start),
    )


def _evidence(trace: Trace, convoys: tuple[Convoy, ...]) -> Iterator[Evidence]:
    worst = convoys[0]
    stretches, turns = worst.stretches, worst.turns
    lengths = stretches.end - stretches.start
    longest = np.argsort(-lengths, kind="stable")[:5]
    yield Evidence(
        says=(
            f"{len(lengths)} stretches of Python without a wait or a native call of note, the longest "
            f"{places.ms(int(lengths.max()))}; {stretches.silent_ns / stretches.total_ns:.0%} of it without own rows"
        ),
        columns=("start_ns", "dur_ns"),
        rows=tuple((int(stretches.start[index]), int(lengths[index])) for index in longest),
    )
    if (seen := worst.seen) is not None:
        waited = seen.waited_ns / max(stretches.inner_ns, 1)
        yield Evidence(
            says=f"the GIL probe waited for the GIL, not for a core, in {waited:.0%} of that time",
            table="ticks",
            columns=("ticks", "net_wait_ms", "inside_ms", "net_wait_share"),
            rows=((seen.ticks, seen.waited_ns / 1e6, stretches.inner_ns / 1e6, round(waited, 3)),),
        )
    yield Evidence(
        says=(
            f"threads that had work got {turns.taken} turns inside, {turns.forced} of them after "
            f"a wait of a switch interval ({places.ms(worst.interval_ns)})"
        ),
        table="slices",
        columns=("thread", "thread_id", "events_inside", "expected", "was_in", "stretches"),
        rows=tuple(
            (
                places.thread_name(trace, one.thread),
                one.thread.thread_id,
                one.inside,
                round(one.expected, 1),
                places.was_in(one.thread, stretches.start),
                one.calls,
            )
            for one in worst.kept
        ),
    )
    if len(convoys) > 1:
        yield Evidence(
            says="the same function, thread by thread",
            columns=("process_id", "thread_id", "stretches", "total_ms", "share"),
            rows=tuple(
                (
                    convoy.stretches.thread.process_id,
                    convoy.stretches.thread.thread_id,
                    len(convoy.stretches.start),
                    round(convoy.stretches.total_ns / 1e6, 3),
                    round(convoy.share, 4),
                )
                for convoy in convoys
            ),
        )


def _impact(waited_ns: int, wall_ns: int, probed: bool, basis: str) -> Impact:
    return Impact(
        quantity="time in which a thread that wants the GIL waits for it",
        value=round(waited_ns / 1e6, 3),
        unit="ms",
        share=round(waited_ns / wall_ns, 4),
        of="wall of the recorded window",
        bound="estimate" if probed else "upper",
        basis=basis,
        end_to_end="the waiting threads lose up to this share of their throughput; the computing thread loses nothing",
    )


def _verify(function: str, share: float, interval_ns: int | None) -> Verify:
    now = f"{interval_ns / 1e9:g} s" if interval_ns is not None else "its value"
    return Verify(
        experiment="switch-interval",
        changes=f"sys.setswitchinterval from {now} to {SHORTER_S:g} s; nothing else",
        predicts=Prediction(
            metric="net GIL wait of the probe, share of wall",
            direction="down",
            at_least=round(share / 2, 4),
            unit="share",
        ),
        refuted_if=(
            f"the wait during {function} stays as long although the switch interval is a tenth: a native call holds "
            "the GIL there (GIL001)"
        ),
        arguments={"seconds": SHORTER_S},
    )
