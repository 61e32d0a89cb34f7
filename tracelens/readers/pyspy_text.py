"""py-spy's text formats: `record -f raw` (collapsed stacks of any profiler) and `dump`; SVG flamegraphs are refused.

**raw** is one line a stack, `frame;frame;… COUNT`, outermost frame first. Counts are samples; there are no times, so
nothing in it can be laid beside a timeline. A thread name or command line may itself contain `;`: what follows
`thread (ID): ` belongs to the name up to the first part that looks like a frame, `function (file:line)`. A name with
such a part in it cannot be told from a frame.

**dump** shows each thread once: idle or active, and who has the GIL. `active` is a guess of py-spy's: a thread that
sleeps while it holds the GIL is shown idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.stacks import (
    PROCESS_FRAME,
    THREAD_FRAME,
    Frame,
    Samples,
    Thread,
    small,
    split_pseudo_frames,
    text,
)
from tracelens.trace import Facts, Trace

MAX_SAMPLES = 20_000_000
"""A day of 200 threads at 1 Hz; more than that in one file are not samples but times or bytes."""
MAX_ERRORS = 0.05
"""Failed looks gather where the thread is in certain code (98 of 100 in one native loop): above 5 % expect bias."""
_SUFFIXES = (".raw", ".txt", ".folded", ".collapsed")

_COUNTED = re.compile(r"(.*\S)[ \t]+(\d{1,18})")
_PLACED = re.compile(r"(.*) \(([^()]+?)(?::(\d+))?\)", re.DOTALL)
_COMMAND = re.compile(r'process \d+:".*?";(?=process \d+:"|thread \(|[^;]* \([^()]+\)(?:;|$))', re.DOTALL)
_PROCESS = re.compile(r"Process (\d+): (.*)")
_PYTHON = re.compile(r"Python v(\S+)")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]+|\d+) \(([a-z+ ]+)\)(?:: "(.*)")?')
_DUMPED = re.compile(r" {4}(\S.*)")


def sniff_raw(head: bytes, name: str) -> int:
    """How much the first lines look like counted stacks."""
    if not head.strip():
        return 40 if name.endswith(_SUFFIXES) else 0
    if re.match(rb"\s*(?:\{|\[\s*[\[{\"\d])", head):
        return 0
    whole, cut, _ = head.rpartition(b"\n")
    lines = [line for line in (whole if cut else head).decode(errors="replace").splitlines() if line.strip()][:100]
    counted = [found[1] for line in lines if (found := _COUNTED.fullmatch(line))]
    if not counted or len(counted) < 0.8 * len(lines):
        return 0
    if THREAD_FRAME.match(counted[0]) or PROCESS_FRAME.match(counted[0]):
        return 100
    stacked = sum(";" in stack or bool(_PLACED.fullmatch(stack)) for stack in counted)
    return 70 if stacked >= 0.5 * len(counted) else 0


def sniff_dump(head: bytes, name: str) -> int:
    """Certain if it starts as py-spy's dump does."""
    return 100 if re.match(rb"\s*Process \d+: .*\n(?:Python v.*\n)?\s*\n?Thread (?:0x|\d)", head) else 0


def sniff_svg(head: bytes, name: str) -> int:
    """Certain if the markup's first element is an svg."""
    return 100 if re.match(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!(?:DOCTYPE|--)[^>]*>\s*)*<svg\b", head) else 0


def read_raw(source: Source, health: Health) -> Trace:
    """Counted stacks, as many rows as samples, without times.

    Raises TracelensError if the counts cannot be numbers of samples.
    """
    samples = Samples(source, health)
    lines = bad = 0
    for line in text(source.open(health).read(), source.name, health).split("\n"):
        if not line.strip():
            continue
        lines += 1
        counted = _COUNTED.fullmatch(line.rstrip("\r"))
        owner, frames = split_pseudo_frames(_frames(counted[1])) if counted else (Thread(), ())
        if counted is None or not frames:
            bad += 1
            continue
        count = int(counted[2])
        if samples.count + count > MAX_SAMPLES:
            raise TracelensError(
                f"{source.name}: line {lines:,}: more than {MAX_SAMPLES:,} samples",
                "the numbers behind the stacks must count samples; these look like times or bytes",
            )
        if count:
            samples.add(owner, frames, weight_ns=samples.period_ns, count=count, gil=samples.gil)
    if bad:
        health.add(
            "pyspy.bad-lines",
            "warning",
            f"{bad:,} of {lines:,} lines are not `frame;frame;… COUNT`; they were left out",
            need="samples",
            count=bad,
            where=source.name,
        )
    note_recording(samples, source, health)
    return samples.trace(facts=Facts(source_events=lines))


def _frames(stack: str) -> list[Frame]:
    """The frames of one collapsed stack, pseudo frames first."""
    frames = []
    while command := _COMMAND.match(stack):
        frames.append(Frame(command[0][:-1]))
        stack = stack[command.end() :]
    parts = stack.split(";")
    if THREAD_FRAME.fullmatch(parts[0]):
        first = next((i for i, part in enumerate(parts) if i and _PLACED.fullmatch(part)), 1)
        frames.append(Frame(";".join(parts[:first])))
        parts = parts[first:]
    frames.extend(_frame(part) for part in parts)
    return frames


def _frame(part: str) -> Frame:
    placed = _PLACED.fullmatch(part)
    if placed is None:
        return Frame(part)
    return Frame(placed[1], placed[2], int(placed[3][:10]) if placed[3] else None)


def read_dump(source: Source, health: Health) -> Trace:
    """One sample a thread, without a time."""
    samples = Samples(source, health)
    versions: dict[str, str] = {}
    seen = list(_dumped(text(source.open(health).read(), source.name, health), versions))
    owned = {owner.process_id for owner, state, _ in seen if "gil" in state}
    for owner, state, frames in seen:
        if frames:
            gil = "gil" in state if owner.process_id in owned else None
            samples.add(owner, frames, on_cpu="active" in state, gil=gil)
    note_owners({owner.process_id for owner, state, _ in seen if "active" in state} - owned, source.name, health)
    return samples.trace(facts=Facts(versions=versions))


def _dumped(content: str, versions: dict[str, str]) -> Iterator[tuple[Thread, list[str], list[Frame]]]:
    """(owner, state words, frames outermost first) of each thread; local variables are passed over."""
    process = Thread()
    current: tuple[Thread, list[str], list[Frame]] | None = None
    for line in content.splitlines():
        if started := _THREAD.fullmatch(line):
            if current:
                yield current
            owner = process._replace(thread_id=small(int(started[1], 0)), thread=started[3])
            current = (owner, re.split(r"[+ ]", started[2]), [])
        elif began := _PROCESS.fullmatch(line):
            if current:
                yield current
            current = None
            process = Thread(process_id=small(int(began[1])), process=began[2])
        elif python := _PYTHON.match(line):
            versions["python"] = python[1]
        elif current and (frame := _DUMPED.fullmatch(line)):
            current[2].insert(0, _frame(frame[1]))
    if current:
        yield current


def note_recording(samples: Samples, source: Source, health: Health) -> None:
    """Say what is not known of how the recording was made, and how often py-spy failed to look."""
    if samples.gil is None and samples.count:
        health.add(
            "pyspy.gil-unknown",
            "info",
            "the file does not say whether it was recorded with --gil; if it was, pass --pyspy-gil",
            need="samples.gil",
            where=source.name,
        )
    taken, errors = source.options.get("samples"), source.options.get("errors")
    if isinstance(taken, int) and isinstance(errors, int) and errors > 0:
        biased = errors > MAX_ERRORS * (taken + errors)
        health.add(
            "pyspy.errors",
            "warning" if biased else "info",
            f"py-spy failed to look {errors:,} times and succeeded {taken:,} times"
            + ("; what it missed may be just what matters" if biased else ""),
            need="samples",
            count=errors,
            where=source.name,
        )


def note_owners(ownerless: Iterable[int | None], where: str, health: Health) -> None:
    """Say so for processes with running threads and no owner of the GIL."""
    if count := len(set(ownerless)):
        health.add(
            "pyspy.gil-owner-unknown",
            "info",
            "threads are active and none has the GIL: py-spy could not find its owner, or this Python has no GIL",
            need="samples.gil",
            count=count,
            where=where,
        )


def _refuse_svg(source: Source, health: Health) -> Trace:
    raise TracelensError(
        f"{source.name}: an SVG flamegraph is a picture, its samples cannot be read back",
        "record with `py-spy record -t -f raw` (counts) or `-f chrometrace` (times)",
    )


READERS = (
    Reader("pyspy-raw", "collapsed stacks (py-spy record -f raw)", sniff_raw, read_raw),
    Reader("pyspy-dump-text", "py-spy dump", sniff_dump, read_dump),
    Reader("flamegraph-svg", "SVG flamegraphs (refused, with what to record instead)", sniff_svg, _refuse_svg),
)
