"""The command: `python -m tracelens_serving run | settings`. It imports no torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tracelens_serving.errors import ServingError
from tracelens_serving.launcher import Launcher
from tracelens_serving.report import as_text
from tracelens_serving.settings import FAULTS, flatten, from_command_line

DEFAULT_SECONDS = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 2 could not, 128 + signal when interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return options.verb(options)
    except ServingError as error:
        print(f"tracelens_serving: error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    seconds = options.seconds
    if seconds is None and options.requests is None:
        seconds = DEFAULT_SECONDS
    settings = from_command_line(options.settings, options.fault, options.set)
    launcher = Launcher(settings, seed=options.seed, seconds=seconds, requests=options.requests)
    try:
        summary = launcher.run()
    except ServingError:
        if launcher.stop_signal:  # interrupted twice: the children were killed, as asked
            return 128 + launcher.stop_signal
        raise
    print(json.dumps(summary, indent=2) if options.json else as_text(summary))
    return 128 + launcher.stop_signal if launcher.stop_signal else 0


def _settings(options: argparse.Namespace) -> int:
    print(json.dumps(flatten(from_command_line(options.settings, options.fault, options.set)), indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tracelens_serving", description="A small LLM serving stack.")
    verbs = parser.add_subparsers(required=True, metavar="run|settings")

    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--settings", type=Path, metavar="FILE", help="JSON object of dotted keys")
    chosen.add_argument("--fault", default="none", metavar="NAME", help=f"bad settings by name: {', '.join(FAULTS)}")
    chosen.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one setting")

    run = verbs.add_parser("run", parents=[chosen], help="serve seeded requests and print a summary")
    run.add_argument(
        "--seconds", type=_positive(float), metavar="S", help=f"stop after S seconds (default {DEFAULT_SECONDS:g})"
    )
    run.add_argument("--requests", type=_positive(int), metavar="N", help="stop after N requests")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and prompts")
    run.add_argument("--json", action="store_true", help="print the summary as JSON")
    run.set_defaults(verb=_run)

    settings = verbs.add_parser(
        "settings", parents=[chosen], help="print the resolved settings, as --settings takes them"
    )
    settings.set_defaults(verb=_settings)
    return parser


def _positive(kind: type) -> type:
    def number(text: str):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value

    number.__name__ = f"positive {kind.__name__}"  # argparse shows it
    return number


if __name__ == "__main__":
    sys.exit(main())
