"""The device source: which GPU the recorded processes use, its clocks as read and the copy roof measured beside them.

The work happens in the recorded process (`inside/device.py`); here the answers of all processes become one.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Iterable, Mapping
from typing import Any

from tracelens.contracts import Availability, Recorder


def _available() -> Availability:
    if ctypes.util.find_library("cuda") is not None:
        return Availability(True)
    return Availability(False, "no NVIDIA driver library (libcuda) here", "record on the machine with the GPU")


RECORDER = Recorder("device", "GPU facts: name, driver, memory, clocks as read, measured copy roof", _available)


def merged(sidecars: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, float]]:
    """(device of the first process that has one, each roof's best measurement)."""
    device: dict[str, Any] = {}
    roofs: dict[str, float] = {}
    for sidecar in sidecars:
        said, measured = sidecar.get("device"), sidecar.get("roofs")
        if not device and isinstance(said, dict):
            device = said
        for name, value in measured.items() if isinstance(measured, dict) else ():
            if isinstance(value, int | float) and 0 < value < float("inf"):
                roofs[name] = max(roofs.get(name, 0.0), float(value))
    return device, roofs
