"""`tracelens view TRACE… | REPORT.json`: the terminal user interface."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tracelens.commands import shared
from tracelens.errors import TracelensError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="traces, captures, or one report made with --json")
    parser.add_argument("--pyspy-gil", action="store_true", help="py-spy files were recorded with --gil")


def run(args: argparse.Namespace) -> int:
    """Open the interface; what cannot be read ends it with the usual two lines."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise TracelensError("view needs a terminal", "`tracelens analyze` prints the same findings anywhere")
    if "-" in args.traces:
        raise TracelensError("view reads keys from standard input, so a trace cannot come from there", "save it first")
    reports = [path for path in args.traces if shared.is_report(path)]
    if reports and len(args.traces) > 1:
        raise TracelensError(f"{reports[0]}: a report is viewed alone", "name one report, or only traces")

    from tracelens import config, opening, plugins
    from tracelens.analyzing import analyze
    from tracelens.finding import Report
    from tracelens.tui.app import TracelensApp

    loaded = plugins.load()
    rules = {detector.rule.code: detector.rule for detector in loaded.detectors()}
    chosen = config.load(Path.cwd())

    def load() -> Report:
        if reports:
            return shared.load_report(reports[0])
        options = opening.OpenOptions(pyspy_gil=args.pyspy_gil, roofs=chosen.roof, kernel_bytes=chosen.bytes)
        return analyze(opening.open_trace(*args.traces, options=options, plugins=loaded), loaded, chosen)

    app = TracelensApp(", ".join(args.traces), load, rules)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
