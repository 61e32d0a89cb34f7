"""The py-spy source: which thread held the GIL, sampled from outside, one py-spy a recorded process.

Starts and ends py-spy and reads what it printed and wrote. Its clock is found by `align`. `--native` is never used: it
loses the whole sample where a thread is in clock_gettime, which is where a polling native call spends its time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracelens.capture import Note
from tracelens.contracts import Availability, Recorder
from tracelens.recorders.align import Alignment, align, sightings

RATE_HZ = 250
"""With --nonblocking 1 % of a core and no measurable pause of the target; 1000 Hz costs 4 %."""
_CURE = "pip install py-spy"
_REFUSED = re.compile(r"permission denied|operation not permitted|os error 1\b|ptrace", re.IGNORECASE)
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")


def binary() -> str | None:
    """Path of the py-spy program: beside this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _available() -> Availability:
    if binary() is None:
        return Availability(False, "no py-spy program beside this interpreter or on PATH", _CURE)
    return Availability(True)


RECORDER = Recorder("pyspy", "py-spy --gil: which Python line holds the GIL, sampled from outside", _available)


def missing() -> Note:
    """The note of a capture that wanted samples and found no py-spy."""
    return Note(code="pyspy-missing", says=f"py-spy is not installed: no samples; {_CURE}")


class Spy:
    """One py-spy at work on one process; its output goes to `folder`, what it prints to `log`."""

    def __init__(self, program: str, pid: int, folder: Path, log: Path) -> None:
        self.pid = pid
        self.path = folder / f"pyspy.{pid}.json"
        self.exit_monotonic_ns: int | None = None
        self._log = log
        command = [program, "record", "--pid", str(pid), "--gil", "--nonblocking", "-t", "-r", str(RATE_HZ)]
        command += ["-f", "chrometrace", "-o", str(self.path)]
        with log.open("wb") as out:
            # Its own session: a Ctrl-C meant for the command must not end it before the last beacons.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def said(self) -> str:
        """All that it has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def settled(self) -> bool:
        """Whether it samples, or has ended."""
        return self.ended() or "Sampling process" in self.said()

    def ended(self) -> bool:
        """Whether it has ended; notes when that was first seen."""
        if self._process.poll() is None:
            return False
        if self.exit_monotonic_ns is None:
            self.exit_monotonic_ns = time.monotonic_ns()
        return True

    def end(self, patience_s: float = 5.0) -> None:
        """Make it write its file and end; kill it if it doesn't within `patience_s`."""
        if self._process.poll() is None:
            self._process.send_signal(2)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.ended()

    def refusal(self) -> str | None:
        """Why it recorded nothing, in one line; None if it did."""
        if self.path.is_file() and self.path.stat().st_size:
            return None
        said = [line.strip() for line in self.said().splitlines() if line.strip()]
        first = next((line for line in said if line.startswith("Error")), said[0] if said else "it said nothing")
        return first[:300]

    def refused(self) -> bool:
        """Whether the reason is a missing permission."""
        return bool(_REFUSED.search(self.said()))

    def options(self) -> dict[str, Any]:
        """How it was recorded, and how much: a reader needs `gil` to tell owners from all stacks."""
        counts = _COUNTS.search(self.said())
        return {
            "gil": True,
            "nonblocking": True,
            "rate_hz": RATE_HZ,
            "samples": int(counts[1]) if counts else None,
            "errors": int(counts[2]) if counts else None,
        }

    def alignment(self, beacons: list[list[int]]) -> Alignment | None:
        """Its clock against CLOCK_MONOTONIC; None for an empty or unreadable file."""
        try:
            events = json.loads(self.path.read_bytes())
            seen = sightings(events)
            last = max(round(event["ts"] * 1000) for event in events if "ts" in event)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        logged: Mapping[int, tuple[int, int]] = {index: (start, end) for index, start, end in beacons}
        return align(logged, seen, self.exit_monotonic_ns or time.monotonic_ns(), last)
