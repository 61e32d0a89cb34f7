"""Names of real kernels and their families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses.families import BACKENDS, FAMILIES, OTHER, backend, family, family_of


@pytest.mark.parametrize(
    ("name", "sort", "library"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective", "nccl"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "gemm", "nvjet (cublas)"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_MI16x16x1", "gemm", "hipblaslt"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_execute_kernel__5x_cublas", "gemm", "cublas"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", "gemm", "cutlass"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "gemm", "cutlass"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "moe gemm", None),
        ("fused_moe_kernel", "moe gemm", "triton"),
        ("_combined_routing_compute", "moe routing", "triton"),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)",
            "attention",
            "flash-attention",
        ),
        ("kernel_unified_attention_3d", "attention", "triton"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>", "attention", None),
        ("kda_cp_pre_scan_kernel", "linear attention", "triton"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16E", "norm", "aiter"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "norm", "torch"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope", "vllm"),
        ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>(x)", "cache write", "vllm"),
        ("flash_attn_with_kvcache_kernel", "attention", "triton"),
        ("kv_gather_kernel", "cache write", "triton"),
        ("quant_per_token_kernel", "quantise", "triton"),
        ("triton_poi_fused_add_cos_sin_0", "pointwise", "inductor"),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "norm", "inductor"),
        ("triton_per_fused_sum_1", "reduction", "inductor"),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>>(int)",
            "memset",
            "torch",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
            "pointwise",
            "torch",
        ),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>(x)", "reduction", "torch"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(x)", "softmax", "torch"),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "convolution", "cudnn"),
        ("notify_dispatch_kernel", "collective", "triton"),
        ("Memcpy HtoD (Pinned -> Device)", "copy", None),
        ("my_own_thing", OTHER, "triton"),
        ("MyOwnThing", OTHER, None),
    ],
)
def test_families_of_real_names(name, sort, library):
    assert (family(name), backend(name)) == (sort, library)


def test_copies_and_sets_go_by_kind():
    assert family_of("memcpy", "anything") == "copy"
    assert family_of("memset", "anything") == "memset"
    assert family_of("kernel", "anything") == OTHER


@given(st.text(max_size=5000))
def test_every_name_has_one_family(name):
    assert family(name) in {*(known for known, _ in FAMILIES), OTHER}
    assert backend(name) in {*(known for known, _ in BACKENDS), None}
