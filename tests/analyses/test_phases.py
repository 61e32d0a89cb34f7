"""Steps by phase, families by phase, and the bottleneck's class."""

import pytest

from tests.analyses.kineto_files import annotation, copy, kernel, launched, op, python, runtime, trace_of
from tracelens.analyses import attribution, phases
from tracelens.analyses.bottleneck import bottleneck
from tracelens.finding import Coverage, FamilyShare, StepStats

PREFILL = "execute_context_1(512)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_8(8)"


def serving(folder):
    rows = [
        annotation(PREFILL, 0, 100),
        *launched(10, 200, 500, 1, "flash_fwd"),
        *launched(20, 700, 300, 2, "nvjet_gemm"),
    ]
    for i in range(6):
        at = 1000 + 100 * i
        wall = 300 if i == 5 else 50
        rows += [annotation(DECODE, at, wall), *launched(at + 1, at + 10, 20, 10 + i, "nvjet_gemm")]
    rows += launched(5000, 5010, 40, 99, "triton_poi_fused_add")
    return trace_of(folder, rows)


def test_steps_of_each_phase(tmp_path):
    prefill, decode = (StepStats(**row) for row in phases.step_stats(serving(tmp_path)))
    assert (prefill.phase, prefill.count, prefill.requests, prefill.tokens) == ("prefill", 1, 1, 512)
    assert (prefill.gpu_busy_ns, prefill.launches, prefill.exposed_comm_ns) == (800_000, 2, None)
    assert (decode.count, decode.requests, decode.tokens) == (6, 48, 48)
    assert decode.wall_ns == {"p50": 50_000, "p99": 300_000}
    assert (decode.gpu_busy_ns, decode.launches) == (120_000, 6)
    assert len(decode.outliers) == 1


def test_families_of_each_phase_add_to_one(tmp_path):
    found = {phase: [FamilyShare(**row) for row in rows] for phase, rows in phases.breakdown(serving(tmp_path)).items()}
    assert list(found) == ["all", "prefill", "decode", "unattributed"]
    for rows in found.values():
        assert sum(row.share for row in rows) == pytest.approx(1)
    assert [(row.family, row.calls, row.total_ns) for row in found["prefill"]] == [
        ("attention", 1, 500_000),
        ("gemm", 1, 300_000),
    ]
    assert [row.family for row in found["decode"]] == ["gemm"]
    assert [row.family for row in found["unattributed"]] == ["pointwise"]


def test_without_steps_there_are_no_stats_and_one_breakdown(tmp_path):
    trace = trace_of(tmp_path, launched(0, 10, 5, 1))
    assert phases.step_stats(trace) == []
    assert list(phases.breakdown(trace)) == ["all"]
    assert phases.breakdown(trace_of(tmp_path, [op("a", 0, 1)])) == {}


def test_exposed_communication_is_what_no_kernel_covers(tmp_path):
    rows = [
        annotation(DECODE, 0, 100),
        *launched(1, 10, 100, 1),
        *launched(2, 60, 100, 2, "ncclDevKernel_AllReduce", stream=9),
    ]
    rows += [runtime("cudaMemcpyAsync", 4, 1, 3), copy(300, 20, 3, stream=9)]
    rows += [runtime("cudaMemcpyAsync", 6, 1, 4), copy(400, 20, 4, "Memcpy DtoD (Device -> Device)")]
    (row,) = phases.step_stats(trace_of(tmp_path, rows))
    assert row["exposed_comm_ns"] == 50_000 + 20_000


def test_outliers_need_enough_steps(tmp_path):
    rows = [annotation(DECODE, 1000 * i, 10 if i else 900) for i in range(4)]
    (row,) = phases.step_stats(trace_of(tmp_path, rows))
    assert row["outliers"] == []
    assert row["gpu_busy_ns"] is None


def test_coverage_by_op_file_and_module(tmp_path):
    rows = [
        python("nn.Module: Model_0", 0, 100),
        python("/m/model.py(7): forward", 1, 98),
        op("aten::linear", 2, 50),
        op("aten::mm", 3, 40),
        *launched(5, 200, 30, 1),
        *launched(60, 300, 10, 2, "my_triton_kernel"),
        runtime("cudaGraphLaunch", 70, 5, 3),
        kernel(400, 10, 3, "g1"),
        kernel(411, 50, 3, "g2"),
    ]
    trace = trace_of(tmp_path, rows)
    rows = {row["name"]: row for row in attribution.attribute(trace).iter_rows(named=True)}
    assert [rows["gemm_kernel"][key] for key in ("op", "module", "file", "line")] == [
        "aten::mm",
        "Model_0",
        "/m/model.py",
        7,
    ]
    assert (rows["my_triton_kernel"]["op"], rows["my_triton_kernel"]["line"]) == (None, 7)
    assert (rows["g1"]["op"], rows["g1"]["file"]) == (None, None)
    covered = Coverage(**attribution.coverage(trace))
    assert covered.gpu_time_with_op == pytest.approx(0.3)
    assert covered.gpu_time_with_file == pytest.approx(0.4)
    assert (covered.launches_with_kernels, covered.kernels_with_launch, covered.graph_replays_recorded) == (1, 1, 1)
    assert (covered.ranks_present, covered.ranks_expected, covered.host_times) == (1, 1, "inflated")


def test_an_external_id_names_the_op_where_the_launch_is_missing(tmp_path):
    rows = [op("aten::mm", 0, 5, **{"External id": 9}), kernel(10, 5, 77, **{"External id": 9}), kernel(20, 5, 78)]
    found = attribution.attribute(trace_of(tmp_path, rows))
    assert found["op"].cast(str).to_list() == ["aten::mm", None]


def test_nothing_recorded_is_nothing_covered(tmp_path):
    covered = attribution.coverage(trace_of(tmp_path, []))
    assert covered["gpu_time_with_op"] is None
    assert covered["host_times"] is None


def back_to_back(names, dur=100):
    return [
        part for i, name in enumerate(names) for part in launched(i, 10 + dur * i, dur, i + 1, name, launch_dur=0.5)
    ]


def waits_of_two_kinds():
    """Each 60 µs: 25 busy, 10 waiting on the device for work that was launched, 25 for the host."""
    rows = []
    for i in range(20):
        rows += launched(60 * i, 60 * i + 6, 20, 2 * i + 1)
        rows += launched(60 * i + 7, 60 * i + 36, 5, 2 * i + 2)
    return rows


@pytest.mark.parametrize(
    ("rows", "bound"),
    [
        (back_to_back(["gemm"] * 10), "gpu"),
        (back_to_back(["gemm"] * 3 + ["ncclDevKernel_AllReduce"] * 7), "comm"),
        (back_to_back(["gemm"] * 11 + ["ncclDevKernel_AllReduce"] * 10), "gpu"),
        ([part for i in range(60) for part in launched(30 * i, 30 * i + 6, 4, i + 1)], "host"),
        (waits_of_two_kinds(), "mixed"),
        ([op("a", 0, 5)], "unknown"),
    ],
)
def test_the_class_of_the_bottleneck(tmp_path, rows, bound):
    found = bottleneck(trace_of(tmp_path, rows))
    assert found.name == bound
    assert found.because


def test_copies_bound_a_run_of_copies(tmp_path):
    rows = [
        part for i in range(9) for part in (runtime("cudaMemcpyAsync", i, 0.5, i + 1), copy(10 + 50 * i, 50, i + 1))
    ]
    found = bottleneck(trace_of(tmp_path, rows))
    assert (found.name, found.share) == ("copy", 1.0)


def test_host_times_of_a_profiled_run_are_doubtful(tmp_path):
    rows = [part for i in range(60) for part in launched(30 * i, 30 * i + 6, 4, i + 1)]
    assert bottleneck(trace_of(tmp_path, rows)).trust == "doubtful"


def test_the_phase_of_most_gpu_time_is_named(tmp_path):
    assert bottleneck(serving(tmp_path)).phase == "prefill"
