"""The batch ways of reading Perfetto against the single-packet reader, their oracle: same rows, same losses."""

import io
import random
import sys
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from polars.testing import assert_frame_equal

from tests.corpus_folder import corpus
from tests.readers.perfetto_ways import FAST, read_all
from tests.readers.test_perfetto_writer import sample_trace, traces, written
from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.presenters.perfetto_writer import write_perfetto
from tracelens.readers import kineto, perfetto_fast
from tracelens.readers.perfetto import Decoder, read_by
from tracelens.readers.perfetto_packets import Damage, chain, split

NOTE = pb.DebugAnnotation
_relaxed = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)


@pytest.fixture(params=[7, 1 << 15])
def batch(request, monkeypatch):
    """Batches from one packet on, of at most 7 packets or of any number."""
    monkeypatch.setattr(perfetto_fast, "MIN_BATCH", 1)
    monkeypatch.setattr("tracelens.readers.perfetto.MAX_BATCH", request.param)
    return request.param


def read_content(folder, content):
    path = folder / "t.pftrace"
    path.write_bytes(content)
    return read_all(Source("t.pftrace", path))


_names = st.sampled_from(["f", "核", "", "correlation", "bytes", "category", "tracelens"])
_iids = st.integers(0, 4)
_kinds = st.sampled_from([1, 1, 1, 2, 2, 2, 3, 4, 0, 5])


@st.composite
def annotations(draw):
    """One debug annotation; most are as writers write them."""
    made = NOTE(name_iid=draw(_iids)) if draw(st.integers(0, 3)) else NOTE(name=draw(_names))
    number = st.integers(-(2**63), 2**63 - 1)
    match draw(st.integers(0, 12)):
        case 0 | 1:
            made.int_value = draw(number | _iids)
        case 2 | 3:
            made.string_value_iid = draw(_iids)
        case 4:
            made.uint_value = draw(st.integers(0, 2**64 - 1))
        case 5:
            made.double_value = draw(st.floats())
        case 6:
            made.bool_value = draw(st.booleans())
        case 7:
            made.pointer_value = draw(st.integers(0, 2**64 - 1))
        case 8:
            made.string_value = draw(st.text(max_size=4))
        case 9:
            made.dict_entries.append(NOTE(name=draw(_names), int_value=draw(number)))
            made.dict_entries.append(NOTE(name_iid=draw(_iids), string_value_iid=draw(_iids)))
        case 10:
            made.array_values.append(NOTE(double_value=draw(st.floats())))
        case 11:
            made.legacy_json_value = draw(st.sampled_from(["[1]", "{", "1" + "0" * 40, '"\\ud800"', "null"]))
    return made


@st.composite
def packets(draw):
    """One packet of any of three sequences; most are plain TrackEvents."""
    packet = pb.TracePacket(trusted_packet_sequence_id=draw(st.sampled_from([0, 1, 1, 1, 7])))
    packet.timestamp = draw(st.integers(0, 60))
    packet.sequence_flags = draw(st.sampled_from([0, 2, 2, 2, 2, 2]))
    if draw(st.integers(0, 5)) == 0:
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            getattr(packet.interned_data, table).add(iid=draw(_iids), name=draw(_names))
        packet.interned_data.debug_annotation_string_values.add(iid=draw(_iids), str=draw(st.binary(max_size=3)))
        packet.interned_data.source_locations.add(iid=draw(_iids), file_name=draw(_names), line_number=draw(_iids))
    rare = draw(st.integers(0, 40))
    if rare == 0:
        packet.sequence_flags = 1
        packet.trace_packet_defaults.timestamp_clock_id = draw(st.sampled_from([0, 1, 6, 64]))
        packet.trace_packet_defaults.track_event_defaults.track_uuid = draw(_iids)
        return packet
    if rare == 1:
        packet.clock_snapshot.clocks.add(clock_id=6, timestamp=draw(st.integers(0, 99)))
        packet.clock_snapshot.clocks.add(
            clock_id=64,
            timestamp=5,
            is_incremental=draw(st.booleans()),
            unit_multiplier_ns=draw(st.sampled_from([1, 10])),
        )
        return packet
    if rare == 2:
        packet.track_descriptor.uuid = draw(_iids)
        packet.track_descriptor.counter.unit_multiplier = draw(st.sampled_from([1, 3]))
        packet.track_descriptor.counter.is_incremental = draw(st.booleans())
        return packet
    if rare == 3:
        packet.previous_packet_dropped = 1
    if rare == 4:
        packet.timestamp_clock_id = draw(st.sampled_from([1, 6, 9, 64]))
    if rare == 5:
        packet.ClearField("timestamp")
    event = packet.track_event
    event.type = draw(_kinds)
    if draw(st.integers(0, 9)):
        event.track_uuid = draw(st.sampled_from([0, 1, 2, 3, 2**64 - 1]))
    match draw(st.integers(0, 6)):
        case 0 | 1 | 2:
            event.name_iid = draw(_iids)
        case 3:
            event.name = draw(_names)
    match draw(st.integers(0, 6)):
        case 0 | 1:
            event.category_iids.append(draw(_iids))
        case 2:
            event.categories.append(draw(st.sampled_from(["kernel", "foo", "other"])))
        case 3 if rare == 6:
            event.category_iids.extend([1, 2])
    event.debug_annotations.extend(draw(st.lists(annotations(), max_size=3)))
    event.flow_ids.extend(draw(st.lists(_iids, max_size=2)))
    event.terminating_flow_ids.extend(draw(st.lists(_iids, max_size=1)))
    if draw(st.integers(0, 4)) == 0:
        event.source_location_iid = draw(_iids)
    match draw(st.integers(0, 3)):
        case 0:
            event.counter_value = draw(st.integers(-(2**63), 2**63 - 1))
        case 1:
            event.double_counter_value = draw(st.floats())
    if rare == 7:
        event.legacy_event.phase = ord(draw(st.sampled_from("XBEstfi")))
        event.legacy_event.duration_us = draw(_iids)
        event.legacy_event.bind_id = draw(_iids)
        event.legacy_event.flow_direction = draw(st.sampled_from([1, 2, 3]))
    return packet


@_relaxed
@given(st.lists(packets(), min_size=1, max_size=30), st.booleans())
def test_any_packets_give_the_same(batch, tmp_path_factory, made, healthy):
    """`healthy` begins with a clear and names for every id, as real traces do, so that much goes through batches."""
    start = []
    if healthy:
        for sequence in (0, 1, 7):
            first = pb.TracePacket(trusted_packet_sequence_id=sequence, sequence_flags=1)
            for iid, name in enumerate(["f", "tracelens", "correlation", "category", "g"]):
                for table in ("event_names", "event_categories", "debug_annotation_names"):
                    getattr(first.interned_data, table).add(iid=iid, name=name)
                first.interned_data.debug_annotation_string_values.add(iid=iid, str=name.encode())
            start.append(first)
    content = pb.Trace(packet=[*start, *made]).SerializeToString()
    read_content(tmp_path_factory.mktemp("p"), content)


@_relaxed
@given(traces())
def test_written_traces_give_the_same(batch, tmp_path_factory, trace):
    _, health = read_content(tmp_path_factory.mktemp("p"), written(trace))
    assert [e.code for e in health if e.code != "perfetto.no-events"] == []


@_relaxed
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_flipped_bytes_give_the_same(batch, tmp_path_factory, seed, flips):
    chance = random.Random(seed)
    damaged = bytearray(written(sample_trace(8)))
    for _ in range(flips):
        damaged[chance.randrange(len(damaged))] ^= chance.randrange(1, 256)
    try:
        read_content(tmp_path_factory.mktemp("p"), bytes(damaged))
    except TracelensError as error:
        assert error.hint


def test_cut_files_give_the_same(batch, tmp_path):
    content = written(sample_trace(4))
    for size in range(40, len(content), 41):
        read_content(tmp_path, content[:size])


@pytest.mark.corpus
def test_the_corpus_gives_the_same(batch):
    (folder,) = corpus("public")
    files = [path for path in sorted(Path(folder).iterdir()) if "pftrace" in path.name or "perfetto-trace" in path.name]
    assert len(files) >= 5
    for path in files:
        read_all(Source(path.name, path))


def test_plain_events_do_go_through_batches(tmp_path, monkeypatch):
    """All but the snapshot, the descriptors, and the head of each sequence."""
    single, original = [], Decoder._one_by_one

    def counted(decoder, block, first, last, layer):
        single.append(last - first)
        original(decoder, block, first, last, layer)

    monkeypatch.setattr(Decoder, "_one_by_one", counted)
    path = tmp_path / "t.pftrace"
    path.write_bytes(written(sample_trace(400)))
    trace = read_by(perfetto_fast.NUMPY, Source("t", path), Health())
    assert trace.slices.height == 1_200
    assert sum(single) < 20


@_relaxed
@given(st.lists(st.binary(max_size=200), max_size=20), st.binary(max_size=3), st.integers(1, 50))
def test_every_chain_finds_the_same_packets(bodies, rest, size):
    content = b"".join(b"\n" + _length(body) + body for body in bodies) + rest
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    found = []
    for follow in (chain, *(way.chain for way in FAST.values())):
        damage = Damage()
        mine = [bytes(b) for block in split(pieces, damage, follow) for b in block.bodies(0, len(block.starts))]
        found.append((mine, vars(damage)))
    assert found[0][0][: len(bodies)] == bodies
    assert all(each == found[0] for each in found)


def _length(body):
    return bytes([len(body)]) if len(body) < 128 else bytes([len(body) & 127 | 128, len(body) >> 7])


TORCH = ("public/torch213_cpu_stacks_shapes_mem.pt.trace.json.gz", "h200/hostcopy_fixed_pinned.json.gz")


@pytest.mark.corpus
@pytest.mark.parametrize("name", TORCH)
def test_a_torch_trace_as_pftrace_gives_the_same_tables_as_its_json(tmp_path, name):
    """Kinds, names, times, arguments, flows, counters and tracks; what no Perfetto track can hold moves."""
    path = Path(corpus(name)[0])
    json = kineto.READER.read(Source(path.name, path), Health())
    file = io.BytesIO()
    done = write_perfetto(json, file)
    assert (done.slices, done.dropped) == (json.slices.height, 0)
    native, health = read_content(tmp_path, file.getvalue())
    assert [entry.code for entry in health] == []
    assert (
        native.origin_unix_ns + native.slices["start_ns"].min() == json.origin_unix_ns + json.slices["start_ns"].min()
    )
    assert comparable(native) == comparable(json)
    assert flow_ends(native) == flow_ends(json)
    assert native.counters["value"].sort().to_list() == json.counters["value"].sort().to_list()


def comparable(trace):
    """Every slice without its ids, in order; arguments as values."""
    columns = [
        "kind",
        "name",
        "start_ns",
        "dur_ns",
        "correlation",
        "bytes",
        "file",
        "line",
        "module",
        "request",
        "args",
    ]
    frame = trace.slices.with_columns(pl.col("start_ns") + (trace.origin_unix_ns or 0), pl.col("name").cast(pl.String))
    rows = []
    for row in frame.select(columns).iter_rows():
        args = msgspec.json.decode(row[-1]) if row[-1] else {}
        rows.append((*row[:-1], msgspec.json.encode(args, order="deterministic")))
    return sorted(rows, key=repr)


def flow_ends(trace):
    """(start, name) of both ends and the kind of each flow."""
    ends = trace.slices.select(
        "slice_id", pl.col("start_ns") + (trace.origin_unix_ns or 0), pl.col("name").cast(pl.String)
    )
    joined = trace.flows.join(ends, left_on="from_id", right_on="slice_id").join(
        ends, left_on="to_id", right_on="slice_id", suffix="_to"
    )
    return sorted(joined.drop("from_id", "to_id").rows())


@pytest.mark.parametrize("way", FAST)
def test_time_grows_with_size(tmp_path, way):
    """Twice the events take at most 2.5 times as long; the best of several tries, as other programs run too."""
    paths = []
    for count in (6_000, 12_000):
        paths.append(tmp_path / f"{count}.pftrace")
        paths[-1].write_bytes(written(sample_trace(count)))
    assert min(ratio(paths, FAST[way]) for _ in range(3)) <= 2.5


def ratio(paths, way):
    """CPU time of the second file in units of the first."""
    spent = []
    for path in paths:
        begun = time.process_time()
        read_by(way, Source("t", path), Health())
        spent.append(time.process_time() - begun)
    return spent[1] / spent[0]


def test_without_numba_nothing_changes(tmp_path, monkeypatch):
    path = tmp_path / "t.pftrace"
    path.write_bytes(written(sample_trace(40)))
    monkeypatch.setattr(perfetto_fast, "NUMBA_SIZE", 0)
    monkeypatch.setitem(sys.modules, "tracelens.readers.perfetto_compiled", None)
    assert perfetto_fast.suited(1 << 30) is perfetto_fast.NUMPY
    mine = read_by(None, Source("t", path), Health())
    assert_frame_equal(
        mine.slices, read_by(perfetto_fast.GENERIC, Source("t", path), Health()).slices, categorical_as_str=True
    )
