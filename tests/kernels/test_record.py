"""Recording: what can be tested without a CUDA device."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tracelens_kernels import dump, gemv, record
from tracelens_kernels.__main__ import main

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tests the refusal without a CUDA device")


@needs_no_gpu
@pytest.mark.parametrize("command", [("record",), ("record-pairs",), ("record-arm", "kda", "bad")])
def test_without_a_gpu_it_refuses_in_one_line(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"tracelens_kernels: error: {command[0]} needs a CUDA device\n"
    assert list(tmp_path.iterdir()) == []


def test_profile_writes_a_reproducible_trace_without_paths(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    record.profile(lambda: torch.ones(8) @ torch.ones(8), "step", path)
    raw = path.read_bytes()
    assert raw[4:8] == b"\0\0\0\0"
    trace = json.loads(gzip.decompress(raw))
    assert "traceName" not in trace
    assert str(tmp_path) not in json.dumps(trace)
    spans = [event for event in trace["traceEvents"] if event.get("name") == "step"]
    assert len(spans) == record.STEPS


def test_relative_error() -> None:
    assert record.relative_error(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0], dtype=torch.float64)) == 1.25


def test_bytes_of_a_product() -> None:
    assert gemv.bytes_moved(torch.empty(16384, 8192, device="meta")) == 536_969_216


def test_measurements_are_lines_with_the_expected_keys() -> None:
    arm = record.Arm(lambda: None, "span")
    arm.measure("copy", "copy_bytes_per_second", 4.28e12, "B/s")
    arm.measure("state", "relative_error", 0.08, "1", reference=0.0, tolerance=1e-3, params={"kernels": ["k"]})
    assert arm.measurements == [
        {"name": "copy", "metric": "copy_bytes_per_second", "value": 4.28e12, "unit": "B/s"},
        {
            "name": "state", "metric": "relative_error", "value": 0.08, "unit": "1", "reference": 0.0,
            "tolerance": 1e-3, "params": {"kernels": ["k"]},
        },
    ]  # fmt: skip


def test_the_libraries_arm_measures_its_error() -> None:
    before = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    try:
        arm = record.matmul(False, device="cpu", size=64)
    finally:
        torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision = before
    assert [each["name"] for each in arm.measurements] == ["aten::mm", "aten::conv2d"]
    assert all(0 < each["value"] < 1e-5 for each in arm.measurements)
    assert [tuple(each.shape) for each in arm.work()] == [(64, 64), (32, 64), (32, 8, 8), (8, 1024, 32, 32)]


def test_dump_keeps_registers_and_drops_machine_paths(tmp_path: Path) -> None:
    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    metadata = SimpleNamespace(
        hash="ab" * 32, name="k", num_warps=4, shared=0, target=target, extern_libs=[("x", "/y")]
    )
    ttir = f'#loc = loc("{dump.PACKAGE_ROOT}/tracelens_kernels/gemv.py":14:0)\n'
    compiled = SimpleNamespace(metadata=metadata, asm={"ttir": ttir}, n_regs=111, n_spills=0)
    path = dump.write(compiled, tmp_path)
    assert path.name == f"k__{'ab' * 6}.ttir"
    assert path.read_text() == '#loc = loc("tracelens_kernels/gemv.py":14:0)\n'
    assert json.loads(path.with_suffix(".json").read_text()) == {
        "hash": "ab" * 32, "name": "k", "num_warps": 4, "shared": 0, "n_regs": 111, "n_spills": 0,
        "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
    }  # fmt: skip


def test_the_package_imports_neither_tracelens_nor_serving_nor_torch_early() -> None:
    code = (
        "import sys, tracelens_kernels\n"
        "assert not {'torch', 'triton'} & set(sys.modules)\n"
        "import tracelens_kernels.kda.triton, tracelens_kernels.compile, tracelens_kernels.record\n"
        "assert not {'tracelens', 'tracelens_serving', 'polars', 'msgspec'} & set(sys.modules)\n"
    )
    paths = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
    done = subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
