"""What several verbs share: writing data and narration, reading saved reports, opening and judging traces.

Knows no verb and no format.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.finding import Report

MAX_REPORT_BYTES = 1 << 28
"""A report is about 100 kB: 256 MiB is no report."""
_REPORT_HEAD = re.compile(rb'\s*\{\s*"schema"\s*:\s*"tracelens\.report/(\d+)"')
_SPACE = 256


def emit(text: str) -> None:
    """Write data to stdout. A reader that went away (`| head`) ends the output, not the verb."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise TracelensError(f"standard output: {(error.strerror or str(error)).lower()}", "free some space") from error


def note(text: str) -> None:
    """One line of warning on stderr."""
    from tracelens.presenters.text import clean

    print(f"tracelens: {clean(text, 400)}", file=sys.stderr)


def narrate(text: str) -> None:
    """One line of progress on stderr, for people only: silent when stderr is not a terminal."""
    if sys.stderr.isatty():
        note(text)


def wants_color() -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set (https://no-color.org: to anything but nothing)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; 80 where there is none, so that saved output does not depend on who ran it."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


def is_report(path: str) -> bool:
    """Whether a file is a saved report, by its content. False for whatever cannot be read."""
    return _report_version(path) is not None


def _report_version(path: str) -> int | None:
    from tracelens.health import Health
    from tracelens.streams import open_stream

    if not Path(path).is_file():
        return None
    try:
        found = _REPORT_HEAD.match(open_stream(Path(path), path, Health()).head(_SPACE))
    except TracelensError:
        return None
    return int(found[1]) if found else None


def load_report(path: str) -> Report:
    """A report saved with --json. Raises TracelensError for anything else."""
    import msgspec

    from tracelens.finding import SCHEMA, Report
    from tracelens.health import Health
    from tracelens.streams import open_stream

    stream = open_stream(Path(path), path, Health())
    if stream.size > MAX_REPORT_BYTES:
        raise TracelensError(f"{path}: too large to be a report", "name a file made with `tracelens analyze --json`")
    version = _report_version(path)
    hint = "make one with `tracelens analyze TRACE --json -o report.json`"
    if version is None:
        raise TracelensError(f"{path}: not a tracelens report", hint)
    if version != int(SCHEMA.rpartition("/")[2]):
        raise TracelensError(f"{path}: report of schema version {version}, this tracelens reads {SCHEMA}", hint)
    try:
        return msgspec.json.decode(stream.read(), type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TracelensError(f"{path}: damaged report: {error}", hint) from error


def pairs(values: Sequence[str], flag: str) -> dict[str, float]:
    """NAME=VALUE arguments as a mapping to finite numbers. Raises TracelensError naming the flag."""
    out: dict[str, float] = {}
    for value in values:
        name, equals, number = value.rpartition("=")
        try:
            out[name] = float(number)
        except ValueError:
            equals = ""
        if not (name and equals) or not 0 < out[name] < float("inf"):
            raise TracelensError(f"{flag} {value}: not NAME=VALUE with a positive number", f"e.g. {flag} name=4.28e12")
    return out


def write_file(path: Path, text: str, force: bool) -> None:
    """Write a new file whole or not at all. Raises TracelensError if it exists and `force` is not set."""
    if path.exists() and not force:
        raise TracelensError(f"{path}: exists", "--force overwrites it")
    part = None
    try:
        if path.exists() and not path.is_file():  # /dev/stderr, a named pipe
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f".{path.name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise TracelensError(f"{path}: {(error.strerror or str(error)).lower()}", "check the folder") from error
