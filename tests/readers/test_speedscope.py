import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.speedscope import READER

FRAMES = [{"name": name} for name in "abc"]


def read(tmp_path, *profiles, frames=FRAMES, exporter=None, **options):
    path = tmp_path / "p.speedscope.json"
    path.write_text(json.dumps({"exporter": exporter, "profiles": list(profiles), "shared": {"frames": frames}}))
    health = Health()
    return READER.read(Source("p.speedscope.json", path, options=options), health), health


def sampled(stacks, weights, name="one", unit="seconds", start=0):
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": start,
        "endValue": 9,
        "samples": stacks,
        "weights": weights,
    }


def evented(events, name="one", unit="microseconds", start=0, end=0):
    made = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]
    return {"type": "evented", "name": name, "unit": unit, "startValue": start, "endValue": end, "events": made}


def codes(health):
    return [entry.code for entry in health]


PYSPY_FRAMES = [
    {"name": "run", "file": "/t.py", "line": 3, "col": None},
    {"name": "thread (42): w", "file": "", "line": 0, "col": None},
    {"name": "f", "file": "/g.py", "line": 7, "col": None},
]


def test_pyspy_samples_are_totals_of_a_known_thread(tmp_path):
    profile = sampled([[1, 0, 2], [1, 0]], [0.01, 0.01], name='Process 40 Thread 42 "w"')
    trace, health = read(tmp_path, profile, frames=PYSPY_FRAMES, exporter="py-spy@0.4.3", gil=True)
    assert trace.tracks["process_id", "thread_id", "thread"].rows() == [(40, 42, "w")]
    assert trace.samples["at_ns", "weight_ns", "gil"].rows() == [(None, 10_000_000, True)] * 2
    assert set(trace.frames["function", "file", "line"].rows()) == {("run", "/t.py", 3), ("f", "/g.py", 7)}
    assert codes(health) == ["speedscope.totals-only"]
    assert trace.origin_unix_ns is None


def test_pyspy_times_stay_unknown_even_with_a_start(tmp_path):
    trace, _ = read(tmp_path, sampled([[0]], [1], start=5), exporter="py-spy@0.4.3")
    assert trace.samples["at_ns"].to_list() == [None]


def test_profiles_with_starts_of_their_own_have_times(tmp_path):
    trace, health = read(tmp_path, sampled([[0], [0, 1]], [2, 3], start=10), sampled([[2]], [1], name="two", start=11))
    assert trace.samples["at_ns"].to_list() == [10_000_000_000, 12_000_000_000, 11_000_000_000]
    assert trace.samples["weight_ns"].to_list() == [2_000_000_000, 3_000_000_000, 1_000_000_000]
    assert trace.tracks["thread"].to_list() == ["one", "two"]
    assert "speedscope.totals-only" not in codes(health)


def test_one_profile_without_a_start_takes_all_times(tmp_path):
    trace, health = read(tmp_path, sampled([[0]], [1], start=10), sampled([[0]], [1], name="two"))
    assert trace.samples["at_ns"].null_count() == 2
    assert "speedscope.totals-only" in codes(health)


def test_a_unit_that_is_no_time_gives_no_weight(tmp_path):
    trace, health = read(tmp_path, sampled([[0]], [4096], unit="bytes"))
    assert trace.samples["weight_ns"].to_list() == [0]
    assert "speedscope.no-time-unit" in codes(health)


def test_bad_samples_are_counted(tmp_path):
    trace, health = read(tmp_path, sampled([[0], [7], [], [1], [1], [0]], [1, 1, 1, -1, 1e30]))
    found = {e.code: e.count for e in health}
    assert trace.samples.height == 1
    assert found["speedscope.bad-samples"] == 4
    assert found["speedscope.empty-stacks"] == 1


def test_evented_profiles_become_nested_slices(tmp_path):
    events = [("O", 0, 1), ("O", 1, 1), ("C", 1, 3), ("O", 1, 3), ("C", 1, 4.5), ("C", 0, 9)]
    trace, health = read(tmp_path, evented(events))
    rows = trace.slices["name", "start_ns", "dur_ns", "depth", "parent_id", "kind"].rows()
    assert rows == [
        ("a", 1_000, 8_000, 0, None, "other"),
        ("b", 1_000, 2_000, 1, 0, "other"),
        ("b", 3_000, 1_500, 1, 0, "other"),
    ]
    assert codes(health) == ["samples.process-unknown"]
    assert trace.samples.height == 0


def test_evented_damage_is_counted_and_closed_by_the_profile(tmp_path):
    events = [("O", 0, 5), ("C", 1, 6), ("O", 1, 4), ("O", 9, 6), ("O", 2, 7)]
    trace, health = read(tmp_path, evented(events, end=10))
    assert trace.slices["name", "start_ns", "dur_ns"].rows() == [("a", 5_000, 5_000), ("c", 7_000, 3_000)]
    assert {e.code: e.count for e in health if e.need == "slices:other"} == {
        "speedscope.bad-events": 3,
        "speedscope.left-open": 2,
    }


def test_several_evented_profiles_without_starts_must_not_be_compared(tmp_path):
    one = evented([("O", 0, 0), ("C", 0, 1)])
    _, health = read(tmp_path, one, {**one, "name": "two"})
    assert health.distrust("slices:other").code == "speedscope.no-common-start"
    _, alone = read(tmp_path, one)
    assert alone.distrust("slices:other") is None


def test_a_bad_profile_leaves_the_others(tmp_path):
    trace, health = read(tmp_path, {"type": "fancy"}, sampled([[0]], [1]))
    assert trace.samples.height == 1
    assert codes(health)[0] == "speedscope.bad-profiles"


def test_no_usable_profile_is_one_clear_error(tmp_path):
    with pytest.raises(TracelensError, match="no profile"):
        read(tmp_path, {"type": "fancy"})


def test_no_profiles_is_no_samples(tmp_path):
    _, health = read(tmp_path)
    assert codes(health) == ["samples.none"]


@pytest.mark.parametrize("content", ["", "{", '{"profiles": [], "shared": 1}', '{"a":' * 50_000])
def test_a_damaged_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(TracelensError, match="not a whole speedscope file"):
        READER.read(Source("x.json", path), Health())


def test_sniffs_by_content():
    head = b'{"$schema":"https://www.speedscope.app/file-format-schema.json","profiles":[]}'
    assert READER.sniff(head, "x.txt") == 100
    assert READER.sniff(json.dumps(sampled([], [])).encode().replace(b"{", b'{"profiles":[{', 1), "x") == 90
    assert READER.sniff(b'{"traceEvents":[]}', "x.speedscope.json") == 0
    assert READER.sniff(b"", "x.speedscope.json") == 0


@given(
    st.lists(st.tuples(st.sampled_from("OC"), st.integers(0, 2), st.integers(0, 9)), max_size=15),
    st.lists(st.tuples(st.lists(st.integers(-1, 3), max_size=3), st.integers(-1, 5)), max_size=8),
)
def test_any_profile_gives_nested_slices_and_accounts_for_samples(tmp_path_factory, events, looks):
    stacks, weights = [list(stack) for stack, _ in looks], [weight for _, weight in looks]
    trace, health = read(tmp_path_factory.mktemp("s"), evented(events), sampled(stacks, weights, name="two"))
    found = {e.code: e.count for e in health}
    lost = found.get("speedscope.bad-samples", 0) + found.get("speedscope.empty-stacks", 0)
    assert trace.samples.height + lost == len(looks)
    slices = {row["slice_id"]: row for row in trace.slices.iter_rows(named=True)}
    for row in slices.values():
        assert row["dur_ns"] >= 0
        if row["parent_id"] is not None:
            parent = slices[row["parent_id"]]
            assert parent["depth"] == row["depth"] - 1
            assert parent["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["dur_ns"] <= parent["start_ns"] + parent["dur_ns"]
