import subprocess
import sys

import pytest

BUILD = "from tracelens_serving import native; print(native.build()); print(native.load().HEADER_BYTES)"


def test_many_builders_at_once_make_one_module(compiler, environment, tmp_path):
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD],
            env=environment | {"XDG_CACHE_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = {builder.communicate(timeout=120)[0] for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len(said) == 1
    (module,) = (tmp_path / "tracelens" / "native").iterdir()
    assert said.pop().splitlines()[0] == str(module)


def test_a_built_module_needs_no_compiler(compiler, python, tmp_path):
    first = python("-c", BUILD, XDG_CACHE_HOME=str(tmp_path), CC="cc")
    again = python("-c", BUILD, XDG_CACHE_HOME=str(tmp_path), CC="cc", PATH=str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CC": "/nowhere/cc -O1"}, "no C compiler: '/nowhere/cc' cannot be run"),
        ({"CC": "", "PATH": "/nowhere"}, "no C compiler: 'cc' cannot be run"),
        ({"CC": "false"}, "false could not compile deep_ep.c: exit code 1"),
    ],
)
def test_no_compiler_is_one_line_and_a_hint(python, tmp_path, changes, message):
    done = python("-m", "tracelens_serving", "run", "--requests", "1", XDG_CACHE_HOME=str(tmp_path), **changes)
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error == f"tracelens_serving: error: {message}"
    assert hint.startswith("hint: ")
    assert not any((tmp_path / "tracelens" / "native").iterdir())


def test_an_unwritable_cache_is_named(python, tmp_path):
    (tmp_path / "file").touch()
    done = python("-m", "tracelens_serving", "run", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert "Not a directory" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr
