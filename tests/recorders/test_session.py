"""`tracelens.recording` in this process, and in one with torch."""

import importlib.util
import subprocess
import sys
import time

import pytest

from tracelens.capture import read_manifest, verify_sources
from tracelens.errors import TracelensError
from tracelens.recorders.session import recording


@pytest.mark.record
def test_the_body_is_recorded_and_its_error_passes_through(tmp_path):
    with pytest.raises(ZeroDivisionError), recording(tmp_path / "run.capture", ["gil"]) as folder:
        time.sleep(0.3)
        1 / 0  # noqa: B018
    manifest = read_manifest(folder)
    (source,) = manifest.sources
    assert (source.kind, manifest.notes, verify_sources(folder, manifest)) == ("gil_probe", [], [])
    window = manifest.processes[0].window
    assert 0.25e9 < window.end_unix_ns - window.start_unix_ns < 1.5e9


@pytest.mark.record
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_is_recorded_if_it_is_imported(tmp_path):
    code = """
import sys, time
import torch, tracelens
with tracelens.recording(sys.argv[1], ["torch", "gil"]):
    with torch.profiler.record_function("body"):
        time.sleep(0.3)
"""
    folder = tmp_path / "run.capture"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(source.kind for source in read_manifest(folder).sources) == ["gil_probe", "kineto"]


def test_an_existing_folder_and_an_unknown_source_are_refused(tmp_path):
    with pytest.raises(TracelensError, match="exists"), recording(tmp_path, ["gil"]):
        pass
    with pytest.raises(TracelensError, match="cannot record"), recording(tmp_path / "x", ["gpu"]):
        pass
