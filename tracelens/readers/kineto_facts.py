"""The other top-level keys of a torch profiler file → Facts: devices, rank, versions, profiler flags.

Every member may be missing or of an odd type: then it is unknown. Knows nothing of events.
"""

from __future__ import annotations

from typing import Any

from tracelens.trace import Device, Facts

VERSIONS = {
    "cuda_runtime_version": "cuda_runtime",
    "cuda_driver_version": "cuda_driver",
    "cupti_version": "cupti",
    "hip_runtime_version": "hip_runtime",
    "hip_driver_version": "hip_driver",
    "roctracer_version": "roctracer",
    "rocprofiler-sdk_version": "rocprofiler",
    "torch_version": "torch",
}
FLAGS = {
    "with_stack": "stacks",
    "record_shapes": "shapes",
    "profile_memory": "memory",
    "with_flops": "flops",
    "with_modules": "modules",
}
EPOCH_NS = (10**18, 4 * 10**18)
"""Times between 2001 and 2096 count from 1970; Kineto wrote such ones before it had baseTimeNanoseconds."""


def facts(header: dict[str, Any], source_events: int) -> Facts:
    """What the header says."""
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    versions = {name: text for key, name in VERSIONS.items() if (text := _text(header.get(key)))}
    if nccl := _text(distributed.get("nccl_version")):
        versions["nccl"] = nccl
    return Facts(
        devices=devices(header.get("deviceProperties")),
        rank=_rank(distributed.get("rank")),
        world_size=_rank(distributed.get("world_size")),
        backend=_text(distributed.get("backend")),
        host=_text(header.get("host_name")),
        versions=versions,
        profiler={name: bool(header[key]) for key, name in FLAGS.items() if isinstance(header.get(key), int)},
        source_events=source_events,
    )


def devices(properties: Any) -> tuple[Device, ...]:
    """deviceProperties, by index."""
    if not isinstance(properties, list):
        return ()
    found: dict[int, Device] = {}
    for place, item in enumerate(properties):
        if not isinstance(item, dict):
            continue
        index = _whole(item.get("id"))
        major, minor = _whole(item.get("computeMajor")), _whole(item.get("computeMinor"))
        device = Device(
            index=place if index is None else index,
            name=_text(item.get("name")),
            multiprocessors=_whole(item.get("numSms")),
            memory_bytes=_whole(item.get("totalGlobalMem")),
            compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        )
        found.setdefault(device.index, device)
    return tuple(found[index] for index in sorted(found))


def origin_unix_ns(header: dict[str, Any], first_ns: int | None) -> int | None:
    """What the first time of the file means on CLOCK_REALTIME; None if its clock is unknown."""
    if first_ns is None:
        return None
    if EPOCH_NS[0] <= first_ns < EPOCH_NS[1]:
        return first_ns
    base = _whole(header.get("baseTimeNanoseconds"))
    if base is not None and EPOCH_NS[0] <= base + first_ns < EPOCH_NS[1]:
        return base + first_ns
    return None


def _rank(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and 0 <= number < 1 << 31 else None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).strip() or None
