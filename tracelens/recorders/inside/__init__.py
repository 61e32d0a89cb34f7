"""What runs inside a recorded process. Standard library only, Python 3.10 on; torch is used only if it is there.

Knows nothing of tracelens: the bootstrap loads this folder by path, under another name, in interpreters that may not
have tracelens. So: relative imports, and files as the only way in (settings, grants) and out (sidecar, sources).
This first module is what every Python process of a recorded command pays for: it imports `threading` and little else;
the agent is loaded when a process has lived a while.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent import Agent

SHORT_S = 0.2
"""A process that lives shorter than this, and imports no torch, leaves nothing."""
POLL_S = 0.05
EXIT_WAIT_S = 300.0
"""How long a process may be kept from ending while its trace is written; 100 MB take about 10 s."""
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch._inductor.compile_worker")

_current: Presence | None = None
_loading = threading.Lock()
"""Held while the agent is imported. A fork waits for it: its child could never import a module half imported here."""


def start(settings_path: str) -> None:
    """Called once by the bootstrap, in the main thread, before the program's first line."""
    if any(helper in word for helper in HELPERS for word in sys.orig_argv):
        return
    atexit.register(_stop_current)
    os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_after_fork)
    _begin(Presence(settings_path))


class Presence:
    """The recorder's thread in this process: `start` once, `stop` at exit (any number of times)."""

    def __init__(self, settings_path: str, torch_usable: bool = True) -> None:
        self.settings_path = settings_path
        self.agent: Agent | None = None
        self._torch_usable = torch_usable
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracelens-recorder", daemon=True)

    def start(self) -> None:
        """Start the recorder's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the window if one is open, and wait until its files are written."""
        self._stopping.set()
        if self._pid == os.getpid() and self._thread.is_alive():
            self._thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        waits = round(SHORT_S / POLL_S)
        while waits and "torch" not in sys.modules:
            if self._stopping.wait(POLL_S):
                return
            waits -= 1
        try:
            with _loading:
                from .agent import Agent

                self.agent = Agent(self.settings_path, self._stopping, self._torch_usable)
        except Exception:
            return  # no settings: the recording is over
        self.agent.run()


def _begin(presence: Presence) -> None:
    global _current
    _current = presence
    presence.start()


def _stop_current() -> None:
    if _current is not None:
        _current.stop()


def _after_fork() -> None:
    _loading.release()
    parent = _current
    if parent is None:
        return
    profiling = parent.agent is not None and parent.agent.profiling
    if profiling:
        # The copied tracer would write into the copied buffers for as long as the child lives.
        sys.setprofile(None)
    presence = Presence(parent.settings_path, torch_usable=not profiling)
    _begin(presence)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A multiprocessing child made by fork ends through os._exit, without atexit before 3.13; it clears the
        # finalizers first thing, so ours are registered when it says so.
        util.register_after_fork(presence, lambda presence: util.Finalize(None, presence.stop, exitpriority=-100))
