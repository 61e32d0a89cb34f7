"""Python call rows of a trace as arrays: who called what, from where to where, and what each thread was in at a time.

Knows the names that CPython gives its own callables; judges nothing.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.trace import Trace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BOUND = re.compile(r"<built-in (?:method|function) (\S+?)(?: of (.+?) object at 0x[0-9a-fA-F]+)?>")
_DESCRIPTOR = re.compile(r"<(?:method|slot wrapper) '([^']+)' of '([^']+)' objects>")
_NO_OWNER = frozenset({"type", "PyCapsule", "module"})
_PYBIND11_RECORD = "pybind11_builtins."
"""pybind11 ≥ 3 binds free functions to an internal record type whose name says nothing."""
_WAIT_OWNERS = frozenset(
    {"_thread.lock", "_thread.RLock", "_queue.SimpleQueue", "select.epoll", "select.poll", "_multiprocessing.SemLock"}
)
_WAIT_FUNCTIONS = frozenset({"acquire", "acquire_lock", "select", "poll", "epoll", "waitpid", "wait4", "waitid"})
_WAIT_FILES = (
    "threading.py",
    "queue.py",
    "selectors.py",
    "multiprocessing/connection.py",
    "concurrent/futures/_base.py",
)
_PYTHON_OWNERS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and not issubclass(value, BaseException)
)
_PYTHON_FUNCTIONS = frozenset(
    name for name, value in vars(builtins).items() if callable(value) and not isinstance(value, type)
)


@dataclass(frozen=True)
class Callee:
    """A native callable as CPython prints it: `owner` is the type it is bound to, if that says something."""

    function: str
    owner: str | None

    @property
    def label(self) -> str:
        """The name people would write."""
        return f"{self.owner}.{self.function}" if self.owner else self.function

    @property
    def waits(self) -> bool:
        """A lock, condition, queue or poll wait: it parks its thread and is never a holder."""
        return self.owner in _WAIT_OWNERS or self.function in _WAIT_FUNCTIONS

    @property
    def is_python_work(self) -> bool:
        """Work on Python objects by the interpreter's own builtins (sort, sum, join): it needs the GIL by nature."""
        if self.owner is None:
            return self.function in _PYTHON_FUNCTIONS
        return self.owner in _PYTHON_OWNERS


@lru_cache(maxsize=65536)
def callee(name: str) -> Callee | None:
    """The native callable of a Python row's name, or None if the row is a Python frame."""
    if match := _BOUND.fullmatch(name):
        function, owner = match.groups()
        anonymous = owner in _NO_OWNER or (owner or "").startswith(_PYBIND11_RECORD)
        return Callee(function, None if anonymous else owner)
    if match := _DESCRIPTOR.fullmatch(name):
        return Callee(*match.groups())
    return None


@lru_cache(maxsize=65536)
def _is_wait(name: str, file: str | None) -> bool:
    native = callee(name)
    if native is not None:
        return native.waits
    return file is not None and file.endswith(_WAIT_FILES)


@dataclass(frozen=True)
class Thread:
    """The Python rows of one thread, sorted by start then by decreasing length; all arrays are equally long.

    `parent` is the index of the enclosing row or -1; `is_leaf` is True where no other row lies inside; `wait` marks
    lock, queue and poll waits.
    """

    track_id: int
    process_id: int
    thread_id: int
    slice_id: Ints
    start: Ints
    end: Ints
    parent: Ints
    is_leaf: Bools
    wait: Bools
    events: Ints
    names: list[str]
    files: list[str | None]
    lines: list[int | None]

    def innermost_at(self, times: Ints) -> Ints:
        """Index of the innermost row open at each time, or -1."""
        index = np.searchsorted(self.start, times, side="right") - 1
        while True:
            closed = (index >= 0) & (self.end[np.maximum(index, 0)] <= times)
            if not closed.any():
                return index.astype(np.int64)
            index[closed] = self.parent[index[closed]]

    def waiting_at(self, times: Ints) -> Bools:
        """Whether the thread was parked in a lock, queue or poll wait, or in no row at all, at each time."""
        index = self.innermost_at(times)
        return (index < 0) | self.wait[np.maximum(index, 0)]


def threads(trace: Trace) -> list[Thread]:
    """Every thread with Python rows. Rows of thread id 0 are outer frames of unknown threads and are left out."""
    rows = (
        trace.slices.lazy()
        .filter(pl.col("kind") == "python")
        .join(trace.tracks.lazy().select("track_id", "process_id", "thread_id"), on="track_id")
        .filter(pl.col("thread_id") != 0, pl.col("thread_id").is_not_null())
        .sort("track_id", "start_ns", "dur_ns", descending=[False, False, True])
        .with_columns(pl.col("name").cast(pl.String))
        .collect()
    )
    return [_thread(part) for part in rows.partition_by("track_id", maintain_order=True)]


def of_program(trace: Trace, members: list[Thread], probe_track: int | None) -> list[Thread]:
    """The threads of one process that belong to the program: not the recorder's, not the probe."""
    ours = set(trace.facts.recorder_threads)
    return [
        thread
        for thread in members
        if (thread.process_id, thread.thread_id) not in ours and thread.track_id != probe_track
    ]


def _thread(rows: pl.DataFrame) -> Thread:
    start = rows["start_ns"].to_numpy().astype(np.int64)
    end = start + rows["dur_ns"].to_numpy()
    names = rows["name"].to_list()
    files = rows["file"].to_list()
    wait = np.fromiter((_is_wait(name, file) for name, file in zip(names, files, strict=True)), bool, len(names))
    return Thread(
        track_id=rows["track_id"][0],
        process_id=rows["process_id"][0],
        thread_id=rows["thread_id"][0],
        slice_id=rows["slice_id"].to_numpy().astype(np.int64),
        start=start,
        end=end,
        parent=_parents(start, end),
        is_leaf=np.append(start[1:] >= end[:-1], True),
        wait=wait,
        events=np.sort(np.concatenate([start, end])),
        names=names,
        files=files,
        lines=rows["line"].to_list(),
    )


def _parents(start: Ints, end: Ints) -> Ints:
    """Index of the row that encloses each row's start, -1 for none; rows are sorted by start, longest first."""
    parents = np.full(len(start), -1, np.int64)
    stack: list[int] = []
    ends = end.tolist()
    for index, at in enumerate(start.tolist()):
        while stack and ends[stack[-1]] <= at:
            stack.pop()
        if stack:
            parents[index] = stack[-1]
        stack.append(index)
    return parents
