"""The rows of one batch: names, tracks and clocks are resolved first; only if nothing was bad, rows are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.readers import perfetto_walk as walk
from tracelens.readers.perfetto_clocks import Clock
from tracelens.readers.perfetto_events import NEEDS_STATE, TYPE_COUNTER, TYPE_END, unnamed
from tracelens.readers.perfetto_lookups import Marks
from tracelens.readers.perfetto_pools import NONE, Pool, append
from tracelens.readers.perfetto_sequence import Sequence
from tracelens.readers.perfetto_slices import BEGIN, END, INSTANT, NUMBER_COLUMNS
from tracelens.readers.perfetto_texts import objects, quoted, repeated, written
from tracelens.readers.perfetto_walk import Bools, Ints, Walked

if TYPE_CHECKING:
    from tracelens.readers.perfetto_batch import Batches, Names

_PHASES = np.array([NONE, BEGIN, END, INSTANT, NONE])
FIXED = walk.OTHER
"""Kind of an argument whose value is a place in `Batch._fixed`."""


class Batch:
    """One batch on its way: first everything is resolved, then, if nothing was bad, written."""

    def __init__(self, batches: Batches, data: bytes, walked: Walked, first: int, last: int) -> None:
        self._all = batches
        self._decoder = batches.decoder
        self._data = data
        self._packets = walked.packets[:, first:last]
        self._count = last - first
        self.bad = np.zeros(self._count, bool)
        low, high = np.searchsorted(walked.arguments[walk.ROW], (first, last))
        self._arguments = walked.arguments[:, low:high].copy()
        self._arguments[walk.ROW] -= first
        low, high = np.searchsorted(walked.flow_row, (first, last))
        self._flows = walked.flow_row[low:high] - first, walked.flow_id[low:high], walked.flow_ends[low:high]
        self._name = np.full(self._count, NONE)
        self._category = np.full(self._count, NONE)
        self._place = np.full(self._count, NONE)
        self._at = self._packets[walk.AT].copy()
        self._uuid = self._packets[walk.TRACK].copy()
        self._clocks: list[tuple[int, Clock, Ints]] = []
        self._running: list[tuple[Clock, int]] = []
        self._numbers: list[tuple[int, int, int]] = []
        self._fixed: list[str] = []
        """Values as JSON, as they are."""
        self._columns: list[tuple[int, dict[str, Any]]] = []
        self._counter = self._packets[walk.TYPE] == TYPE_COUNTER

    def sequences(self) -> list[Sequence]:
        """The sequences of the batch, in order of their first packet."""
        ids = self._packets[walk.SEQUENCE]
        if (ids[1:] == ids[:-1]).all():
            self._mine = [np.arange(self._count)]
            return [self._decoder.sequence(int(ids[0]))]
        distinct, first = np.unique(ids, return_index=True)
        ordered = distinct[np.argsort(first)].tolist()
        self._mine = [np.flatnonzero(ids == each) for each in ordered]
        return [self._decoder.sequence(each) for each in ordered]

    def resolve(self, sequences: list[Sequence]) -> None:
        """Find names, tracks and clocks; whatever is not found makes its packet bad."""
        for sequence, mine in zip(sequences, self._mine, strict=True):
            self._sequence(sequence, mine)
        self._inline(walk.NAME_TEXT, walk.NAME_SIZE, self._name, self._all.events.names)
        self._inline(walk.CATEGORY_TEXT, walk.CATEGORY_SIZE, self._category, self._all.events.categories)
        self._counters()
        rows = self._arguments[walk.ROW]
        self.bad[rows[repeated(rows, self._arguments[walk.ARGUMENT_NAME])]] = True

    def _sequence(self, sequence: Sequence, mine: Ints) -> None:
        packets = self._packets
        if not sequence.valid:
            self.bad[
                mine[(packets[walk.FLAGS][mine] & NEEDS_STATE != 0) | (packets[walk.INTERNED_SIZE][mine] >= 0)]
            ] = True
            if self.bad.any():
                # Reading these packets one by one may change what the others are.
                return
        self._clock(sequence, mine)
        implied = mine[packets[walk.HAS_TRACK][mine] == 0]
        if len(implied):
            track = sequence.track or 0
            self._uuid[implied] = np.array([track], np.uint64).view(np.int64)[0]
            self.bad[implied] = track == 0
        names = self._all.names(sequence)
        marks: dict[int, Marks] = {each: [] for each in range(5)}
        tables = names.each(sequence)
        for number, (_, table) in enumerate(tables):
            marks[number].append((0, len(table)))
        for row in mine[packets[walk.INTERNED_SIZE][mine] >= 0].tolist():
            at, size = packets[walk.INTERNED, row], packets[walk.INTERNED_SIZE, row]
            data = self._all.parse_interned(self._data[at : at + size])
            if data is None:
                self.bad[row] = True
                continue
            sequence.intern(data)
            for number, (_, table) in enumerate(tables):
                marks[number].append((row, len(table)))
        for number, (lookup, table) in enumerate(tables):
            lookup.follow(table, marks[number])
        for column, lookup, found in (
            (walk.NAME, names.names, self._name),
            (walk.CATEGORY, names.categories, self._category),
            (walk.PLACE, names.places, self._place),
        ):
            asking = mine[packets[column][mine] > (NONE if column == walk.CATEGORY else 0)]
            found[asking] = lookup.codes(packets[column][asking], asking)
            self.bad[asking[found[asking] == NONE]] = True
        self._sequence_arguments(sequence, names, mine)

    def _sequence_arguments(self, sequence: Sequence, names: Names, mine: Ints) -> None:
        """Names and texts of arguments, as codes."""
        args = self._arguments
        rows = args[walk.ROW]
        if len(mine) == self._count:
            own = np.arange(args.shape[1])
        else:
            belongs = np.zeros(self._count, bool)
            belongs[mine] = True
            own = np.flatnonzero(belongs[rows])
        plain = own[args[walk.ARGUMENT_KIND, own] != walk.OTHER]
        codes = names.argument_names.codes(args[walk.ARGUMENT_NAME, plain], rows[plain])
        self.bad[rows[plain[codes == NONE]]] = True
        args[walk.ARGUMENT_NAME, plain] = codes
        texts = own[args[walk.ARGUMENT_KIND, own] == walk.TEXT]
        codes = names.argument_texts.codes(args[walk.ARGUMENT_VALUE, texts], rows[texts])
        self.bad[rows[texts[codes == NONE]]] = True
        args[walk.ARGUMENT_VALUE, texts] = codes
        others = own[args[walk.ARGUMENT_KIND, own] == walk.OTHER]
        self._sequence_others(sequence, names, others)

    def _sequence_others(self, sequence: Sequence, names: Names, mine: Ints) -> None:
        """Names and values of arguments that have no number."""
        args = self._arguments
        rows = args[walk.ROW, mine]
        distinct, inverse = np.unique(args[walk.ARGUMENT_VALUE, mine], return_inverse=True)
        heads, since = np.full(len(distinct), NONE), np.zeros(len(distinct), np.int64)
        first = len(self._fixed)
        for place, number in enumerate(distinct.tolist()):
            read = self._all.others.read(number, sequence, self._all.number, names.argument_names, names.argument_texts)
            self._fixed.append("" if read is None else read.json)
            if read is None:
                continue
            heads[place] = read.head
            since[place] = read.since if read.batch == self._all.number else 0
            if read.own is not None:
                self._columns += [(row, read.own) for row in rows[inverse == place].tolist()]
            if read.number is not None:
                self._numbers += [(row, read.head, read.number) for row in rows[inverse == place].tolist()]
        args[walk.ARGUMENT_NAME, mine] = heads[inverse]
        args[walk.ARGUMENT_VALUE, mine] = inverse + first
        self.bad[rows[(heads[inverse] == NONE) | (rows < since[inverse])]] = True

    def _clock(self, sequence: Sequence, mine: Ints) -> None:
        """Readings of each clock; deltas add up."""
        clocks = self._decoder.clocks
        number = self._packets[walk.CLOCK][mine]
        number = np.where(number == 0, sequence.clock, number)
        distinct = np.unique(number[:1]) if (number == number[0]).all() else np.unique(number)
        for each in distinct.tolist():
            rows = mine[number == each]
            found = clocks.readings(sequence.sequence_id, each, self._at[rows])
            if found is None:
                self.bad[rows] = True
                continue
            clock, self._at[rows], running = found
            self._clocks.append((int(rows[0]), clock, rows))
            if running is not None:
                self._running.append((clock, running))

    def _inline(self, at: int, size: int, found: Ints, pool: Pool[str]) -> None:
        """Names that stand in the event itself."""
        packets, data = self._packets, self._data
        rows = np.flatnonzero(packets[size] >= 0)
        starts = packets[at, rows]
        codes = [
            pool.code(data[start:end].decode(errors="replace"))
            for start, end in zip(starts.tolist(), (starts + packets[size, rows]).tolist(), strict=True)
        ]
        found[rows] = codes

    def _counters(self) -> None:
        rows = np.flatnonzero(self._counter)
        described = self._decoder.tracks.described
        for uuid in np.unique(self._uuid[rows]).view(np.uint64).tolist():
            known = described.get(uuid)
            if known is None or known.kind != "counter" or known.incremental:
                self.bad[rows[self._uuid[rows].view(np.uint64) == uuid]] = True
        kinds, values = self._packets[walk.VALUE_KIND, rows], self._packets[walk.VALUE, rows]
        finite = (kinds != walk.DOUBLE) | np.isfinite(values.view(np.float64))
        self.bad[rows[(kinds == 0) | ~finite]] = True

    def commit(self) -> None:
        """Write all rows."""
        self._decoder.packets += self._count
        clock = np.empty(self._count, np.int32)
        for _, key, rows in sorted(self._clocks, key=lambda each: each[0]):
            clock[rows] = self._decoder.track_events.clock_index(key)
        self._decoder.clocks.resume(self._running)
        track = self._tracks()
        self._write_counters(clock, track)
        events = self._all.events
        slices = np.flatnonzero(~self._counter)
        first = len(events.at)
        place = np.cumsum(~self._counter) - 1 + first
        append(events.clock, clock[slices])
        append(events.at, self._at[slices])
        append(events.phase, _PHASES[self._packets[walk.TYPE, slices]])
        append(events.track, track[slices])
        append(events.name, self._name[slices])
        append(events.category, self._category[slices])
        append(events.args, self._texts(place)[slices])
        rows = np.flatnonzero((self._place != NONE) & ~self._counter)
        events.place.extend(place[rows], self._place[rows])
        rows, flows, ends = self._flows
        kept = ~self._counter[rows]
        append(events.flow_row, place[rows[kept]])
        append(events.flow_id, flows[kept])
        append(events.flow_ends, ends[kept])

    def _tracks(self) -> Ints:
        """The track of each row, numbered in order of first use."""
        uuid = self._uuid
        heads = np.flatnonzero(np.concatenate([[True], uuid[1:] != uuid[:-1]]))
        distinct, first, inverse = np.unique(uuid[heads], return_index=True, return_inverse=True)
        ids = np.empty(len(distinct), np.int64)
        order = np.argsort(first)
        ids[order] = [self._decoder.tracks.track(each) for each in distinct[order].view(np.uint64).tolist()]
        return np.repeat(ids[inverse], np.diff(np.append(heads, len(uuid))))

    def _write_counters(self, clock: Any, track: Ints) -> None:
        rows = np.flatnonzero(self._counter)
        if not len(rows):
            return
        distinct, inverse = np.unique(self._uuid[rows], return_inverse=True)
        described = self._decoder.tracks.described
        scale = np.array([described[each].scale for each in distinct.view(np.uint64).tolist()])[inverse]
        bits = self._packets[walk.VALUE, rows]
        value = np.where(
            self._packets[walk.VALUE_KIND, rows] == walk.DOUBLE, bits.view(np.float64), bits.astype(np.float64)
        )
        points = self._decoder.track_events.counters
        append(points.clock, clock[rows])
        append(points.at, self._at[rows])
        append(points.track, track[rows])
        append(points.value, value * scale)

    def _texts(self, place: Ints) -> Ints:
        """The number of each row's arguments; the columns that stand among them are written too."""
        events, args = self._all.events, self._arguments
        rows, names, kinds, values = (
            args[walk.ROW],
            args[walk.ARGUMENT_NAME],
            args[walk.ARGUMENT_KIND],
            args[walk.ARGUMENT_VALUE],
        )
        kept = ~self._counter[rows]
        rows, names, kinds, values = rows[kept], names[kept], kinds[kept], values[kept]
        for column, code in zip(NUMBER_COLUMNS, self._all.numbers, strict=True):
            said = (names == code) & ((kinds == walk.INT) | ((kinds == walk.UINT) & (values >= 0)))
            overruled = {row for row, found in self._columns if column in found}
            said &= ~np.isin(rows, list(overruled))
            events.columns[column].extend(place[rows[said]], values[said])
            for row, head_code, value in self._numbers:
                if head_code == code and row not in overruled and not self._counter[row]:
                    events.columns[column].add(int(place[row]), value)
        for row, found in self._columns:
            if not self._counter[row]:
                events.take_columns(int(place[row]), found)
        mine = names != self._all.own
        rows, names, kinds, values = rows[mine], names[mine], kinds[mine], values[mine]
        lacking = self._unnamed(rows, names)
        if len(lacking):
            codes = len(self._fixed) + np.arange(len(lacking))
            self._fixed += [quoted(events.categories.values[code]) for code in self._category[lacking].tolist()]
            rows = np.concatenate([rows, lacking])
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            names = np.concatenate([names, np.full(len(lacking), self._all.category)])[order]
            kinds = np.concatenate([kinds, np.full(len(lacking), FIXED)])[order]
            values = np.concatenate([values, codes])[order]
        codes = np.full(self._count, NONE)
        if len(rows):
            counts = np.bincount(rows, minlength=self._count)
            having = np.flatnonzero(counts)
            made = objects(counts[having], names, self._all.heads, written(kinds, values, self._all.texts, self._fixed))
            codes[having] = events.texts.extend(made) + np.arange(len(having))
        return codes

    def _unnamed(self, rows: Ints, names: Ints) -> Ints:
        """Rows whose category must be kept as an argument, and is not yet one."""
        categories = self._all.events.categories.values
        odd = np.array([*(unnamed(each) for each in categories), False])
        wanted: Bools = odd[self._category] & (self._packets[walk.TYPE] != TYPE_END) & ~self._counter
        wanted[rows[names == self._all.category]] = False
        return np.flatnonzero(wanted)
