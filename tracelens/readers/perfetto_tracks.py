"""Perfetto's track descriptors → the `tracks` table. Descriptors are global and may come after their events.

A track is its uuid, or a tuple for places without one: ("thread", pid, tid) of legacy events, ("cpu", n),
("gpu", device, queue), ("async", …). uuid 0 is the default track; a uuid that nobody describes is a track without name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import polars as pl

from tracelens import schema
from tracelens.readers.perfetto_sequence import text
from tracelens.readers.stacks import UNKNOWN_PROCESS

Key: TypeAlias = int | tuple[Any, ...]
MAX_PARENTS = 64
HINT = "tracelens:"
"""Our own writer puts what Perfetto has no field for behind this mark into a track's description."""
_UNITS = {1: "ns", 2: "count", 3: "bytes"}
_BUILTIN = {1: ("thread_time", "ns"), 2: ("thread_instruction_count", "count")}


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Hint(msgspec.Struct, omit_defaults=True):
    """Columns of `tracks` for which Perfetto has no field."""

    kind: Literal["thread", "stream", "counter", "process", "async"] | None = None
    name: str | None = None
    unit: str | None = None
    process_id: Int64 | None = None
    thread_id: Int64 | None = None
    device: Annotated[int, msgspec.Meta(ge=-(2**15), lt=2**15)] | None = None
    stream: Int64 | None = None
    rank: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    host: str | None = None
    process: str | None = None
    thread: str | None = None
    role: str | None = None


@dataclass
class Described:
    """One descriptor."""

    kind: Literal["thread", "counter", "process", "async"]
    parent: int
    name: str | None
    pid: int | None = None
    tid: int | None = None
    unit: str | None = None
    scale: float = 1.0
    incremental: bool = False
    hint: Hint | None = None

    def place(self) -> tuple[Any, ...]:
        """What a second descriptor of the same uuid must agree on."""
        return self.kind, self.parent, self.pid, self.tid


class Tracks:
    """All descriptors, names of processes and threads, and the tracks that rows refer to."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.incomplete = 0
        self.described: dict[int, Described] = {}
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self._ids: dict[Key, int] = {}
        self._keys: list[Key] = []

    def track(self, key: Key) -> int:
        """The track_id of a place, made when first asked for."""
        track_id = self._ids.get(key)
        if track_id is None:
            track_id = self._ids[key] = len(self._keys)
            self._keys.append(key)
        return track_id

    def describe(self, packet: Any) -> None:
        """Take one TrackDescriptor; a contradicting one is ignored, a missing name is filled."""
        which = packet.WhichOneof("static_or_dynamic_name")
        made = Described("async", packet.parent_uuid, text(getattr(packet, which)) if which else None)
        made.hint = _hint(text(getattr(packet, "description", "")))
        if packet.HasField("thread"):
            thread = packet.thread
            if not (thread.HasField("pid") and thread.HasField("tid")):
                self.incomplete += 1
                return
            made.kind, made.pid, made.tid = "thread", thread.pid, thread.tid
            if thread.thread_name:
                self.threads[thread.pid, thread.tid] = text(thread.thread_name)
        elif packet.HasField("process"):
            if not packet.process.HasField("pid"):
                self.incomplete += 1
                return
            made.kind, made.pid = "process", packet.process.pid
            self.name_process(packet.process)
        elif packet.HasField("counter"):
            counter = packet.counter
            name, unit = _BUILTIN.get(counter.type, (None, None))
            made.kind, made.name = "counter", made.name or name
            made.unit = text(counter.unit_name) or _UNITS.get(counter.unit, unit)
            made.scale = float(counter.unit_multiplier or 1)
            made.incremental = counter.is_incremental
        old = self.described.get(packet.uuid)
        if old is None:
            self.described[packet.uuid] = made
        elif old.place() != made.place():
            self.conflicts += 1
        elif old.name is None:
            old.name = made.name

    def name_process(self, packet: Any) -> None:
        """Take a process's name."""
        if packet.process_name or packet.cmdline:
            self.processes[packet.pid] = text(packet.process_name or packet.cmdline[0])

    def process_of(self, key: Key) -> int | None:
        """The process of a place, through its parents."""
        if isinstance(key, tuple):
            return key[1] if key[0] in ("thread", "process") else None
        return self._ancestor(key)[0]

    def thread_track(self, pid: int | None, tid: int | None) -> int:
        """The track_id of a thread that a sample names."""
        key: Key = ("thread", pid, tid)
        if key not in self._ids:
            described = (u for u, d in self.described.items() if d.kind == "thread" and (d.pid, d.tid) == (pid, tid))
            uuid = next(described, None)
            if uuid is not None:
                self._ids[key] = self.track(uuid)
        return self.track(key)

    def _ancestor(self, uuid: int) -> tuple[int | None, int | None]:
        """(pid, tid) of the nearest process and thread above a track."""
        pid = tid = None
        for _ in range(MAX_PARENTS):
            found = self.described.get(uuid)
            if found is None:
                break
            pid = found.pid if pid is None else pid
            tid = found.tid if tid is None else tid
            if pid is not None and found.kind in ("thread", "process"):
                break
            uuid = found.parent
        return pid, tid

    def table(self) -> pl.DataFrame:
        """The `tracks` table: every place with rows, and every described one except processes."""
        for uuid, found in self.described.items():
            if found.kind != "process":
                self.track(uuid)
        rows = [self._row(key) for key in self._keys]
        columns = {name: [getattr(row, name) for row in rows] for name in Hint.__struct_fields__}
        return schema.TRACKS.build({"track_id": range(len(rows)), **columns})

    def _row(self, key: Key) -> Hint:
        row = self._place(key)
        if row.process_id is None:
            row.process_id = UNKNOWN_PROCESS
        found = self.described.get(key) if isinstance(key, int) else None
        if found is not None and found.hint is not None:
            return row
        row.process = self.processes.get(row.process_id)
        if row.thread is None and row.thread_id is not None and row.kind == "thread":
            row.thread = self.threads.get((row.process_id, row.thread_id))
        return row

    def _place(self, key: Key) -> Hint:
        if isinstance(key, int):
            found = self.described.get(key)
            pid, tid = self._ancestor(key)
            if found is None:
                return Hint(kind="async", name=None if key else "Default Track")
            if found.hint is not None:
                return _filled(found, found.hint, pid, tid)
            tid = tid if found.kind in ("thread", "async") else None
            return Hint(kind=found.kind, name=found.name, process_id=pid, thread_id=tid, unit=found.unit)
        match key:
            case ("thread", pid, tid):
                return Hint(kind="thread", process_id=pid, thread_id=tid)
            case ("process", pid):
                return Hint(kind="process", process_id=pid)
            case ("cpu", number):
                return Hint(kind="async", name=f"CPU {number}")
            case ("gpu", device, queue, name, pid):
                return Hint(kind="stream", name=name, process_id=pid, device=device, stream=queue)
            case ("async", pid, _, scope):
                return Hint(kind="async", name=scope, process_id=pid)
        return Hint(kind="async")


def _hint(description: str) -> Hint | None:
    if not description.startswith(HINT):
        return None
    try:
        return msgspec.json.decode(description[len(HINT) :], type=Hint)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _filled(found: Described, hint: Hint, pid: int | None, tid: int | None) -> Hint:
    """The hint, with what Perfetto's own fields say where it is silent."""
    hint = msgspec.structs.replace(hint)
    hint.kind = hint.kind or found.kind
    if hint.unit is None:
        hint.unit = found.unit
    if hint.process_id is None:
        hint.process_id = pid
    if hint.thread_id is None and found.kind == "thread":
        hint.thread_id = tid
    return hint
