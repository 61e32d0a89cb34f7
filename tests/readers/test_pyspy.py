import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.contracts import Alignment, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import pyspy, pyspy_text
from tracelens.readers.pyspy import READERS, Event, elements
from tracelens.readers.stacks import Frame, Stacks, Thread, split_pseudo_frames

BY_NAME = {reader.name: reader for reader in READERS}


def read(tmp_path, content, *, name="f.txt", reader=None, alignment=None, **options):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = Source(name, path, alignment, options)
    health = Health()
    head = source.open(Health()).head()
    chosen = BY_NAME[reader] if reader else max(READERS, key=lambda r: r.sniff(head, name))
    return chosen.read(source, health), health


def codes(health):
    return [entry.code for entry in health]


def stacks_of(trace):
    """Each sample as (thread name, function:line outermost first)."""
    frames = {i: f"{function}:{line}" for i, function, line in trace.frames["frame_id", "function", "line"].iter_rows()}
    rows = {i: (parent, frame) for i, parent, frame in trace.stacks["stack_id", "parent_id", "frame_id"].iter_rows()}
    threads = dict(trace.tracks["track_id", "thread"].iter_rows())

    def path(stack_id):
        parent, frame = rows[stack_id]
        return ([] if parent is None else path(parent)) + [frames[frame]]

    return [(threads[track], path(stack)) for track, stack in trace.samples["track_id", "stack_id"].iter_rows()]


def event(ph, name, ts, tid=7_000, line=0, pid=40, file=""):
    return {
        "args": {"filename": file, "line": line},
        "cat": "py-spy",
        "name": name,
        "ph": ph,
        "pid": pid,
        "tid": tid,
        "ts": ts,
    }


ROOT = "thread (42): worker"
CHANGES = [
    event("B", ROOT, 100),
    event("B", "run", 100, line=1, file="a.py"),
    event("B", "work", 100, line=5, file="a.py"),
    event("E", "work", 250, line=5, file="a.py"),
    event("B", "work", 250, line=6, file="a.py"),
    event("E", "work", 300, line=6, file="a.py"),
    event("E", "run", 900, line=1, file="a.py"),
    event("E", ROOT, 900),
]


class TestChrometrace:
    def test_each_change_is_one_sample_and_the_closing_ends_are_none(self, tmp_path):
        trace, health = read(tmp_path, json.dumps(CHANGES))
        assert stacks_of(trace) == [
            ("worker", ["run:1", "work:5"]),
            ("worker", ["run:1", "work:6"]),
            ("worker", ["run:1"]),
        ]
        assert trace.samples["at_ns"].to_list() == [100_000, 250_000, 300_000]
        assert trace.samples["weight_ns"].to_list() == [0, 0, 0]
        assert trace.slices.height == 0
        assert codes(health) == ["pyspy.changes-only", "pyspy.gil-unknown"]
        assert trace.facts.source_events == 8

    def test_thread_is_keyed_by_process_and_os_thread(self, tmp_path):
        trace, _ = read(tmp_path, json.dumps(CHANGES))
        assert trace.tracks["kind", "process_id", "thread_id", "thread"].rows() == [("thread", 40, 42, "worker")]

    @pytest.mark.parametrize(("given_", "expected"), [(True, True), (False, None), (None, None)])
    def test_gil_is_what_the_recording_says_else_unknown(self, tmp_path, given_, expected):
        trace, health = read(tmp_path, json.dumps(CHANGES), gil=given_)
        assert trace.samples["gil"].to_list() == [expected] * 3
        assert ("pyspy.gil-unknown" in codes(health)) == (expected is None)
        assert ("samples.gil" in trace.evidence()) == (expected is True)

    def test_alignment_places_samples_on_realtime(self, tmp_path):
        trace, _ = read(tmp_path, json.dumps(CHANGES), alignment=Alignment(1_790_000_000_000_000_000, 900_000))
        assert trace.origin_unix_ns == 1_790_000_000_000_000_000
        assert trace.clock_halfwidth_ns == 900_000
        assert trace.samples["at_ns"][0] == 100_000

    def test_without_alignment_the_clock_is_unknown(self, tmp_path):
        trace, _ = read(tmp_path, json.dumps(CHANGES))
        assert trace.origin_unix_ns is None

    def test_without_thread_frames_64_bit_ids_stay_and_are_flagged(self, tmp_path):
        tid = 140_605_606_573_760
        events = [event("B", "f", 1, tid=tid, pid=p, line=3, file="a.py") for p in (1, 2)]
        trace, health = read(tmp_path, json.dumps(events))
        assert trace.tracks["process_id", "thread_id", "thread"].rows() == [(1, tid, None), (2, tid, None)]
        assert "pyspy.no-os-threads" in codes(health)

    def test_process_frames_name_the_process(self, tmp_path):
        events = [event("B", 'process 39:"sh"', 1), event("B", 'process 40:"python; x"', 1), *CHANGES[:2]]
        events = [{**e, "ts": 1} for e in events]
        trace, _ = read(tmp_path, json.dumps(events))
        assert trace.tracks["process_id", "thread_id", "process"].rows() == [(40, 42, "python; x")]
        assert stacks_of(trace) == [("worker", ["run:1"])]

    def test_a_reused_pthread_id_is_two_threads(self, tmp_path):
        events = [*CHANGES, event("B", "thread (43): next", 950), event("B", "run", 950, line=1, file="a.py")]
        trace, _ = read(tmp_path, json.dumps(events))
        assert trace.tracks["thread_id"].to_list() == [42, 43]

    def test_foreign_and_unmatched_events_are_counted(self, tmp_path):
        events = [*CHANGES[:3], event("E", "other", 120), {**event("B", "x", 130), "cat": "cpu_op"}]
        trace, health = read(tmp_path, json.dumps(events))
        found = {e.code: e.count for e in health}
        assert found["pyspy.foreign-events"] == 1
        assert found["pyspy.unmatched-ends"] == 1
        assert trace.samples.height == 2

    def test_a_cut_file_keeps_its_whole_events(self, tmp_path):
        content = json.dumps(CHANGES, separators=(",", ":"))
        trace, health = read(tmp_path, content[: content.rindex('{"args"') + 30])
        assert trace.samples.height == 3
        assert next(e for e in health if e.code == "pyspy.damaged").lost_bytes == 30

    def test_damage_in_the_middle_costs_only_its_events(self, tmp_path):
        content = json.dumps(CHANGES, separators=(",", ":")).replace('"ts":250}', '"ts":2x0}', 1)
        source_events = read(tmp_path, content)[0].facts.source_events
        assert source_events == 7

    @pytest.mark.parametrize(("errors", "severity"), [(629, "warning"), (1, "info")])
    def test_failed_looks_are_told(self, tmp_path, errors, severity):
        _, health = read(tmp_path, json.dumps(CHANGES), gil=True, samples=100, errors=errors)
        assert [(e.severity, e.count) for e in health if e.code == "pyspy.errors"] == [(severity, errors)]

    def test_nothing_readable_is_one_clear_error(self, tmp_path):
        with pytest.raises(TracelensError, match="not one whole element"):
            read(tmp_path, '[{"cat":"py-spy"', reader="pyspy")

    @pytest.mark.parametrize("ts", ["NaN", "1e400", "-3", str(2**70), '"7"', "null"])
    def test_a_bad_time_is_a_bad_event(self, tmp_path, ts):
        content = json.dumps(CHANGES).replace('"ts": 250', f'"ts": {ts}')
        trace, health = read(tmp_path, content)
        assert next(e for e in health if e.code == "pyspy.damaged").count == 2
        assert trace.samples.height == 2

    def test_deep_nesting_does_not_recurse(self, tmp_path):
        content = json.dumps(CHANGES)[:-1] + "," + '{"args":' * 50_000
        trace, _ = read(tmp_path, content)
        assert trace.facts.source_events == 8

    @given(st.integers(0, 2_000), st.binary(max_size=8))
    def test_byte_damage_never_crashes(self, tmp_path_factory, at, noise):
        content = json.dumps(CHANGES).encode()
        damaged = content[:at] + noise + content[at + len(noise) :]
        path = tmp_path_factory.mktemp("pyspy") / "f.json"
        path.write_bytes(damaged)
        try:
            trace = BY_NAME["pyspy"].read(Source("f.json", path), Health())
        except TracelensError:
            return
        assert trace.samples.height <= 5


RAW = """\
thread (3419): idle;Thread.run (threading.py:982);waiter (g.py:14) 13
thread (2911): nap;per x;Thread._bootstrap (threading.py:1002);f (g.py:4) 2
thread (2912): Thread-1 (worker);Thread._bootstrap (threading.py:1002) 1
"""


class TestRaw:
    def test_counts_are_samples_without_times(self, tmp_path):
        trace, _ = read(tmp_path, RAW, rate_hz=100, gil=True, process_id=9)
        assert trace.samples.height == 16
        assert trace.samples["at_ns"].null_count() == 16
        assert trace.samples["weight_ns"].unique().to_list() == [10_000_000]
        assert trace.samples["gil"].all()
        assert trace.tracks["process_id", "thread_id", "thread"].rows() == [
            (9, 3419, "idle"),
            (9, 2911, "nap;per x"),
            (9, 2912, "Thread-1 (worker)"),
        ]
        assert trace.facts.source_events == 3

    def test_a_thread_name_with_semicolons_makes_no_frames(self, tmp_path):
        trace, _ = read(tmp_path, RAW)
        assert ("nap;per x", ["Thread._bootstrap:1002", "f:4"]) in stacks_of(trace)
        assert set(trace.frames["function"]) == {"Thread.run", "waiter", "Thread._bootstrap", "f"}

    def test_command_lines_with_semicolons_are_one_process(self, tmp_path):
        line = 'process 1:"sh -c a;b";process 7:"python -c \'x;y\'";thread (8): main;f (g.py:4) 2\n'
        trace, _ = read(tmp_path, line)
        assert trace.tracks["process_id", "thread_id", "process"].rows() == [(7, 8, "python -c 'x;y'")]
        assert stacks_of(trace) == [("main", ["f:4"])] * 2

    def test_the_main_threads_id_is_the_process(self, tmp_path):
        trace, health = read(tmp_path, RAW.replace("thread (3419): idle", "thread (2900): MainThread"))
        assert trace.tracks["process_id"].to_list() == [2900] * 3
        assert "samples.process-unknown" not in codes(health)

    def test_an_unknown_process_is_said(self, tmp_path):
        trace, health = read(tmp_path, RAW)
        assert trace.tracks["process_id"].to_list() == [-1] * 3
        assert "samples.process-unknown" in codes(health)

    def test_native_frames_are_marked(self, tmp_path):
        trace, _ = read(tmp_path, "thread (1): m;clone (libc.so.6);spin (ep.cpp:9);f (g.py:4);0x7f (libtorch.so) 1\n")
        assert trace.frames["native"].to_list() == [True, True, False, True]

    def test_empty_and_bad_lines_are_counted(self, tmp_path):
        trace, health = read(tmp_path, "a;b (x.py:1) 3\n 2\nno count here\n\na 0\n", reader="pyspy-raw")
        assert trace.samples.height == 3
        assert next(e for e in health if e.code == "pyspy.bad-lines").count == 2
        assert trace.facts.source_events == 4

    def test_an_empty_file_is_no_samples_and_no_claim(self, tmp_path):
        trace, health = read(tmp_path, "", name="gil.raw", gil=True)
        assert trace.samples.height == 0
        assert trace.evidence() == frozenset()
        assert codes(health) == ["samples.none"]
        assert "no samples recorded" in next(iter(health)).says

    def test_counts_that_are_not_samples_are_refused(self, tmp_path):
        with pytest.raises(TracelensError, match="line 2: more than 20,000,000 samples"):
            read(tmp_path, "a;b 1\na;c 9000000000\n")

    def test_names_that_are_not_utf8_survive(self, tmp_path):
        trace, health = read(tmp_path, "你好;µ (x.py:1) 1\n".encode() + b"k\x9f\xff;f 1\n")
        assert "bytes.not-utf8" in codes(health)
        assert "你好" in set(trace.frames["function"])
        assert trace.samples.height == 2

    @given(st.lists(st.text(st.characters(blacklist_characters="\n\r"), max_size=30), max_size=10))
    def test_any_text_is_read_or_refused(self, tmp_path_factory, lines):
        path = tmp_path_factory.mktemp("raw") / "f.raw"
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        trace = BY_NAME["pyspy-raw"].read(Source("f.raw", path), Health())
        assert trace.facts.source_events <= len(lines)


def thread(
    name="t", os_thread_id=42, active=True, owns_gil=False, pid=40, frames=(("f", "/a/g.py", 7), ("run", "/a/t.py", 3))
):
    return {
        "pid": pid,
        "thread_id": 7_000_000_000,
        "thread_name": name,
        "os_thread_id": os_thread_id,
        "active": active,
        "owns_gil": owns_gil,
        "frames": [{"name": n, "filename": f, "line": line, "locals": None} for n, f, line in frames],
        "process_info": None,
    }


class TestDumps:
    def test_json_dump_has_owners_and_no_time(self, tmp_path):
        dump = [thread(), thread("o", 43, False, True), thread("empty", 44, frames=())]
        trace, health = read(tmp_path, json.dumps(dump, indent=2))
        assert trace.samples["gil"].to_list() == [False, True]
        assert trace.samples["on_cpu"].to_list() == [True, False]
        assert trace.samples["at_ns"].null_count() == 2
        assert trace.tracks["process_id", "thread_id", "thread"].rows() == [(40, 42, "t"), (40, 43, "o")]
        assert stacks_of(trace)[0] == ("t", ["run:3", "f:7"])
        assert codes(health) == []

    def test_no_owner_is_unknown_not_free(self, tmp_path):
        trace, health = read(tmp_path, json.dumps([thread(), thread("o", 43, False)]))
        assert trace.samples["gil"].to_list() == [None, None]
        assert codes(health) == ["pyspy.gil-owner-unknown"]

    def test_without_an_os_id_pthreads_is_kept(self, tmp_path):
        trace, _ = read(tmp_path, json.dumps([thread(os_thread_id=None)]))
        assert trace.tracks["thread_id"].to_list() == [7_000_000_000]

    def test_text_dump(self, tmp_path):
        dump = (
            "Process 40: python x.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
            'Thread 40 (idle): "MainThread"\n    wait (t.py:9)\n        Arguments:\n            self: <f (q.py:1)>\n'
            '    <module> (x.py:2)\nThread 0x7F00 (active+gil): "nap;x"\n    0x7f (libc.so.6)\n    f (x.py:5)\n'
        )
        trace, health = read(tmp_path, dump)
        assert stacks_of(trace) == [("MainThread", ["<module>:2", "wait:9"]), ("nap;x", ["f:5", "0x7f:None"])]
        assert trace.samples["gil"].to_list() == [False, True]
        assert trace.samples["on_cpu"].to_list() == [False, True]
        assert trace.tracks["process_id", "thread_id", "process"].rows() == [
            (40, 40, "python x.py"),
            (40, 0x7F00, "python x.py"),
        ]
        assert trace.facts.versions == {"python": "3.11.7"}
        assert codes(health) == []

    def test_text_dump_without_owner_is_unknown(self, tmp_path):
        trace, health = read(tmp_path, "Process 1: p\nPython v3.13.0 (x)\n\nThread 1 (active)\n    f (x.py:5)\n")
        assert trace.samples["gil"].to_list() == [None]
        assert codes(health) == ["pyspy.gil-owner-unknown"]


class TestSniff:
    @pytest.mark.parametrize(
        ("head", "reader"),
        [
            (json.dumps(CHANGES), "pyspy"),
            (json.dumps([thread()], indent=2), "pyspy-dump"),
            (RAW, "pyspy-raw"),
            ("<module> (a.py:1);f (a.py:2) 3\n", "pyspy-raw"),
            ("Process 1: p\nPython v3.11.7 (x)\n\nThread 1 (idle)\n", "pyspy-dump-text"),
            ('<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "x">\n<svg>', "flamegraph-svg"),
            ("<svg ", "flamegraph-svg"),
        ],
    )
    def test_exactly_one_reader_wants_each_format_whatever_the_name(self, head, reader):
        assert [r.name for r in READERS if r.sniff(head.encode(), "trace.pftrace.json") > 0] == [reader]

    @pytest.mark.parametrize(
        "head",
        [
            b'{"traceEvents": [{"ph": "X", "ts": 1}]}',
            b'[{"ph":"X","cat":"cpu_op","ts":1,"dur":3}]',
            b'{"$schema":"https://www.speedscope.app/file-format-schema.json"}',
            b"\x0a\x05hello",
            b"# notes\n\nfirst 1\nsecond 2\n",
            b"total 3\n",
        ],
    )
    def test_other_content_is_left_alone(self, head):
        assert [r.sniff(head, "x.json") for r in READERS] == [0] * len(READERS)

    def test_svg_is_refused_with_what_to_record(self, tmp_path):
        with pytest.raises(TracelensError, match="picture") as caught:
            read(tmp_path, "<svg></svg>", name="profile.txt")
        assert "-f raw" in caught.value.hint


def test_pseudo_frames_are_split_only_where_they_have_no_place():
    real = Frame("thread (1): x", "a.py", 3)
    assert split_pseudo_frames([real]) == (Thread(), [real])
    assert split_pseudo_frames([Frame("thread (0x7F)"), real]) == (Thread(thread_id=127), [real])
    assert split_pseudo_frames([Frame("thread (1): x")]) == (Thread(thread_id=1, thread="x"), [])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=20))
def test_stacks_are_interned_and_read_back(paths):
    stacks = Stacks()
    ids = [stacks.stack([Frame(str(step)) for step in path]) for path in paths]
    table, frames = stacks.tables()
    rows = {row["stack_id"]: row for row in table.iter_rows(named=True)}
    names = dict(frames["frame_id", "function"].iter_rows())
    for path, stack_id in zip(paths, ids, strict=True):
        back = []
        at = stack_id
        while at is not None:
            back.append(int(names[rows[at]["frame_id"]]))
            assert rows[at]["depth"] == len(path) - len(back)
            at = rows[at]["parent_id"]
        assert back[::-1] == path
    assert len({tuple(p) for p in paths}) == len(set(ids))
    assert table.height == len({tuple(p[: i + 1]) for p in paths for i in range(len(p))})


def test_lines_that_cannot_be_become_null():
    stacks = Stacks()
    stacks.stack([Frame("f", "a.py", 0), Frame("f", "a.py", 2**40), Frame("f", "", -1)])
    assert stacks.tables()[1]["line"].to_list() == [None, None]
    assert isinstance(stacks.tables()[0], pl.DataFrame)


def test_elements_fall_back_only_for_what_is_broken(tmp_path):
    path = tmp_path / "f.json"
    path.write_text(json.dumps([*CHANGES, 5, {"name": "x"}]))
    health = Health()
    assert len(elements(Source("f.json", path), health, Event)) == 8
    assert [(e.code, e.count) for e in health] == [("pyspy.damaged", 1)]
    assert pyspy.READERS[2:] == pyspy_text.READERS
