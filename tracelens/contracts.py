"""The small objects that plugins hand to core: Reader, Presenter, Recorder, and the Source a reader reads.

Each can be listed and documented without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from tracelens.health import Health
from tracelens.streams import Stream, open_stream

if TYPE_CHECKING:
    from tracelens.finding import Report
    from tracelens.trace import Trace


@dataclass(frozen=True)
class Alignment:
    """How a source's own clock maps to CLOCK_REALTIME: realtime_ns = source_ns + offset_ns, ± halfwidth_ns."""

    offset_ns: int
    halfwidth_ns: int


@dataclass(frozen=True)
class Source:
    """One file to read. `name` is the path as the user gave it; it appears in messages and reports."""

    name: str
    path: Path
    alignment: Alignment | None = None
    options: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    """What the capture's manifest or the command line says about this file, e.g. {"gil": True, "process_id": 7}."""

    def open(self, health: Health) -> Stream:
        """The decompressed bytes. A damaged compressed stream ends early with an entry in `health`."""
        return open_stream(self.path, self.name, health)


@dataclass(frozen=True)
class Reader:
    """A format that can become a Trace.

    `sniff(head, name)` scores the first 64 KiB of decompressed content from 0 (not mine) to 100 (certain); content
    decides, the name may only break doubt. `read` raises TracelensError if nothing can be saved.
    """

    name: str
    says: str
    sniff: Callable[[bytes, str], int]
    read: Callable[[Source, Health], Trace]


@dataclass(frozen=True)
class Presenter:
    """A way to show a Report. `render(report, stream, color, width)` writes text; `width` is in columns."""

    name: str
    says: str
    render: Callable[[Report, TextIO, bool, int], None]


class Availability(NamedTuple):
    """Whether a source can be recorded here; if not (or not fully), why, and what to do about it."""

    here: bool
    why: str | None = None
    cure: str | None = None


@dataclass(frozen=True)
class Recorder:
    """One source that `tracelens record --with NAME` can add to a capture. `available` looks, and starts nothing."""

    name: str
    says: str
    available: Callable[[], Availability]
