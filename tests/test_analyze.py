"""analyze: every rule gets a status with a reason; one that breaks leaves the others unharmed."""

from types import SimpleNamespace

import msgspec
import pytest

from tracelens import plugins, schema
from tracelens.analyzing import analyze, judge
from tracelens.config import Config
from tracelens.errors import TracelensError
from tracelens.finding import Evidence, Finding, Fix, Impact, Locality, Prediction, Verify, fingerprinted
from tracelens.health import Health
from tracelens.hookspecs import hookimpl
from tracelens.rule import Abstain, Abstained, Detector, Need, Option, Options, Rule
from tracelens.trace import Provenance, SourceFile, Trace


def a_finding(**changes):
    base = Finding(
        rule="TST001",
        name="test",
        message="m",
        severity="warning",
        confidence="observed",
        where=Locality(kernel="k_128x64", function="f", file="/home/me/proj/pkg/mod.py", line=3, process_id=5),
        evidence=(Evidence(says="e"),),
        impact=Impact(quantity="q", value=1.0, unit="ms", bound="estimate", basis="b", share=0.1),
        fix=Fix(summary="s", safety="safe"),
        verify=Verify(
            experiment="x",
            changes="c",
            predicts=Prediction(metric="m", direction="down", at_least=1, unit="ms"),
            refuted_if="r",
        ),
    )
    return msgspec.structs.replace(base, **changes)


def a_rule(needs=("counters",), options=None):
    return Rule("TST001", "test", "s", (Need(tuple(needs), "observed", "tracelens record"),), "m", options or {})


def a_trace(**changes):
    tracks = schema.TRACKS.build({"track_id": [0], "kind": ["counter"], "process_id": [1]})
    counters = schema.COUNTERS.build({"track_id": [0], "at_ns": [0], "value": [1.0]})
    return Trace(tracks=tracks, counters=counters, **changes)


def judged(detect, trace=None, config=None, **rule):
    return judge(trace or a_trace(), Detector(a_rule(**rule), detect), config or Config())


def test_a_rule_that_runs_gives_fingerprinted_findings():
    status, findings = judged(lambda trace, options: [a_finding()])
    assert status.status == "ran"
    assert [len(found.fingerprint) for found in findings] == [16]


def test_missing_evidence_skips_and_names_the_recording():
    status, findings = judged(lambda trace, options: [a_finding()], needs=("ticks", "slices:kernel"))
    assert (status.status, findings) == ("skipped", [])
    assert status.why == "the trace has no ticks + slices:kernel"
    assert status.unlock == "tracelens record"


def test_distrusted_evidence_abstains_with_the_health_entry():
    health = Health()
    health.add("x", "error", "half the counters are missing", need="counters")
    status, findings = judged(lambda trace, options: [a_finding()], trace=a_trace(health=health))
    assert (status.status, status.why, findings) == ("abstained", "half the counters are missing", [])


def test_abstain_carries_the_number_that_was_too_low():
    def detect(trace, options):
        yield a_finding()
        raise Abstain("coverage too low", need="slices:kernel", number=0.4, threshold=0.95)

    status, findings = judged(detect)
    assert (status.status, status.number, status.threshold, findings) == ("abstained", 0.4, 0.95, [])


def test_a_partly_abstaining_rule_still_ran():
    status, findings = judged(lambda trace, options: [a_finding(), Abstained("rank 3", "no clock")])
    assert (status.status, status.why, len(findings)) == ("ran", "rank 3: no clock", 1)


def test_a_crash_is_failed_not_a_traceback():
    def detect(trace, options):
        raise KeyError("dur")

    status, findings = judged(detect)
    assert (status.status, status.why, findings) == ("failed", "KeyError: 'dur'", [])


def test_a_detector_never_sees_where_the_trace_came_from():
    seen = []
    trace = a_trace(provenance=Provenance(sources=(SourceFile("faulty.json", "kineto", 1),)))
    judged_trace = trace.blind()
    judge(
        judged_trace, Detector(a_rule(), lambda trace, options: seen.append(trace.provenance.sources) or []), Config()
    )
    plugin = SimpleNamespace(
        detectors=hookimpl(lambda: [Detector(a_rule(), lambda t, options: seen.append(t.provenance.sources) or [])])
    )
    analyze(trace, plugins.load(extra=[("test", plugin)]), Config())
    assert seen == [(), ()]


def test_options_come_from_the_configuration():
    seen = []

    def detect(trace, options):
        seen.append(options.number("limit"))
        return []

    options = {"limit": Option(0.5, "why")}
    judged(detect, options=options)
    judged(detect, options=options, config=Config(rules={"TST001": {"limit": 0.25}}))
    assert seen == [0.5, 0.25]
    assert dict(Options(a_rule(options=options))) == {"limit": 0.5}


def test_select_ignore_and_suppress():
    rule = a_rule()
    assert Config(select=("TST",)).enabled(rule)
    assert not Config(select=("GIL",)).enabled(rule)
    assert not Config(ignore=("TST",)).enabled(rule)
    assert Config(select=("TST001",), ignore=("TST",)).enabled(rule)
    fingerprint = fingerprinted(a_finding()).fingerprint
    status, findings = judged(lambda t, o: [a_finding()], config=Config(suppress={fingerprint: "accepted"}))
    assert (findings, status.why) == ([], "1 suppressed by configuration")
    with pytest.raises(TracelensError, match="needs a reason"):
        Config(suppress={fingerprint: " "}).check([rule])
    with pytest.raises(TracelensError, match="no rule or family 'ABC'"):
        Config(select=("ABC",)).check([rule])


def test_fingerprints_ignore_checkout_place_sizes_and_ids():
    first = fingerprinted(a_finding()).fingerprint
    moved = a_finding(
        where=Locality(kernel="k_256x32", function="f", file="/ci/build/pkg/mod.py", line=9, process_id=77),
    )
    other = a_finding(where=Locality(kernel="k_128x64", function="g", file="/home/me/proj/pkg/mod.py"))
    assert fingerprinted(moved).fingerprint == first
    assert fingerprinted(other).fingerprint != first
