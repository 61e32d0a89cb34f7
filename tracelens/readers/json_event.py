"""One element of traceEvents as a struct, from strict or from odd JSON. Times keep every digit the source gave.

Knows nothing of files or of what an event means.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Scalar: TypeAlias = int | float | str | bool | None
EXACT_BELOW = float(1 << 43)
"""µs below which round(float * 1000) is the exact number of ns: the float's own error stays below half a ns."""
DAMAGE = (msgspec.DecodeError, RecursionError)
"""What strict decoding raises on text that is not the JSON it expects."""

_NUMBER_BEGINS = tuple(b"%c" % digit for digit in b"-0123456789")


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents. `ts` and `dur` are in µs, `args` is raw JSON text; absent members are None.

    Where a float could not carry whole nanoseconds, `ts` and `dur` are the decimal text of the source.
    """

    ph: Scalar = None
    name: Scalar = None
    cat: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    id: Scalar = None
    scope: Scalar = None
    s: Scalar = None
    bp: Scalar = None
    id2: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = msgspec.Raw(b"")


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_TIMES = msgspec.json.Decoder(list[_Times])


def decode_events(array: bytes) -> list[Event]:
    """The events of a JSON array. Raises one of DAMAGE if any element is not an event in strict JSON."""
    events = _EVENTS.decode(array)
    _keep_digits(events, array)
    return events


def decode_strict(text: bytes) -> Event | None:
    """The event of one JSON object; None if it is not strict JSON or a member has a type that no event has."""
    try:
        event = _EVENT.decode(text)
        _keep_digits([event], b"[" + text + b"]")
    except DAMAGE:
        return None
    return event


def decode_lenient(text: bytes) -> tuple[Event, list[str]] | None:
    """The event of one JSON object whose members may have any type, and the names of those that became None.

    None if the text is no JSON object.
    """
    if event := decode_strict(text):
        return event, []
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except DAMAGE:
        return None
    event, odd = Event(), []
    for name in Event.__struct_fields__:
        raw = members.get(name)
        if raw is None:
            continue
        if name in ("args", "id2"):
            setattr(event, name, raw)
            continue
        try:
            value = msgspec.json.decode(raw, type=Scalar)
        except DAMAGE:
            if bytes(raw)[:1] not in _NUMBER_BEGINS:
                odd.append(name)
                continue
            value = _digits(raw)
        setattr(event, name, _digits(raw) if name in ("ts", "dur") and _inexact(value) else value)
    return event, odd


def _inexact(value: Scalar) -> bool:
    return type(value) is float and not -EXACT_BELOW < value < EXACT_BELOW


def _digits(raw: msgspec.Raw) -> str:
    return bytes(raw).decode("ascii", "replace")


def _keep_digits(events: list[Event], array: bytes) -> None:
    """Replace times that a float cannot carry by their decimal text in `array`, the JSON array of these events."""
    odd = [index for index, event in enumerate(events) if _inexact(event.ts) or _inexact(event.dur)]
    if not odd:
        return
    times = _TIMES.decode(array)
    for index in odd:
        event = events[index]
        if _inexact(event.ts):
            event.ts = _digits(times[index].ts)
        if _inexact(event.dur):
            event.dur = _digits(times[index].dur)
