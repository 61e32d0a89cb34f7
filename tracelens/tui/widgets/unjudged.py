"""The table of rules that did not simply run: abstained, skipped, failed, disabled. Knows no detail pane."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, Static

from tracelens.finding import Report, RuleStatus
from tracelens.presenters import outcome
from tracelens.tui.widgets.styled import cell

ORDER = ("failed", "abstained", "ran", "skipped", "disabled")
WHY_WIDTH = 120


class UnjudgedTable(Vertical):
    """One row a rule, failures first, with the reason."""

    class Chosen(Message):
        """The cursor is on this rule."""

        def __init__(self, status: RuleStatus) -> None:
            super().__init__()
            self.status = status

    def __init__(self, report: Report) -> None:
        super().__init__(id="unjudged")
        self._rules = sorted(
            (rule for rule in report.rules if rule.status != "ran" or rule.why),
            key=lambda rule: (ORDER.index(rule.status), rule.code),
        )
        self._all = len(report.rules)
        self.border_title = f"Not judged ({len(self._rules)})"

    def compose(self) -> ComposeResult:
        """The table, or the empty state."""
        if not self._rules:
            words = f"All {self._all} rules ran and judged everything." if self._all else "No rule is installed."
            yield Static(cell(words), id="all-judged")
            return
        table: DataTable[object] = DataTable(cursor_type="row", zebra_stripes=True, id="unjudged-table")
        for label in ("status", "code", "why"):
            table.add_column(label)
        for rule in self._rules:
            table.add_row(
                cell("partly" if rule.status == "ran" else rule.status, outcome.status_style(rule.status)),
                cell(rule.code, "bold", 8),
                cell(rule.why or "switched off", width=WHY_WIDTH),
            )
        yield table

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell which rule the cursor is on, while a person is here."""
        event.stop()
        if event.data_table.has_focus:
            self.announce()

    def announce(self) -> None:
        """Tell which rule the cursor is on."""
        for table in self.query(DataTable):
            self.post_message(self.Chosen(self._rules[table.cursor_row]))

    def on_descendant_focus(self) -> None:
        """Arriving here shows the rule under the cursor."""
        self.announce()
