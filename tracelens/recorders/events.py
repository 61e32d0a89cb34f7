"""The events source: what the program itself says happened (`tracelens/events.py`), one Perfetto file a process."""

from __future__ import annotations

from pathlib import Path

from tracelens import events
from tracelens.contracts import Availability, Recorder

ALIGN_HALFWIDTH_NS = 10_000
"""Its two clocks are read within a microsecond; a thread may lose its core between event and reading."""
RECORDER = Recorder("events", "the program's own slices, counters, flows and requests", lambda: Availability(True))


def variables() -> dict[str, str]:
    """Environment variables that tell a program where to find the module."""
    return {events.MODULE: str(Path(events.__file__).resolve())}
