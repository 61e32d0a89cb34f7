"""Microseconds as JSON gives them → integer nanoseconds, exactly. Knows nothing of clocks."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from tracelens.readers.json_event import EXACT_BELOW, Scalar

NEVER = np.iinfo(np.int64).min
"""Stands for "no usable time": absent, not a number, or beyond what int64 ns can say."""
LIMIT_NS = 1 << 62
"""Times and durations beyond ± 146 years are nonsense; below it, sums of two stay within int64."""


def nanoseconds(values: Sequence[Scalar]) -> npt.NDArray[np.int64]:
    """ns of times in µs, NEVER where a value has no usable time."""
    kinds = set(map(type, values))
    if kinds <= {int, bool}:
        try:
            whole = np.array(values, dtype=np.int64)
        except OverflowError:
            return _one_by_one(values)
        limit = LIMIT_NS // 1000
        return np.where((whole > -limit) & (whole < limit), whole * 1000, NEVER)
    if str in kinds:
        return _one_by_one(values)
    micros = np.array(values, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(micros) < EXACT_BELOW
        out = np.where(near, np.rint(micros * 1000), 0).astype(np.int64)
    out[~near] = _one_by_one([values[index] for index in np.flatnonzero(~near).tolist()])
    return out


def _one_by_one(values: Sequence[Scalar]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(_exact, values), dtype=np.int64, count=len(values))


def _exact(value: Scalar) -> int:
    if value is None:
        return NEVER
    try:
        decimal = Decimal(value)
        if not decimal.is_finite() or abs(decimal) >= LIMIT_NS // 1000:
            return NEVER
        return int((decimal * 1000).to_integral_value())
    except ArithmeticError:
        return NEVER
