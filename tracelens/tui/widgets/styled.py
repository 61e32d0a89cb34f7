"""Styled lines of the presenters as rich Text. Never markup: names from traces are shown literally."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from tracelens.presenters.text import Line, Style, clean

STYLES: dict[Style, str] = {
    "": "",
    "bold": "bold",
    "dim": "dim",
    "head": "bold cyan",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold blue",
    "good": "green",
}


def text(lines: Iterable[Line]) -> Text:
    """Lines as one text; every span is cleaned."""
    out = Text(no_wrap=True)
    for index, line in enumerate(lines):
        if index:
            out.append("\n")
        for span, style in line:
            out.append(clean(span), STYLES[style])
    return out


def cell(value: str, style: Style = "", width: int = 60) -> Text:
    """One table cell of untrusted text."""
    return Text(clean(value, width), STYLES[style], no_wrap=True)
