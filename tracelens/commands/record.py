"""`tracelens record -- COMMAND…`: run a command and record all its Python processes into one capture folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.commands import shared
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.recorders.together import Recording


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.usage = (
        "tracelens record [--with NAMES] [-o DIR] [--seconds S] [--delay S] -- COMMAND…"
    )
    parser.add_argument("--with", dest="sources", metavar="NAMES", help="sources by commas (default: all there are)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="capture folder to make")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="window to record; 0: to the end")
    parser.add_argument("--delay", type=float, default=0.5, metavar="S", help="wait after torch was imported")
    parser.add_argument(
        "--measurements", action="append", type=Path, default=[], metavar="FILE", help="results to copy in at the end"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing capture")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Record, say where, and return the command's own exit code."""
    from tracelens.recorders import together

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise TracelensError("no command to record", "tracelens record -- python serve.py")
    sources = together.SOURCES
    if args.sources is not None:
        sources = tuple(name.strip() for name in args.sources.split(",") if name.strip())
    recording = together.record(
        command,
        args.output,
        sources,
        seconds=args.seconds,
        delay=args.delay,
        force=args.force,
        results=args.measurements,
        say=shared.narrate,
    )
    tell(recording)
    shared.note(f"recorded {recording.folder}; next: tracelens analyze {recording.folder}")
    return recording.exit_code


def tell(recording: Recording) -> None:
    """The recording's own remarks, one line each."""
    for remark in recording.manifest.notes:
        shared.note(f"warning: {remark.says}")
