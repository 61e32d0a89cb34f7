import io
import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import reports
from tracelens.errors import TracelensError
from tracelens.finding import Report
from tracelens.presenters import json as presenter


def rendered(report):
    out = io.StringIO()
    presenter.PRESENTER.render(report, out, True, 80)
    return out.getvalue()


def test_a_report_survives_the_round_trip():
    report = reports.report()
    assert msgspec.json.decode(rendered(report), type=Report) == report


def test_the_same_report_gives_the_same_bytes_whatever_the_order_of_its_mappings():
    report = reports.report()
    environment = msgspec.structs.replace(report.environment, versions={"vllm": "0.11.0", "torch": "2.8.0"})
    assert rendered(report) == rendered(msgspec.structs.replace(report, environment=environment))
    assert rendered(report).endswith("}\n")
    assert rendered(report).startswith('{\n  "schema": "tracelens.report/1",\n')


def test_names_from_traces_cannot_act_on_a_terminal_and_survive():
    shown = rendered(reports.hostile())
    assert shown.isascii()
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert json.loads(shown)["findings"][0]["where"]["thread"] == reports.HOSTILE


def test_a_path_that_is_not_utf_8_becomes_a_replacement():
    source = msgspec.structs.replace(reports.report().trace.sources[0], path="bad\udcff.json")
    trace = msgspec.structs.replace(reports.report().trace, sources=(source,))
    decoded = msgspec.json.decode(rendered(reports.report(trace=trace)), type=Report)
    assert decoded.trace.sources[0].path == "bad?.json"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_an_error_naming_its_place(number):
    impact = msgspec.structs.replace(reports.gil_finding().impact, value=number)
    with pytest.raises(TracelensError, match=r"report\.findings\[0\]\.impact\.value is not a finite number"):
        rendered(reports.report(findings=(reports.gil_finding(impact=impact),)))


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_dumps_is_strict_json(value):
    def refuse(token):
        raise AssertionError(token)

    json.loads(presenter.dumps(value), parse_constant=refuse)
