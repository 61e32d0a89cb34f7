"""Counter samples of a trace in JSON: "C" events, and the allocator's totals in Kineto's memory instants.

Knows nothing of clocks; times are the source's.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import polars as pl

from tracelens.readers.json_columns import Columns
from tracelens.readers.json_event import DAMAGE, Scalar
from tracelens.readers.json_places import Places

MEMORY = "[memory]"
DEVICE_TYPES = {0: "CPU", 1: "CUDA", 20: "MAIA", 6: "HIP", 12: "XPU"}
_SAMPLES = {
    "key": pl.UInt32(),
    "place": pl.UInt32(),
    "name": pl.String(),
    "unit": pl.String(),
    "ts": pl.Int64(),
    "value": pl.Float64(),
}
_ARGS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def samples(rows: pl.DataFrame, columns: Columns, places: Places) -> pl.DataFrame:
    """key (of the counter's track, from 0), place (of its process), name, unit, ts, value; in file order."""
    phase, name = pl.col("phase").cast(pl.String), pl.col("name").cast(pl.String)
    wanted = rows.filter((phase == "C") | ((phase == "i") & (name == MEMORY))).drop_nulls(["ts", "args"])
    keys: dict[tuple[int, str], int] = {}
    processes: dict[int, int] = {}
    first_of: dict[Scalar, int] = {}
    for (pid, _), code in columns.places.items():
        processes[code] = first_of.setdefault(pid, code)
    found: list[tuple[int, int, str, str | None, int, float]] = []
    for row in wanted.select("place", name, "ts", "id", "args").iter_rows():
        place, title, at, identity, text = row
        series = _memory(text) if title == MEMORY else _plain(title, identity, text)
        for label, unit, value in series:
            process = processes[place]
            key = keys.setdefault((process, label), len(keys))
            found.append((key, process, label, unit, at, value))
    return pl.DataFrame(found, schema=_SAMPLES, orient="row")


def tracks(counters: pl.DataFrame) -> list[tuple[int, str, str | None]]:
    """(place, name, unit) of each counter track, by key."""
    firsts = counters.unique("key", keep="first", maintain_order=True).sort("key")
    return list(firsts.select("place", "name", "unit").iter_rows())


def _plain(title: str, identity: str | None, text: str) -> Iterator[tuple[str, str | None, float]]:
    numbers = {member: value for member, raw in _members(text).items() if (value := _number(raw)) is not None}
    for member, value in numbers.items():
        label = f"{title}[{identity}]" if identity else title
        yield (label if len(numbers) == 1 else f"{label}.{member}"), None, value


def _memory(text: str) -> Iterator[tuple[str, str | None, float]]:
    members = _members(text)
    kind, index = (_number(members.get(name)) for name in ("Device Type", "Device Id"))
    device = DEVICE_TYPES.get(int(kind) if kind is not None else -1, f"device type {kind}")
    if index is not None and index >= 0 and device != "CPU":
        device = f"{device} {int(index)}"
    for member, label in (("Total Allocated", "allocated"), ("Total Reserved", "reserved")):
        value = _number(members.get(member))
        if value is not None:
            yield f"memory {label} ({device})", "bytes", value


def _members(text: str) -> dict[str, msgspec.Raw]:
    try:
        return _ARGS.decode(text)
    except DAMAGE:
        return {}


def _number(raw: msgspec.Raw | None) -> float | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=float)
    except DAMAGE:
        return None
