"""The table of findings, or in words why there are none. Knows no detail pane."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import DataTable, Static

from tracelens.finding import Finding, Report
from tracelens.presenters import cards, outcome
from tracelens.tui.widgets.styled import cell

PLACE_WIDTH = 80
"""The last column: what does not fit is cut off there, and stands in full in the details."""


class FindingsTable(Vertical):
    """One row a finding, in the report's order."""

    class Chosen(Message):
        """The cursor is on this finding."""

        def __init__(self, finding: Finding) -> None:
            super().__init__()
            self.finding = finding

    def __init__(self, report: Report) -> None:
        super().__init__(id="findings")
        self._report = report
        self.border_title = f"Findings ({len(report.findings)})"

    def compose(self) -> ComposeResult:
        """The table, or the empty state."""
        if not self._report.findings:
            yield Static(cell(f"No findings: {outcome.no_findings(self._report)[6:]}.", width=200), id="no-findings")
            return
        table: DataTable[object] = DataTable(cursor_type="row", zebra_stripes=True, id="findings-table")
        for label in ("severity", "code", "impact", "confidence", "where"):
            table.add_column(label)
        for finding in self._report.findings:
            table.add_row(
                cell(finding.severity + (" known" if finding.known else ""), finding.severity),
                cell(finding.rule, "bold", 8),
                cell(cards.short_cost(finding.impact), width=12),
                cell(finding.confidence),
                cell(cards.short_place(finding.where), width=PLACE_WIDTH),
            )
        yield table

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell which finding the cursor is on."""
        event.stop()
        self.post_message(self.Chosen(self._report.findings[event.cursor_row]))
