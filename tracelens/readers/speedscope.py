"""speedscope files: sampled profiles → `samples`, evented profiles → `slices` of kind "other".

What they do not know: `startValue` is 0 in nearly all of them (always in py-spy's), and gaps are removed, so profiles
of one file have no common start and their samples no time. They give totals; "who had the GIL while that thread
waited" cannot be asked of them. Samples get times only if every profile has a start of its own.

Evented profiles keep their own axis, because a slice needs one; if several start at 0, health forbids comparing them.
A unit that is no time (none, bytes) gives samples of unknown weight, and slices on which one unit is shown as 1 ns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import polars as pl

from tracelens import schema
from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.pyspy_text import note_recording
from tracelens.readers.stacks import MAX_DEPTH, Frame, Samples, Thread, small, split_pseudo_frames
from tracelens.trace import Facts, Trace

NANOSECONDS = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 1_000_000, "seconds": 1_000_000_000}
MAX_NS = 2**61
_SCHEMA = b"www.speedscope.app/file-format-schema.json"
_THREAD = re.compile(r'(?:Process (\d+) )?Thread (0x[0-9A-Fa-f]+|\d+)(?: "(.*)")?', re.DOTALL)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Number = int | float
Index = Annotated[int, msgspec.Meta(ge=-1, le=2**32)]


class FileFrame(msgspec.Struct):
    """One entry of shared.frames."""

    name: str
    file: str | None = None
    line: Number | None = None


class Shared(msgspec.Struct):
    """What all profiles use."""

    frames: list[FileFrame]


class Sampled(msgspec.Struct, tag_field="type", tag="sampled"):
    """Stacks with weights; stacks are outermost first."""

    name: str
    unit: str
    samples: list[list[Index]]
    weights: list[Number]
    startValue: Number = 0  # noqa: N815


class Change(msgspec.Struct):
    """A frame opens ("O") or closes ("C")."""

    type: str
    frame: Index
    at: Number


class Evented(msgspec.Struct, tag_field="type", tag="evented"):
    """Frames that open and close."""

    name: str
    unit: str
    events: list[Change]
    startValue: Number = 0  # noqa: N815
    endValue: Number = 0  # noqa: N815


class File(msgspec.Struct):
    """A whole file; profiles are decoded one by one."""

    profiles: list[msgspec.Raw]
    shared: Shared
    exporter: str | None = None


@dataclass
class _Slices:
    """Rows of slices as columns, and what was wrong with the events."""

    track_id: list[int] = field(default_factory=list)
    parent_id: list[int | None] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    frame: list[Frame] = field(default_factory=list)
    bad: int = 0
    left_open: int = 0

    def table(self) -> pl.DataFrame:
        height = len(self.track_id)
        return schema.SLICES.build(
            {
                "slice_id": range(height),
                "track_id": self.track_id,
                "parent_id": self.parent_id,
                "depth": self.depth,
                "start_ns": self.start_ns,
                "dur_ns": [end - start for start, end in zip(self.start_ns, self.end_ns, strict=True)],
                "kind": ["other"] * height,
                "name": [frame.function for frame in self.frame],
                "file": [frame.file for frame in self.frame],
                "line": [frame.line for frame in self.frame],
            }
        )


def sniff(head: bytes, name: str) -> int:
    """Certain by its $schema; likely by its three keys."""
    if head.lstrip()[:1] != b"{":
        return 0
    if _SCHEMA in head:
        return 100
    keys = (b'"profiles"', b'"startValue"', b'"endValue"')
    return 90 if all(key in head for key in keys) and (b'"samples"' in head or b'"events"' in head) else 0


def read(source: Source, health: Health) -> Trace:
    """Read one file. Raises TracelensError if it is not whole JSON: its frames usually stand at its end."""
    try:
        file = msgspec.json.decode(source.open(health).read(), type=File)
    except _UNREADABLE as error:
        raise TracelensError(
            f"{source.name}: not a whole speedscope file ({error})", "was the recorder killed? record again"
        ) from error
    profiles = _profiles(source.name, file, health)
    frames = [Frame(f.name, f.file or None, _line(f.line)) for f in file.shared.frames]
    samples = Samples(source, health)
    slices = _Slices()
    timed = not (file.exporter or "").startswith("py-spy") and all(p.startValue > 0 for p in profiles)
    bad = empty = 0
    for profile in profiles:
        if isinstance(profile, Evented):
            _events(profile, frames, samples, slices)
        else:
            bad_here, empty_here = _samples(profile, frames, samples, timed)
            bad, empty = bad + bad_here, empty + empty_here
    _account(source.name, profiles, slices, bad, empty, health)
    if (file.exporter or "").startswith("py-spy"):
        note_recording(samples, source, health)
    return samples.trace(facts=Facts(), slices=slices.table())


def _profiles(name: str, file: File, health: Health) -> list[Sampled | Evented]:
    profiles: list[Sampled | Evented] = []
    why = ""
    for raw in file.profiles:
        try:
            profiles.append(msgspec.json.decode(raw, type=Sampled | Evented))
        except _UNREADABLE as error:
            why = str(error)
    if not profiles and why:
        raise TracelensError(f"{name}: no profile in this speedscope file can be read ({why})", "record it again")
    if bad := len(file.profiles) - len(profiles):
        health.add(
            "speedscope.bad-profiles",
            "warning",
            f"{bad} of {len(file.profiles)} profiles are neither sampled nor evented, or damaged ({why})",
            need="samples",
            count=bad,
            where=name,
        )
    return profiles


def _line(line: Number | None) -> int | None:
    return int(line) if line is not None and 0 < line < 2**31 else None


def _owner(name: str) -> Thread:
    """Ids as py-spy writes them into a profile's name; any other name is the thread's."""
    said = _THREAD.fullmatch(name)
    if said is None:
        return Thread(thread=name or None)
    return Thread(small(int(said[1])) if said[1] else None, small(int(said[2], 0)), said[3])


def _ns(value: Number, unit: str) -> int | None:
    """The value in ns; None if it is out of range."""
    scale = NANOSECONDS.get(unit, 1)
    return round(value * scale) if abs(value) <= MAX_NS // scale else None


def _samples(profile: Sampled, frames: list[Frame], samples: Samples, timed: bool) -> tuple[int, int]:
    """Add one profile; returns (damaged samples, samples of an empty stack)."""
    named = _owner(profile.name)
    is_time = profile.unit in NANOSECONDS
    now = _ns(profile.startValue, profile.unit)
    bad = abs(len(profile.samples) - len(profile.weights))
    empty = 0
    for stack, weight in zip(profile.samples, profile.weights, strict=False):
        length = _ns(weight, profile.unit)
        known = [frames[index] for index in stack if 0 <= index < len(frames)]
        at_ns = now if timed and is_time else None
        now = None if now is None or length is None or abs(now + length) > MAX_NS else now + length
        if length is None or length < 0 or len(known) < len(stack):
            bad += 1
            continue
        said, real = split_pseudo_frames(known)
        if not real:
            empty += 1
            continue
        owner = named._replace(**{key: value for key, value in said._asdict().items() if value is not None})
        samples.add(owner, real, at_ns=at_ns, weight_ns=length if is_time else 0, gil=samples.gil)
    return bad, empty


def _events(profile: Evented, frames: list[Frame], samples: Samples, slices: _Slices) -> None:
    """Add one profile's slices; an event out of order or of an unknown frame is left out and counted."""
    track_id = samples.track(_owner(profile.name))
    open_: list[tuple[int, int]] = []
    now = _ns(profile.startValue, profile.unit) or 0
    for event in profile.events:
        at = _ns(event.at, profile.unit)
        if at is None or at < now or not 0 <= event.frame < len(frames):
            slices.bad += 1
        elif event.type == "O" and len(open_) <= MAX_DEPTH:
            now = at
            open_.append((len(slices.track_id), event.frame))
            slices.track_id.append(track_id)
            slices.parent_id.append(open_[-2][0] if len(open_) > 1 else None)
            slices.depth.append(len(open_) - 1)
            slices.start_ns.append(at)
            slices.end_ns.append(at)
            slices.frame.append(frames[event.frame])
        elif event.type == "C" and open_ and open_[-1][1] == event.frame:
            now = at
            slices.end_ns[open_.pop()[0]] = at
        else:
            slices.bad += 1
    end = max(now, _ns(profile.endValue, profile.unit) or 0)
    slices.left_open += len(open_)
    for index, _ in open_:
        slices.end_ns[index] = end


def _account(
    name: str, profiles: list[Sampled | Evented], slices: _Slices, bad: int, empty: int, health: Health
) -> None:
    def note(code: str, severity: Any, says: str, need: str, count: int) -> None:
        if count:
            health.add(f"speedscope.{code}", severity, says, need=need, count=count, where=name)

    evented = [profile for profile in profiles if isinstance(profile, Evented)]
    units = {profile.unit for profile in profiles} - set(NANOSECONDS)
    note("bad-samples", "warning", "samples of unknown frames or without a usable weight were left out", "samples", bad)
    note("empty-stacks", "info", "samples of a thread without frames were left out", "samples", empty)
    note("bad-events", "warning", "frames closed that were not open, or went back in time", "slices:other", slices.bad)
    note("left-open", "warning", "frames never closed; they end with their profile", "slices:other", slices.left_open)
    if units and evented:
        says = f"the unit {min(units)!r} is no time: one unit is shown as 1 ns, only ratios mean something"
        note("no-time-unit", "error", says, "slices:other", len(units))
    elif units:
        note(
            "no-time-unit", "info", f"the unit {min(units)!r} is no time: samples have no weight", "samples", len(units)
        )
    if len(evented) > 1 and not all(profile.startValue > 0 for profile in evented):
        says = "the profiles have no common start: times on different tracks must not be compared"
        note("no-common-start", "error", says, "slices:other", len(evented))
    if any(isinstance(profile, Sampled) and profile.startValue <= 0 for profile in profiles):
        says = "samples have no time in this format, only totals; `py-spy record -f chrometrace` keeps times"
        note("totals-only", "info", says, "samples.time", sum(isinstance(p, Sampled) for p in profiles))


READER = Reader("speedscope", "speedscope profiles", sniff, read)
