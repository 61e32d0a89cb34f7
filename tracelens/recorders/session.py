"""`with tracelens.recording("run.capture"): ...`: record this process, from inside, into the same kind of capture.

Shares everything with `tracelens record`: the agent in `inside`, the watcher and the manifest; only the bootstrap and
the child process are absent. Knows nothing of other processes: their traces need `tracelens record`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tracelens import events
from tracelens.capture import Note, write_manifest
from tracelens.recorders import measurements, pyspy
from tracelens.recorders.finish import draft, finish
from tracelens.recorders.inside import Presence
from tracelens.recorders.inside.kineto import torch_state
from tracelens.recorders.together import SOURCES, check_sources, make_control, prepare_folder, write_settings
from tracelens.recorders.watch import Watcher

START_PATIENCE_S = 10.0
"""py-spy is waited for 3 s, torch's first start takes up to some seconds with CUDA."""


@contextlib.contextmanager
def recording(
    folder: str | os.PathLike[str], sources: Collection[str] = SOURCES, *, force: bool = False
) -> Iterator[Path]:
    """Record the body of the `with` into `folder`, which is yielded; on leaving it, the capture is complete.

    torch is recorded if it is imported already, its GPU work if CUDA is initialised already. Raises TracelensError
    for an existing folder without `force` or an unknown source; other trouble becomes notes in the manifest.
    """
    check_sources(sources)
    root = Path(folder)
    prepare_folder(root, force)
    manifest = draft(sys.orig_argv)
    recorded = set(sources) if torch_state() == "ready" else set(sources) - {"torch"}
    control = make_control(root)
    write_manifest(root, manifest)
    program = pyspy.binary() if "pyspy" in sources else None
    watcher = Watcher(root, control, program, seconds=0.0, delay=0.0)
    if "pyspy" in sources and program is None:
        watcher.notes.append(pyspy.missing())
    if "torch" in sources and "torch" not in recorded:
        watcher.notes.append(Note(code="no-torch", says="torch was not imported: no torch trace"))
    settings = write_settings(root, control, recorded, cuda_grace_s=0.0)
    presence = Presence(str(settings))
    presence.start()
    if "events" in recorded:
        events.start(str(root), str(settings))
    before = os.environ.get(measurements.VARIABLE)
    if "measurements" in recorded:
        os.environ[measurements.VARIABLE] = str(root.resolve() / measurements.FILE)
    try:
        patience = time.monotonic() + START_PATIENCE_S
        while _state(presence) not in ("recording", "done", "failed") and time.monotonic() < patience:
            watcher.step()
            time.sleep(0.01)
        yield root
    finally:
        presence.stop()
        if "events" in recorded:
            events.stop()
        if before is None:
            os.environ.pop(measurements.VARIABLE, None)
        else:
            os.environ[measurements.VARIABLE] = before
        watcher.finish()
        finish(root, manifest, recorded, watcher, ())
        write_manifest(root, manifest)
        shutil.rmtree(control, ignore_errors=True)


def _state(presence: Presence) -> str:
    return presence.agent.state if presence.agent is not None else "new"
