"""What was lost, damaged, clipped, unplaced or not recorded, and how far each kind of evidence can be trusted.

Readers write entries while they read; rules ask `Health.distrust(need)` before they claim. Knows no rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
import polars as pl

from tracelens import schema

Severity = Literal["info", "warning", "error"]


class HealthEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One thing that went wrong, with its exact price.

    `need` names the evidence it touches (e.g. "slices:kernel"); severity "error" means that this evidence must not be
    judged. `where` is a place in a source, `lost_bytes`/`lost_ns` what it cost.
    """

    code: str
    severity: Severity
    says: str
    need: str | None = None
    count: int = 1
    lost_ns: int | None = None
    lost_bytes: int | None = None
    where: str | None = None


def _one(entries: list[HealthEntry]) -> HealthEntry:
    if len(entries) == 1:
        return entries[0]
    places = [entry.where for entry in entries if entry.where is not None]
    lost_ns = [entry.lost_ns for entry in entries if entry.lost_ns is not None]
    lost_bytes = [entry.lost_bytes for entry in entries if entry.lost_bytes is not None]
    return msgspec.structs.replace(
        entries[0],
        count=sum(entry.count for entry in entries),
        lost_ns=sum(lost_ns) if lost_ns else None,
        lost_bytes=sum(lost_bytes) if lost_bytes else None,
        where=f"{places[0]} and {len(places) - 1} more" if len(places) > 1 else next(iter(places), None),
    )


class Health:
    """The entries of one Trace, in the order they were found."""

    def __init__(self, entries: tuple[HealthEntry, ...] = ()) -> None:
        self._entries = list(entries)

    def add(
        self,
        code: str,
        severity: Severity,
        says: str,
        *,
        need: str | None = None,
        count: int = 1,
        lost_ns: int | None = None,
        lost_bytes: int | None = None,
        where: str | None = None,
    ) -> None:
        """Note one thing. `says` is a full sentence for people."""
        self._entries.append(
            HealthEntry(
                code=code,
                severity=severity,
                says=says,
                need=need,
                count=count,
                lost_ns=lost_ns,
                lost_bytes=lost_bytes,
                where=where,
            )
        )

    def extend(self, other: Health) -> None:
        """Take over the entries of another source."""
        self._entries.extend(other)

    def folded(self) -> Health:
        """The same entries with equal ones of several places made one: counts and losses summed, places counted."""
        groups: dict[tuple[str, str, str, str | None], list[HealthEntry]] = {}
        for entry in self:
            groups.setdefault((entry.code, entry.severity, entry.says, entry.need), []).append(entry)
        return Health(tuple(_one(entries) for entries in groups.values()))

    def without(self, *codes: str) -> Health:
        """The same entries less those with these codes."""
        return Health(tuple(entry for entry in self if entry.code not in codes))

    def __iter__(self) -> Iterator[HealthEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def distrust(self, need: str) -> HealthEntry | None:
        """The first entry that forbids judging this evidence, or None."""
        return next((e for e in self if e.severity == "error" and e.need == need), None)

    def lossy(self) -> list[HealthEntry]:
        """Entries that lost data: bytes not read or time removed, or of severity warning and above."""
        return [e for e in self if e.severity != "info" or e.lost_bytes or e.lost_ns]

    def table(self) -> pl.DataFrame:
        """The entries as the `health` table."""
        names = schema.HEALTH.dtypes
        return schema.HEALTH.build({name: [getattr(e, name) for e in self] for name in names})
