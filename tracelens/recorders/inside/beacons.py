"""Uniquely named Python functions that spin under the GIL, so that py-spy's clock can be found from outside.

A beacon is a run of six functions of 1 ms each, all with different names: under --gil py-spy writes no new event while
the stack stays the same, and a sample that falls into a function says when it was taken within ± 0.5 ms. They run
before and after the window, never in it.
"""

from __future__ import annotations

import random
from time import monotonic_ns, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BEACONS = 8
PIECES = 6
"""Six milliseconds: at 250 samples/s one or two fall into each beacon. The first 5 ms can't be taken from it."""
PIECE_NS = 1_000_000
GAP_MS = (8.0, 18.0)
"""Unequal gaps: a comb of equal ones would fit at several offsets."""

_SOURCE = """
def _tracelens_beacon_{0}(hold_ns):
    end = monotonic_ns() + hold_ns
    while monotonic_ns() < end: pass
"""


def _make() -> list[Callable[[int], None]]:
    names: dict[str, Any] = {"monotonic_ns": monotonic_ns}
    for index in range(BEACONS * PIECES):
        exec(compile(_SOURCE.format(index), "<tracelens beacon>", "exec"), names)
    return [names[f"_tracelens_beacon_{index}"] for index in range(BEACONS * PIECES)]


def burst(beacons: range) -> list[list[int]]:
    """Run these beacons; a row [index, start, end] in CLOCK_MONOTONIC ns for each piece. Takes 19 ms a beacon."""
    pieces = _make()
    rows = []
    for beacon in beacons:
        for index in range(beacon * PIECES, (beacon + 1) * PIECES):
            start = monotonic_ns()
            pieces[index](PIECE_NS)
            rows.append([index, start, monotonic_ns()])
        sleep(random.uniform(*GAP_MS) / 1e3)
    return rows
