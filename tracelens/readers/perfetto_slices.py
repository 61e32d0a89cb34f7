"""Begin, end, complete and instant events in time order → slices with parents and depth, event by event.

Follows trace_processor's rules, as measured against it: an end closes the innermost open slice whose name and category
agree, a complete event that partly overlaps the slice around it is dropped, flows bind to slices. Times are already
converted. Handles every kind of event; `perfetto_nesting` does tracks of plain begins and ends at once. Knows no
protobuf.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from tracelens.readers.perfetto_pools import NONE, Pool, Sparse, Texts

BEGIN, END, COMPLETE, INSTANT, STATE, FLOW = range(6)
OUT, IN, THROUGH, NEXT = "s", "f", "t", "next"
OPEN = -1
NUMBER_COLUMNS, TEXT_COLUMNS = ("correlation", "bytes"), ("request", "module")
MAX_DEPTH = 65_535


class Events:
    """Events of all tracks in file order, as columns; what few events have stands in columns of its own by row."""

    def __init__(self) -> None:
        self.clock = array("i")
        self.at = array("q")
        self.phase = array("b")
        self.track = array("i")
        self.name = array("i")
        self.category = array("i")
        self.args = array("i")
        self.names: Pool[str] = Pool()
        self.categories: Pool[str] = Pool()
        self.texts = Texts()
        self.duration: dict[int, int] = {}
        self.place = Sparse()
        self.places: Pool[tuple[str, int]] = Pool()
        self.columns = {name: Sparse() for name in (*NUMBER_COLUMNS, *TEXT_COLUMNS)}
        self.words: Pool[str] = Pool()
        self.flow_row = array("q")
        self.flow_id = array("Q")
        self.flow_ends = array("b")
        self.legacy_flows: dict[int, list[tuple[str, Any]]] = {}

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
        self.name.append(self.names.code_or_none(name))
        self.category.append(self.categories.code_or_none(category))
        self.args.append(NONE if args is None else self.texts.add(args))
        return len(self.name) - 1

    def forget_times(self) -> None:
        """Free what is of no more use once the events stand in order of their times."""
        self.clock, self.at = array("i"), array("q")

    def flow(self, row: int, flow: int, *, ends: bool) -> None:
        """Let an event begin, continue or end a flow."""
        self.flow_row.append(row)
        self.flow_id.append(flow)
        self.flow_ends.append(ends)

    def take_columns(self, row: int, found: dict[str, Any]) -> None:
        """Columns of `slices` that stood among the arguments; values that do not fit are left out."""
        for name in NUMBER_COLUMNS:
            value = found.get(name)
            if type(value) is int and -(2**63) <= value < 2**63:
                self.columns[name].add(row, value)
        for name in TEXT_COLUMNS:
            value = found.get(name)
            if type(value) is str:
                self.columns[name].add(row, self.words.code(value))


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
        self.bound = array("i", [OPEN]) * len(events.track)
        """By event: the slice that it began or ended, or that it lies in, if it is a flow."""
        self.legacy_flows: list[tuple[int, str, Any, int]] = []
        """(event, kind, flow, slice) in time order."""
        self._events = events
        self._stacks: dict[int, list[int]] = {}
        self._mixed: set[int] = set()
        """Tracks whose stack may hold finished slices; in all others every slice on the stack is open."""
        self._waiting: dict[int, list[Any]] = {}

    def feed(self, rows: Iterable[int], times: Iterable[int]) -> None:
        """Take events by row, in time order. Afterwards `finish` must be called."""
        phases, tracks, flows = self._events.phase, self._events.track, self._events.legacy_flows
        stacks, durations, bound = self._stacks, self._events.duration, self.bound
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
                index = self._begin(row, track, stack, at, OPEN) if self._named(row) else OPEN
            elif fits:
                index = self._begin(row, track, stack, at, length)
            else:
                self.losses["overlapping"] += 1
                self.lost_ns += length
                continue
            bound[row] = index
            if row in flows:
                self._bind(row, flows[row], index, track)

    def _named(self, row: int) -> bool:
        name = self._events.name[row]
        return name != NONE and self._events.names.values[name] != ""

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
            self.legacy_flows += [(row, IN, flow, index) for flow in self._waiting.pop(track)]
        return index

    def _end(self, row: int, track: int, stack: list[int], at: int) -> int:
        """Close the innermost open slice that agrees; returns it, or OPEN."""
        name, category = self._events.name[row], self._events.category[row]
        for level in range(len(stack) - 1, -1, -1):
            index = stack[level]
            if self.duration[index] != OPEN:
                continue
            begun = self.row[index]
            if category != NONE and self._events.category[begun] != category:
                continue
            if name != NONE and self._events.name[begun] not in (NONE, name):
                continue
            self.duration[index] = at - self.start[index]
            if level == len(stack) - 1:
                stack.pop()
            else:
                self._mixed.add(track)
            if self._events.args[row] != NONE:
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

    def _bind(self, row: int, flows: list[tuple[str, Any]], index: int, track: int) -> None:
        for kind, flow in flows:
            if kind == NEXT:
                self._waiting.setdefault(track, []).append(flow)
            elif index != OPEN:
                self.legacy_flows.append((row, kind, flow, index))
