"""The recorder's thread in a recorded process: says how far the process is, waits for a grant, records one window.

Knows nothing of the other processes: the parent reads the sidecars (`process.PID.json`), decides when a window opens
for all of them and leaves a grant (`.control/go.PID.json`). Whatever goes wrong becomes a line in the sidecar.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from time import monotonic_ns, time_ns

from . import beacons, device, facts, kineto
from .artifacts import Artifacts
from .probe import Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

POLL_S = 0.05
WATCH_S = 0.1
"""How often an open window looks whether it is told to end, and a closed one whether Triton was imported."""


class Agent:
    """Records this process in the thread that calls `run`, until `stopping` is set. Raises OSError without settings."""

    def __init__(self, settings_path: str, stopping: threading.Event, torch_usable: bool = True) -> None:
        with open(settings_path, encoding="utf-8") as file:
            self.settings = json.load(file)
        self.profiling = False
        self._stopping = stopping
        self._torch_usable = torch_usable
        self._folder = str(self.settings["folder"])
        self._control = str(self.settings["control"])
        self._sources = set(self.settings["sources"])
        self._wants_torch = "torch" in self._sources
        self._artifacts = Artifacts(os.path.join(self._folder, "triton")) if "triton" in self._sources else None
        self._pid = os.getpid()
        self._torch_since_ns: int | None = None
        self._sidecar: dict[str, Any] = {"state": "new", "threads": [], "anchors": [], "errors": []}
        self._sidecar.update(facts.identity())  # imports what it needs here, where no fork can come between

    @property
    def state(self) -> str:
        """How far the recording is: new, waiting, importing, ready, recording, closed, done or failed."""
        return str(self._sidecar["state"])

    def run(self) -> None:
        """Record one window, when it is granted; return when all is written, or the recording is over."""
        try:
            self._live()
        except BaseException as error:
            self._sidecar["errors"].append(f"recorder: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):
                self._say("failed")

    def _live(self) -> None:
        self._sidecar["recorder_os_tid"] = threading.get_native_id()
        self._sidecar["anchors"].append(facts.anchor())
        if "pyspy" in self._sources:
            facts.allow_tracing(int(self.settings["tracer"]))
        recorded = False
        while not self._stopping.is_set():
            if not os.path.isdir(self._control):
                return  # the recording is over; this process outlives it
            self._watch_triton()
            state = self._readiness()
            if state != self._sidecar["state"] and (not recorded or state == "ready"):
                # "ready" after a window without torch: a later import earns a full one, which replaces it.
                recorded = False
                self._say(state)
            grant = self._grant()
            if grant is not None:
                tried_torch = self._window(grant)
                if tried_torch or not self._wants_torch:
                    self._await_triton()
                    return
                recorded = True
            self._stopping.wait(POLL_S)
        if not recorded:
            self._sweep_triton()
            self._say("done")

    def _readiness(self) -> str:
        """Waiting (no torch yet), importing (soon) or ready."""
        if not self._wants_torch:
            return "ready"
        state = kineto.torch_state() if self._torch_usable else "absent"
        if state != "ready":
            return "waiting" if state == "absent" else state
        if self._torch_since_ns is None:
            self._torch_since_ns = monotonic_ns()
        early = monotonic_ns() - self._torch_since_ns < self.settings["cuda_grace_s"] * 1e9
        return "importing" if early and kineto.cuda_may_come(sys.modules["torch"]) else "ready"

    def _grant(self) -> dict[str, Any] | None:
        path = os.path.join(self._control, f"go.{self._pid}.json")
        try:
            with open(path, encoding="utf-8") as file:
                grant: dict[str, Any] = json.load(file)
            os.unlink(path)
        except (OSError, ValueError):
            return None
        return grant

    def _window(self, grant: dict[str, Any]) -> bool:
        """Record from the granted moment on; returns whether torch was recorded."""
        half, spied = beacons.BEACONS // 2, bool(grant["spied"])
        seen = beacons.burst(range(half)) if spied else []
        profiler = self._measure(int(grant["start_monotonic_ns"]), round(grant["seconds"] * 1e9))
        if spied:
            self._sidecar["beacons"] = seen + beacons.burst(range(half, beacons.BEACONS))
            facts.allow_tracing(0)
        self._sidecar["anchors"].append(facts.anchor())
        if "device" in self._sources:
            self._guard("device", self._read_device)
        self._sweep_triton()
        self._say("closed")
        if profiler is not None:
            self._guard("torch export", lambda: profiler.export(self._path(f"torch.{self._pid}.json")))
        self._say("done")
        return profiler is not None

    def _measure(self, start_ns: int, length_ns: int) -> kineto.Kineto | None:
        """Run probe and profiler from `start_ns` (CLOCK_MONOTONIC) for `length_ns`, 0 for until told to stop.

        The end holds also where the start was late, so that all processes close together. Returns the profiler, to
        be exported.
        """
        profiler = None
        probe = Probe(self._path(f"gil.{self._pid}.jsonl")) if "gil" in self._sources else None
        try:
            if probe is not None:
                probe.start()
                self._sidecar["probe_os_tid"] = probe.os_tid
            self._stopping.wait(max(0.0, (start_ns - monotonic_ns()) / 1e9))
            profiler = self._start_torch(probe)
            self._sidecar["window"] = {"start_unix_ns": time_ns(), "end_unix_ns": None}
            self._sidecar["threads"] = facts.threads()
            self._say("recording")
            end_ns = start_ns + length_ns if length_ns else None
            while not self._over(end_ns):
                profiler = profiler or self._start_torch(probe)
                self._watch_triton()
                left_s = WATCH_S if end_ns is None else (end_ns - monotonic_ns()) / 1e9
                self._stopping.wait(min(WATCH_S, max(0.0, left_s)))
            self._sidecar["window"]["end_unix_ns"] = time_ns()
            known = {thread["os_tid"] for thread in self._sidecar["threads"]}
            self._sidecar["threads"] += [thread for thread in facts.threads() if thread["os_tid"] not in known]
        finally:
            # The probe first: the profiler takes up to a second to stop, holding the GIL.
            if probe is not None:
                probe.stop()
                self._sidecar["errors"] += [probe.error] if probe.error else []
            at_exit, running = self._stopping.is_set(), profiler
            if running is not None and not self._guard("torch stop", lambda: running.stop(at_exit)):
                profiler = None
            self.profiling = False
        return profiler

    def _over(self, end_ns: int | None) -> bool:
        if self._stopping.is_set() or (end_ns is not None and monotonic_ns() >= end_ns):
            return True
        return os.path.exists(os.path.join(self._control, "stop")) or not os.path.isdir(self._control)

    def _start_torch(self, probe: Probe | None) -> kineto.Kineto | None:
        if not self._wants_torch or self._readiness() != "ready":
            return None
        scratch = os.path.join(self._control, f"stderr.{self._pid}")
        profiler = kineto.Kineto(bool(self.settings["with_stack"]), scratch)
        self.profiling = True
        if not self._guard("torch start", profiler.start):
            self._torch_usable = self.profiling = False
            return None
        self._sidecar["torch"] = profiler.facts
        if probe is not None:
            probe.unhook()
        return profiler

    def _watch_triton(self) -> None:
        if self._artifacts is not None and not self._artifacts.installed:
            self._guard("triton", self._artifacts.look)
            if self._artifacts.error is not None:
                self._sidecar["errors"].append(self._artifacts.error)

    def _await_triton(self) -> None:
        """After the window: kernels are wanted of the whole run, also if Triton is imported only now."""
        while self._artifacts is not None and not self._artifacts.installed and os.path.isdir(self._control):
            if self._stopping.wait(WATCH_S):
                return
            self._watch_triton()

    def _sweep_triton(self) -> None:
        if self._artifacts is not None:
            self._guard("triton", self._artifacts.sweep)

    def _read_device(self) -> None:
        self._sidecar["device"], self._sidecar["roofs"] = device.facts()

    def _guard(self, what: str, act: Callable[[], object]) -> bool:
        """Do it; a failure becomes a line in the sidecar and costs only this source."""
        try:
            act()
        except Exception as error:
            self._sidecar["errors"].append(f"{what}: {type(error).__name__}: {error}")
            return False
        return True

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _say(self, state: str) -> None:
        self._sidecar.update(facts.identity())  # again each time: a fork's name and rank come late
        self._sidecar["state"] = state
        self._sidecar["since_monotonic_ns"] = monotonic_ns()
        with contextlib.suppress(OSError):  # a full disk must not leave the profiler running
            facts.write_json(self._path(f"process.{self._pid}.json"), self._sidecar)
