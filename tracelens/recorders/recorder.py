"""What a source of a capture says about itself. Knows nothing of how it records: `together` does that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Availability(NamedTuple):
    """Whether a source can be recorded here; if not (or not fully), why, and what to do about it."""

    here: bool
    why: str | None = None
    cure: str | None = None


@dataclass(frozen=True)
class Recorder:
    """One source that `tracelens record --with NAME` can add to a capture. `available` looks, and starts nothing."""

    name: str
    says: str
    available: Callable[[], Availability]
