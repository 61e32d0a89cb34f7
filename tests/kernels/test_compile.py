"""Compile for sm_90 without a GPU; our reader must find exactly the precision asked for, at the lines of the source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tracelens_kernels
from tracelens_kernels.__main__ import main

from tracelens.contracts import Source
from tracelens.health import Health
from tracelens.readers.triton import READERS
from tracelens.trace import Trace

CHAIN = ("kda_cp_block_reduce_kernel", "kda_cp_merge_kernel")
PRECISIONS = ("tf32", "tf32x3", "ieee")


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tracelens_kernels", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Trace]]:
    """Precision asked for → the traces of its artifacts, by kernel name."""
    folder = tmp_path_factory.mktemp("compiled")
    asked = [word for each in PRECISIONS for word in ("--precision", each)]
    done = run("compile", "--dim", "16", *asked, "-o", str(folder / "dump"), folder=folder)
    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(written) == sorted((folder / "dump").glob("*.ttir"))
    found: dict[str, list[Trace]] = {each: [] for each in PRECISIONS}
    reader = READERS[0]
    for path in written:
        health = Health()
        source = Source(path.name, path)
        assert reader.sniff(source.open(health).head(), path.name) > 0
        trace = reader.read(source, health)
        assert len(health) == 0
        kernel = trace.artifacts["kernel"][0]
        (precision,) = trace.dots["precision"].unique()
        if kernel in CHAIN:
            found[precision].append(trace)
        else:
            assert (kernel, precision, trace.dots.height) == ("kda_cp_block_scan_kernel", "tf32x3", 4)
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_and_place_of_each_dot(dumped: dict[str, list[Trace]], precision: str) -> None:
    traces = sorted(dumped[precision], key=lambda trace: str(trace.artifacts["kernel"][0]))
    assert tuple(trace.artifacts["kernel"][0] for trace in traces) == CHAIN
    root = Path(tracelens_kernels.__file__).parents[1]
    for trace in traces:
        (row,) = trace.dots.rows(named=True)
        assert (row["precision"], row["a_dtype"], row["b_dtype"], row["acc_dtype"]) == (precision, "f32", "f32", "f32")
        assert row["file"] == "tracelens_kernels/kda/triton.py"
        source = (root / row["file"]).read_text(encoding="utf-8").splitlines()
        assert "tl.dot(m, " in source[row["line"] - 1]
        assert "input_precision=PRECISION" in source[row["line"] - 1]


def test_variants_can_be_told_apart(dumped: dict[str, list[Trace]]) -> None:
    artifacts = [trace.artifacts.row(0, named=True) for traces in dumped.values() for trace in traces]
    assert len({row["hash"] for row in artifacts}) == 6
    assert {(row["target"], row["warps"]) for row in artifacts} == {("cuda:90", 4)}
    assert all(row["shared_bytes"] > 0 for row in artifacts)


def test_unknown_precision_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["compile", "--precision", "tf33", "-o", str(tmp_path)])
    assert stopped.value.code == 2
    assert "invalid choice: 'tf33'" in capsys.readouterr().err
