"""The GIL probe as a source: a 1 kHz ticker thread in each recorded process (`inside/probe.py`), and its clock."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tracelens.capture import Anchor
from tracelens.contracts import Availability, Recorder


def _available() -> Availability:
    if os.path.exists("/proc/thread-self/schedstat"):
        return Availability(True)
    return Availability(
        True,
        "no /proc/thread-self/schedstat: run_delay_ns will be null, and a busy machine can look like a held GIL",
        "record on Linux, with more cores than busy threads",
    )


RECORDER = Recorder("gil", "GIL probe: how late a 1 kHz thread gets the GIL", _available)


def offset(anchors: Sequence[Anchor]) -> tuple[int, int] | None:
    """(ns to add to CLOCK_MONOTONIC for CLOCK_REALTIME, half-width): the anchors' middle, and all they allow."""
    if not anchors:
        return None
    low = min(a.realtime_ns - a.monotonic_ns - (a.halfwidth_ns or 0) for a in anchors)
    high = max(a.realtime_ns - a.monotonic_ns + (a.halfwidth_ns or 0) for a in anchors)
    return (low + high) // 2, (high - low + 1) // 2
