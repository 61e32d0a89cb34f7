"""Where py-spy's clock stands: the offset at which its beacon events fall into the beacons' logged times.

Pure functions on integer ns. Knows nothing of processes or of how the beacons were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PREFIX = "_tracelens_beacon_"
ENOUGH_BEACONS = 2
"""One beacon alone says ± 3 ms and cannot show that it was misread."""
EXIT_HALFWIDTH_NS = 5_000_000
"""py-spy stamps its last event when it writes: +1.0 to +1.4 ms before its exit in 8 runs, more for a large file."""
LEAST_HALFWIDTH_NS = 800_000
"""A sample is stamped after it is taken: however sharp the beacons, 0.15 to 0.7 ms off (8 runs; 0.5 in three more)."""


class Alignment(NamedTuple):
    """Add `offset_ns` to the source's own time; `how` it was found: beacons or exit."""

    offset_ns: int
    halfwidth_ns: int
    how: str
    beacons: int


def sightings(events: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """(beacon, own time in ns) of each beacon event in a chrometrace."""
    seen = []
    for event in events:
        name = event.get("name")
        if event.get("ph") == "B" and isinstance(name, str) and name.startswith(PREFIX):
            number = name[len(PREFIX) :].split(" ")[0]
            if number.isdecimal():
                seen.append((int(number), round(event["ts"] * 1000)))
    return seen


def align(
    beacons: Mapping[int, tuple[int, int]], seen: Sequence[tuple[int, int]], exit_ns: int, last_own_ns: int
) -> Alignment:
    """The offset from own time to the beacons' clock.

    `beacons`: index → (start, end); `seen`: what `sightings` gives; `exit_ns`: when the recorder ended, on the
    beacons' clock; `last_own_ns`: its last event. The answer is the middle of what most sightings allow. Fewer than two
    beacons agreeing: the exit, ± 5 ms.
    """
    low, high = allowed_offsets(beacons, seen)
    agreeing = {i for i, own_ns in seen if i in beacons and beacons[i][0] <= own_ns + low <= beacons[i][1]}
    if len(agreeing) < ENOUGH_BEACONS:
        return Alignment(exit_ns - last_own_ns, EXIT_HALFWIDTH_NS, "exit", len(agreeing))
    halfwidth_ns = max((high - low + 1) // 2, LEAST_HALFWIDTH_NS)
    return Alignment((low + high) // 2, halfwidth_ns, "beacons", len(agreeing))


def allowed_offsets(beacons: Mapping[int, tuple[int, int]], seen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The least and largest offset that most sightings allow, each an interval of them; (0, 0) without any.

    O(n log n) in the number of sightings.
    """
    edges = []
    for index, own_ns in seen:
        if index in beacons:
            start, end = beacons[index]
            edges += [(start - own_ns, 0), (end - own_ns, 1)]
    edges.sort()
    low = high = most = allowed = 0
    for place, (at, closes) in enumerate(edges):
        allowed += -1 if closes else 1
        if not closes and allowed >= most:
            # Several best places: the answer is as wide as all of them.
            low = at if allowed > most else low
            high, most = edges[place + 1][0], allowed
    return low, high
