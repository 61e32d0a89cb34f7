"""Write compiled Triton kernels as a dump folder: `<kernel>__<hash>.ttir` and `.json` per variant, no binaries.

Paths inside the package are written from the package's name on, so a dump reads the same wherever it was made.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds the package; sources below it are named relative to it."""
KEPT = ("hash", "num_warps", "num_ctas", "num_stages", "shared", "name", "triton_version", "arch")
"""Metadata worth keeping: what a launch can be recognised by, and what compiled it."""


def write(compiled: Any, folder: Path) -> Path:
    """Write one compiled kernel (what `triton.compile` or a launch returns) and return its .ttir path.

    `n_regs` and `n_spills` are included where the driver has loaded the kernel.
    """
    metadata = compiled.metadata
    values = {key: getattr(metadata, key) for key in KEPT if hasattr(metadata, key)}
    target = metadata.target
    values["target"] = {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size}
    for key in ("n_regs", "n_spills"):
        if isinstance(getattr(compiled, key, None), int):
            values[key] = getattr(compiled, key)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{values['name']}__{values['hash'][:12]}"
    stem.with_suffix(".json").write_text(json.dumps(values, sort_keys=True) + "\n", encoding="utf-8")
    ttir = compiled.asm["ttir"].replace(f'"{PACKAGE_ROOT.as_posix()}/', '"')
    path = stem.with_suffix(".ttir")
    path.write_text(ttir, encoding="utf-8")
    return path
