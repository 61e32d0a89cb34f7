"""`tracelens demo`: record the bundled stack with a fault on, analyse the recording, show it: the tour.

The analysis must find the fault by what the stack does: its name is in no command line, file name or manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tracelens.commands import record, shared
from tracelens.errors import TracelensError

EXTRA = "pip install 'tracelens-profiler[record,serving]'"
COMPILERS = ("cc", "gcc", "clang")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--fault", default="ep_hold_gil", metavar="NAME", help="default %(default)s; none: healthy")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="capture folder to make")
    parser.add_argument("--seconds", type=_positive, default=8.0, metavar="S", help="how long the stack serves")


def run(args: argparse.Namespace) -> int:
    """Run the tour; 0 when it ran to its end, whatever it found."""
    from tracelens import opening, plugins
    from tracelens.analyzing import analyze
    from tracelens.config import Config
    from tracelens.presenters import terminal
    from tracelens.recorders import together

    _require()
    loaded = plugins.load()
    with tempfile.TemporaryDirectory(prefix="tracelens-demo-") as folder:
        settings = Path(folder) / "settings.json"
        settings.write_bytes(_settings(args.fault))
        command = [sys.executable, "-m", "tracelens_serving", "run", "--seconds", f"{args.seconds:g}"]
        what = "healthy" if args.fault == "none" else f"with fault {args.fault}"
        shared.narrate(f"recording the bundled stack, {what}, for {args.seconds:g} s: 1 decode and 2 prefill processes")
        with _stdout_to_stderr():
            recording = together.record([*command, "--settings", str(settings)], args.output, say=shared.narrate)
    record.tell(recording)
    if recording.exit_code == 130:
        return 130
    if recording.exit_code:
        raise TracelensError(
            f"the bundled stack ended with exit code {recording.exit_code}", "its own message stands above"
        )
    shared.narrate(f"analysing {recording.folder}")
    trace = opening.open_trace(str(recording.folder), plugins=loaded)
    report = analyze(trace, loaded, Config())
    terminal.render(report, sys.stdout, shared.wants_color(), shared.width())
    shared.narrate(f"look closer: tracelens view {recording.folder}")
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError("must lie between 0 and 3600")
    return value


def _require() -> None:
    """Raise TracelensError for the first thing that the stack needs and this installation lacks."""
    for module in ("tracelens_serving", "torch"):
        if find_spec(module) is None:
            raise TracelensError(f"the demo needs {module}, which is not installed", EXTRA)
    compiler = os.environ.get("CC")
    if not any(shutil.which(name) for name in ((compiler,) if compiler else COMPILERS)):
        raise TracelensError(
            "the demo compiles a small native module and finds no C compiler",
            f"install gcc or clang (and {EXTRA})",
        )


def _settings(fault: str) -> bytes:
    """The stack's settings with the fault in them, as it prints them itself."""
    made = subprocess.run(
        [sys.executable, "-m", "tracelens_serving", "settings", "--fault", fault], capture_output=True, check=False
    )
    if made.returncode:
        said = made.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        hint = said[1].removeprefix("hint: ") if len(said) > 1 else "python -m tracelens_serving settings --help"
        raise TracelensError(said[0].removeprefix("tracelens_serving: error: "), hint)
    return made.stdout


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What the stack prints is narration: stdout is for the report."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
