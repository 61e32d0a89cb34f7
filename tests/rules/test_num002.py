"""NUM002: which library kernel names mean TF32, and what the op's input types add."""

from __future__ import annotations

import pytest
from tracelens_numerics.num002_fp32_gemm_runs_as_tf32 import detect

from tests.rules.gpu_traces import MS, GpuTrace, judge

TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel"
MM = {"kind": "op", "name": "aten::mm"}


def op(name: str, *types: str) -> dict[str, object]:
    return {"kind": "op", "name": name, "args": {"Input type": list(types)}}


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        (TF32, True),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", True),
        ("cutlass_80_tensorop_s1688tf32gemm_128x128_16x5_nn_align4", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(Params)", False),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_nn", False),
        ("cutlass_80_tensorop_bf16_s1688gemm_bf16_64x64_16x6_nn_align8", False),
        ("void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_128x64_nn_align8>(Params)", False),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn", False),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNT", False),
        ("h1688gemm_128x128_ldg8_nn", False),
    ],
)
def test_kernel_names(name: str, hits: bool) -> None:
    trace = GpuTrace()
    trace.kernel(name)
    status, found = judge(detect, trace.build())
    assert status.status == "ran"
    assert [each.where.kernel for each in found] == ([name] if hits else [])


def test_name_alone_is_inferred_and_info() -> None:
    trace = GpuTrace()
    trace.kernel(TF32, launched=False)
    (found,) = judge(detect, trace.build())[1]
    assert (found.severity, found.confidence, found.where.op) == ("info", "inferred", None)


def test_float_inputs_make_it_observed_and_group_by_op() -> None:
    trace = GpuTrace()
    mm = (op("aten::linear", "float", "float", ""), op("aten::mm", "float", "float"))
    trace.kernel(TF32, 3 * MS, around=mm)
    trace.kernel(TF32.replace("nn", "tn"), MS, around=mm)
    trace.kernel("sm80_xmma_fprop_tf32f32_tf32f32_f32", MS, around=(op("aten::cudnn_convolution", "float", "float"),))
    trace.kernel("elementwise", 5 * MS)
    first, second = judge(detect, trace.build())[1]
    assert (first.severity, first.confidence, first.where.op, first.where.kernel) == (
        "warning",
        "observed",
        "aten::mm",
        TF32,
    )
    assert (first.occurrences, first.impact.value, first.impact.share) == (2, 4.0, 0.4)
    assert first.fix.change == 'torch.backends.cuda.matmul.fp32_precision = "ieee"'
    assert second.where.op == "aten::cudnn_convolution"
    assert second.fix.change == 'torch.backends.cudnn.conv.fp32_precision = "ieee"'


def test_half_inputs_are_not_an_fp32_op() -> None:
    trace = GpuTrace()
    trace.kernel(TF32, around=(op("aten::mm", "c10::BFloat16", "c10::BFloat16"),))
    assert judge(detect, trace.build())[1] == []


@pytest.mark.parametrize(
    "args", [{"Input type": "float"}, {"Input type": [None, 3]}, {}, {"Input type": ["Scalar", ""]}]
)
def test_unreadable_types_are_unknown_types(args: dict[str, object]) -> None:
    trace = GpuTrace()
    trace.kernel(TF32, around=({**MM, "args": args},))
    (found,) = judge(detect, trace.build())[1]
    assert (found.confidence, found.where.op) == ("inferred", "aten::mm")


def test_python_frame_gives_the_definition_line() -> None:
    trace = GpuTrace()
    frame = {"kind": "python", "name": "router.py(12): forward", "file": "router.py", "line": 12}
    trace.kernel(TF32, around=(frame, op("aten::mm", "float", "float")))
    (found,) = judge(detect, trace.build())[1]
    assert (found.where.file, found.where.line, found.where.line_kind) == ("router.py", 12, "definition")
