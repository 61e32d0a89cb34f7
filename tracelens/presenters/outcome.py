"""What became of the rules, as styled lines: none found anything and why, who did not judge, what would unlock them."""

from __future__ import annotations

from collections import defaultdict

from tracelens.finding import Report, RuleStatus
from tracelens.presenters.text import LABEL, Line, Style, clean, count, digits, field, listed

MAX_NEXT = 3


def no_findings(report: Report) -> str:
    """The empty state in words, which is not "all is well" when rules could not judge."""
    ran = sum(rule.status == "ran" for rule in report.rules)
    if not report.rules:
        return "none: no rule is installed"
    if not ran:
        return "none, and none possible: no rule had the evidence it needs"
    judged = count(ran, "rule")
    blind = len(report.rules) - ran
    return f"none: {judged} ran and found nothing" + (f"; {blind} did not judge" if blind else "")


def rules_line(report: Report, width: int, hint: str = "") -> list[Line]:
    """How many rules ran, abstained, were skipped, failed; those that did not judge are named."""
    by_status: dict[str, list[RuleStatus]] = defaultdict(list)
    for rule in report.rules:
        by_status[rule.status].append(rule)
    parts = []
    for status in ("ran", "abstained", "skipped", "failed", "disabled"):
        rules = by_status[status]
        if rules:
            codes = "" if status == "ran" else f" ({listed((rule.code for rule in rules), 4)})"
            parts.append(f"{len(rules)} {status}{codes}")
    return field("rules", " · ".join([*parts, *filter(None, [hint])]), width, 2, at=LABEL) if parts else []


def next_lines(report: Report, width: int, room: int) -> list[Line]:
    """What to record or try next, the what unlocks most first: as many as fit into `room` lines, at least one."""
    ranked = sorted(enumerate(report.next), key=lambda item: (item[1].kind != "record", item[0]))
    out: list[Line] = []
    for _, step in ranked[:MAX_NEXT]:
        unlocks = f" → {listed(step.unlocks, 4)}" if step.unlocks and step.kind == "record" else ""
        lines = field("" if out else "next", step.command + unlocks, width, 2, at=LABEL)
        if out and len(out) + len(lines) > room:
            break
        out += lines
    return out


def why(report: Report, width: int) -> list[Line]:
    """Every rule that did not simply run: what it lacked or doubted, and the command that would settle it."""
    out: list[Line] = []
    for rule in report.rules:
        if rule.status == "ran" and not rule.why:
            continue
        out.append(((f"{rule.code} ", "bold"), (clean(rule.name), ""), (f"  {rule.status}", status_style(rule.status))))
        out += reasons(rule, width)
    return out


def reasons(rule: RuleStatus, width: int) -> list[Line]:
    """Why one rule has its status, with the number it stumbled over and what unlocks it."""
    out = field("why", rule.why or "switched off by configuration or --select/--ignore", width, indent=2)
    if rule.number is not None and rule.threshold is not None:
        out += field("number", f"{digits(rule.number)}, needed {digits(rule.threshold)}", width, indent=2)
    if rule.unlock:
        out += field("unlock", rule.unlock, width, indent=2)
    return out


def status_style(status: str) -> Style:
    """The colour of a rule's status."""
    styles: dict[str, Style] = {"failed": "error", "abstained": "warning", "ran": "good"}
    return styles.get(status, "dim")
