"""The GIL probe: a thread that sleeps 1 ms at a time and notes how late it gets the GIL back.

Inside a call that holds the GIL the probe cannot wake. Lateness minus the time it waited for a core (run-queue delay)
is the wait for the GIL itself, so a busy machine is not mistaken for a held lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.trace import Trace
from tracelens_gil.exclusion import Spans
from tracelens_gil.python_rows import Ints

CONSERVATIVE = 0.5
"""Share of the probe's nominal rate that is expected at least: a healthy probe gives 1.1–1.9 edges a ms, we ask 0.5."""


@dataclass(frozen=True)
class Probe:
    """One process's probe: wake times, sorted, and the wait for the GIL before each, ns.

    `waits` and `lates` are running sums of net GIL wait and of all lateness, at `times` and linear between them.
    """

    track_id: int
    at: Ints
    period_ns: int
    times: Ints
    waits: Ints
    lates: Ints

    def waited(self, start: Ints, end: Ints) -> int:
        """Net wait for the GIL within windows, ns."""
        return self._within(self.waits, start, end)

    def late(self, start: Ints, end: Ints) -> int:
        """Lateness within windows for whatever reason, a busy core included, ns."""
        return self._within(self.lates, start, end)

    def _within(self, sums: Ints, start: Ints, end: Ints) -> int:
        return int(np.interp(end, self.times, sums).sum() - np.interp(start, self.times, sums).sum())


def probes(trace: Trace) -> dict[int, Probe]:
    """The probe of each process that has one with enough ticks to know its period."""
    joined = trace.ticks.join(trace.tracks.select("track_id", "process_id"), on="track_id").sort("at_ns")
    found = {}
    for (process_id,), rows in joined.group_by("process_id", maintain_order=True):
        if rows.height >= 20:
            found[int(process_id)] = _probe(rows)
    return found


def _probe(rows: pl.DataFrame) -> Probe:
    at = rows["at_ns"].to_numpy().astype(np.int64)
    late = np.maximum(rows["late_ns"].to_numpy().astype(np.int64), 0)
    delay = rows["run_delay_ns"].fill_null(0).to_numpy().astype(np.int64)
    late = np.minimum(late, np.diff(at, prepend=at[0] - late[0]))
    net = np.clip(late - np.maximum(delay, 0), 0, None)
    return Probe(
        track_id=rows["track_id"][0],
        at=at,
        period_ns=max(int(np.percentile(np.diff(at), 25)), 500_000),
        times=np.maximum.accumulate(np.stack([at - late, at], axis=1).ravel()),
        waits=_running(net),
        lates=_running(late),
    )


def _running(lengths: Ints) -> Ints:
    """The running sum before and after each length."""
    sums = np.cumsum(lengths)
    return np.stack([sums - lengths, sums], axis=1).ravel()


@dataclass(frozen=True)
class ProbeVerdict:
    """What the probe saw inside some spans: wake-ups against the least number expected, net wait, all lateness."""

    ticks: int
    expected: float
    waited_ns: int
    late_ns: int

    @property
    def ratio(self) -> float:
        """Observed over expected ticks."""
        return self.ticks / self.expected if self.expected else float("nan")


def inside(probe: Probe, calls: Spans) -> ProbeVerdict:
    """The probe's view of some calls."""
    return ProbeVerdict(
        ticks=int(intervals.count_inside(probe.at, calls.inner_start, calls.inner_end).sum()),
        expected=CONSERVATIVE * calls.inner_ns / probe.period_ns,
        waited_ns=probe.waited(calls.inner_start, calls.inner_end),
        late_ns=probe.late(calls.inner_start, calls.inner_end),
    )


def ticks_per_ms_outside(probe: Probe, calls: Spans, wall: tuple[int, int]) -> float:
    """The probe's rate outside some calls: too low means that it was kept from running by something else."""
    hidden = intervals.union(calls.start, calls.end)
    outside_ns = (wall[1] - wall[0]) - intervals.total(hidden)
    within = probe.at[(probe.at >= wall[0]) & (probe.at <= wall[1])]
    outside = len(within) - int(intervals.contains(hidden, within).sum())
    return outside / (outside_ns / 1e6) if outside_ns > 0 else 0.0
