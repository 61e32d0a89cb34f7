"""Finds the stack in the checkout, and a compiler; everything a test builds goes to a cache of its own."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "serving"
if str(SERVING) not in sys.path:
    sys.path.insert(0, str(SERVING))


@pytest.fixture(scope="session")
def compiler() -> str:
    name = (shlex.split(os.environ.get("CC", "")) or ["cc"])[0]
    if not shutil.which(name):
        pytest.skip(f"needs a C compiler, and there is no '{name}'")
    return name


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that can import the stack, with a native cache of this test session."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SERVING), os.environ.get("PYTHONPATH")])),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="session")
def deep_ep(compiler, environment):
    from tracelens_serving import native

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
        return native.load()


@pytest.fixture
def python(environment):
    """Run Python with arguments and return what it did."""

    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
