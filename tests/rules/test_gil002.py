"""GIL002 on the recorded hog, on every other trace of the corpus, and on edge cases that no recording shows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.corpus_folder import CORPUS, corpus
from tests.rules import gil_live
from tracelens import opening, plugins, schema
from tracelens.analyzing import judge
from tracelens.config import Config
from tracelens.errors import TracelensError
from tracelens.trace import Facts, GilFacts, Trace

HOG = "h200/gil_distractor_pyhog.json.gz"
OTHERS = sorted(
    str(path.relative_to(CORPUS))
    for path in CORPUS.rglob("*")
    if path.is_file() and "triton_artifacts" not in path.parts
)


@pytest.fixture(scope="module")
def loaded():
    return plugins.load()


@pytest.fixture(scope="module")
def rule(loaded):
    return next(one for one in loaded.detectors() if one.rule.code == "GIL002")


def opened(loaded, *names, gil=False):
    options = opening.OpenOptions(pyspy_gil=gil)
    return opening.open_trace(*corpus(*names), plugins=loaded, options=options)


@pytest.mark.corpus
class TestCorpus:
    """One recording has a Python hog; nothing else may be taken for one."""

    def test_the_hog_is_suspected_from_stacks_alone(self, loaded, rule):
        status, (finding,) = judge(opened(loaded, HOG).blind(), rule, Config())
        assert status.status == "ran"
        assert (finding.confidence, finding.severity, finding.impact.bound) == ("suspected", "error", "upper")
        where = finding.where
        assert (where.function, where.file, where.line, where.thread_id) == ("main_step_pyhog", "e4_gil.py", 50, 418)
        assert where.line_kind == "definition"
        assert finding.impact.share == pytest.approx(0.98, abs=0.02)
        kept = next(each for each in finding.evidence if "had work" in each.says)
        assert [(row[1], row[4]) for row in kept.rows] == [(507, "Tensor.copy_")]
        assert kept.rows[0][2] / kept.rows[0][3] < 0.35
        assert finding.verify.experiment == "switch-interval"

    def test_without_the_waiting_threads_rows_it_abstains(self, loaded, rule):
        trace = opened(loaded, HOG)
        own = trace.tracks.filter(pl.col("thread_id") == 418)["track_id"]
        kept = trace.slices.filter((pl.col("kind") != "python") | pl.col("track_id").is_in(own.implode()))
        status, findings = judge(replace(trace, slices=kept).blind(), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "only one thread" in status.why

    @pytest.mark.parametrize("name", [name for name in OTHERS if name != HOG])
    def test_every_other_trace_is_silent(self, loaded, rule, name):
        try:
            trace = opened(loaded, name, gil=True)
        except TracelensError:
            return  # manifests, tables of expected values, an empty file: no traces
        status, findings = judge(trace.blind(), rule, Config())
        assert findings == []
        assert status.status in ("ran", "skipped", "abstained")

    @pytest.mark.parametrize("which", ["held", "released"])
    def test_owner_samples_of_a_native_call_are_silent(self, loaded, rule, which):
        names = (f"h200/combined_{which}_kineto.json.gz", f"h200/combined_{which}_pyspy.chrome.json.gz")
        _, findings = judge(opened(loaded, *names, gil=True).blind(), rule, Config())
        assert findings == []


MS = 1_000_000
RECV = "<built-in method recv of socket object at 0x7f01>"
STEP = "/app/app.py(7): tokenize"


def tables(rows, wakes=(), gil=True, interval_ns=5 * MS):
    """A process of main thread 9 (track 0), worker 10 (track 1) and probe 11 (track 2)."""
    tracks = schema.TRACKS.build(
        {"track_id": [0, 1, 2], "kind": ["thread"] * 3, "process_id": [9] * 3, "thread_id": [9, 10, 11],
         "thread": ["MainThread", "mover", "probe"]}
    )  # fmt: skip
    names = ("track_id", "start_ns", "dur_ns", "kind", "name", "file", "line")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    slices = schema.SLICES.build({"slice_id": list(range(len(rows))), "depth": [0] * len(rows), **columns})
    ticks = schema.TICKS.empty()
    if wakes:
        at, late, delay = (np.array(column) for column in zip(*wakes, strict=True))
        ticks = schema.TICKS.build({"track_id": [2] * len(at), "at_ns": at, "late_ns": late, "run_delay_ns": delay})
    facts = Facts(gil={9: GilFacts(enabled=gil, switch_interval_ns=interval_ns)})
    return Trace(tracks=tracks, slices=slices, ticks=ticks, facts=facts)


BURSTS = [(start, start + 40 * MS) for start in range(20 * MS, 1200 * MS, 60 * MS)]


def python(track, start, length, name, file=None, line=None):
    return (track, start, length, "python", name, file, line)


def synthetic(
    *, probe=True, run_delay=0.0, yields=True, own_rows=True, parked=False, gil=True, interval_ns=5 * MS, native=False
):
    """1.2 s: for 40 of every 60 ms a function computes; a worker wants the GIL each 437 µs, a probe each ms.

    While it computes, others get the GIL every `interval_ns`, or not at all unless it `yields`.
    """
    rows, wakes = [], []
    for start, end in BURSTS:
        rows.append(python(0, start, end - start, STEP, "/app/app.py", 7))
        if native:
            call = "<built-in method crunch of Engine object at 0x7f05>"
            rows.append(python(0, start + 10_000, end - start - 20_000, call))
        elif own_rows:
            rows += [python(0, at, 20_000, "<built-in method append of list object at 0x7f04>")
                     for at in range(start + 10_000, end - 30_000, 90_000)]  # fmt: skip
    chances = [at for start, end in BURSTS for at in range(start + interval_ns, end, interval_ns) if yields]

    def when(at):
        """When somebody who wants the GIL at a time gets it."""
        end = next((end for start, end in BURSTS if start < at < end), None)
        return at if end is None else min((chance for chance in chances if at <= chance < end), default=end)

    at = 5_000
    waiting = "<built-in method acquire of _thread.lock object at 0x7f02>" if parked else RECV
    while at < 1199 * MS:
        got = when(at + 300_000)
        name = waiting if got > at + 300_000 else RECV
        rows.append(python(1, at, got - at, name))
        at = got + 137_000 if not any(start < got < end for start, end in BURSTS) else got + 30_000
    at, last = 0, 0
    while probe and at < 1199 * MS:
        wanted, at = at + MS, max(when(at + MS), last) + 15_000
        wakes.append((at, at - wanted, int((at - wanted) * run_delay)))
        last = at
    return tables(rows, wakes, gil, interval_ns)


class TestEdges:
    """Cases that a recording cannot be made to show at will."""

    @pytest.mark.parametrize("own_rows", [True, False])
    def test_the_probe_makes_it_observed(self, rule, own_rows):
        _, (finding,) = judge(synthetic(own_rows=own_rows), rule, Config())
        assert (finding.confidence, finding.severity) == ("observed", "error")
        assert (finding.where.function, finding.where.file, finding.where.line) == ("tokenize", "/app/app.py", 7)
        assert finding.where.windows_total == len(BURSTS)
        assert 0.45 < finding.impact.share < 0.66
        assert finding.impact.value == pytest.approx(finding.impact.share * 1199, rel=0.02)
        assert "mover (10) waits up to a switch interval (5.0 ms)" in finding.message

    @pytest.mark.parametrize("own_rows", [True, False])
    def test_stacks_alone_make_it_suspected(self, rule, own_rows):
        _, (finding,) = judge(synthetic(probe=False, own_rows=own_rows), rule, Config())
        assert (finding.confidence, finding.where.function, finding.impact.bound) == ("suspected", "tokenize", "upper")
        kept = next(each for each in finding.evidence if "had work" in each.says)
        assert int(kept.says.split(" turns")[0].rpartition(" ")[2]) >= 6 * len(BURSTS)

    @pytest.mark.parametrize("probe", [True, False])
    def test_a_call_without_a_row_that_lets_nobody_in_is_no_python(self, rule, probe):
        status, findings = judge(synthetic(probe=probe, yields=False, own_rows=False), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "a native call without a row" in status.why

    @pytest.mark.parametrize("probe", [True, False])
    def test_a_native_call_is_another_rules_business(self, rule, probe):
        status, findings = judge(synthetic(probe=probe, yields=False, native=True), rule, Config())
        assert (status.status, findings) == ("ran", [])

    def test_a_parked_thread_is_no_witness(self, rule):
        _, findings = judge(synthetic(probe=False, yields=False, parked=True), rule, Config())
        assert findings == []

    def test_a_silent_thread_alone_is_no_convoy(self, rule):
        """It waits for a peer that answers when the computing is done: no turn was forced."""
        _, findings = judge(synthetic(probe=False, yields=False), rule, Config())
        assert findings == []

    def test_a_probe_that_waited_for_a_core_makes_it_abstain(self, rule):
        status, findings = judge(synthetic(run_delay=1.0), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert "waited for a core" in status.why

    def test_a_short_switch_interval_is_the_cure(self, rule):
        _, findings = judge(synthetic(interval_ns=200_000), rule, Config())
        assert findings == []

    @pytest.mark.parametrize(("gil", "words"), [(False, "disabled"), (None, "does not say")])
    def test_without_a_gil_it_abstains(self, rule, gil, words):
        status, findings = judge(synthetic(gil=gil), rule, Config())
        assert (status.status, findings) == ("abstained", [])
        assert words in status.why


def sampled(lines):
    """1 s without Python rows: thread 9 runs an op in each 20 ms, then owns the GIL on `lines`; 10 works meanwhile."""
    rows = []
    for start in range(0, 1000 * MS, 20 * MS):
        rows.append((0, start, 1_200_000, "op", "aten::add", None, None))
        rows += [(1, start + at, 50_000, "op", "aten::copy_", None, None) for at in range(0, MS, 100_000)]
    trace = tables(rows)
    count = 100
    frames = schema.FRAMES.build(
        {"frame_id": list(range(len(lines))), "function": ["parse"] * len(lines), "file": ["/app/app.py"] * len(lines),
         "line": lines, "native": [False] * len(lines)}
    )  # fmt: skip
    stacks = schema.STACKS.build(
        {"stack_id": list(range(len(lines))), "frame_id": list(range(len(lines))), "depth": [0] * len(lines)}
    )
    samples = schema.SAMPLES.build(
        {"track_id": [0] * count, "weight_ns": [4 * MS] * count, "stack_id": [n % len(lines) for n in range(count)],
         "gil": [True] * count}
    )  # fmt: skip
    return replace(trace, frames=frames, stacks=stacks, samples=samples)


class TestSamples:
    """Owner samples without Python rows: a loop moves about, a native call stays on its line."""

    def test_changing_lines_make_it_inferred(self, rule):
        _, (finding,) = judge(sampled([12, 13, 14]), rule, Config())
        assert (finding.confidence, finding.where.function, finding.where.line_kind) == (
            "inferred",
            "parse",
            "executing",
        )
        assert finding.impact.share == pytest.approx(0.94, abs=0.02)
        assert [row[2] for row in finding.evidence[0].rows] == [12, 13, 14]

    def test_one_line_is_not_told_from_a_native_call(self, rule):
        _, findings = judge(sampled([12]), rule, Config())
        assert findings == []


@pytest.mark.record
@pytest.mark.parametrize("name", gil_live.HOGS)
def test_a_live_hog_is_found_with_its_function_and_victim(name, tmp_path):
    rules, findings = gil_live.judged(gil_live.record(name, tmp_path), "GIL002")
    if not findings:
        (status,) = (rule for rule in rules if rule.code == "GIL002")
        assert "waited for a core" in (status.why or ""), "only a busy machine excuses it"
        pytest.skip(status.why)
    (finding,) = findings
    assert (finding.confidence, finding.where.function) == ("observed", name)
    assert finding.where.file.endswith("gil_workload.py")
    assert "block_mover" in finding.message


@pytest.mark.record
@pytest.mark.parametrize("name", ["hold", "release", "sleep", "sha256", "ctypes_hold"])
def test_live_controls_are_silent(name, tmp_path):
    _, findings = gil_live.judged(gil_live.record(name, tmp_path), "GIL002")
    assert findings == []
