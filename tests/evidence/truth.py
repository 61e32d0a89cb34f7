"""A program that knows when things happened to it: it is recorded, and its own log says what the recording should say.

    python truth.py LOG SECONDS

Each round holds the GIL natively for 8 ms (longer than a switch interval, so that the probe, which waits, gets the GIL
before the program can read the clock again), opens a named torch span, and runs six
uniquely named Python functions of 1 ms (py-spy must see them while they run). A second thread moves blocks meanwhile.
The log is JSON: {"spans", "holds", "pieces"}, number → the moments between which it happened, CLOCK_REALTIME ns.
"""

import ctypes
import json
import sys
import threading
import time

FIRST_PIECE = 1000
"""The recorder's own beacons use the numbers below."""
PIECES = 6
HOLD_NS = 8_000_000


def make(number):
    """A spin of 1 ms under a name of its own."""
    names = {"time_ns": time.time_ns}
    name = f"_tracelens_beacon_{number}"
    source = f"def {name}(end):\n    while time_ns() < end: pass\n"
    exec(compile(source, "<truth>", "exec"), names)
    return names[name]


def main(log, seconds):
    """Run until the time is over, then write the log."""
    import torch
    from torch.profiler import record_function

    hold = ctypes.PyDLL(None).usleep
    stop = threading.Event()

    def move():
        while not stop.is_set():
            torch.ones(64) + 1
            time.sleep(0.001)

    worker = threading.Thread(target=move, name="mover")
    worker.start()
    known = {"spans": {}, "holds": {}, "pieces": {}}
    end, number = time.monotonic() + seconds, FIRST_PIECE
    while time.monotonic() < end:
        start = time.time_ns()
        hold(HOLD_NS // 1000)
        known["holds"][number] = (start + HOLD_NS, time.time_ns())
        span = record_function(f"truth {number}")
        before = time.time_ns()
        with span:
            known["spans"][number] = (before, time.time_ns())
        for _ in range(PIECES):
            piece = make(number)
            start = time.time_ns()
            piece(start + 1_000_000)
            known["pieces"][number] = (start, time.time_ns())
            number += 1
        time.sleep(0.012)
    stop.set()
    worker.join()
    with open(log, "w", encoding="utf-8") as file:
        json.dump(known, file)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
