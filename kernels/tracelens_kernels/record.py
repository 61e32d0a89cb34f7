"""Record pairs of runs on a CUDA GPU that differ in one thing: traces, compiled kernels and ground truth.

Each arm runs in a process of its own (after one profiling session CUPTI stays attached and slows what follows) and
leaves a folder: `trace.json.gz` (Kineto), TTIR and metadata of the Triton kernels it launched, and `measurements.jsonl`
with errors against float64 and times by CUDA events, taken without the profiler.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tracelens_kernels import dump

STEPS = 2
TOLERANCE = 1e-3
"""Relative error of a final state that a model in bf16 would not notice."""


@dataclass
class Arm:
    """One side of a pair: what to run and profile, what was measured, which kernels it compiled."""

    work: Callable[[], Any]
    span: str
    measurements: list[dict[str, Any]] = field(default_factory=list)
    compiled: list[Any] = field(default_factory=list)

    def measure(self, name: str, metric: str, value: float, unit: str, **more: Any) -> None:
        """Note one measurement."""
        self.measurements.append({"name": name, "metric": metric, "value": value, "unit": unit, **more})


def kda(bad: bool, device: str = "cuda", tokens: int = 16384, heads: int = 4, dim: int = 128) -> Arm:
    """KDA context-parallel chain on long-memory input: dots of the chain at tf32 (bad) or tf32x3."""
    from tracelens_kernels.kda import chunks, inputs, reference
    from tracelens_kernels.kda import triton as kernels

    precision, blocks = "tf32" if bad else "tf32x3", 8
    exact = chunks.cut(inputs.long_memory(heads, tokens, dim, dim).to(device), 64)
    initial = torch.randn(heads, dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    expected = reference.context_parallel(exact, initial, blocks)[1][:, -1]
    factors, start = exact.float(), initial.float()
    _, states, compiled = kernels.launch(factors, start, blocks, precision)
    arm = Arm(
        lambda: kernels.context_parallel(factors, start, blocks, precision),
        "kda_cp",
        compiled=[each for each in compiled if each is not None],
    )
    chain = ["kda_cp_block_reduce_kernel", "kda_cp_merge_kernel"]
    params = {"kernels": chain, "precision": precision, "tokens": tokens, "long_memory": True}
    error = relative_error(states[:, -1], expected)
    arm.measure("kda_cp final state", "relative_error", error, "1", reference=0.0, tolerance=TOLERANCE, params=params)
    arm.measure("kda_cp input", "transition_norm", reference.remembered(exact, blocks), "1", params=params)
    return arm


def gemv(bad: bool, device: str = "cuda", rows: int = 16384, columns: int = 8192) -> Arm:
    """y = W x of 537 MB with W column-major (bad) or row-major; same kernel, grid and bytes."""
    from tracelens_kernels import gemv as kernels

    w = torch.randn(rows, columns, device=device)
    if bad:
        w = w.t().contiguous().t()
    x = torch.randn(columns, device=device)
    arm = Arm(lambda: kernels.gemv(w, x), "gemv")
    error = relative_error(kernels.gemv(w, x), w.double() @ x.double())
    arm.measure("gemv", "relative_error", error, "1", reference=0.0, tolerance=1e-5)
    arm.measure("gemv_kernel", "bytes", kernels.bytes_moved(w), "B")
    return arm


def matmul(bad: bool, device: str = "cuda", size: int = 4096) -> Arm:
    """fp32 product, skinny linear, batched product and patch convolution: libraries at tf32 (bad) or ieee."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if bad else "ieee"
    torch.backends.cudnn.conv.fp32_precision = "tf32" if bad else "ieee"
    a, b, skinny = (torch.randn(rows, size, device=device) for rows in (size, size, 32))
    left, right = torch.randn(32, size // 8, 128, device=device), torch.randn(32, 128, size // 8, device=device)
    images, patches = torch.randn(8, 3, 448, 448, device=device), torch.randn(1024, 3, 14, 14, device=device)

    def work() -> tuple[Tensor, ...]:
        return (
            a @ b,
            torch.nn.functional.linear(skinny, b),
            torch.bmm(left, right),
            torch.nn.functional.conv2d(images, patches, stride=14),
        )

    arm = Arm(work, "fp32_gemm")
    product, _, _, convolved = work()
    convolution = torch.nn.functional.conv2d(images.double(), patches.double(), stride=14)
    for op, result, expected in (
        ("aten::mm", product, a.double() @ b.double()),
        ("aten::conv2d", convolved, convolution),
    ):
        error = relative_error(result, expected)
        arm.measure(op, "relative_error", error, "1", reference=0.0, tolerance=1e-5, params={"op": op})
    return arm


CASES: dict[str, tuple[str, Callable[[bool], Arm]]] = {
    "kda": ("NUM001", kda),
    "gemv": ("MEM001", gemv),
    "matmul": ("NUM002", matmul),
}
"""Case → the rule whose samples it records, and its arms."""


def record_arm(case: str, bad: bool, folder: Path) -> list[Path]:
    """Run one arm on the CUDA device and write its folder; returns the files."""
    arm = CASES[case][1](bad)
    arm.measure(arm.span, "kernel_ms", cuda_ms(arm.work), "ms")
    arm.measure("copy", "copy_bytes_per_second", copy_roof(), "B/s")
    folder.mkdir(parents=True, exist_ok=True)
    for compiled in arm.compiled:
        dump.write(compiled, folder)
    lines = "".join(json.dumps(each, sort_keys=True) + "\n" for each in arm.measurements)
    (folder / "measurements.jsonl").write_text(lines, encoding="utf-8")
    profile(arm.work, arm.span, folder / "trace.json.gz")
    return sorted(folder.iterdir())


def profile(work: Callable[[], Any], span: str, path: Path) -> None:
    """Write a Kineto trace of `STEPS` calls of `work`, each in a span; call `work` before, so that nothing compiles."""
    from torch.profiler import ProfilerActivity, record_function

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            with record_function(span):
                work()
            if gpu:
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        trace = json.loads(plain.read_text(encoding="utf-8"))
    trace.pop("traceName", None)  # a path of this machine
    path.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0))


def cuda_ms(work: Callable[[], Any], repeats: int = 20) -> float:
    """Median milliseconds of one call by CUDA events, after three calls that do not count."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def copy_roof(size: int = 1 << 30) -> float:
    """Bytes per second, read plus written, of a device copy."""
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * size / (cuda_ms(lambda: target.copy_(source)) / 1e3)


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of the expected value, in float64."""
    return float((result.double() - expected).norm() / expected.norm())


def provenance() -> dict[str, str]:
    """What recorded this: versions and device."""
    import triton

    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "device": torch.cuda.get_device_name(),
    }
