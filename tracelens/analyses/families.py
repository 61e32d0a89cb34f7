"""Kernel name → what sort of work it is and which library wrote it. A table of patterns; extend it there.

A family names what a kernel computes, never whether that is good. Names of compiled or hand-written kernels may say
nothing: then the family is "other".
"""

from __future__ import annotations

import re
from functools import lru_cache

FAMILIES: tuple[tuple[str, str], ...] = (
    ("collective", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|AllReduce|one_?shot_.*reduce"
     r"|two_?shot_.*reduce|cross_device_reduce|nvshmem|deep_?ep|intranode|internode|notify_dispatch|symm_mem"
     r"|custom_ar|quick_?reduce|multimem"),
    ("copy", r"^Memcpy|memcpy"),
    ("memset", r"^Memset|FillFunctor|fill_kernel"),
    ("moe gemm", r"fused_moe|moe.*gemm|grouped_?gemm|group_?gemm|moe_expert|matmul_ogs|ck_moe|moe_wna16|marlin_moe"
     r"|moe_mm|bmoe|fmoe"),
    ("moe routing", r"moe|topk_?gating|topkGating|routing|expert|bitmatrix|matmul_scatter|_topk_forward"
     r"|biased_grouped"),
    ("cache write", r"reshape_and_cache|store_kv|concat_and_cache|set_kv|kv_indices"),
    ("attention", r"flash|fmha|attention|attn|sdpa|paged_|mla_|\bmla\b|decode_split|cascade|sparse_attn|merge_state"),
    ("linear attention", r"kda_|gated_delta|delta_rule|chunk_fwd|chunk_scan|chunk_state|selective_scan|mamba|ssd_|ssm"
     r"|causal_conv1d|fused_recurrent|recurrent_"),
    ("cache write", r"kv_?cache|kv_gather"),
    ("rope", r"rotary|rope|mrope"),
    ("norm", r"rms_?norm|Rmsnorm|layer_?norm|LayerNorm|group_?norm|batch_?norm|bn_fw|bn_bw|_norm_|l2norm"
     r"|rsqrt.*mean|mean.*rsqrt"),
    ("quantise", r"quant(?!ile)|dequant|int8_scale|scaled_fp8|per_token_group|cvt_fp|mxfp4_convert"),
    ("gemm", r"gemm|Cijk_|nvjet|cutlass.*tensorop|cutlass.*wmma|matmul|gemv|splitK|s16816|s1688|_mm_|\bmm_|addmm"
     r"|dot_kernel|wvSplitK|hipblaslt|cublas|reduce_1Block_kernel|ck::.*Gridwise.*Gemm|deep_gemm|reduce_segments_gemm"),
    ("convolution", r"cudnn.*(?:conv|fprop|dgrad|wgrad)|scudnn|winograd|fft2d|wgrad|dgrad|xmma_fprop|conv\d?d"
     r"|miopen.*conv|implicit_gemm|computeOffsets|OffsetsKernel|nchwToNhwc|nhwcToNchw|im2col"),
    ("activation", r"act_and_mul|silu|gelu|Gelu|swiglu|SiLU"),
    ("sampling", r"sampl|top_?k|top_?p|argmax|ArgMax|multinomial|min_p|softmax.*sampling|bitonicSort|RadixSort"
     r"|radixFind|gatherTopK|penalt|rejection|logits|sort"),
    ("embedding", r"embedding|indexSelect|index_select|EmbeddingBag"),
    ("softmax", r"softmax|SoftMax"),
    ("gather", r"gather|scatter|index_|indexing|masked_select|take_along|CatArray|nonzero|Compact|DeviceSelect|cat_"),
    ("reduction", r"^triton_(?:red|per)_|reduce|Reduce|cumsum|scan|Scan|segment"),
    ("pooling", r"pool"),
    ("pointwise", r"^triton_poi_|elementwise|Elementwise|pointwise|multi_tensor_apply|dropout|copy_kernel|clamp|cast"
     r"|arange|foreach|FunctorOnSelf|scalePackedTensor|epilogue|permute|transpose|distribution"),
    ("compiled", r"^triton_"),
)  # fmt: skip
"""(family, pattern searched in the name), first match wins; a family may have several entries."""
BACKENDS: tuple[tuple[str, str], ...] = (
    ("nccl", r"nccl"),
    ("rccl", r"rccl"),
    ("inductor", r"^triton_(?:poi|red|per|tem|for|split)"),
    ("nvjet (cublas)", r"nvjet"),
    ("cudnn", r"cudnn|cask_"),
    ("cublas", r"cublas|_xmma_gemm|gemv.*cublas|splitKreduce|gemmSN|(?:ampere|volta|turing|maxwell|sm\d+)_.*gemm"),
    ("cutlass", r"cutlass"),
    ("hipblaslt", r"Cijk_"),
    ("composable kernel", r"ck_tile|\bck::"),
    ("aiter", r"aiter"),
    ("flashinfer", r"flashinfer"),
    ("flash-attention", r"flash_fwd|flash_bwd|pytorch_flash|FlashAttn"),
    ("vllm", r"vllm"),
    ("sglang", r"sgl_|sglang"),
    ("deep_gemm", r"deep_gemm"),
    ("fbgemm", r"fbgemm|split_embedding|dense_embedding"),
    ("cub", r"\bcub::|rocprim|hipcub"),
    ("torch", r"at::native|at_cuda_detail|\(anonymous namespace\)"),
    ("triton", r"\A[a-z_][a-z0-9_]*\Z"),
)
"""(library, pattern searched in the name), first match wins. A bare lower-case name is what Triton's JIT writes."""
OTHER = "other"

_FAMILIES = tuple((name, re.compile(pattern)) for name, pattern in FAMILIES)
_BACKENDS = tuple((name, re.compile(pattern)) for name, pattern in BACKENDS)
_MAX_NAME = 4096


@lru_cache(maxsize=65_536)
def family(name: str) -> str:
    """What a kernel, copy or memset of this name does; "other" if its name does not say."""
    text = name[:_MAX_NAME]
    return next((known for known, pattern in _FAMILIES if pattern.search(text)), OTHER)


@lru_cache(maxsize=65_536)
def backend(name: str) -> str | None:
    """The library that a kernel of this name comes from, if the name says."""
    text = name[:_MAX_NAME]
    return next((known for known, pattern in _BACKENDS if pattern.search(text)), None)


def family_of(kind: str, name: str) -> str:
    """The family of a slice of GPU work: copies and memsets by kind, kernels by name."""
    return {"memcpy": "copy", "memset": "memset"}.get(kind) or family(name)
