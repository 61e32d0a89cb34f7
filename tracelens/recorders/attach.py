"""Records a process that already runs: `tracelens record --pid PID`. Samples only, since nothing of ours is inside it.

py-spy reads the process's memory, which the system must permit; where it does not, this says why and what else can be
had. Without beacons the samples are placed by py-spy's exit, within 5 ms. The process's command line and environment
are not stored: they may hold secrets.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tracelens.capture import Note, write_manifest
from tracelens.errors import TracelensError
from tracelens.recorders import pyspy
from tracelens.recorders.finish import draft, finish
from tracelens.recorders.inside import facts
from tracelens.recorders.together import POLL_S, Recording, make_control, prepare_folder
from tracelens.recorders.watch import Watcher, alive

START_PATIENCE_S = 20.0
"""py-spy reads all symbols of the process first: 0.1 to 3 s, more on a busy machine."""
ELSE = "or start it with `tracelens record -- COMMAND`, which needs no such permission for torch spans and GIL probe"


def attach(
    pid: int,
    folder: Path | None = None,
    sources: Collection[str] = ("pyspy",),
    *,
    seconds: float = 3.0,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Recording:
    """Sample a running process for `seconds` (0: until Ctrl-C or its end) into a new capture.

    Raises TracelensError, and leaves no folder, if there is no such process or it may not be read.
    """
    program = _check(pid, sources, seconds)
    folder = folder if folder is not None else Path(f"pid{pid}-{time.strftime('%Y%m%d-%H%M%S')}.capture")
    prepare_folder(folder, force)
    manifest = draft([])
    control = make_control(folder)
    write_manifest(folder, manifest)
    spy = pyspy.Spy(program, pid, folder, control / f"pyspy.{pid}.log")
    watcher = Watcher(folder, control, program, seconds, 0.0, say)
    interrupted = False
    sidecar: dict[str, Any] = {
        "state": "done",
        "anchors": [facts.anchor()],
        "threads": _threads(pid),
        "name": _name(pid),
    }
    try:
        _until(lambda: spy.settled(), START_PATIENCE_S)
        start_ns = time.time_ns()
        say(f"sampling process {pid}, {f'{seconds:g} s' if seconds else 'until it ends or Ctrl-C'}")
        _until(lambda: spy.ended(), seconds or float("inf"))
        sidecar["window"] = {"start_unix_ns": start_ns, "end_unix_ns": time.time_ns()}
    except KeyboardInterrupt:
        interrupted = True
        watcher.notes.append(Note(code="interrupted", says="the recording was interrupted"))
    finally:
        spy.end()
    if (refusal := spy.refusal()) is not None:
        refused, gone = spy.refused(), not alive(pid)
        shutil.rmtree(folder, ignore_errors=True)
        why = "it has ended" if gone else refusal
        raise TracelensError(f"process {pid}: py-spy could not read it: {why}", _cure(pid) if refused else ELSE)
    sidecar["anchors"].append(facts.anchor())
    watcher.sidecars[pid], watcher.spies[pid] = sidecar, spy
    finish(folder, manifest, sources, watcher, ())
    write_manifest(folder, manifest)
    shutil.rmtree(control, ignore_errors=True)
    return Recording(folder, manifest, 130 if interrupted else 0)


def _check(pid: int, sources: Collection[str], seconds: float) -> str:
    """The py-spy program; TracelensError for what cannot be recorded so."""
    other = sorted(set(sources) - {"pyspy"})
    if other:
        says = f"{other[0]} cannot be recorded in a process that already runs: --pid takes samples only"
        raise TracelensError(says, f"leave --with out, {ELSE}")
    if not 0 <= seconds <= 86_400:
        raise TracelensError(f"--seconds {seconds:g}: must lie between 0 and 86400")
    if not alive(pid):
        raise TracelensError(f"process {pid}: there is no such process", "see `ps` for its number")
    program = pyspy.binary()
    if program is None:
        raise TracelensError("--pid needs py-spy, which is not installed", "pip install py-spy")
    return program


def _until(over: Callable[[], bool], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not over() and time.monotonic() < end:
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))


def _cure(pid: int) -> str:
    """What would permit it: the owner, the kernel's ptrace_scope, or a capability."""
    owner = _owner(pid)
    if owner is not None and os.geteuid() not in (0, owner):
        return f"it belongs to user {owner}: record as that user or as root, {ELSE}"
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope in ("1", "2", "3"):
        return f"kernel.yama.ptrace_scope is {scope}: record as root (not even that helps at 3), {ELSE}"
    return f"give this process CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE), {ELSE}"


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _threads(pid: int) -> list[dict[str, Any]]:
    """The threads alive now, as the kernel names them."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except (OSError, ValueError):
        return []
    return [{"os_tid": tid, "name": _read(f"/proc/{pid}/task/{tid}/comm")} for tid in tids]


def _name(pid: int) -> str | None:
    return _read(f"/proc/{pid}/comm")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
