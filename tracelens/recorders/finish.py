"""Turns what a recording left in its folder into the manifest: processes, sources with their clocks, and notes.

Believes nothing a sidecar says without its type: a target may have written it. Anything missing becomes a note.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tracelens.capture import Manifest, Note, Process, Source, file_sha256
from tracelens.recorders import device, events, gil, measurements, torch, triton
from tracelens.recorders.align import Alignment
from tracelens.recorders.pyspy import Spy
from tracelens.recorders.watch import Watcher

PYTHON_SETTINGS = (
    "PYTHON_GIL", "PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONMALLOC",
    "PYTHONNODEBUGRANGES", "PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED",
)  # fmt: skip
"""The only environment variables whose values are stored: they change timings, and hold no secret and no path."""

SHORT = 0.5
"""A window shorter than half of what was asked for is worth a word."""
MOST_ERRORS = 0.05
"""Share of failed py-spy samples up to which the rest can stand for all."""


def draft(command: Sequence[str]) -> Manifest:
    """The manifest as it stands before the command runs: what a recorder that is killed leaves."""
    return Manifest(
        created_unix_ns=time.time_ns(),
        command=list(command),
        environment={
            "python": platform.python_version(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "loadavg": list(os.getloadavg()),
            "settings": {name: os.environ[name] for name in PYTHON_SETTINGS if name in os.environ},
        },
        host=platform.node(),
        notes=[Note(code="unfinished", says="the recorder did not finish this capture")],
    )


def finish(
    folder: Path, manifest: Manifest, wanted: Collection[str], watcher: Watcher, results: Sequence[Path]
) -> Manifest:
    """The final manifest of `folder`; packs the traces on the way, and copies in the measurement files `results`."""
    sidecars, spies = watcher.sidecars, watcher.spies
    manifest.notes = list(watcher.notes)
    manifest.processes = [_process(pid, sidecar) for pid, sidecar in sorted(sidecars.items())]
    manifest.sources = []
    for process in manifest.processes:
        sidecar = sidecars[process.pid]
        manifest.notes += _process_notes(process, sidecar, wanted, watcher.seconds)
        manifest.sources += _sources(folder, process, sidecar, spies.get(process.pid), manifest.notes)
        if facts := _dict(sidecar, "torch"):
            manifest.environment |= {"torch": facts.get("version")} | {k: facts.get(k) for k in ("cuda", "triton")}
            manifest.device = _dict(facts, "device") or manifest.device
    read, manifest.roofs = device.merged(sidecars.values())
    manifest.device |= read
    manifest.sources += _shared_sources(folder, results, manifest.notes)
    ranks = sorted({process.rank for process in manifest.processes if process.rank is not None})
    manifest.ranks_present = ranks or None
    manifest.ranks_expected = max((p.world_size or 0 for p in manifest.processes), default=0) or None
    manifest.notes += _capture_notes(manifest, wanted)
    return manifest


def _process(pid: int, sidecar: Mapping[str, Any]) -> Process:
    try:
        return msgspec.convert(dict(sidecar) | {"pid": pid}, Process)
    except msgspec.ValidationError as error:
        return Process(pid=pid, state="failed", errors=[f"sidecar: {error}"])


def _sources(
    folder: Path, process: Process, sidecar: Mapping[str, Any], spy: Spy | None, notes: list[Note]
) -> list[Source]:
    found = []
    pid, clock = process.pid, gil.offset(process.anchors)
    exported = folder / f"torch.{pid}.json"
    if exported.is_file():
        complete = process.state == "done"
        options = {k: v for k, v in _dict(sidecar, "torch").items() if k in ("activities", "with_stack")}
        options["profile_all_threads"] = _dict(sidecar, "torch").get("profile_all_threads")
        if not complete:
            says = f"torch.{pid}.json.gz: the process ended while it was written: its end is missing"
            notes.append(Note(code="trace-cut", says=says))
        source = _source(torch.pack(exported), "kineto", pid, (0, torch.ALIGN_HALFWIDTH_NS))
        source.options = options | {"complete": complete}
        found.append(source)
    ticks = folder / f"gil.{pid}.jsonl"
    if ticks.is_file():
        found.append(_source(ticks, "gil_probe", pid, clock))
    if spy is None:
        return found
    if (refusal := spy.refusal()) is not None:
        code = "pyspy-refused" if spy.refused() else "pyspy-failed"
        cure = "; run as the same user with ptrace allowed (root, or CAP_SYS_PTRACE)" if spy.refused() else ""
        notes.append(Note(code=code, says=f"py-spy recorded nothing of process {pid}: {refusal}{cure}"))
        return found
    alignment = spy.alignment(_beacons(sidecar))
    source = _source(spy.path, "pyspy", pid, _on_realtime(alignment, clock))
    source.options = spy.options()
    samples, errors = source.options["samples"], source.options["errors"]
    if samples is not None and errors > MOST_ERRORS * samples:
        says = f"pyspy.{pid}.json: {errors} errors beside {samples} samples: what is missing may not be missing evenly"
        notes.append(Note(code="pyspy-errors", says=says))
    if alignment is not None:
        source.options |= {"how_aligned": alignment.how, "beacons_seen": alignment.beacons}
        if alignment.how == "exit":
            says = f"pyspy.{pid}.json: {alignment.beacons} of its beacons seen, so placed by its exit, within 5 ms only"
            notes.append(Note(code="pyspy-aligned-by-exit", says=says))
    else:
        notes.append(Note(code="pyspy-unreadable", says=f"pyspy.{pid}.json: empty or cut short"))
    return [*found, source]


def _shared_sources(folder: Path, results: Sequence[Path], notes: list[Note]) -> list[Source]:
    """What lies in the capture and belongs to no one process: kernels, the program's events and measurements."""
    found = [_source(path, "triton", None, None) for path in triton.artifacts(folder)]
    for path in sorted(folder.glob("events.*.pftrace")):
        pid = path.name.split(".")[1]
        known = int(pid) if pid.isdecimal() else None
        found.append(_source(path, "perfetto", known, (0, events.ALIGN_HALFWIDTH_NS)))
    files, failed = measurements.collect(folder, results)
    notes += [Note(code="measurements-not-copied", says=each) for each in failed]
    return found + [_source(path, "measurements", None, None) for path in files]


def _source(path: Path, kind: str, pid: int | None, clock: tuple[int, int] | None) -> Source:
    offset_ns, halfwidth_ns = clock if clock is not None else (None, None)
    return Source(
        path=path.name if kind != "triton" else f"{triton.FOLDER}/{path.name}",
        kind=kind,
        pid=pid,
        sha256=file_sha256(path),
        bytes=path.stat().st_size,
        offset_ns=offset_ns,
        align_halfwidth_ns=halfwidth_ns,
    )


def _on_realtime(alignment: Alignment | None, clock: tuple[int, int] | None) -> tuple[int, int] | None:
    if alignment is None or clock is None:
        return None
    return alignment.offset_ns + clock[0], alignment.halfwidth_ns + clock[1]


def _beacons(sidecar: Mapping[str, Any]) -> list[list[int]]:
    try:
        return msgspec.convert(sidecar.get("beacons", []), list[list[int]])
    except msgspec.ValidationError:
        return []


def _dict(sidecar: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = sidecar.get(key)
    return value if isinstance(value, dict) else {}


def _process_notes(process: Process, sidecar: Mapping[str, Any], wanted: Collection[str], seconds: float) -> list[Note]:
    notes = [Note(code="process-error", says=f"process {process.pid}: {error}") for error in process.errors]
    where = f"process {process.pid} ({process.name})"
    if process.state in ("recording", "closed"):
        says = f"{where} ended {'inside' if process.state == 'recording' else 'just after'} its window, without closing"
        notes.append(Note(code="process-killed", says=f"{says} it: no torch trace of it, or a cut one"))
    elif process.window is None and process.state != "failed":
        says = f"{where} ended before a window opened; record with a smaller --delay"
        notes.append(Note(code="ended-before-window", says=says))
    lasted_s = _length_s(process)
    if lasted_s is not None and lasted_s < SHORT * seconds:
        says = (
            f"{where} recorded {lasted_s * 1e3:,.1f} ms of {seconds:g} s: it ended, or a held GIL kept the recorder out"
        )
        notes.append(Note(code="window-short", says=says))
    facts = _dict(sidecar, "torch")
    if process.window is not None and "torch" in wanted and not facts and process.state == "done":
        notes.append(Note(code="no-torch", says=f"{where} had not imported torch: no torch trace of it"))
    if facts.get("cuda_not_initialised"):
        says = f"{where} had not initialised CUDA when the window opened: its GPU work was not recorded; raise --delay"
        notes.append(Note(code="cuda-not-initialised", says=says))
    return notes


def _length_s(process: Process) -> float | None:
    """Length of a closed window."""
    window = process.window
    return (window.end_unix_ns - window.start_unix_ns) / 1e9 if window and window.end_unix_ns is not None else None


def _capture_notes(manifest: Manifest, wanted: Collection[str]) -> list[Note]:
    notes = []
    if not manifest.processes:
        says = "no Python process reported: the command runs none, or runs it with -S, -I or -E, or for under 0.2 s"
        notes.append(Note(code="no-process", says=says))
    elif "torch" in wanted and not any(source.kind == "kineto" for source in manifest.sources):
        notes.append(Note(code="no-torch-trace", says="no torch trace was recorded; the notes on processes say why"))
    windows = [p.window for p in manifest.processes if p.window is not None and p.window.end_unix_ns is not None]
    if len(windows) > 1:
        start = max(window.start_unix_ns for window in windows)
        if start >= min(window.end_unix_ns or 0 for window in windows):
            says = "the processes' windows have no moment in common; a larger --delay records all at once"
            notes.append(Note(code="windows-apart", says=says))
    return notes
