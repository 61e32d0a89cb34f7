import gc
import gzip
import json
import zlib

import polars as pl
import pytest
import zstandard
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.readers.perfetto_ways import read_all
from tracelens.contracts import Alignment, Source
from tracelens.errors import TracelensError
from tracelens.readers.perfetto_sniff import READER

BEGIN, END, INSTANT, COUNTER, STATE = 1, 2, 3, 4, 5
CLEARED, NEEDS = 1, 2
REALTIME, MONOTONIC, BOOTTIME = 1, 3, 6


def framed(*packets):
    trace = pb.Trace()
    for packet in packets:
        trace.packet.add().CopyFrom(packet)
    return trace.SerializeToString()


def read(tmp_path, *packets, content=None, alignment=None):
    path = tmp_path / "t.pftrace"
    path.write_bytes(framed(*packets) if content is None else content)
    return read_all(Source("t.pftrace", path, alignment))


@pytest.fixture(autouse=True)
def batches_of_any_size(monkeypatch):
    """Every test here runs in all ways, also with batches of one packet."""
    monkeypatch.setattr("tracelens.readers.perfetto_fast.MIN_BATCH", 1)


def packet(at=None, sequence=1, clock=None, flags=0, **fields):
    made = pb.TracePacket(trusted_packet_sequence_id=sequence, **fields)
    if at is not None:
        made.timestamp = at
    if clock is not None:
        made.timestamp_clock_id = clock
    if flags:
        made.sequence_flags = flags
    return made


def event(at, kind, track=1, name=None, category=None, sequence=1, clock=None, flags=0, **fields):
    made = packet(at, sequence, clock, flags)
    made.track_event.CopyFrom(pb.TrackEvent(type=kind, track_uuid=track, **fields))
    if name is not None:
        made.track_event.name = name
    if category is not None:
        made.track_event.categories.append(category)
    return made


def thread(uuid=1, pid=5, tid=6, name="t", sequence=1):
    made = packet(sequence=sequence)
    made.track_descriptor.uuid = uuid
    made.track_descriptor.thread.pid = pid
    made.track_descriptor.thread.tid = tid
    made.track_descriptor.thread.thread_name = name
    return made


def counter(uuid, name="c", sequence=1, parent=0, **fields):
    made = packet(sequence=sequence)
    made.track_descriptor.uuid = uuid
    made.track_descriptor.name = name
    made.track_descriptor.parent_uuid = parent
    made.track_descriptor.counter.CopyFrom(pb.CounterDescriptor(**fields))
    return made


def snapshot(readings, primary=None, sequence=1, **fields):
    made = packet(sequence=sequence)
    for clock, at in readings.items():
        made.clock_snapshot.clocks.add(clock_id=clock, timestamp=at, **fields.get(str(clock), {}))
    if primary is not None:
        made.clock_snapshot.primary_trace_clock = primary
    return made


def cleared(sequence=1, **fields):
    return packet(sequence=sequence, flags=CLEARED, **fields)


def slices(trace, *columns):
    return (
        trace.slices.with_columns(pl.col("name").cast(pl.String))
        .select(columns or ("name", "start_ns", "dur_ns"))
        .rows()
    )


def codes(health):
    return {e.code.removeprefix("perfetto."): e.count for e in health}


class TestSlices:
    def test_nested_slices_have_parents_and_depth(self, tmp_path):
        trace, health = read(
            tmp_path,
            thread(),
            event(100, BEGIN, name="a"),
            event(110, BEGIN, name="b"),
            event(120, END),
            event(120, BEGIN, name="c"),
            event(150, END),
            event(200, END),
        )
        assert slices(trace, "name", "start_ns", "dur_ns", "depth", "parent_id") == [
            ("a", 0, 100, 0, None),
            ("b", 10, 10, 1, 0),
            ("c", 20, 30, 1, 0),
        ]
        assert trace.tracks["kind", "process_id", "thread_id", "thread"].rows() == [("thread", 5, 6, "t")]
        assert trace.facts.source_events == 7
        assert len(health) == 0

    def test_file_order_is_not_time_order(self, tmp_path):
        trace, _ = read(
            tmp_path, event(50, END), event(10, BEGIN, name="a"), event(20, BEGIN, name="b"), event(30, END)
        )
        assert slices(trace) == [("a", 0, 40), ("b", 10, 10)]

    def test_an_end_closes_the_innermost_slice_that_agrees(self, tmp_path):
        trace, health = read(
            tmp_path,
            event(0, BEGIN, name="a"),
            event(1, BEGIN, name="b"),
            event(2, END, name="a"),
            event(3, END, name="nobody"),
        )
        assert slices(trace) == [("a", 0, 2), ("b", 1, 1)]
        assert codes(health) == {"end-without-begin": 1, "unfinished": 1}

    def test_an_unfinished_slice_is_cut_and_counted(self, tmp_path):
        trace, health = read(tmp_path, event(0, BEGIN, name="a"), event(70, INSTANT, track=2, name="i"))
        assert slices(trace) == [("a", 0, 70), ("i", 70, 0)]
        assert codes(health) == {"unfinished": 1}

    def test_instants_are_slices_without_length(self, tmp_path):
        trace, _ = read(
            tmp_path, event(0, BEGIN, name="a"), event(5, INSTANT, name="i"), event(5, INSTANT, name="j"), event(9, END)
        )
        assert slices(trace, "name", "kind", "dur_ns", "parent_id") == [
            ("a", "other", 9, None),
            ("i", "instant", 0, 0),
            ("j", "instant", 0, 0),
        ]

    def test_states_follow_each_other(self, tmp_path):
        trace, _ = read(
            tmp_path,
            event(0, STATE, name="x"),
            event(10, STATE, name="y"),
            event(30, STATE),
            event(40, INSTANT, track=2, name="i"),
        )
        assert slices(trace) == [("x", 0, 10), ("y", 10, 20), ("i", 40, 0)]

    @pytest.mark.parametrize(
        ("category", "kind"),
        [
            ("cpu_op", "op"),
            ("kernel", "kernel"),
            ("gpu_memcpy", "memcpy"),
            ("cuda_runtime", "runtime"),
            ("python_function", "python"),
            ("user_annotation", "annotation"),
            ("request", "request"),
            ("foo,kernel", "kernel"),
            ("foo", "other"),
        ],
    )
    def test_categories_decide_the_kind(self, tmp_path, category, kind):
        trace, _ = read(tmp_path, event(0, BEGIN, name="a", category=category), event(1, END))
        assert trace.slices["kind"].to_list() == [kind]
        assert trace.slices["args"][0] == (
            json.dumps({"category": "foo"}, separators=(",", ":")) if kind == "other" else None
        )

    def test_a_track_nobody_describes_is_nameless_and_global(self, tmp_path):
        trace, _ = read(tmp_path, event(0, INSTANT, track=77, name="i"), event(0, INSTANT, track=0, name="i"))
        assert trace.tracks["kind", "name", "process_id"].rows() == [
            ("async", None, -1),
            ("async", "Default Track", -1),
        ]

    def test_descriptors_may_come_late_and_a_contradiction_is_ignored(self, tmp_path):
        trace, health = read(
            tmp_path, event(0, INSTANT, name="i"), thread(name=""), thread(name="late"), thread(pid=9), thread(tid=9)
        )
        assert trace.tracks["process_id", "thread_id", "thread"].rows() == [(5, 6, "late")]
        assert codes(health) == {"bad-descriptors": 2}

    def test_child_tracks_belong_to_their_process(self, tmp_path):
        process = packet()
        process.track_descriptor.uuid = 10
        process.track_descriptor.process.pid = 5
        process.track_descriptor.process.process_name = "engine"
        child = packet()
        child.track_descriptor.uuid = 11
        child.track_descriptor.parent_uuid = 10
        child.track_descriptor.static_name = "requests"
        trace, _ = read(tmp_path, process, child, event(0, INSTANT, track=11, name="i"))
        assert trace.tracks["kind", "name", "process_id", "process"].rows() == [("async", "requests", 5, "engine")]

    def test_source_locations_become_file_and_line(self, tmp_path):
        inline = event(0, INSTANT, name="i")
        inline.track_event.source_location.file_name = "a.py"
        inline.track_event.source_location.line_number = 7
        interned = event(1, INSTANT, name="j", flags=NEEDS, source_location_iid=3)
        interned.interned_data.source_locations.add(iid=3, file_name="b.cc", line_number=9)
        trace, _ = read(tmp_path, cleared(), inline, interned)
        assert trace.slices["file", "line"].rows() == [("a.py", 7), ("b.cc", 9)]

    def test_names_that_are_not_utf8_are_repaired(self, tmp_path):
        content = framed(event(0, INSTANT, name="k@@x")).replace(b"k@@x", b"k\x9f\xffx")
        trace, _ = read(tmp_path, content=content)
        assert trace.slices["name"].to_list() == ["k\ufffd\ufffdx"]


class TestState:
    def interned(self, iid, name, at, flags=NEEDS, sequence=1, kind=INSTANT):
        made = event(at, kind, flags=flags, sequence=sequence, name_iid=iid)
        if name is not None:
            made.interned_data.event_names.add(iid=iid, name=name)
        return made

    def test_names_are_interned_by_sequence_and_generation(self, tmp_path):
        trace, health = read(
            tmp_path,
            cleared(1),
            cleared(2),
            self.interned(1, "one", 0),
            self.interned(1, "two", 1, sequence=2),
            self.interned(1, None, 2),
            self.interned(1, "ignored: the first wins", 3),
            cleared(1),
            self.interned(1, "new", 4),
            self.interned(1, None, 5, sequence=2),
        )
        assert trace.slices["name"].to_list() == ["one", "two", "one", "one", "new", "two"]
        assert len(health) == 0

    def test_before_the_first_clear_packets_that_need_state_are_dropped_and_counted(self, tmp_path):
        trace, health = read(tmp_path, self.interned(1, "a", 0), event(1, INSTANT, name="plain"))
        assert trace.slices["name"].to_list() == ["plain"]
        assert codes(health) == {"needs-state": 1, "interned-data-skipped": 1, "incomplete": 1}
        assert health.distrust("slices:instant") is not None

    def test_after_a_lost_packet_the_sequence_waits_for_a_clear(self, tmp_path):
        lost = self.interned(1, None, 2)
        lost.previous_packet_dropped = 1
        trace, health = read(
            tmp_path,
            cleared(),
            self.interned(1, "a", 0),
            lost,
            self.interned(1, None, 3),
            cleared(),
            self.interned(1, "b", 4),
        )
        assert trace.slices["name"].to_list() == ["a", "b"]
        assert codes(health)["needs-state"] == 2
        assert codes(health)["dropped-by-writer"] == 1

    def test_the_legacy_clear_flag_counts_too(self, tmp_path):
        start = packet(incremental_state_cleared=True)
        trace, health = read(tmp_path, start, self.interned(4, "a", 0))
        assert trace.slices["name"].to_list() == ["a"]
        assert len(health) == 0

    def test_unknown_ids_are_shown_as_such(self, tmp_path):
        made = event(0, INSTANT, flags=NEEDS, name_iid=9, category_iids=[8])
        trace, health = read(tmp_path, cleared(), made)
        assert trace.slices["name"].to_list() == ["unknown(9)"]
        assert json.loads(trace.slices["args"][0]) == {"category": "unknown(8)"}
        assert codes(health) == {"unknown-names": 1}

    def test_default_tracks_and_their_reset(self, tmp_path):
        start = cleared()
        start.trace_packet_defaults.track_event_defaults.track_uuid = 1
        no_track = packet(5)
        no_track.track_event.CopyFrom(pb.TrackEvent(type=INSTANT, name="i"))
        trace, _ = read(tmp_path, thread(), start, no_track, cleared(), no_track)
        assert [trace.tracks["thread_id"][track] for track in trace.slices["track_id"]] == [6, None]

    def test_another_machines_packets_are_left_out(self, tmp_path):
        other = event(0, INSTANT, name="i")
        other.machine_id = 3
        trace, health = read(tmp_path, other, event(1, INSTANT, name="j"))
        assert trace.slices["name"].to_list() == ["j"]
        assert codes(health) == {"other-machine": 1}


class TestClocks:
    def test_a_realtime_snapshot_gives_the_origin(self, tmp_path):
        snap = snapshot({BOOTTIME: 1_000, REALTIME: 1_790_000_000_000_001_000})
        trace, _ = read(tmp_path, event(5_000, INSTANT, name="i"), snap)
        assert trace.origin_unix_ns == 1_790_000_000_000_005_000
        assert trace.slices["start_ns"].to_list() == [0]

    def test_snapshots_that_disagree_widen_the_clock(self, tmp_path):
        snaps = [
            snapshot({BOOTTIME: at, REALTIME: 10**18 + at + apart}) for at, apart in ((0, 0), (100, 40), (200, -60))
        ]
        trace, _ = read(tmp_path, *snaps, event(300, INSTANT, name="i"))
        assert trace.origin_unix_ns == 10**18 + 300
        assert trace.clock_halfwidth_ns == 60

    def test_clocks_are_converted_by_the_nearest_earlier_snapshot_even_if_it_comes_late(self, tmp_path):
        trace, _ = read(
            tmp_path,
            event(10, INSTANT, name="early", clock=MONOTONIC),
            event(150, INSTANT, name="mid", clock=MONOTONIC),
            event(2_000, INSTANT, name="boot"),
            snapshot({BOOTTIME: 1_100, MONOTONIC: 100}),
            snapshot({BOOTTIME: 1_250, MONOTONIC: 200}),
            event(210, INSTANT, name="late", clock=MONOTONIC),
        )
        assert slices(trace, "name", "start_ns") == [("early", 0), ("mid", 140), ("late", 250), ("boot", 990)]

    def test_conversion_follows_a_chain_of_clocks(self, tmp_path):
        trace, _ = read(
            tmp_path,
            snapshot({BOOTTIME: 1_000, MONOTONIC: 10}),
            snapshot({MONOTONIC: 20, 70: 7}),
            event(1_000, INSTANT, name="zero"),
            event(9, INSTANT, name="chained", clock=70),
        )
        assert slices(trace, "name", "start_ns") == [("zero", 0), ("chained", 12)]

    def test_sequence_clocks_count_deltas_in_units(self, tmp_path):
        def start(sequence, at):
            made = snapshot({BOOTTIME: at, 64: 5}, sequence=sequence)
            made.clock_snapshot.clocks[1].is_incremental = True
            made.clock_snapshot.clocks[1].unit_multiplier_ns = 1_000
            return made

        trace, _ = read(
            tmp_path,
            start(1, 100_000),
            start(2, 500_000),
            event(1, INSTANT, name="a", clock=64),
            event(3, INSTANT, name="b", clock=64, sequence=2),
            event(2, INSTANT, name="c", clock=64),
        )
        assert slices(trace, "name", "start_ns") == [("a", 0), ("c", 2_000), ("b", 402_000)]

    def test_a_sequence_clock_may_be_described_late_unless_it_counts_deltas(self, tmp_path):
        late = snapshot({BOOTTIME: 1_000, 64: 5})
        late.clock_snapshot.clocks[1].unit_multiplier_ns = 10
        trace, _ = read(tmp_path, event(7, INSTANT, name="a", clock=64), late, event(1_000, INSTANT, name="b"))
        assert slices(trace, "name", "start_ns") == [("b", 0), ("a", 20)]
        late.clock_snapshot.clocks[1].is_incremental = True
        trace, health = read(tmp_path, event(7, INSTANT, name="a", clock=64), late, event(1_000, INSTANT, name="b"))
        assert trace.slices["name"].to_list() == ["b"]
        assert codes(health)["unplaced"] == 1

    def test_an_unconnected_clock_is_dropped_and_counted(self, tmp_path):
        trace, health = read(
            tmp_path,
            snapshot({BOOTTIME: 5, REALTIME: 6}),
            event(1, INSTANT, name="a", clock=9),
            event(2, INSTANT, name="b"),
        )
        assert trace.slices["name"].to_list() == ["b"]
        assert codes(health)["unplaced"] == 1

    def test_without_snapshots_the_clock_in_use_is_the_traces(self, tmp_path):
        trace, health = read(
            tmp_path, event(3, INSTANT, name="a", clock=MONOTONIC), event(9, INSTANT, name="b", clock=MONOTONIC)
        )
        assert slices(trace, "name", "start_ns") == [("a", 0), ("b", 6)]
        assert trace.origin_unix_ns is None
        assert len(health) == 0

    def test_default_clock_of_the_sequence(self, tmp_path):
        start = cleared()
        start.trace_packet_defaults.timestamp_clock_id = MONOTONIC
        trace, _ = read(
            tmp_path,
            snapshot({BOOTTIME: 100, MONOTONIC: 1}),
            start,
            event(1, INSTANT, name="a"),
            event(100, INSTANT, name="b", sequence=2),
        )
        assert slices(trace, "name", "start_ns") == [("a", 0), ("b", 0)]

    def test_alignment_of_the_capture_wins(self, tmp_path):
        trace, _ = read(tmp_path, event(40, INSTANT, name="a"), alignment=Alignment(10**18, 500))
        assert (trace.origin_unix_ns, trace.clock_halfwidth_ns) == (10**18 + 40, 500)

    def test_missing_and_impossible_times_are_counted(self, tmp_path):
        trace, health = read(
            tmp_path, event(None, INSTANT, name="a"), event(2**63, INSTANT, name="b"), event(1, INSTANT, name="c")
        )
        assert trace.slices["name"].to_list() == ["c"]
        assert (codes(health)["no-time"], codes(health)["bad-time"]) == (1, 1)


class TestCounters:
    def test_units_multipliers_and_increments(self, tmp_path):
        trace, health = read(
            tmp_path,
            thread(),
            cleared(),
            counter(2, "bytes", unit=3),
            counter(3, "sum", parent=1, unit_name="tokens", unit_multiplier=10, is_incremental=True),
            event(0, COUNTER, 2, counter_value=7),
            event(1, COUNTER, 3, counter_value=2),
            event(2, COUNTER, 3, double_counter_value=0.5),
            event(3, BEGIN, 1, "a", extra_counter_track_uuids=[2, 3], extra_counter_values=[8, 1]),
            event(4, END, 1),
        )
        assert trace.counters["at_ns", "value"].rows() == [(0, 7.0), (1, 20.0), (2, 25.0), (3, 8.0), (3, 35.0)]
        kinds = trace.tracks.filter(pl.col("kind") == "counter")
        assert kinds["name", "unit", "process_id"].rows() == [("bytes", "bytes", -1), ("sum", "tokens", 5)]
        assert len(health) == 0

    def test_values_before_their_descriptor_are_dropped_and_counted(self, tmp_path):
        trace, health = read(
            tmp_path,
            event(0, COUNTER, 2, counter_value=7),
            counter(2),
            event(1, COUNTER, 2),
            event(2, COUNTER, 2, counter_value=3),
        )
        assert trace.counters["value"].to_list() == [3.0]
        assert codes(health) == {"bad-counter": 2}


class TestFlows:
    def test_ids_begin_step_and_end(self, tmp_path):
        trace, _ = read(
            tmp_path,
            event(0, INSTANT, 1, "a", flow_ids=[5]),
            event(1, INSTANT, 2, "b", flow_ids=[5]),
            event(2, INSTANT, 3, "k", "kernel", terminating_flow_ids=[5]),
            event(3, INSTANT, 1, "c", flow_ids=[5]),
        )
        assert trace.flows.rows() == [(0, 1, "async"), (1, 2, "launch")]

    def legacy(self, at, track, name, phase, **fields):
        made = event(at, 0, track, name, "cat")
        made.track_event.legacy_event.CopyFrom(pb.TrackEvent.LegacyEvent(phase=ord(phase), **fields))
        return made

    def test_legacy_flows_bind_to_the_enclosing_or_the_next_slice(self, tmp_path):
        trace, health = read(
            tmp_path,
            self.legacy(0, 1, "x", "X", duration_us=1),
            self.legacy(10, 1, "f", "s", unscoped_id=3),
            self.legacy(20, 2, "f", "f", unscoped_id=3),
            self.legacy(30, 2, "y", "X", duration_us=1),
            self.legacy(40, 1, "g", "s", unscoped_id=4),
            self.legacy(50, 2, "g", "f", unscoped_id=4, bind_to_enclosing=True),
        )
        assert trace.flows["from_id", "to_id"].rows() == [(0, 1), (0, 1)]
        assert len(health) == 0

    def test_flows_that_lead_nowhere_are_counted(self, tmp_path):
        _, health = read(
            tmp_path,
            self.legacy(0, 1, "f", "s", unscoped_id=3),
            self.legacy(1, 1, "g", "f", unscoped_id=9),
            self.legacy(2, 2, "x", "X", duration_us=1),
        )
        assert codes(health) == {"flow-without-slice": 1, "flow-without-end": 1}


class TestLegacy:
    def legacy(self, at, phase, name="a", pid=None, **fields):
        made = packet(at)
        made.track_event.CopyFrom(pb.TrackEvent(name=name, categories=["c"]))
        made.track_event.legacy_event.CopyFrom(pb.TrackEvent.LegacyEvent(phase=ord(phase), **fields))
        return made

    def test_partly_overlapping_complete_events_are_dropped_with_their_time(self, tmp_path):
        trace, health = read(
            tmp_path,
            self.legacy(0, "X", "a", duration_us=10),
            self.legacy(2_000, "X", "inside", duration_us=2),
            self.legacy(5_000, "X", "over", duration_us=7),
            self.legacy(10_000, "X", "after", duration_us=1),
        )
        assert slices(trace, "name", "depth") == [("a", 0), ("inside", 1), ("after", 0)]
        lost = next(e for e in health if e.code == "perfetto.overlapping")
        assert (lost.count, lost.lost_ns) == (1, 7_000)

    def test_a_thread_descriptor_names_the_thread_and_the_reference_time(self, tmp_path):
        start = cleared()
        start.thread_descriptor.CopyFrom(pb.ThreadDescriptor(pid=5, tid=6, thread_name="m", reference_timestamp_us=100))
        one, two = packet(), packet()
        one.track_event.CopyFrom(pb.TrackEvent(type=BEGIN, name="a", timestamp_delta_us=3))
        two.track_event.CopyFrom(pb.TrackEvent(type=END, timestamp_absolute_us=110))
        trace, _ = read(tmp_path, start, one, two)
        assert slices(trace) == [("a", 0, 7_000)]
        assert trace.tracks["kind", "process_id", "thread_id", "thread"].rows() == [("thread", 5, 6, "m")]

    def test_async_events_have_tracks_by_id_and_scope(self, tmp_path):
        trace, health = read(
            tmp_path,
            self.legacy(0, "b", "r", global_id=1),
            self.legacy(1, "b", "r", global_id=2),
            self.legacy(5, "e", "r", global_id=1),
            self.legacy(9, "e", "r", global_id=2),
            self.legacy(10, "b", "r"),
        )
        assert slices(trace) == [("r", 0, 5), ("r", 1, 8)]
        assert codes(health)["async-without-id"] == 1

    def test_overrides_choose_the_thread(self, tmp_path):
        trace, _ = read(tmp_path, self.legacy(0, "X", duration_us=1, pid_override=3, tid_override=4))
        assert trace.tracks["kind", "process_id", "thread_id"].rows() == [("thread", 3, 4)]


class TestArguments:
    def values(self, tmp_path, *annotations, **kwargs):
        made = event(0, BEGIN, name="a", flags=NEEDS)
        made.track_event.debug_annotations.extend(annotations)
        made.interned_data.debug_annotation_names.add(iid=1, name="interned")
        made.interned_data.debug_annotation_string_values.add(iid=2, str=b"text")
        end = event(1, END)
        end.track_event.debug_annotations.extend(kwargs.get("end", ()))
        trace, _ = read(tmp_path, cleared(), made, end)
        return json.loads(trace.slices["args"][0]), trace

    def test_every_kind_of_value(self, tmp_path):
        note = pb.DebugAnnotation
        nested = note(
            name="d", dict_entries=[note(name="x", int_value=1), note(name="y", array_values=[note(bool_value=True)])]
        )
        old = note(name="old")
        old.nested_value.nested_type = 1
        old.nested_value.dict_keys.append("k")
        old.nested_value.dict_values.add(int_value=4)
        values, _ = self.values(
            tmp_path,
            note(name_iid=1, string_value_iid=2),
            note(name="i", int_value=-5),
            note(name="u", uint_value=2**64 - 1),
            note(name="f", double_value=0.25),
            note(name="nan", double_value=float("nan")),
            note(name="p", pointer_value=255),
            note(name="j", legacy_json_value='{"a":[1,null]}'),
            note(name="bad", legacy_json_value="{"),
            note(name="lone", legacy_json_value='"\\ud800"'),
            note(name="huge", legacy_json_value="1" + "0" * 40),
            nested,
            old,
            note(name="none"),
        )
        assert values == {
            "interned": "text",
            "i": -5,
            "u": 2**64 - 1,
            "f": 0.25,
            "nan": None,
            "p": 255,
            "j": {"a": [1, None]},
            "bad": "{",
            "lone": "?",
            "huge": 10**40,
            "d": {"x": 1, "y": [True]},
            "old": {"k": 4},
            "none": None,
        }

    def test_equal_names_merge_and_ends_add(self, tmp_path):
        note = pb.DebugAnnotation
        values, _ = self.values(
            tmp_path,
            note(name="d", dict_entries=[note(name="x", int_value=1)]),
            note(name="d", dict_entries=[note(name="y", int_value=2)]),
            end=[note(name="d", dict_entries=[note(name="z", int_value=3)]), note(name="late", bool_value=False)],
        )
        assert values == {"d": {"x": 1, "y": 2, "z": 3}, "late": False}

    def test_correlation_and_bytes_become_columns(self, tmp_path):
        _, trace = self.values(
            tmp_path,
            pb.DebugAnnotation(name="correlation", int_value=7),
            pb.DebugAnnotation(name="bytes", int_value=4096),
        )
        assert trace.slices["correlation", "bytes"].rows() == [(7, 4096)]


class TestOtherPackets:
    def test_stack_samples_of_threads(self, tmp_path):
        made = packet(5, flags=NEEDS)
        made.interned_data.function_names.add(iid=1, str=b"outer")
        made.interned_data.function_names.add(iid=2, str=b"inner")
        made.interned_data.mapping_paths.add(iid=1, str=b"libx.so")
        made.interned_data.mappings.add(iid=1, path_string_ids=[1])
        made.interned_data.frames.add(iid=1, function_name_id=1)
        made.interned_data.frames.add(iid=2, function_name_id=2, mapping_id=1)
        made.interned_data.callstacks.add(iid=1, frame_ids=[1, 2])
        made.perf_sample.CopyFrom(pb.PerfSample(pid=5, tid=6, callstack_iid=1))
        lost = packet(6, flags=NEEDS)
        lost.perf_sample.CopyFrom(pb.PerfSample(pid=5, tid=6, callstack_iid=99))
        inline = packet(8)
        inline.stack_sample.task_context.CopyFrom(pb.StackSample.TaskContext(pid=5, tid=7))
        inline.stack_sample.callstack.frames.add(function_name="f", source_file="a.py", line_number=3)
        inline.stack_sample.primary_descriptor.unit = 1
        inline.stack_sample.primary_weight = 1_000
        trace, health = read(tmp_path, thread(), cleared(), made, lost, inline)
        assert trace.samples["at_ns", "weight_ns", "on_cpu", "gil"].rows() == [
            (0, 0, True, None),
            (3, 1_000, None, None),
        ]
        assert trace.frames["function", "file", "line", "native"].rows() == [
            ("outer", None, None, False),
            ("inner", "libx.so", None, True),
            ("f", "a.py", 3, False),
        ]
        assert [trace.tracks["thread_id"][track] for track in trace.samples["track_id"]] == [6, 7]
        assert trace.tracks["thread"][trace.samples["track_id"][0]] == "t"
        assert codes(health) == {"bad-samples": 1}

    def test_scheduler_switches_become_slices_on_cpus(self, tmp_path):
        made = packet()
        made.ftrace_events.cpu = 3
        for at, pid, name in ((100, 7, "worker"), (160, 0, "idle"), (200, 8, "x")):
            one = made.ftrace_events.event.add(timestamp=at, pid=1)
            one.sched_switch.CopyFrom(pb.SchedSwitchFtraceEvent(next_pid=pid, next_comm=name))
        compact = packet()
        compact.ftrace_events.cpu = 4
        compact.ftrace_events.compact_sched.CopyFrom(
            pb.FtraceEventBundle.CompactSched(
                intern_table=["w"], switch_timestamp=[100, 50], switch_next_pid=[7, 0], switch_next_comm_index=[0, 0],
                switch_prev_state=[0, 0],
            )
        )  # fmt: skip
        trace, _ = read(tmp_path, made, compact)
        assert slices(trace, "name", "start_ns", "dur_ns", "args") == [
            ("worker", 0, 60, '{"tid":7}'),
            ("w", 0, 50, '{"tid":7}'),
        ]
        assert trace.tracks["name"].to_list() == ["CPU 3", "CPU 4"]

    def test_losses_of_the_recorder_are_told(self, tmp_path):
        stats = packet()
        stats.trace_stats.buffer_stats.add(chunks_overwritten=4, chunks_discarded=1)
        _, health = read(tmp_path, stats, event(0, INSTANT, name="i"))
        assert codes(health) == {"buffer-loss": 5}

    def test_packets_that_are_not_read_are_named(self, tmp_path):
        log = packet(1)
        log.android_log.events.add(message="x")
        _, health = read(tmp_path, log, event(0, INSTANT, name="i"))
        entry = next(iter(health))
        assert (entry.code, entry.severity, entry.count) == ("perfetto.unread-packets", "info", 1)
        assert "android_log (1)" in entry.says

    def test_a_trace_without_events_says_so(self, tmp_path):
        trace, health = read(tmp_path, snapshot({BOOTTIME: 1, REALTIME: 2}))
        assert trace.evidence() == frozenset()
        assert codes(health) == {"no-events": 1}


TWO = (thread(), event(0, BEGIN, name="a"), event(9, END))


class TestContainers:
    def wrapped(self, data, field="compressed_packets"):
        return framed(packet(**{field: data}))

    @pytest.mark.parametrize(
        ("field", "pack"),
        [
            ("compressed_packets", zlib.compress),
            ("compressed_packets", gzip.compress),
            ("zstd_compressed_packets", lambda data: zstandard.ZstdCompressor().compress(data)),
        ],
    )
    def test_compressed_packets(self, tmp_path, field, pack):
        trace, health = read(tmp_path, content=self.wrapped(pack(framed(*TWO)), field))
        assert slices(trace) == [("a", 0, 9)]
        assert trace.facts.source_events == 4
        assert len(health) == 0

    def test_a_gzipped_file(self, tmp_path):
        trace, _ = read(tmp_path, content=gzip.compress(framed(*TWO)))
        assert slices(trace) == [("a", 0, 9)]

    @pytest.mark.parametrize("field", ["compressed_packets", "zstd_compressed_packets"])
    def test_damaged_compressed_packets_are_counted(self, tmp_path, field):
        trace, health = read(tmp_path, content=framed(*TWO) + self.wrapped(b"\x28\xb5\x2f\xfdgarbage", field))
        assert slices(trace) == [("a", 0, 9)]
        assert codes(health)["bad-compressed"] == 1

    def test_a_cut_compressed_packet_gives_what_it_has(self, tmp_path):
        whole = zlib.compress(framed(*TWO, *(event(at, INSTANT, name=f"i{at * 7919}") for at in range(10, 3_000))))
        trace, health = read(tmp_path, content=self.wrapped(whole[: len(whole) // 2]))
        assert 500 < trace.slices.height < 2_900
        assert codes(health)["bad-compressed"] == 1

    @pytest.mark.parametrize("field", ["compressed_packets", "zstd_compressed_packets"])
    def test_a_bomb_ends_in_one_clear_error(self, tmp_path, monkeypatch, field):
        monkeypatch.setattr("tracelens.readers.perfetto_packets.MAX_PACKET", 1 << 20)
        pack = zlib.compress if field == "compressed_packets" else zstandard.ZstdCompressor().compress
        with pytest.raises(TracelensError, match="unpack to more than"):
            read(tmp_path, content=self.wrapped(pack(bytes(2 << 20)), field))

    def test_many_bombs_are_added_up(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tracelens.readers.perfetto_packets.MAX_FREE", 1 << 20)
        monkeypatch.setattr("tracelens.readers.perfetto_packets.MAX_RATIO", 10)
        bombs = self.wrapped(zlib.compress(framed(event(0, INSTANT, name="x" * 500_000)))) * 3
        with pytest.raises(TracelensError, match="unpack to more"):
            read(tmp_path, content=bombs)

    def test_layers_end(self, tmp_path):
        data = framed(*TWO)
        for _ in range(3):
            data = self.wrapped(zlib.compress(data))
        trace, health = read(tmp_path, content=data)
        assert trace.slices.height == 0
        assert codes(health)["bad-compressed"] == 1

    @pytest.mark.parametrize("cut", [1, 2, 5])
    def test_a_cut_file_keeps_whole_packets_and_counts_bytes(self, tmp_path, cut):
        last = framed(event(20, INSTANT, name="lost"))
        trace, health = read(tmp_path, content=framed(*TWO) + last[:cut])
        assert slices(trace) == [("a", 0, 9)]
        entry = next(iter(health))
        assert (entry.code, entry.lost_bytes) == ("perfetto.truncated", cut)

    def test_broken_framing_counts_all_that_follows(self, tmp_path):
        rest = b"\xff" * 12 + framed(*TWO)
        trace, health = read(tmp_path, content=framed(*TWO) + rest)
        assert slices(trace) == [("a", 0, 9)]
        entry = next(iter(health))
        assert (entry.code, entry.lost_bytes) == ("perfetto.broken-framing", len(rest))
        assert health.distrust("slices:other") is not None

    def test_a_damaged_packet_costs_only_itself(self, tmp_path):
        trace, health = read(tmp_path, content=framed(*TWO[:1]) + b"\x0a\x03\x5a\xff\x01" + framed(*TWO[1:]))
        assert slices(trace) == [("a", 0, 9)]
        assert next(e for e in health if e.code == "perfetto.bad-packets").lost_bytes == 3

    def test_packets_longer_than_a_block(self, tmp_path):
        long = event(3, INSTANT, name="x" * 3_000_000)
        trace, _ = read(tmp_path, *TWO, long, event(12, INSTANT, name="i"))
        assert trace.slices["name"].to_list() == ["a", "x" * 3_000_000, "i"]

    def test_foreign_fields_between_packets_are_skipped(self, tmp_path):
        trace, health = read(
            tmp_path, content=b"\x10\x05" + framed(*TWO) + b"\x1a\x02hi" + b"\x25abcd" + b"\x29abcdefgh"
        )
        assert slices(trace) == [("a", 0, 9)]
        assert codes(health) == {"foreign-fields": 4}

    def test_nothing_readable_is_one_clear_error(self, tmp_path):
        with pytest.raises(TracelensError, match="not one whole Perfetto packet"):
            read(tmp_path, content=framed(*TWO)[:3])

    def test_text_protos_are_refused_with_the_way_out(self, tmp_path):
        with pytest.raises(TracelensError, match="textproto") as caught:
            read(tmp_path, content=b"# comment\npacket {\n  timestamp: 1\n}\n")
        assert "protoc" in caught.value.hint

    def test_the_collector_is_left_as_it_was(self, tmp_path):
        read(tmp_path, *TWO)
        assert gc.isenabled()
        gc.disable()
        try:
            read(tmp_path, *TWO)
            assert not gc.isenabled()
        finally:
            gc.enable()


class TestSniff:
    def test_packets_are_recognised_whatever_the_name(self):
        content = framed(*TWO)
        assert READER.sniff(content, "x.json") == 100
        assert READER.sniff(content[:-3], "x") == 100
        assert READER.sniff(framed(event(0, INSTANT, name="x" * 70_000))[:65_536], "x") == 80
        assert READER.sniff(b"packet {\n  timestamp: 1 }", "x") == 90

    @pytest.mark.parametrize(
        "head",
        [
            b"",
            b"\n",
            b"\n\n\n",
            b'\n{"traceEvents": []}',
            b"\n[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]\n\n\n",
            b"\nthread (1): main;f (a.py:3) 7\nthread (1): main;g (a.py:3) 7\n",
            b"{}",
            bytes(range(256)),
        ],
    )
    def test_other_content_is_left_alone(self, head):
        assert READER.sniff(head, "x.pftrace") == 0
