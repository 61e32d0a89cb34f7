"""Which compiled variant of a Triton kernel a launch ran: artifacts joined to launches.

By the compiler's hash where the recording carries it (`kernel_hash` in the args of the op that launched the kernel),
else by what both sides know of name, warps, shared memory and registers. Several variants can fit one launch; all are
returned and the rule decides whether the difference matters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import polars as pl

from tracelens.analyses.attribution import attribute
from tracelens.trace import Trace

WARP_SIZES = {"hip": 64}
"""Threads of a warp by backend; 32 elsewhere."""
FIRST_TF32_ARCH = 80
"""CUDA architectures before sm_80 have no TF32: there the attribute changes nothing."""
_TRITON_HASH = re.compile(r"[0-9a-f]{12,64}")
"""Triton's hash or a prefix of ≥ 12 digits (2^48: no accident). Inductor's `kernel_hash` is base 32 of source text."""


Dot = tuple[str | None, int | None, str]
"""File, line and operand types of one tl.dot."""


@dataclass(frozen=True)
class Variant:
    """One compiled artifact and the source positions of its dots that multiply fp32 operands as TF32."""

    artifact_id: int
    kernel: str
    hash: str | None
    warp_threads: int | None
    shared_bytes: int | None
    registers: int | None
    tf32_dots: tuple[Dot, ...]


@dataclass
class Launched:
    """Launches that look alike: same kernel, threads, shared memory, registers, and hash if known."""

    kernel: str
    hash: str | None
    threads: int | None
    shared_bytes: int | None
    registers: int | None
    slices: pl.DataFrame
    """slice_id, track_id, start_ns, dur_ns, step_id, op"""
    candidates: list[Variant] = field(default_factory=list)

    @property
    def look(self) -> tuple[str | None, int | None, int | None, int | None]:
        """Hash, threads a block, shared memory a block, registers a thread."""
        return self.hash, self.threads, self.shared_bytes, self.registers

    @property
    def joined_by(self) -> str:
        """What the join rests on, in words."""
        if self.hash is not None:
            return "kernel hash"
        sides = {
            "warps": (self.threads, [each.warp_threads for each in self.candidates]),
            "shared memory": (self.shared_bytes, [each.shared_bytes for each in self.candidates]),
            "registers": (self.registers, [each.registers for each in self.candidates]),
        }
        known = [name for name, (ours, theirs) in sides.items() if ours is not None and None not in theirs]
        return " + ".join(["name", *known])


def variants(trace: Trace) -> list[Variant]:
    """The distinct compiled kernels of a trace; one artifact read twice (same hash) counts once."""
    tf32 = trace.dots.filter(
        (pl.col("precision") == "tf32") & (pl.col("a_dtype") == "f32") & (pl.col("b_dtype") == "f32")
    )
    places: dict[int, list[Dot]] = {}
    for artifact_id, file, line, a, b in tf32.select("artifact_id", "file", "line", "a_dtype", "b_dtype").iter_rows():
        places.setdefault(artifact_id, []).append((file, line, f"{a}*{b}"))
    found: dict[object, Variant] = {}
    for row in trace.artifacts.iter_rows(named=True):
        backend = (row["target"] or "").partition(":")[0]
        warps = row["warps"]
        key = (row["kernel"], row["hash"]) if row["hash"] else row["artifact_id"]
        found.setdefault(
            key,
            Variant(
                artifact_id=row["artifact_id"],
                kernel=row["kernel"],
                hash=row["hash"],
                warp_threads=warps * WARP_SIZES.get(backend, 32) if warps is not None else None,
                shared_bytes=row["shared_bytes"],
                registers=row["registers"],
                tf32_dots=tuple(dict.fromkeys(places.get(row["artifact_id"], ()))) if _has_tf32(row["target"]) else (),
            ),
        )
    return list(found.values())


def _has_tf32(target: str | None) -> bool:
    backend, _, arch = (target or "").partition(":")
    return not (backend == "cuda" and arch.isdigit() and int(arch) < FIRST_TF32_ARCH)


def launched(trace: Trace, compiled: list[Variant]) -> list[Launched]:
    """The launches of kernels that have artifacts, grouped by what they look like, each with the variants that fit."""
    names = sorted({variant.kernel for variant in compiled})
    kernels = (
        trace.select("kernel")
        .with_columns(pl.col("name").cast(pl.String))
        .filter(pl.col("name").is_in(names))
        .join(trace.launches, on="slice_id", how="left")
        .with_columns(threads=pl.col("block_x") * pl.col("block_y") * pl.col("block_z"))
    )
    kernels = kernels.join(attribute(trace).select("slice_id", "op_id", "op"), on="slice_id", how="left")
    kernels = kernels.join(_hashes(trace, kernels["op_id"]), on="op_id", how="left")
    groups = []
    for key, rows in kernels.group_by("name", "hash", "threads", "shared_bytes", "registers", maintain_order=True):
        kernel, digest, threads, shared_bytes, registers = key
        slices = rows.select("slice_id", "track_id", "start_ns", "dur_ns", "step_id", "op")
        group = Launched(kernel, digest, threads, shared_bytes, registers, slices)
        group.candidates = [variant for variant in compiled if _fits(variant, group)]
        groups.append(group)
    return groups


def _fits(variant: Variant, launch: Launched) -> bool:
    if variant.kernel != launch.kernel:
        return False
    if launch.hash is not None and variant.hash is not None:
        return variant.hash.startswith(launch.hash)
    pairs = (
        (variant.warp_threads, launch.threads),
        (variant.shared_bytes, launch.shared_bytes),
        (variant.registers, launch.registers),
    )
    return all(ours is None or theirs is None or ours == theirs for ours, theirs in pairs)


def _hashes(trace: Trace, ops: pl.Series) -> pl.DataFrame:
    """op_id → hash, for the ops whose args name a Triton hash."""
    args = trace.args(ops.drop_nulls().unique().to_list())
    named = {op: value.get("kernel_hash") for op, value in args.items()}
    found = {op: value for op, value in named.items() if isinstance(value, str) and _TRITON_HASH.fullmatch(value)}
    return pl.DataFrame({"op_id": list(found), "hash": list(found.values())}, {"op_id": pl.UInt32, "hash": pl.String})
