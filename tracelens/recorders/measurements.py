"""The measurements source: results that the program appends to a file of the capture, and benchmark files copied in.

A program finds the file in $TRACELENS_MEASUREMENTS and appends JSON lines ({"name", "metric", "value", "unit",
"reference"?, "tolerance"?, "params"?, "unix_ns"?}); the file exists only once somebody did. Reads no content.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tracelens.contracts import Availability, Recorder
from tracelens.errors import TracelensError

VARIABLE = "TRACELENS_MEASUREMENTS"
FILE = "measurements.jsonl"
RECORDER = Recorder(
    "measurements", f"accuracy and benchmark results: JSON lines in ${VARIABLE}", lambda: Availability(True)
)


def check(files: Iterable[Path]) -> None:
    """TracelensError for a file that is not there, before anything runs; one the command writes may come later."""
    for path in files:
        if path.is_dir():
            raise TracelensError(f"--measurements {path}: a folder", "name a JSON file, e.g. of --benchmark-json")


def collect(folder: Path, files: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Copy `files` into the capture; (all measurement files of it, one line for each that could not be copied)."""
    failed = []
    for number, path in enumerate(files):
        try:
            shutil.copyfile(path, folder / f"measurements.{number}.json")
        except OSError as error:
            failed.append(f"--measurements {path}: {(error.strerror or str(error)).lower()}")
    found = sorted(path for path in folder.glob("measurements.*") if path.is_file() and path.stat().st_size)
    return found, failed
