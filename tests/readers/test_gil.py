import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.gil import READER
from tracelens.trace import GilFacts

M0, R0 = 5_000_000_000, 1_790_000_000_000_000_000
HEADER = {
    "format": "tracelens.gil_probe/1",
    "pid": 40,
    "os_tid": 42,
    "period_ns": 1_000_000,
    "clock": "CLOCK_MONOTONIC",
    "gil": {"build_disabled": False, "enabled": True},
    "switch_interval_ns": 5_000_000,
    "anchors": [{"monotonic_ns": M0, "realtime_ns": R0}],
}


def end(rows, monotonic_ns=M0 + 10_000_000, apart=0):
    anchor = {"monotonic_ns": monotonic_ns, "realtime_ns": R0 + monotonic_ns - M0 + apart}
    return {"end": True, "rows": rows, "anchors": [anchor]}


def read(tmp_path, *lines, raw=b""):
    path = tmp_path / "gil.40.jsonl"
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + raw)
    health = Health()
    return READER.read(Source("gil.40.jsonl", path), health), health


def codes(health):
    return [entry.code for entry in health]


def test_reads_ticks_track_and_facts(tmp_path):
    rows = [[M0 + 1_000_000, 7, 3], [M0 + 2_500_000, 500_000, None]]
    trace, health = read(tmp_path, HEADER, rows, end(2))
    assert codes(health) == []
    assert trace.origin_unix_ns == R0
    assert trace.clock_halfwidth_ns == 1_000
    assert trace.ticks.rows() == [(0, 1_000_000, 7, 3), (0, 2_500_000, 500_000, None)]
    track = trace.tracks.row(0, named=True)
    assert (track["process_id"], track["thread_id"], track["thread"]) == (40, 42, "tracelens-gil-probe")
    assert trace.facts.gil == {40: GilFacts(enabled=True, build_disabled=False, switch_interval_ns=5_000_000)}
    assert trace.evidence() == {"ticks"}


def test_small_drift_is_interpolated_and_counts_as_uncertainty(tmp_path):
    trace, health = read(tmp_path, HEADER, [[M0 + 5_000_000, 0, 0], [M0 + 10_000_000, 0, 0]], end(2, apart=4_000))
    assert trace.ticks["at_ns"].to_list() == [5_002_000, 10_004_000]
    assert trace.clock_halfwidth_ns == 5_000
    assert codes(health) == []


def test_anchors_say_how_well_they_were_taken(tmp_path):
    anchor = {**HEADER["anchors"][0], "halfwidth_ns": 90}
    last = end(1)
    last["anchors"][0]["halfwidth_ns"] = 200
    trace, _ = read(tmp_path, {**HEADER, "anchors": [anchor]}, [[M0, 0, 0]], {**last, "cpu_ns": 5})
    assert trace.clock_halfwidth_ns == 200


def test_a_wall_clock_that_was_set_is_not_smeared(tmp_path):
    trace, health = read(tmp_path, HEADER, [[M0 + 5_000_000, 0, 0]], end(1, apart=-3_000_000_000))
    assert trace.ticks["at_ns"].to_list() == [5_000_000]
    assert trace.clock_halfwidth_ns == 3_000_001_000
    assert codes(health) == ["gil.clock-set"]


def test_killed_probe_keeps_whole_rows_of_the_cut_line(tmp_path):
    trace, health = read(tmp_path, HEADER, [[M0 + 1, 1, 1]], raw=b"[[%d, 2, 2], [%d, 3" % (M0 + 2, M0 + 3))
    assert trace.ticks["late_ns"].to_list() == [1, 2]
    assert codes(health) == ["gil.damaged-lines", "gil.no-end"]
    assert next(iter(health)).lost_bytes == len(b", [%d, 3" % (M0 + 3))


def test_bad_rows_are_counted_and_the_rest_kept(tmp_path):
    bad = [["x", 1, 1], [1.5, 1, 1], [M0, 1], [M0, 2**64, 1], [-5, 1, 1], None]
    trace, health = read(tmp_path, HEADER, [[M0 + 1, 1, 1], *bad, [M0 + 2, 2, None]], end(8))
    assert trace.ticks["late_ns"].to_list() == [1, 2]
    assert [(e.code, e.count) for e in health] == [("gil.bad-rows", 6)]


def test_missing_rows_are_counted(tmp_path):
    _, health = read(tmp_path, HEADER, [[M0 + 1, 1, 1]], end(5))
    assert [(e.code, e.count) for e in health] == [("gil.row-count", 4)]


def test_a_probe_without_ticks_says_so(tmp_path):
    trace, health = read(tmp_path, HEADER, end(0))
    assert trace.ticks.height == 0
    assert codes(health) == ["gil.no-ticks"]


def test_unknown_gil_state_stays_unknown(tmp_path):
    header = {**HEADER, "gil": {"build_disabled": True, "enabled": None}, "switch_interval_ns": None}
    trace, _ = read(tmp_path, header, [[M0, 0, 0]], end(1))
    assert trace.facts.gil[40] == GilFacts(enabled=None, build_disabled=True, switch_interval_ns=None)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({**HEADER, "format": "tracelens.gil_probe/2"}, "this version reads"),
        ({**HEADER, "anchors": []}, "how its clock maps"),
        ({**HEADER, "clock": "CLOCK_BOOTTIME"}, "how its clock maps"),
        ({**HEADER, "pid": "x"}, "header is unreadable"),
        ([1], "header is unreadable"),
    ],
)
def test_an_unusable_header_is_one_clear_error(tmp_path, header, says):
    with pytest.raises(TracelensError, match=says) as caught:
        read(tmp_path, header, [[M0, 0, 0]])
    assert caught.value.hint


def test_sniffs_by_content():
    assert READER.sniff(json.dumps(HEADER).encode() + b"\n[[1,2,3]]", "whatever.bin") == 100
    assert READER.sniff(b'{"traceEvents": []}', "gil.1.jsonl") == 0
    assert READER.sniff(b"", "gil.1.jsonl") == 0


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damage_after_the_header_never_crashes(tmp_path_factory, noise, cut):
    tmp_path = tmp_path_factory.mktemp("gil")
    body = json.dumps([[M0 + i * 1_000_000, i, i] for i in range(20)]).encode()
    trace, health = read(tmp_path, HEADER, raw=body[:cut] + noise)
    assert trace.ticks.height <= 20 + noise.count(b"[")
    assert "gil.no-end" in codes(health)
