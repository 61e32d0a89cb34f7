"""`tracelens rules`: one line a rule, or all of their identity cards as JSON."""

from __future__ import annotations

import argparse

from tracelens.commands import shared


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--json", action="store_true", help="identity cards as JSON")


def run(args: argparse.Namespace) -> int:
    """List the rules of all loaded plugins."""
    from tracelens import plugins
    from tracelens.presenters.text import clean

    rules = [detector.rule for detector in plugins.load().detectors()]
    if args.json:
        from tracelens.presenters.json import dumps

        shared.emit(
            dumps(
                [
                    {
                        "code": rule.code,
                        "name": rule.name,
                        "summary": rule.summary,
                        "needs": [
                            {"evidence": list(need.evidence), "earns": need.earns, "record": need.record}
                            for need in rule.needs
                        ],
                        "options": {
                            name: {"default": option.default, "says": option.says}
                            for name, option in rule.options.items()
                        },
                    }
                    for rule in rules
                ]
            )
        )
        return 0
    if not rules:
        shared.note("no rule is installed: `tracelens doctor` says which plugins were loaded")
    name_width = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        shared.emit(clean(f"{rule.code}  {rule.name:<{name_width}}  {rule.summary}") + "\n")
    return 0
