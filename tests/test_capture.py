"""The manifest: it survives a round trip; a hostile one ends in a clear error, never in a read outside the capture."""

import json

import msgspec
import pytest

from tracelens.capture import (
    MANIFEST,
    Anchor,
    Manifest,
    Note,
    Process,
    Source,
    Thread,
    Window,
    is_capture,
    read_manifest,
    source_path,
    verify_sources,
    write_manifest,
)
from tracelens.errors import TracelensError

SMALLEST = {"schema": "tracelens.capture/1", "created_unix_ns": 1}


def put(folder, value):
    (folder / MANIFEST).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return folder


def with_source(path):
    return SMALLEST | {"sources": [{"path": path, "kind": "kineto"}]}


def test_round_trip(tmp_path):
    manifest = Manifest(
        created_unix_ns=1_790_857_026_000_000_123,
        command=["python", "serve.py", "--port", "8000"],
        environment={"python": "3.11.7", "cores": 2},
        processes=[
            Process(
                pid=7,
                threads=[Thread(os_tid=7, pthread_id=140_470_959_512_448, name="MainThread")],
                anchors=[Anchor(monotonic_ns=5, realtime_ns=1_790_857_026_000_000_128)],
                window=Window(start_unix_ns=3, end_unix_ns=4),
                rank=0,
                world_size=2,
            )
        ],
        sources=[Source(path="gil.7.jsonl", kind="gil_probe", pid=7, offset_ns=-5, align_halfwidth_ns=200)],
        roofs={"copy_bytes_per_second": 4.28e12},
        notes=[Note(code="no-torch", says="…")],
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert is_capture(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST]


def test_fields_of_a_later_minor_version_are_ignored(tmp_path):
    later = SMALLEST | {"mood": "good", "sources": [{"path": "a", "kind": "kineto", "colour": [1, {"b": 2}]}]}
    assert read_manifest(put(tmp_path, later)).sources[0].path == "a"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b"null",
        b"[]",
        b'"tracelens.capture/1"',
        {},
        {"schema": "tracelens.capture/2", "created_unix_ns": 1},
        {"schema": {"a": 1}},
        {"schema": "tracelens.capture/1"},
        SMALLEST | {"created_unix_ns": "soon"},
        SMALLEST | {"created_unix_ns": 10**30},
        SMALLEST | {"created_unix_ns": 1.5},
        SMALLEST | {"processes": {"pid": 1}},
        SMALLEST | {"processes": [{"pid": -1}]},
        SMALLEST | {"processes": [{"pid": 1, "anchors": [{"monotonic_ns": 1}]}]},
        SMALLEST | {"sources": [{"kind": "kineto"}]},
        SMALLEST | {"sources": [{"path": "a", "kind": "kineto", "bytes": 2**70}]},
        SMALLEST | {"roofs": {"copy": "fast"}},
        b'{"schema": "tracelens.capture/1", "created_unix_ns": 1, "roofs": {"copy": NaN}}',
    ],
    ids=lambda value: repr(value)[:50],
)
def test_absurd_manifests_end_in_a_clear_error(tmp_path, value):
    with pytest.raises(TracelensError) as caught:
        read_manifest(put(tmp_path, value))
    assert str(tmp_path) in caught.value.message
    assert len(caught.value.message) < 1000


def test_every_cut_of_a_manifest_is_an_error(tmp_path):
    write_manifest(tmp_path, Manifest(created_unix_ns=1, sources=[Source(path="a", kind="kineto")]))
    whole = (tmp_path / MANIFEST).read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        with pytest.raises(TracelensError):
            read_manifest(put(tmp_path, whole[:length]))


def test_every_value_replaced_by_nonsense_is_an_error_or_a_manifest(tmp_path):
    whole = msgspec.to_builtins(
        Manifest(created_unix_ns=1, processes=[Process(pid=1, window=Window(start_unix_ns=1))], command=["x"])
    )
    for key in whole:
        for nonsense in (None, -1, 2**80, 1.5, "x" * 10_000, [None], {"a": {}}, True):
            try:
                assert isinstance(read_manifest(put(tmp_path, whole | {key: nonsense})), Manifest)
            except TracelensError:
                continue


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "~/../../../etc/passwd"])
def test_a_source_cannot_lead_out_of_the_capture(tmp_path, path):
    with pytest.raises(TracelensError, match="out of the capture"):
        read_manifest(put(tmp_path, with_source(path)))


def test_a_source_cannot_lead_out_through_a_link(tmp_path):
    capture, secret = tmp_path / "a.capture", tmp_path / "secret"
    capture.mkdir()
    secret.mkdir()
    (capture / "link").symlink_to(secret)
    (capture / "loop").symlink_to(capture / "loop")
    for path in ("link", "link/x"):
        with pytest.raises(TracelensError, match="out of the capture"):
            read_manifest(put(capture, with_source(path)))
    (capture / "inner").symlink_to(capture / "file")
    assert source_path(capture, Source(path="inner", kind="kineto")) == capture / "inner"


def test_a_changed_or_missing_source_is_a_note(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    manifest = Manifest(
        created_unix_ns=1,
        sources=[Source(path=path, kind="kineto", sha256=one) for path in ("a", "b", "c")],
    )
    assert [note.code for note in verify_sources(tmp_path, manifest)] == ["source-changed", "source-missing"]


def test_a_folder_without_a_manifest_is_no_capture(tmp_path):
    assert not is_capture(tmp_path)
    assert not is_capture(tmp_path / "absent")
    with pytest.raises(TracelensError, match="not a capture"):
        read_manifest(tmp_path)


def test_a_manifest_too_large_to_be_one_is_refused(tmp_path):
    with (tmp_path / MANIFEST).open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(TracelensError, match="larger"):
        read_manifest(tmp_path)


def test_a_folder_with_another_programs_manifest_is_no_capture(tmp_path):
    (tmp_path / "manifest.json").write_text('{"records": []}')
    assert not is_capture(tmp_path)
