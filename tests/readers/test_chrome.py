"""Chrome trace JSON of any writer: begin/end, async, counter, instant and flow events."""

import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.kineto_files import codes, load_text, named, parent_name
from tracelens.analyses.summary import summarize
from tracelens.readers import chrome


def load(folder, events, **header):
    return load_text(folder, json.dumps({"traceEvents": events, **header}), chrome.READER)


def at(phase, name, ts, tid=1, pid=1, **more):
    return {"ph": phase, "name": name, "ts": ts, "pid": pid, "tid": tid, **more}


def spans(trace):
    slices = trace.slices.sort("start_ns", "dur_ns")
    return [(name, start, dur) for name, start, dur in slices.select("name", "start_ns", "dur_ns").iter_rows()]


def test_begin_and_end_make_slices(tmp_path):
    trace = load(tmp_path, [at("B", "a", 0, args={"x": 1}), at("B", "b", 1), at("E", "b", 3), at("E", "a", 4)])
    assert spans(trace) == [("a", 0, 4000), ("b", 1000, 2000)]
    assert parent_name(trace, "b") == "a"
    assert json.loads(named(trace, "a")["args"]) == {"x": 1}
    assert set(trace.slices["kind"]) == {"other"}


def test_events_out_of_order_are_sorted_by_time(tmp_path):
    trace = load(tmp_path, [at("E", "a", 4), at("B", "b", 1), at("B", "a", 0), at("E", "b", 3)])
    assert spans(trace) == [("a", 0, 4000), ("b", 1000, 2000)]
    assert not [code for code in codes(trace) if code.startswith("pairs.")]


def test_equal_times_close_before_they_open(tmp_path):
    ends_first = [at("B", "a", 0), at("E", "a", 1), at("B", "a", 1), at("E", "a", 2)]
    assert spans(load(tmp_path, ends_first)) == [("a", 0, 1000), ("a", 1000, 1000)]
    swapped = [at("B", "a", 0), at("B", "b", 1), at("E", "a", 1), at("E", "b", 2)]
    assert spans(load(tmp_path, swapped)) == [("a", 0, 1000), ("b", 1000, 1000)]
    empty = [at("E", "a", 1), at("B", "a", 1)]
    assert spans(load(tmp_path, empty)) == [("a", 1000 - 1000, 0)]


def test_ends_without_name_close_the_innermost(tmp_path):
    trace = load(
        tmp_path, [at("B", "a", 0), at("B", "b", 1), {**at("E", "", 3)}, {"ph": "E", "ts": 4, "pid": 1, "tid": 1}]
    )
    assert spans(trace) == [("a", 0, 4000), ("b", 1000, 2000)]


def test_partly_overlapping_pairs_are_both_kept(tmp_path):
    trace = load(tmp_path, [at("B", "a", 0), at("B", "b", 1), at("E", "a", 2), at("E", "b", 3)])
    assert spans(trace) == [("a", 0, 2000), ("b", 1000, 2000)]
    assert parent_name(trace, "b") is None


def test_missing_halves_are_counted(tmp_path):
    events = [at("B", "outer", 0), at("B", "never ends", 1), at("E", "outer", 5), at("E", "never began", 6)]
    trace = load(tmp_path, [*events, at("B", "open at the end", 7), at("X", "last", 8, dur=2)])
    assert codes(trace)["pairs.unmatched-end"] == 1
    assert codes(trace)["pairs.unclosed-begin"] == 2
    assert named(trace, "never ends")["dur_ns"] == 4000
    assert named(trace, "open at the end")["dur_ns"] == 3000


def test_async_events_nest_by_id_and_carry_no_thread(tmp_path):
    events = [
        at("b", "request", 10, id="0x1", cat="net"),
        at("b", "send", 20, id="0x1", cat="net"),
        at("n", "mark", 25, id="0x1", cat="net"),
        at("e", "send", 30, id="0x1", cat="net"),
        at("b", "request2", 12, id="0x2", cat="net"),
        at("e", "request", 100, id="0x1", cat="net"),
        at("e", "request2", 50, id="0x2", cat="net"),
    ]
    trace = load(tmp_path, events)
    assert parent_name(trace, "send") == "request"
    assert parent_name(trace, "mark") == "send"
    assert set(trace.tracks["kind"]) == {"async"}
    assert trace.tracks.height == 2
    assert summarize(trace)["threads"] == 0
    assert named(trace, "mark")["kind"] == "instant"


def test_async_ids_are_apart_by_category_scope_and_process(tmp_path):
    events = []
    for index, more in enumerate(({"cat": "a"}, {"cat": "b"}, {"cat": "a", "scope": "s"})):
        events += [at("b", f"r{index}", index, id=1, **more), at("e", f"r{index}", 10 + index, id=1, **more)]
    for pid in (7, 8):
        more = {"cat": "l", "id2": {"local": "0x5"}, "pid": pid}
        events += [{**at("b", f"l{pid}", 1), **more}, {**at("e", f"l{pid}", 5), **more}]
    trace = load(tmp_path, events)
    assert trace.tracks.height == 5
    assert all(parent is None for parent in trace.slices["parent_id"])


def test_flows_bind_as_the_format_says(tmp_path):
    events = [
        at("X", "sender", 2, dur=10, tid=1),
        at("s", "ipc", 2, tid=1, id="a"),
        at("X", "middle", 20, dur=50, tid=2),
        at("t", "ipc", 22, tid=2, id="a"),
        at("f", "ipc", 80, tid=3, id="a"),
        at("X", "next", 81, dur=5, tid=3),
        at("X", "around", 100, dur=20, tid=1),
        at("s", "x", 105, tid=1, id="b"),
        at("f", "x", 82, tid=3, id="b", bp="e"),
        at("f", "lost", 82, tid=3, id="c", bp="e"),
        at("s", "nowhere", 500, tid=9, id="d"),
    ]
    trace = load(tmp_path, events)
    names = dict(trace.slices.select("slice_id", pl.col("name").cast(pl.String)).iter_rows())
    pairs = sorted((names[a], names[b], kind) for a, b, kind in trace.flows.iter_rows())
    assert pairs == [("middle", "next", "message"), ("sender", "middle", "message")]
    # "b" ends before it begins and "c" never began; "d" lies in no slice.
    assert codes(trace)["flow.without-begin"] == 2
    assert codes(trace)["flow.unbound"] == 1


def test_counters_have_one_track_a_series(tmp_path):
    events = [
        at("C", "mem", 1, args={"used": 5, "free": 2.5, "note": "x"}),
        at("C", "mem", 2, args={"used": 6, "free": 0}),
    ]
    events += [at("C", "load", 3, args={"value": 1}), at("C", "load", 4, args={"value": "NaN"}, pid=2)]
    trace = load(tmp_path, events)
    found = trace.counters.join(trace.tracks, on="track_id").select("name", "at_ns", "value").rows()
    assert found == [
        ("mem.used", 0, 5.0),
        ("mem.free", 0, 2.5),
        ("mem.used", 1000, 6.0),
        ("mem.free", 1000, 0.0),
        ("load", 2000, 1.0),
    ]
    assert set(trace.tracks["kind"]) == {"counter"}


def test_names_of_processes_and_threads(tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "server"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker"}},
        at("X", "a", 1, tid=2, dur=1),
        at("X", "b", 1, pid="Browser", tid="Main", dur=1),
    ]
    rows = load(tmp_path, events).tracks.select("process", "thread", "process_id", "thread_id").rows()
    assert rows[0] == ("server", "worker", 1, 2) or rows[1] == ("server", "worker", 1, 2)
    assert {row[:2] for row in rows} == {("server", "worker"), ("Browser", "Main")}


def test_a_slice_without_length_counts_with_zero(tmp_path):
    trace = load(tmp_path, [at("X", "a", 7, tdur=4), at("X", "b", 8, dur=1)])
    assert named(trace, "a")["dur_ns"] == 0
    assert codes(trace)["time.missing-duration"] == 1


def test_metadata_without_a_time_and_events_without_one(tmp_path):
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}},
        {"ph": "B", "name": "x", "pid": 1, "tid": 1},
    ]
    trace = load(tmp_path, [*events, at("X", "a", 1, dur=1)])
    assert trace.slices.height == 1
    assert codes(trace)["time.missing"] == 1


def test_the_clock_of_a_generic_trace_is_unknown(tmp_path):
    trace = load(tmp_path, [at("X", "a", 5, dur=1)])
    assert trace.origin_unix_ns is None
    assert trace.facts.source_events == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10), st.sampled_from("ab")), max_size=12))
def test_well_formed_pairs_come_back_whole(tmp_path_factory, wanted):
    """Each span on a thread of its own: whatever the order in the file, the same spans come back."""
    folder = tmp_path_factory.mktemp("pairs")
    events = []
    for tid, (start, dur, name) in enumerate(wanted):
        events = [at("E", name, start + dur, tid), *events, at("B", name, start, tid)]
    trace = load(folder, [*events, at("X", "zero", 0, tid=99, dur=0)])
    expected = sorted([(name, start * 1000, dur * 1000) for start, dur, name in wanted] + [("zero", 0, 0)])
    assert sorted(spans(trace)) == expected


@pytest.mark.parametrize("events", [[], [{}], [{"ph": "X"}], [{"ph": "s"}], [{"ph": "C"}], [{"ph": "B"}, {"ph": "b"}]])
def test_almost_nothing_is_no_crash(tmp_path, events):
    trace = load(tmp_path, events)
    assert summarize(trace)["slices"] == sum(event.get("ph") == "X" for event in events)
