"""How fast and in how much memory a native Perfetto trace becomes tables: CPU seconds, MB/s and peak RSS.

    python tests/benchmarks/perfetto_decode.py [--slices 625000] [--paths generic,numpy,numba] [--repeats 5]

Writes a track-event trace with our own writer (three arguments a slice: a number, a text and a nested list; one flow
in four slices; a counter), then decodes it in a fresh process per run, the paths interleaved. CPU seconds cover
open → tables, with the loading of numba's code but without imports; the first run, which compiles, is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from tracelens import schema
from tracelens.presenters.perfetto_writer import write_perfetto
from tracelens.trace import Trace

ORIGIN = 1_790_000_000_000_000_000
THREADS = 4
CHILD = """
import json, resource, sys, time
from pathlib import Path
from tracelens.contracts import Source
from tracelens.health import Health
from tracelens.readers import perfetto, perfetto_fast
ways = {"auto": lambda: None, "generic": lambda: perfetto_fast.GENERIC, "numpy": lambda: perfetto_fast.NUMPY}
path, health = Path(sys.argv[1]), Health()
wall, cpu = time.perf_counter(), time.process_time()
way = ways.get(sys.argv[2], perfetto_fast.numba_way)()
trace = perfetto.read_by(way, Source(path.name, path), health)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([cpu, wall, peak / 1024, trace.slices.height, trace.facts.source_events, len(health)]))
"""


def sample(slices: int, seed: int = 0) -> Trace:
    """A Trace of `slices` slices: operators on four threads, one in five a kernel on a stream, flows, a counter."""
    chance = np.random.default_rng(seed)
    ops, kernels = slices * 4 // 5, slices // 5
    starts = np.cumsum(chance.integers(1, 3_000, ops) + 3_000)
    at = np.concatenate([starts, starts[::4][:kernels] + 1_000])
    on_gpu = np.arange(ops + kernels) >= ops
    number = np.arange(ops + kernels)
    names = np.where(on_gpu, 200 + number % 37, chance.integers(0, 200, ops + kernels))
    texts = [f"aten::op_{i}" for i in range(200)] + [f"kernel_{i}" for i in range(37)]
    dims = ["[[1,4096],[4096,4096]]", "[[8,128],[128,512],[]]", "[[2,64,64]]"]
    frame = pl.DataFrame(
        {
            "track_id": np.where(on_gpu, THREADS, number % THREADS),
            "start_ns": at,
            "dur_ns": np.where(on_gpu, 500, chance.integers(1, 3_000, ops + kernels)),
            "name": pl.Series(texts).gather(names),
            "external": number,
            "dims": pl.Series(dims).gather(number % 3),
        }
    ).with_columns(
        kind=pl.when(pl.col("track_id") == THREADS).then(pl.lit("kernel")).otherwise(pl.lit("op")),
        args=pl.concat_str(
            pl.lit('{"External id":'), "external", pl.lit(',"Input Dims":'), "dims", pl.lit(',"dtype":"bfloat16"}')
        ),
    )
    table = frame.drop("external", "dims").with_row_index("slice_id").with_columns(depth=pl.lit(0))
    pairs = min(kernels, len(range(0, ops, 4)))
    counted = np.arange(ops // 10)
    return Trace(
        origin_unix_ns=ORIGIN,
        tracks=schema.TRACKS.build(
            {
                "track_id": range(THREADS + 2),
                "kind": ["thread"] * THREADS + ["stream", "counter"],
                "process_id": [1_000] * (THREADS + 2),
                "thread_id": [1_000 + i for i in range(THREADS)] + [None, None],
                "name": [None] * (THREADS + 1) + ["kv_cache_used"],
                "device": [None] * THREADS + [0, None],
                "stream": [None] * THREADS + [7, None],
            }
        ),
        slices=schema.SLICES.build(table),
        flows=schema.FLOWS.build(
            {"from_id": np.arange(pairs) * 4, "to_id": ops + np.arange(pairs), "kind": ["launch"] * pairs}
        ),
        counters=schema.COUNTERS.build(
            {"track_id": np.full(len(counted), THREADS + 1), "at_ns": starts[counted * 10], "value": counted * 4096.0}
        ),
    )


def main() -> None:
    """Write, measure, print one row a path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=625_000)
    parser.add_argument("--paths", default="generic,numpy,numba")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--file", type=Path, help="measure this file instead, or keep the written one here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "sample.pftrace"
        if not path.exists():
            with path.open("wb") as file:
                write_perfetto(sample(options.slices), file)
        paths = options.paths.split(",")
        size = path.stat().st_size / 1e6
        runs: dict[str, list[list[float]]] = {each: [] for each in paths}
        for repeat in range(-1, options.repeats):
            for each in paths:
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, str(path), each], check=True, capture_output=True, text=True
                )
                if repeat >= 0:
                    runs[each].append(json.loads(done.stdout))
    print(f"{size:.1f} MB, median of {options.repeats}\n")
    print("| path | CPU s | MB/s (CPU) | wall s | peak RSS MB | slices | packets | health |")
    print("|---|---|---|---|---|---|---|---|")
    for each, found in runs.items():
        cpu, wall, peak, slices, packets, entries = (statistics.median(column) for column in zip(*found, strict=True))
        print(
            f"| {each} | {cpu:.2f} | {size / cpu:.1f} | {wall:.2f} | {peak:.0f} | {slices:,.0f} | {packets:,.0f} "
            f"| {entries:.0f} |"
        )


if __name__ == "__main__":
    main()
