"""The capture folder `NAME.capture/`: its manifest, and the one clock that its sources share.

Knows no trace format: a source here is a file, a kind and an offset to CLOCK_REALTIME. Only `open`, `verify` and
presenters look at a manifest; a detector never does. A manifest from a stranger is data to check, not to believe.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from tracelens.errors import TracelensError

SCHEMA = "tracelens.capture/1"
"""Within a major version there are only additions; readers ignore fields that they don't know."""
MANIFEST = "manifest.json"
SCHEMA_MARK = b"tracelens.capture/"
HEAD_BYTES = 4096
"""The schema is the manifest's first field: this much of it tells."""
MAX_MANIFEST_BYTES = 16 << 20
"""A manifest is about 2 kB a process: 16 MiB is thousands of ranks, and anything larger is not a manifest."""

Ns = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Anchor(msgspec.Struct, kw_only=True):
    """One moment on both clocks: CLOCK_MONOTONIC and CLOCK_REALTIME, read within `halfwidth_ns`."""

    monotonic_ns: Ns
    realtime_ns: Ns
    halfwidth_ns: Count | None = None


class Gil(msgspec.Struct, kw_only=True):
    """Whether the interpreter has a GIL: as built, and as it runs (None: it did not say)."""

    build_disabled: bool | None = None
    enabled: bool | None = None


class Thread(msgspec.Struct, kw_only=True):
    """One Python thread: Kineto names it by `os_tid`, py-spy by `pthread_id`."""

    os_tid: Ns | None = None
    pthread_id: Ns | None = None
    name: str | None = None


class Window(msgspec.Struct, kw_only=True):
    """What part of the run was recorded, CLOCK_REALTIME ns; no end if the process died inside it."""

    start_unix_ns: Ns
    end_unix_ns: Ns | None = None


class Process(msgspec.Struct, kw_only=True):
    """One recorded Python process.

    `state` is how far the recording came: waiting (no torch yet), importing, ready, recording, closed, done, failed.
    """

    pid: Count
    ppid: Count | None = None
    role: str | None = None
    rank: int | None = None
    world_size: int | None = None
    name: str | None = None
    python: str | None = None
    gil: Gil = msgspec.field(default_factory=Gil)
    switch_interval_ns: Count | None = None
    threads: list[Thread] = []
    probe_os_tid: Ns | None = None
    recorder_os_tid: Ns | None = None
    anchors: list[Anchor] = []
    window: Window | None = None
    state: str = "waiting"
    errors: list[str] = []


class Source(msgspec.Struct, kw_only=True):
    """One recorded file. Its own clock plus `offset_ns` is CLOCK_REALTIME, right within `align_halfwidth_ns`."""

    path: str
    kind: str
    pid: Count | None = None
    sha256: str | None = None
    bytes: Count | None = None
    offset_ns: Ns | None = None
    align_halfwidth_ns: Count | None = None
    options: dict[str, Any] = {}


class Note(msgspec.Struct, kw_only=True):
    """Something that a reader of the capture must know: what is missing, and why."""

    code: str
    says: str


class Manifest(msgspec.Struct, kw_only=True):
    """What `manifest.json` says."""

    schema: str = SCHEMA
    created_unix_ns: Ns
    command: list[str] = []
    environment: dict[str, Any] = {}
    host: str | None = None
    processes: list[Process] = []
    sources: list[Source] = []
    roofs: dict[str, float] = {}
    device: dict[str, Any] = {}
    ranks_expected: Count | None = None
    ranks_present: list[int] | None = None
    notes: list[Note] = []


def is_capture(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a folder with our manifest in it (which may still be damaged); others have manifests too."""
    try:
        with open(Path(path) / MANIFEST, "rb") as file:
            return SCHEMA_MARK in file.read(HEAD_BYTES)
    except OSError:
        return False


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `folder/manifest.json` in one step: a reader sees the old one or the new one, never half of one."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    scratch = folder / f"{MANIFEST}.tmp"
    scratch.write_bytes(text + b"\n")
    scratch.replace(folder / MANIFEST)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a capture folder; TracelensError, by name and field, for one that cannot be trusted."""
    root = Path(folder)
    path = root / MANIFEST
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise TracelensError(
            f"{root}: not a capture: it has no {MANIFEST}", "a capture is what `tracelens record` writes"
        ) from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_MANIFEST_BYTES:
        raise TracelensError(f"{path}: larger than {MAX_MANIFEST_BYTES:,} bytes, so no manifest")
    try:
        head = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TracelensError(f"{path}: not JSON: {error}", "the recording may have been cut short") from error
    schema = head.get("schema") if isinstance(head, dict) else None
    if schema != SCHEMA:
        raise TracelensError(
            f"{path}: schema is {str(schema)[:60]!r}, this version reads {SCHEMA!r}", "upgrade tracelens?"
        )
    try:
        manifest = msgspec.convert(head, Manifest)
    except (msgspec.ValidationError, RecursionError) as error:
        raise TracelensError(f"{path}: {error}") from error
    for source in manifest.sources:
        source_path(root, source)
    return manifest


def source_path(folder: str | os.PathLike[str], source: Source) -> Path:
    """Where a source's file lies; TracelensError if its path would lead out of the capture, also through a link."""
    root = Path(folder)
    pure = PurePosixPath(source.path)
    inside = source.path and "\0" not in source.path and not pure.is_absolute() and ".." not in pure.parts
    if inside:
        try:
            inside = (root / pure).resolve().is_relative_to(root.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False
    if not inside:
        raise TracelensError(
            f"{root / MANIFEST}: source path {source.path[:120]!r} leads out of the capture",
            "a capture holds its files itself; don't trust this one",
        )
    return root / pure


def verify_sources(folder: str | os.PathLike[str], manifest: Manifest) -> list[Note]:
    """What is wrong with the files that the manifest names: a note for each missing or changed one, else empty."""
    notes = []
    for source in manifest.sources:
        path = source_path(folder, source)
        if not path.is_file():
            notes.append(Note(code="source-missing", says=f"{source.path}: named in the manifest, not in the capture"))
        elif source.sha256 is not None and file_sha256(path) != source.sha256:
            says = f"{source.path}: changed since it was recorded (sha256 differs)"
            notes.append(Note(code="source-changed", says=says))
    return notes


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
