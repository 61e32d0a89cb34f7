"""Elements → columns: rows of timed events with exact ns, interned places, and the few arguments that link rows.

Works batch by batch, so that only columns stay in memory. What this file does not know: tracks, nesting, clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import polars as pl

from tracelens.readers.json_event import DAMAGE, Event, Scalar
from tracelens.readers.json_kinds import KIND_CODE, WITH_LINK, kind_of
from tracelens.readers.json_times import NEVER, nanoseconds

Place: TypeAlias = tuple[Scalar, Scalar]
TIMED = "XiIRBEbensSTpFtfC"
"""Phases that become rows. "M" is metadata; others (object life cycles, memory dumps) are counted only."""
_KEPT = frozenset(TIMED)
_FLOW_OR_ASYNC = frozenset("stfbenSTpF")
_INT64 = 1 << 63


class _LinkArgs(msgspec.Struct, gc=False):
    correlation: Scalar = None
    external_id: Scalar = msgspec.field(default=None, name="External id")
    device: Scalar = None
    stream: Scalar = None
    bytes_: Scalar = msgspec.field(default=None, name="bytes")
    registers: Scalar = msgspec.field(default=None, name="registers per thread")
    shared: Scalar = msgspec.field(default=None, name="shared memory")
    graph_id: Scalar = msgspec.field(default=None, name="graph id")
    graph_node: Scalar = msgspec.field(default=None, name="graph node id")
    grid: msgspec.Raw = msgspec.Raw(b"")
    block: msgspec.Raw = msgspec.Raw(b"")


_LINK = msgspec.json.Decoder(_LinkArgs)
_THREE = msgspec.json.Decoder(list[int])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_NUMBERS = (
    "correlation", "external_id", "device", "stream", "bytes", "registers", "shared", "graph_id", "graph_node",
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
)  # fmt: skip
_IDS = ("correlation", "device", "stream")
ROWS = {
    "phase": pl.Categorical(),
    "kind": pl.UInt8(),
    "category": pl.Categorical(),
    "name": pl.Categorical(),
    "place": pl.UInt32(),
    "ts": pl.Int64(),
    "dur": pl.Int64(),
    "id": pl.String(),
    "mark": pl.String(),
    "args": pl.String(),
}
LINKS = {"row": pl.UInt32(), **{name: pl.Int64() for name in _NUMBERS}}


@dataclass
class Columns:
    """What the elements of one file say, as columns.

    `rows`: one per timed event, null `ts`/`dur` where the source gives no usable time. `mark` is a flow's "bp" or an
    instant's scope. `links`: arguments of GPU and runtime rows, by row number. `places`: (pid, tid) by code, integers
    where the source's text is one. `metadata`: (place, metadata name) → value. `skipped`: events of unknown phases.
    """

    places: dict[Place, int] = field(default_factory=dict)
    metadata: dict[tuple[int, str], str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    string_ids: int = 0
    damaged_args: int = 0
    _rows: list[pl.DataFrame] = field(default_factory=list)
    _links: list[pl.DataFrame] = field(default_factory=list)
    _height: int = 0
    _kinds: dict[Scalar, tuple[str, int, bool]] = field(default_factory=dict)
    _raw_places: dict[Place, int] = field(default_factory=dict)

    def extend(self, batches: Iterable[list[Event]]) -> None:
        """Take all batches."""
        for batch in batches:
            self._add(batch)

    @property
    def rows(self) -> pl.DataFrame:
        """All timed events in file order."""
        return pl.concat(self._rows) if self._rows else pl.DataFrame(schema=ROWS)

    @property
    def links(self) -> pl.DataFrame:
        """Link arguments, by row number."""
        return pl.concat(self._links) if self._links else pl.DataFrame(schema=LINKS)

    @property
    def categories(self) -> set[str]:
        """Every category that occurs."""
        return {text for text, _, _ in self._kinds.values()}

    def _add(self, batch: list[Event]) -> None:
        events = [event for event in batch if event.ph in _KEPT]
        if len(events) < len(batch):
            for event in batch:
                if event.ph == "M":
                    self._describe(event)
                elif event.ph not in _KEPT:
                    self.skipped[str(event.ph)] += 1
        if not events:
            return
        kinds = self._kinds
        described = [kinds.get(event.cat) or self._category(event.cat) for event in events]
        raw_places = self._raw_places
        places = [
            raw_places[place] if (place := (event.pid, event.tid)) in raw_places else self._place(place)
            for event in events
        ]
        texts = [self._text(event.args) for event in events]
        frame = pl.DataFrame(
            [
                pl.Series("phase", [event.ph for event in events], pl.String).cast(ROWS["phase"]),
                pl.Series("kind", [item[1] for item in described], pl.UInt8),
                pl.Series("category", [item[0] for item in described], pl.String).cast(ROWS["category"]),
                pl.Series("name", [_name(event.name) for event in events], pl.String).cast(ROWS["name"]),
                pl.Series("place", places, pl.UInt32),
                _times("ts", [event.ts for event in events]),
                _times("dur", [event.dur for event in events]),
                pl.Series(
                    "id", [_identity(event) if event.ph in _FLOW_OR_ASYNC else None for event in events], pl.String
                ),
                pl.Series("mark", [_mark(event) for event in events], pl.String),
                pl.Series("args", texts, pl.String),
            ]
        )
        linked = [index for index, item in enumerate(described) if item[2] and events[index].ph == "X"]
        if linked:
            self._links.append(self._link_frame(linked, events))
        self._rows.append(frame)
        self._height += len(events)

    def _category(self, category: Scalar) -> tuple[str, int, bool]:
        text = category if isinstance(category, str) else ""
        kind = kind_of(text)
        self._kinds[category] = found = (text, KIND_CODE[kind], kind in WITH_LINK)
        return found

    def _place(self, raw: Place) -> int:
        place = (_place_id(raw[0]), _place_id(raw[1]))
        code = self.places.setdefault(place, len(self.places))
        # Not interned where True == 1 or 1.0 == 1 would make two raw spellings one key: the value is the same place.
        self._raw_places[raw] = code
        return code

    def _text(self, raw: msgspec.Raw) -> str | None:
        data = bytes(raw)
        if len(data) <= 2 or data == b"null":
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.damaged_args += 1
            return data.decode("utf-8", "replace")

    def _describe(self, event: Event) -> None:
        try:
            args = _OBJECT.decode(event.args)
        except DAMAGE:
            return
        place = self._place((event.pid, event.tid))
        for key in ("name", "labels", "sort_index"):
            if key in args and isinstance(args[key], str | int):
                self.metadata[place, str(event.name)] = str(args[key]).strip()

    def _link_frame(self, linked: list[int], events: list[Event]) -> pl.DataFrame:
        columns: dict[str, list[int | None]] = {name: [] for name in _NUMBERS}
        for index in linked:
            try:
                args = _LINK.decode(events[index].args)
            except DAMAGE:
                args = _odd_link(events[index].args)
            values = (
                args.correlation, args.external_id, args.device, args.stream, args.bytes_, args.registers, args.shared,
                args.graph_id, args.graph_node, *_three(args.grid), *_three(args.block),
            )  # fmt: skip
            for name, value in zip(_NUMBERS, values, strict=True):
                if type(value) is not int and value is not None:
                    self.string_ids += isinstance(value, str) and name in _IDS
                    value = _integer(value)
                columns[name].append(value if value is None or -_INT64 <= value < _INT64 else None)
        rows = np.array(linked, dtype=np.uint32) + np.uint32(self._height)
        return pl.DataFrame({"row": rows, **columns}, schema=LINKS)


def _times(name: str, values: list[Scalar]) -> pl.Series:
    times = nanoseconds(values)
    return pl.Series(name, times).set(pl.Series(times == NEVER), None)


def _name(name: Scalar) -> str:
    return name if isinstance(name, str) else "" if name is None else str(name)


def _identity(event: Event) -> str:
    """What joins flow or async events: the id with its scope, and the process where the id is local to it."""
    identity = "" if event.id is None else str(event.id)
    if len(event.id2) > 2:
        try:
            both = _OBJECT.decode(event.id2)
        except DAMAGE:
            both = {}
        local = both.get("local")
        identity = f"{event.pid}/{local}" if local is not None else str(both.get("global"))
    return identity if event.scope is None else f"{event.scope}/{identity}"


def _mark(event: Event) -> str | None:
    if event.ph == "f" or event.ph == "t":
        return "e" if event.bp == "e" else None
    return event.s if event.ph in ("i", "I") and isinstance(event.s, str) else None


def _place_id(value: Scalar) -> Scalar:
    """A pid or tid: an integer wherever its text is one, so that "7" and 7 are one place; else text."""
    if value is None or isinstance(value, bool):
        return None
    number = _integer(value)
    return number if number is not None and -_INT64 <= number < _INT64 else str(value)


def _integer(value: Scalar) -> int | None:
    """The integer a source meant: 7, 7.0, "7", "0x7"; None for anything else."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if not isinstance(value, str) or len(value) > 20:
        return None
    text = value.strip()
    try:
        return int(text, 16) if text[:2].lower() == "0x" else int(text)
    except ValueError:
        return None


def _three(raw: msgspec.Raw) -> tuple[int | None, int | None, int | None]:
    if not len(raw):
        return None, None, None
    try:
        values = _THREE.decode(raw)
    except DAMAGE:
        return None, None, None
    return (values[0], values[1], values[2]) if len(values) == 3 else (None, None, None)


def _odd_link(raw: msgspec.Raw) -> _LinkArgs:
    """Link arguments of which some have an impossible type: those become None."""
    args = _LinkArgs()
    try:
        members = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except DAMAGE:
        return args
    for info in msgspec.structs.fields(_LinkArgs):
        value = members.get(info.encode_name)
        if value is None:
            continue
        if info.name in ("grid", "block"):
            setattr(args, info.name, value)
            continue
        try:
            setattr(args, info.name, msgspec.json.decode(value, type=Scalar))
        except DAMAGE:
            continue
    return args
