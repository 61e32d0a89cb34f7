"""When GPUs work: per device, unions of intervals, windows and idle gaps, and whom an idle gap waited for.

GPU work is kernels, copies and sets; annotation and sync rows are not. Streams of one device overlap, so time is
always a union per device, then summed over devices. Knows nothing of what kernels compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.intervals import IntervalSet
from tracelens.schema import GPU_WORK
from tracelens.trace import Trace


@dataclass(frozen=True)
class DeviceKey:
    """One device: indices repeat between hosts and between ranks that each see their own device 0."""

    host: str | None
    rank: int | None
    device: int | None


@dataclass(frozen=True)
class DeviceBusy:
    """One device's recorded work. `window` is from its first start to its last end; both in ns since origin."""

    key: DeviceKey
    busy: IntervalSet
    window: tuple[int, int]

    @property
    def busy_ns(self) -> int:
        """Time in which anything ran."""
        return intervals.total(self.busy)

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window[1] - self.window[0]

    def gaps(self) -> IntervalSet:
        """Times within the window in which nothing that was recorded ran."""
        return intervals.complement(self.busy, *self.window)


def gpu_work(trace: Trace, kinds: Sequence[str] = GPU_WORK) -> pl.DataFrame:
    """Slices of these kinds with host, rank and device, by start."""
    return (
        trace.select(*kinds)
        .join(trace.tracks.select("track_id", "host", "rank", "device", "stream"), on="track_id", how="left")
        .sort("start_ns", "slice_id")
    )


def devices(trace: Trace, kinds: Sequence[str] = GPU_WORK) -> list[DeviceBusy]:
    """Each device with work of these kinds, by host, rank, index."""
    work = gpu_work(trace, kinds)
    groups = work.partition_by("host", "rank", "device", as_dict=True, maintain_order=True)
    return [_device(key, groups[key]) for key in sorted(groups, key=lambda key: tuple((v is not None, v) for v in key))]


def _device(key: tuple[object, ...], rows: pl.DataFrame) -> DeviceBusy:
    host, rank, device = key
    starts = rows["start_ns"].to_numpy()
    ends = starts + rows["dur_ns"].to_numpy()
    return DeviceBusy(
        DeviceKey(host, rank, device),  # type: ignore[arg-type]
        intervals.union(starts, ends),
        (int(starts.min()), int(ends.max())),
    )


def busy_ns(trace: Trace, *kinds: str) -> int:
    """Union of these kinds per device, summed over devices."""
    return sum(device.busy_ns for device in devices(trace, kinds or GPU_WORK))


IDLE_CAUSES = ("host_late", "device", "unlinked")
"""What ended an idle gap. host_late: work whose launch began after the gap did, so the GPU waited for the host.
device: work that was already launched (dependencies, event waits, latency between graph nodes). unlinked: unknown."""
NOT_OBSERVED = "not_observed"


def idle(trace: Trace, *, complete: bool) -> dict[str, int]:
    """ns of idle by cause, summed over devices. Outside a complete window nothing is known to be idle."""
    found = devices(trace)
    total = sum(device.window_ns - device.busy_ns for device in found)
    if not complete:
        return {**dict.fromkeys(IDLE_CAUSES, 0), NOT_OBSERVED: total}
    out = {**dict.fromkeys(IDLE_CAUSES, 0), NOT_OBSERVED: 0}
    work = gpu_work(trace).filter(pl.col("dur_ns") > 0).join(_launch_starts(trace), on="slice_id", how="left")
    for device in found:
        key = device.key
        rows = work.filter(
            pl.col("host").eq_missing(key.host)
            & pl.col("rank").eq_missing(key.rank)
            & pl.col("device").eq_missing(key.device)
        ).sort("start_ns", "slice_id")
        begins, ends = device.gaps()
        # A gap ends where a row with a length starts, or at the window's end where a row without one lies.
        ending = np.searchsorted(rows["start_ns"].to_numpy(), ends, side="left")
        known = rows["launch_start_ns"].is_not_null().to_numpy()
        launch = rows["launch_start_ns"].fill_null(0).to_numpy()
        length = ends - begins
        linked = np.zeros(len(ends), bool)
        linked[ending < rows.height] = known[ending[ending < rows.height]]
        late = np.zeros(len(ends), bool)
        late[linked] = launch[ending[linked]] > begins[linked]
        out["host_late"] += int(length[late].sum())
        out["device"] += int(length[linked & ~late].sum())
        out["unlinked"] += int(length[~linked].sum())
    return out


def _launch_starts(trace: Trace) -> pl.DataFrame:
    """slice_id of GPU work and launch_start_ns of the host call that launched it."""
    launched = trace.flows.filter(pl.col("kind") == "launch").unique("to_id", keep="first", maintain_order=True)
    calls = trace.slices.select(pl.col("slice_id").alias("from_id"), pl.col("start_ns").alias("launch_start_ns"))
    return launched.join(calls, on="from_id").select(pl.col("to_id").alias("slice_id"), "launch_start_ns")
