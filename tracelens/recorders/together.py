"""Runs a command with every source recorded on one clock, into one capture folder: `tracelens record`.

The command's own streams, exit and signals pass through. Nothing is written outside the folder, and what happens to
the recording never changes what happens to the command.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tracelens.capture import Manifest, Note, is_capture, write_manifest
from tracelens.errors import TracelensError
from tracelens.recorders import device, events, gil, measurements, pyspy, torch, triton
from tracelens.recorders.finish import draft, finish
from tracelens.recorders.watch import Watcher

RECORDERS = (
    torch.RECORDER,
    pyspy.RECORDER,
    gil.RECORDER,
    triton.RECORDER,
    device.RECORDER,
    events.RECORDER,
    measurements.RECORDER,
)
SOURCES = tuple(recorder.name for recorder in RECORDERS)
CONTROL = ".control"
"""Name of the private subfolder; removed at the end."""
POLL_S = 0.03
CUDA_GRACE_S = 5.0
"""How long after `import torch` a GPU program is given to initialise CUDA: before that no GPU row can be recorded."""
AFTERWARDS_S = 60.0
"""How long children that outlive the command may take to close their window and write their files."""


class Recording(NamedTuple):
    """A finished recording; `exit_code` is the command's, as a shell gives it (128 + signal), or 130 if interrupted."""

    folder: Path
    manifest: Manifest
    exit_code: int


def record(
    command: Sequence[str],
    folder: Path | None = None,
    sources: Collection[str] = SOURCES,
    *,
    seconds: float = 3.0,
    delay: float = 0.5,
    force: bool = False,
    stacks: bool = True,
    results: Sequence[Path] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Recording:
    """Run `command` and record all its Python processes.

    `folder` defaults to `STEM-YYYYmmdd-HHMMSS.capture` here. The window opens `delay` s after torch was imported (see
    `watch`) and lasts `seconds`; 0 means until the command ends. `force` replaces an existing capture. `stacks`:
    torch records Python functions too. `results` are measurement files to copy in at the end. `say` gets one line of
    narration at a time. Raises TracelensError before anything runs; afterwards trouble becomes notes.
    """
    _check(command, sources, seconds, delay)
    measurements.check(results)
    folder = folder if folder is not None else default_folder(command)
    prepare_folder(folder, force)
    manifest = draft(command)
    control = make_control(folder)
    settings = write_settings(folder, control, sources, stacks=stacks)
    write_manifest(folder, manifest)
    program = pyspy.binary() if "pyspy" in sources else None
    watcher = Watcher(folder, control, program, seconds, delay, say)
    if "pyspy" in sources and program is None:
        watcher.notes.append(pyspy.missing())
    try:
        child = subprocess.Popen(list(command), env=environment(settings, sources))
    except OSError as error:
        shutil.rmtree(folder)
        hint = "the command after -- must be a program on PATH"
        raise TracelensError(f"{command[0]}: cannot be run: {error.strerror}", hint) from error
    with _signals(child) as interrupts:
        code = _run(child, watcher, interrupts)
        watcher.finish()
        if interrupts:
            watcher.notes.append(Note(code="interrupted", says="the recording was interrupted"))
        elif code:
            watcher.notes.append(Note(code="command-failed", says=f"the command ended with {code}"))
        try:
            finish(folder, manifest, sources, watcher, results)
            write_manifest(folder, manifest)
        except OSError as error:
            raise TracelensError(
                f"{folder}: the capture could not be completed: {error}", "is the disk full?"
            ) from error
        shutil.rmtree(control, ignore_errors=True)
    return Recording(folder, manifest, 130 if interrupts else code)


def default_folder(command: Sequence[str]) -> Path:
    """`STEM-YYYYmmdd-HHMMSS.capture` in the working folder; STEM is the script's, module's or program's."""
    words = list(command)
    stem = Path(words[0]).stem
    if stem.startswith("python"):
        if "-m" in words[:-1]:
            stem = words[words.index("-m") + 1]
        else:
            stem = next((Path(word).stem for word in words[1:] if word.endswith(".py")), stem)
    return Path(f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.capture")


def prepare_folder(folder: Path, force: bool) -> None:
    """Make an empty folder that only its owner can enter; `force` replaces an existing *capture*, nothing else."""
    if folder.is_symlink() or folder.exists():
        if not force:
            raise TracelensError(f"{folder}: exists already", "choose another with -o, or replace it with --force")
        replaceable = folder.is_dir() and not folder.is_symlink() and (is_capture(folder) or not any(folder.iterdir()))
        if not replaceable:
            raise TracelensError(f"{folder}: not a capture, so --force does not replace it", "choose another with -o")
        shutil.rmtree(folder)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise TracelensError(f"{folder}: cannot be made: {error.strerror}", "choose another with -o") from error


def make_control(folder: Path) -> Path:
    """Make the private folder through which parent and recorded processes talk."""
    control = folder.resolve() / CONTROL
    control.mkdir(mode=0o700)
    return control


def write_settings(
    folder: Path, control: Path, sources: Collection[str], cuda_grace_s: float = CUDA_GRACE_S, stacks: bool = True
) -> Path:
    """Leave what a recorded process needs to know in the control folder; returns the file."""
    path = control / "settings.json"
    known = {
        "folder": str(folder.resolve()),
        "control": str(control),
        "sources": sorted(sources),
        "with_stack": stacks,
        "cuda_grace_s": cuda_grace_s,
        "tracer": os.getpid(),
    }
    path.write_text(json.dumps(known), encoding="utf-8")
    return path


def environment(settings: Path, sources: Collection[str]) -> dict[str, str]:
    """The command's environment: ours, with the bootstrap first on PYTHONPATH and the sources' own variables."""
    bootstrap = str(Path(__file__).parent / "bootstrap")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([bootstrap, before]) if before else bootstrap
    return os.environ | {"PYTHONPATH": path, "TRACELENS_RECORD": str(settings)} | own_variables(settings, sources)


def own_variables(settings: Path, sources: Collection[str]) -> dict[str, str]:
    """What a program that takes part in its recording is told: where events and measurements go."""
    made = events.variables() if "events" in sources else {}
    if "measurements" in sources:
        made[measurements.VARIABLE] = str(settings.parent.parent / measurements.FILE)
    return made


def check_sources(sources: Collection[str]) -> None:
    """TracelensError for an unknown source, or none at all."""
    unknown = sorted(set(sources) - set(SOURCES))
    if unknown or not sources:
        named = repr(unknown[0]) if unknown else "nothing"
        raise TracelensError(f"cannot record {named}", f"sources are {', '.join(SOURCES)}")


def _check(command: Sequence[str], sources: Collection[str], seconds: float, delay: float) -> None:
    if not command:
        raise TracelensError("no command to record", "tracelens record -- python serve.py")
    check_sources(sources)
    for name, value in (("--seconds", seconds), ("--delay", delay)):
        if not 0 <= value <= 86_400:
            raise TracelensError(f"{name} {value:g}: must lie between 0 and 86400")


def _run(child: subprocess.Popen[bytes], watcher: Watcher, interrupts: Sequence[int]) -> int:
    """Watch until the command, and what of its children is being recorded, is done; returns the exit code."""
    while child.poll() is None:
        watcher.step()
        time.sleep(POLL_S)
    over = time.monotonic()
    while len(interrupts) < 2 and watcher.busy() and time.monotonic() < over + watcher.seconds + AFTERWARDS_S:
        if watcher.seconds == 0 or interrupts:
            watcher.stop()
        watcher.step()
        time.sleep(POLL_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


@contextlib.contextmanager
def _signals(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Forward Ctrl-C and SIGTERM to the command, so that it can end in its own way; the second one kills it.

    A terminal sends Ctrl-C to the whole foreground group, the command included: then it isn't sent once more, since a
    second KeyboardInterrupt would hit the command's clean-up.
    """
    interrupts: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        if child.poll() is not None:
            return
        if len(interrupts) > 1:
            child.kill()
        elif number != signal.SIGINT or not _from_terminal():
            child.send_signal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not in the main thread: the caller keeps its own handlers
            before[number] = signal.signal(number, handle)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_terminal() -> bool:
    """Whether this process is in its terminal's foreground group, so that a Ctrl-C reached the command as well."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
