"""NUM001 on hand-made traces: which variant was launched, what it says, and when it must not speak."""

from __future__ import annotations

import pytest
from tracelens_numerics.num001_fp32_dot_runs_as_tf32 import detect

from tests.rules.gpu_traces import MS, GpuTrace, judge
from tracelens.finding import Window

BAD, GOOD = "a" * 64, "b" * 64


def pair() -> GpuTrace:
    """A kernel compiled at tf32 (160 KiB) and at tf32x3 (96 KiB)."""
    trace = GpuTrace()
    trace.artifact("chain", "tf32", "tf32", shared=163840, digest=BAD)
    trace.artifact("chain", "tf32x3", "tf32x3", shared=98304, digest=GOOD)
    return trace


def test_finds_every_fp32_dot_of_the_launched_variant() -> None:
    trace = pair()
    trace.kernel("chain", 3 * MS, shared=163840)
    trace.kernel("other", MS)
    status, (found,) = judge(detect, trace.build())
    assert (status.status, status.why) == ("ran", None)
    assert (found.severity, found.confidence, found.occurrences) == ("warning", "inferred", 1)
    assert "/src/kern.py:23, /src/kern.py:24" in found.message
    assert found.evidence[0].rows == (("/src/kern.py", 23, "f32*f32", "tf32"), ("/src/kern.py", 24, "f32*f32", "tf32"))
    where = found.where
    assert (where.kernel, where.file, where.line, where.line_kind) == ("chain", "/src/kern.py", 23, "executing")
    assert (where.device, where.stream, where.windows) == (0, 9, (Window(start_ns=0, end_ns=3 * MS),))
    assert (found.impact.value, found.impact.unit, found.impact.share, found.impact.bound) == (3.0, "ms", 0.75, "upper")
    assert found.verify.experiment == "dot-precision"
    assert found.verify.arguments == {"kernel": "chain", "file": "/src/kern.py", "line": 23}


def test_unlaunched_tf32_variant_never_fires() -> None:
    trace = pair()
    trace.kernel("chain", shared=98304)
    status, found = judge(detect, trace.build())
    assert (status.status, found) == ("ran", [])


@pytest.mark.parametrize("precision", ["tf32x3", "ieee", "bf16x3", "bf16x6"])
def test_other_precisions_are_sound(precision: str) -> None:
    trace = GpuTrace()
    trace.artifact("chain", precision)
    trace.kernel("chain")
    assert judge(detect, trace.build())[1] == []


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8E5M2"])
def test_dots_of_narrow_types_print_tf32_and_are_sound(dtype: str) -> None:
    trace = GpuTrace()
    trace.artifact("attention", "tf32", dtype=dtype)
    trace.kernel("attention")
    assert judge(detect, trace.build())[1] == []


def test_hash_decides_where_shapes_are_equal() -> None:
    def run(digest: str) -> int:
        trace = GpuTrace()
        trace.artifact("chain", "tf32", digest=BAD)
        trace.artifact("chain", "tf32x3", digest=GOOD)
        trace.kernel("chain", around=({"kind": "op", "name": "triton::chain", "args": {"kernel_hash": digest[:16]}},))
        status, found = judge(detect, trace.build())
        assert status.status == "ran"
        assert [each.where.op for each in found] == ["triton::chain"] * len(found)
        return len(found)

    assert (run(BAD), run(GOOD)) == (1, 0)


def test_hash_of_another_build_abstains() -> None:
    trace = pair()
    trace.kernel("chain", shared=163840, around=({"kind": "op", "name": "o", "args": {"kernel_hash": "c" * 16}},))
    status, found = judge(detect, trace.build())
    assert (status.status, found) == ("abstained", [])
    assert "no compiled variant fits" in (status.why or "")


def test_hash_that_is_not_tritons_is_ignored() -> None:
    trace = pair()
    inductor = {"kernel_hash": "ctbgktuhgnnlel6ecjv3bqyjhdlqzqc5"}
    trace.kernel("chain", shared=163840, around=({"kind": "op", "name": "o", "args": inductor},))
    assert len(judge(detect, trace.build())[1]) == 1


def test_warps_and_registers_tell_variants_apart() -> None:
    trace = GpuTrace()
    trace.artifact("chain", "tf32", warps=8, registers=111)
    trace.artifact("chain", "tf32x3", warps=4, registers=255)
    trace.kernel("chain", threads=128, registers=255)
    assert judge(detect, trace.build())[1] == []
    trace.kernel("chain", threads=256, registers=111)
    assert [found.occurrences for found in judge(detect, trace.build())[1]] == [1]


def test_a_warp_of_hip_has_64_threads() -> None:
    trace = GpuTrace()
    trace.artifact("chain", "tf32", warps=4, target="hip:gfx942")
    trace.kernel("chain", threads=256)
    assert len(judge(detect, trace.build())[1]) == 1


@pytest.mark.parametrize(("target", "fires"), [("cuda:75", 0), ("cuda:80", 1), ("cuda:100", 1), (None, 1)])
def test_hardware_without_tf32_computes_fp32(target: str | None, fires: int) -> None:
    trace = GpuTrace()
    trace.artifact("chain", "tf32", target=target)
    trace.kernel("chain")
    assert len(judge(detect, trace.build())[1]) == fires


def test_ambiguous_join_abstains_with_kernel_and_number() -> None:
    trace = pair()
    trace.kernel("chain", shared=None)
    status, found = judge(detect, trace.build())
    assert (status.status, found, status.number, status.threshold) == ("abstained", [], 2, 1)
    assert "kernel chain" in (status.why or "")
    assert "2 compiled variants" in (status.why or "")


def test_ambiguity_that_does_not_matter_is_none() -> None:
    trace = GpuTrace()
    trace.artifact("chain", "tf32", line=23)
    trace.artifact("chain", "tf32", line=40)
    trace.kernel("chain")
    (found,) = judge(detect, trace.build())[1]
    assert [row[1] for row in found.evidence[0].rows] == [23, 40]


def test_one_unclear_kernel_does_not_silence_the_others() -> None:
    trace = pair()
    trace.artifact("merge", "tf32")
    trace.kernel("chain", shared=None)
    trace.kernel("merge")
    status, found = judge(detect, trace.build())
    assert [each.where.kernel for each in found] == ["merge"]
    assert status.status == "ran"
    assert (status.why or "").startswith("kernel chain: ambiguous")


def test_artifacts_of_another_run_abstain() -> None:
    trace = pair()
    trace.kernel("gemm")
    status, _ = judge(detect, trace.build())
    assert status.status == "abstained"
    assert "none of the 2 compiled kernels was launched" in (status.why or "")


def test_skipped_without_artifacts_or_without_kernels() -> None:
    trace = GpuTrace()
    trace.kernel("chain")
    assert judge(detect, trace.build())[0].status == "skipped"
    assert judge(detect, pair().build())[0].status == "skipped"


def test_one_artifact_read_twice_counts_once() -> None:
    trace = GpuTrace()
    for _ in range(2):
        trace.artifact("chain", "tf32", digest=BAD)
    trace.kernel("chain")
    (found,) = judge(detect, trace.build())[1]
    assert found.evidence[0].ids == (0,)


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        ({"value": 0.083, "tolerance": 1e-3, "params": {"kernel": "chain"}}, ("error", "observed", 1)),
        ({"value": 0.083, "tolerance": 1e-3, "params": {"kernels": ["merge", "chain"]}}, ("error", "observed", 1)),
        (
            {"value": -0.083, "tolerance": 1e-3, "reference": 0.0, "params": {"kernel": "chain"}},
            ("error", "observed", 1),
        ),
        ({"value": 1e-4, "tolerance": 1e-3, "params": {"kernel": "chain"}}, ("warning", "inferred", 1)),
        ({"value": 0.083, "tolerance": 1e-3, "params": {"kernel": "other"}}, ("warning", "inferred", 0)),
        ({"value": 0.083, "params": {"kernel": "chain"}}, ("warning", "inferred", 0)),
        (
            {"value": 5.0, "tolerance": 1, "params": {"kernel": "chain", "precision": "ieee"}},
            ("warning", "inferred", 0),
        ),
    ],
)
def test_a_failed_accuracy_test_raises_the_finding(measured: dict[str, object], outcome: tuple[str, str, int]) -> None:
    trace = pair()
    trace.kernel("chain", shared=163840)
    trace.measure("state", "relative_error", **measured)  # type: ignore[arg-type]
    (found,) = judge(detect, trace.build())[1]
    tests = [each for each in found.evidence if each.table == "measurements"]
    assert (found.severity, found.confidence, len(tests)) == outcome


def test_damaged_ttir_is_said_beside_what_was_found() -> None:
    trace = pair()
    trace.health.add("triton.ttir-cut", "warning", "cut", need="dots", where="dump/chain.ttir")
    trace.kernel("chain", shared=98304)
    status, found = judge(detect, trace.build())
    assert (status.status, found) == ("ran", [])
    assert (status.why or "").startswith("dump/chain.ttir: 1 notes of damaged TTIR")


def test_fingerprint_survives_another_recording() -> None:
    def once(launches: int) -> str:
        trace = pair()
        for _ in range(launches):
            trace.kernel("chain", launches * MS, shared=163840)
        (found,) = judge(detect, trace.build())[1]
        return found.fingerprint

    assert once(1) == once(5)
