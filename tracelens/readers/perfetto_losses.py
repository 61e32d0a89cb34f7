"""What a Perfetto trace lost, in sentences: every counter that reading keeps becomes one health entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.health import Health, Severity

if TYPE_CHECKING:
    from tracelens.readers.perfetto import Decoder
    from tracelens.readers.perfetto_tables import Made

MANY = 0.01
"""A share of packets above which the rest must not be judged: which ones are missing is not known."""
_SAYS: dict[str, tuple[Severity, str]] = {
    "bad-packets": ("warning", "packets are damaged and were left out"),
    "bad-compressed": ("warning", "compressed packets are damaged; what could be unpacked was read"),
    "needs-state": ("warning", "packets need names that were lost with an earlier packet, and were left out"),
    "interned-data-skipped": (
        "warning",
        "packets brought names before their sequence began, or after it lost a packet",
    ),
    "dropped-by-writer": ("warning", "times the recorded process dropped packets: its buffer was full"),
    "buffer-loss": ("warning", "chunks were overwritten or dropped in the recorder's buffer: record shorter or larger"),
    "other-machine": ("warning", "packets come from another machine with its own clocks, and were left out"),
    "no-time": ("warning", "events have no time and were left out"),
    "bad-time": ("warning", "events have an impossible time or length, and were left out or shortened"),
    "unplaced": ("warning", "events are on clocks that no snapshot connects to the trace's, and were left out"),
    "unknown-names": ("warning", "events have names that are not in the file"),
    "unknown-phase": ("warning", "events are neither slice, instant nor counter, and were left out"),
    "async-without-id": ("warning", "legacy async events have no id and were left out"),
    "bad-counter": ("warning", "counter values have no described counter or no number, and were left out"),
    "bad-samples": ("warning", "stack samples have no thread or no stack, and were left out"),
    "skipped-samples": ("info", "stack samples were skipped by the recorder"),
    "end-without-begin": ("warning", "ends have no begin: their slices began before the recording, or it was lost"),
    "unfinished": ("warning", "slices have no end; they are cut at the end of what surrounds them or of the trace"),
    "overlapping": ("warning", "complete events partly overlap the slice around them and were left out"),
    "deeper": ("warning", "slices are nested deeper than 65,535 levels"),
    "flow-without-begin": ("info", "flows arrive that never began in this trace"),
    "flow-without-end": ("info", "flows wait for a next slice that never came"),
    "flow-without-slice": ("info", "flows start outside any slice"),
    "ftrace-lost": ("warning", "times the kernel lost scheduler events"),
    "ftrace-empty": ("info", "bundles of kernel events hold none"),
    "ftrace-unread": ("info", "kernel events other than scheduler switches are not read"),
}


def account(name: str, decoder: Decoder, made: Made, health: Health) -> None:
    """Write the health entries of one file."""
    damage = decoder.damage
    if damage.broken:
        health.add(
            "perfetto.broken-framing",
            "error",
            "the chain of packets is broken; everything behind the break is lost",
            need="slices",
            lost_bytes=damage.lost_bytes,
            where=name,
        )
    elif damage.truncated:
        health.add(
            "perfetto.truncated",
            "warning",
            "the file ends inside a packet: the recording was cut",
            need="slices",
            lost_bytes=damage.lost_bytes,
            where=name,
        )
    if damage.foreign:
        health.add("perfetto.foreign-fields", "info", "fields that are no packets", count=damage.foreign, where=name)
    for code, (severity, says) in _SAYS.items():
        if count := decoder.losses[code]:
            health.add(
                f"perfetto.{code}",
                severity,
                f"{count:,} {says}",
                need="slices",
                count=count,
                lost_ns=made.overlapping_ns if code == "overlapping" else None,
                lost_bytes=damage.lost_bytes if code == "bad-packets" and not damage.broken else None,
                where=name,
            )
    if decoder.unread:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in sorted(decoder.unread.items()))
        health.add(
            "perfetto.unread-packets",
            "info",
            f"packets of kinds that are not read: {kinds}",
            count=decoder.unread.total(),
            where=name,
        )
    if tracks := decoder.tracks.conflicts + decoder.tracks.incomplete:
        health.add(
            "perfetto.bad-descriptors",
            "warning",
            "track descriptors contradict an earlier one or lack their ids, and were left out",
            count=tracks,
            where=name,
        )
    _distrust(name, decoder, made, health)
    if not any(frame.height for table, frame in made.frames.items() if table != "tracks"):
        health.add("perfetto.no-events", "warning", "the trace holds no event that is read", need="slices", where=name)


def _distrust(name: str, decoder: Decoder, made: Made, health: Health) -> None:
    """If much is missing, forbid judging every kind of slice that is left."""
    losses, damage = decoder.losses, decoder.damage
    missing = sum(losses[code] for code in ("bad-packets", "needs-state", "unplaced", "no-time", "bad-compressed"))
    if not damage.broken and missing <= MANY * decoder.packets:
        return
    for kind in sorted(made.frames["slices"]["kind"].unique().to_list()):
        health.add(
            "perfetto.incomplete",
            "error",
            "too much of this trace is missing to judge what is left",
            need=f"slices:{kind}",
            count=missing,
            where=name,
        )
