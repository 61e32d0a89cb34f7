"""Copies what Triton compiles, or loads from its cache, into the capture: each kernel's TTIR and a few facts beside it.

A compilation listener (triton 3.4 on) is told of every kernel; those made before it could be installed, and the
registers that are known only once a kernel was loaded, are taken from Triton's own caches when the window closes.
No binary is kept, and Triton is never imported first. Knows nothing of launches.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FACTS = (
    "name", "hash", "target", "num_warps", "num_ctas", "num_stages", "shared", "n_regs", "n_spills", "triton_version",
    "enable_fp_fusion", "default_dot_input_precision",
)  # fmt: skip
"""What is kept of a kernel's metadata; the rest says nothing of the kernel, or much of the machine."""
MOST_BYTES = 8 << 20
"""TTIR is 5 to 200 kB; something larger is no kernel of interest."""
MOST_KERNELS = 2000


class Artifacts:
    """The kernels of this process, in `folder`; call `look` until `installed`, and `sweep` at the end."""

    def __init__(self, folder: str) -> None:
        self.installed = False
        self.error: str | None = None
        self.kept: dict[str, bool] = {}
        """Hash of each kernel written → whether its registers are."""
        self._folder = folder

    def look(self) -> None:
        """Install the listener as soon as the program has imported Triton."""
        triton = sys.modules.get("triton")
        if self.installed or triton is None or getattr(getattr(triton, "__spec__", None), "_initializing", False):
            return
        self.installed = True
        compilation: Any = getattr(getattr(triton, "knobs", None), "compilation", None)
        if not hasattr(compilation, "listener"):
            self.error = f"triton {getattr(triton, '__version__', '?')} has no compilation listener: 3.4 is the first"
            return
        before = compilation.listener

        def listener(**told: Any) -> Any:
            with contextlib.suppress(Exception):  # a listener that raises would break the program's compilation
                self._told(told["metadata"], told["metadata_group"])
            return before(**told) if before is not None else None

        compilation.listener = listener

    def sweep(self) -> None:
        """Take what Triton's functions hold: kernels of before the listener, and registers of all that were loaded."""
        jit = sys.modules.get("triton.runtime.jit")
        if not self.installed or jit is None:
            return
        for kernel in _compiled(jit):
            with contextlib.suppress(Exception):
                facts = dict(kernel.metadata._asdict())
                facts |= {name: getattr(kernel, name, None) for name in ("n_regs", "n_spills")}
                self._keep(facts, lambda kernel=kernel: kernel.asm["ttir"])

    def _told(self, metadata: dict[str, Any], group: dict[str, str]) -> None:
        path = next((path for name, path in group.items() if name.endswith(".ttir")), None)
        if path is not None:
            self._keep(metadata, lambda: _read(path))

    def _keep(self, metadata: dict[str, Any], text: Any) -> None:
        facts = {name: metadata[name] for name in FACTS if metadata.get(name) is not None}
        target = facts.get("target")
        if not isinstance(target, dict | str | None):
            facts["target"] = {name: getattr(target, name, None) for name in ("backend", "arch", "warp_size")}
        key = str(facts["hash"])
        known = self.kept.get(key)
        if known or (known is False and "n_regs" not in facts) or len(self.kept) >= MOST_KERNELS:
            return
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        name = "".join(each if each.isalnum() or each in "_-" else "_" for each in str(facts["name"]))[:80]
        stem = os.path.join(self._folder, f"{name}.{key[:16]}")
        if not os.path.exists(f"{stem}.ttir"):
            content = text()
            if len(content) > MOST_BYTES:
                return
            _write(f"{stem}.ttir", content)
        if "n_regs" in facts or not os.path.exists(f"{stem}.json"):
            _write(f"{stem}.json", json.dumps(facts, sort_keys=True, default=str))
        self.kept[key] = "n_regs" in facts


def _compiled(jit: Any) -> Iterator[Any]:
    """All kernels that Triton's functions have compiled. Looks through all objects for what refers to their class."""
    for function in gc.get_referrers(jit.JITFunction):
        if isinstance(function, jit.JITFunction):
            for cache in list(getattr(function, "device_caches", {}).values()):
                kernels = cache[0] if isinstance(cache, tuple) else cache
                yield from list(kernels.values()) if isinstance(kernels, dict) else ()


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(MOST_BYTES + 1)


def _write(path: str, text: str) -> None:
    """Write in one step; several processes may write the same kernel."""
    scratch = f"{path}.{os.getpid()}.tmp"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(scratch, path)
