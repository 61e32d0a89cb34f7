"""`tracelens analyze TRACE…`: judge traces and show the report in one format."""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.commands import shared
from tracelens.errors import TracelensError
from tracelens.finding import SEVERITIES, Report

if TYPE_CHECKING:
    from tracelens.config import Config, FailOn


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="file, capture, folder, glob; - is standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", default="terminal", metavar="NAME", help="terminal (default) or json")
    form.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead of stdout")
    parser.add_argument("--force", action="store_true", help="let -o overwrite")
    parser.add_argument("--select", action="append", metavar="CODES", help="only these rules or families, by commas")
    parser.add_argument("--ignore", action="append", metavar="CODES", help="not these rules or families")
    parser.add_argument("--fail-on", choices=("never", *SEVERITIES), help="exit 1 for findings at or above")
    parser.add_argument("--baseline", metavar="REPORT", help="findings of this JSON report are known: never exit 1")
    parser.add_argument("--why", action="store_true", help="say of every rule that did not judge why, and what would")
    parser.add_argument("--strict", action="store_true", help="exit 2 if anything was lost while reading")
    parser.add_argument("--timings", action="store_true", help="how long each stage took, on stderr")
    parser.add_argument("--pyspy-gil", action="store_true", help="py-spy files were recorded with --gil")
    parser.add_argument("--roof", action="append", default=[], metavar="NAME=VALUE", help="a measured ceiling")
    parser.add_argument("--bytes", action="append", default=[], metavar="GLOB=N", help="bytes a launch moves")


def run(args: argparse.Namespace) -> int:
    """Analyse, show, and return the exit code that the findings earn."""
    from tracelens import opening, plugins
    from tracelens.analyzing import analyze

    if args.output is not None and args.output.exists() and not args.force:
        raise TracelensError(f"{args.output}: exists", "--force overwrites it")
    known = shared.load_report(args.baseline) if args.baseline else None
    config = _config(args)
    loaded = plugins.load()
    presenter = {p.name: p for p in loaded.presenters()}.get(args.format)
    if presenter is None:
        names = ", ".join(p.name for p in loaded.presenters())
        raise TracelensError(f"--format {args.format}: no such format", f"there are: {names}")
    for path in args.traces:
        if shared.is_report(path):
            raise TracelensError(f"{path}: a tracelens report, not a trace", f"see it with `tracelens view {path}`")

    clock = _Clock(args.timings)
    options = opening.OpenOptions(args.pyspy_gil, args.strict, config.roof, config.bytes)
    trace = opening.open_trace(*args.traces, options=options, plugins=loaded)
    clock.lap("read")
    report = marked(analyze(trace, loaded, config), known)
    clock.lap("judge")
    _warn(report)
    out = io.StringIO()
    color = shared.wants_color() and args.output is None
    presenter.render(report, out, color, shared.width())
    if args.why and args.format == "terminal":
        from tracelens.presenters import outcome, terminal

        terminal.write([(), *outcome.why(report, shared.width())], out, color)
    if args.output is None:
        shared.emit(out.getvalue())
    else:
        shared.write_file(args.output, out.getvalue(), args.force)
    clock.lap("show")
    return exit_code(report, config.fail_on)


def _config(args: argparse.Namespace) -> Config:
    """The working directory's configuration with the command line on top."""
    from tracelens.config import load, merged

    config = load(Path.cwd())
    changes: dict[str, object] = {
        "roof": {**config.roof, **shared.pairs(args.roof, "--roof")},
        "bytes": {**config.bytes, **{name: int(value) for name, value in shared.pairs(args.bytes, "--bytes").items()}},
    }
    if args.select is not None:
        changes["select"] = _codes(args.select)
    if args.ignore is not None:
        changes["ignore"] = _codes(args.ignore)
    if args.fail_on is not None:
        changes["fail_on"] = args.fail_on
    return merged(config, **changes)


def _codes(values: Sequence[str]) -> list[str]:
    return [code.strip().upper() for value in values for code in value.split(",") if code.strip()]


def marked(report: Report, baseline: Report | None) -> Report:
    """The report with those findings marked as known whose fingerprint the baseline holds."""
    if baseline is None:
        return report
    import msgspec

    known = {finding.fingerprint for finding in baseline.findings}
    findings = tuple(msgspec.structs.replace(f, known=f.fingerprint in known) for f in report.findings)
    return msgspec.structs.replace(report, findings=findings)


def exit_code(report: Report, fail_on: FailOn) -> int:
    """1 if a finding that is not known is at or above `fail_on`; 2 if a rule crashed and so vouches for nothing."""
    if fail_on == "never":
        return 0
    if any(rule.status == "failed" for rule in report.rules):
        return 2
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return int(any(finding.severity in counted and not finding.known for finding in report.findings))


def _warn(report: Report) -> None:
    """One line for what was lost while reading, and one for each rule that crashed."""
    lossy = [entry for entry in report.health if entry.severity != "info" or entry.lost_bytes or entry.lost_ns]
    if lossy:
        more = f" (and {len(lossy) - 1} more)" if len(lossy) > 1 else ""
        where = f"{lossy[0].where}: " if lossy[0].where else ""
        shared.note(f"warning: {where}{lossy[0].says}{more}")
    for rule in report.rules:
        if rule.status == "failed":
            shared.note(f"warning: rule {rule.code} failed: {rule.why}")


class _Clock:
    """Times the stages of a run on stderr, if asked to."""

    def __init__(self, on: bool) -> None:
        self._on = on
        self._last = time.monotonic()

    def lap(self, stage: str) -> None:
        """Print how long the stage that ends here took."""
        now = time.monotonic()
        if self._on:
            shared.note(f"{stage} {now - self._last:.3f} s")
        self._last = now
