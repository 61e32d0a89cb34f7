"""How far each source of a recording is off its common clock, against what the program itself knows.

python -m tests.evidence.alignment [--runs 20] [--seconds 3]

One line a source: the median |error| over the runs, the worst, how well the program's log can tell, the claimed
half-width, and in how many runs that covers the error. The log says between which moments things happened: a span's
start (Kineto), the probe's wake after a native call that held the GIL, a named function of 1 ms (py-spy). The error of
a run is the middle of the shifts that the most of its things allow; a claim covers it if it allows one of them.
"""

import argparse
import gzip
import json
import sys
import tempfile
from bisect import bisect
from pathlib import Path
from statistics import median

from tests.evidence.truth import HOLD_NS
from tracelens.recorders import together
from tracelens.recorders.align import allowed_offsets, sightings

PROGRAM = Path(__file__).with_name("truth.py")
LIMITS_MS = {"kineto": 0.1, "gil_probe": 0.05, "pyspy": 1.5}
"""What issue 5 asks of the medians."""


def of_kineto(path, source):
    """When each named span starts: (number, ns)."""
    with gzip.open(path) as file:
        trace = json.load(file)
    base = trace["baseTimeNanoseconds"] + source.offset_ns
    named = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["name"].startswith("truth ")]
    return [(int(event["name"].split()[1]), base + round(event["ts"] * 1000)) for event in named]


def of_probe(path, source, holds):
    """When the probe woke after the start of each hold."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    wakes = sorted(row[0] + source.offset_ns for line in lines if isinstance(line, list) for row in line)
    places = [(number, bisect(wakes, start - HOLD_NS // 2)) for number, (start, _) in holds.items()]
    return [(number, wakes[place]) for number, place in places if place < len(wakes)]


def of_pyspy(path, source):
    """When each named function was seen."""
    return [(number, at + source.offset_ns) for number, at in sightings(json.loads(path.read_text()))]


def errors(kind, path, source, truth):
    """Least and largest time in ns by which the source is ahead, as far as the program's log can tell; or None."""
    log = {"kineto": "spans", "gil_probe": "holds", "pyspy": "pieces"}[kind]
    known = {int(number): tuple(between) for number, between in truth[log].items()}
    read = {"kineto": of_kineto, "pyspy": of_pyspy}
    seen = of_probe(path, source, known) if kind == "gil_probe" else read[kind](path, source)
    seen = [(number, at) for number, at in seen if number in known]
    if len(seen) < 5:
        return None
    low, high = allowed_offsets(known, seen)
    return -high, -low


def one_run(seconds):
    """source kind → (least error, largest error, claimed half-width, how it was aligned), ns; without failed ones."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "truth.json"
        command = [sys.executable, str(PROGRAM), str(log), f"{seconds + 2:g}"]
        recording = together.record(
            command, Path(folder) / "run.capture", ("torch", "gil", "pyspy"), seconds=seconds, delay=0.3
        )
        truth = json.loads(log.read_text())
        found = {}
        for source in recording.manifest.sources:
            between = errors(source.kind, recording.folder / source.path, source, truth)
            if between:
                how = source.options.get("how_aligned", "anchors")
                found[source.kind] = (*between, source.align_halfwidth_ns, how)
        return found


def main():
    """Print the table; exit 1 if a median is over its limit or a half-width covers too few runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    runs = [one_run(options.seconds) for _ in range(options.runs)]
    print("| source | runs | median error, ms | worst | truth within | claimed half-width | covers | limit | by |")
    print("|---|---|---|---|---|---|---|---|---|")
    good = True
    for kind, limit in LIMITS_MS.items():
        rows = [run[kind] for run in runs if kind in run]
        if not rows:
            print(f"| {kind} | 0 | | | | | {limit} | |")
            good = False
            continue
        middles = [abs(low + high) / 2e6 for low, high, _, _ in rows]
        known = median((high - low) / 2e6 for low, high, _, _ in rows)
        covers = sum(low <= halfwidth and high >= -halfwidth for low, high, halfwidth, _ in rows)
        ways = {how: sum(way == how for *_, way in rows) for *_, how in rows}
        width = median(halfwidth for _, _, halfwidth, _ in rows) / 1e6
        told = (median(middles), max(middles), known, width)
        numbers = " | ".join(f"{value:.4f}" for value in told)
        print(f"| {kind} | {len(rows)} | {numbers} | {covers} of {len(rows)} | {limit} | {ways} |")
        good &= median(middles) <= limit and covers >= 0.95 * len(rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
