"""Arguments of many events → the JSON texts of their objects, the same bytes as `perfetto_args.encoded` gives.

Numbers are written by the column, names and interned texts once each, and everything else once per distinct bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.readers.perfetto_args import arguments
from tracelens.readers.perfetto_events import COLUMNS
from tracelens.readers.perfetto_lookups import Lookup
from tracelens.readers.perfetto_pools import NONE, Pool, series
from tracelens.readers.perfetto_sequence import Sequence
from tracelens.readers.perfetto_slices import NUMBER_COLUMNS
from tracelens.readers.perfetto_walk import BOOL, FLOAT, INT, TEXT, UINT

Ints: TypeAlias = npt.NDArray[np.int64]
MAX_KNOWN = 1 << 16
"""Distinct byte strings remembered; then everything is forgotten, so that memory stays bounded."""
_encode = msgspec.json.Encoder().encode


def quoted(text: str) -> str:
    """A text as JSON."""
    return _encode(text).decode()


def head(name: str) -> str:
    """An argument's name, as it stands before its value."""
    return quoted(name) + ":"


@dataclass
class Read:
    """One argument as a sequence knows it: valid from packet `since` of batch `batch` on, and in all later batches.

    `own` is its value if the argument holds columns of our own writer, `number` if it is a number that is a column.
    """

    head: int
    json: str
    own: dict[str, Any] | None
    number: int | None
    batch: int
    since: int


class _Asked:
    """A table of interned texts that notes which ids were asked for, and whether one was missing."""

    def __init__(self, table: dict[int, str]) -> None:
        self._table = table
        self.iids: list[int] = []
        self.missing = False

    def get(self, iid: int, default: Any = None) -> Any:
        self.iids.append(iid)
        self.missing |= iid not in self._table
        return self._table.get(iid, default)


class _Asker:
    """What `arguments` needs of a sequence."""

    def __init__(self, sequence: Sequence) -> None:
        self.argument_names = _Asked(sequence.argument_names)
        self.argument_texts = _Asked(sequence.argument_texts)


class Others:
    """Arguments that have no number: parsed once per distinct bytes, and read once per sequence and generation."""

    def __init__(self, parse: Callable[[bytes], Any], heads: Pool[str]) -> None:
        self._parse = parse
        self._heads = heads
        self._ids: dict[bytes, int] = {}
        self._messages: list[Any] = []
        self._read: dict[int, tuple[dict[int, str], dict[int, Read]]] = {}
        """By sequence: its generation, and what was read in it."""

    def ids(self, data: bytes, starts: Ints, sizes: Ints) -> Ints:
        """A number for each argument's bytes, NONE where they are no argument. Older numbers may lose their meaning."""
        if len(self._ids) >= MAX_KNOWN:
            self._ids.clear()
            self._messages.clear()
            self._read.clear()
        ids, get = self._ids, self._ids.get
        made: list[int] = []
        for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
            content = data[start:end]
            found = get(content)
            if found is None:
                message = self._parse(content)
                found = ids[content] = NONE if message is None else len(self._messages)
                if message is not None:
                    self._messages.append(message)
            made.append(found)
        return np.array(made, np.int64)

    def read(self, number: int, sequence: Sequence, batch: int, names: Lookup, texts: Lookup) -> Read | None:
        """The argument; None if it needs a name that is missing, or if only `json` could write it."""
        generation, known = self._read.get(sequence.sequence_id, (None, {}))
        if generation is not sequence.argument_names:
            known = {}
            self._read[sequence.sequence_id] = sequence.argument_names, known
        found = known.get(number)
        if found is None:
            found = self._made(self._messages[number], sequence, batch, names, texts)
            if found is not None:
                known[number] = found
        return found

    def forget(self) -> None:
        """Forget what was read: a sequence's names have changed otherwise than by growing."""
        self._read.clear()

    def _made(self, message: Any, sequence: Sequence, batch: int, names: Lookup, texts: Lookup) -> Read | None:
        asker: Any = _Asker(sequence)
        ((name, value),) = arguments([message], asker).items()
        if asker.argument_names.missing or asker.argument_texts.missing:
            return None
        since = max(names.since(asker.argument_names.iids), texts.since(asker.argument_texts.iids))
        try:
            json = _encode(value).decode()
        except (TypeError, ValueError, OverflowError):
            return None
        own = value if name == COLUMNS and isinstance(value, dict) else None
        number = value if name in NUMBER_COLUMNS and type(value) is int and -(2**63) <= value < 2**63 else None
        return Read(self._heads.code(head(name)), json, own, number, batch, since)


def written(kinds: Ints, values: Ints, texts: Pool[str], fixed: list[str]) -> pl.Series:
    """Each value as JSON: by its kind a number's bits, a code of `texts` (quoted), or a place in `fixed` (as it is)."""
    parts: list[pl.Series] = []
    places: list[Ints] = []
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        mine = np.flatnonzero(kinds == kind)
        places.append(mine)
        parts.append(_column(kind, values[mine], texts, fixed))
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(kinds), np.uint32)
    order[np.concatenate(places)] = np.arange(len(kinds), dtype=np.uint32)
    return pl.concat(parts).gather(order)


def _column(kind: int, values: Ints, texts: Pool[str], fixed: list[str]) -> pl.Series:
    if kind == BOOL:
        return pl.Series(["false", "true"]).gather((values != 0).astype(np.uint32))
    if kind == INT:
        return pl.Series(values).cast(pl.String)
    if kind == UINT:
        return pl.Series(values.view(np.uint64)).cast(pl.String)
    if kind == FLOAT:
        return pl.Series(_encode(values.view(np.float64).tolist())[1:-1].decode().split(","))
    return (series(texts) if kind == TEXT else pl.Series(fixed, dtype=pl.String)).gather(values)


def objects(counts: Ints, names: Ints, heads: Pool[str], values: pl.Series) -> pl.Series:
    """The JSON object of each event with `counts` arguments, in their order; `heads` holds quoted names with colons."""
    starts = np.cumsum(counts) - counts
    first = pl.Series(["{" + head for head in heads.values], dtype=pl.String)
    later = pl.Series(["," + head for head in heads.values], dtype=pl.String)
    parts: list[pl.Series] = []
    places: list[Ints] = []
    for count in np.flatnonzero(np.bincount(counts)).tolist():
        mine = np.flatnonzero(counts == count)
        places.append(mine)
        columns: list[pl.Series] = []
        for slot in range(count):
            at = starts[mine] + slot
            columns += [(later if slot else first).gather(names[at]), values.gather(at)]
        parts.append(pl.select(pl.concat_str([*map(pl.lit, columns), pl.lit("}")])).to_series())
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(counts), np.uint32)
    order[np.concatenate(places)] = np.arange(len(counts), dtype=np.uint32)
    return pl.concat(parts).gather(order)


def repeated(rows: Ints, names: Ints) -> npt.NDArray[np.bool_]:
    """Which arguments have the name of another one of their event; rows must be in order."""
    order = np.lexsort((names, rows))
    same = (rows[order][1:] == rows[order][:-1]) & (names[order][1:] == names[order][:-1])
    found = np.zeros(len(rows), bool)
    found[order[1:][same]] = True
    return found
