"""The help screen: every key, and what the words on screen mean."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tracelens.presenters.cards import MEANS
from tracelens.presenters.text import Line, field
from tracelens.tui.widgets.styled import text

KEYS = (
    ("↑ ↓", "move in a list, scroll a page"),
    ("Tab", "next pane: findings, details, not judged"),
    ("Enter", "details on the whole screen"),
    ("Esc", "back to the lists"),
    ("← →, 1–4", "tabs: evidence, manual, experiment, overview"),
    ("?", "this page"),
    ("q", "quit"),
)
STATUSES = (
    ("abstained", "the rule had its evidence and still cannot know; the reason says why"),
    ("skipped", "the recording lacks what the rule needs; unlock says how to record it"),
    ("failed", "the rule crashed: a defect of its plugin, not of your run"),
    ("partly", "the rule ran, but could not judge every part of the trace"),
)
WIDTH = 66


class KeysScreen(ModalScreen[None]):
    """A box over the report; Esc, Enter or ? closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter", "dismiss", "close"),
    ]

    def compose(self) -> ComposeResult:
        """Keys, grades, statuses."""
        lines: list[Line] = [(("Keys", "head"), ("  Esc closes this page", "dim"))]
        for label, says in KEYS:
            lines += field(label, says, WIDTH, indent=2)
        lines += [(), (("Confidence", "head"),)]
        for grade, means in MEANS.items():
            lines += field(grade, means.partition(": ")[2], WIDTH, indent=2)
        lines += [(), (("Not judged", "head"),)]
        for status, says in STATUSES:
            lines += field(status, says, WIDTH, indent=2)
        with VerticalScroll(id="keys"):
            yield Static(text(lines))
