"""torch.profiler around a window, started and stopped by the recorder's own thread. Never imports torch first.

Measured on torch 2.13 (CPU) and 2.11 (H200): started from a second thread it records Python functions and
record_function spans of all threads (with profile_all_threads); a window that closes amid graph captures breaks none.
Uses torch.autograd.profiler, since torch.profiler.profile imports all of torch._inductor and sympy when it starts:
2 s of import lock and GIL taken from the target, against 1 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def torch_state() -> str:
    """How far torch is in this process: absent, importing or ready. Looks, imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "absent"
    if getattr(getattr(torch, "__spec__", None), "_initializing", False):
        return "importing"
    return "ready" if hasattr(torch, "autograd") and hasattr(torch, "_C") else "importing"


def cuda_may_come(torch: Any) -> bool:
    """Whether this torch could use a GPU here and has not begun to. Asks no driver: that would break a later fork."""
    built = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    device = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return bool(built) and device and not hidden and not torch.cuda.is_initialized()


class Kineto:
    """One profiler run: `start`, `stop`, `export`, each called on the same thread."""

    def __init__(self, with_stack: bool, scratch: str) -> None:
        self.facts: dict[str, Any] = {}
        self._with_stack = with_stack
        self._scratch = scratch
        self._profile: Any = None

    def start(self) -> None:
        """Start the profiler. CUDA is recorded only where the program has already initialised it."""
        torch = sys.modules["torch"]
        cuda = bool(torch.cuda.is_initialized())
        config, all_threads = _all_threads(torch)
        profile = torch.autograd.profiler.profile(
            use_cpu=True,
            use_device="cuda" if cuda else None,
            with_stack=self._with_stack,
            use_kineto=True,
            experimental_config=config,
        )
        with _quiet(self._scratch):
            profile.__enter__()
        self._profile = profile
        self.facts = {
            "version": str(torch.__version__),
            "cuda": torch.version.cuda,
            "triton": getattr(sys.modules.get("triton"), "__version__", None),
            "activities": ["cpu", "cuda"] if cuda else ["cpu"],
            "with_stack": self._with_stack,
            "profile_all_threads": all_threads,
            "cuda_not_initialised": cuda_may_come(torch),
            "device": _device(torch) if cuda else {},
        }
        # The recorder's own frames say nothing about the program.
        sys.setprofile(None)
        self._annotate(torch)

    def stop(self, at_exit: bool) -> None:
        """Stop the profiler. The device is waited for only at exit: elsewhere that would break a graph capture."""
        if not at_exit:
            self._profile.use_device = None
        self._profile.__exit__(None, None, None)

    def export(self, path: str) -> None:
        """Write the trace as JSON, uncompressed: the parent packs it, the target has other work."""
        self._profile.export_chrome_trace(path)
        self._profile = None

    def _annotate(self, torch: Any) -> None:
        """What torch.profiler.profile would have written into the trace's head."""
        with contextlib.suppress(Exception):
            add = torch.autograd._add_metadata_json
            if self._with_stack:
                add("with_stack", "1")
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                rank, size = distributed.get_rank(), distributed.get_world_size()
                known = {"backend": distributed.get_backend(), "rank": rank, "world_size": size}
                add("distributedInfo", json.dumps(known))


def _all_threads(torch: Any) -> tuple[Any, bool]:
    """The configuration without which record_function spans of other threads are absent, where torch has it."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True), True
    except (AttributeError, TypeError):
        return None, False


def _device(torch: Any) -> dict[str, Any]:
    try:
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "name": facts.name,
            "capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
            "multiprocessors": facts.multi_processor_count,
            "count": torch.cuda.device_count(),
        }
    except Exception:
        return {}


@contextlib.contextmanager
def _quiet(scratch: str) -> Iterator[None]:
    """Keep Kineto's start-up lines off the target's stderr for the millisecond of the start.

    It prints "ERROR: External init callback must run in same thread…" when started off the main thread, which costs
    only its on-demand mode. The text goes to `scratch`; Python's own sys.stderr is untouched. The stream is not
    closed again: another thread may hold it.
    """
    level = os.environ.get("KINETO_LOG_LEVEL")
    try:
        libc = ctypes.CDLL(None)
        stream = ctypes.c_void_p.in_dll(libc, "stderr")
        libc.fopen.restype = ctypes.c_void_p
        before, other = stream.value, libc.fopen(scratch.encode(), b"w")
    except (OSError, ValueError, AttributeError):
        before = other = None
    if level is None:
        os.environ["KINETO_LOG_LEVEL"] = "6"  # 5 still prints two "USDT:" lines a run
    if other:
        stream.value = other
    try:
        yield
    finally:
        if other:
            stream.value = before
            libc.fflush(ctypes.c_void_p(other))
        if level is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
