"""Every public trace of the corpus: counts exactly, times within 1e-3 of what was computed independently.

The corpus lies outside the repository: TRACELENS_CORPUS, else ../shared/traces beside the checkout.
"""

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from tracelens import plugins
from tracelens.analyses import busy
from tracelens.analyses.summary import summarize
from tracelens.errors import TracelensError
from tracelens.opening import open_trace

pytestmark = pytest.mark.corpus
REPOSITORY = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("TRACELENS_CORPUS") or REPOSITORY.parent / "shared" / "traces")
PUBLIC = CORPUS / "public"
HERE = (PUBLIC / "expected.json").is_file()
EXPECTED = json.loads((PUBLIC / "expected.json").read_text()) if HERE else {}
KINETO_OR_CHROME = sorted(name for name, facts in EXPECTED.items() if facts["format"] == "chrome")
TRACEBACK_FREE = sorted(name for name, facts in EXPECTED.items() if facts["format"] == "empty")
EXACT = {
    "source_events": "n_events",
    "kernels": "n_kernels",
    "memcpy": "n_memcpy",
    "memset": "n_memset",
    "devices": "n_devices",
    "streams": "n_streams",
    "threads": "n_threads",
    "launches_matched": "kernels_launch_matched",
    "python_functions": "python_functions",
}
WITHIN = {
    "kernel_total_ns": "kernel_total_us",
    "kernel_busy_ns": "kernel_busy_us",
    "memcpy_total_ns": "memcpy_total_us",
    "gpu_busy_ns": "gpu_busy_us",
}


def read(name):
    return open_trace(str(PUBLIC / name), plugins=plugins.load())


def of_py_spy(name):
    return "pyspy" in name


def test_the_corpus_is_here():
    if not HERE and os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"no corpus at {CORPUS}: CI must have it (TRACELENS_CORPUS)")
    if not HERE:
        pytest.skip(f"NO CORPUS at {CORPUS}: the public traces were not checked")
    assert len(KINETO_OR_CHROME) >= 30


@pytest.mark.parametrize("name", [name for name in KINETO_OR_CHROME if not of_py_spy(name)])
def test_counts_and_times(name):
    facts, trace = EXPECTED[name], read(name)
    summary = summarize(trace)
    assert {key: summary[key] for key in EXACT} == {key: facts[key_there] for key, key_there in EXACT.items()}
    assert summary["graph_launches"] == sum(facts["graph_launches"].values())
    for key, key_there in WITHIN.items():
        assert summary[key] / 1000 == pytest.approx(facts[key_there], rel=1e-3), key
    windows = sum(device["gpu_span_us"] for device in facts["devices"].values())
    assert (summary["gpu_window_ns"] or 0) / 1000 == pytest.approx(windows, rel=1e-3)
    # Their span is of complete events only; ours of everything with a length.
    longest = max([facts.get("span_us") or 0, facts.get("BE", {}).get("span_us") or 0])
    if longest:
        assert summary["span_ns"] / 1000 == pytest.approx(longest, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in KINETO_OR_CHROME if EXPECTED[name]["n_kernels"]])
def test_kernels_by_name_and_device(name):
    facts, trace = EXPECTED[name], read(name)
    top = {row["name"]: row for row in summarize(trace)["top_kernels"]}
    for wanted in facts["top_kernels"]:
        row = top[wanted["name"]]
        assert row["calls"] == wanted["count"]
        assert row["total_ns"] / 1000 == pytest.approx(wanted["total_us"], rel=1e-3)
    by_device = {str(device.key.device): device for device in busy.devices(trace)}
    assert set(by_device) == set(facts["devices"])
    for index, wanted in facts["devices"].items():
        assert by_device[index].busy_ns / 1000 == pytest.approx(wanted["gpu_busy_us"], rel=1e-3)
        assert by_device[index].window_ns / 1000 == pytest.approx(wanted["gpu_span_us"], rel=1e-3)


@pytest.mark.parametrize("name", [name for name in KINETO_OR_CHROME if EXPECTED[name]["ph"].get("X")])
def test_steps_memory_and_facts(name):
    facts, trace = EXPECTED[name], read(name)
    scheduled = trace.steps.filter(pl.col("source").str.starts_with("ProfilerStep#"))["source"].unique().sort()
    assert scheduled.to_list() == sorted(facts["steps"])
    allocations = trace.select("instant").filter(pl.col("name").cast(pl.String) == "[memory]")
    assert allocations.height == facts["memory_events"]
    if facts["strict_json"]:
        assert trace.facts.rank == (facts.get("distributed") or {}).get("rank")
        assert [device.name or "" for device in trace.facts.devices] == facts.get("device_names", [])
    timed = trace.slices.filter(pl.col("kind") != "instant")
    assert timed.height == facts["ph"]["X"] + facts.get("BE", {}).get("begin", 0)


@pytest.mark.parametrize("name", TRACEBACK_FREE)
def test_unreadable_files_end_in_one_line(name):
    with pytest.raises(TracelensError) as error:
        read(name)
    assert "\n" not in error.value.message
    assert error.value.hint


def strictly(path):
    """The file by the standard library with decimal numbers, or None where it is not JSON."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    try:
        content = json.loads(text.decode("utf-8-sig"), parse_float=Decimal, parse_constant=lambda _: None)
    except ValueError:
        return None
    return content if isinstance(content, list) else content.get("traceEvents", [])


@pytest.mark.parametrize("name", [name for name in KINETO_OR_CHROME if not of_py_spy(name)])
def test_complete_events_are_those_of_the_standard_library(name):
    elements = strictly(PUBLIC / name)
    if elements is None:
        assert not EXPECTED[name]["strict_json"]
        return
    trace = read(name)
    whole = [element for element in elements if element.get("ph") == "X"]
    if not whole:
        assert EXPECTED[name]["ph"].get("X", 0) == 0
        return
    first = min(ns(element["ts"]) for element in elements if element.get("ph") in ("X", "B", "C", "i", "b"))
    wanted = sorted(
        (ns(element["ts"]) - first, ns(element.get("dur") or 0), element["name"], arguments(element.get("args")))
        for element in whole
    )
    kept = trace.slices.filter((pl.col("kind") != "instant") & pl.lit(EXPECTED[name]["ph"].get("B", 0) == 0))
    if kept.height:
        found = sorted(
            (start, dur, label, arguments(json.loads(args, parse_float=Decimal) if args else None))
            for start, dur, label, args in kept.select("start_ns", "dur_ns", "name", "args").iter_rows()
        )
        assert found == wanted


def ns(micros):
    return int((Decimal(micros) * 1000).to_integral_value())


def arguments(args):
    return json.dumps(args or None, default=str, sort_keys=True)


H200 = sorted((CORPUS / "h200").glob("*.json.gz")) if HERE else []


@pytest.mark.parametrize("path", [path for path in H200 if "pyspy" not in path.name], ids=lambda path: path.name)
def test_own_recordings_agree_with_their_manifest(path):
    """Event counts noted when the pairs were recorded, by another tool."""
    records = json.loads((CORPUS / "h200" / "manifest.json").read_text())["records"]
    noted = [record for record in records if path.name in record["file"] and "events" in record.get("trace_facts", {})]
    trace = open_trace(str(path), plugins=plugins.load())
    assert summarize(trace)["gpu_busy_ns"] > 0
    assert not [entry for entry in trace.health if entry.severity == "error"]
    for record in noted:
        assert trace.facts.source_events == record["trace_facts"]["events"]
