"""Open files, captures and folders as one Trace: sniff by content, read, place on one clock.

A file is whatever its content says; the highest sniff score reads it, a tie is an error naming both readers. In a
folder, files that nobody reads are counted and left out. Knows no format.
"""

from __future__ import annotations

import glob
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from tracelens import capture
from tracelens.contracts import Alignment, Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.merging import Part, merge, with_facts
from tracelens.plugins import Plugins
from tracelens.streams import HEAD, unreadable
from tracelens.trace import Provenance, SourceFile, Trace

MAX_FILES = 10_000
"""More files than this in one folder is a wrong path, not a profile."""
_SKIPPED_SUFFIXES = (".pickle", ".pkl", ".pt", ".cubin", ".so", ".o", ".py", ".pyc", ".md", ".toml", ".log")
"""Never opened when found in a folder: pickles can run code, the rest holds no events."""

_HARMLESS = ("no-torch",)
"""Notes of a recording that only describe it: a launcher that never imports torch has nothing to trace."""


@dataclass(frozen=True)
class OpenOptions:
    """What the user adds to what the files say.

    `pyspy_gil`: py-spy files were recorded with --gil. `strict`: any loss is an error. `roofs` and `kernel_bytes` are
    measured ceilings and bytes moved a launch, by kernel name pattern.
    """

    pyspy_gil: bool = False
    strict: bool = False
    roofs: Mapping[str, float] = field(default_factory=dict)
    kernel_bytes: Mapping[str, int] = field(default_factory=dict)


def open_trace(*paths: str, plugins: Plugins, options: OpenOptions = OpenOptions()) -> Trace:
    """Read all `paths` ("-" is standard input) into one Trace.

    Raises TracelensError for what cannot be read, and in strict mode for any loss.
    """
    if not paths:
        raise TracelensError("nothing to open", "name a trace file, a capture or a folder")
    with _stdin_copied(paths) as places:
        parts = [part for name, path in places for part in _open_place(name, path, plugins, options)]
    trace = merge(parts)
    trace = replace(trace, health=trace.health.folded())
    trace = with_facts(
        trace,
        roofs={**trace.facts.roofs, **options.roofs},
        kernel_bytes={**trace.facts.kernel_bytes, **options.kernel_bytes},
    )
    if options.strict and (lossy := trace.health.lossy()):
        first = lossy[0]
        raise TracelensError(
            f"{first.where or 'trace'}: {first.says} ({len(lossy)} such entries)",
            "leave out --strict to analyse anyway",
        )
    return trace


@contextmanager
def _stdin_copied(paths: Sequence[str]) -> Iterator[list[tuple[str, Path]]]:
    """(name, path) of every place, globs expanded and sorted; standard input copied to a file while it is needed."""
    with tempfile.TemporaryDirectory(prefix="tracelens-") as folder:
        places: dict[str, Path] = {}
        for given in paths:
            if given == "-":
                copy = Path(folder) / "stdin"
                with copy.open("wb") as file:
                    while block := sys.stdin.buffer.read(1 << 20):
                        file.write(block)
                places["-"] = copy
            elif any(mark in given for mark in "*?[") and not Path(given).exists():
                found = sorted(glob.glob(given, recursive=True))
                if not found:
                    raise TracelensError(f"{given}: matches no file", "quote the pattern, or check the path")
                places.update((name, Path(name)) for name in found)
            else:
                places[given] = Path(given)
        yield sorted(places.items())


def _open_place(name: str, path: Path, plugins: Plugins, options: OpenOptions) -> list[Part]:
    if not path.is_dir():
        return [_read(Source(name, path, options=_given(options)), plugins)]
    if capture.is_capture(path):
        return [Part(name, _open_capture(name, path, plugins, options))]
    return _open_folder(name, path, plugins, options)


def _given(options: OpenOptions) -> dict[str, str | int | float | bool | None]:
    return {"gil": True} if options.pyspy_gil else {}


def _open_folder(name: str, folder: Path, plugins: Plugins, options: OpenOptions) -> list[Part]:
    """Every readable trace below a folder, in sorted order."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(files) > MAX_FILES:
        raise TracelensError(f"{name}: holds {len(files):,} files", "name the profile's own folder")
    parts, unread = [], []
    for path in files:
        source = Source(str(Path(name) / path.relative_to(folder)), path, options=_given(options))
        if path.suffix in _SKIPPED_SUFFIXES or not path.stat().st_size or _reader(source, plugins) is None:
            unread.append(source.name)
            continue
        parts.append(_read(source, plugins))
    if not parts:
        raise TracelensError(
            f"{name}: no trace in this folder (files looked at: {len(files)})", "name a trace file or a capture folder"
        )
    if unread:
        parts[0].trace.health.add(
            "folder.unread-files",
            "info",
            f"files without a trace, left out: {len(unread)}",
            count=len(unread),
            where=unread[0],
        )
    return parts


def _open_capture(name: str, folder: Path, plugins: Plugins, options: OpenOptions) -> Trace:
    """One capture folder: its manifest says what each file is, whose it is and how its clock maps to real time."""
    manifest = capture.read_manifest(folder)
    processes = {process.pid: process for process in manifest.processes}
    health = Health()
    for note in (*manifest.notes, *capture.verify_sources(folder, manifest)):
        health.add(note.code, "info" if note.code in _HARMLESS else "warning", note.says, where=name)
    parts = []
    for item in sorted(manifest.sources, key=lambda source: source.path):
        aligned = item.offset_ns is not None
        source = Source(
            str(Path(name) / item.path),
            folder / item.path,
            Alignment(item.offset_ns or 0, item.align_halfwidth_ns or 0) if aligned else None,
            {**_given(options), **item.options, "process_id": item.pid},
        )
        try:
            part = _read(source, plugins)
        except TracelensError as error:
            health.add("capture.unread-source", "warning", error.message, where=source.name)
            continue
        process = processes.get(item.pid) if item.pid is not None else None
        parts.append(Part(part.name, _described(part.trace, process)))
    if not parts:
        why = next(iter(health)).says if len(health) else "its manifest lists no sources"
        raise TracelensError(f"{name}: nothing in this capture can be read: {why}", "record again")
    trace = merge(parts)
    health.extend(trace.health)
    recorders = ((each.pid, tid) for each in manifest.processes for tid in (each.probe_os_tid, each.recorder_os_tid))
    ours = tuple(sorted((pid, tid) for pid, tid in recorders if tid is not None))
    trace = with_facts(trace, roofs={**trace.facts.roofs, **manifest.roofs}, recorder_threads=ours)
    trace = replace(trace, samples=_of_the_program(trace, ours))
    return replace(trace, health=health, provenance=replace(trace.provenance, manifest=manifest))


def _of_the_program(trace: Trace, recorder_threads: tuple[tuple[int, int], ...]) -> pl.DataFrame:
    """The samples less those of the recorder's own threads: their beacons only align clocks."""
    places = trace.tracks.filter(pl.col("kind") == "thread").select("track_id", "process_id", "thread_id")
    ours = [track for track, *thread in places.iter_rows() if tuple(thread) in recorder_threads]
    return trace.samples.filter(~pl.col("track_id").is_in(ours))


def _described(trace: Trace, process: capture.Process | None) -> Trace:
    """The trace with what the manifest knows of its process: rank, role, process and thread names."""
    if process is None:
        return trace
    names = {thread.os_tid: thread.name for thread in process.threads}
    tracks = trace.tracks.with_columns(
        pl.coalesce("rank", pl.lit(process.rank, pl.Int32)).alias("rank"),
        pl.coalesce("role", pl.lit(process.role, pl.String)).alias("role"),
        pl.coalesce(pl.lit(process.name, pl.String), "process").alias("process"),
        pl.coalesce(
            pl.col("thread_id").replace_strict(names, default=None, return_dtype=pl.String)
            if names
            else pl.lit(None, pl.String),
            "thread",
        ).alias("thread"),
    )
    known = trace.health.without("rank.unknown") if process.rank is not None else trace.health
    return replace(trace, tracks=tracks, health=known)


def _reader(source: Source, plugins: Plugins) -> Reader | None:
    """The reader that recognises a file best, or None."""
    head = source.open(Health()).head(HEAD)
    scored = sorted(
        ((reader.sniff(head, source.name), reader) for reader in plugins.readers()),
        key=lambda scored: (-scored[0], scored[1].name),
    )
    if not scored or scored[0][0] <= 0:
        return None
    if len(scored) > 1 and scored[0][0] == scored[1][0]:
        raise TracelensError(
            f"{source.name}: two readers recognise this file: {scored[0][1].name} and {scored[1][1].name}",
            "uninstall one of them, or choose with TRACELENS_PLUGINS",
        )
    return scored[0][1]


def _read(source: Source, plugins: Plugins) -> Part:
    health = Health()
    stream = source.open(Health())
    if not stream.head(1):
        what = "compressed nothing" if stream.size else "0 bytes"
        raise TracelensError(
            f"{source.name}: the file is empty ({what})",
            "the profiler wrote nothing (pytorch/pytorch#167601), or py-spy saw no sample: record again",
        )
    reader = _reader(source, plugins)
    if reader is None:
        known = ", ".join(reader.says for reader in plugins.readers())
        raise TracelensError(f"{source.name}: not a trace that any reader knows", f"known: {known}")
    try:
        trace = reader.read(source, health)
    except OSError as error:
        raise unreadable(source.name, error) from error
    if trace.health is not health:
        health.extend(trace.health)
    file = SourceFile(source.name, reader.name, stream.size)
    return Part(source.name, replace(trace, health=health, provenance=Provenance(sources=(file,))))
