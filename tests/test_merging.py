"""Several sources become one Trace on one clock, with one track for one thread."""

import pytest

from tracelens import schema
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.merging import Part, merge
from tracelens.trace import Facts, GilFacts, Trace

EPOCH = 1_790_857_026_000_000_000


def sliced(origin, start=0, thread=5, rank=None, name="a"):
    tracks = schema.TRACKS.build(
        {"track_id": [0], "kind": ["thread"], "process_id": [1], "thread_id": [thread], "rank": [rank]}
    )
    slices = schema.SLICES.build(
        {
            "slice_id": [0, 1],
            "track_id": [0, 0],
            "parent_id": [None, 0],
            "depth": [0, 1],
            "start_ns": [start, start + 10],
            "dur_ns": [100, 20],
            "kind": ["op", "op"],
            "name": [name, name],
        }
    )
    flows = schema.FLOWS.build({"from_id": [0], "to_id": [1], "kind": ["launch"]})
    return Trace(origin_unix_ns=origin, tracks=tracks, slices=slices, flows=flows)


def sampled(origin, thread=5):
    tracks = schema.TRACKS.build(
        {"track_id": [3], "kind": ["thread"], "process_id": [1], "thread_id": [thread], "thread": ["worker"]}
    )
    frames = schema.FRAMES.build({"frame_id": [0], "function": ["f"], "native": [False]})
    stacks = schema.STACKS.build({"stack_id": [0], "frame_id": [0], "depth": [0]})
    samples = schema.SAMPLES.build({"track_id": [3], "at_ns": [7], "weight_ns": [0], "stack_id": [0], "gil": [True]})
    return Trace(origin_unix_ns=origin, tracks=tracks, frames=frames, stacks=stacks, samples=samples)


def test_times_move_to_the_earliest_origin_and_ids_stay_unique():
    merged = merge([Part("b", sliced(EPOCH + 50, rank=1)), Part("a", sliced(EPOCH, rank=0))])
    assert merged.origin_unix_ns == EPOCH
    assert merged.slices["start_ns"].to_list() == [50, 60, 0, 10]
    assert merged.slices["slice_id"].to_list() == [0, 1, 2, 3]
    assert merged.slices["parent_id"].to_list() == [None, 0, None, 2]
    assert merged.flows.rows() == [(0, 1, "launch"), (2, 3, "launch")]
    assert merged.tracks["rank"].to_list() == [1, 0]


def test_one_thread_seen_by_two_sources_is_one_track_with_the_known_name():
    merged = merge([Part("k", sliced(EPOCH)), Part("p", sampled(EPOCH + 3))])
    assert merged.tracks.height == 1
    assert merged.tracks["thread"].to_list() == ["worker"]
    assert merged.samples["track_id"].to_list() == merged.slices["track_id"].unique().to_list()
    assert merged.samples["at_ns"].to_list() == [10]


def test_samples_without_a_clock_are_counted_not_placed():
    merged = merge([Part("k", sliced(EPOCH)), Part("p", sampled(None))])
    assert merged.samples["at_ns"].to_list() == [None]
    assert [entry.code for entry in merged.health] == ["clock.unplaced-samples"]


def test_slices_without_a_clock_are_never_placed_beside_others():
    with pytest.raises(TracelensError, match="no absolute clock"):
        merge([Part("k", sliced(EPOCH)), Part("other", sliced(None))])


def test_different_sessions_are_never_put_on_one_clock():
    with pytest.raises(TracelensError, match=r"recorded at different times \(2\.0 s apart\)"):
        merge([Part("a", sliced(EPOCH)), Part("b", sliced(EPOCH + 2_000_000_000))])


def test_facts_are_joined_and_contradictions_dropped():
    first = Trace(facts=Facts(engine="vllm", rank=0, gil={1: GilFacts(enabled=True)}, source_events=3))
    second = Trace(facts=Facts(engine="vllm", rank=1, gil={2: GilFacts(enabled=False)}, source_events=4))
    facts = merge([Part("a", first), Part("b", second)]).facts
    assert (facts.engine, facts.rank, facts.source_events) == ("vllm", None, 7)
    assert {pid: gil.enabled for pid, gil in facts.gil.items()} == {1: True, 2: False}


def test_equal_health_entries_of_several_sources_become_one_with_their_sums():
    health = Health()
    for place in ("a", "b", "c"):
        health.add("x.lost", "warning", "bytes were lost", count=2, lost_bytes=10, where=place)
    health.add("x.other", "info", "something else", where="a")
    folded = list(health.folded())
    assert [(e.code, e.count, e.lost_bytes, e.where) for e in folded] == [
        ("x.lost", 6, 30, "a and 2 more"),
        ("x.other", 1, None, "a"),
    ]
