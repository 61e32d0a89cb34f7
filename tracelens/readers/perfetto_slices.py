"""Begin, end, complete and instant events in time order → slices with parents, depth and flows.

Follows trace_processor's rules, as measured against it: an end closes the innermost open slice whose name and category
agree, a complete event that partly overlaps the slice around it is dropped, flows bind to slices. Times are already
converted. Knows no protobuf.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

BEGIN, END, COMPLETE, INSTANT, STATE, FLOW = range(6)
OUT, IN, THROUGH = "s", "f", "t"
OPEN = -1
MAX_DEPTH = 65_535


class Events:
    """Events of all tracks in file order, as columns; what few events have stands in dictionaries by row."""

    def __init__(self) -> None:
        self.clock = array("i")
        self.at = array("q")
        self.phase = array("b")
        self.track = array("i")
        self.name: list[str | None] = []
        self.category: list[str | None] = []
        self.args: list[bytes | None] = []
        self.duration: dict[int, int] = {}
        self.place: dict[int, tuple[str | None, int | None]] = {}
        self.extra: dict[int, dict[str, Any]] = {}
        self.flows: dict[int, list[tuple[str, Any]]] = {}

    def add(
        self,
        clock: int,
        at: int,
        phase: int,
        track: int,
        name: str | None,
        category: str | None,
        args: bytes | None,
    ) -> int:
        """Append one event; returns its row."""
        self.clock.append(clock)
        self.at.append(at)
        self.phase.append(phase)
        self.track.append(track)
        self.name.append(name)
        self.category.append(category)
        self.args.append(args)
        return len(self.name) - 1


class Slices:
    """Builds slices from events fed in time order."""

    def __init__(self, events: Events) -> None:
        self.losses: Counter[str] = Counter()
        self.lost_ns = 0
        self.row = array("q")
        self.start = array("q")
        self.duration = array("q")
        self.parent = array("q")
        self.depth = array("i")
        self.merged: dict[int, list[int]] = defaultdict(list)
        self.flows: list[tuple[int, int]] = []
        self._events = events
        self._stacks: dict[int, list[int]] = {}
        self._mixed: set[int] = set()
        """Tracks whose stack may hold finished slices; in all others every slice on the stack is open."""
        self._last: dict[Any, int] = {}
        self._waiting: dict[int, list[Any]] = {}

    def feed(self, rows: Iterable[int], times: Iterable[int]) -> None:
        """Take events by row, in time order. Afterwards `finish` must be called."""
        phases, tracks, flows = self._events.phase, self._events.track, self._events.flows
        stacks, durations = self._stacks, self._events.duration
        for row, at in zip(rows, times, strict=True):
            phase, track = phases[row], tracks[row]
            stack = stacks.get(track)
            if stack is None:
                stack = stacks[track] = []
            length = durations.get(row, 0) if phase == COMPLETE else 0
            fits = track not in self._mixed or self._unwind(track, stack, at, length)
            if phase == BEGIN:
                index = self._begin(row, track, stack, at, OPEN)
            elif phase == END:
                index = self._end(row, track, stack, at)
            elif phase == FLOW:
                index = stack[-1] if stack else OPEN
                if index == OPEN and any(kind == OUT for kind, _ in flows.get(row, ())):
                    self.losses["flow-without-slice"] += 1
            elif phase == STATE:
                for each in stack:
                    self.duration[each] = at - self.start[each]
                stack.clear()
                index = self._begin(row, track, stack, at, OPEN) if self._events.name[row] else OPEN
            elif fits:
                index = self._begin(row, track, stack, at, length)
            else:
                self.losses["overlapping"] += 1
                self.lost_ns += length
                continue
            if row in flows:
                self._bind(flows[row], index, track)

    def _begin(self, row: int, track: int, stack: list[int], at: int, length: int) -> int:
        index = len(self.row)
        self.row.append(row)
        self.start.append(at)
        self.duration.append(length)
        self.parent.append(stack[-1] if stack else OPEN)
        self.depth.append(min(len(stack), MAX_DEPTH))
        self.losses["deeper"] += len(stack) > MAX_DEPTH
        if length:
            stack.append(index)
            if length != OPEN:
                self._mixed.add(track)
        if track in self._waiting:
            for flow in self._waiting.pop(track):
                self._arrive(flow, index)
        return index

    def _end(self, row: int, track: int, stack: list[int], at: int) -> int:
        """Close the innermost open slice that agrees; returns it, or OPEN."""
        name, category = self._events.name[row], self._events.category[row]
        for level in range(len(stack) - 1, -1, -1):
            index = stack[level]
            if self.duration[index] != OPEN:
                continue
            begun = self.row[index]
            if category is not None and self._events.category[begun] != category:
                continue
            if name is not None and self._events.name[begun] not in (None, name):
                continue
            self.duration[index] = at - self.start[index]
            if level == len(stack) - 1:
                stack.pop()
            else:
                self._mixed.add(track)
            if self._events.args[row] is not None:
                self.merged[index].append(row)
            return index
        self.losses["end-without-begin"] += 1
        return OPEN

    def _unwind(self, track: int, stack: list[int], at: int, length: int) -> bool:
        """Take finished slices off a track's stack; False if [at, at + length) partly overlaps one of them."""
        durations, starts = self.duration, self.start
        level = len(stack) - 1
        unfinished = False
        while level >= 0:
            index = stack[level]
            duration = durations[index]
            if duration == OPEN:
                unfinished = True
                level -= 1
                continue
            end = starts[index] + duration
            if unfinished:
                if at > end:
                    self._cut(stack, level + 1, end)
                    del stack[level:]
                    unfinished = False
            elif end <= at:
                del stack[level]
            elif length > 0 and at + length > end:
                return False
            level -= 1
        if not stack:
            self._mixed.discard(track)
        return True

    def _cut(self, stack: list[int], level: int, end: int) -> None:
        """End the slices from one level on with the finished slice around them."""
        for index in stack[level:]:
            cut = max(end - self.start[index], 0)
            if self.duration[index] == OPEN:
                self.losses["unfinished"] += 1
                self.duration[index] = cut
            else:
                self.duration[index] = min(cut, self.duration[index])

    def finish(self, last: int) -> None:
        """Slices that never ended last until the finished slice around them ends, or until `last`."""
        for stack in self._stacks.values():
            end = last
            for index in stack:
                if self.duration[index] == OPEN:
                    self.losses["unfinished"] += 1
                    self.duration[index] = max(end - self.start[index], 0)
                else:
                    end = min(end, self.start[index] + self.duration[index])
        self.losses["flow-without-end"] += sum(len(flows) for flows in self._waiting.values())

    def _bind(self, flows: list[tuple[str, Any]], index: int, track: int) -> None:
        for kind, flow in flows:
            if kind == "next":
                self._waiting.setdefault(track, []).append(flow)
            elif index != OPEN:
                self._bind_one(kind, flow, index)

    def _bind_one(self, kind: str, flow: Any, index: int) -> None:
        """ "id": begins or steps; "end": steps and closes; OUT begins; IN and THROUGH only follow a begin."""
        if kind == "id":
            if flow in self._last:
                self._edge(self._last[flow], index)
            self._last[flow] = index
        elif kind == "end":
            if flow in self._last:
                self._edge(self._last.pop(flow), index)
        elif kind == OUT:
            self._last.setdefault(flow, index)
        else:
            self._arrive(flow, index)
            if kind == THROUGH and flow in self._last:
                self._last[flow] = index

    def _arrive(self, flow: Any, index: int) -> None:
        if flow in self._last:
            self._edge(self._last[flow], index)
        else:
            self.losses["flow-without-begin"] += 1

    def _edge(self, first: int, second: int) -> None:
        if self.start[first] > self.start[second]:
            first, second = second, first
        self.flows.append((first, second))
