"""What could not be read as it stands, place by place; written to health with exact counts.

Knows nothing of what was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tracelens.health import Health, Severity

EXAMPLES = 5
"""Places of one kind that health lists one by one; the others become one summed entry."""
SAMPLE = 80
"""Bytes shown of what stood there."""


@dataclass(frozen=True)
class Place:
    """One place: byte offset in the decompressed content, events and bytes concerned, and how it begins."""

    at: int
    events: int
    lost_bytes: int
    sample: str


@dataclass
class Losses:
    """Places by (code, severity, sentence), all of one source."""

    source: str
    places: dict[tuple[str, Severity, str], list[Place]] = field(default_factory=dict)

    def add(
        self,
        code: str,
        severity: Severity,
        says: str,
        at: int,
        *,
        events: int = 1,
        lost_bytes: int = 0,
        text: bytes = b"",
    ) -> None:
        """Note one place; `text` is what stands there."""
        sample = text[:SAMPLE].decode("ascii", "backslashreplace").encode("unicode_escape").decode()
        self.places.setdefault((code, severity, says), []).append(Place(at, events, lost_bytes, sample))

    def has(self, code: str) -> bool:
        """Whether a place of this code was noted."""
        return any(known == code for known, _, _ in self.places)

    def report(self, health: Health) -> None:
        """One entry for each of the first places of a kind, one for all the others."""
        for (code, severity, says), places in sorted(self.places.items()):
            for place in places[:EXAMPLES]:
                health.add(
                    code,
                    severity,
                    f"{says}: {place.sample}" if place.sample else says,
                    count=max(place.events, 1),
                    lost_bytes=place.lost_bytes or None,
                    where=f"{self.source}: byte {place.at:,}",
                )
            if others := places[EXAMPLES:]:
                health.add(
                    code,
                    severity,
                    f"{says} ({len(others)} more places)",
                    count=sum(max(place.events, 1) for place in others),
                    lost_bytes=sum(place.lost_bytes for place in others) or None,
                    where=f"{self.source}: bytes {others[0].at:,} to {others[-1].at:,}",
                )
