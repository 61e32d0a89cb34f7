"""Begin and end events → slices with a length: B/E on threads, b/e (and the old S/F) of async ids.

Events may be out of order, ends may lack a name, begins and ends may be missing. Knows nothing of tracks or clocks.
"""

from __future__ import annotations

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
    name: str
    at: int
    limit: int | None = None


def pair(rows: pl.DataFrame, last: int) -> Pairs:
    """Match begins with ends. `rows`: row, key, phase, name, ts (not null), args; `last`: time that closes the rest."""
    pairs = Pairs()
    for _, group in sorted(
        rows.partition_by("key", as_dict=True, maintain_order=True).items(), key=lambda item: item[0]
    ):
        _pair_one(group.sort("ts", maintain_order=True), last, pairs)
    pairs.slices.sort()
    return pairs


def _pair_one(rows: pl.DataFrame, last: int, pairs: Pairs) -> None:
    """One thread or async id, by time. An end that finds nothing open waits for a begin of the same time."""
    open_slices: list[_Open] = []
    waiting: list[tuple[str, str | None]] = []
    now: int | None = None
    columns = (rows[name].cast(pl.String) if name in ("phase", "name") else rows[name] for name in rows.columns)
    named = dict(zip(rows.columns, columns, strict=True))
    for row, phase, name, at, args in zip(
        named["row"], named["phase"], named["name"], named["ts"], named["args"], strict=True
    ):
        if at != now:
            pairs.unmatched_ends += len(waiting)
            waiting.clear()
            now = at
        if phase in BEGINS:
            open_slices.append(_Open(row, name, at))
            waiting = [end for end in waiting if not _close(open_slices, end[0], at, end[1], pairs)]
        elif not _close(open_slices, name, at, args, pairs):
            waiting.append((name, args))
    pairs.unmatched_ends += len(waiting)
    pairs.unclosed_begins += len(open_slices)
    for item in open_slices:
        pairs.slices.append((item.row, max((item.limit if item.limit is not None else last) - item.at, 0), None))


def _close(open_slices: list[_Open], name: str, at: int, args: str | None, pairs: Pairs) -> bool:
    """End the innermost open slice of this name, or the innermost of all where the end has no name."""
    for index in range(len(open_slices) - 1, -1, -1):
        item = open_slices[index]
        if not name or item.name == name:
            pairs.slices.append((item.row, at - item.at, args))
            for inner in open_slices[index + 1 :]:
                inner.limit = at if inner.limit is None else inner.limit
            del open_slices[index]
            return True
    return False
