"""Build `deep_ep.c` at first use and load it; the wheel stays pure Python.

The compiled module lies in the user's cache under a name made from everything that it depends on, and gets there by an
atomic rename, so that any number of processes may build at once. This module does not know what the C code does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from tracelens_serving.errors import ServingError

SOURCE = Path(__file__).with_name("deep_ep.c")
ABORT_WORD = (1).to_bytes(4, "little")  # written at offset 0 of the ranks' shared memory, it ends every wait
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-shared", "-fPIC")


@cache
def load() -> ModuleType:
    """Return the compiled `deep_ep` module; ServingError when there is no compiler, or it fails."""
    path = build()
    spec = importlib.util.spec_from_file_location(f"{__name__}.deep_ep", path)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ServingError(f"{path}: cannot be loaded ({error})", "delete that file: it will be built again") from error
    return module


def build() -> Path:
    """Return the path of the compiled module in the cache, compiling it if it is not there."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    path = cache_folder() / f"deep_ep-{_key(compiler)}.so"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
            output = Path(folder, path.name)
            _compile(compiler, output)
            output.replace(path)
    except OSError as error:
        raise ServingError(f"{path.parent}: {error.strerror}", "set XDG_CACHE_HOME to a writable folder") from error
    return path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/tracelens/native`, by default under `~/.cache`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tracelens" / "native"


def _key(compiler: list[str]) -> str:
    parts = [SOURCE.read_text(), sysconfig.get_config_var("SOABI"), *compiler, *FLAGS]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: list[str], output: Path) -> None:
    include = sysconfig.get_path("include")
    command = [*compiler, *FLAGS, f"-I{include}", str(SOURCE), "-o", str(output)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError):
        raise ServingError(
            f"no C compiler: '{compiler[0]}' cannot be run", "install gcc or clang, or set CC to a C compiler"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise ServingError(
            f"{compiler[0]} could not compile {SOURCE.name}: {first}",
            f"it needs Python's headers in {include} (python3-dev) and a C11 compiler",
        )
