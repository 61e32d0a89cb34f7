"""The GPU that this process uses: what it is, its clocks as read, and how fast it copies its own memory.

Asks the driver's libraries through ctypes, and only where the program has loaded and initialised them: nothing is
initialised and no setting is touched. The copy roof is the best of some copies made right after the window, beside
whatever the program does then: a lower bound. NVIDIA only; knows nothing of torch.
"""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COPY_BYTES = 1 << 28
"""256 MiB, several times the L2 cache of any GPU (H200: 50 MB)."""
COPIES = 12
RELAXED = 2
"""Capture mode in which this thread's calls do not invalidate a graph that another thread captures."""
_ATTRIBUTES = {
    "multiprocessors": 16, "clock_khz_max": 13, "memory_clock_khz_max": 36, "memory_bus_bits": 37, "l2_bytes": 38,
    "capability_major": 75, "capability_minor": 76,
}  # fmt: skip
_CLOCKS = {"graphics_mhz": 0, "sm_mhz": 1, "memory_mhz": 2}


def facts() -> tuple[dict[str, Any], dict[str, float]]:
    """(facts of the device, roofs), both empty where the program does not use CUDA. Raises nothing but OSError."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return {}, {}
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return {}, {}
    count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return {}, {}  # loaded, not initialised
    for index in range(count.value):
        asked = cuda.cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active))
        if asked == 0 and active.value:
            device = _describe(cuda, index) | {"index": index, "count": count.value}
            roof = _copy_roof(cuda, index)
            return device | _management(cuda, index), {"copy_bytes_per_second": roof} if roof else {}
    return {}, {}


def _describe(cuda: Any, index: int) -> dict[str, Any]:
    name, size, value = ctypes.create_string_buffer(96), ctypes.c_size_t(), ctypes.c_int()
    known: dict[str, Any] = {}
    if cuda.cuDeviceGetName(name, 96, index) == 0:
        known["name"] = name.value.decode(errors="replace")
    if cuda.cuDeviceTotalMem_v2(ctypes.byref(size), index) == 0:
        known["memory_bytes"] = size.value
    for key, attribute in _ATTRIBUTES.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, index) == 0:
            known[key] = value.value
    known["capability"] = f"{known.pop('capability_major', '?')}.{known.pop('capability_minor', '?')}"
    return known


def _management(cuda: Any, index: int) -> dict[str, Any]:
    """Driver version and present clocks, from the management library."""
    bus = ctypes.create_string_buffer(32)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    if cuda.cuDeviceGetPCIBusId(bus, 32, index) != 0 or nvml.nvmlInit_v2() != 0:
        return {}
    known: dict[str, Any] = {}
    try:
        text, handle, value = ctypes.create_string_buffer(96), ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            known["driver"] = text.value.decode(errors="replace")
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) == 0:
            for key, kind in _CLOCKS.items():
                if nvml.nvmlDeviceGetClockInfo(handle, kind, ctypes.byref(value)) == 0:
                    known[key] = value.value
    finally:
        nvml.nvmlShutdown()
    return known


def _copy_roof(cuda: Any, index: int) -> float | None:
    """Bytes read and written a second by the best device-to-device copy; None where memory is short or a call fails."""
    context, mode = ctypes.c_void_p(), ctypes.c_int(RELAXED)
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index) != 0:
        return None
    try:
        if cuda.cuCtxPushCurrent_v2(context) != 0:
            return None
        cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            return _measure(cuda)
        finally:
            cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            cuda.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(index)


def _measure(cuda: Any) -> float | None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) != 0 or free.value < 8 * COPY_BYTES:
        return None
    size = ctypes.c_size_t(COPY_BYTES)
    buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
    stream, events = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(COPIES + 1)]
    best = None
    try:
        done = [cuda.cuMemAlloc_v2(ctypes.byref(buffer), size) for buffer in buffers]
        done.append(cuda.cuStreamCreate(ctypes.byref(stream), 1))  # 1: does not wait for the default stream
        done += [cuda.cuEventCreate(ctypes.byref(event), 0) for event in events]
        done.append(cuda.cuEventRecord(events[0], stream))
        for event in events[1:]:
            done.append(cuda.cuMemcpyDtoDAsync_v2(buffers[0], buffers[1], size, stream))
            done.append(cuda.cuEventRecord(event, stream))
        if any(done) or cuda.cuStreamSynchronize(stream) != 0:
            return None
        took = ctypes.c_float()
        for before, after in pairwise(events):
            if cuda.cuEventElapsedTime(ctypes.byref(took), before, after) == 0 and took.value > 0:
                best = max(best or 0.0, 2 * COPY_BYTES / (took.value / 1e3))
    finally:
        for event in events:
            if event.value:
                cuda.cuEventDestroy_v2(event)
        if stream.value:
            cuda.cuStreamDestroy_v2(stream)
        for buffer in buffers:
            if buffer.value:
                cuda.cuMemFree_v2(buffer)
    return best
