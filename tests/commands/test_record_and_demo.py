"""`record` and `demo`, with the recording itself replaced: what is asked for, what is said, how it ends."""

import json
import sys
from pathlib import Path

import pytest

from tracelens.capture import Manifest, Note
from tracelens.commands import demo
from tracelens.errors import TracelensError
from tracelens.recorders import together


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Replaces the recording; returns what it was asked for, and what it will answer."""
    calls = {"exit_code": 0, "notes": (), "content": b"TOY x"}

    def record(command, folder=None, sources=together.SOURCES, **options):
        calls.update(command=list(command), sources=tuple(sources), options=options, folder=folder)
        folder = folder or tmp_path / "made.capture"
        folder.mkdir()
        (folder / "toy.trace").write_bytes(calls["content"])
        if "--settings" in command:
            calls["settings"] = json.loads(Path(command[command.index("--settings") + 1]).read_text())
        manifest = Manifest(created_unix_ns=1, command=list(command), notes=list(calls["notes"]))
        return together.Recording(folder, manifest, calls["exit_code"])

    monkeypatch.setattr(together, "record", record)
    return calls


def test_record_passes_everything_on_and_says_where(cli, asked):
    ended = cli(
        "record", "--with", "torch, gil", "-o", "run.capture", "--seconds", "2", "--delay", "1", "--force",
        "--no-stacks", "--measurements", "bench.json",
        "--", "python", "serve.py", "--with", "x", "-o", "y",
    )  # fmt: skip
    assert ended.code == 0
    assert asked["command"] == ["python", "serve.py", "--with", "x", "-o", "y"]
    assert asked["sources"] == ("torch", "gil")
    assert asked["folder"] == Path("run.capture")
    options = asked["options"]
    assert (options["seconds"], options["delay"], options["force"]) == (2.0, 1.0, True)
    assert (options["stacks"], options["results"]) == (False, [Path("bench.json")])
    assert ended.out == ""
    assert ended.err == "tracelens: recorded run.capture; next: tracelens analyze run.capture\n"


def test_record_records_all_sources_by_default(cli, asked):
    assert cli("record", "python", "serve.py").code == 0
    assert asked["command"] == ["python", "serve.py"]
    assert asked["sources"] == together.SOURCES


def test_record_ends_as_the_command_ended_and_passes_remarks_on(cli, asked):
    asked.update(exit_code=7, notes=(Note(code="command-failed", says="the command ended with 7"),))
    ended = cli("record", "--", "false")
    assert ended.code == 7
    assert ended.err.splitlines()[0] == "tracelens: warning: the command ended with 7"


@pytest.mark.parametrize("arguments", [(), ("--",), ("--with", "gil", "--")])
def test_record_without_a_command_is_an_error(cli, arguments):
    ended = cli("record", *arguments)
    assert ended.code == 2
    assert ended.err == "tracelens: error: no command to record\nhint: tracelens record -- python serve.py\n"


@pytest.fixture
def ready(monkeypatch):
    """Everything that the demo needs is there; its fault is an ordinary setting."""
    monkeypatch.setattr(demo, "_require", lambda: None)
    monkeypatch.setattr(demo, "_settings", lambda fault: json.dumps({"ep.release_gil": fault == "none"}).encode())


def test_demo_records_analyses_and_shows_and_its_exit_code_is_not_the_finding(cli, asked, ready):
    ended = cli("demo", "-o", "tour.capture", "--seconds", "4")
    assert ended.code == 0
    assert "error TOY001 toy-is-broken" in ended.out
    assert "tour.capture" in ended.out.splitlines()[0]
    assert asked["command"][:6] == [sys.executable, "-m", "tracelens_serving", "run", "--seconds", "4"]
    assert asked["settings"] == {"ep.release_gil": False}


def test_demo_keeps_the_name_of_the_fault_out_of_the_recorded_command(cli, asked, ready):
    assert cli("demo", "--fault", "ep_hold_gil").code == 0
    assert not any("ep_hold_gil" in word or "fault" in word for word in asked["command"])
    assert cli("demo", "--fault", "none", "-o", "healthy.capture").code == 0
    assert asked["settings"] == {"ep.release_gil": True}


def test_demo_removes_its_settings_file(cli, asked, ready):
    cli("demo")
    assert not Path(asked["command"][-1]).parent.exists()


@pytest.mark.parametrize(("exit_code", "code"), [(130, 130), (1, 2)])
def test_demo_says_when_the_stack_did_not_run_to_its_end(cli, asked, ready, exit_code, code):
    asked.update(exit_code=exit_code)
    ended = cli("demo")
    assert ended.code == code
    assert ended.out == ""
    if code == 2:
        assert "the bundled stack ended with exit code 1" in ended.err


@pytest.mark.parametrize("missing", ["torch", "tracelens_serving"])
def test_demo_without_its_extra_names_it(cli, asked, monkeypatch, missing):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == missing else object())
    ended = cli("demo")
    assert ended.code == 2
    assert ended.err == (
        f"tracelens: error: the demo needs {missing}, which is not installed\n"
        "hint: pip install 'tracelens-profiler[record,serving]'\n"
    )


def test_demo_without_a_compiler_says_so(cli, asked, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    ended = cli("demo")
    assert ended.code == 2
    assert "finds no C compiler" in ended.err


def test_the_stack_resolves_a_fault_to_ordinary_settings():
    healthy, faulty = json.loads(demo._settings("none")), json.loads(demo._settings("ep_hold_gil"))
    assert {name for name in healthy if healthy[name] != faulty[name]} == {"ep.release_gil"}


def test_an_unknown_fault_is_the_stacks_own_error():
    with pytest.raises(TracelensError, match="unknown fault 'nope'") as caught:
        demo._settings("nope")
    assert "ep_hold_gil" in caught.value.hint


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon", "1e9"])
def test_demo_serves_for_a_reasonable_time(cli, asked, ready, seconds):
    assert cli("demo", f"--seconds={seconds}").code == 2
    assert "command" not in asked
