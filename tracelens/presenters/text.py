"""Words, numbers and styled lines that the terminal and the TUI share.

Every text that comes from a trace passes through `clean` before it reaches a screen. Knows no report and no terminal
library: a `Line` is plain data that `ansi` (here) or the TUI turns into colours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

Style: TypeAlias = Literal["", "bold", "dim", "head", "error", "warning", "info", "good"]
Span: TypeAlias = tuple[str, Style]
Line: TypeAlias = tuple[Span, ...]

ANSI: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "head": "1;36",
    "error": "1;31",
    "warning": "1;33",
    "info": "1;34",
    "good": "32",
}
ELLIPSIS = "…"
LABEL = 14
"""Width of the margin in which the labels of facts stand."""
MAX_TEXT = 1 << 16
"""Characters of one text that are looked at: a longer name helps nobody and costs time on every redraw."""
MAX_MARKS = 2
"""Combining marks kept on one character: real scripts need two, a pile of them overwrites the lines above."""


def clean(text: str, width: int | None = None, keep: Literal["start", "end"] = "start") -> str:
    """Untrusted text as one printable line of at most `width` terminal cells.

    Control characters, escape sequences, line breaks, bidirectional overrides, invisible and unassigned characters
    become visible escapes (\\n, \\x1b, \\u202e, …), so nothing can move the cursor, recolour or reorder what a person
    reads. What does not fit is cut at the end, or at the beginning with keep="end" (for paths), and marked with "…".
    """
    beyond = len(text) > MAX_TEXT
    piece = text[:MAX_TEXT] if keep == "start" else text[-MAX_TEXT:]
    if not (piece.isascii() and piece.isprintable()):
        piece = "".join(_printable(piece))
    if not beyond and (width is None or cells(piece) <= width):
        return piece
    return _cut(piece, MAX_TEXT if width is None else max(width, 1), keep)


def _printable(text: str) -> Iterator[str]:
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks > MAX_MARKS:
            continue
        if char.isprintable():
            yield char
        elif unicodedata.category(char) == "Zs":
            yield " "
        else:
            yield char.encode("unicode_escape").decode("ascii")


def _cut(text: str, width: int, keep: Literal["start", "end"]) -> str:
    room = width - 1
    kept: list[str] = []
    for char in text if keep == "start" else reversed(text):
        room -= _cell(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + ELLIPSIS if keep == "start" else ELLIPSIS + "".join(reversed(kept))


def _cell(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cells(text: str) -> int:
    """Terminal columns that printable text occupies."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def pad(text: str, width: int) -> str:
    """The text filled with spaces to `width` cells."""
    return text + " " * (width - cells(text))


def fold(text: str, width: int, lines: int | None = None) -> list[str]:
    """Untrusted text as lines of at most `width` cells, broken at spaces; at most `lines` of them, the last cut."""
    words = clean(text).split()
    out: list[str] = [""]
    for word in words:
        for piece in _pieces(word, width):
            if not out[-1]:
                out[-1] = piece
            elif cells(out[-1]) + 1 + cells(piece) <= width:
                out[-1] += " " + piece
            else:
                out.append(piece)
    if lines is not None and len(out) > lines:
        out = [*out[: lines - 1], _cut(" ".join(out[lines - 1 : lines + 1]), width, "start")]
    return out


def _pieces(word: str, width: int) -> Iterator[str]:
    while cells(word) > width:
        head, room = "", width
        for char in word:
            room -= _cell(char)
            if room < 0:
                break
            head += char
        head = head or word[0]
        yield head
        word = word[len(head) :]
    if word:
        yield word


def paragraph(text: str, width: int, style: Style = "", indent: int = 0) -> list[Line]:
    """Folded text as lines."""
    return [((" " * indent, ""), (piece, style)) for piece in fold(text, width - indent)]


def field(label: str, text: str, width: int, lines: int | None = None, *, indent: int = 0, at: int = 12) -> list[Line]:
    """`label` in the margin, folded text beside it: the shape of every fact on screen."""
    margin = indent + at
    pieces = fold(text, max(width - margin, 20), lines)
    first: Line = ((" " * indent, ""), (pad(label, at), "dim"), (pieces[0], ""))
    return [first, *(((" " * margin, ""), (piece, "")) for piece in pieces[1:])]


def plain(line: Line) -> str:
    """A line without its styles."""
    return "".join(clean(text) for text, _ in line).rstrip()


def ansi(line: Line, color: bool) -> str:
    """A line as terminal text, cleaned once more: what reaches a terminal never depends on a caller's care."""
    if not color:
        return plain(line)
    spans = ((clean(text), style) for text, style in line)
    return "".join(f"\x1b[{ANSI[style]}m{text}\x1b[0m" if style and text else text for text, style in spans)


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with thousands separators and its noun, in the plural where needed."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(ns: float) -> str:
    """Nanoseconds as three significant digits with the fitting unit."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= scale * 0.9995:
            return f"{digits(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def size(number: float) -> str:
    """Bytes in decimal units, as disks and links are sold."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= scale * 0.9995:
            return f"{digits(number / scale)} {unit}"
    return f"{number:.0f} B"


def digits(number: float) -> str:
    """Three significant digits, without an exponent where that is readable and without idle zeros."""
    if abs(number) >= 100 and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def percent(share: float) -> str:
    """A share of 1 as a percentage; small ones keep one digit, so that 0 % means none."""
    value = share * 100
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if abs(value) >= 0.05 else "<0.1 %"


def quantity(value: float, unit: str) -> str:
    """A value with its unit; times, bytes and shares in readable units."""
    scales = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
    if unit in scales:
        return duration(value * scales[unit])
    if unit == "share":
        return percent(value)
    if unit in ("bytes", "B"):
        return size(value)
    return f"{digits(value)} {clean(unit, 20)}".rstrip()


def bar(share: float, width: int) -> str:
    """A horizontal bar of `width` cells, in eighths."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def fitting(parts: Iterable[str], width: int) -> str:
    """As many leading parts as fit in one line, joined by dots; parts that are empty are left out."""
    line = ""
    for part in map(clean, filter(None, parts)):
        longer = f"{line} · {part}" if line else part
        if line and cells(longer) > width:
            break
        line = longer
    return line


def listed(things: Iterable[str], most: int = 3) -> str:
    """Some names joined by commas, the rest counted."""
    names = list(things)
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
