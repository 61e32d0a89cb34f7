"""A program's own events: what is written is read back, and nothing is written where nothing records."""

import importlib.util
import os
import subprocess
import sys
import threading
import time

import pytest

from tracelens import events, opening, plugins


@pytest.fixture
def written(tmp_path):
    """Record what `act` does; the trace."""

    def record(act):
        events.start(str(tmp_path))
        try:
            act()
        finally:
            events.stop()
        (path,) = tmp_path.glob("events.*.pftrace")
        return opening.open_trace(str(path), plugins=plugins.load())

    return record


def rows(trace):
    return {row["name"]: row for row in trace.slices.iter_rows(named=True)}


def test_slices_nest_and_carry_request_kind_and_arguments(written):
    def act():
        outer = events.slice("outer", tokens=5, share=0.5, ok=True, text="é", deep={"a": -1})
        with outer, events.slice("inner", request=7, kind="wait"):
            time.sleep(0.01)
        events.instant("abort", request="r9")

    before, trace, after = time.time_ns(), written(act), time.time_ns()
    assert len(trace.health) == 0
    found = rows(trace)
    outer, inner = found["outer"], found["inner"]
    assert (outer["kind"], inner["kind"], found["abort"]["kind"]) == ("annotation", "wait", "instant")
    assert (outer["depth"], inner["depth"], inner["parent_id"]) == (0, 1, outer["slice_id"])
    assert inner["dur_ns"] >= 10_000_000
    assert (inner["request"], found["abort"]["request"], outer["request"]) == ("7", "r9", None)
    assert trace.args([outer["slice_id"]])[outer["slice_id"]] == {
        "tokens": 5, "share": 0.5, "ok": True, "text": "é", "deep": {"a": -1},
    }  # fmt: skip
    assert before <= trace.origin_unix_ns + outer["start_ns"] <= after
    (track,) = trace.tracks.filter(trace.tracks["track_id"] == outer["track_id"]).iter_rows(named=True)
    assert (track["process_id"], track["thread_id"]) == (os.getpid(), threading.get_native_id())
    assert track["thread"] == threading.current_thread().name


def test_flows_counters_and_named_tracks(written):
    def act():
        flow = events.new_flow()
        with events.slice("send", flow=flow):
            pass

        def receive():
            with events.slice("receive", ends=flow):
                pass

        thread = threading.Thread(target=receive, name="mover")
        thread.start()
        thread.join()
        for value in (3, 4.5):
            events.counter("queue", value, unit="requests")
        with events.slice("r1", track="requests", kind="request"):
            pass

    trace = written(act)
    found = rows(trace)
    assert trace.flows.rows() == [(found["send"]["slice_id"], found["receive"]["slice_id"], "async")]
    assert trace.counters["value"].to_list() == [3.0, 4.5]
    tracks = {row["track_id"]: row for row in trace.tracks.iter_rows(named=True)}
    counter = tracks[trace.counters["track_id"][0]]
    assert (counter["name"], counter["unit"], counter["kind"]) == ("queue", "requests", "counter")
    assert tracks[found["receive"]["track_id"]]["thread"] == "mover"
    assert (tracks[found["r1"]["track_id"]]["name"], found["r1"]["kind"]) == ("requests", "request")


def test_an_exception_passes_through_and_ends_the_slice(written):
    def act():
        with pytest.raises(ValueError, match="theirs"), events.slice("fails"):
            raise ValueError("theirs")

    assert rows(written(act))["fails"]["dur_ns"] >= 0


def test_a_slice_that_was_open_when_the_process_was_killed_is_salvaged(tmp_path):
    code = f"""
import os, time
from tracelens import events
events.start({str(tmp_path)!r})
for index in range(100):
    with events.slice("step", index=index):
        time.sleep(0.005)
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    (path,) = tmp_path.glob("events.*.pftrace")
    trace = opening.open_trace(str(path), plugins=plugins.load())
    assert 40 <= trace.slices.height <= 100


def test_without_a_recording_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not events.recording()
    with events.slice("nothing", request="r"):
        events.counter("queue", 1)
        events.instant("nothing")
    assert list(tmp_path.iterdir()) == []


def test_it_falls_silent_when_the_recording_is_over(tmp_path):
    until = tmp_path / "settings"
    until.touch()
    events.start(str(tmp_path), str(until))
    try:
        with events.slice("seen"):
            pass
        time.sleep(events.FLUSH_NS / 1e9 + 0.05)
        events.instant("flushes")
        until.unlink()
        time.sleep(events.FLUSH_NS / 1e9 + 0.05)
        events.instant("too late")
        assert not events.recording()
    finally:
        events.stop()
    (path,) = tmp_path.glob("events.*.pftrace")
    assert set(rows(opening.open_trace(str(path), plugins=plugins.load()))) == {"seen", "flushes"}


def test_a_fork_writes_its_own_file_and_none_of_the_parents_events(tmp_path):
    code = f"""
import os
os.environ["TRACELENS_EVENTS"] = "x"
os.makedirs({str(tmp_path / "c" / ".control")!r})
settings = os.environ["TRACELENS_RECORD"] = {str(tmp_path / "c" / ".control" / "settings.json")!r}
open(settings, "w").close()
from tracelens import events
events.instant("parent")
if os.fork() == 0:
    events.instant("child")
    events.stop()
    os._exit(0)
os.wait()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    loaded = plugins.load()
    found = [set(rows(opening.open_trace(str(path), plugins=loaded))) for path in (tmp_path / "c").glob("events.*")]
    assert sorted(map(sorted, found)) == [["child"], ["parent"]]


def test_the_module_needs_only_the_standard_library_and_no_tracelens():
    code = f"""
import importlib.util, sys
before = set(sys.modules)
spec = importlib.util.spec_from_file_location("events", {events.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.slice("x"):
    pass
print(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_parses_as_python_3_10():
    import ast
    from pathlib import Path

    ast.parse(Path(importlib.util.find_spec("tracelens.events").origin).read_text(), feature_version=(3, 10))
