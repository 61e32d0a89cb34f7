"""The terminal presenter: the first screen, then a card for every finding, then what to do next."""

from __future__ import annotations

from typing import TextIO

from tracelens.contracts import Presenter
from tracelens.finding import Report
from tracelens.presenters import cards, outcome, screen
from tracelens.presenters.text import LABEL, Line, ansi, field

MIN_WIDTH, MAX_WIDTH = 60, 120
"""Below 60 columns folded text is unreadable; beyond 120 a line is too long to read."""


def render(report: Report, stream: TextIO, color: bool, width: int) -> None:
    """Write the report for a person; at most 30 lines when there is no finding."""
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    write(lines(report, width), stream, color)


def lines(report: Report, width: int) -> list[Line]:
    """The whole output as styled lines."""
    out = [*screen.first_screen(report, width), ()]
    if report.findings:
        for finding in report.findings:
            out += [*cards.card(finding, width), ()]
    else:
        out += field("findings", outcome.no_findings(report), width, 2, at=LABEL)
    out += outcome.rules_line(report, width, "--why says why")
    room = 2 * outcome.MAX_NEXT if report.findings else screen.MAX_LINES - len(out)
    return [*out, *outcome.next_lines(report, width, room)]


def write(lines: list[Line], stream: TextIO, color: bool) -> None:
    """Styled lines as text, one a line."""
    stream.writelines(ansi(line, color) + "\n" for line in lines)


PRESENTER = Presenter("terminal", "a first screen and a card for every finding, for people", render)
