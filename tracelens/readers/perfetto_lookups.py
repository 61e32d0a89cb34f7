"""One sequence's interned tables as arrays: interned id → code, and from which packet of the batch on it is known.

Follows the dictionaries of `Sequence`, which stay the truth: they only grow within a generation, and a new generation
brings new dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.readers.perfetto_pools import NONE
from tracelens.readers.perfetto_walk import MAX_IID

Ints: TypeAlias = npt.NDArray[np.int64]
MAX_PACKETS = 1 << 62
Marks: TypeAlias = list[tuple[int, int]]
"""(first packet that knows what came before, number of entries) after each packet that brought names."""


class Lookup:
    """One table of one sequence; `code` gives a value's code, NONE for values that need the single-packet reader."""

    def __init__(self, code: Callable[[Any], int]) -> None:
        self._code = code
        self._codes = np.empty(0, np.int64)
        self._since = np.empty(0, np.int64)
        self._table: dict[int, Any] | None = None
        self._filled = 0
        self._recent: list[int] = []

    def forget(self) -> None:
        """Begin anew: the table has lost entries."""
        self._table = None

    def follow(self, table: dict[int, Any], marks: Marks) -> None:
        """Take over what is new in the table; `marks` say which packets brought it, if it was this batch's."""
        if table is not self._table:
            self._table, self._filled, self._recent = table, 0, []
            self._codes = np.full(64, NONE, np.int64)
            self._since = np.zeros(64, np.int64)
        self._since[self._recent] = 0
        self._recent = []
        if len(table) == self._filled:
            return
        mark = 0
        for place, iid in enumerate(islice(table, self._filled, None), self._filled):
            while mark < len(marks) and marks[mark][1] <= place:
                mark += 1
            if not 0 <= iid < MAX_IID:
                continue
            self._grow(iid)
            self._codes[iid] = self._code(table[iid])
            if mark:
                self._since[iid] = marks[mark][0]
                self._recent.append(iid)
        self._filled = len(table)

    def codes(self, iids: Ints, packets: Ints) -> Ints:
        """The code of each id as its packet knows it, NONE where it does not."""
        inside = np.where(iids < len(self._codes), iids, 0)
        return np.where((iids < len(self._codes)) & (self._since[inside] <= packets), self._codes[inside], NONE)

    def since(self, iids: list[int]) -> int:
        """The first packet of this batch that knows all of these ids, which must be in the table."""
        return max((int(self._since[iid]) if iid < len(self._since) else MAX_PACKETS for iid in iids), default=0)

    def _grow(self, iid: int) -> None:
        if iid >= len(self._codes):
            wider = max(iid + 1, 2 * len(self._codes))
            self._codes = np.concatenate([self._codes, np.full(wider - len(self._codes), NONE)])
            self._since = np.concatenate([self._since, np.zeros(wider - len(self._since), np.int64)])
