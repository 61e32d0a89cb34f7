import json

import pytest

from tests import reports
from tracelens.presenters.json import dumps
from tracelens.rule import MANUAL_HEADINGS


@pytest.fixture
def saved(tmp_path):
    import msgspec

    path = tmp_path / "report.json"
    path.write_text(dumps(msgspec.to_builtins(reports.report())))
    return path


@pytest.mark.parametrize("topic", ["TOY001", "toy001", "toy-is-broken"])
def test_a_rule_is_explained_whole(cli, topic):
    ended = cli("explain", topic)
    assert ended.code == 0
    assert ended.out.startswith("TOY001 toy-is-broken\nthe toy does not work\n")
    assert all(f"\n{heading}\n" in ended.out for heading in MANUAL_HEADINGS)
    assert "\nNeeds\n  measurements: earns observed\n      toy record -- COMMAND\n" in ended.out
    assert "[rules.TOY001])\n  most = 3: three toys are enough\n" in ended.out


def test_a_table_is_explained_with_its_columns(cli):
    ended = cli("explain", "slices")
    assert ended.code == 0
    assert ended.out.startswith("slices: something with a beginning and an end\n")
    assert "start, ns since the trace's origin" in ended.out


def test_the_schema_is_json(cli):
    ended = cli("explain", "--schema")
    assert json.loads(ended.out)["$id"] == "tracelens.report/1"


@pytest.mark.parametrize("length", [4, 8, 16])
def test_a_finding_is_explained_by_the_beginning_of_its_fingerprint(cli, saved, length):
    fingerprint = reports.tf32_finding().fingerprint
    ended = cli("explain", fingerprint[:length], saved)
    assert ended.code == 0
    assert ended.out.startswith("warning NUM001 fp32-dot-runs-as-tf32")
    assert "intranode" not in ended.out


def test_rows_are_printed_when_asked_for(cli, saved):
    fingerprint = reports.gil_finding().fingerprint
    assert "8.05 ms" not in cli("explain", fingerprint, saved).out
    assert "8.05 ms" in cli("explain", fingerprint, saved, "--rows").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to explain"),
        (("slice",), "did you mean slices?"),
        (("toy",), "did you mean TOY001?"),
        (("TOY002",), "did you mean TOY001?"),
        (("0123456789abcdef",), "a fingerprint needs its report: tracelens explain 0123456789abcdef report.json"),
        (("????",), "tables: tracks, slices"),
        (("0123456789abcdef", "report.json"), "no finding begins with 0123456789abcdef"),
        (("", "report.json"), "no finding begins with"),
        (("ab", "none.json"), "none.json: no such file or directory"),
    ],
)
def test_what_cannot_be_explained_says_what_can(cli, saved, arguments, said):
    ended = cli("explain", *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert said in ended.err
    assert len(ended.err.splitlines()) == 2
