"""`tracelens record -- COMMAND…`: run a command and record all its Python processes into one capture folder.

With `--pid` a process that already runs is sampled instead.
"""

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
    parser.usage = "tracelens record [--with NAMES] [-o DIR] [--seconds S] [--delay S] -- COMMAND…"
    parser.add_argument("--with", dest="sources", metavar="NAMES", help="sources by commas (default: all there are)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="capture folder to make")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="window to record; 0: to the end")
    parser.add_argument("--delay", type=float, default=0.5, metavar="S", help="wait after torch was imported")
    parser.add_argument(
        "--measurements", action="append", type=Path, default=[], metavar="FILE", help="results to copy in at the end"
    )
    parser.add_argument("--no-stacks", action="store_true", help="no Python functions: half the cost, no call sites")
    parser.add_argument("--pid", type=int, metavar="PID", help="sample this running process instead of a command")
    parser.add_argument("--force", action="store_true", help="replace an existing capture")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Record, say where, and return the command's own exit code."""
    from tracelens.recorders import together

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.pid is not None:
        return _attach(args, command)
    if not command:
        raise TracelensError("no command to record", "tracelens record -- python serve.py")
    recording = together.record(
        command,
        args.output,
        _sources(args, together.SOURCES),
        seconds=args.seconds,
        delay=args.delay,
        force=args.force,
        stacks=not args.no_stacks,
        results=args.measurements,
        say=shared.narrate,
    )
    return _told(recording)


def _attach(args: argparse.Namespace, command: list[str]) -> int:
    from tracelens.recorders.attach import attach

    if command:
        raise TracelensError("--pid and a command", "record one of the two")
    if args.measurements:
        raise TracelensError("--pid takes samples only, no --measurements", "name the file beside the capture instead")
    sources = _sources(args, ("pyspy",))
    return _told(attach(args.pid, args.output, sources, seconds=args.seconds, force=args.force, say=shared.narrate))


def _sources(args: argparse.Namespace, default: tuple[str, ...]) -> tuple[str, ...]:
    if args.sources is None:
        return default
    return tuple(name.strip() for name in args.sources.split(",") if name.strip())


def _told(recording: Recording) -> int:
    tell(recording)
    shared.note(f"recorded {recording.folder}; next: tracelens analyze {recording.folder}")
    return recording.exit_code


def tell(recording: Recording) -> None:
    """The recording's own remarks, one line each."""
    for remark in recording.manifest.notes:
        shared.note(f"warning: {remark.says}")
