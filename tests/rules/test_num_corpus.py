"""NUM001, NUM002 and MEM001 on recorded traces: rule × trace, expected and got.

`python -m tests.rules.test_num_corpus` prints the table.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest
from tracelens_memory.mem001_bandwidth_stall import detect as mem001
from tracelens_numerics.num001_fp32_dot_runs_as_tf32 import detect as num001
from tracelens_numerics.num002_fp32_gemm_runs_as_tf32 import detect as num002

from tests.rules.gpu_traces import judge
from tracelens import plugins
from tracelens.finding import Finding
from tracelens.opening import OpenOptions, open_trace
from tracelens.rule import Detector
from tracelens.trace import Trace

CORPUS = Path(os.environ.get("TRACELENS_CORPUS") or Path(__file__).parents[3] / "shared" / "traces")
ARTIFACTS = "h200/triton_artifacts"
BYTES, ROOF = {"gemv_kernel": 536_969_216}, {"copy_bytes_per_second": 4.28e12}
DETECTORS = {detector.rule.code: detector for detector in (num001, num002, mem001)}
SCAN, MERGE = ("kda_cp_pre_scan_kernel", 23), ("kda_cp_merge_kernel", 42)
BAD_DOTS = ("ran", (SCAN, MERGE))
SKIPPED, ABSTAINED, SOUND = ("skipped", ()), ("abstained", ()), ("ran", ())

EXPECTED: dict[tuple[str, ...], dict[str, tuple[str, tuple[object, ...]]]] = {
    ("h200/kda_faulty_default_tf32.json.gz", ARTIFACTS): {"NUM001": BAD_DOTS, "NUM002": SOUND},
    ("h200/kda_rff_hook.json.gz", ARTIFACTS): {"NUM001": BAD_DOTS, "NUM002": SOUND},
    ("h200/kda_fixed_tf32x3.json.gz", ARTIFACTS): {"NUM001": SOUND, "NUM002": SOUND},
    ("h200/kda_ref_ieee.json.gz", ARTIFACTS): {"NUM001": SOUND, "NUM002": SOUND},
    ("h200/kda_faulty_default_tf32.json.gz",): {"NUM001": SKIPPED, "NUM002": SOUND},
    ("h200/clean_request.json.gz", ARTIFACTS): {"NUM001": ABSTAINED, "NUM002": SOUND},
    ("h200/clean_request.json.gz",): {"NUM001": SKIPPED, "NUM002": SOUND, "MEM001": ABSTAINED},
    ("h200/torch_matmul_tf32_new_api.json.gz",): {
        "NUM001": SKIPPED,
        "NUM002": ("ran", (("aten::mm", 4), ("aten::bmm", 2), ("aten::cudnn_convolution", 2))),
    },
    ("h200/torch_matmul_ieee_new_api.json.gz",): {"NUM001": SKIPPED, "NUM002": SOUND},
    ("h200/gemv_faulty_strided.json.gz",): {"MEM001": ABSTAINED, "NUM002": SOUND},
    ("h200/gemv_faulty_strided.json.gz", "bytes", "roof"): {"MEM001": ("ran", (("gemv_kernel", 8),))},
    ("h200/gemv_faulty_strided.json.gz", "bytes"): {"MEM001": ABSTAINED},
    ("h200/gemv_faulty_strided.json.gz", "roof"): {"MEM001": ABSTAINED},
    ("h200/gemv_fixed_coalesced.json.gz", "bytes", "roof"): {"MEM001": SOUND},
    ("public/HTA__critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",): {
        "NUM002": ("ran", (("aten::cudnn_convolution", 6),)),
    },
    ("public/HTA__call_stack__backward_thread.json",): {"NUM002": ("ran", (("aten::mm", 1),))},
}
"""Sources and what is told besides → rule → status, and per finding the kernel and line, or the op and launches."""

pytestmark = pytest.mark.corpus


def corpus(*names: str) -> list[str]:
    """Paths in the corpus; skips loudly without one, and fails in CI."""
    if not CORPUS.is_dir():
        says = f"no trace corpus at {CORPUS} (set TRACELENS_CORPUS)"
        if os.environ.get("CI") == "true":
            pytest.fail(says)
        pytest.skip(says)
    return [str(CORPUS / name) for name in names]


@cache
def loaded() -> plugins.Plugins:
    return plugins.load()


def opened(*sources: str) -> Trace:
    """The trace of some corpus files; "bytes" and "roof" are told to it besides."""
    told = OpenOptions(kernel_bytes=BYTES if "bytes" in sources else {}, roofs=ROOF if "roof" in sources else {})
    names = [name for name in sources if name not in ("bytes", "roof")]
    return open_trace(*corpus(*names), plugins=loaded(), options=told)


def got(trace: Trace, detector: Detector) -> tuple[str, tuple[object, ...]]:
    """Status, and per finding what EXPECTED holds of it."""
    status, findings = judge(detector, trace)
    return status.status, tuple(_short(found) for found in findings)


def _short(found: Finding) -> tuple[object, object]:
    if found.rule == "NUM001":
        return found.where.kernel, found.where.line
    return (found.where.op if found.rule == "NUM002" else found.where.kernel), found.occurrences


@pytest.mark.parametrize("sources", EXPECTED, ids=" + ".join)
def test_rule_on_trace(sources: tuple[str, ...]) -> None:
    trace = opened(*sources)
    assert {code: got(trace, DETECTORS[code]) for code in EXPECTED[sources]} == EXPECTED[sources]


def silent() -> list[str]:
    """Traces of which nothing above is expected to fire."""
    if not CORPUS.is_dir():
        return ["h200/clean_request.json.gz"]
    files = [
        f"{folder}/{path.name}"
        for folder in ("h200", "h200x2", "gil_cpu")
        for path in sorted((CORPUS / folder).glob("*.json.gz"))
    ]
    return [name for name in files if (name,) not in EXPECTED]


@pytest.mark.parametrize("name", silent())
def test_silent_on_everything_else(name: str) -> None:
    trace = opened(name)
    for detector in DETECTORS.values():
        assert got(trace, detector)[1] == ()


def test_findings_say_where_and_how_they_know() -> None:
    trace = opened("h200/kda_rff_hook.json.gz", ARTIFACTS)
    scan, merge = judge(num001, trace)[1]
    assert (scan.where.file, scan.where.line_kind, scan.occurrences) == ("/srv/lab/gpu/kern_kda.py", "executing", 2)
    assert scan.where.op == "triton::kda_cp_pre_scan_kernel"
    assert "joined to the compiled variant by kernel hash" in scan.evidence[1].says
    assert [window.end_ns - window.start_ns for window in scan.where.windows] == [132_128, 131_104]
    assert merge.impact.value == pytest.approx(0.01664 + 0.01712)
    by_shape = judge(num001, opened("h200/kda_faulty_default_tf32.json.gz", ARTIFACTS))[1][0]
    assert by_shape.evidence[1].says.endswith("by name + warps + shared memory")
    assert by_shape.fingerprint != merge.fingerprint


def test_gemv_is_priced_in_its_own_milliseconds() -> None:
    (found,) = judge(mem001, opened("h200/gemv_faulty_strided.json.gz", "bytes", "roof"))[1]
    assert found.impact.value / 8 == pytest.approx(1.781 - 0.124, rel=0.01)


@pytest.mark.parametrize("name", ["kda_faulty_default_tf32", "kda_fixed_tf32x3"])
def test_without_registers_and_shared_memory_the_join_is_ambiguous(name: str, tmp_path: Path) -> None:
    (path, artifacts) = corpus(f"h200/{name}.json.gz", ARTIFACTS)
    trace = json.loads(gzip.decompress(Path(path).read_bytes()))
    for event in trace["traceEvents"]:
        for key in ("registers per thread", "shared memory"):
            event.get("args", {}).pop(key, None)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(trace))
    status, found = judge(num001, open_trace(str(bare), artifacts, plugins=loaded()))
    assert (status.status, found, status.number) == ("abstained", [], 5)
    for kernel in ("kda_cp_pre_scan_kernel", "kda_cp_merge_kernel"):
        assert f"kernel {kernel}: ambiguous: 5 compiled variants fit its launches" in (status.why or "")


def test_one_folder_with_trace_artifacts_and_a_failed_accuracy_test_is_observed(tmp_path: Path) -> None:
    (trace, artifacts) = corpus("h200/kda_faulty_default_tf32.json.gz", ARTIFACTS)
    shutil.copy(trace, tmp_path / "trace.json.gz")
    for path in Path(artifacts).glob("*.[tj]*"):
        shutil.copy(path, tmp_path / path.name)
    error = {"name": "final state", "metric": "relative_error", "value": 0.0829, "unit": "1", "reference": 0.0}
    kernels = {"tolerance": 1e-3, "params": {"kernels": ["kda_cp_pre_scan_kernel"], "precision": "tf32"}}
    (tmp_path / "measurements.jsonl").write_text(json.dumps({**error, **kernels}) + "\n")
    scan, merge = judge(num001, open_trace(str(tmp_path), plugins=loaded()))[1]
    assert (scan.severity, scan.confidence, merge.severity, merge.confidence) == (
        "error",
        "observed",
        "warning",
        "inferred",
    )
    assert scan.message.endswith("launches: 2; measured relative_error 0.0829, tolerance 0.001")


def table() -> str:
    """Rule × trace: expected and got, one line each; a wrong line starts with !."""
    lines = []
    for sources, rules in EXPECTED.items():
        trace = opened(*sources)
        for code, expected in rules.items():
            found = got(trace, DETECTORS[code])
            mark = " " if found == expected else "!"
            lines.append(f"{mark} {code}  {' + '.join(sources)}\n      expected {expected}\n      got      {found}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
