"""What the launcher and the role processes say to each other.

A role process inherits two descriptors, named in the environment: a memory file with its `Handoff`, read once and
closed, so that neither a command line nor a file tells how the process was set up; and a socket for JSON lines:
`ready` → `go`, then `stop` at any time, and `report` or `error` at the end. A closed socket means that the launcher
died, and counts as `stop`. This module does not know what a role does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracelens_serving.errors import ServingError
from tracelens_serving.settings import Settings, flatten, resolve

DESCRIPTORS = "TRACELENS_SERVING_FDS"


@dataclass(frozen=True)
class Handoff:
    """All that a role process is told."""

    settings: Settings
    seed: int
    rank: int  # of a prefill rank; 0 for decode
    shared_fd: int  # the memory file that the prefill ranks share; -1 for decode
    listener_fd: int  # the socket on which decode accepts KV links; -1 for prefill
    port: int  # its port on 127.0.0.1
    seconds: float | None  # stop after so long
    requests: int | None  # stop after so many

    def seal(self) -> int:
        """Return a memory file that holds this."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {
            "settings": flatten(self.settings)
        }
        fd = os.memfd_create("handoff")
        with os.fdopen(fd, "w", closefd=False) as file:
            json.dump(values, file)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    @classmethod
    def unseal(cls, fd: int) -> Handoff:
        """Read what `seal` wrote, and close it."""
        with os.fdopen(fd) as file:
            values = json.load(file)
        return cls(**values | {"settings": resolve(values["settings"])})


class Messages:
    """One end of the control socket: JSON objects, one a line."""

    def __init__(self, end: socket.socket):
        self.socket = end
        self._lines = end.makefile("r", encoding="utf-8")

    def send(self, kind: str, value: Any = None) -> None:
        """Send one message; nothing happens when the other side is gone."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps({"kind": kind, "value": value}).encode() + b"\n")

    def receive(self) -> tuple[str, Any] | None:
        """Wait for a message; None when the other side is gone."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        if not line.endswith("\n"):
            return None
        message = json.loads(line)
        return message["kind"], message["value"]

    def close(self) -> None:
        """Close this end; the other side takes it as `stop`."""
        self._lines.close()
        self.socket.close()


class Control:
    """A role process's side: says when it is ready and knows when to stop."""

    def __init__(self, messages: Messages):
        self._messages = messages
        self._may_go = threading.Event()
        self.stopping = threading.Event()
        self.on_stop: Callable[[], Any] = lambda: None
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def ready(self) -> None:
        """Say that this process can start, and wait until all can.

        `on_stop`, to be set before, is called after a stop: here or in another thread, perhaps twice.
        """
        self._messages.send("ready")
        self._may_go.wait()
        if self.stopping.is_set():  # perhaps before `on_stop` was set
            self.on_stop()

    def _listen(self) -> None:
        while (message := self._messages.receive()) and message[0] == "go":
            self._may_go.set()
        self.stopping.set()
        self._may_go.set()
        self.on_stop()


def run_role(work: Callable[[Handoff, Control], dict]) -> int:
    """Run a role's `work` in this process and send its report, or its error; return the exit code."""
    handoff_fd, control_fd = map(int, os.environ.pop(DESCRIPTORS).split(","))
    handoff = Handoff.unseal(handoff_fd)
    for fd in (control_fd, handoff.shared_fd, handoff.listener_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)  # not for processes that a tool starts in here
    messages = Messages(socket.socket(fileno=control_fd))
    control = Control(messages)
    signal.signal(signal.SIGTERM, lambda *_: control.stopping.set())
    try:
        messages.send("report", work(handoff, control))
    except ServingError as error:
        messages.send("error", error.message)
    except Exception as error:  # the launcher shows one line for any failure, so all must get there
        where = traceback.extract_tb(error.__traceback__)[-1]
        messages.send("error", f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})")
    else:
        return 0
    return 1
