"""What stands on screen while a trace is read and judged."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Center, Middle
from textual.screen import Screen
from textual.widgets import Footer, LoadingIndicator, Static

from tracelens.tui.widgets.styled import cell


class LoadingScreen(Screen[None]):
    """A moving indicator and what is being read."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        """Indicator and name."""
        with Middle(), Center(id="loading"):
            yield LoadingIndicator()
            yield Static(cell(f"reading and judging {self._title}", width=70), id="loading-name")
        yield Footer(show_command_palette=False)
