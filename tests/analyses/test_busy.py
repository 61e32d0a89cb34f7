"""Busy time is a union per device; idle has a cause, or was not observed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.kineto_files import copy, event, kernel, launched, runtime, trace_of
from tracelens.analyses import busy, completeness
from tracelens.analyses.summary import summarize


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 40), st.integers(0, 9)), min_size=1))
def test_busy_is_the_union_per_device(tmp_path_factory, work):
    rows = [kernel(ts, dur, stream=stream, device=device) for device, stream, ts, dur in work]
    trace = trace_of(tmp_path_factory.mktemp("busy"), rows)
    covered = {(device, at) for device, _, ts, dur in work for at in range(ts, ts + dur)}
    summary = summarize(trace)
    assert summary["gpu_busy_ns"] == 1000 * len(covered)
    assert summary["kernel_total_ns"] == 1000 * sum(dur for *_, dur in work)
    windows = {}
    for device, _, ts, dur in work:
        low, high = windows.get(device, (ts, ts + dur))
        windows[device] = (min(low, ts), max(high, ts + dur))
    assert summary["gpu_window_ns"] == 1000 * sum(high - low for low, high in windows.values())
    assert sum(summary["gpu_idle_ns"].values()) == summary["gpu_window_ns"] - summary["gpu_busy_ns"]


def test_annotations_and_waits_are_no_work(tmp_path):
    rows = [
        kernel(10, 5),
        copy(20, 5),
        event("gpu_user_annotation", "step", 0, 100, 7, 0),
        event("cuda_sync", "Context Sync", 0, 100, 7, 0, stream=7, device=0),
    ]
    (device,) = busy.devices(trace_of(tmp_path, rows))
    assert (device.busy_ns, device.window_ns) == (10_000, 15_000)
    assert [times.tolist() for times in device.gaps()] == [[15_000], [20_000]]


def test_idle_has_a_cause(tmp_path):
    rows = [
        *launched(0, 10, 10, 1),
        # Launched at 5, before the GPU fell idle at 20: it waited for something on the device.
        *launched(5, 30, 10, 2),
        # Launched at 90, after the GPU fell idle at 40.
        *launched(90, 100, 10, 3),
        kernel(115, 5, 99, "not linked"),
    ]
    trace = trace_of(tmp_path, rows)
    assert busy.idle(trace, complete=True) == {
        "host_late": 60_000,
        "device": 10_000,
        "unlinked": 5_000,
        "not_observed": 0,
    }


def test_outside_a_complete_window_idle_was_not_observed(tmp_path):
    rows = [*launched(0, 10, 10, 1), kernel(100, 10, 2, "not linked")]
    trace = trace_of(tmp_path, rows)
    assert not completeness.window(trace).complete
    assert summarize(trace)["gpu_idle_ns"] == {"host_late": 0, "device": 0, "unlinked": 0, "not_observed": 80_000}


def test_a_kernel_within_a_longer_one_ends_no_gap(tmp_path):
    rows = [*launched(0, 10, 50, 1), *launched(6, 20, 5, 2, stream=8), *launched(80, 90, 10, 3)]
    assert busy.idle(trace_of(tmp_path, rows), complete=True)["host_late"] == 30_000


def test_the_host_is_no_device(tmp_path):
    assert busy.devices(trace_of(tmp_path, [runtime("cudaLaunchKernel", 0, 1, 1)])) == []
