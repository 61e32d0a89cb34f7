"""Category of an event → kind of slice. Decided by category alone, never by lists of API or kernel names."""

from __future__ import annotations

from tracelens.schema import SLICE_KINDS

KINDS = {
    "cpu_op": "op",
    "operator": "op",
    "python_function": "python",
    "python": "python",
    "fee": "python",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "collective_comm": "gpu_annotation",
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "runtime": "runtime",
    "driver": "runtime",
    "cuda_sync": "sync",
    "cpu_instant_event": "instant",
    "overhead": "overhead",
}
"""Kineto's categories, also those of its first releases, and VizTracer's "FEE"."""
KIND_CODE = {kind: code for code, kind in enumerate(SLICE_KINDS)}
ON_DEVICE = ("kernel", "memcpy", "memset", "gpu_annotation", "sync")
"""Kinds whose rows lie on a device's stream in Kineto's files."""
WITH_LINK = ("kernel", "memcpy", "memset", "sync", "runtime")
"""Kinds whose arguments hold correlation, stream or launch geometry."""
UNREADABLE_DEVICES = {
    "mtia_runtime": "MTIA",
    "mtia_ccp_events": "MTIA",
    "mtia_insight": "MTIA",
    "hpu_op": "HPU",
    "async_npu": "NPU",
}
"""Categories of accelerators whose device rows carry no kernel, copy or stream that this reader knows."""


def kind_of(category: str) -> str:
    """The kind of slice of one category; "other" for one that is unknown."""
    known = KINDS.get(category.lower())
    if known:
        return known
    return "runtime" if category.endswith(("_runtime", "_driver")) else "other"
