"""py-spy recordings with structure: `record -f chrometrace` and `dump --json`; the text formats are in `pyspy_text`.

**chrometrace.** py-spy writes a begin or end only when a thread's stack *changes*, so each change is one moment at
which the thread was looked at. What the file does not say:

- how often an unchanged stack was seen: the samples here are the changes, a lower bound, and their weight is 0;
- when a thread stopped running (or, with --gil, gave up the GIL): a frame stays open until that thread is sampled
  again. The length of such a slice is neither running time nor GIL time, so no slices are made;
- whether it was recorded with --gil: `samples.gil` is null unless the capture's manifest or --pyspy-gil says so;
- its clock: times count from py-spy's own start, and become CLOCK_REALTIME only through the source's alignment.

The OS thread id stands in a root pseudo frame (`record -t`); without it the thread id is pthread's.

**dump --json.** One look at each thread, with the owner of the GIL but without a time. If threads are active and
nobody owns the GIL, py-spy could not find the owner (benfred/py-spy#692): unknown, not free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import pyspy_text
from tracelens.readers.stacks import Frame, Samples, Thread, split_pseudo_frames, text
from tracelens.trace import Facts, Trace

MAX_FAILURES = 1_000
"""Places in a damaged file at which reading is tried again before the rest is given up."""

Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Micros = Annotated[int, msgspec.Meta(ge=0, le=2**52)] | Annotated[float, msgspec.Meta(ge=0, le=2**52)]
_T = TypeVar("_T")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ELEMENT = re.compile(r'\}\s*,\s*(\{\s*")')


class Args(msgspec.Struct):
    """Where a frame stands."""

    filename: str | None = None
    line: int | None = None


class Event(msgspec.Struct):
    """One begin or end of a frame."""

    name: str
    ph: str
    ts: Micros
    pid: Id
    tid: Id
    cat: str = ""
    args: Args = msgspec.field(default_factory=Args)


class DumpFrame(msgspec.Struct):
    """One frame of a dump, innermost first."""

    name: str
    filename: str | None = None
    line: int | None = None


class DumpThread(msgspec.Struct):
    """One thread of a dump."""

    pid: Id
    thread_id: Id
    active: bool
    owns_gil: bool
    frames: list[DumpFrame]
    thread_name: str | None = None
    os_thread_id: Id | None = None


def sniff_chrometrace(head: bytes, name: str) -> int:
    """Certain if a JSON list of events says that py-spy wrote it."""
    return 100 if head.lstrip()[:1] == b"[" and re.search(rb'"cat"\s*:\s*"py-spy"', head) else 0


def sniff_dump(head: bytes, name: str) -> int:
    """Certain if a JSON list of objects has a dump's own keys."""
    return 100 if head.lstrip()[:1] == b"[" and b'"owns_gil"' in head and b'"frames"' in head else 0


def read_chrometrace(source: Source, health: Health) -> Trace:
    """Each change of a thread's stack as one sample of weight 0. Raises TracelensError if nothing can be read."""
    events = elements(source, health, Event)
    samples = Samples(source, health)
    threads: dict[tuple[int, int], _Open] = {}
    foreign = 0
    for event in events:
        if event.cat != "py-spy" or event.ph not in ("B", "E"):
            foreign += 1
            continue
        thread = threads.get((event.pid, event.tid))
        if thread is None:
            thread = threads[event.pid, event.tid] = _Open(event.pid, event.tid, samples)
        thread.change(event)
    for thread in threads.values():
        thread.look()
    _account_chrometrace(source, health, threads.values(), foreign, samples)
    alignment = source.alignment
    return samples.trace(
        origin_unix_ns=alignment.offset_ns if alignment else None,
        halfwidth_ns=alignment.halfwidth_ns if alignment else 0,
        facts=Facts(source_events=len(events)),
    )


class _Open:
    """One thread's open frames while its events are read in file order."""

    def __init__(self, process_id: int, thread_id: int, samples: Samples) -> None:
        self.unmatched = 0
        self.named = False
        self._fallback = Thread(process_id, thread_id)
        self._samples = samples
        self._frames: list[Frame] = []
        self._at_ns: int | None = None

    def change(self, event: Event) -> None:
        """Begin or end one frame; events of one moment belong to one sample."""
        at_ns = event.ts * 1000 if isinstance(event.ts, int) else round(event.ts * 1000)
        if at_ns != self._at_ns:
            self.look()
            self._at_ns = at_ns
        if event.ph == "B":
            self._frames.append(Frame(event.name, event.args.filename or None, event.args.line or None))
        elif self._frames and self._frames[-1].function == event.name:
            self._frames.pop()
        else:
            self.unmatched += 1

    def look(self) -> None:
        """Take the sample of the moment that is over; an empty stack is the file's end, not a look."""
        if self._at_ns is None or not self._frames:
            return
        said, frames = split_pseudo_frames(self._frames)
        self.named = self.named or said.thread_id is not None
        if frames:
            owner = self._fallback._replace(**{k: v for k, v in said._asdict().items() if v is not None})
            self._samples.add(owner, frames, at_ns=self._at_ns, gil=self._samples.gil)


def _account_chrometrace(source: Source, health: Health, threads: Any, foreign: int, samples: Samples) -> None:
    where = source.name
    if foreign:
        health.add(
            "pyspy.foreign-events", "warning", "events that are not py-spy's were left out", count=foreign, where=where
        )
    if unmatched := sum(thread.unmatched for thread in threads):
        health.add(
            "pyspy.unmatched-ends",
            "warning",
            "frames end that never began: stacks around them may be wrong",
            need="samples",
            count=unmatched,
            where=where,
        )
    if any(not thread.named for thread in threads):
        health.add(
            "pyspy.no-os-threads",
            "info",
            "recorded without `-t`: the file has pthread ids, which other sources do not use",
            where=where,
        )
    if samples.count:
        health.add(
            "pyspy.changes-only",
            "info",
            "this format keeps a sample only where the stack changed; shares of time need `-f raw`",
            count=samples.count,
            where=where,
        )
    pyspy_text.note_recording(samples, source, health)


def read_dump(source: Source, health: Health) -> Trace:
    """One sample a thread, without a time. Raises TracelensError if nothing can be read."""
    threads = elements(source, health, DumpThread)
    samples = Samples(source, health)
    owned = {thread.pid for thread in threads if thread.owns_gil}
    for thread in threads:
        frames = [Frame(f.name, f.filename or None, f.line or None) for f in reversed(thread.frames)]
        if not frames:
            continue
        thread_id = thread.thread_id if thread.os_thread_id is None else thread.os_thread_id
        samples.add(
            Thread(thread.pid, thread_id, thread.thread_name),
            frames,
            on_cpu=thread.active,
            gil=thread.owns_gil if thread.pid in owned else None,
        )
    pyspy_text.note_owners({t.pid for t in threads if t.active} - owned, source.name, health)
    return samples.trace(facts=Facts())


def elements(source: Source, health: Health, kind: type[_T]) -> list[_T]:
    """The elements of a JSON list; of a damaged one those that are whole, the rest counted.

    Raises TracelensError if none is.
    """
    data = source.open(health).read()
    try:
        return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type]
    except _UNREADABLE:
        pass
    found: list[_T] = []
    bad = lost = 0
    for element, size in _salvage(text(data, source.name, health)):
        try:
            found.append(msgspec.convert(element, kind))
        except msgspec.ValidationError:
            bad += 1
            lost += size
    if not found:
        raise TracelensError(f"{source.name}: not one whole element in this py-spy file", "record it again")
    health.add(
        "pyspy.damaged",
        "warning",
        f"the file is damaged or cut: {len(found):,} elements were read, at least {bad:,} could not be",
        need="samples",
        count=bad,
        lost_bytes=lost,
        where=source.name,
    )
    return found


def _salvage(content: str) -> Iterator[tuple[Any, int]]:
    """(element, characters) of a damaged JSON list; None for each stretch that is not JSON."""
    decoder = json.JSONDecoder()
    at = content.find("{")
    failures = 0
    while 0 <= at < len(content):
        try:
            element, end = decoder.raw_decode(content, at)
        except (ValueError, RecursionError):
            failures += 1
            found = _ELEMENT.search(content, at + 1) if failures <= MAX_FAILURES else None
            end = found.start(1) if found else len(content)
            yield None, end - at
            at = end
            continue
        yield element, end - at
        at = content.find("{", end)


READERS = (
    Reader("pyspy", "py-spy chrometrace", sniff_chrometrace, read_chrometrace),
    Reader("pyspy-dump", "py-spy dump --json", sniff_dump, read_dump),
    *pyspy_text.READERS,
)
