"""A batch of consecutive plain packets, as columns → rows of `Events` and counter values, all at once.

Between two plain packets only interned names can change; whatever else may happen to a sequence makes a packet unplain.
A packet whose names, clock, track or counter are not all as a healthy trace has them is handed back, and with it the
whole batch is undone: the caller reads those packets one by one, and the rest in smaller batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.readers.perfetto_events import COLUMNS
from tracelens.readers.perfetto_lookups import Lookup
from tracelens.readers.perfetto_pools import NONE, Pool
from tracelens.readers.perfetto_rows import Batch
from tracelens.readers.perfetto_sequence import Sequence
from tracelens.readers.perfetto_slices import NUMBER_COLUMNS
from tracelens.readers.perfetto_texts import Others, head, quoted
from tracelens.readers.perfetto_walk import Ints, Walked

if TYPE_CHECKING:
    from tracelens.readers.perfetto import Decoder


class Names:
    """The lookups of one sequence."""

    def __init__(self, batches: Batches) -> None:
        events = batches.events
        self.names = Lookup(events.names.code)
        self.categories = Lookup(lambda text: events.categories.code(text) if text else NONE)
        self.places = Lookup(events.places.code)
        self.argument_names = Lookup(lambda text: batches.heads.code(head(text)))
        self.argument_texts = Lookup(lambda text: batches.texts.code(quoted(text)))

    def each(self, sequence: Sequence) -> tuple[tuple[Lookup, dict[int, Any]], ...]:
        """Every lookup with the table that it follows."""
        return (
            (self.names, sequence.names),
            (self.categories, sequence.categories),
            (self.places, sequence.places),
            (self.argument_names, sequence.argument_names),
            (self.argument_texts, sequence.argument_texts),
        )


class Batches:
    """Takes batches for one decoder."""

    def __init__(self, decoder: Decoder, parse: Callable[[bytes], Any], intern: Callable[[bytes], Any]) -> None:
        self.decoder = decoder
        self.parse_interned = intern
        self.events = decoder.track_events.events
        self.heads: Pool[str] = Pool()
        self.others = Others(parse, self.heads)
        self.texts: Pool[str] = Pool()
        self.own, self.category, *self.numbers = map(self.heads.code, map(head, (COLUMNS, "category", *NUMBER_COLUMNS)))
        self._names: dict[int, Names] = {}
        self.number = 0

    def take(self, data: bytes, walked: Walked, first: int, last: int) -> Ints | None:
        """Take packets [first, last), all plain. If some cannot be taken here, says which, and has taken none."""
        self.number += 1
        batch = Batch(self, data, walked, first, last)
        sequences = batch.sequences()
        marks = [len(table) for sequence in sequences for table in sequence.tables()]
        batch.resolve(sequences)
        if not batch.bad.any():
            batch.commit()
            return None
        for table, mark in zip((t for s in sequences for t in s.tables()), marks, strict=True):
            while len(table) > mark:
                table.popitem()
        for sequence in sequences:
            for lookup, _ in self.names(sequence).each(sequence):
                lookup.forget()
        self.others.forget()
        return np.flatnonzero(batch.bad) + first

    def names(self, sequence: Sequence) -> Names:
        """The lookups of a sequence."""
        found = self._names.get(sequence.sequence_id)
        if found is None:
            found = self._names[sequence.sequence_id] = Names(self)
        return found
