"""The GIL probe: a thread that wants the GIL a thousand times a second, and writes down how late it got it.

Late minus the kernel's run-queue delay is time spent waiting for the GIL; without that term a busy machine looks like
a held GIL (25 % of wall in a run whose call released it). Costs 2 % of a core, up to 3.4 % on an overloaded machine.
Knows nothing of who held the GIL.

File: line 1 a header, then lines that are JSON arrays of rows [wake_monotonic_ns, late_ns, run_delay_ns|null], at last
{"end": true, "rows": N, "cpu_ns": its own CPU time, "anchors": [...]}. Without the last line the process was killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from time import monotonic_ns, sleep, thread_time_ns

from . import facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 256
"""Rows a write: a killed process loses at most a quarter of a second."""


class Probe:
    """One run of the probe, from `start` to `stop`, into one file."""

    def __init__(self, path: str, period_ns: int = 1_000_000) -> None:
        self.os_tid: int | None = None
        self.error: str | None = None
        self._path = path
        self._period_ns = period_ns
        self._unhook = False
        self._stop = False
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracelens-gil-probe", daemon=True)

    def start(self) -> None:
        """Start ticking; returns when the first line is written."""
        self._thread.start()
        self._up.wait(1.0)

    def unhook(self) -> None:
        """After a Python tracer was installed in all threads: drop it from this one, whose rows only fill the trace."""
        self._unhook = True

    def stop(self) -> None:
        """Stop ticking and close the file."""
        self._stop = True
        self._thread.join(2.0)

    def _run(self) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._tick(file)
            finally:
                os.close(file)
        except Exception as error:
            self.error = f"gil probe: {type(error).__name__}: {error}"
        finally:
            self._up.set()

    def _tick(self, file: int) -> None:
        self.os_tid = threading.get_native_id()
        _line(file, self._header())
        delays = _run_delays()
        period_s, period_ns = self._period_ns / 1e9, self._period_ns
        rows: list[Any] = [None] * CHUNK
        filled = total = 0
        delay = _second(os.pread(delays, 64, 0)) if delays is not None else None
        self._up.set()
        while not self._stop:
            asleep = monotonic_ns()
            sleep(period_s)
            woke = monotonic_ns()
            rows[filled] = (woke, woke - asleep - period_ns, None if delays is None else os.pread(delays, 64, 0))
            filled += 1
            if filled == CHUNK:
                delay = _flush(file, rows, delay)
                total, filled = total + filled, 0
            if self._unhook:
                sys.setprofile(None)
                self._unhook = False
        _flush(file, rows[:filled], delay)
        _line(file, {"end": True, "rows": total + filled, "cpu_ns": thread_time_ns(), "anchors": [facts.anchor()]})
        if delays is not None:
            os.close(delays)

    def _header(self) -> dict[str, Any]:
        return {
            "format": "tracelens.gil_probe/1",
            "pid": os.getpid(),
            "os_tid": self.os_tid,
            "period_ns": self._period_ns,
            "clock": "CLOCK_MONOTONIC",
            "gil": facts.gil(),
            "switch_interval_ns": round(sys.getswitchinterval() * 1e9),
            "anchors": [facts.anchor()],
        }


def _run_delays() -> int | None:
    """The open schedstat file of the calling thread, whose second number is its run-queue delay in ns."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        _second(os.pread(file, 64, 0))
    except (OSError, ValueError, IndexError):
        os.close(file)
        return None
    return file


def _second(text: bytes) -> int:
    return int(text.split()[1])


def _flush(file: int, rows: list[Any], delay: int | None) -> int | None:
    """Write the rows, their schedstat texts turned into differences; returns the last run-queue delay."""
    made = []
    for woke, late, text in rows:
        if text is None or delay is None:
            made.append([woke, late, None])
        else:
            now = _second(text)
            made.append([woke, late, now - delay])
            delay = now
    if made:
        _line(file, made)
    return delay


def _line(file: int, value: Any) -> None:
    os.write(file, json.dumps(value, separators=(",", ":")).encode() + b"\n")
