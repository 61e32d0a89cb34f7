"""How a command line ends: exit codes, two lines on stderr, never a traceback."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from tracelens import __main__ as command
from tracelens.commands import VERBS
from tracelens.errors import TracelensError

TRACELENS = [sys.executable, "-m", "tracelens"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_its_own_flags(cli, verb):
    ended = cli(verb, "--help")
    assert ended.code == 0
    assert ended.out.startswith("usage: tracelens " + verb)
    assert ended.err == ""


def test_help_lists_all_verbs_and_imports_none(cli, monkeypatch):
    monkeypatch.setattr(command, "import_module", lambda name: pytest.fail(f"imported {name}"))
    ended = cli("--help")
    assert ended.code == 0
    assert all(f"\n    {verb} " in ended.out for verb in VERBS)


def test_version(cli):
    from tracelens import __version__

    assert cli("--version").out == f"tracelens-profiler {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("rules", "--jso"), ("analyze",), ("analyze", "x", "--fail-on", "all")]
)
def test_usage_errors_are_two_lines_and_exit_2(cli, arguments):
    ended = cli(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    error, hint = ended.err.splitlines()
    assert error.startswith("tracelens: error: ")
    assert hint.startswith("hint: see `tracelens") and hint.endswith("--help`")


def fail_with(monkeypatch, error):
    def run(args):
        raise error

    monkeypatch.setattr(import_module("tracelens.commands.rules"), "run", run)


def test_an_expected_error_is_said_with_its_hint_and_its_own_exit_code(cli, monkeypatch):
    fail_with(monkeypatch, TracelensError("x.json: odd\x1b[2J", "do \x07this", exit_code=1))
    ended = cli("rules")
    assert ended.code == 1
    assert ended.err == "tracelens: error: x.json: odd\\x1b[2J\nhint: do \\x07this\n"


def test_an_unexpected_error_says_where_and_how_to_get_the_traceback(cli, monkeypatch):
    fail_with(monkeypatch, KeyError("dur"))
    ended = cli("rules")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert ended.err.startswith("tracelens: error: internal error: KeyError in commands/test_main.py:")
    assert "TRACELENS_DEBUG=1" in ended.err
    monkeypatch.setenv("TRACELENS_DEBUG", "1")
    with pytest.raises(KeyError):
        cli("rules")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "tracelens: error: interrupted\n"),
        (BrokenPipeError(), 0, ""),
        (RecursionError("deep"), 2, "tracelens: error: internal error: RecursionError in "),
        (MemoryError(), 2, "tracelens: error: out of memory\n"),
    ],
)
def test_other_endings(cli, monkeypatch, error, code, said):
    monkeypatch.setattr(command, "_silence_stdout", lambda: None)
    fail_with(monkeypatch, error)
    ended = cli("rules")
    assert ended.code == code
    assert ended.err.startswith(said)
    assert bool(ended.err) == bool(said)


@pytest.fixture
def intruder(tmp_path, monkeypatch):
    """Another distribution called tracelens; its RECORD is given."""

    def install(record):
        info = tmp_path / "site" / "tracelens-9.9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tracelens\nVersion: 9.9\n")
        if record is not None:
            (info / "RECORD").write_text(record)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return install


@pytest.mark.parametrize("record", [None, "tracelens/__init__.py,,\n", "tracelens.py,,\n"])
def test_another_owner_of_the_package_ends_every_verb_but_doctor(cli, intruder, record):
    intruder(record)
    ended = cli("rules")
    assert ended.code == 2
    assert ended.err.splitlines()[0] == (
        "tracelens: error: the distribution tracelens 9.9 also installs a package called tracelens"
    )
    ended = cli("doctor")
    assert ended.code == 2
    assert "problem: the distribution tracelens 9.9 also installs a package called tracelens" in ended.out


def test_a_distribution_of_that_name_that_installs_other_files_does_no_harm(cli, intruder):
    intruder("TraceLens/__init__.py,,\n")
    assert cli("rules").code == 0


def test_a_closed_pipe_ends_quietly():
    ended = subprocess.run(
        f"{sys.executable} -m tracelens explain --schema | head -c 10; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == '{\n  "$sche0\n'
    assert ended.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*TRACELENS, "rules"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("tracelens: error: standard output: no space left on device")
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr


def test_an_ascii_terminal_gets_escapes_instead_of_an_exception():
    ended = subprocess.run(
        [*TRACELENS, "explain", "GIL001"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert ended.returncode == 0
    assert ended.stdout.isascii()


HEAVY = ("torch", "triton", "textual", "perfetto", "numba", "scipy", "tracelens.tui", "tracelens.recorders.together")


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["rules"], ()),
        (["explain", "GIL001"], ()),
        (["doctor"], ()),
        (["--help"], ("polars", "numpy", "pluggy")),
        (["analyze", "--help"], ("polars", "textual")),
    ],
)
def test_verbs_import_no_more_than_they_need(arguments, more):
    code = (
        "import sys; from tracelens.__main__ import main; code = main(sys.argv[2:]);"
        "print(*(m for m in sys.argv[1].split(',') if m in sys.modules), file=sys.stderr); sys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, ",".join((*HEAVY, *more)), *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.strip() == ""
