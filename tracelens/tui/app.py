"""The application: load a report in the background, then show it. Knows no trace format and no rule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from tracelens.finding import Report
from tracelens.rule import Rule
from tracelens.tui.screens.keys import KeysScreen
from tracelens.tui.screens.loading import LoadingScreen
from tracelens.tui.screens.report import ReportScreen


class TracelensApp(App[None]):
    """`load` makes the report; it runs in a daemon thread, so that q ends the application at once even then.

    What it raises ends the application and is left in `failure` for the caller, who still has the terminal.
    """

    CSS_PATH = "tracelens.tcss"
    TITLE = "tracelens"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "keys", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, title: str, load: Callable[[], Report], rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._given_title = title
        self._load = load
        self._rules = rules

    def on_mount(self) -> None:
        """Show that something happens, and make it happen."""
        self.push_screen(LoadingScreen(self._given_title))
        threading.Thread(target=self._work, name="tracelens-load", daemon=True).start()

    def _work(self) -> None:
        try:
            report = self._load()
        except Exception as error:
            self._tell(self._failed, error)
        else:
            self._tell(self._loaded, report)

    def _tell(self, what: Callable[..., None], value: object) -> None:
        if self.is_running:  # else the user has left already
            self.call_from_thread(what, value)

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self.exit(return_code=2)

    def _loaded(self, report: Report) -> None:
        self.switch_screen(ReportScreen(self._given_title, report, self._rules))

    def action_help(self) -> None:
        """The keys, over whatever is on screen."""
        self.push_screen(KeysScreen())
