"""Is the GPU window complete? Only then may the time in which nothing ran be called idle.

A window is complete if nothing in it shows GPU work that was not recorded. Every test gives the number that failed
and what it would have to be. Knows nothing of causes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.analyses import busy, launches
from tracelens.trace import Trace

MAX_UNLINKED = 0.05
"""Healthy recordings link every kernel; cut ones miss 20 % to 30 %."""
MIN_WAIT_NS = 200_000
"""A blocking call shorter than 200 µs hides less work than a recording loses anyway."""
MIN_COVERED = 0.5
"""A wait of which half is covered by recorded work waited for that work."""
MAX_WAITS = 0.02
MAX_REPLAY_GAPS = 0.02
"""Unexplained time above 2 % of the window makes the window incomplete."""
MIN_REPLAY_GAP_NS = 20_000
"""Nodes of one graph follow one another within 1 to 5 µs: a longer gap inside a replay is work that is missing."""
MAX_LOST = 0.01
LOSSES = ("json.damaged", "json.truncated", "bytes.damaged-compression")
_WAITS = r"[sS]ynchronize"


@dataclass(frozen=True)
class Completeness:
    """Whether the GPU window is complete, why (with the number), and the number against its threshold."""

    complete: bool
    because: str
    number: float | None = None
    threshold: float | None = None


def window(trace: Trace) -> Completeness:
    """Test the whole recording."""
    return trace.derived(_window)


def _window(trace: Trace) -> Completeness:
    found = busy.devices(trace)
    if not found:
        return Completeness(False, "no GPU work was recorded")
    joined = launches.join(trace)
    for test in (_losses, _times, _linked, _waits, _replays):
        failed = test(trace, joined, found)
        if failed is not None:
            return failed
    covered = launches.counts(trace, joined)
    return Completeness(
        True,
        f"all but {covered.kernels - covered.kernels_with_launch:,} of {covered.kernels:,} kernels have their launch,"
        f" and no wait or replay hides unrecorded work",
    )


def _losses(trace: Trace, joined: pl.DataFrame, found: list[busy.DeviceBusy]) -> Completeness | None:
    lost = [entry for entry in trace.health if entry.code in LOSSES]
    cut = next((entry for entry in lost if entry.code != "json.damaged"), None)
    if cut is not None:
        return Completeness(False, f"the recording was cut: {cut.says.split(':')[0]}")
    events = sum(entry.count for entry in lost)
    share = events / max(trace.facts.source_events or 0, 1)
    if share > MAX_LOST:
        return Completeness(False, f"{events:,} events ({share:.1%}) could not be read", share, MAX_LOST)
    return None


def _times(trace: Trace, joined: pl.DataFrame, found: list[busy.DeviceBusy]) -> Completeness | None:
    kernels = trace.select("kernel")
    timeless = kernels.filter(pl.col("dur_ns") == 0).height
    share = timeless / max(kernels.height, 1)
    if share > MAX_UNLINKED:
        says = f"{timeless:,} of {kernels.height:,} kernels ({share:.0%}) have no length"
        return Completeness(False, says, share, MAX_UNLINKED)
    return None


def _linked(trace: Trace, joined: pl.DataFrame, found: list[busy.DeviceBusy]) -> Completeness | None:
    covered = launches.counts(trace, joined)
    share = covered.kernels_without_launch_share
    if share > MAX_UNLINKED:
        missing = covered.kernels - covered.kernels_with_launch
        says = f"{missing:,} of {covered.kernels:,} kernels ({share:.0%}) were launched outside the recording"
        return Completeness(False, says, share, MAX_UNLINKED)
    share = covered.launches_without_kernels_share
    if share > MAX_UNLINKED:
        missing = covered.launches - covered.launches_with_kernels
        says = f"the kernels of {missing:,} of {covered.launches:,} launches ({share:.0%}) were not recorded"
        return Completeness(False, says, share, MAX_UNLINKED)
    return None


def _waits(trace: Trace, joined: pl.DataFrame, found: list[busy.DeviceBusy]) -> Completeness | None:
    """Blocking copies and synchronisations that last far longer than the recorded work they can have waited for."""
    copied = (
        joined.filter(pl.col("kind").is_in(["memcpy", "memset"]))
        .group_by("launch_id")
        .agg((pl.col("start_ns") + pl.col("dur_ns")).max().alias("copied_ns"))
    )
    name = pl.col("name").cast(pl.String)
    calls = (
        trace.select("runtime")
        .filter(pl.col("dur_ns") > MIN_WAIT_NS)
        .join(copied, left_on="slice_id", right_on="launch_id", how="left", maintain_order="left")
        # A copy blocks if its call returns after it: an asynchronous one returns before.
        .filter((pl.col("start_ns") + pl.col("dur_ns") >= pl.col("copied_ns")) | name.str.contains(_WAITS))
        # Once its own copy has ended, a call that goes on waits for the host (a lock, a paused process), not for a GPU.
        .with_columns(pl.min_horizontal(pl.col("start_ns") + pl.col("dur_ns"), "copied_ns").alias("end_ns"))
    )
    if not calls.height:
        return None
    begin = min(device.window[0] for device in found)
    end = max(device.window[1] for device in found)
    starts = np.maximum(calls["start_ns"].to_numpy(), begin)
    ends = np.maximum(np.minimum(calls["end_ns"].to_numpy(), end), starts)
    busy_union = intervals.union(
        np.concatenate([device.busy[0] for device in found]), np.concatenate([device.busy[1] for device in found])
    )
    length = ends - starts
    covered = intervals.covered(busy_union, starts, ends)
    hiding = (length > MIN_WAIT_NS) & (covered < MIN_COVERED * length)
    # What ran during the wait is known; threads that wait at one time wait for the same work.
    waited = intervals.subtract(intervals.union(starts[hiding], ends[hiding]), busy_union)
    hidden = intervals.total(waited)
    share = hidden / max(end - begin, 1)
    if share <= MAX_WAITS:
        return None
    longest = int(np.argmax(np.where(hiding, length - covered, -1)))
    call = calls.row(longest, named=True)
    says = (
        f"{call['name']} blocked for {call['dur_ns'] / 1e6:,.1f} ms{_size(trace, joined, call['slice_id'])}"
        f" while only {covered[longest] / 1e6:,.1f} ms of GPU work were recorded:"
        f" {share:.0%} of the window may hold unrecorded work"
    )
    return Completeness(False, says, share, MAX_WAITS)


def _size(trace: Trace, joined: pl.DataFrame, launch: int) -> str:
    """What a copy moved, for a sentence."""
    moved = trace.slices.filter(
        pl.col("slice_id").is_in(joined.filter(pl.col("launch_id") == launch)["slice_id"].implode())
    )["bytes"].drop_nulls()
    return f" to copy {moved.sum():,} bytes" if moved.len() else ""


def _replays(trace: Trace, joined: pl.DataFrame, found: list[busy.DeviceBusy]) -> Completeness | None:
    """Graph replays of which only a part was recorded: gaps inside a replay, or a replay cut short."""
    replayed = joined.filter(pl.col("replayed") & (pl.col("kind") == "kernel"))
    if not replayed.height:
        return None
    # Within one replay nothing waits for the host, so what no device row covers there was not recorded.
    spans = replayed.group_by("launch_id").agg(
        pl.col("start_ns").min().alias("begin"), (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end")
    )
    union = intervals.union(spans["begin"].to_numpy(), spans["end"].to_numpy())
    everything = intervals.union(
        np.concatenate([device.busy[0] for device in found]), np.concatenate([device.busy[1] for device in found])
    )
    begins, ends = intervals.subtract(union, everything)
    long = ends - begins > MIN_REPLAY_GAP_NS
    missing = int((ends - begins)[long].sum())
    share = missing / max(sum(device.window_ns for device in found), 1)
    if share > MAX_REPLAY_GAPS:
        says = (
            f"{int(long.sum()):,} gaps inside graph replays, {share:.0%} of the window, show kernels that are missing"
        )
        return Completeness(False, says, share, MAX_REPLAY_GAPS)
    return _cut_replays(replayed)


def _cut_replays(replayed: pl.DataFrame) -> Completeness | None:
    """Replays whose kernels are only the beginning of what another replay of the same graph ran."""
    sequences = (
        replayed.sort("launch_id", "start_ns", "slice_id").group_by("launch_id", maintain_order=True).agg("name")
    )
    longest: dict[str, list[str]] = {}
    names = [list(map(str, row)) for row in sequences["name"].to_list()]
    for sequence in names:
        known = longest.get(sequence[0], [])
        longest[sequence[0]] = sequence if len(sequence) > len(known) else known
    cut = [s for s in names if len(s) < len(longest[s[0]]) and longest[s[0]][: len(s)] == s]
    missing = sum(len(longest[sequence[0]]) - len(sequence) for sequence in cut)
    share = missing / max(sum(map(len, names)) + missing, 1)
    if share <= MAX_UNLINKED:
        return None
    says = f"{len(cut):,} of {len(names):,} graph replays end early: {missing:,} kernels ({share:.0%}) are missing"
    return Completeness(False, says, share, MAX_UNLINKED)
