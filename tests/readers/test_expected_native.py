"""Facts of public traces in py-spy's, speedscope's, collapsed and Perfetto's formats against expected.json.

expected.json was computed independently; counts must agree exactly, times within 1e-3. The corpus is not in the
repository: TRACELENS_CORPUS names it, ../shared/traces is looked at otherwise.
"""

import json
import os
from pathlib import Path

import polars as pl
import pytest

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import measurements, perfetto_sniff, pyspy, speedscope

pytestmark = pytest.mark.corpus

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("TRACELENS_CORPUS", ROOT.parent / "shared" / "traces")) / "public"
READERS = (*pyspy.READERS, speedscope.READER, measurements.READER, perfetto_sniff.READER)
FORMATS = ("perfetto", "collapsed", "speedscope", "pyspy-dump-json", "pyspy-dump-text")
PYSPY_CHROME = "pyspy043_chrometrace.json"


def expected():
    """Name → facts of every file of these formats; empty without the corpus."""
    facts = FOLDER / "expected.json"
    if not facts.is_file():
        return {}
    every = json.loads(facts.read_text())
    return {name: fact for name, fact in every.items() if fact["format"] in FORMATS or name == PYSPY_CHROME}


EXPECTED = expected()


def test_the_corpus_is_there():
    if EXPECTED:
        assert len(EXPECTED) >= 12
    elif os.environ.get("CI") == "true":
        pytest.fail(f"no trace corpus at {FOLDER}: set TRACELENS_CORPUS")
    else:
        pytest.skip(f"NO TRACE CORPUS at {FOLDER}: set TRACELENS_CORPUS to check the readers against it")


def open_trace(name):
    path = FOLDER / name
    health = Health()
    source = Source(name, path)
    head = source.open(Health()).head()
    scores = sorted(((reader.sniff(head, name), reader.name) for reader in READERS), reverse=True)
    assert scores[0][0] > scores[1][0], "exactly one reader must want the file"
    reader = next(reader for reader in READERS if reader.name == scores[0][1])
    return reader.read(source, health), health


def named(kind):
    return sorted(name for name, fact in EXPECTED.items() if fact["format"] == kind and name != PYSPY_CHROME)


def self_weights(trace):
    """(function, file, line) → samples whose innermost frame it is."""
    counted = (
        trace.samples.group_by("stack_id").len().join(trace.stacks, on="stack_id").join(trace.frames, on="frame_id")
    )
    rows = counted.group_by("function", "file", "line").agg(pl.col("len").sum()).rows()
    return {(function, file, line): count for function, file, line, count in rows}


@pytest.mark.parametrize("name", named("collapsed"))
def test_collapsed_stacks(name):
    fact = EXPECTED[name]
    trace, health = open_trace(name)
    assert trace.samples.height == fact["total_samples"]
    assert sum(e.count for e in health if e.code == "pyspy.bad-lines") == fact["bad_lines"]
    assert trace.facts.source_events == fact["n_stacks"] + fact["bad_lines"]
    own = {f"{function} ({file}:{line})": count for (function, file, line), count in self_weights(trace).items()}
    for top in fact["top_self"]:
        assert own[top["name"]] == top["samples"]
    threads = {f"thread ({tid}): {thread}" for tid, thread in trace.tracks["thread_id", "thread"].iter_rows()}
    pseudo = {root["name"] for root in fact["roots"] if root["name"].startswith("thread (")}
    assert pseudo <= threads
    real = fact["n_frames"] - len(pseudo)
    assert trace.frames.height == real
    assert trace.stacks["depth"].max() + 1 == fact["max_depth"] - bool(pseudo)


@pytest.mark.parametrize("name", named("speedscope"))
def test_speedscope(name):
    fact = EXPECTED[name]
    trace, _ = open_trace(name)
    assert trace.samples.height == fact["total_samples"]
    assert trace.tracks.height == fact["n_profiles"]
    seconds = fact["total_weight_by_unit"].get("seconds", 0)
    assert trace.samples["weight_ns"].sum() == pytest.approx(seconds * 1e9, rel=1e-3)
    evented = [profile for profile in fact["profiles"] if profile["type"] == "evented"]
    assert trace.slices.height == sum(profile["n_events"] // 2 for profile in evented)
    if evented:
        inside = trace.slices.group_by("parent_id").agg(pl.col("dur_ns").sum().alias("inside"))
        own = trace.slices.join(inside, left_on="slice_id", right_on="parent_id", how="left")
        own = own.with_columns(pl.col("dur_ns") - pl.col("inside").fill_null(0))
        found = dict(own.group_by(pl.col("name").cast(pl.String)).agg(pl.col("dur_ns").sum()).rows())
        assert found == {top["name"]: top["weight"] for top in fact["top_self"]}
    else:
        weights = trace.samples.join(trace.stacks, on="stack_id").join(trace.frames, on="frame_id")
        found = sorted(
            weights.group_by("frame_id", "function").agg(pl.col("weight_ns").sum())["function", "weight_ns"].rows()
        )
        wanted = sorted((top["name"], top["weight"] * 1e9) for top in fact["top_self"])
        assert [function for function, _ in found] == [function for function, _ in wanted]
        assert [weight for _, weight in found] == pytest.approx([weight for _, weight in wanted], rel=1e-3)


def test_pyspy_dumps():
    for kind, owner in (("pyspy-dump-json", "owns_gil"), ("pyspy-dump-text", "gil_threads")):
        for name in named(kind):
            fact = EXPECTED[name]
            trace, _ = open_trace(name)
            assert trace.samples.height == trace.tracks.height == fact["n_threads"]
            owners = trace.samples.filter(pl.col("gil")).join(trace.tracks, on="track_id")["thread"].to_list()
            assert owners == fact[owner]
            depths = trace.samples.join(trace.stacks, on="stack_id")["depth"]
            assert int((depths + 1).sum()) == fact["n_frames"]


@pytest.mark.parametrize("name", [name for name in EXPECTED if name == PYSPY_CHROME])
def test_pyspy_chrometrace(name):
    fact = EXPECTED[name]
    trace, _ = open_trace(name)
    assert trace.facts.source_events == fact["n_events"]
    assert trace.tracks.height == fact["n_threads"]
    assert trace.slices.height == 0
    assert trace.samples.height == 53


@pytest.mark.parametrize("name", named("perfetto"))
def test_perfetto(name):
    fact = EXPECTED[name]
    trace, health = open_trace(name)
    types = fact["track_event_types"]
    assert trace.facts.source_events == fact["n_packets"]
    assert not [e for e in health if e.lost_bytes]
    if "slice_begin" in types:
        assert trace.slices.height == types["slice_begin"] + types.get("instant", 0)
    assert (trace.counters.height > 0) == ("counter" in types)
    if "gpu_render_stage_total_ns" in fact:
        assert trace.slices["dur_ns"].sum() == fact["gpu_render_stage_total_ns"]
    if trace.slices.height and "clock_snapshot" not in fact["packet_fields"]:
        ends = trace.slices["start_ns"] + trace.slices["dur_ns"]
        assert int(ends.max()) <= max(fact["default_clock_ts_span_ns"], 10**5)


FLOWS = {"perfetto__nested_tracks.perfetto-trace": 1_360, "pftext_flow_events_proto_v2.pftrace": 3}


@pytest.mark.parametrize("name", [name for name in EXPECTED if name in FLOWS])
def test_perfetto_flows(name):
    """1,360 terminating ids whose flow began before: counted from the packets; 3 of trace_processor's own test."""
    assert open_trace(name)[0].flows.height == FLOWS[name]


def test_no_reader_here_wants_the_rest_of_the_corpus():
    for path in sorted(FOLDER.glob("*")) if EXPECTED else ():
        if path.name in EXPECTED or path.name in ("expected.json", "manifest.json"):
            continue
        source = Source(path.name, path)
        head = source.open(Health()).head()
        wanting = [reader.name for reader in READERS if reader.sniff(head, path.name)]
        assert wanting == [], path.name


def test_damaged_copies_are_read_or_refused(tmp_path):
    """Every file cut at three places: a Trace with its loss told, or one clear error."""
    for name in EXPECTED:
        content = (FOLDER / name).read_bytes()
        for share in (0.3, 0.6, 0.95):
            path = tmp_path / "cut"
            path.write_bytes(content[: int(len(content) * share)])
            source = Source(name, path)
            head = source.open(Health()).head()
            reader = max(READERS, key=lambda each: each.sniff(head, name))
            health = Health()
            try:
                trace = reader.read(source, health)
            except TracelensError as error:
                assert error.hint
                continue
            assert trace.evidence() or len(health)
