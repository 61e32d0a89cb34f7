"""The wheel holds our import packages and the native source, and nothing that could clash."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    build = pytest.importorskip("build", reason="building a wheel needs the `build` package")
    del build
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_is_pure_and_has_only_our_packages(wheel):
    names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {
        "tracelens", "tracelens_gil", "tracelens_numerics", "tracelens_memory",
        "tracelens_kernels", "tracelens_serving",
    }  # fmt: skip
    assert not [name for name in names if name.endswith((".so", ".o", ".pyd"))]
    assert [name for name in names if name.startswith("tracelens_serving/") and name.endswith(".c")]
    assert "tracelens/tui/tracelens.tcss" in names
    assert any(name.startswith("tracelens/recorders/bootstrap/") for name in names)


def test_the_base_install_takes_no_torch(wheel):
    metadata = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    base = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert base
    assert not [line for line in base if any(heavy in line for heavy in ("torch", "triton", "py-spy", "numba"))]
