"""The main screen: findings and unjudged rules on one side, details of the chosen one on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import DataTable, Footer, Static, Tabs

from tracelens.finding import Report
from tracelens.presenters.text import Line, cells, clean
from tracelens.rule import Rule
from tracelens.tui.widgets.detail import TABS, Detail, Page
from tracelens.tui.widgets.findings import FindingsTable
from tracelens.tui.widgets.styled import text
from tracelens.tui.widgets.unjudged import UnjudgedTable

WIDE = 120
"""From this many columns on, lists and details stand side by side."""


class ReportScreen(Screen[None]):
    """A report, ready to be walked through with arrows, Tab and Enter."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "pane(1)", "pane", key_display="Tab"),
        Binding("shift+tab", "pane(-1)", "previous pane", show=False),
        Binding("enter", "open", "open", key_display="Enter", priority=True),
        Binding("escape", "close", "back", key_display="Esc"),
        Binding("right", "tab(1)", "tabs", key_display="← → 1-4", priority=True),
        Binding("left", "tab(-1)", "previous tab", show=False, priority=True),
        Binding("home", "edge(False)", "first", show=False, priority=True),
        Binding("end", "edge(True)", "last", show=False, priority=True),
        *(Binding(str(number), f"show_tab('{name}')", name, show=False) for number, name in enumerate(TABS, 1)),
    ]

    def __init__(self, title: str, report: Report, rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self._title = title
        self._report = report
        self._rules = rules

    def compose(self) -> ComposeResult:
        """Title, lists, details, keys."""
        yield Static(id="title")
        with Container(id="panes"):
            with Vertical(id="lists"):
                yield FindingsTable(self._report)
                yield UnjudgedTable(self._report)
            yield Detail(self._report, self._rules)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start on the findings, or on the overview where there are none."""
        self.query_one(Tabs).can_focus = False
        detail = self.query_one(Detail)
        if self._report.findings:
            self.query_one("#findings-table").focus()
        else:
            detail.choose(None)
            detail.show_tab("overview")
            detail.page().focus()

    def on_resize(self, event: events.Resize) -> None:
        """Side by side where there is room; the title is cut to the width."""
        self.set_class(event.size.width >= WIDE, "wide")
        self.query_one("#title", Static).update(text([self._headline(event.size.width)]))

    def _headline(self, width: int) -> Line:
        found = f"{len(self._report.findings)} finding{'' if len(self._report.findings) == 1 else 's'}"
        ran = f"{sum(rule.status == 'ran' for rule in self._report.rules)} of {len(self._report.rules)} rules ran"
        right = f"{found} · {ran} "
        left = clean(f" tracelens  {self._title}", max(width - cells(right) - 2, 12))
        gap = " " * max(width - cells(left) - cells(right), 1)
        return ((left, "bold"), (gap, ""), (right, ""))

    def on_findings_table_chosen(self, event: FindingsTable.Chosen) -> None:
        """Details follow the cursor."""
        self.query_one(Detail).choose(event.finding)

    def on_unjudged_table_chosen(self, event: UnjudgedTable.Chosen) -> None:
        """Details follow the cursor."""
        self.query_one(Detail).choose(event.status)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Coming back to the findings shows the finding under the cursor again."""
        if isinstance(event.widget, DataTable) and event.widget.id == "findings-table":
            self.query_one(Detail).choose(self._report.findings[event.widget.cursor_row])

    def action_pane(self, by: int) -> None:
        """The next or previous pane: findings, their details, unjudged rules. Full-screen details are the only one."""
        if self.has_class("zoomed"):
            self.query_one(Detail).page().focus()
            return
        panes: list[Widget] = [*self.query("#findings-table"), self.query_one(Detail).page()]
        panes += self.query("#unjudged-table")
        panes = [pane for pane in panes if pane.focusable]
        at = panes.index(self.focused) + by if self.focused in panes else 0
        panes[at % len(panes)].focus()

    def action_edge(self, last: bool) -> None:
        """First or last row of a list, top or bottom of a page; scrolling a list sideways would hide its columns."""
        if isinstance(self.focused, DataTable):
            self.focused.move_cursor(row=self.focused.row_count - 1 if last else 0)
        elif self.focused is not None:
            (self.focused.scroll_end if last else self.focused.scroll_home)(animate=False)

    def action_open(self) -> None:
        """Give the details the whole screen."""
        self.add_class("zoomed")
        self.query_one(Detail).page().focus()

    def action_close(self) -> None:
        """Back to the lists, where the cursor was."""
        self.remove_class("zoomed")
        tables = list(self.query(DataTable))
        if tables and not any(table.has_focus for table in tables):
            tables[0].focus()

    def action_show_tab(self, name: str) -> None:
        """Show one tab; the focus stays where it is unless it was on another page."""
        detail = self.query_one(Detail)
        on_page = isinstance(self.focused, Page)
        detail.show_tab(name)
        if on_page:
            detail.page().focus()

    def action_tab(self, by: int) -> None:
        """The next or previous tab."""
        active = self.query_one(Detail).active
        self.action_show_tab(TABS[(TABS.index(active) + by) % len(TABS)])
