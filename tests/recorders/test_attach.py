"""`record --pid`: samples of a process that already runs, or one clear reason why not."""

import os
import stat
import subprocess
import sys
import time

import pytest

from tracelens import opening, plugins
from tracelens.__main__ import main
from tracelens.capture import read_manifest, verify_sources
from tracelens.errors import TracelensError
from tracelens.recorders import attach as attaching
from tracelens.recorders import pyspy
from tracelens.recorders.attach import attach

needs_pyspy = pytest.mark.skipif(pyspy.binary() is None, reason="py-spy is not installed")
BUSY = (
    "import time\ndef compute():\n    end = time.monotonic() + 30\n    while time.monotonic() < end: pass\ncompute()\n"
)


@pytest.fixture
def busy(tmp_path):
    (tmp_path / "busy.py").write_text(BUSY)
    process = subprocess.Popen([sys.executable, str(tmp_path / "busy.py"), "--token=hunter2"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.record
@needs_pyspy
def test_a_running_process_is_sampled(busy, tmp_path):
    time.sleep(0.5)
    before = time.time_ns()
    try:
        recording = attach(busy.pid, tmp_path / "a.capture", seconds=1)
    except TracelensError as refused:
        assert "SYS_PTRACE" in refused.hint or "ptrace_scope" in refused.hint
        pytest.skip(refused.message)
    after = time.time_ns()
    assert busy.poll() is None
    assert recording.exit_code == 0
    manifest = read_manifest(recording.folder)
    (source,) = manifest.sources
    assert verify_sources(recording.folder, manifest) == []
    assert (source.kind, source.pid, source.options["gil"]) == ("pyspy", busy.pid, True)
    assert (source.options["how_aligned"], source.align_halfwidth_ns // 1_000_000) == ("exit", 5)
    assert [note.code for note in manifest.notes] == ["pyspy-aligned-by-exit"]
    assert stat.S_IMODE(recording.folder.stat().st_mode) == 0o700
    assert b"hunter2" not in b"".join(path.read_bytes() for path in recording.folder.iterdir())
    trace = opening.open_trace(str(recording.folder), plugins=plugins.load())
    assert trace.samples["gil"].all()
    assert trace.samples.height > 0
    assert "compute" in trace.frames["function"].to_list()
    times = trace.samples["at_ns"].drop_nulls() + trace.origin_unix_ns
    assert before - 10_000_000 <= times.min() <= times.max() <= after + 10_000_000


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A py-spy that says something and ends."""

    def say(text):
        program = tmp_path / "py-spy"
        program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
        program.chmod(0o755)
        monkeypatch.setattr(pyspy, "binary", lambda: str(program))

    return say


@pytest.mark.parametrize(
    ("owner", "scope", "words"),
    [
        (0, None, "SYS_PTRACE"),
        (0, "1", "ptrace_scope is 1"),
        (4242, None, "belongs to user 4242"),
    ],
)
def test_a_refusal_says_why_and_what_else_there_is(fake, tmp_path, monkeypatch, owner, scope, words):
    fake("Error: Permission Denied: Try running again with elevated permissions")
    read = attaching._read
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if owner else 0)
    monkeypatch.setattr(attaching, "_owner", lambda pid: owner)
    monkeypatch.setattr(attaching, "_read", lambda path: scope if path.endswith("ptrace_scope") else read(path))
    with pytest.raises(TracelensError, match="could not read it: Error: Permission Denied") as caught:
        attach(os.getpid(), tmp_path / "a.capture", seconds=0.1)
    assert words in caught.value.hint
    assert "tracelens record -- COMMAND" in caught.value.hint
    assert not (tmp_path / "a.capture").exists()


def test_a_process_that_is_no_python_is_said_in_py_spys_words(fake, tmp_path):
    fake("Error: Failed to find python version from target process")
    with pytest.raises(TracelensError, match="Failed to find python version"):
        attach(os.getpid(), tmp_path / "a.capture", seconds=0.1)
    assert not (tmp_path / "a.capture").exists()


def test_what_cannot_be_recorded_so_is_refused_before_anything_starts(tmp_path, monkeypatch):
    with pytest.raises(TracelensError, match="torch cannot be recorded in a process that already runs"):
        attach(os.getpid(), tmp_path / "a.capture", ["torch", "pyspy"])
    with pytest.raises(TracelensError, match="no such process"):
        attach(2**22 + 5, tmp_path / "a.capture")
    with pytest.raises(TracelensError, match="--seconds nan"):
        attach(os.getpid(), tmp_path / "a.capture", seconds=float("nan"))
    monkeypatch.setattr(pyspy, "binary", lambda: None)
    with pytest.raises(TracelensError, match="needs py-spy"):
        attach(os.getpid(), tmp_path / "a.capture")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", [["--", "python", "x.py"], ["--measurements", "x.json"]])
def test_pid_stands_alone(capsys, extra):
    assert main(["record", "--pid", str(os.getpid()), *extra]) == 2
    assert "tracelens: error: --pid" in capsys.readouterr().err
