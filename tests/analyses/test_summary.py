"""The summary has exactly the report's names, and its integers mean what the design says."""

import msgspec

from tests.analyses.kineto_files import copy, event, launched, op, python, trace_of
from tracelens.analyses.summary import summarize
from tracelens.finding import Summary
from tracelens.trace import Trace


def test_names_are_those_of_the_report(tmp_path):
    rows = [op("a", 0, 5), python("f.py(1): f", 0, 9), *launched(1, 10, 5, 1), copy(20, 5, 2)]
    summary = summarize(trace_of(tmp_path, rows))
    assert list(summary) == list(Summary.__struct_fields__)
    converted = msgspec.convert(summary, Summary)
    assert converted.kernels == 1
    assert converted.top_kernels[0].total_ns == 5000
    for name, value in summary.items():
        assert value is None or type(value) in (int, list, dict), name


def test_an_empty_trace_has_no_numbers_where_it_has_no_such_thing():
    summary = msgspec.convert(summarize(Trace()), Summary)
    assert (summary.slices, summary.kernels, summary.threads) == (0, 0, 0)
    assert summary.samples is None
    assert summary.samples_with_gil is None
    assert summary.span_ns is None
    assert summary.gpu_window_ns is None
    assert summary.gpu_idle_ns is None


def test_top_kernels_are_ten_by_time_then_name(tmp_path):
    rows = [part for i in range(12) for part in launched(i, 100 + 20 * i, 5 if i < 6 else 10, i + 1, f"k{i:02d}")]
    top = summarize(trace_of(tmp_path, rows))["top_kernels"]
    assert [row["name"] for row in top] == [f"k{i:02d}" for i in (6, 7, 8, 9, 10, 11, 0, 1, 2, 3)]


def test_copies_count_apart_from_sets(tmp_path):
    rows = [copy(0, 3), copy(2, 3, stream=8), event("gpu_memset", "Memset (Device)", 10, 1, 7, 0, device=0, stream=7)]
    summary = summarize(trace_of(tmp_path, rows))
    assert (summary["memcpy"], summary["memcpy_total_ns"], summary["memset"]) == (2, 6000, 1)
    assert (summary["kernel_busy_ns"], summary["gpu_busy_ns"]) == (0, 6000)
