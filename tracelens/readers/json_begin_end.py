"""Begin and end events → slices with a length: B/E on threads, b/e (and the old S/F) of async ids.

Events may be out of order, ends may lack a name, begins and ends may be missing. Linear after sorting. Knows nothing of
tracks or clocks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import polars as pl

BEGINS = ("B", "b", "S")
ENDS = ("E", "e", "F")
PAIRED = BEGINS + ENDS


@dataclass
class Pairs:
    """`slices`: (row of the begin, ns to its end, arguments of the end). What did not match is counted.

    A begin without an end is closed where the slice around it ended, else at the last time in the file.
    """

    slices: list[tuple[int, int, str | None]] = field(default_factory=list)
    unmatched_ends: int = 0
    unclosed_begins: int = 0


@dataclass
class _Open:
    row: int
    at: int
    limit: int | None = None
    closed: bool = False


@dataclass
class _Place:
    """One thread or async id: `inner` is open in order; what an outer end has passed is only found by its name."""

    pairs: Pairs
    inner: list[_Open] = field(default_factory=list)
    passed: list[_Open] = field(default_factory=list)
    by_name: defaultdict[str, list[_Open]] = field(default_factory=lambda: defaultdict(list))

    def begin(self, row: int, name: str, at: int) -> None:
        item = _Open(row, at)
        self.inner.append(item)
        self.by_name[name].append(item)

    def end(self, name: str, at: int, args: str | None) -> bool:
        """Close the innermost open slice of this name, or the innermost of all where the end has no name."""
        candidates = self.by_name[name] if name else self.inner or self.passed
        while candidates and candidates[-1].closed:
            candidates.pop()
            candidates = self.by_name[name] if name else self.inner or self.passed
        if not candidates:
            return False
        item = candidates[-1]
        item.closed = True
        self.pairs.slices.append((item.row, at - item.at, args))
        if item.limit is None:
            while self.inner[-1] is not item:
                over = self.inner.pop()
                if not over.closed:
                    over.limit = at
                    self.passed.append(over)
            self.inner.pop()
        return True

    def finish(self, last: int) -> None:
        """Close what is still open."""
        for item in (*self.inner, *self.passed):
            if not item.closed:
                self.pairs.unclosed_begins += 1
                end = last if item.limit is None else item.limit
                self.pairs.slices.append((item.row, max(end - item.at, 0), None))


def pair(rows: pl.DataFrame, last: int) -> Pairs:
    """Match begins with ends. `rows`: row, key, phase, name, ts (not null), args; `last`: time that closes the rest.

    An end that finds nothing open waits for a begin of its own time.
    """
    pairs = Pairs()
    place, key_now, now = _Place(pairs), None, None
    waiting: defaultdict[str, list[str | None]] = defaultdict(list)
    ordered = rows.sort("key", "ts", "row").with_columns(pl.col("phase", "name").cast(pl.String))
    for row, key, phase, name, at, args in ordered.select("row", "key", "phase", "name", "ts", "args").iter_rows():
        if key != key_now or at != now:
            pairs.unmatched_ends += sum(map(len, waiting.values()))
            waiting.clear()
            now = at
        if key != key_now:
            place.finish(last)
            place, key_now = _Place(pairs), key
        if phase in BEGINS:
            place.begin(row, name, at)
            early = waiting.get(name) or waiting.get("")
            if early:
                place.end(name, at, early.pop())
        elif not place.end(name, at, args):
            waiting[name].append(args)
    pairs.unmatched_ends += sum(map(len, waiting.values()))
    place.finish(last)
    pairs.slices.sort()
    return pairs
