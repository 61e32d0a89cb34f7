"""Compile the KDA kernels for a GPU that need not be there, to see what precision their dots get.

Triton and the ptxas in its wheel suffice. Nothing is launched, so nothing is known of time or result.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tracelens_kernels import dump
from tracelens_kernels.kda import triton as kda


def compile_kda(precision: str, *, arch: int = 90, dim: int = 128, chunk: int = 64) -> list[Any]:
    """The three compiled stages for K = V = `dim` on CUDA `arch`, with the chain's dots at `precision`."""
    tile = {"K": dim, "V": dim, "BK": max(16, triton.next_power_of_2(dim)), "BX": kda.COLUMNS}
    stages = (
        (kda.kda_cp_block_reduce_kernel, {**tile, "PRECISION": precision}),
        (kda.kda_cp_merge_kernel, {**tile, "PRECISION": precision}),
        (kda.kda_cp_block_scan_kernel, {**tile, "C": chunk}),
    )
    return [_compile(kernel, constants, arch) for kernel, constants in stages]


def _compile(kernel: Any, constants: dict[str, Any], arch: int) -> Any:
    """One kernel: lower-case arguments are fp32 tensors, or 32-bit counts if named chunks or blocks."""
    counts = ("chunks", "chunks_per_block", "blocks")
    signature = {
        name: "constexpr" if name in constants else "i32" if name in counts else "*fp32" for name in kernel.arg_names
    }
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if signature[name] == "*fp32"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(kda.OPTIONS))


def compile_to(folder: Path, precisions: Sequence[str], **choices: int) -> list[Path]:
    """Compile at every precision and dump; returns the .ttir paths. The block scan is the same in all and kept once."""
    paths = [dump.write(compiled, folder) for each in precisions for compiled in compile_kda(each, **choices)]
    return list(dict.fromkeys(paths))
