"""Watches the recorded processes' sidecars, decides when a window opens, and has py-spy ready by then.

**When the window opens**: `delay` seconds after the last process became ready (torch imported), in all ready processes
at the same CLOCK_MONOTONIC moment. A process that is importing torch, or is younger than a second, is waited for, 15 s
at most: the children of a serving stack import at about the same time, and their windows then overlap. A process that
becomes ready later gets a window of its own, of full length. Processes without torch are recorded beside the others;
if for 10 s nothing imports torch, they are recorded alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelens.capture import Note
from tracelens.recorders.pyspy import Spy

PATIENCE_NS = 15_000_000_000
YOUNG_NS = 1_000_000_000
NO_TORCH_NS = 10_000_000_000
SPY_PATIENCE_NS = 3_000_000_000
LEAD_NS = 150_000_000
"""From the grant to the window: four beacons take 80 ms, the probe's start 5 ms."""
MOST_PROCESSES = 64
"""Past this a pool of workers is being recorded by accident, at some MB each."""


@dataclass
class Watcher:
    """Call `step` often; `finish` once, when the command is over."""

    folder: Path
    control: Path
    py_spy: str | None
    seconds: float
    delay: float
    say: Callable[[str], None] = lambda line: None
    sidecars: dict[int, dict[str, Any]] = field(default_factory=dict)
    spies: dict[int, Spy] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)
    _granted: dict[int, str] = field(default_factory=dict)
    _opening: list[int] = field(default_factory=list)
    _opening_until_ns: int = 0

    def step(self) -> None:
        """Read what changed; open a window if it is time; end the py-spy of a closed one."""
        self._look()
        for pid, spy in self.spies.items():
            if not spy.ended() and pid in self._granted and self._state(pid) in ("closed", "done", "failed"):
                spy.end()
        if self._opening:
            self._try_open()
        elif group := self._due():
            self._prepare(group)

    def busy(self) -> bool:
        """Whether a living process still has a window open, or a file to write."""
        self._look()
        return any(self._unfinished(pid) for pid in self._granted)

    def stop(self) -> None:
        """Tell all recorded processes to close their window now."""
        (self.control / "stop").touch()

    def finish(self) -> None:
        """End every py-spy that still runs, and read the last sidecars."""
        self._look()
        for spy in self.spies.values():
            spy.end()
        self._look()

    def _look(self) -> None:
        for path in self.folder.glob("process.*.json"):
            try:
                changed = path.stat().st_mtime_ns
                if self._read.get(path) == changed:
                    continue
                self._read[path] = changed
                sidecar = json.loads(path.read_bytes())
                if isinstance(sidecar, dict):
                    self.sidecars[int(path.name.split(".")[1])] = sidecar
            except (OSError, ValueError):
                continue

    def _state(self, pid: int) -> str:
        return str(self.sidecars.get(pid, {}).get("state", "waiting"))

    def _since(self, pid: int) -> int:
        since = self.sidecars[pid].get("since_monotonic_ns")
        return since if isinstance(since, int) else 0

    def _unfinished(self, pid: int) -> bool:
        return self._state(pid) not in ("done", "failed") and alive(pid)

    def _due(self) -> list[int]:
        """The processes whose window should open now."""
        now = time.monotonic_ns()
        living = [pid for pid in self.sidecars if self._state(pid) in ("waiting", "importing", "ready") and alive(pid)]
        ready = [pid for pid in living if self._state(pid) == "ready" and self._granted.get(pid) != "ready"]
        waiting = [pid for pid in living if self._state(pid) == "waiting" and pid not in self._granted]
        if not ready:
            importing = any(self._state(pid) == "importing" for pid in living)
            lonely = not self._granted and waiting and not importing
            late = lonely and now >= min(self._since(pid) for pid in waiting) + NO_TORCH_NS
            return waiting if late else []
        delay_ns = round(self.delay * 1e9)
        first, last = min(map(self._since, ready)), max(map(self._since, ready))
        coming = [
            pid for pid in living if self._state(pid) == "importing" or (pid in waiting and self._young(pid, now))
        ]
        if now < last + delay_ns or (coming and now < first + delay_ns + PATIENCE_NS):
            return []
        return ready + [pid for pid in waiting if not self._young(pid, now)]

    def _young(self, pid: int, now: int) -> bool:
        return now < self._since(pid) + YOUNG_NS

    def _prepare(self, group: list[int]) -> None:
        room = MOST_PROCESSES - len(self._granted)
        if len(group) > room:
            says = f"more than {MOST_PROCESSES} processes: the later ones were not recorded"
            if not any(note.code == "too-many-processes" for note in self.notes):
                self.notes.append(Note(code="too-many-processes", says=says))
            group = group[: max(0, room)]
        for pid in group:
            if self.py_spy is not None and self._state(pid) == "ready":
                self.spies[pid] = Spy(self.py_spy, pid, self.folder, self.control / f"pyspy.{pid}.log")
        self._opening = group
        self._opening_until_ns = time.monotonic_ns() + SPY_PATIENCE_NS

    def _try_open(self) -> None:
        spies = {pid: self.spies[pid] for pid in self._opening if pid in self.spies}
        if time.monotonic_ns() < self._opening_until_ns and not all(spy.settled() for spy in spies.values()):
            return
        start = time.monotonic_ns() + LEAD_NS
        for pid in self._opening:
            spied = pid in spies and not spies[pid].ended()
            grant = {"start_monotonic_ns": start, "seconds": self.seconds, "spied": spied}
            scratch = self.control / f"go.{pid}.tmp"
            scratch.write_text(json.dumps(grant), encoding="utf-8")
            scratch.replace(self.control / f"go.{pid}.json")
            self._granted[pid] = self._state(pid)
        length = f"{self.seconds:g} s" if self.seconds else "until the command ends"
        self.say(f"recording {len(self._opening)} process(es), {length}")
        self._opening = []


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie doesn't)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
