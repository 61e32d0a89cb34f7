"""What every sampling format needs: interned frames and stacks, tracks by (process, thread), rows of `samples`.

Knows how py-spy names processes and threads in pseudo frames; knows no file layout.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracelens import schema
from tracelens.contracts import Source
from tracelens.health import Health
from tracelens.trace import Facts, Trace

UNKNOWN_PROCESS = -1
"""Process id of a thread whose process no source names; 0 is a device in Kineto's traces."""
MAX_DEPTH = 65_535
MAX_LINE = 2**31 - 1
MAX_INT64 = 2**63 - 1

PROCESS_FRAME = re.compile(r'process (\d+):"(.*)"', re.DOTALL)
THREAD_FRAME = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?", re.DOTALL)
_NATIVE_FILE = re.compile(r"\.(so|dylib|dll|c|cc|cpp|cxx|cu|h|hh|hpp|rs)\b[^/]*$")


class Frame(NamedTuple):
    """One source location; `line` is the executing line, None where unknown."""

    function: str
    file: str | None = None
    line: int | None = None


class Thread(NamedTuple):
    """Whose stack it is; None where the source does not say."""

    process_id: int | None = None
    thread_id: int | None = None
    thread: str | None = None
    process: str | None = None


def split_pseudo_frames(stack: Sequence[Frame]) -> tuple[Thread, Sequence[Frame]]:
    """What py-spy's leading pseudo frames say of the thread, and the real frames. `stack` is outermost first."""
    owner = Thread()
    for index, frame in enumerate(stack):
        if frame.file or frame.line:
            return owner, stack[index:]
        if process := PROCESS_FRAME.fullmatch(frame.function):
            owner = owner._replace(process_id=small(int(process[1])), process=process[2])
        elif thread := THREAD_FRAME.fullmatch(frame.function):
            return owner._replace(thread_id=small(int(thread[1], 0)), thread=thread[2]), stack[index + 1 :]
        else:
            return owner, stack[index:]
    return owner, ()


def small(value: int) -> int | None:
    """The value if it fits an int64 column, else None."""
    return value if -MAX_INT64 <= value <= MAX_INT64 else None


def text(data: bytes, name: str, health: Health) -> str:
    """UTF-8 text; damaged bytes become U+FFFD and are counted."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        decoded = data.decode(errors="replace")
        health.add(
            "bytes.not-utf8",
            "info",
            "some names are not UTF-8; their damaged bytes are shown as \N{REPLACEMENT CHARACTER}",
            count=decoded.count("\N{REPLACEMENT CHARACTER}"),
            where=name,
        )
        return decoded


class Stacks:
    """Interns frames and stacks; the result is the tables `stacks` and `frames`."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int | None, int], int] = {}
        self._depths: list[int] = []
        self._whole: dict[tuple[Frame, ...], int] = {}
        self.clipped = 0

    def stack(self, frames: Iterable[Frame]) -> int:
        """The id of a stack, outermost frame first; there must be at least one frame."""
        key = tuple(frames)
        known = self._whole.get(key)
        if known is not None:
            return known
        parent: int | None = None
        for frame in key[:MAX_DEPTH]:
            step = (parent, self._frame(frame))
            found = self._stacks.get(step)
            if found is None:
                found = self._stacks[step] = len(self._depths)
                self._depths.append(0 if parent is None else self._depths[parent] + 1)
            parent = found
        if parent is None:
            raise ValueError("a stack needs a frame")
        self.clipped += len(key) > MAX_DEPTH
        self._whole[key] = parent
        return parent

    def _frame(self, frame: Frame) -> int:
        line = frame.line if frame.line and 0 < frame.line <= MAX_LINE else None
        return self._frames.setdefault(Frame(frame.function, frame.file or None, line), len(self._frames))

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(stacks, frames)."""
        stacks = schema.STACKS.build(
            {
                "stack_id": range(len(self._depths)),
                "parent_id": [parent for parent, _ in self._stacks],
                "frame_id": [frame for _, frame in self._stacks],
                "depth": self._depths,
            }
        )
        frames = schema.FRAMES.build(
            {
                "frame_id": range(len(self._frames)),
                "function": [frame.function for frame in self._frames],
                "file": [frame.file for frame in self._frames],
                "line": [frame.line for frame in self._frames],
                "native": [bool(frame.file and _NATIVE_FILE.search(frame.file)) for frame in self._frames],
            }
        )
        return stacks, frames


class Samples:
    """Collects samples of threads. What the manifest says (`process_id`, `gil`) holds where the file is silent."""

    def __init__(self, source: Source, health: Health) -> None:
        given = source.options.get("process_id")
        self.process_id = given if type(given) is int else None
        self.gil = True if source.options.get("gil") is True else None
        rate = source.options.get("rate_hz")
        self.period_ns = round(1e9 / rate) if isinstance(rate, int | float) and 1e-3 <= rate <= 1e9 else 0
        self.stacks = Stacks()
        self.count = 0
        self._source = source
        self._health = health
        self._tracks: dict[tuple[int, int | None, str | None], int] = {}
        self._owners: list[Thread] = []
        self._rows: list[tuple[int, int | None, int, int, bool | None, bool | None, int]] = []

    def add(
        self,
        owner: Thread,
        frames: Sequence[Frame],
        *,
        at_ns: int | None = None,
        weight_ns: int = 0,
        count: int = 1,
        on_cpu: bool | None = None,
        gil: bool | None = None,
    ) -> None:
        """Note `count` equal samples of one thread; `frames` outermost first, at least one."""
        stack_id = self.stacks.stack(frames)
        self._rows.append((self.track(owner), at_ns, weight_ns, stack_id, on_cpu, gil, count))
        self.count += count

    def track(self, owner: Thread) -> int:
        """The id of a thread's track; two threads without ids are told apart by name."""
        process_id = owner.process_id if owner.process_id is not None else self.process_id
        if process_id is None:
            # On Linux the main thread's id is the process's.
            main = owner.thread == "MainThread" and owner.thread_id is not None
            process_id = owner.thread_id if main else None
        known = owner._replace(process_id=UNKNOWN_PROCESS if process_id is None else process_id)
        key = (known.process_id or 0, known.thread_id, None if known.thread_id is not None else known.thread)
        track_id = self._tracks.setdefault(key, len(self._owners))
        if track_id == len(self._owners):
            self._owners.append(known)
        elif owner.thread and not self._owners[track_id].thread:
            self._owners[track_id] = self._owners[track_id]._replace(thread=owner.thread)
        return track_id

    def trace(
        self,
        *,
        origin_unix_ns: int | None = None,
        halfwidth_ns: int = 0,
        facts: Facts,
        slices: pl.DataFrame | None = None,
    ) -> Trace:
        """Everything collected, as a Trace."""
        name = self._source.name
        slices = schema.SLICES.empty() if slices is None else slices
        if not self.count and not slices.height:
            self._health.add(
                "samples.none",
                "warning",
                "no samples recorded: the profiler saw no thread it was asked to look at (this does not mean that the "
                "GIL was free)",
                need="samples",
                where=name,
            )
        if self.stacks.clipped:
            self._health.add(
                "samples.deep-stacks",
                "warning",
                f"stacks deeper than {MAX_DEPTH:,} frames were cut",
                need="samples",
                count=self.stacks.clipped,
                where=name,
            )
        owners = self._one_process()
        stacks, frames = self.stacks.tables()
        return Trace(
            origin_unix_ns=origin_unix_ns,
            clock_halfwidth_ns=halfwidth_ns,
            tracks=schema.TRACKS.build(
                {
                    "track_id": range(len(owners)),
                    "kind": ["thread"] * len(owners),
                    "process_id": [owner.process_id for owner in owners],
                    "thread_id": [owner.thread_id for owner in owners],
                    "process": [owner.process for owner in owners],
                    "thread": [owner.thread for owner in owners],
                }
            ),
            slices=slices,
            samples=self._table(),
            stacks=stacks,
            frames=frames,
            health=self._health,
            facts=facts,
        )

    def _one_process(self) -> list[Thread]:
        """Owners with ids: if the file knows one process only, nameless threads belong to it."""
        known = {owner.process_id for owner in self._owners} - {UNKNOWN_PROCESS}
        if len(known) > 1 or not self._owners:
            return self._owners
        process_id = known.pop() if known else UNKNOWN_PROCESS
        if process_id == UNKNOWN_PROCESS:
            self._health.add(
                "samples.process-unknown",
                "info",
                "the file does not name the process; its threads cannot be matched with another source's",
                where=self._source.name,
            )
        return [owner._replace(process_id=process_id) for owner in self._owners]

    def _table(self) -> pl.DataFrame:
        columns: list[list[Any]] = [list(values) for values in zip(*self._rows, strict=True)] or [[] for _ in range(7)]
        names = ("track_id", "at_ns", "weight_ns", "stack_id", "on_cpu", "gil")
        table = schema.SAMPLES.build(dict(zip(names, columns[:6], strict=True)))
        if self.count == len(self._rows):
            return table
        return table[np.repeat(np.arange(len(self._rows)), columns[6])]
