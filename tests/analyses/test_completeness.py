"""A window is complete only if nothing in it shows work that was not recorded."""

import pytest

from tests.analyses.kineto_files import copy, kernel, launched, load_text, runtime, trace_of, write
from tracelens.analyses import completeness, launches
from tracelens.analyses.bottleneck import bottleneck
from tracelens.analyses.summary import summarize


def steady(count=40, gap=30):
    """A healthy launch-bound stretch: every kernel has its launch, the GPU waits for the host."""
    return [part for i in range(count) for part in launched(gap * i, gap * i + 6, 4, i + 1)]


def judge(folder, rows):
    return completeness.window(trace_of(folder, rows))


def test_a_healthy_window_is_complete(tmp_path):
    found = judge(tmp_path, steady())
    assert found.complete
    assert "0 of 40" in found.because


def test_without_gpu_work_there_is_no_window(tmp_path):
    assert not judge(tmp_path, [runtime("cudaMalloc", 0, 1)]).complete


@pytest.mark.parametrize(("extra", "complete"), [(2, True), (3, False)])
def test_kernels_launched_outside(tmp_path, extra, complete):
    found = judge(tmp_path, [*steady(), *[kernel(1201 + 5 * i, 4, 1000 + i) for i in range(extra)]])
    assert found.complete is complete
    if not complete:
        assert found.number == pytest.approx(3 / 43)
        assert found.threshold == completeness.MAX_UNLINKED
        assert "3 of 43 kernels (7%) were launched outside" in found.because


@pytest.mark.parametrize(("extra", "complete"), [(2, True), (3, False)])
def test_launches_without_kernels(tmp_path, extra, complete):
    found = judge(
        tmp_path, [*steady(), *[runtime("cudaLaunchKernel", 1201 + 5 * i, 4, 1000 + i) for i in range(extra)]]
    )
    assert found.complete is complete
    assert complete or "3 of 43 launches" in found.because


def test_a_call_is_a_launch_by_what_it_did_elsewhere(tmp_path):
    rows = [runtime("myOwnCall", i, 0.5, i + 1) for i in range(10)] + [kernel(20 + i, 0.5, i + 1) for i in range(5)]
    covered = launches.counts(trace_of(tmp_path, rows))
    assert (covered.launches, covered.launches_with_kernels) == (10, 5)


def test_a_blocking_copy_far_longer_than_the_recorded_work(tmp_path):
    rows = [*steady(10), runtime("hipMemcpyWithStream", 400, 463_100, 500), copy(463_480, 4.5, 500, moved=256)]
    rows += launched(463_600, 463_610, 5, 600)
    trace = trace_of(tmp_path, rows)
    found = completeness.window(trace)
    assert not found.complete
    assert found.number > 0.9
    assert "hipMemcpyWithStream blocked for 463.1 ms to copy 256 bytes" in found.because
    bound = bottleneck(trace)
    assert (bound.name, bound.trust) == ("unknown", "doubtful")
    assert "463.1 ms" in bound.because
    assert summarize(trace)["gpu_idle_ns"]["host_late"] == 0


def test_a_copy_that_waits_for_recorded_work_hides_nothing(tmp_path):
    rows = [
        *launched(0, 10, 5000, 1),
        runtime("cudaMemcpy", 20, 5100, 2),
        copy(5020, 90, 2),
        *launched(5200, 5210, 5, 3),
    ]
    assert judge(tmp_path, rows).complete


def test_an_asynchronous_copy_whose_call_is_slow_hides_nothing(tmp_path):
    rows = [*steady(10), runtime("cudaMemcpyAsync", 400, 3000, 500), copy(3390, 20, 500), *launched(3500, 3510, 5, 600)]
    assert judge(tmp_path, rows).complete


def test_a_call_paused_after_its_copy_hides_nothing(tmp_path):
    rows = [*steady(10), runtime("cudaMemcpy", 400, 9000, 500), copy(410, 20, 500), *launched(9500, 9510, 5, 600)]
    assert judge(tmp_path, rows).complete


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "hipStreamSynchronize", "cudaEventSynchronize"])
def test_a_synchronisation_longer_than_the_recorded_work(tmp_path, name):
    """One iteration of a device-side loop was recorded; the wait for all of them tells."""
    rows = [*steady(10), runtime("cudaGraphLaunch", 400, 5, 500), kernel(410, 5, 500), kernel(416, 5, 500)]
    rows += [runtime(name, 420, 5000), *launched(5500, 5510, 5, 600)]
    found = judge(tmp_path, rows)
    assert not found.complete
    assert name in found.because


def test_a_wait_outside_the_gpu_window_does_not_count(tmp_path):
    assert judge(tmp_path, [*steady(), runtime("cudaDeviceSynchronize", 5000, 50_000)]).complete


def replay(at, correlation, kernels, dur=2, gap=1):
    rows = [runtime("hipGraphLaunch", at, 5, correlation)]
    return rows + [kernel(at + 10 + (dur + gap) * i, dur, correlation, f"k{i}") for i in range(kernels)]


def test_whole_replays_are_complete(tmp_path):
    rows = [part for i in range(5) for part in replay(400 * i, i + 1, 100)]
    assert judge(tmp_path, rows).complete


def test_replays_cut_short_are_not(tmp_path):
    rows = [part for i in range(5) for part in replay(400 * i, i + 1, 100 if i != 2 else 40)]
    found = judge(tmp_path, rows)
    assert not found.complete
    assert "60 kernels (12%) are missing" in found.because


def test_different_graphs_are_not_cut_ones(tmp_path):
    rows = replay(0, 1, 100)
    rows += [runtime("hipGraphLaunch", 400, 5, 2), *[kernel(410 + 3 * i, 2, 2, f"k{2 * i}") for i in range(50)]]
    assert judge(tmp_path, rows).complete


def test_gaps_inside_a_replay_are_missing_kernels(tmp_path):
    """A quarter of each replay shows nothing, although nothing there can wait for the host."""
    rows = []
    for i in range(5):
        at = 1000 * i
        rows += [runtime("hipGraphLaunch", at, 5, i + 1)]
        rows += [kernel(at + 10 + j * 3 + (250 if j >= 100 else 0), 2.9, i + 1, f"k{j}") for j in range(200)]
    trace = trace_of(tmp_path, rows)
    found = completeness.window(trace)
    assert not found.complete
    assert "5 gaps inside graph replays" in found.because
    idle = summarize(trace)["gpu_idle_ns"]
    assert idle["not_observed"] == sum(idle.values()) > 0


def test_kernels_without_length_make_it_incomplete(tmp_path):
    rows = [*steady(), *[part for i in range(5) for part in launched(1300 + i, 1310 + i, 0, 900 + i)]]
    found = judge(tmp_path, rows)
    assert not found.complete
    assert "5 of 45 kernels (11%) have no length" in found.because


def test_a_cut_file_is_incomplete(tmp_path):
    text = write(tmp_path, steady()).read_text()
    found = completeness.window(load_text(tmp_path, text[:-300]))
    assert not found.complete
    assert "cut" in found.because
