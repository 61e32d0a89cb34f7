"""The triton source: TTIR and metadata of every kernel that the recorded processes compile or load from a cache.

The work happens in the recorded process (`inside/artifacts.py`); the files lie in `CAPTURE/triton/`. Knows nothing of
launches: which kernel an artifact is, a rule finds out.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tracelens.contracts import Availability, Recorder

FOLDER = "triton"


def _available() -> Availability:
    if importlib.util.find_spec("triton") is not None:
        return Availability(True)
    why = "triton is not installed beside tracelens (the recorded command may bring its own, from 3.4 on)"
    return Availability(False, why, "pip install triton")


RECORDER = Recorder("triton", "Triton kernels compiled or loaded: TTIR, registers, shared memory", _available)


def artifacts(folder: Path) -> list[Path]:
    """The kernels' TTIR and metadata files in a capture, in order; what a killed process left half written goes."""
    found = folder / FOLDER
    for path in found.glob("*.tmp"):
        path.unlink(missing_ok=True)
    return sorted(path for path in found.glob("*") if path.suffix in (".ttir", ".json"))
