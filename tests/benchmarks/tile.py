"""Make a Kineto JSON file of any size by tiling real traces: times shifted, ids kept unique, text as torch writes it.

python -m tests.benchmarks.tile OUT MEGABYTES TRACE…
"""

import gzip
import json
import re
import sys
from pathlib import Path

IDS = ("External id", "correlation", "Python id", "Python parent id")
_ID = re.compile(r'("(?:' + "|".join(IDS) + r')": )(\d+)')
_FLOW_ID = re.compile(r'("id": )(\d+)')
_TS = re.compile(r'("ts": )(\d+)(\.\d+)?')
GAP_US = 1000


def templates(paths):
    """(text pieces, ids and times to fill in) of every timed event of the traces, and the length of one tile in µs."""
    out, offset, ids = [], 0, 0
    for path in paths:
        raw = Path(path).read_bytes()
        events = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["traceEvents"]
        timed = [e for e in events if e.get("ph") in ("X", "s", "f", "i") and isinstance(e.get("pid"), int)]
        start = min(int(e["ts"]) for e in timed)
        largest = 0
        for event in timed:
            text = json.dumps(event, ensure_ascii=False)
            parts = []
            at = 0
            for match in re.finditer(f"{_TS.pattern}|{_ID.pattern}|{_FLOW_ID.pattern}", text):
                key, number = next((k, n) for k, n in _pairs(match) if k)
                parts.append(text[at : match.start()] + key)
                value = int(number)
                if '"ts"' in key:
                    parts.append((True, value - start + offset))
                    at = match.start() + len(key) + len(number)
                else:
                    largest = max(largest, value)
                    parts.append((False, value + ids))
                    at = match.end()
            parts.append(text[at:])
            out.append(parts)
        end = max(int(e["ts"] + e.get("dur", 0)) for e in timed)
        offset += end - start + GAP_US
        ids += largest + 1
    return out, offset, ids


def _pairs(match):
    groups = match.groups()
    return (groups[0], groups[1]), (groups[3], groups[4]), (groups[5], groups[6])


def write(out, megabytes, paths):
    """Tile until the file has about `megabytes`; returns the number of events."""
    made, length, ids = templates(paths)
    events = tile = 0
    with open(out, "w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "displayTimeUnit": "ms",\n')
        file.write('  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n')
        while file.tell() < megabytes * 1e6:
            shift = (tile * length, tile * ids)
            for parts in made:
                text = "".join(p if isinstance(p, str) else str(p[1] + shift[0 if p[0] else 1]) for p in parts)
                file.write(("  " if events == 0 else ",\n  ") + text)
                events += 1
            tile += 1
        file.write("\n  ]\n}\n")
    return events


if __name__ == "__main__":
    print(write(sys.argv[1], float(sys.argv[2]), sys.argv[3:]), "events")
