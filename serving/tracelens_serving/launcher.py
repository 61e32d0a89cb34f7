"""Start the roles, watch them, end them: the process that the user started. It imports no torch and computes nothing.

However it ends, no child and no shared memory is left: children share an anonymous memory file and stop when their
control socket closes, even if this process is killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tracelens_serving import native
from tracelens_serving.control import DESCRIPTORS, Handoff, Messages
from tracelens_serving.errors import ServingError
from tracelens_serving.settings import WORLD_SIZE, Settings

GRACE_S = 60.0  # for children to end by themselves: a profiler in them may write a large trace at exit
FAILED_GRACE_S = 10.0  # the same after a failure
LOOK_S = 0.2  # how often to look at signals
ABORT_AFTER_S = 1.0  # a rank whose peer has died waits no longer than this


@dataclass
class Child:
    """A role process."""

    name: str
    process: subprocess.Popen
    messages: Messages
    ready: bool = False
    report: dict | None = None
    error: str | None = None
    gone: bool = False  # its end of the control socket is closed


@dataclass
class Launcher:
    """One run."""

    settings: Settings
    seed: int
    seconds: float | None
    requests: int | None
    children: list[Child] = field(default_factory=list)
    stop_signal: int | None = None  # the signal that ended the run early
    first_error: str | None = None
    shared_fd: int = -1

    def run(self) -> dict[str, Any]:
        """Run to the end and return the summary; ServingError when a child failed."""
        native.load()  # once, here: its errors come before any process does
        begun = time.perf_counter()
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        self.shared_fd = os.memfd_create("expert_parallel")
        try:
            self._start_all()
            self._listen(lambda child: child.ready or child.gone)
            started = time.perf_counter()
            if not self._failed():
                self._tell("go")
                self._listen(lambda child: child.report is not None or child.gone)
            ended = time.perf_counter()
            self._end_all()
        finally:
            for child in self.children:
                if child.process.poll() is None:
                    child.process.kill()
                    child.process.wait()
                child.messages.close()
            os.close(self.shared_fd)
            for number, handler in previous.items():
                signal.signal(number, handler)
        self._raise_failure()
        *prefill, decode = (child.report for child in self.children)
        return {
            "schema": "tracelens_serving.run/1",
            "startup_s": round(started - begun, 3),
            "wall_s": round(ended - started, 3),
            "prompt_tokens": self.settings.load.prompt_tokens,
            "outputs_sha256": decode.pop("outputs_sha256"),
            "prefill": prefill,
            "decode": decode,
        }

    def _start_all(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=WORLD_SIZE) as listener:
            common = Handoff(
                settings=self.settings,
                seed=self.seed,
                rank=0,
                shared_fd=-1,
                listener_fd=-1,
                port=listener.getsockname()[1],
                seconds=self.seconds,
                requests=self.requests,
            )
            for rank in range(WORLD_SIZE):
                handoff = replace(common, rank=rank, shared_fd=self.shared_fd)
                environment = {"TRACELENS_ROLE": "prefill", "RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE)}
                self._start(f"prefill rank {rank}", "prefill", handoff, environment, self.shared_fd)
            handoff = replace(common, listener_fd=listener.fileno())
            self._start("decode", "decode", handoff, {"TRACELENS_ROLE": "decode"}, listener.fileno())

    def _start(self, name: str, role: str, handoff: Handoff, environment: dict[str, str], fd: int) -> None:
        ours, theirs = socket.socketpair()
        handoff_fd = handoff.seal()
        inherited = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
        process = subprocess.Popen(
            [sys.executable, "-m", f"tracelens_serving.{role}"],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is for the summary
            env=inherited | environment | {DESCRIPTORS: f"{handoff_fd},{theirs.fileno()}"},
            pass_fds=(handoff_fd, theirs.fileno(), fd),
            process_group=0,  # Ctrl-C is for the launcher, which lets the roles drain
        )
        os.close(handoff_fd)
        theirs.close()
        self.children.append(Child(name, process, Messages(ours)))

    def _listen(self, done: Callable[[Child], bool]) -> None:
        """Take messages until `done(child)` for every child, or until one has failed."""
        told_to_stop = False
        with selectors.DefaultSelector() as selector:
            for child in self.children:
                selector.register(child.messages.socket, selectors.EVENT_READ, child)
            while not all(done(child) for child in self.children) and not self._failed():
                if self.stop_signal and not told_to_stop:
                    told_to_stop = True
                    # Decode ends when the prefill ranks have closed their links.
                    self._tell("stop", [child for child in self.children if child.name != "decode"])
                for key, _ in selector.select(LOOK_S):
                    self._take(key.data)
                    if key.data.gone:
                        selector.unregister(key.fileobj)

    def _take(self, child: Child) -> None:
        message = child.messages.receive()
        match message:
            case None:
                child.gone = True
            case ("ready", _):
                child.ready = True
            case ("report", report):
                child.report = report
            case ("error", error):
                child.error = error
                self.first_error = self.first_error or f"{child.name}: {error}"

    def _tell(self, kind: str, children: list[Child] | None = None) -> None:
        for child in self.children if children is None else children:
            child.messages.send(kind)

    def _failed(self) -> bool:
        return any(child.error or (child.gone and child.report is None) for child in self.children)

    def _end_all(self) -> None:
        """Let the children end by themselves; make those end that do not."""
        failed = self._failed()
        self._tell("stop")
        if failed:
            self._wait_for_exits(ABORT_AFTER_S)
            os.pwrite(self.shared_fd, native.ABORT_WORD, 0)
        self._wait_for_exits(FAILED_GRACE_S if failed else GRACE_S)
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
                child.error = child.error or "did not end and was killed"
            child.process.wait()
            while not child.gone:
                self._take(child)

    def _wait_for_exits(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        for child in self.children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return

    def _raise_failure(self) -> None:
        """Raise ServingError for the child that failed first; others may have failed because of it."""
        for child in self.children:
            if child.process.returncode and child.error is None:
                raise ServingError(f"{child.name} ended with {_ending(child.process.returncode)}")
        if self.first_error:
            raise ServingError(self.first_error)
        for child in self.children:
            if child.error:
                raise ServingError(f"{child.name} {child.error}")

    def _on_signal(self, number: int, _frame: object) -> None:
        if self.stop_signal:  # asked twice: do not wait for anything
            for child in self.children:
                child.process.kill()
        self.stop_signal = number


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
