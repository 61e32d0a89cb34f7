"""The bootstrap in child interpreters: standard library only, chained, silent, and harmless whatever happens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracelens.recorders

RECORDERS = Path(tracelens.recorders.__file__).parent
BOOTSTRAP = RECORDERS / "bootstrap"


def run(code, *flags, path=(), **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TRACELENS"))}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, [BOOTSTRAP, *path]))} | variables
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def control(tmp_path, **changes):
    folder = tmp_path / ".control"
    folder.mkdir()
    known = {"folder": str(tmp_path), "control": str(folder), "sources": ["gil"], "with_stack": True}
    known |= {"cuda_grace_s": 0, "tracer": os.getpid()}
    path = folder / "settings.json"
    path.write_text(json.dumps(known | changes))
    return path


def test_what_runs_inside_needs_only_the_standard_library():
    code = f"""
import sys
before = set(sys.modules)
sys.path.insert(0, {str(RECORDERS)!r})
import inside.agent
foreign = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print(sorted(foreign))
"""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['inside']"


def test_what_runs_inside_parses_as_python_3_10():
    import ast

    for path in [*RECORDERS.glob("inside/*.py"), *RECORDERS.glob("bootstrap/*.py")]:
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))


def test_without_settings_it_does_nothing():
    done = run("import sys; print('threading' in sys.modules, '_tracelens_inside' in sys.modules)")
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")


def test_a_sitecustomize_further_down_runs_in_its_place(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs', __name__, __file__)\n")
    done = run("import sitecustomize; print(sitecustomize.__file__)", path=[tmp_path])
    theirs = str(tmp_path / "sitecustomize.py")
    assert done.stdout.splitlines() == [f"theirs sitecustomize {theirs}", theirs]


def test_an_error_in_a_sitecustomize_further_down_reads_as_without_us(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    done = run("print('runs')", path=[tmp_path])
    assert done.stdout == "runs\n"
    assert "Error in sitecustomize" in done.stderr
    assert "theirs" in done.stderr


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"folder": 3}'])
def test_bad_settings_never_break_or_disturb_the_program(tmp_path, content):
    folder = tmp_path / ".control"
    folder.mkdir()
    if content is not None:
        (folder / "settings.json").write_text(content)
    done = run("import time; time.sleep(0.5); print('runs')", TRACELENS_RECORD=str(folder / "settings.json"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")


def test_a_broken_bootstrap_confesses_in_the_sidecar(tmp_path):
    copied = tmp_path / "recorders" / "bootstrap"
    copied.mkdir(parents=True)
    (copied / "sitecustomize.py").write_text((BOOTSTRAP / "sitecustomize.py").read_text())
    settings = control(tmp_path)
    done = run("print('runs')", TRACELENS_RECORD=str(settings), PYTHONPATH=str(copied))
    assert (done.stdout, done.stderr) == ("runs\n", "")
    (sidecar,) = tmp_path.glob("process.*.json")
    assert "bootstrap: FileNotFoundError" in json.loads(sidecar.read_text())["errors"][0]


def test_a_short_process_leaves_nothing(tmp_path):
    done = run("print('runs')", TRACELENS_RECORD=str(control(tmp_path)))
    assert (done.stdout, done.stderr) == ("runs\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [".control"]


def test_a_longer_one_says_who_it_is_and_is_not_kept_waiting(tmp_path):
    done = run("import time; time.sleep(0.6)", TRACELENS_RECORD=str(control(tmp_path)), RANK="3", WORLD_SIZE="x")
    assert (done.returncode, done.stderr) == (0, "")
    (sidecar,) = tmp_path.glob("process.*.json")
    known = json.loads(sidecar.read_text())
    assert (known["state"], known["rank"], known["world_size"]) == ("done", 3, None)
    assert known["gil"] == {"build_disabled": False, "enabled": True}
    assert abs(known["anchors"][0]["halfwidth_ns"]) < 1_000_000


def test_a_process_whose_recording_is_over_goes_on(tmp_path):
    code = """
import shutil, threading, time
time.sleep(0.5); shutil.rmtree({!r}); time.sleep(0.3)
print(len(threading.enumerate()))
"""
    settings = control(tmp_path)
    done = run(code.format(str(settings.parent)), TRACELENS_RECORD=str(settings))
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_capture_folder_that_vanishes_is_survived(tmp_path):
    code = "import shutil, time; time.sleep(0.5); shutil.rmtree({!r}); time.sleep(0.3); print('runs')"
    capture = tmp_path / "a.capture"
    capture.mkdir()
    done = run(code.format(str(capture)), TRACELENS_RECORD=str(control(capture)))
    assert (done.stdout, done.stderr) == ("runs\n", "")
