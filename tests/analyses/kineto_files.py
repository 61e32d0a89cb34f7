"""Small torch profiler and Chrome trace files, built event by event. Times are µs, as the format has them."""

import json
from pathlib import Path

from tracelens.contracts import Reader, Source
from tracelens.health import Health
from tracelens.readers import kineto
from tracelens.trace import Trace

HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 8, "totalGlobalMem": 1024}],
    "distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl"},
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}
HOST = 100
MAIN = 101


def event(cat, name, ts, dur, tid=MAIN, pid=HOST, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name, ts, dur, tid=MAIN, **args):
    return event("cpu_op", name, ts, dur, tid, **args)


def python(name, ts, dur, tid=MAIN, pid=HOST):
    return event("python_function", name, ts, dur, tid, pid)


def annotation(name, ts, dur, tid=MAIN, pid=HOST):
    return event("user_annotation", name, ts, dur, tid, pid)


def runtime(name, ts, dur, correlation=None, tid=MAIN, pid=HOST, cat="cuda_runtime"):
    return event(cat, name, ts, dur, tid, pid, **({} if correlation is None else {"correlation": correlation}))


def kernel(ts, dur, correlation=None, name="gemm_kernel", stream=7, device=0, cat="kernel", **args):
    linked = {} if correlation is None else {"correlation": correlation}
    return event(cat, name, ts, dur, stream, device, device=device, stream=stream, **linked, **args)


def copy(ts, dur, correlation=None, name="Memcpy HtoD (Pinned -> Device)", moved=1024, stream=7, device=0):
    return kernel(ts, dur, correlation, name, stream, device, "gpu_memcpy", bytes=moved)


def launched(launch_ts, ts, dur, correlation, name="gemm_kernel", tid=MAIN, launch_dur=5, stream=7):
    """A launch and its kernel."""
    return [
        runtime("cudaLaunchKernel", launch_ts, launch_dur, correlation, tid),
        kernel(ts, dur, correlation, name, stream),
    ]


def write(folder: Path, events, header=None, name="trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({**(HEADER if header is None else header), "traceEvents": events}))
    return path


def load(path: Path, reader: Reader = kineto.READER) -> Trace:
    return reader.read(Source(path.name, path), Health())


def trace_of(folder: Path, events, header=None) -> Trace:
    return load(write(folder, events, header))


def load_text(folder: Path, text: str | bytes, reader: Reader = kineto.READER) -> Trace:
    path = folder / "trace.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(path, reader)


def codes(trace: Trace) -> dict[str, int]:
    """Health codes with their summed counts."""
    out: dict[str, int] = {}
    for entry in trace.health:
        out[entry.code] = out.get(entry.code, 0) + entry.count
    return out


def named(trace: Trace, name: str) -> dict:
    """The only slice of this name."""
    rows = [row for row in trace.slices.iter_rows(named=True) if row["name"] == name]
    assert len(rows) == 1, rows
    return rows[0]


def parent_name(trace: Trace, name: str) -> str | None:
    parent = named(trace, name)["parent_id"]
    return None if parent is None else trace.slices.row(parent, named=True)["name"]
