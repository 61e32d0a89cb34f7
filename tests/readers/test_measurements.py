import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.measurements import READER, STATISTICS

ROW = {"name": "kda", "metric": "max_abs_error", "value": 1.5e-3, "unit": "1"}


def read(tmp_path, content):
    path = tmp_path / "m.jsonl"
    path.write_text(content, encoding="utf-8")
    health = Health()
    return READER.read(Source("m.jsonl", path), health), health


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_reads_every_field(tmp_path):
    full = {
        **ROW,
        "reference": 0,
        "tolerance": 2e-4,
        "params": {"T": 512, "dtype": "fp32"},
        "unix_ns": 1_790_000_000_000_000_007,
    }
    later = {**ROW, "value": 2, "unix_ns": 1_790_000_000_000_000_010}
    trace, health = read(tmp_path, lines(full, later, ROW))
    assert trace.origin_unix_ns == 1_790_000_000_000_000_007
    assert trace.measurements.rows() == [
        ("kda", "max_abs_error", 1.5e-3, "1", 0.0, 2e-4, '{"T":512,"dtype":"fp32"}', None, 0),
        ("kda", "max_abs_error", 2.0, "1", None, None, "{}", None, 3),
        ("kda", "max_abs_error", 1.5e-3, "1", None, None, "{}", None, None),
    ]
    assert len(health) == 0


def test_values_that_are_not_finite_become_null_and_count(tmp_path):
    values = ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "null"]
    text = "".join(lines(ROW).replace("0.0015", value) for value in values)
    text += lines({**ROW, "params": {"x": float("nan"), "y": [float("inf"), 1]}})
    trace, health = read(tmp_path, text)
    assert trace.measurements["value"].to_list() == [None] * 6 + [1.5e-3]
    assert trace.measurements["params"][6] == '{"x":null,"y":[null,1]}'
    assert [(e.code, e.count) for e in health] == [("measurements.not-finite", 6)]


@pytest.mark.parametrize(
    "bad",
    [
        {**ROW, "value": "1.5"},
        {**ROW, "value": True},
        {"name": "x", "metric": "y", "unit": "z"},
        {**ROW, "unit": None},
        {**ROW, "params": [1]},
        {**ROW, "unix_ns": 1.5},
        {**ROW, "unix_ns": 2**63},
        {**ROW, "reference": {}},
        [1],
        7,
    ],
)
def test_bad_rows_are_counted_and_the_rest_kept(tmp_path, bad):
    trace, health = read(tmp_path, lines(ROW, bad, ROW))
    assert trace.measurements.height == 2
    assert [(e.code, e.count) for e in health] == [("measurements.bad-rows", 1)]


def test_a_cut_last_line_is_counted(tmp_path):
    trace, health = read(tmp_path, lines(ROW, ROW)[:-20])
    assert trace.measurements.height == 1
    assert [(e.code, e.count) for e in health] == [("measurements.bad-rows", 1)]


def test_nothing_readable_is_one_clear_error(tmp_path):
    with pytest.raises(TracelensError, match="no measurement"):
        read(tmp_path, "{}\n\n[" + "[" * 100_000)


BENCHMARK = {
    "machine_info": {"node": "n"},
    "commit_info": {},
    "benchmarks": [
        {
            "name": "test_x[1]",
            "fullname": "tests/test_x.py::test_x[1]",
            "params": {"n": 1},
            "extra_info": {"bytes": 4096},
            "stats": {
                "min": 1e-3,
                "max": 3e-3,
                "mean": 2e-3,
                "median": 2e-3,
                "stddev": 0,
                "ops": 500.0,
                "rounds": 9,
                "iqr": 1,
            },
        },
        {"name": "broken"},
    ],
    "datetime": "2026-11-30T12:00:00.000007+00:00",
}


def test_pytest_benchmark_gives_a_row_for_each_statistic(tmp_path):
    trace, health = read(tmp_path, json.dumps(BENCHMARK))
    found = {metric: (value, unit) for metric, value, unit in trace.measurements["metric", "value", "unit"].iter_rows()}
    assert found == {
        "mean": (2e-3, "s"),
        "median": (2e-3, "s"),
        "min": (1e-3, "s"),
        "max": (3e-3, "s"),
        "stddev": (0.0, "s"),
        "ops": (500.0, "1/s"),
        "rounds": (9.0, "1"),
    }
    assert set(found) == set(STATISTICS)
    assert trace.measurements["name"].unique().to_list() == ["tests/test_x.py::test_x[1]"]
    assert trace.measurements["params"].unique().to_list() == ['{"n":1,"bytes":4096}']
    assert trace.origin_unix_ns == 1_796_040_000_000_007_000
    assert [(e.code, e.count) for e in health] == [("measurements.bad-rows", 1)]


def test_a_cut_pytest_benchmark_file_is_one_clear_error(tmp_path):
    with pytest.raises(TracelensError, match="not a whole pytest-benchmark file"):
        read(tmp_path, json.dumps(BENCHMARK)[:-30])


def test_a_local_time_without_zone_is_no_time(tmp_path):
    trace, _ = read(tmp_path, json.dumps({**BENCHMARK, "datetime": "2026-11-30T12:00:00"}))
    assert trace.origin_unix_ns is None
    assert trace.measurements["at_ns"].null_count() == trace.measurements.height


@pytest.mark.parametrize(
    ("head", "score"),
    [
        (lines(ROW), 95),
        (json.dumps(BENCHMARK), 100),
        (json.dumps(BENCHMARK, indent=4), 100),
        ('{"traceEvents": [{"name": "x", "value": 1}]}', 0),
        ('{"name": "x", "value": 1}', 0),
        ("[1]", 0),
        ("", 0),
    ],
)
def test_sniffs_by_content(head, score):
    assert READER.sniff(head.encode(), "x.json") == score


@given(st.lists(st.text(max_size=40), max_size=5))
def test_any_text_after_one_good_row_is_read_or_counted(tmp_path_factory, rest):
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    path.write_text("\n".join([json.dumps(ROW), *rest]), encoding="utf-8", errors="replace")
    trace = READER.read(Source("m.jsonl", path), Health())
    assert trace.measurements["value"][0] == 1.5e-3
