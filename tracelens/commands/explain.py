"""`tracelens explain`: a rule's manual, a table's columns, one finding in full, or the report's JSON Schema."""

from __future__ import annotations

import argparse
import difflib

from tracelens.commands import shared
from tracelens.errors import TracelensError
from tracelens.rule import Rule

MIN_PREFIX = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="rule (GIL001), table (slices) or fingerprint")
    parser.add_argument("report", nargs="?", metavar="REPORT", help="JSON report that holds the fingerprint")
    parser.add_argument("--rows", action="store_true", help="with a fingerprint: the evidence rows too")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of reports")


def run(args: argparse.Namespace) -> int:
    """Print what the topic names."""
    if args.schema:
        from tracelens.finding import report_schema
        from tracelens.presenters.json import dumps

        shared.emit(dumps(report_schema()))
        return 0
    if args.topic is None:
        raise TracelensError("nothing to explain", "name a rule, a table, or a fingerprint and its report")
    if args.report is not None:
        return _finding(args.topic, args.report, args.rows)
    return _rule_or_table(args.topic)


def _rule_or_table(topic: str) -> int:
    from tracelens import plugins, schema

    if topic in schema.TABLES:
        shared.emit(schema.reference(topic) + "\n")
        return 0
    rules = [detector.rule for detector in plugins.load().detectors()]
    for rule in rules:
        if topic.upper() == rule.code or topic == rule.name:
            shared.emit(manual(rule))
            return 0
    family = [rule.code for rule in rules if rule.family == topic.upper()]
    names = [*schema.TABLES, *(rule.code for rule in rules), *(rule.name for rule in rules)]
    near = family or difflib.get_close_matches(topic, names, 3) or difflib.get_close_matches(topic.upper(), names, 3)
    hint = f"did you mean {', '.join(near)}?" if near else "`tracelens rules` lists the rules; tables: "
    if len(topic) == 16 and not near:
        hint = f"a fingerprint needs its report: tracelens explain {topic} report.json"
    elif not near:
        hint += ", ".join(schema.TABLES)
    raise TracelensError(f"no rule or table is called {topic}", hint)


def manual(rule: Rule) -> str:
    """The whole manual page of a rule as plain text."""
    lines = [f"{rule.code} {rule.name}", rule.summary, "", rule.manual.strip(), "", "Needs"]
    for need in rule.needs:
        lines += [f"  {' + '.join(need.evidence)}: earns {need.earns}", f"      {need.record}"]
    if rule.options:
        lines += ["", "Options (tracelens.toml, [rules." + rule.code + "])"]
        lines += [f"  {name} = {option.default}: {option.says}" for name, option in rule.options.items()]
    return "\n".join(lines) + "\n"


def _finding(fingerprint: str, path: str, rows: bool) -> int:
    from tracelens.presenters import cards, terminal
    from tracelens.presenters.text import ansi

    report = shared.load_report(path)
    wanted = fingerprint.lower()
    found = [f for f in report.findings if f.fingerprint.startswith(wanted)] if len(wanted) >= MIN_PREFIX else []
    if not found or len({f.fingerprint for f in found}) > 1:
        held = ", ".join(dict.fromkeys(f.fingerprint for f in report.findings)) or "none"
        problem = "several findings begin" if found else "no finding begins"
        raise TracelensError(f"{path}: {problem} with {fingerprint}", f"it holds: {held}")
    width = min(max(shared.width(), terminal.MIN_WIDTH), terminal.MAX_WIDTH)
    for finding in found:
        shared.emit("".join(ansi(line, shared.wants_color()) + "\n" for line in cards.full(finding, width, rows)))
    return 0
