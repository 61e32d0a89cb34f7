"""Import contracts at run time: what a command loads is what it needs (the static half is `lint-imports`)."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "textual", "perfetto", "numba")

PROBE = """
import contextlib, io, json, sys
from tracelens.__main__ import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(name for name in sys.modules if "." not in name)]))
"""


def loaded_by(*arguments):
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("arguments", [["rules"], ["rules", "--json"], ["explain", "GIL001"], ["explain", "slices"]])
def test_light_commands_load_nothing_heavy(arguments):
    code, modules = loaded_by(*arguments)
    assert code == 0
    assert set(HEAVY).isdisjoint(modules)


def test_importing_tracelens_loads_nothing():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import tracelens, sys; print([m for m in ('polars', 'msgspec', 'numpy') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_public_names_resolve():
    import tracelens

    for name in tracelens.__all__:
        assert getattr(tracelens, name) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        tracelens.nosuch  # noqa: B018
