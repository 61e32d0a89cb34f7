import io
import random
import zlib

import msgspec
import polars as pl
import pytest
import zstandard
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tracelens import schema
from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.presenters.perfetto_writer import write_perfetto
from tracelens.readers.perfetto_sniff import READER
from tracelens.trace import Trace

REALTIME, MONOTONIC, BOOTTIME = 1, 3, 6
ORIGIN = 1_790_000_000_000_000_000
KINDS = [kind for kind in schema.SLICE_KINDS if kind != "instant"]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["bfloat16", "x" * 300])
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_arguments = st.dictionaries(st.sampled_from(["External id", "Input Dims", "dtype", "é", ""]), _values, max_size=3)
_small = st.integers(0, 3)
_text = st.none() | st.text(max_size=5)


@st.composite
def traces(draw):
    """A Trace with nested slices on several tracks of several processes, flows forward in time, and counters."""
    tracks = {name: [] for name in schema.TRACKS.dtypes}
    slices = {name: [] for name in schema.SLICES.dtypes}
    count = draw(st.integers(1, 4))
    for track_id in range(count):
        kind = draw(st.sampled_from(["thread", "thread", "stream", "async", "process"]))
        row = {
            "track_id": track_id,
            "kind": kind,
            "process_id": draw(st.sampled_from([5, 6, 2**40])),
            "thread_id": 100 + track_id if kind == "thread" else None,
            "name": draw(_text),
            "device": 0 if kind == "stream" else None,
            "stream": track_id if kind == "stream" else None,
            "rank": draw(st.none() | st.integers(0, 7)),
            "process": draw(_text),
            "thread": draw(_text) if kind == "thread" else None,
            "role": draw(_text),
        }
        for name in tracks:
            tracks[name].append(row.get(name))
        now = draw(_small)
        stack = []
        for step in draw(st.lists(st.sampled_from(["open", "close", "instant"]), max_size=8)) + ["close"] * 8:
            if step == "close":
                if stack:
                    now += draw(_small)
                    closed = stack.pop()
                    slices["dur_ns"][closed] = now - slices["start_ns"][closed]
                continue
            now += draw(_small)
            args = draw(_arguments)
            slice_id = len(slices["slice_id"])
            file = draw(st.sampled_from([None, "a.py", "b.cu"]))
            made = {
                "slice_id": slice_id,
                "track_id": track_id,
                "parent_id": stack[-1] if stack else None,
                "depth": len(stack),
                "start_ns": now,
                "dur_ns": 0,
                "kind": "instant" if step == "instant" else draw(st.sampled_from(KINDS)),
                "name": draw(st.sampled_from(["f", "aten::mm", "核", ""])),
                "correlation": draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
                "bytes": draw(st.none() | st.integers(0, 2**62)),
                "request": draw(_text),
                "module": draw(_text),
                "file": file,
                "line": draw(st.none() | st.integers(1, 2**31 - 1)) if file else None,
                "args": msgspec.json.encode(args).decode() if args else None,
            }
            for name in slices:
                slices[name].append(made.get(name))
            if step == "open":
                stack.append(slice_id)
    counters = {"track_id": [], "at_ns": [], "value": []}
    for number in range(draw(st.integers(0, 2))):
        track_id = count + number
        row = {"track_id": track_id, "kind": "counter", "process_id": 5, "name": f"c{number}", "unit": draw(_text)}
        for name in tracks:
            tracks[name].append(row.get(name))
        for value in draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3)):
            counters["track_id"].append(track_id)
            counters["at_ns"].append(len(counters["at_ns"]))
            counters["value"].append(value)
    starts, kinds = slices["start_ns"], slices["kind"]
    pairs = [(a, b) for a in range(len(starts)) for b in range(len(starts)) if starts[a] < starts[b]]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=4)) if pairs else []
    return Trace(
        origin_unix_ns=draw(st.sampled_from([None, ORIGIN])),
        tracks=schema.TRACKS.build(tracks),
        slices=schema.SLICES.build(slices),
        counters=schema.COUNTERS.build(counters),
        flows=schema.FLOWS.build(
            {
                "from_id": [first for first, _ in chosen],
                "to_id": [second for _, second in chosen],
                "kind": ["launch" if kinds[second] in schema.GPU_WORK else "async" for _, second in chosen],
            }
        ),
    )


def written(trace):
    file = io.BytesIO()
    write_perfetto(trace, file)
    return file.getvalue()


def read(folder, content):
    path = folder / "t.pftrace"
    path.write_bytes(content)
    health = Health()
    return READER.read(Source("t.pftrace", path), health), health


def content_of(trace, origin):
    """Everything that must survive, in a form without ids: per track its row, slices in order, and counter values."""
    names = [name for name in schema.TRACKS.dtypes if name != "track_id"]
    rows = {row["track_id"]: tuple(row[name] for name in names) for row in trace.tracks.iter_rows(named=True)}
    places = {}
    columns = [name for name in schema.SLICES.dtypes if name not in ("slice_id", "track_id", "parent_id", "start_ns")]
    slices = {track_id: [] for track_id in rows}
    for row in trace.slices.iter_rows(named=True):
        mine = slices[row["track_id"]]
        places[row["slice_id"]] = (row["track_id"], len(mine))
        parent = None if row["parent_id"] is None else places[row["parent_id"]][1]
        mine.append((row["start_ns"] + origin, parent, *(row[name] for name in columns)))
    counters = {track_id: [] for track_id in rows}
    for track_id, at_ns, value in trace.counters.iter_rows():
        counters[track_id].append((at_ns + origin, value))
    told = {track_id: repr((row, slices[track_id], counters[track_id])) for track_id, row in rows.items()}
    ranks = {text: rank for rank, text in enumerate(sorted(told.values()))}
    ends = {slice_id: (ranks[told[track_id]], index) for slice_id, (track_id, index) in places.items()}
    return sorted(told.values()), sorted((ends[a], ends[b], kind) for a, b, kind in trace.flows.iter_rows())


def earliest(trace):
    starts = [value for value in (trace.slices["start_ns"].min(), trace.counters["at_ns"].min()) if value is not None]
    return min(starts, default=0)


def assert_same(trace, back, moved=0):
    if trace.origin_unix_ns is None:
        assert content_of(trace, -earliest(trace)) == content_of(back, 0)
    else:
        assert content_of(trace, trace.origin_unix_ns + moved) == content_of(back, back.origin_unix_ns)


_relaxed = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)


@_relaxed
@given(traces())
def test_what_is_written_is_read_back(tmp_path_factory, trace):
    back, health = read(tmp_path_factory.mktemp("p"), written(trace))
    assert_same(trace, back)
    assert [e.code for e in health if e.code != "perfetto.no-events"] == []


@_relaxed
@given(traces(), st.randoms(use_true_random=False), st.sampled_from(["plain", "deflate", "zstd"]))
def test_interleaved_sequences_with_a_late_snapshot_read_the_same(tmp_path_factory, trace, mixer, packing):
    """Sequences mixed as a tracing service mixes them, on a clock that only the last packet ties to CLOCK_REALTIME."""
    packets = pb.Trace.FromString(written(trace)).packet
    queues = {}
    head, snapshots = [], []
    for packet in packets:
        if packet.HasField("clock_snapshot"):
            snapshots.append(packet)
        elif packet.HasField("track_descriptor"):
            head.append(packet)
        else:
            if packet.HasField("trace_packet_defaults"):
                packet.trace_packet_defaults.timestamp_clock_id = MONOTONIC
            queues.setdefault(packet.trusted_packet_sequence_id, []).append(packet)
    assert len(queues) == trace.tracks["process_id"].n_unique()
    mixed = list(head)
    while queues:
        sequence = mixer.choice(sorted(queues))
        mixed.append(queues[sequence].pop(0))
        if not queues[sequence]:
            del queues[sequence]
    apart = 7_000_000_000
    late = pb.TracePacket(trusted_packet_sequence_id=1)
    late.clock_snapshot.clocks.add(clock_id=MONOTONIC, timestamp=50)
    if trace.origin_unix_ns is not None:
        late.clock_snapshot.clocks.add(clock_id=REALTIME, timestamp=50 + apart)
    late.clock_snapshot.primary_trace_clock = MONOTONIC
    body = b"".join(_framed(packet) for packet in [*mixed, late])
    if packing == "deflate":
        body = _framed(pb.TracePacket(compressed_packets=zlib.compress(body)))
    elif packing == "zstd":
        body = _framed(pb.TracePacket(zstd_compressed_packets=zstandard.ZstdCompressor().compress(body)))
    back, health = read(tmp_path_factory.mktemp("p"), body)
    assert_same(trace, back, moved=apart)
    assert [e.code for e in health if e.code != "perfetto.no-events"] == []


def _framed(packet):
    return pb.Trace(packet=[packet]).SerializeToString()


def sample_trace(count=40):
    """Two processes, nested slices with arguments, flows and a counter."""
    slices = {
        name: []
        for name in ("slice_id", "track_id", "parent_id", "depth", "start_ns", "dur_ns", "kind", "name", "args")
    }
    for index in range(count):
        outer = 3 * index
        for row in (
            (outer, 0, None, 0, 100 * index, 90, "op", f"op{index % 7}", f'{{"Input Dims":[[1,2],[3]],"n":{index}}}'),
            (outer + 1, 0, outer, 1, 100 * index + 10, 20, "runtime", "cudaLaunchKernel", None),
            (outer + 2, 1, None, 0, 100 * index + 40, 50, "kernel", f"k{index % 5}", '{"stream":7}'),
        ):
            for name, value in zip(slices, row, strict=True):
                slices[name].append(value)
    return Trace(
        origin_unix_ns=ORIGIN,
        tracks=schema.TRACKS.build(
            {
                "track_id": [0, 1, 2],
                "kind": ["thread", "stream", "counter"],
                "process_id": [5, 0, 5],
                "thread_id": [6, None, None],
                "name": [None, None, "kv"],
                "device": [None, 0, None],
                "stream": [None, 7, None],
            }
        ),
        slices=schema.SLICES.build(slices),
        flows=schema.FLOWS.build(
            {
                "from_id": [3 * index + 1 for index in range(count)],
                "to_id": [3 * index + 2 for index in range(count)],
                "kind": ["launch"] * count,
            }
        ),
        counters=schema.COUNTERS.build(
            {
                "track_id": [2] * count,
                "at_ns": [100 * index for index in range(count)],
                "value": [float(i) for i in range(count)],
            }
        ),
    )


class TestWriter:
    def test_overlapping_slices_move_to_extra_tracks(self, tmp_path):
        trace = Trace(
            origin_unix_ns=ORIGIN,
            tracks=schema.TRACKS.build(
                {"track_id": [0], "kind": ["thread"], "process_id": [5], "thread_id": [6], "thread": ["w"]}
            ),
            slices=schema.SLICES.build(
                {
                    "slice_id": [0, 1, 2, 3],
                    "track_id": [0] * 4,
                    "parent_id": [None, None, 1, None],
                    "depth": [0, 0, 1, 0],
                    "start_ns": [0, 5, 6, 7],
                    "dur_ns": [10, 10, 1, 10],
                    "kind": ["op"] * 4,
                    "name": list("abcd"),
                }
            ),
        )
        file = io.BytesIO()
        done = write_perfetto(trace, file)
        assert (done.slices, done.moved, done.dropped) == (4, 3, 0)
        back, health = read(tmp_path, file.getvalue())
        rows = back.slices.with_columns(pl.col("name").cast(pl.String))["name", "start_ns", "dur_ns", "depth"].rows()
        assert rows == [("a", 0, 10, 0), ("b", 5, 10, 0), ("c", 6, 1, 1), ("d", 7, 10, 0)]
        assert back.slices["track_id"].n_unique() == 3
        assert len(health) == 0

    def test_a_flow_back_in_time_is_turned(self, tmp_path):
        trace = sample_trace(1)
        backwards = schema.FLOWS.build({"from_id": [2], "to_id": [0], "kind": ["async"]})
        file = io.BytesIO()
        done = write_perfetto(
            Trace(trace.origin_unix_ns, tracks=trace.tracks, slices=trace.slices, flows=backwards), file
        )
        back, _ = read(tmp_path, file.getvalue())
        assert (done.flows, done.turned_flows) == (1, 1)
        assert back.flows["from_id", "to_id"].rows() == [(0, 2)]

    def test_arguments_that_are_no_object_stay_readable(self, tmp_path):
        trace = sample_trace(1)
        slices = trace.slices.with_columns(
            pl.Series("args", ["[1]", "{broken", '{"deep":' + "[" * 90 + "]" * 90 + "}"])
        )
        back, _ = read(tmp_path, written(Trace(ORIGIN, tracks=trace.tracks, slices=slices)))
        deep = "[" * 90 + "]" * 90
        assert back.slices["args"].to_list() == ['{"args":[1]}', '{"args":"{broken"}', '{"deep":' + deep + "}"]

    def test_perfettos_own_messages_agree_with_the_hand_written_bytes(self):
        packets = pb.Trace.FromString(written(sample_trace(1))).packet
        first = packets[0].clock_snapshot
        assert (first.primary_trace_clock, first.clocks[0].timestamp) == (REALTIME, ORIGIN)
        begins = [packet for packet in packets if packet.HasField("track_event") and packet.track_event.type == 1]
        event = begins[0]
        assert event.timestamp == ORIGIN
        assert event.sequence_flags == pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert [entry.name for entry in event.interned_data.event_names] == ["op0"]
        assert [entry.name for entry in event.interned_data.event_categories] == ["op"]
        dims, number = event.track_event.debug_annotations
        assert [[each.int_value for each in row.array_values] for row in dims.array_values] == [[1, 2], [3]]
        assert number.int_value == 0
        assert list(begins[1].track_event.flow_ids) == list(begins[2].track_event.terminating_flow_ids) == [1]
        assert [len(UnknownFieldSet(packet.track_event)) for packet in begins] == [0] * 3

    def test_many_sequences_and_blocks(self, tmp_path):
        trace = sample_trace(6_000)
        content = written(trace)
        assert len(content) > 1 << 20
        back, health = read(tmp_path, content)
        assert_same(trace, back)
        assert len(health) == 0


def flipped(content, seed):
    """The content with 1 to 3 bytes changed."""
    chance = random.Random(seed)
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(damaged))
        damaged[at] ^= chance.randrange(1, 256)
    return bytes(damaged)


def check_flips(tmp_path, seeds):
    """Damaged files are read or refused in one line; whatever is missing is accounted for."""
    trace = sample_trace()
    plain = written(trace)
    packed = _framed(pb.TracePacket(compressed_packets=zlib.compress(plain)))
    whole = trace.slices.height
    missing = 0
    for seed in seeds:
        content = flipped(packed if seed % 5 == 0 else plain, seed)
        try:
            back, health = read(tmp_path, content)
        except TracelensError as error:
            assert error.message
            continue
        assert back.slices["dur_ns"].min() is None or back.slices["dur_ns"].min() >= 0
        if back.slices.height < whole or back.counters.height < trace.counters.height:
            missing += 1
            assert len(health) > 0, f"seed {seed}: {whole - back.slices.height} slices lost without a word"
    return missing


def test_byte_flips_never_crash_and_losses_are_told(tmp_path):
    assert check_flips(tmp_path, range(300)) > 75


@pytest.mark.slow
def test_five_thousand_byte_flips(tmp_path):
    assert check_flips(tmp_path, range(5_000)) > 1_000


def test_a_cut_file_loses_exactly_its_last_packet(tmp_path):
    content = written(sample_trace(5))
    boundaries = [0]
    for packet in pb.Trace.FromString(content).packet:
        boundaries.append(boundaries[-1] + len(_framed(packet)))
    assert boundaries[-1] == len(content)
    for size in range(boundaries[1], len(content), 17):
        whole = max(boundary for boundary in boundaries if boundary <= size)
        back, health = read(tmp_path, content[:size])
        assert back.facts.source_events == boundaries.index(whole)
        assert sum(e.lost_bytes or 0 for e in health if e.code == "perfetto.truncated") == size - whole
