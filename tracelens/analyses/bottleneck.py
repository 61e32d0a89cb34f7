"""What bounds the run, as far as the recording can tell; "unknown" with the reason where it cannot.

Time of the GPU window is split into computing, moving data with nothing computed, and idle by cause. Idle that was not
observed bounds nothing. Knows nothing of what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracelens.analyses import busy, completeness, phases
from tracelens.analyses.attribution import host_times
from tracelens.trace import Trace

BUSY = 0.9
"""A GPU that computes or moves data for 90 % of its window is the limit, recorded completely or not."""
DOMINANT = 0.5
"""A class names what takes at least half of the window; below that the run is mixed."""


@dataclass(frozen=True)
class Bound:
    """The class (gpu, host, comm, copy, mixed, unknown), its share of the window, and how far to trust it."""

    name: str
    because: str
    phase: str | None = None
    share: float | None = None
    of: str | None = None
    trust: str = "trusted"


def bottleneck(trace: Trace) -> Bound:
    """The bound of the whole recording."""
    found = busy.devices(trace)
    window = sum(device.window_ns for device in found)
    if not window:
        return Bound("unknown", _no_work(trace))
    work = phases.work_by_phase(trace)
    phase = _phase(work)
    collectives, copies = (
        phases.exposed_ns(work.with_columns(pl.col("moves") & (pl.col("kind") == kind))) or 0
        for kind in ("kernel", "memcpy")
    )
    used = sum(device.busy_ns for device in found)
    shares = {"comm": collectives / window, "copy": copies / window, "gpu": (used - collectives - copies) / window}
    whole = completeness.window(trace)
    of = "GPU window"
    if used / window >= BUSY:
        name = max(shares, key=lambda key: shares[key])
        says = f"the GPU is busy for {used / window:.1%} of its window of {window / 1e6:,.1f} ms"
        if shares[name] < DOMINANT:
            name = "mixed"
        return Bound(name, says + _moving(shares), phase, shares.get(name), of)
    if not whole.complete:
        idle = 1 - used / window
        says = f"{idle:.0%} of the GPU window show no recorded work, and it is not known to be idle: {whole.because}"
        return Bound("unknown", says, phase, None, None, "doubtful")
    idle_by = busy.idle(trace, complete=True)
    shares["host"] = idle_by["host_late"] / window
    name = max(shares, key=lambda key: shares[key])
    trust = "doubtful" if host_times(trace) == "inflated" else "trusted"
    listed = ", ".join(f"{key} {share:.0%}" for key, share in sorted(shares.items(), key=lambda item: -item[1]))
    if shares[name] < DOMINANT:
        rest = 1 - sum(shares.values())
        return Bound(
            "mixed", f"no cause takes half of the GPU window: {listed}, other waits {rest:.0%}", phase, None, of
        )
    if name == "host":
        says = f"for {shares['host']:.0%} of its window the GPU waits for work that the host has not launched yet"
        return Bound("host", says, phase, shares["host"], of, trust)
    says = f"shares of the GPU window of {window / 1e6:,.1f} ms: {listed}"
    return Bound(name, says, phase, shares[name], of)


def _no_work(trace: Trace) -> str:
    """Why there is no GPU work: a recording without a GPU, or one that names a device and shows none of its work."""
    if any(entry.code in completeness.LOSSES for entry in trace.health):
        return "no GPU work was read, and a part of the recording is lost"
    if trace.facts.devices:
        return "no GPU work was recorded, although the recording names a device"
    return "no GPU work was recorded: a CPU-only recording cannot tell what the device waited for"


def _moving(shares: dict[str, float]) -> str:
    moving = shares["comm"] + shares["copy"]
    return f"; {moving:.0%} moves data with nothing computed meanwhile" if moving >= 0.01 else ""


def _phase(work: pl.DataFrame) -> str | None:
    """The phase of at least half of the GPU time, if there is one."""
    total = int(work["dur_ns"].sum())
    known = work.filter(pl.col("phase") != "unknown")
    by_phase = known.group_by("phase").agg(pl.col("dur_ns").sum()).sort("dur_ns", "phase", descending=True)
    if not by_phase.height or not total or by_phase["dur_ns"][0] < DOMINANT * total:
        return None
    return str(by_phase["phase"][0])
