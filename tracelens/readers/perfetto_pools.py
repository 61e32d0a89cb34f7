"""Dictionary coding while decoding: distinct values once, rows as small integers. Knows no format."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

_V = TypeVar("_V", bound=Hashable)

NONE = -1
"""The code of "the source did not say"."""


class Pool(Generic[_V]):
    """Distinct values in order of arrival; a value's code is its place."""

    def __init__(self) -> None:
        self.values: list[_V] = []
        self._codes: dict[_V, int] = {}
        self.column = pl.Series([], dtype=pl.String)
        """Of texts, those that `series` was asked for."""

    def code(self, value: _V) -> int:
        """The code of a value, new or known."""
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code

    def code_or_none(self, value: _V | None) -> int:
        """The code of a value, NONE for None."""
        return NONE if value is None else self.code(value)


class Sparse:
    """A column of integers that few rows have; of several entries for one row the last counts."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.values = array("q")

    def add(self, row: int, value: int) -> None:
        """Set one row."""
        self.rows.append(row)
        self.values.append(value)

    def extend(self, rows: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Set several rows."""
        append(self.rows, rows)
        append(self.values, values)

    def gather(self, wanted: npt.NDArray[Any], height: int) -> pl.Series:
        """The values of some rows of `height`; null where a row has none."""
        full, have = np.zeros(height, np.int64), np.zeros(height, bool)
        rows = numbers(self.rows)
        full[rows] = numbers(self.values)
        have[rows] = True
        return coded(full[wanted], have[wanted])


class Texts:
    """Long texts of which few are equal, numbered in order of arrival and kept outside Python's heap."""

    def __init__(self) -> None:
        self._parts: list[pl.Series] = []
        self._single: list[bytes] = []
        self._count = 0

    def add(self, text: bytes) -> int:
        """Keep one UTF-8 text; returns its number."""
        self._single.append(text)
        self._count += 1
        return self._count - 1

    def extend(self, texts: pl.Series) -> int:
        """Keep several texts; returns the number of the first."""
        self._flush()
        self._parts.append(texts)
        self._count += len(texts)
        return self._count - len(texts)

    def series(self) -> pl.Series:
        """All texts by number."""
        self._flush()
        self._parts = [pl.concat(self._parts)] if self._parts else [pl.Series([], dtype=pl.String)]
        return self._parts[0]

    def _flush(self) -> None:
        if self._single:
            self._parts.append(pl.Series(self._single, dtype=pl.Binary).cast(pl.String))
            self._single = []


def series(pool: Pool[str]) -> pl.Series:
    """All texts of a pool by code."""
    known = len(pool.column)
    if known < len(pool.values):
        pool.column = pl.concat([pool.column, pl.Series(pool.values[known:], dtype=pl.String)], rechunk=True)
    return pool.column


def append(column: array[Any], values: npt.NDArray[Any]) -> None:
    """Append numbers to an array of any width that holds them."""
    column.frombytes(np.ascontiguousarray(values, np.dtype(column.typecode)).tobytes())


def numbers(column: array[Any]) -> npt.NDArray[Any]:
    """An array's content without a copy; the array must not grow while it is used."""
    return np.frombuffer(column, column.typecode) if len(column) else np.empty(0, column.typecode)


def coded(values: npt.NDArray[Any], have: npt.NDArray[np.bool_]) -> pl.Series:
    """Numbers with null where there is none."""
    series = pl.Series(values)
    return series if have.all() else pl.select(pl.when(pl.Series(have)).then(series)).to_series()


def chosen(values: pl.Series, codes: npt.NDArray[Any]) -> pl.Series:
    """The value of each code, null for NONE."""
    return values.gather(coded(codes.astype(np.uint32), codes != NONE))
