"""Live recordings: whatever the command does, the capture is complete or says what is missing."""

import gzip
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tracelens.capture import is_capture, read_manifest, verify_sources
from tracelens.errors import TracelensError
from tracelens.recorders import pyspy
from tracelens.recorders.together import RECORDERS, default_folder, record

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
needs_pyspy = pytest.mark.skipif(pyspy.binary() is None, reason="py-spy is not installed")

TARGET = """
import sys, threading, time
import torch
from torch.profiler import record_function

def transfer(stop):
    while not stop.is_set():
        with record_function("send_block"):
            torch.ones(8) + 1
            time.sleep(0.001)

def main(length):
    stop = threading.Event()
    thread = threading.Thread(target=transfer, args=(stop,), name="kv-transfer")
    thread.start()
    end = time.monotonic() + length
    while time.monotonic() < end:
        with record_function("dispatch"):
            sorted([3, 2, 1])
            time.sleep(0.002)
    stop.set()
    thread.join()
    return thread.native_id
"""


@pytest.fixture
def script(tmp_path):
    def write(text, name="target.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return [sys.executable, str(path)]

    return write


def codes(manifest):
    return {note.code for note in manifest.notes}


def kinds(manifest):
    return sorted(source.kind for source in manifest.sources)


def trace(folder, manifest, pid=None):
    (source,) = [s for s in manifest.sources if s.kind == "kineto" and pid in (None, s.pid)]
    with gzip.open(folder / source.path) as file:
        return json.load(file)


@pytest.mark.record
@needs_torch
def test_a_script_is_recorded_end_to_end(script, tmp_path, capfd):
    command = script(TARGET + "print('thread', main(2.5))\nprint('done', file=sys.stderr)\n")
    folder = tmp_path / "run.capture"
    lines = []
    recording = record(command, folder, ("torch", "gil"), seconds=1, delay=0.2, say=lines.append)
    out, err = capfd.readouterr()
    assert (recording.exit_code, err, lines) == (0, "done\n", ["recording 1 process(es), 1 s"])
    manifest = read_manifest(folder)
    assert manifest == recording.manifest
    assert (kinds(manifest), codes(manifest)) == (["gil_probe", "kineto"], set())
    assert verify_sources(folder, manifest) == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (process,) = manifest.processes
    assert sorted(path.name for path in folder.iterdir()) == [
        f"gil.{process.pid}.jsonl",
        "manifest.json",
        f"process.{process.pid}.json",
        f"torch.{process.pid}.json.gz",
    ]
    names = {thread.os_tid: thread.name for thread in process.threads}
    assert names[int(out.split()[1])] == "kv-transfer"
    assert names[process.probe_os_tid] == "tracelens-gil-probe"
    assert 0.8e9 < process.window.end_unix_ns - process.window.start_unix_ns < 1.2e9
    recorded = trace(folder, manifest)
    spans = {(e["name"], names.get(e["tid"])) for e in recorded["traceEvents"] if e.get("cat") == "user_annotation"}
    assert {("dispatch", "MainThread"), ("send_block", "kv-transfer")} <= spans
    python = {names.get(e["tid"]) for e in recorded["traceEvents"] if e.get("cat") == "python_function"}
    assert {"MainThread", "kv-transfer"} <= python
    starts = [recorded["baseTimeNanoseconds"] + e["ts"] * 1000 for e in recorded["traceEvents"] if e.get("ph") == "X"]
    assert abs(min(starts) - process.window.start_unix_ns) < 0.1e9
    probe = next(source for source in manifest.sources if source.kind == "gil_probe")
    rows = [json.loads(line) for line in (folder / probe.path).read_text().splitlines()[1:-1]]
    wakes = [row[0] + probe.offset_ns for chunk in rows for row in chunk]
    assert abs(wakes[0] - process.window.start_unix_ns) < 0.3e9
    assert abs(wakes[-1] - process.window.end_unix_ns) < 0.3e9


@pytest.mark.record
@needs_torch
@needs_pyspy
def test_py_spy_is_placed_on_the_same_clock(script, tmp_path):
    recording = record(script(TARGET + "main(2.5)\n"), tmp_path / "run.capture", seconds=1, delay=0.2)
    manifest = recording.manifest
    assert kinds(manifest) == ["gil_probe", "kineto", "pyspy"] or codes(manifest) & {"pyspy-refused", "pyspy-failed"}
    for source in manifest.sources:
        if source.kind == "pyspy":
            assert source.options["gil"] is True
            assert source.options["samples"] > 0
            assert source.align_halfwidth_ns <= 5_100_000


@pytest.mark.record
@needs_torch
def test_spawned_children_record_themselves_in_the_same_window(script, tmp_path):
    command = script(
        """
        import multiprocessing, sys
        def work():
            import target
            target.main(4)
        if __name__ == "__main__":
            spawn = multiprocessing.get_context("spawn")
            children = [spawn.Process(target=work, name=f"engine-{i}") for i in range(2)]
            [child.start() for child in children]
            [child.join() for child in children]
            sys.exit(sum(child.exitcode for child in children))
        """,
        "stack.py",
    )
    script(TARGET)
    recording = record(command, tmp_path / "run.capture", ("torch", "gil"), seconds=1, delay=0.2)
    manifest = recording.manifest
    assert recording.exit_code == 0
    names = {process.pid: process.name for process in manifest.processes}
    assert sorted(names.values()) == ["engine-0", "engine-1", "stack.py"]
    assert sorted(names[s.pid] for s in manifest.sources if s.kind == "kineto") == ["engine-0", "engine-1"]
    assert len([s for s in manifest.sources if s.kind == "gil_probe"]) == 3
    assert codes(manifest) == {"no-torch"}  # the launcher never imports it
    starts = [process.window.start_unix_ns for process in manifest.processes]
    assert max(starts) - min(starts) < 0.1e9


@pytest.mark.record
@needs_torch
def test_forked_children_record_themselves(script, tmp_path):
    command = script(
        TARGET
        + """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=main, args=(60,), daemon=True, name="forked")
    child.start()
    main(5)
    child.terminate()
    child.join()
    ends = multiprocessing.get_context("fork").Process(target=main, args=(2,), name="ends")
    ends.start()
    ends.join()
"""
    )
    recording = record(command, tmp_path / "run.capture", ("torch", "gil"), seconds=0.5, delay=0.2)
    names = {process.pid: process.name for process in recording.manifest.processes}
    recorded = {names[s.pid] for s in recording.manifest.sources if s.kind == "kineto"}
    assert recorded == {"target.py", "forked", "ends"}


@pytest.mark.record
def test_a_fork_while_the_recorder_loads_itself_hangs_no_child(script, tmp_path):
    command = script("""
        import os, time
        end, children = time.monotonic() + 1, []
        while time.monotonic() < end:
            if (pid := os.fork()) == 0:
                time.sleep(0.4)
                raise SystemExit
            children.append(pid)
            time.sleep(0.005)
        deadline = time.monotonic() + 60
        while children and time.monotonic() < deadline:
            children = [pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            time.sleep(0.05)
        print("left", len(children), flush=True)
        os._exit(len(children))
    """)
    recording = record(command, tmp_path / "run.capture", ["gil"], seconds=0.2, delay=0)
    assert recording.exit_code == 0


@pytest.mark.record
@needs_torch
def test_a_forked_child_that_ends_inside_its_window_still_exports(script, tmp_path):
    command = script(
        TARGET
        + """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=main, args=(2,), name="forked")
    child.start()
    child.join()
"""
    )
    recording = record(command, tmp_path / "run.capture", ("torch", "gil"), seconds=0, delay=0.2)
    assert [process.state for process in recording.manifest.processes] == ["done", "done"]
    assert kinds(recording.manifest).count("kineto") == 2


@pytest.mark.record
@needs_torch
def test_a_program_that_raises_inside_the_window_is_recorded_to_its_end(script, tmp_path, capfd):
    command = script(TARGET + "main(1)\nraise ValueError('theirs')\n")
    recording = record(command, tmp_path / "run.capture", ("torch", "gil"), seconds=30, delay=0)
    assert "ValueError: theirs" in capfd.readouterr().err
    assert recording.exit_code == 1
    assert kinds(recording.manifest) == ["gil_probe", "kineto"]
    assert codes(recording.manifest) == {"command-failed", "window-short"}
    assert recording.manifest.processes[0].window.end_unix_ns is not None
    assert trace(recording.folder, recording.manifest)["traceEvents"]


@pytest.mark.record
@needs_torch
def test_a_program_that_is_killed_leaves_a_readable_capture(script, tmp_path):
    command = script(TARGET + "import os\nthreading.Timer(1.5, os.kill, (os.getpid(), 9)).start()\nmain(60)\n")
    recording = record(command, tmp_path / "run.capture", ("torch", "gil"), seconds=30, delay=0)
    manifest = read_manifest(recording.folder)
    assert recording.exit_code == 128 + 9
    assert codes(manifest) >= {"process-killed", "command-failed"}
    assert kinds(manifest) == ["gil_probe"]
    first, *chunks = (recording.folder / manifest.sources[0].path).read_text().splitlines()
    assert json.loads(first)["format"] == "tracelens.gil_probe/1"
    assert sum(len(json.loads(chunk)) for chunk in chunks) >= 256


@pytest.mark.record
def test_a_program_without_torch_gives_probe_and_sidecar(script, tmp_path):
    recording = record(script("import time; time.sleep(1.5)"), tmp_path / "a.capture", ["gil"], seconds=0.5, delay=0)
    assert (kinds(recording.manifest), codes(recording.manifest)) == (["gil_probe"], set())
    assert recording.manifest.environment["cores"] >= 1


@pytest.mark.record
def test_no_environment_of_the_command_is_stored(script, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("PYTHONSECRET", "hunter2")
    recording = record(script("import time; time.sleep(0.6)"), tmp_path / "a.capture", ["gil"], seconds=0.1, delay=0)
    for path in recording.folder.iterdir():
        assert b"hunter2" not in path.read_bytes()


@pytest.mark.record
def test_a_command_that_is_no_python_is_a_note(tmp_path):
    recording = record(["sh", "-c", "exit 3"], tmp_path / "a.capture", ["gil"])
    assert (recording.exit_code, codes(recording.manifest)) == (3, {"no-process", "command-failed"})


@pytest.mark.record
def test_ctrl_c_reaches_the_command_and_the_capture_is_completed(script, tmp_path):
    folder = tmp_path / "run.capture"
    target = script("""
        import time
        try:
            time.sleep(30)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    code = f"""
from pathlib import Path
from tracelens.recorders.together import record
print(record({target!r}, Path({str(folder)!r}), ["gil"], seconds=0, delay=0).exit_code)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 20
    while not list(folder.glob("gil.*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.split() == ["interrupted", "130"]
    manifest = read_manifest(folder)
    assert (kinds(manifest), codes(manifest)) == (["gil_probe"], {"interrupted"})


@pytest.mark.record
def test_ctrl_c_twice_ends_at_once(script, tmp_path):
    folder = tmp_path / "run.capture"
    target = script("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)\n")
    code = f"""
from pathlib import Path
from tracelens.recorders.together import record
print(record({target!r}, Path({str(folder)!r}), ["gil"], seconds=0, delay=0).exit_code)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 20
    while not list(folder.glob("gil.*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(2):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.3)
    out, _ = process.communicate(timeout=30)
    assert out.split() == ["130"]
    assert codes(read_manifest(folder)) >= {"interrupted", "process-killed"}


def test_an_existing_folder_is_refused_without_force(tmp_path):
    folder = tmp_path / "run.capture"
    folder.mkdir()
    (folder / "precious").write_text("x")
    with pytest.raises(TracelensError, match="exists already") as caught:
        record(["true"], folder, ["gil"])
    assert "--force" in caught.value.hint
    with pytest.raises(TracelensError, match="not a capture"):
        record(["true"], folder, ["gil"], force=True)
    assert (folder / "precious").read_text() == "x"


def test_force_replaces_a_capture_but_no_link_to_one(tmp_path):
    folder = tmp_path / "run.capture"
    record(["true"], folder, ["gil"])
    (folder / "old").touch()
    link = tmp_path / "link.capture"
    link.symlink_to(folder)
    with pytest.raises(TracelensError, match="not a capture"):
        record(["true"], link, ["gil"], force=True)
    record(["true"], folder, ["gil"], force=True)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json"]


def test_a_command_that_cannot_be_run_leaves_no_folder(tmp_path):
    with pytest.raises(TracelensError, match="cannot be run"):
        record([str(tmp_path / "absent")], tmp_path / "run.capture", ["gil"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "sources", "options", "says"),
    [
        ([], ["gil"], {}, "no command"),
        (["true"], ["gli"], {}, "'gli'"),
        (["true"], [], {}, "nothing"),
        (["true"], ["gil"], {"seconds": -1}, "--seconds -1"),
        (["true"], ["gil"], {"delay": float("nan")}, "--delay nan"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(tmp_path, command, sources, options, says):
    with pytest.raises(TracelensError, match=says):
        record(command, tmp_path / "run.capture", sources, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_py_spy_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(pyspy, "binary", lambda: None)
    recording = record(["true"], tmp_path / "run.capture", ["pyspy"])
    assert "pyspy-missing" in codes(recording.manifest)
    assert is_capture(recording.folder)


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["python3", "-u", "serve/run.py", "--x"], "run"),
        (["python", "-m", "tracelens_serving"], "tracelens_serving"),
        (["/usr/bin/vllm", "serve"], "vllm"),
        (["python3.11"], "python3"),
    ],
)
def test_the_default_folder_is_named_after_the_command(command, stem):
    assert default_folder(command).name.startswith(f"{stem}-")
    assert default_folder(command).suffix == ".capture"
    assert default_folder(command).parent == Path()


def test_every_recorder_says_what_it_is_and_whether_it_is_here():
    for recorder in RECORDERS:
        here, why, cure = recorder.available()
        assert recorder.says
        assert here or (why and cure)
