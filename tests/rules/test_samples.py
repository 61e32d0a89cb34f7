"""Every recorded pair in sample_traces: bad and good give exactly the findings that their expected.json lists.

An entry is [code, confidence, what, file, line]; `what` is the function, kernel or op. Another code on a good trace is
explained by a line in "because".
"""

import json
import tomllib
from pathlib import Path

import pytest

from tracelens import opening, plugins
from tracelens.analyzing import analyze
from tracelens.config import Config

SAMPLES = Path(__file__).parents[2] / "sample_traces"
EXPECTED = sorted(SAMPLES.glob("*/expected.json"))
MAX_FILE_BYTES = 200_000
MAX_ALL_BYTES = 6_000_000


@pytest.fixture(scope="module")
def loaded():
    return plugins.load()


def findings(loaded, path):
    report = analyze(opening.open_trace(str(path), plugins=loaded), loaded, Config())
    assert [rule.code for rule in report.rules if rule.status == "failed"] == []
    return [
        [f.rule, f.confidence, f.where.function or f.where.kernel or f.where.op, f.where.file, f.where.line]
        for f in report.findings
        if not f.rule.startswith("EXA")
    ]


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("which", ["bad", "good"])
def test_the_sample_gives_exactly_what_is_expected(loaded, expected, which):
    wanted = json.loads(expected.read_text())
    got = findings(loaded, expected.parent / wanted[which]["source"])
    assert sorted(got, key=str) == sorted(wanted[which]["findings"], key=str)
    code = expected.parent.name
    if which == "bad":
        assert code in {row[0] for row in got}
    else:
        assert code not in {row[0] for row in got}
        assert {row[0] for row in got} <= set(wanted["good"].get("because", {}))


def test_every_bundled_rule_has_its_pair(loaded):
    codes = {one.rule.code for one in loaded.detectors() if not one.rule.code.startswith("EXA")}
    assert codes == {path.parent.name for path in EXPECTED}


def test_every_sample_says_where_it_comes_from_and_stays_small():
    provenance = tomllib.loads((SAMPLES / "PROVENANCE.toml").read_text())
    for path in EXPECTED:
        assert set(provenance[path.parent.name]) >= {"command", "machine", "date", "differs_in"}
    files = [path for path in SAMPLES.rglob("*") if path.is_file()]
    assert max(path.stat().st_size for path in files) <= MAX_FILE_BYTES
    assert sum(path.stat().st_size for path in files) <= MAX_ALL_BYTES
