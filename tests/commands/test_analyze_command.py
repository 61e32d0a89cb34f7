"""`tracelens analyze` end to end, with a toy format and a toy rule."""

import gzip
import io
import json
import sys

import msgspec
import pytest

from tests import reports
from tracelens.commands import analyze, shared
from tracelens.finding import Report

FINGERPRINT = reports.gil_finding(rule="TOY001").fingerprint


def saved(cli, toy, name="report.json"):
    assert cli("analyze", toy, "--json", "-o", name).code == 0
    return name


def test_the_terminal_is_the_default(cli, toy):
    ended = cli("analyze", toy)
    assert ended.code == 0
    assert ended.err == ""
    assert "error TOY001 toy-is-broken" in ended.out
    assert "\x1b[" not in ended.out


def test_json_is_the_report_and_the_same_bytes_every_time(cli, toy):
    first = cli("analyze", "toy.trace", "--json")
    report = msgspec.json.decode(first.out, type=Report)
    assert [finding.rule for finding in report.findings] == ["TOY001"]
    assert [source.path for source in report.trace.sources] == ["toy.trace"]
    assert cli("analyze", "toy.trace", "--format", "json").out == first.out


def test_an_unknown_format_names_those_there_are(cli, toy):
    ended = cli("analyze", toy, "--format", "excel")
    assert ended.code == 2
    assert "hint: there are: json, terminal" in ended.err


def test_output_goes_to_a_file_once(cli, toy, tmp_path):
    ended = cli("analyze", toy, "--json", "-o", "report.json")
    assert (ended.code, ended.out) == (0, "")
    before = (tmp_path / "report.json").read_bytes()
    ended = cli("analyze", toy, "-o", "report.json")
    assert ended.code == 2
    assert ended.err == "tracelens: error: report.json: exists\nhint: --force overwrites it\n"
    assert (tmp_path / "report.json").read_bytes() == before
    assert cli("analyze", toy, "-o", "report.json", "--force").code == 0
    assert (tmp_path / "report.json").read_text().startswith("tracelens ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "toy.trace"]


@pytest.mark.parametrize("place", ["none/report.json", "."])
def test_output_that_cannot_be_written_is_an_error(cli, toy, place):
    ended = cli("analyze", toy, "-o", place, "--force")
    assert ended.code == 2
    assert ended.err.startswith(f"tracelens: error: {place}: ")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((), 0),
        (("--fail-on", "never"), 0),
        (("--fail-on", "error"), 1),
        (("--fail-on", "warning"), 1),
        (("--fail-on", "info"), 1),
        (("--fail-on", "error", "--ignore", "TOY"), 0),
        (("--fail-on", "error", "--select", "toy001"), 1),
    ],
)
def test_fail_on_decides_the_exit_code(cli, toy, flags, code):
    assert cli("analyze", toy, *flags).code == code


@pytest.mark.parametrize(
    ("severity", "fail_on", "known", "code"),
    [
        ("warning", "error", False, 0),
        ("warning", "warning", False, 1),
        ("info", "warning", False, 0),
        ("info", "info", False, 1),
        ("error", "info", True, 0),
    ],
)
def test_exit_codes_follow_severity_and_baseline(severity, fail_on, known, code):
    report = reports.report(findings=(reports.gil_finding(severity=severity, known=known),))
    sound = tuple(rule for rule in report.rules if rule.status != "failed")
    assert analyze.exit_code(msgspec.structs.replace(report, rules=sound), fail_on) == code


@pytest.mark.parametrize(("fail_on", "code"), [("never", 0), ("error", 2), ("info", 2)])
def test_a_rule_that_crashed_vouches_for_nothing_in_ci(fail_on, code):
    report = reports.report(findings=())
    assert "failed" in {rule.status for rule in report.rules}
    assert analyze.exit_code(report, fail_on) == code


def test_configuration_counts_and_the_command_line_overrides_it(cli, toy, tmp_path):
    (tmp_path / "tracelens.toml").write_text('fail_on = "warning"\n[rules.TOY001]\nmost = 0\n')
    ended = cli("analyze", toy, "--why")
    assert ended.code == 0
    assert "too many toys" in ended.out
    assert "number      1, needed 0" in ended.out
    (tmp_path / "tracelens.toml").write_text('fail_on = "warning"\n')
    assert cli("analyze", toy).code == 1
    assert cli("analyze", toy, "--fail-on", "never").code == 0


def test_a_select_that_names_no_rule_is_an_error(cli, toy):
    ended = cli("analyze", toy, "--select", "XYZ")
    assert ended.code == 2
    assert "XYZ" in ended.err


def test_findings_of_the_baseline_are_known_and_never_fail(cli, toy):
    baseline = saved(cli, toy)
    ended = cli("analyze", toy, "--fail-on", "info", "--baseline", baseline)
    assert ended.code == 0
    assert "toy-is-broken  known  " in ended.out
    (finding,) = json.loads(cli("analyze", toy, "--json", "--baseline", baseline).out)["findings"]
    assert finding["known"] is True
    assert finding["fingerprint"] == FINGERPRINT


def test_a_baseline_that_is_no_report_is_an_error(cli, toy):
    for path in (toy, "none.json"):
        ended = cli("analyze", toy, "--baseline", path)
        assert ended.code == 2
        assert len(ended.err.splitlines()) == 2


def test_why_lists_rules_that_did_not_judge(cli, tmp_path):
    (tmp_path / "empty.trace").write_bytes(b"TOY")
    plain, why = cli("analyze", "empty.trace"), cli("analyze", "empty.trace", "--why")
    assert "TOY001 toy-is-broken  skipped" not in plain.out
    assert "TOY001 toy-is-broken  skipped" in why.out
    assert "unlock      toy record -- COMMAND" in why.out


def test_losses_are_one_line_on_stderr_and_fatal_when_strict(cli, tmp_path):
    (tmp_path / "damaged.trace").write_bytes(b"TOY x lost")
    ended = cli("analyze", "damaged.trace")
    assert ended.code == 0
    assert ended.err == "tracelens: warning: damaged.trace: three rows could not be read\n"
    ended = cli("analyze", "damaged.trace", "--strict")
    assert ended.code == 2
    assert "three rows could not be read" in ended.err


def test_a_crash_of_a_reader_is_no_traceback(cli, tmp_path):
    (tmp_path / "crash.trace").write_bytes(b"TOY crash")
    ended = cli("analyze", "crash.trace")
    assert ended.code == 2
    assert "ZeroDivisionError" in ended.err
    assert "Traceback" not in ended.err


def test_timings_go_to_stderr_and_leave_stdout_alone(cli, toy):
    ended = cli("analyze", toy, "--json", "--timings")
    assert ended.out == cli("analyze", toy, "--json").out
    assert [line.split()[1] for line in ended.err.splitlines()] == ["read", "judge", "show"]


@pytest.mark.parametrize("value", ["x", "x=", "=3", "x=many", "x=-1", "x=0", "x=nan", "x=inf"])
def test_roofs_and_bytes_must_be_named_positive_numbers(cli, toy, value):
    for flag in ("--roof", "--bytes"):
        ended = cli("analyze", toy, f"{flag}={value}")
        assert ended.code == 2
        assert ended.err.startswith(f"tracelens: error: {flag} {value}: not NAME=VALUE")


def test_pairs_split_at_the_last_equals_sign():
    assert shared.pairs(["a=b=3", "c*=4e12"], "--roof") == {"a=b": 3.0, "c*": 4e12}


def test_standard_input_is_a_trace_called_minus(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"TOY x")))
    report = json.loads(cli("analyze", "-", "--json").out)
    assert report["trace"]["sources"][0]["path"] == "-"
    assert len(report["findings"]) == 1


def test_a_report_is_not_a_trace_and_the_hint_says_what_to_do(cli, toy):
    ended = cli("analyze", saved(cli, toy))
    assert ended.code == 2
    assert ended.err == (
        "tracelens: error: report.json: a tracelens report, not a trace\n"
        "hint: see it with `tracelens view report.json`\n"
    )


def test_reports_load_compressed_and_damaged_ones_are_errors(cli, toy, tmp_path):
    content = (tmp_path / saved(cli, toy)).read_bytes()
    (tmp_path / "report.json.gz").write_bytes(gzip.compress(content))
    assert cli("explain", FINGERPRINT, "report.json.gz").code == 0
    (tmp_path / "cut.json").write_bytes(content[:900])
    (tmp_path / "wrong.json").write_bytes(content.replace(b'"severity": "error"', b'"severity": "grave"'))
    (tmp_path / "future.json").write_bytes(content.replace(b"tracelens.report/1", b"tracelens.report/2"))
    for name, words in (("cut", "damaged report"), ("wrong", "damaged report"), ("future", "schema version 2")):
        ended = cli("explain", FINGERPRINT, f"{name}.json")
        assert ended.code == 2
        assert words in ended.err
        assert len(ended.err.splitlines()) == 2


NO_TRACES = {
    "empty.json": b"",
    "empty.json.gz": gzip.compress(b""),
    "binary.json": bytes(range(256)) * 40,
    "elf": b"\x7fELF" + b"\0" * 5000,
    "words.txt": b"nothing to see here\n" * 30,
    "html.json": b"<!DOCTYPE html><html>404</html>",
}


@pytest.mark.parametrize("name", ["missing.json", "nothing/", "*.none", *NO_TRACES])
def test_what_is_no_trace_is_two_lines_and_exit_2(cli, tmp_path, name):
    (tmp_path / "nothing").mkdir()
    for path, content in NO_TRACES.items():
        (tmp_path / path).write_bytes(content)
    ended = cli("analyze", name)
    assert (ended.code, ended.out) == (2, "")
    error, hint = ended.err.splitlines()
    assert error.startswith(f"tracelens: error: {name.rstrip('/')}")
    assert hint.startswith("hint: ")


def kineto(events, end="]}"):
    rows = ",".join(
        json.dumps({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * i, "dur": 5})
        for i in range(events)
    )
    return ('{"schemaVersion": 1, "baseTimeNanoseconds": 1700000000000000000, "traceEvents": [' + rows + end).encode()


@pytest.mark.parametrize(
    ("content", "lossy"),
    [
        (kineto(50), False),
        (gzip.compress(kineto(50)), False),
        (kineto(50, end=""), True),
        (gzip.compress(kineto(5000))[:-40], True),
    ],
    ids=["whole", "gzip", "truncated", "cut gzip"],
)
def test_a_trace_under_any_name_is_read_and_a_damaged_one_is_salvaged(cli, tmp_path, content, lossy):
    (tmp_path / "trace.json").write_bytes(content)
    ended = cli("analyze", "trace.json", "--json")
    assert ended.code == 0
    report = msgspec.json.decode(ended.out, type=Report)
    assert report.trace.summary.slices >= 50
    assert any(entry.severity != "info" for entry in report.health) == lossy
    assert len(ended.err.splitlines()) == int(lossy)
    assert cli("analyze", "trace.json", "--strict").code == (2 if lossy else 0)
