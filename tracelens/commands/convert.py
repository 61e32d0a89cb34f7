"""`tracelens convert TRACE… -o OUT`: a trace or capture as one file that another tool, or a later run, opens.

`.pftrace` opens in ui.perfetto.dev, with findings as tracks if asked for; `.parquet` holds every table and is read back
whole. The suffix decides.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tracelens.commands import shared
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.trace import Trace

PERFETTO = (".pftrace", ".perfetto-trace")
TABLES = (".parquet",)
NOT_IN_PERFETTO = ("launches", "steps", "samples", "measurements", "artifacts", "dots")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="file, capture, folder, glob; - is standard input")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="x.pftrace or x.parquet")
    parser.add_argument("--with-findings", action="store_true", help="judge it, and add a track for each finding")
    parser.add_argument("--pyspy-gil", action="store_true", help="py-spy files were recorded with --gil")
    parser.add_argument("--force", action="store_true", help="let -o overwrite")


def run(args: argparse.Namespace) -> int:
    """Open, convert, and say what was written."""
    from tracelens import opening, plugins

    form = args.output.suffix
    if form not in PERFETTO + TABLES:
        known = ", ".join(PERFETTO + TABLES)
        raise TracelensError(f"{args.output}: no format is called {form or 'nothing'!r}", f"end it in one of {known}")
    if args.output.exists() and not args.force:
        raise TracelensError(f"{args.output}: exists", "--force overwrites it")
    loaded = plugins.load()
    trace = opening.open_trace(*args.traces, plugins=loaded, options=opening.OpenOptions(args.pyspy_gil))
    if args.with_findings:
        from tracelens.analyzing import analyze
        from tracelens.config import load
        from tracelens.presenters.finding_tracks import with_findings

        report = analyze(trace, loaded, load(Path.cwd()))
        trace = with_findings(trace, report.findings)
        shared.note(f"{len(report.findings)} findings added")
    with _written_whole(args.output) as file:
        if form in PERFETTO:
            _perfetto(trace, file)
        else:
            from tracelens.presenters.tables import write_tables

            write_tables(trace, file)
    shared.note(f"wrote {args.output}")
    return 0


def _perfetto(trace: Trace, file: BinaryIO) -> None:
    from tracelens.presenters.finding_tracks import with_probe
    from tracelens.presenters.perfetto_writer import write_perfetto

    written = write_perfetto(with_probe(trace), file)
    if written.dropped:
        shared.note(f"warning: {written.dropped} slices overlap too deeply for any Perfetto track and were left out")
    left = [f"{getattr(trace, name).height:,} {name}" for name in NOT_IN_PERFETTO if getattr(trace, name).height]
    if left:
        shared.note(f"Perfetto has no place for {', '.join(left)}; .parquet keeps everything")


@contextmanager
def _written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only once it is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise TracelensError(f"{path}: {(error.strerror or str(error)).lower()}", "check the folder") from error
    finally:
        part.unlink(missing_ok=True)
