"""What a process can say about itself: clocks, threads, interpreter. Knows nothing of recording."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import sysconfig
import threading
from time import monotonic_ns, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PTRACER = 0x59616D61


def anchor() -> dict[str, int]:
    """One moment on CLOCK_MONOTONIC and CLOCK_REALTIME: the tightest of five readings, with its half-width in ns."""
    tries = []
    for _ in range(5):
        before, real, after = monotonic_ns(), time_ns(), monotonic_ns()
        tries.append((after - before, before, real))
    width, before, real = min(tries)
    return {"monotonic_ns": before + width // 2, "realtime_ns": real, "halfwidth_ns": width // 2 + 1}


def gil() -> dict[str, bool | None]:
    """Whether this interpreter was built without a GIL, and whether it holds one now (always, before 3.13)."""
    asked = getattr(sys, "_is_gil_enabled", None)
    return {
        "build_disabled": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "enabled": bool(asked()) if asked is not None else True,
    }


def threads() -> list[dict[str, Any]]:
    """The Python threads alive now; Kineto calls a thread by its os_tid, py-spy by its pthread_id."""
    return [{"os_tid": t.native_id, "pthread_id": t.ident, "name": t.name} for t in threading.enumerate()]


def identity() -> dict[str, Any]:
    """Who this process is. Of the environment only rank, world size and role; of the command line only the script."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "name": _name(),
        "role": os.environ.get("TRACELENS_ROLE"),
        "rank": _integer(os.environ.get("RANK")),
        "world_size": _integer(os.environ.get("WORLD_SIZE")),
        "python": ".".join(map(str, sys.version_info[:3])),
        "host": os.uname().nodename,
        "gil": gil(),
        "switch_interval_ns": round(sys.getswitchinterval() * 1e9),
    }


def allow_tracing(pid: int) -> None:
    """Let `pid` and its children read this process, where Yama allows that only to ancestors; 0 takes it back.

    py-spy is the recorder's child, not the target's ancestor. Untested: no machine with Yama was at hand.
    """
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            if file.read().strip() == "1":
                ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
    except (OSError, AttributeError):
        return


def write_json(path: str, value: Any) -> None:
    """Write in one step, so that a reader never sees half a file."""
    scratch = f"{path}.tmp"
    with open(scratch, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(scratch, path)


def _name() -> str:
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return str(multiprocessing.current_process().name)
    words = sys.orig_argv[1:]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) and sys.argv[0] else "python"


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
