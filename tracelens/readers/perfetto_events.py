"""TrackEvents of Perfetto, also legacy ones → rows of `Events` and counter values, in file order.

Everything that depends on the order of packets happens here: interned names, defaults, incremental counters, legacy
thread descriptors. Times stay on their own clock.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import lru_cache
from typing import Any

from tracelens.readers.json_kinds import kind_of
from tracelens.readers.perfetto_args import arguments, encoded
from tracelens.readers.perfetto_clocks import MAX_TIME, MONOTONIC, Clock, Clocks
from tracelens.readers.perfetto_sequence import Sequence, text
from tracelens.readers.perfetto_slices import BEGIN, COMPLETE, END, FLOW, IN, INSTANT, NEXT, OUT, STATE, THROUGH, Events
from tracelens.readers.perfetto_tracks import Key, Tracks
from tracelens.schema import SLICE_KINDS

CLEARED, NEEDS_STATE = 1, 2
TYPE_END, TYPE_COUNTER, TYPE_STATE = 2, 4, 5
_BARE = 3
"""Bytes of an event with only type and track, less the track's number: half of all events, with nothing to ask."""
_PHASES = {1: BEGIN, 2: END, 3: INSTANT}
_LEGACY_PHASES = {
    **dict.fromkeys("BbS", BEGIN),
    **dict.fromkeys("EeF", END),
    **dict.fromkeys("iIRnTp", INSTANT),
    **dict.fromkeys("stf", FLOW),
    "X": COMPLETE,
}
_ASYNC = frozenset("beSTFnp")
_SCOPED_BY_NAME = frozenset("STpF")
GLOBAL_SCOPE, PROCESS_SCOPE = 1, 2
_DIRECTIONS = {1: IN, 2: OUT, 3: THROUGH}
COLUMNS = "tracelens"
"""Our own writer puts columns of `slices` for which Perfetto has no field into this argument."""


@lru_cache(1 << 12)
def kind(category: str | None) -> str:
    """The kind of slice of a category list such as "kernel,gpu"; the first that is known."""
    if category is None:
        return "other"
    for each in category.split(","):
        known = each if each in SLICE_KINDS else kind_of(each)
        if known != "other":
            return known
    return "other"


def unnamed(category: str) -> bool:
    """Whether the kind does not say what the category said, so that it must be kept as an argument."""
    return category != "other" and kind(category) == "other"


class Points:
    """Values of counters, in file order."""

    def __init__(self) -> None:
        self.clock = array("i")
        self.at = array("q")
        self.track = array("i")
        self.value = array("d")


class TrackEvents:
    """Decodes TrackEvents into `events` and `counters`."""

    def __init__(self, clocks: Clocks, tracks: Tracks, losses: Counter[str]) -> None:
        self.events = Events()
        self.counters = Points()
        self.clock_keys: list[Clock] = []
        self._clock_index: dict[Clock, int] = {}
        self._clocks = clocks
        self._tracks = tracks
        self._losses = losses

    def moment(self, packet: Any, sequence: Sequence) -> tuple[int, int] | None:
        """(clock index, reading) of a packet; None, and counted, if it has no usable time."""
        if not packet.HasField("timestamp"):
            self._losses["no-time"] += 1
            return None
        number = packet.timestamp_clock_id or sequence.clock
        clock, at = self._clocks.reading(sequence.sequence_id, number, packet.timestamp)
        return self.on(clock, at)

    def on(self, clock: Clock, at: int) -> tuple[int, int] | None:
        """(clock index, reading); None, and counted, for a reading out of range."""
        if not 0 <= at < MAX_TIME:
            self._losses["bad-time"] += 1
            return None
        return self.clock_index(clock), at

    def clock_index(self, clock: Clock) -> int:
        """The place of a clock in `clock_keys`."""
        index = self._clock_index.get(clock)
        if index is None:
            index = self._clock_index[clock] = len(self.clock_keys)
            self.clock_keys.append(clock)
        return index

    def take(self, packet: Any, sequence: Sequence) -> None:
        """Take one packet's TrackEvent."""
        event = packet.track_event
        uuid = event.track_uuid
        kind_number = event.type
        if kind_number == TYPE_END and uuid and event.ByteSize() == _BARE + (uuid.bit_length() + 6) // 7:
            moment = self.moment(packet, sequence)
            if moment is not None:
                self.events.add(*moment, END, self._tracks.track(uuid), None, None, None)
            return
        legacy: Any = event.legacy_event if event.HasField("legacy_event") else None
        moment = self._moment(packet, event, sequence)
        if moment is None:
            return
        name, category = self._names(event, legacy, sequence)
        explicit = bool(uuid) or event.HasField("track_uuid")
        if not explicit:
            uuid = sequence.track or 0
        if event.extra_counter_values or event.extra_double_counter_values:
            self._extra_counters(event, moment, sequence)
        if kind_number == TYPE_COUNTER:
            self._counter(event, uuid if explicit or sequence.track is not None else None, moment, sequence)
            return
        key: Key = uuid or self._legacy_thread(legacy, not explicit or not kind_number, sequence)
        letter = chr(legacy.phase) if legacy is not None and 0 < legacy.phase < 128 else ""
        phase = STATE if kind_number == TYPE_STATE else _PHASES.get(kind_number)
        if letter:
            phase = _LEGACY_PHASES.get(letter)
            scoped = self._legacy_track(letter, legacy, key, name, category)
            if scoped is None:
                return
            key = scoped
        if phase is None:
            self._losses["unknown-phase"] += 1
            return
        row = self.events.add(moment[0], moment[1], phase, self._tracks.track(key), name, category, None)
        if phase == COMPLETE:
            self._losses["bad-time"] += legacy.duration_us < 0
            self.events.duration[row] = min(max(legacy.duration_us, 0) * 1000, MAX_TIME)
        self._attach(event, row, phase, category, sequence)
        if letter and letter in "stf" and legacy.HasField("unscoped_id"):
            flow = ("v1", legacy.unscoped_id, category, name)
            late = letter == "f" and not legacy.bind_to_enclosing
            self.events.legacy_flows[row] = [(NEXT if late else IN if letter == "f" else letter, flow)]
        elif legacy is not None and legacy.HasField("bind_id"):
            direction = _DIRECTIONS.get(legacy.flow_direction)
            if direction is not None:
                self.events.legacy_flows[row] = [(direction, ("v2", legacy.bind_id))]

    def _moment(self, packet: Any, event: Any, sequence: Sequence) -> tuple[int, int] | None:
        which = event.WhichOneof("timestamp")
        if which is None:
            return self.moment(packet, sequence)
        if which == "timestamp_delta_us":
            if sequence.reference_us is None:
                self._losses["no-time"] += 1
                return None
            sequence.reference_us += event.timestamp_delta_us
            return self.on(MONOTONIC, sequence.reference_us * 1000)
        return self.on(MONOTONIC, event.timestamp_absolute_us * 1000)

    def _names(self, event: Any, legacy: Any, sequence: Sequence) -> tuple[str | None, str | None]:
        iid = event.name_iid or (legacy.name_iid if legacy is not None else 0)
        if iid:
            name = sequence.names.get(iid)
            if name is None:
                self._losses["unknown-names"] += 1
                name = f"unknown({iid})"
        else:
            name = text(event.name) if event.HasField("name") else None
        iids, plain = event.category_iids, event.categories
        if len(iids) == 1 and not plain:
            return name, sequence.categories.get(iids[0]) or f"unknown({iids[0]})"
        if not iids and not plain:
            return name, None
        known = [sequence.categories.get(each) or f"unknown({each})" for each in iids]
        return name, ",".join([*known, *map(text, plain)])

    def _legacy_thread(self, legacy: Any, implied: bool, sequence: Sequence) -> Key:
        """The default track, or the thread that a legacy descriptor or override names."""
        thread = sequence.thread
        found = implied and thread is not None
        pid, tid = thread if thread is not None else (None, None)
        if legacy is not None:
            if legacy.HasField("pid_override"):
                found, pid, tid = True, legacy.pid_override, None
            if legacy.HasField("tid_override") and (thread is not None or found):
                found, tid = True, legacy.tid_override
        return ("thread", pid, tid) if found else 0

    def _legacy_track(self, letter: str, legacy: Any, key: Key, name: str | None, category: str | None) -> Key | None:
        """Where a legacy event goes: async ids and scopes have tracks of their own. None if it lacks its id."""
        if letter in _ASYNC:
            which = legacy.WhichOneof("id")
            if which is None:
                self._losses["async-without-id"] += 1
                return None
            scope = name if letter in _SCOPED_BY_NAME else category
            if legacy.id_scope:
                scope = f"{category or ''}:{text(legacy.id_scope)}"
            pid = self._tracks.process_of(key) if which == "local_id" else None
            return ("async", pid, (which == "local_id", getattr(legacy, which)), scope)
        if letter in "iI":
            if legacy.instant_event_scope == GLOBAL_SCOPE:
                return 0
            if legacy.instant_event_scope == PROCESS_SCOPE:
                return ("process", self._tracks.process_of(key))
        return key

    def _attach(self, event: Any, row: int, phase: int, category: str | None, sequence: Sequence) -> None:
        """Flows, arguments and source place of an event."""
        events = self.events
        for each in event.flow_ids or event.flow_ids_old:
            events.flow(row, each, ends=False)
        for each in event.terminating_flow_ids or event.terminating_flow_ids_old:
            events.flow(row, each, ends=True)
        values = arguments(event.debug_annotations, sequence)
        if values:
            own = values.pop(COLUMNS, None)
            found = own if isinstance(own, dict) else {}
            for column in ("correlation", "bytes"):
                if column in values:
                    found.setdefault(column, values[column])
            events.take_columns(row, found)
        if category is not None and phase != END and unnamed(category):
            values.setdefault("category", category)
        if values:
            events.args[row] = events.texts.add(encoded(values))
        if event.HasField("source_location"):
            place = event.source_location
            events.place.add(row, events.places.code((text(place.file_name), place.line_number)))
        elif event.source_location_iid and (known := sequence.places.get(event.source_location_iid)) is not None:
            events.place.add(row, events.places.code(known))

    def _counter(self, event: Any, uuid: int | None, moment: tuple[int, int], sequence: Sequence) -> None:
        which = event.WhichOneof("counter_value_field")
        if uuid is None or which is None:
            self._losses["bad-counter"] += 1
            return
        self._point(uuid, getattr(event, which), moment, sequence)

    def _extra_counters(self, event: Any, moment: tuple[int, int], sequence: Sequence) -> None:
        whole = event.extra_counter_track_uuids or sequence.extra_counters
        double = event.extra_double_counter_track_uuids or sequence.extra_double_counters
        for values, uuids in ((event.extra_counter_values, whole), (event.extra_double_counter_values, double)):
            self._losses["bad-counter"] += max(len(values) - len(uuids), 0)
            for value, uuid in zip(values, uuids, strict=False):
                self._point(uuid, value, moment, sequence)

    def _point(self, uuid: int, value: float, moment: tuple[int, int], sequence: Sequence) -> None:
        described = self._tracks.described.get(uuid)
        if described is None or described.kind != "counter" or value - value != 0:
            self._losses["bad-counter"] += 1
            return
        scaled = float(value) * described.scale
        if described.incremental:
            scaled = sequence.counter_sums[uuid] = sequence.counter_sums.get(uuid, 0.0) + scaled
        points = self.counters
        points.clock.append(moment[0])
        points.at.append(moment[1])
        points.track.append(self._tracks.track(uuid))
        points.value.append(scaled)
