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
from tracelens.readers.perfetto_lookups import Lookup
from tracelens.readers.perfetto_pools import Pool, series
from tracelens.readers.perfetto_sequence import Sequence
from tracelens.readers.perfetto_walk import BOOL, FLOAT, INT, TEXT, UINT

Ints: TypeAlias = npt.NDArray[np.int64]
MAX_KNOWN = 1 << 16
"""Distinct byte strings remembered; then everything is forgotten, so that memory stays bounded."""
_encode = msgspec.json.Encoder().encode


def quoted(text: str) -> str:
    """A text as JSON."""
    return _encode(text).decode()


@dataclass
class Read:
    """One argument as a sequence knows it: valid from packet `since` of batch `batch` on, and in all later batches."""

    name: str
    value: Any
    json: str
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

    def __init__(self, parse: Callable[[bytes], Any]) -> None:
        self._parse = parse
        self._messages: dict[bytes, Any] = {}
        self._read: dict[int, tuple[dict[int, str], dict[bytes, Read]]] = {}
        """By sequence: its generation, and what was read in it."""

    def readable(self, content: bytes) -> bool:
        """Whether these bytes are an argument."""
        return self._message(content) is not None

    def read(self, content: bytes, sequence: Sequence, batch: int, names: Lookup, texts: Lookup) -> Read | None:
        """The argument; None if it needs a name that is missing, or if only `json` could write it."""
        generation, known = self._read.get(sequence.sequence_id, (None, {}))
        if generation is not sequence.argument_names or len(known) >= MAX_KNOWN:
            known = {}
            self._read[sequence.sequence_id] = sequence.argument_names, known
        found = known.get(content)
        if found is None:
            found = self._made(content, sequence, batch, names, texts)
            if found is not None:
                known[content] = found
        return found

    def forget(self) -> None:
        """Forget what was read: a sequence's names have changed otherwise than by growing."""
        self._read.clear()

    def _message(self, content: bytes) -> Any:
        if content not in self._messages:
            if len(self._messages) >= MAX_KNOWN:
                self._messages.clear()
            self._messages[content] = self._parse(content)
        return self._messages[content]

    def _made(self, content: bytes, sequence: Sequence, batch: int, names: Lookup, texts: Lookup) -> Read | None:
        asker: Any = _Asker(sequence)
        ((name, value),) = arguments([self._message(content)], asker).items()
        if asker.argument_names.missing or asker.argument_texts.missing:
            return None
        since = max(names.since(asker.argument_names.iids), texts.since(asker.argument_texts.iids))
        try:
            return Read(name, value, _encode(value).decode(), batch, since)
        except (TypeError, ValueError, OverflowError):
            return None


def written(kinds: Ints, values: Ints, texts: Pool[str], fixed: Pool[str]) -> pl.Series:
    """Each value as JSON: by its kind a number's bits, a code of `texts` (quoted), or of `fixed` (as it is)."""
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


def _column(kind: int, values: Ints, texts: Pool[str], fixed: Pool[str]) -> pl.Series:
    if kind == BOOL:
        return pl.Series(["false", "true"]).gather((values != 0).astype(np.uint32))
    if kind == INT:
        return pl.Series(values).cast(pl.String)
    if kind == UINT:
        return pl.Series(values.view(np.uint64)).cast(pl.String)
    if kind == FLOAT:
        return pl.Series(_encode(values.view(np.float64).tolist())[1:-1].decode().split(","))
    return series(texts if kind == TEXT else fixed).gather(values)


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
