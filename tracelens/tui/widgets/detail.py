"""The detail pane: evidence, manual and experiment of what is chosen, and the overview of the recording."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static, TabbedContent, TabPane

from tracelens.finding import Finding, Report, RuleStatus
from tracelens.presenters import cards, outcome, screen
from tracelens.presenters.text import Line, field, paragraph
from tracelens.rule import Rule
from tracelens.tui.widgets.styled import text

TABS = ("evidence", "manual", "experiment", "overview")
MIN_WIDTH = 40


class Page(VerticalScroll):
    """A scrollable page of styled lines."""

    def __init__(self, name: str) -> None:
        super().__init__(id=f"page-{name}", classes="page")
        self._body = Static(id=f"body-{name}")

    def compose(self) -> ComposeResult:
        """The page's text."""
        yield self._body

    def show(self, lines: list[Line]) -> None:
        """Replace the page and go to its top."""
        self._body.update(text(lines))
        self.scroll_home(animate=False)


class Detail(Vertical):
    """Four tabs about the chosen finding or rule."""

    def __init__(self, report: Report, rules: Mapping[str, Rule]) -> None:
        super().__init__(id="detail")
        self._report = report
        self._rules = rules
        self._chosen: Finding | RuleStatus | None = None

    def compose(self) -> ComposeResult:
        """One pane a tab."""
        with TabbedContent(initial=TABS[0]):
            for name in TABS:
                with TabPane(name.capitalize(), id=name):
                    yield Page(name)

    @property
    def active(self) -> str:
        """The tab in front."""
        return self.query_one(TabbedContent).active

    def show_tab(self, name: str) -> None:
        """Bring one tab to the front."""
        self.query_one(TabbedContent).active = name

    def choose(self, chosen: Finding | RuleStatus | None) -> None:
        """Show another finding or rule."""
        self._chosen = chosen
        self.refill()

    def on_resize(self) -> None:
        """Text is folded to the pane's width."""
        self.refill()

    def refill(self) -> None:
        """Write all four pages for the current width."""
        width = max(self.size.width - 4, MIN_WIDTH)
        if isinstance(self._chosen, Finding):
            evidence, experiment = _finding_pages(self._chosen, width)
            manual = self._manual(self._chosen.rule, width)
        elif isinstance(self._chosen, RuleStatus):
            evidence, experiment = _status_pages(self._chosen, width)
            manual = self._manual(self._chosen.code, width)
        else:
            evidence = paragraph(outcome.no_findings(self._report).capitalize() + ".", width)
            manual = paragraph("Choose a rule to read its manual.", width)
            experiment = paragraph("An experiment belongs to a finding: there is none.", width)
        overview = [
            *screen.first_screen(self._report, width),
            (),
            *outcome.rules_line(self._report, width),
            *outcome.next_lines(self._report, width, room=2 * outcome.MAX_NEXT),
        ]
        for name, lines in zip(TABS, (evidence, manual, experiment, overview), strict=True):
            for page in self.query(f"#page-{name}").results(Page):
                page.show(lines)

    def _manual(self, code: str, width: int) -> list[Line]:
        rule = self._rules.get(code)
        if rule is None:
            return paragraph(f"The plugin of {code} is not loaded, so its manual is not here.", width)
        return manual_lines(rule, width)

    def page(self) -> Page:
        """The page of the active tab."""
        return self.query_one(f"#page-{self.active}", Page)


def _finding_pages(finding: Finding, width: int) -> tuple[list[Line], list[Line]]:
    fix = finding.fix
    evidence = [
        *paragraph(finding.message, width, "bold"),
        (),
        *field("known by", cards.MEANS[finding.confidence], width, indent=2),
        *cards.locality(finding, width),
        *field("costs", cards.cost(finding.impact), width, indent=2),
        *cards.evidence_lines(finding.evidence, width, rows=True),
        *field("finding", finding.fingerprint, width, indent=2),
    ]
    experiment = [
        *field("fix", f"{fix.summary} ({fix.safety})", width, indent=2),
        *(field("change", fix.change, width, indent=2) if fix.change else []),
        *(line for link in fix.links for line in field("see", link, width, indent=2)),
        (),
        *cards.experiment(finding.verify, width),
    ]
    return evidence, experiment


def _status_pages(rule: RuleStatus, width: int) -> tuple[list[Line], list[Line]]:
    title: Line = ((f"{rule.code} {rule.name} ", "bold"), (rule.status, outcome.status_style(rule.status)))
    evidence = [title, (), *outcome.reasons(rule, width)]
    return evidence, paragraph("An experiment belongs to a finding; this rule made none.", width)


def manual_lines(rule: Rule, width: int) -> list[Line]:
    """A rule's manual, its headings marked, paragraphs folded to the width."""
    lines: list[Line] = [((f"{rule.code} {rule.name}", "bold"),), *paragraph(rule.summary, width), ()]
    block: list[str] = []

    def flush() -> None:
        if block:
            lines.extend(paragraph(" ".join(block), width, indent=2))
            block.clear()

    for raw in rule.manual.strip().splitlines():
        stripped = raw.strip()
        if not stripped:
            flush()
            lines.append(())
        elif not raw.startswith(" "):
            flush()
            lines.extend(paragraph(stripped, width, "head"))
        else:
            block.append(stripped)
    flush()
    lines += [(), (("Needs", "head"),)]
    for need in rule.needs:
        lines += paragraph(f"{' + '.join(need.evidence)}: earns {need.earns}", width, indent=2)
        lines += paragraph(need.record, width, "bold", indent=4)
    if rule.options:
        lines += [(), (("Options", "head"),)]
        for name, option in rule.options.items():
            lines += paragraph(f"{name} = {option.default}: {option.says}", width, indent=2)
    return lines
