"""Perfetto's clocks: snapshots say which readings belong together; every timestamp is converted when all are known.

A clock is its builtin number, or (sequence, number) for 64–127, which are a sequence's own. Clocks that nothing
connects to the trace's clock cannot be placed. Times are ns and must stay below 2^62 (146 years).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Clock: TypeAlias = int | tuple[int, int] | None
"""None is "the source did not say": already on the trace's clock."""
Times: TypeAlias = npt.NDArray[np.int64]

REALTIME, MONOTONIC, BOOTTIME, TRACE_FILE = 1, 3, 6, 11
MAX_TIME = 2**62


def _clock(sequence_id: int, number: int) -> Clock:
    return (sequence_id, number) if 64 <= number < 128 else number


def _early(clock: tuple[int, int]) -> tuple[int, int]:
    """A sequence's clock read before its first snapshot, marked by a negative sequence; and back."""
    return -1 - clock[0], clock[1]


class Clocks:
    """All snapshots of one file, and the running value of its incremental clocks."""

    def __init__(self) -> None:
        self.primary: int | None = None
        self.count = 0
        self._readings: dict[Clock, dict[int, int]] = defaultdict(dict)
        self._units: dict[Clock, int] = {}
        self._running: dict[Clock, int] = {}

    def snapshot(self, sequence_id: int, packet: Any) -> None:
        """Take one ClockSnapshot."""
        numbers = set()
        for reading in packet.clocks:
            number = reading.clock_id
            clock = _clock(sequence_id, number)
            unit = reading.unit_multiplier_ns or 1
            at = reading.timestamp * unit
            if at >= MAX_TIME:
                continue
            self._units[clock] = unit
            self._readings[clock][self.count] = at
            if reading.is_incremental:
                self._running[clock] = at
            numbers.add(number)
        self.count += 1
        if packet.primary_trace_clock:
            self.primary = packet.primary_trace_clock
        elif BOOTTIME in numbers and TRACE_FILE not in numbers and self.primary is None:
            self.primary = BOOTTIME

    def reading(self, sequence_id: int, number: int, value: int) -> tuple[Clock, int]:
        """(clock, reading) of a packet's timestamp; deltas of an incremental clock add up in file order, as ns."""
        if not number:
            return None, value
        clock = _clock(sequence_id, number)
        running = self._running.get(clock)
        if running is not None:
            value = self._running[clock] = running + value * self._units[clock]
        elif isinstance(clock, tuple) and clock not in self._units:
            return _early(clock), value
        return clock, value

    def readings(self, sequence_id: int, number: int, values: Times) -> tuple[Clock, Times, int | None] | None:
        """`reading` for many values: (clock, readings, where its running value would be); None if one is too large.

        The running value stays as it is until `resume`.
        """
        if not number:
            return None, values, None
        clock = _clock(sequence_id, number)
        running = self._running.get(clock)
        if running is None:
            early = isinstance(clock, tuple) and clock not in self._units
            return (_early(clock) if early and isinstance(clock, tuple) else clock), values, None
        unit = self._units[clock]
        if running + float(values.sum(dtype=np.float64)) * unit >= MAX_TIME / 2:
            return None
        added: Times = np.cumsum(values) * unit + running
        return clock, added, int(added[-1])

    def resume(self, running: list[tuple[Clock, int]]) -> None:
        """Set the running values of clocks that count deltas."""
        self._running.update(running)

    def target(self, used: dict[Clock, int]) -> Clock:
        """The trace's clock: what the snapshots say, else the clock that most timestamps use."""
        if self.primary is not None:
            return self.primary
        return max(used, key=lambda clock: used[clock], default=None)

    def convert(self, times: Times, source: Clock, target: Clock) -> tuple[Times, npt.NDArray[np.bool_]] | None:
        """(times on `target`, which of them exist there), or None if no snapshots connect the clocks."""
        if isinstance(source, tuple) and source[0] < 0:
            source = _early(source)
            if source in self._running:
                return None
        unit = 1 if source in self._running else self._units.get(source, 1)
        valid = (times >= 0) & (times < MAX_TIME // unit)
        times = np.where(valid, times, 0) * unit
        if source == target or source is None or (target is None and source == BOOTTIME):
            return times, valid
        path = self._path(source, target)
        if path is None:
            return None
        for here, there in pairwise(path):
            starts, offsets = self._edge(here, there)
            nearest = np.clip(np.searchsorted(starts, times, side="right") - 1, 0, None)
            times = np.where(valid, times, 0) + offsets[nearest]
            valid &= (times >= 0) & (times < MAX_TIME)
        return times, valid

    def realtime(self, target: Clock) -> tuple[int, int] | None:
        """(ns to add to the trace's clock for CLOCK_REALTIME, half-width); None if no snapshot has both."""
        if target == REALTIME:
            return 0, 0
        both = self._readings[target].keys() & self._readings[REALTIME].keys()
        if not both:
            return None
        apart = [self._readings[REALTIME][each] - self._readings[target][each] for each in sorted(both)]
        return apart[0], max(abs(each - apart[0]) for each in apart)

    def _edge(self, here: Clock, there: Clock) -> tuple[Times, Times]:
        """Readings of `here` in order, and what to add after each to be on `there`."""
        mine, theirs = self._readings[here], self._readings[there]
        pairs = sorted((at, theirs[each] - at) for each, at in mine.items() if each in theirs)
        return np.array([at for at, _ in pairs], np.int64), np.array([apart for _, apart in pairs], np.int64)

    def _path(self, source: Clock, target: Clock) -> list[Clock] | None:
        """The shortest chain of clocks read together."""
        members: dict[int, list[Clock]] = defaultdict(list)
        for clock in sorted(self._readings, key=str):
            for each in self._readings[clock]:
                members[each].append(clock)
        paths: list[list[Clock]] = [[source]]
        seen = {source}
        for path in paths:
            if path[-1] == target:
                return path
            for each in self._readings.get(path[-1], {}):
                for clock in members[each]:
                    if clock not in seen:
                        seen.add(clock)
                        paths.append([*path, clock])
        return None
