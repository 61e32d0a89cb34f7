"""Sources beyond torch, probe and py-spy: kernels, device, measurements and the program's own events, recorded live."""

import importlib.util
import json
import os
import sys
import types
from collections import namedtuple
from pathlib import Path

import pytest

from tracelens import opening, plugins
from tracelens.capture import read_manifest, verify_sources
from tracelens.errors import TracelensError
from tracelens.recorders import device, events, measurements, triton
from tracelens.recorders.inside import artifacts
from tracelens.recorders.inside import device as inside_device
from tracelens.recorders.together import record

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TTIR = "module {\n  tt.func public @kern() {\n    tt.return\n  }\n}\n"


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return [sys.executable, str(path)]


TAKES_PART = """
import importlib.util, json, os, time
spec = importlib.util.spec_from_file_location("events", os.environ["TRACELENS_EVENTS"])
events = importlib.util.module_from_spec(spec)
spec.loader.exec_module(events)
with open(os.environ["TRACELENS_MEASUREMENTS"], "a") as file:
    row = {"name": "gsm8k", "metric": "accuracy", "value": 0.8, "unit": "1", "reference": 0.9}
    file.write(json.dumps(row) + "\\n")
for index in range(120):
    with events.slice("step", request=f"r{index}"):
        time.sleep(0.01)
"""


@pytest.mark.record
def test_a_program_takes_part_in_its_recording(tmp_path):
    bench = tmp_path / "bench.json"
    stats = {"mean": 0.25, "rounds": 5}
    bench.write_text(json.dumps({"machine_info": {}, "commit_info": {}, "benchmarks": [
        {"name": "test_gemv", "fullname": "test_gemv", "stats": stats}]}))  # fmt: skip
    recording = record(
        program(tmp_path, TAKES_PART), tmp_path / "a.capture", ("gil", "events", "measurements"), seconds=0.5, delay=0,
        results=[bench, tmp_path / "absent.json"],
    )  # fmt: skip
    manifest = read_manifest(recording.folder)
    assert sorted(source.kind for source in manifest.sources) == [
        "gil_probe",
        "measurements",
        "measurements",
        "perfetto",
    ]
    assert verify_sources(recording.folder, manifest) == []
    assert [note.says for note in manifest.notes] == [
        f"--measurements {tmp_path / 'absent.json'}: no such file or directory"
    ]
    trace = opening.open_trace(str(recording.folder), plugins=plugins.load())
    assert trace.slices["name"].cast(str).unique().to_list() == ["step"]
    assert trace.slices["request"][3] == "r3"
    assert trace.slices.height == 120
    values = {(row["name"], row["metric"]): row["value"] for row in trace.measurements.iter_rows(named=True)}
    assert values == {("gsm8k", "accuracy"): 0.8, ("test_gemv", "mean"): 0.25, ("test_gemv", "rounds"): 5.0}
    window = manifest.processes[0].window
    first = trace.origin_unix_ns + trace.slices["start_ns"].min()
    assert abs(window.start_unix_ns - first) < 2e9


@pytest.mark.record
def test_sources_that_are_not_asked_for_tell_the_program_nothing(tmp_path):
    command = program(
        tmp_path, "import os; assert not {'TRACELENS_EVENTS', 'TRACELENS_MEASUREMENTS'} & set(os.environ)"
    )
    assert record(command, tmp_path / "a.capture", ["gil"]).exit_code == 0


def test_a_folder_is_no_measurement_file(tmp_path):
    with pytest.raises(TracelensError, match="a folder"):
        record(["true"], tmp_path / "a.capture", ["measurements"], results=[tmp_path])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.record
def test_the_session_offers_the_same(tmp_path):
    from tracelens import events as own
    from tracelens.recorders.session import recording

    with recording(tmp_path / "a.capture", ["gil", "events", "measurements"]) as folder:
        with own.slice("body"):
            pass
        with open(os.environ[measurements.VARIABLE], "a", encoding="utf-8") as file:
            file.write('{"name": "n", "metric": "m", "value": 1, "unit": "s"}\n')
    assert measurements.VARIABLE not in os.environ
    assert not own.recording()
    trace = opening.open_trace(str(folder), plugins=plugins.load())
    assert trace.slices["name"].to_list() == ["body"]
    assert trace.measurements.height == 1


COMPILES = """
import sys, time
from tracelens_kernels.compile import compile_kda
time.sleep(0.5)
compile_kda("tf32", dim=32)
time.sleep(0.5)
"""


@pytest.mark.record
@needs_triton
def test_kernels_are_recorded_whether_compiled_or_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    kernels = []
    for name in ("compiled", "cached"):
        folder = tmp_path / f"{name}.capture"
        recording = record(program(tmp_path, COMPILES), folder, ["triton"], seconds=0.2, delay=0)
        assert recording.exit_code == 0
        trace = opening.open_trace(str(folder), plugins=plugins.load())
        kernels.append(trace.artifacts.drop("artifact_id").rows(named=True))
        assert set(trace.dots["precision"]) == {"tf32", "tf32x3"}
        assert trace.dots["file"].drop_nulls()[0].endswith("triton.py")
    compiled, cached = kernels
    assert compiled == cached
    assert {row["target"] for row in compiled} == {"cuda:90"}
    assert len({row["hash"] for row in compiled}) == len(compiled) == 3


@pytest.fixture
def fake_triton(monkeypatch):
    """A Triton with one kernel compiled before anybody listened."""

    class JITFunction:
        pass

    metadata = namedtuple("Metadata", "name hash target num_warps shared")
    target = types.SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    early = types.SimpleNamespace(
        metadata=metadata("kern", "ab" * 32, target, 4, 1024), asm={"ttir": TTIR}, n_regs=40, n_spills=0
    )
    function = JITFunction()
    function.device_caches = {0: ({"key": early}, {}, None, None, None)}
    compilation = types.SimpleNamespace(listener=None)
    package = types.SimpleNamespace(knobs=types.SimpleNamespace(compilation=compilation), __version__="3.6.0")
    monkeypatch.setitem(sys.modules, "triton", package)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", types.SimpleNamespace(JITFunction=JITFunction))
    yield types.SimpleNamespace(compilation=compilation, package=package, function=function)


def test_a_kernel_of_before_the_listener_is_swept_up_with_its_registers(fake_triton, tmp_path):
    kept = artifacts.Artifacts(str(tmp_path / "triton"))
    kept.look()
    kept.sweep()
    assert (kept.installed, kept.error) == (True, None)
    assert [path.name for path in triton.artifacts(tmp_path)] == [f"kern.{'ab' * 8}.json", f"kern.{'ab' * 8}.ttir"]
    trace = opening.open_trace(str(tmp_path / "triton" / f"kern.{'ab' * 8}.ttir"), plugins=plugins.load())
    row = trace.artifacts.row(0, named=True)
    assert (row["kernel"], row["hash"], row["target"]) == ("kern", "ab" * 32, "cuda:90")
    assert (row["warps"], row["shared_bytes"], row["registers"], row["spills"]) == (4, 1024, 40, 0)


def test_the_listener_passes_on_and_never_breaks_a_compilation(fake_triton, tmp_path):
    told = []
    fake_triton.compilation.listener = lambda **said: told.append(said) or "theirs"
    kept = artifacts.Artifacts(str(tmp_path / "triton"))
    kept.look()
    (tmp_path / "k.ttir").write_text(TTIR)
    metadata = {"name": "late/../x", "hash": "cd" * 32, "target": {"backend": "hip", "arch": "gfx942"}, "secret": "s"}
    said = {"src": None, "times": None, "cache_hit": True, "metadata_group": {"k.ttir": str(tmp_path / "k.ttir")}}
    assert fake_triton.compilation.listener(metadata=metadata, **said) == "theirs"
    assert fake_triton.compilation.listener(metadata={}, **said) == "theirs"
    assert len(told) == 2
    files = triton.artifacts(tmp_path)
    assert [path.name for path in files] == [f"late____x.{'cd' * 8}.json", f"late____x.{'cd' * 8}.ttir"]
    assert "secret" not in files[0].read_text()


def test_a_triton_without_listener_is_said(fake_triton, tmp_path):
    del fake_triton.package.knobs
    kept = artifacts.Artifacts(str(tmp_path))
    kept.look()
    assert "3.6.0 has no compilation listener" in kept.error


def test_without_cuda_the_device_is_unknown_and_nothing_is_loaded():
    if "libcuda.so" in Path("/proc/self/maps").read_text():
        pytest.skip("CUDA is in use in this process")
    assert inside_device.facts() == ({}, {})
    assert "libcuda.so" not in Path("/proc/self/maps").read_text()


def test_several_processes_say_one_device_and_the_best_roof():
    sidecars = [
        {"device": {}, "roofs": {}},
        {"device": {"name": "H200"}, "roofs": {"copy_bytes_per_second": 4.1e12}},
        {"device": {"name": "other"}, "roofs": {"copy_bytes_per_second": 4.2e12, "bad": "x", "nan": float("nan")}},
        {"device": 3, "roofs": []},
    ]
    assert device.merged(sidecars) == ({"name": "H200"}, {"copy_bytes_per_second": 4.2e12})


@pytest.mark.parametrize("recorder", [triton.RECORDER, device.RECORDER, events.RECORDER, measurements.RECORDER])
def test_each_says_whether_it_is_here_and_why_not(recorder):
    here, why, cure = recorder.available()
    assert here or (why and cure)
