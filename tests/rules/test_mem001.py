"""MEM001: bytes ÷ time against a roof; without either it says what is missing."""

from __future__ import annotations

import pytest
from tracelens_memory.mem001_bandwidth_stall import detect

from tests.rules.gpu_traces import MS, GpuTrace, judge
from tracelens.trace import Device

BYTES, ROOF = 536_969_216, 4.28e12


def gemv(dur_ns: int, launches: int = 8, **facts: object) -> GpuTrace:
    trace = GpuTrace()
    trace.facts.update(facts)
    for _ in range(launches):
        trace.kernel("gemv_kernel", dur_ns, grid=16384)
    return trace


def given(dur_ns: int, launches: int = 8, size: int = BYTES, pattern: str = "gemv_*") -> GpuTrace:
    return gemv(dur_ns, launches, kernel_bytes={pattern: size}, roofs={"copy_bytes_per_second": ROOF})


def test_strided_read_is_found_with_its_price() -> None:
    (found,) = judge(detect, given(1_776_000).build())[1]
    assert (found.severity, found.confidence, found.occurrences) == ("warning", "inferred", 8)
    assert (found.where.kernel, found.where.device, found.where.stream) == ("gemv_kernel", 0, 9)
    assert "at 302 GB/s, 7.1% of the measured 4280 GB/s" in found.message
    assert found.impact.value == pytest.approx(8 * (1.776 - BYTES / ROOF * 1e3))
    assert found.impact.share == pytest.approx(1 - BYTES / ROOF * 1e9 / 1_776_000)
    assert found.impact.bound == "upper"
    assert found.evidence[1].says == "the grid fills the device"
    assert found.verify.predicts.at_least == pytest.approx(BYTES / ROOF * 1e9 / 1_776_000)


def test_coalesced_read_is_sound() -> None:
    status, found = judge(detect, given(122_200).build())
    assert (status.status, status.why, found) == ("ran", None, [])


@pytest.mark.parametrize(
    ("facts", "missing", "need"),
    [
        (
            {},
            "the bytes a launch moves (--bytes 'KERNEL-GLOB=N'; most time goes to gemv_kernel) and a measured",
            "slices.bytes",
        ),
        ({"kernel_bytes": {"gemv_*": BYTES}}, "needs a measured roof (--roof", "facts.roofs.copy_bytes_per_second"),
        ({"roofs": {"copy_bytes_per_second": ROOF}}, "needs the bytes a launch moves", "slices.bytes"),
        (
            {"roofs": {"copy_bytes_per_second": ROOF}, "kernel_bytes": {"gemm*": 1}},
            "the bytes a launch moves",
            "slices.bytes",
        ),
        (
            {"roofs": {"copy_bytes_per_second": 0.0}, "kernel_bytes": {"*": 1}},
            "a measured roof",
            "facts.roofs.copy_bytes_per_second",
        ),
    ],
)
def test_abstains_naming_what_is_missing(facts: dict[str, object], missing: str, need: str) -> None:
    status, found = judge(detect, gemv(1_776_000, **facts).build())
    assert (status.status, found, status.need) == ("abstained", [], need)
    assert missing in (status.why or "")


def test_measurements_give_bytes_and_roof() -> None:
    trace = gemv(1_776_000)
    trace.measure("gemv_kernel", "bytes", BYTES)
    trace.measure("copy", "copy_bytes_per_second", ROOF)
    assert len(judge(detect, trace.build())[1]) == 1


def test_bytes_in_the_trace_are_taken_per_launch() -> None:
    trace = GpuTrace()
    trace.facts["roofs"] = {"copy_bytes_per_second": ROOF}
    for dur_ns, size in ((1_776_000, BYTES), (130_000, BYTES // 2), (65_000, BYTES // 2)):
        trace.kernel("gather", dur_ns, size=size)
    (found,) = judge(detect, trace.build())[1]
    assert (found.occurrences, found.verify.arguments["bytes"]) == (1, BYTES)


def test_one_number_for_several_grids_cannot_be_judged() -> None:
    trace = given(1_776_000)
    trace.kernel("gemv_kernel", 100_000, grid=8)
    status, found = judge(detect, trace.build())
    assert (status.status, found) == ("abstained", [])
    assert "2 different grids" in (status.why or "")


def test_faster_than_the_roof_means_wrong_bytes() -> None:
    status, found = judge(detect, given(60_000).build())
    assert (status.status, found) == ("ran", [])
    assert "2.1 times the roof" in (status.why or "")


def test_short_and_rare_kernels_are_left_out() -> None:
    assert judge(detect, given(100_000, size=4_000_000).build())[1] == []
    rare = given(1_776_000, launches=1)
    rare.kernel("gemm", 500 * MS)
    assert judge(detect, rare.build())[1] == []
    assert len(judge(detect, rare.build(), min_gpu_share=0.001)[1]) == 1


def test_longest_pattern_wins() -> None:
    trace = given(1_776_000, size=BYTES // 100, pattern="*")
    trace.facts["kernel_bytes"]["gemv_kernel"] = BYTES
    (found,) = judge(detect, trace.build())[1]
    assert found.verify.arguments["bytes"] == BYTES


def test_small_loss_is_information() -> None:
    trace = given(300_000, launches=1)
    trace.kernel("gemm", 10 * MS)
    (found,) = judge(detect, trace.build())[1]
    assert found.severity == "info"


def test_grid_smaller_than_the_device_is_said() -> None:
    trace = given(7_680_000)
    trace.facts["devices"] = (Device(index=0, multiprocessors=20_000),)
    (found,) = judge(detect, trace.build())[1]
    assert found.evidence[1].says == "the grid does not fill the device"
    assert found.evidence[1].rows == ((16384, 20_000),)
