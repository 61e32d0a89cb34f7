"""Accuracy tests and micro-benchmarks → `measurements`: our own JSON lines, and pytest-benchmark's JSON.

A line is `{"name", "metric", "value", "unit", "reference"?, "tolerance"?, "params"?: {}, "unix_ns"?}`. NaN and
Infinity, which JSON does not have but Python writes, become null and are counted. pytest-benchmark gives one row for
each statistic it keeps; `params` and `extra_info` become the row's conditions.

What it does not know: whether two rows were measured under the same conditions beyond what `params` says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tracelens import schema
from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.trace import Facts, Trace

STATISTICS = {
    "mean": "s",
    "median": "s",
    "min": "s",
    "max": "s",
    "stddev": "s",
    "ops": "1/s",
    "rounds": "1",
}
"""pytest-benchmark's statistics → unit."""
_REQUIRED = ("name", "metric", "unit")
_LINE_KEYS = re.compile(r'"name"\s*:.*"metric"\s*:|"metric"\s*:.*"name"\s*:')


class _Columns:
    """Rows so far, as columns, and what was wrong with them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.times: list[int | None] = []
        self.not_finite = 0
        self.bad = 0
        self.lines = 0

    def number(self, value: Any) -> float | None:
        """A finite float or None; raises TypeError for what is no number."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError("not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        self.not_finite += 1
        return None

    def add(self, item: dict[str, Any]) -> None:
        """One measurement; raises TypeError if a field has the wrong type."""
        names = {key: item.get(key) for key in _REQUIRED}
        params = item.get("params") or {}
        at = item.get("unix_ns")
        if not all(isinstance(value, str) for value in names.values()) or not isinstance(params, dict):
            raise TypeError("not a measurement")
        if "value" not in item or not (at is None or (type(at) is int and 0 <= at < 2**63)):
            raise TypeError("not a measurement")
        numbers = {key: self.number(item.get(key)) for key in ("value", "reference", "tolerance")}
        self.not_finite += item["value"] is None
        self.rows.append({**names, **numbers, "params": self._params(params)})
        self.times.append(at)

    def _params(self, params: dict[str, Any]) -> str:
        return json.dumps(_strict(params), ensure_ascii=False, separators=(",", ":"))


def _strict(value: Any) -> Any:
    """The value with non-finite floats as null, so that its text is strict JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(each) for key, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list) else value


def sniff(head: bytes, name: str) -> int:
    """Certain for pytest-benchmark's machine_info; nearly so for a line with a measurement's keys."""
    if head.lstrip()[:1] != b"{":
        return 0
    if b'"machine_info"' in head and (b'"commit_info"' in head or b'"benchmarks"' in head):
        return 100
    first = next((line for line in head.decode(errors="replace").splitlines() if line.strip()), "")
    return 95 if _LINE_KEYS.search(first) and '"value"' in first and '"unit"' in first else 0


def read(source: Source, health: Health) -> Trace:
    """Read one file of either format. Raises TracelensError if no measurement can be read from it."""
    columns = _Columns()
    for item in _items(source, health, columns):
        try:
            columns.add(item)
        except (TypeError, RecursionError):
            columns.bad += 1
    if not columns.rows:
        raise TracelensError(
            f"{source.name}: no measurement can be read from this file",
            'each line is {"name": …, "metric": …, "value": …, "unit": …}',
        )
    _account(source.name, columns, health)
    placed = [at for at in columns.times if at is not None]
    origin = min(placed) if placed else None
    return Trace(
        origin_unix_ns=origin,
        measurements=schema.MEASUREMENTS.build(
            {
                **{key: [row[key] for row in columns.rows] for key in columns.rows[0]},
                "at_ns": [None if at is None or origin is None else at - origin for at in columns.times],
            }
        ),
        health=health,
        facts=Facts(),
    )


def _items(source: Source, health: Health, columns: _Columns) -> Iterator[dict[str, Any]]:
    stream = source.open(health)
    head = stream.head()
    if b'"machine_info"' in head and sniff(head, source.name) == 100:
        try:
            whole = json.loads(stream.read().decode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise TracelensError(
                f"{source.name}: not a whole pytest-benchmark file ({error})", "record again"
            ) from error
        yield from _benchmarks(whole, columns)
        return
    for line in stream.lines():
        if not line.strip():
            continue
        columns.lines += 1
        try:
            item = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            item = None
        if isinstance(item, dict):
            yield item
        else:
            columns.bad += 1


def _benchmarks(whole: Any, columns: _Columns) -> Iterator[dict[str, Any]]:
    listed = whole.get("benchmarks") if isinstance(whole, dict) else None
    at = _unix_ns(whole.get("datetime")) if isinstance(whole, dict) else None
    for benchmark in listed if isinstance(listed, list) else ():
        stats = benchmark.get("stats") if isinstance(benchmark, dict) else None
        if not isinstance(stats, dict):
            columns.bad += 1
            continue
        given = (benchmark.get("params"), benchmark.get("extra_info"))
        params = {key: value for part in given if isinstance(part, dict) for key, value in part.items()}
        for metric, unit in STATISTICS.items():
            if metric in stats:
                yield {
                    "name": benchmark.get("fullname") or benchmark.get("name"),
                    "metric": metric,
                    "value": stats[metric],
                    "unit": unit,
                    "params": params,
                    "unix_ns": at,
                }


def _unix_ns(text: Any) -> int | None:
    """An ISO time with a zone as unix ns; None where the zone is missing."""
    try:
        when = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    if when.tzinfo is None or when.timestamp() < 0:
        return None
    return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1_000


def _account(name: str, columns: _Columns, health: Health) -> None:
    if columns.not_finite:
        health.add(
            "measurements.not-finite",
            "warning",
            "values that are NaN, infinite or null are kept without a value: the measurement failed or diverged",
            count=columns.not_finite,
            where=name,
        )
    if columns.bad:
        health.add(
            "measurements.bad-rows",
            "warning",
            "rows without name, metric, value and unit of the right type were left out",
            need="measurements",
            count=columns.bad,
            where=name,
        )


READER = Reader("measurements", "measurements: JSON lines, or pytest-benchmark's JSON", sniff, read)
