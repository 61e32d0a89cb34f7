"""GIL001 on recorded pairs and controls, and on edge cases that no recording shows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.corpus_folder import corpus
from tracelens import opening, plugins, schema
from tracelens.analyzing import judge
from tracelens.config import Config
from tracelens.trace import Facts, GilFacts, Trace


@pytest.fixture(scope="module")
def loaded():
    return plugins.load()


@pytest.fixture(scope="module")
def rule(loaded):
    return next(one for one in loaded.detectors() if one.rule.code == "GIL001")


def opened(loaded, *names, gil=False):
    options = opening.OpenOptions(pyspy_gil=gil)
    return opening.open_trace(*corpus(*names), plugins=loaded, options=options)


COMBINED = "h200/combined_{0}_kineto.json.gz", "h200/combined_{0}_pyspy.chrome.json.gz"


def combined(which):
    return [name.format(which) for name in COMBINED]


@pytest.mark.corpus
class TestRecordedPairs:
    """The shared pairs differ in one thing: whether the native call releases the GIL."""

    @pytest.mark.parametrize(
        ("name", "calls", "victim"),
        [
            ("gil_cpu/spin_held.json.gz", {"intranode_dispatch": ("step", "kin.py", 16)}, 6829),
            (
                "h200/gil_faulty_gil_held.json.gz",
                {
                    "intranode_dispatch": ("intranode_dispatch", "ep_buffer.py", 9),
                    "intranode_combine": ("intranode_combine", "ep_buffer.py", 14),
                },
                502,
            ),
        ],
    )
    def test_stacks_alone_make_it_suspected(self, loaded, rule, name, calls, victim):
        status, findings = judge(opened(loaded, name).blind(), rule, Config())
        assert status.status == "ran"
        found = {f.where.function: (f.where.caller, f.where.file, f.where.line) for f in findings}
        assert found == calls
        for finding in findings:
            assert (finding.confidence, finding.severity) == ("suspected", "error")
            assert finding.where.line_kind == "definition"
            assert finding.impact.bound == "upper"
            starved = next(e for e in finding.evidence if "ran no Python" in e.says)
            assert [row[1:3] for row in starved.rows] == [(victim, 0)]

    @pytest.mark.parametrize("name", ["gil_cpu/spin_released.json.gz", "h200/gil_fixed_gil_released.json.gz"])
    def test_the_released_call_is_silent(self, loaded, rule, name):
        status, findings = judge(opened(loaded, name).blind(), rule, Config())
        assert (status.status, findings) == ("ran", [])

    def test_a_python_hog_is_never_blamed(self, loaded, rule):
        _, findings = judge(opened(loaded, "h200/gil_distractor_pyhog.json.gz").blind(), rule, Config())
        assert findings == []

    @pytest.mark.parametrize("name", ["gil_cpu/spin_held.json.gz", "h200/gil_faulty_gil_held.json.gz"])
    def test_without_the_victims_rows_it_abstains(self, loaded, rule, name):
        trace = opened(loaded, name)
        holder = trace.tracks.filter(pl.col("thread_id") == pl.col("process_id"))["track_id"]
        kept = trace.slices.filter((pl.col("kind") != "python") | pl.col("track_id").is_in(holder.implode()))
        status, findings = judge(replace(trace, slices=kept).blind(), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "only one thread" in status.why

    def test_owner_samples_make_it_inferred_only_if_they_are_said_to_be(self, loaded, rule):
        status, findings = judge(opened(loaded, *combined("held"), gil=True).blind(), rule, Config())
        assert [f.confidence for f in findings] == ["inferred"]
        assert findings[0].where.function.startswith("Buffer.intranode_")
        assert (findings[0].where.thread_id, findings[0].where.line_kind) == (418, "executing")
        status, findings = judge(opened(loaded, *combined("held")).blind(), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "does not say that it was recorded with --gil" in status.why

    @pytest.mark.parametrize("gil", [True, False])
    def test_owner_samples_of_the_released_run_are_silent(self, loaded, rule, gil):
        _, findings = judge(opened(loaded, *combined("released"), gil=gil).blind(), rule, Config())
        assert findings == []

    def test_without_such_evidence_it_is_skipped_with_the_recording_that_helps(self, loaded, rule):
        status, findings = judge(opened(loaded, "h200/clean_request.json.gz").blind(), rule, Config())
        assert (status.status, findings) == ("skipped", [])
        assert status.unlock == "tracelens record --with torch,gil,pyspy -- COMMAND"


MS = 1_000_000
HELD = "<built-in method wait_for_peer of ep.Buffer object at 0x7f00>"
RECV = "<built-in method recv of socket object at 0x7f01>"


def synthetic(*, releases=False, run_delay=0.0, victim_parks=False, gil=True, ticks=True, name=HELD):
    """1.2 s: a caller holds for 10 ms in every 20 ms, a worker makes a row each 437 µs when it can, a probe ticks."""
    rows, wakes = [], []
    holds = [(start, start + 10 * MS) for start in range(0, 1200 * MS, 20 * MS)]
    for start, end in holds:
        rows.append((0, start - 10_000, end - start + 20_000, "app.py(7): step", "app.py", 7))
        rows.append((0, start, end - start, name, None, None))
    blocked = [] if releases else holds

    def free(at):
        return not any(start < at < end for start, end in blocked)

    parked = "<built-in method acquire of _thread.lock object at 0x7f02>" if victim_parks else RECV
    for start, end in holds if blocked or victim_parks else ():
        rows.append((1, start - 40_000, end - start + 90_000, parked, None, None))
    for at in range(0, 1200 * MS, 437_000):
        inside = any(start - 250_000 < at < end + 60_000 for start, end in holds)
        if free(at) and not (inside and (blocked or victim_parks)):
            rows.append((1, at, 200_000, RECV, None, None))
    last = 0
    for at in range(MS, 1200 * MS, MS):
        wake = at if free(at) else next(end for start, end in blocked if start < at < end) + 30_000
        if wake > last:
            late = wake - at
            wakes.append((wake, late, int(late * run_delay)))
            last = wake
    tracks = schema.TRACKS.build(
        {"track_id": [0, 1, 2], "kind": ["thread"] * 3, "process_id": [9] * 3, "thread_id": [9, 10, 11],
         "thread": ["MainThread", "mover", "probe"]}
    )  # fmt: skip
    columns = dict(
        zip(("track_id", "start_ns", "dur_ns", "name", "file", "line"), map(list, zip(*rows, strict=True)), strict=True)
    )
    slices = schema.SLICES.build(
        {"slice_id": list(range(len(rows))), "depth": [0] * len(rows), "kind": ["python"] * len(rows), **columns}
    )
    table = schema.TICKS.empty()
    if ticks:
        at, late, delay = (np.array(column) for column in zip(*wakes, strict=True))
        table = schema.TICKS.build({"track_id": [2] * len(at), "at_ns": at, "late_ns": late, "run_delay_ns": delay})
    facts = Facts(gil={9: GilFacts(enabled=gil)} if ticks else {})
    return Trace(tracks=tracks, slices=slices, ticks=table, facts=facts)


class TestEdges:
    """Cases that a recording cannot be made to show at will."""

    def test_the_probe_makes_it_observed(self, rule):
        _, findings = judge(synthetic(), rule, Config())
        assert [f.confidence for f in findings] == ["observed"]
        finding = findings[0]
        assert (finding.where.function, finding.where.caller, finding.where.line) == (
            "ep.Buffer.wait_for_peer",
            "step",
            7,
        )
        assert finding.impact.share == pytest.approx(0.5, abs=0.02)
        assert finding.impact.value == pytest.approx(590, abs=15)
        assert "mover (10)" in finding.message

    def test_a_probe_that_waited_for_a_core_makes_it_abstain(self, rule):
        status, findings = judge(synthetic(run_delay=1.0), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "waited for a core" in status.why

    def test_a_releasing_call_is_silent(self, rule):
        status, findings = judge(synthetic(releases=True), rule, Config())
        assert (status.status, findings) == ("ran", [])

    def test_a_thread_that_was_parked_is_no_witness(self, rule):
        status, findings = judge(synthetic(victim_parks=True, ticks=False), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "no witness" in status.why

    @pytest.mark.parametrize(("gil", "words"), [(False, "disabled"), (None, "does not say")])
    def test_without_a_gil_it_abstains(self, rule, gil, words):
        status, findings = judge(synthetic(gil=gil), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert words in status.why

    @pytest.mark.parametrize(
        "name",
        [
            "<built-in function sorted>",
            "<built-in method sort of list object at 0x7f03>",
            "<built-in method acquire of _thread.lock object at 0x7f03>",
            "<built-in method poll of select.epoll object at 0x7f03>",
        ],
    )
    def test_python_work_and_waits_are_never_holders(self, rule, name):
        _, findings = judge(synthetic(name=name), rule, Config())
        assert findings == []

    def test_a_hold_that_left_no_row_is_told_and_not_named(self, rule):
        trace = synthetic()
        seen = trace.slices.filter(~pl.col("name").cast(pl.String).str.contains("wait_for_peer|step"))
        idle = trace.slices.filter(pl.col("name").cast(pl.String).str.contains("step")).head(1)
        recv = pl.col("name").cast(pl.String).str.contains("recv") & (pl.col("dur_ns") > MS)
        rows = pl.concat([seen.filter(~recv), idle])
        status, findings = judge(replace(trace, slices=rows), rule, Config())
        assert findings == []
        assert "no recorded call or Python code ran" in status.why

    def test_a_process_whose_only_rows_are_the_recorders_is_no_crash(self, rule):
        trace = synthetic()
        facts = Facts(gil=trace.facts.gil, recorder_threads=((9, 9), (9, 10)))
        status, findings = judge(replace(trace, facts=facts), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "no thread of the program" in status.why

    def test_without_probe_or_control_it_abstains(self, rule):
        trace = synthetic(ticks=False)
        only = trace.slices.filter(pl.col("name").cast(pl.String).str.contains("wait_for_peer|step"))
        short = trace.slices.filter(pl.col("dur_ns") == 200_000).with_columns(pl.lit(40_000).alias("dur_ns"))
        rows = pl.concat([only, short.cast(only.schema)])
        status, findings = judge(replace(trace, slices=rows), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "no control" in status.why or "no witness" in status.why
