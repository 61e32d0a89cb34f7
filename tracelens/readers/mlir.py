"""Source locations in MLIR text: `loc("kern.py":23:26)`, aliases `#loc5`, named, callsite and fused locations.

A location chain is followed to the innermost file and line: of an inlined call, the line inside the callee. Knows no
operation. Paths are text; nothing is opened. Malformed or cyclic chains resolve to None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_DEPTH = 64
"""Links followed in one chain; inlining nests a handful deep, more is damage or malice."""
MAX_LINE = 2**31 - 1

_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$")
_ALIAS = re.compile(r"#loc\d*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r":(\d+):\d+(?: to \d*:\d+)?")
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_FUSED = re.compile(r"fused(?:<[^\[]*>)?\[")


@dataclass(frozen=True)
class Place:
    """A source position; `line` is None where the compiler wrote 0."""

    file: str
    line: int | None


class _Malformed(Exception):
    pass


class Locations:
    """The location aliases of one module."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._aliases: dict[str, str] = {}
        for line in lines:
            if line.startswith("#loc") and (definition := _DEFINITION.match(line)):
                self._aliases[definition.group(1)] = definition.group(2)

    def resolve(self, text: str) -> Place | None:
        """The innermost place of what stands between `loc(` and `)`; None where it names none or is malformed."""
        try:
            return self._whole(text, 0)
        except _Malformed:
            return None

    def _whole(self, text: str, depth: int) -> Place | None:
        place, end = self._parse(text, 0, depth)
        if text[end:].strip():
            raise _Malformed
        return place

    def _parse(self, text: str, at: int, depth: int) -> tuple[Place | None, int]:
        """One location of `text` from `at`: the place and where it ends."""
        if depth > MAX_DEPTH:
            raise _Malformed
        if alias := _ALIAS.match(text, at):
            definition = self._aliases.get(alias.group())
            if definition is None:
                raise _Malformed
            return self._whole(definition, depth + 1), alias.end()
        if text.startswith("unknown", at):
            return None, at + len("unknown")
        if text.startswith("callsite(", at):
            callee, at = self._parse(text, at + len("callsite("), depth + 1)
            caller, at = self._parse(text, _expect(text, at, " at "), depth + 1)
            return callee or caller, _expect(text, at, ")")
        if fused := _FUSED.match(text, at):
            return self._fused(text, fused.end(), depth)
        return self._named(text, at, depth)

    def _fused(self, text: str, at: int, depth: int) -> tuple[Place | None, int]:
        """The first place of a list of locations."""
        first: Place | None = None
        while not text.startswith("]", at):
            place, at = self._parse(text, at, depth + 1)
            first = first or place
            if not text.startswith("]", at):
                at = _expect(text, at, ", ")
        return first, at + 1

    def _named(self, text: str, at: int, depth: int) -> tuple[Place | None, int]:
        """`"file":line:column`, `"name"(location)` or `"name"`."""
        string = _STRING.match(text, at)
        if string is None:
            raise _Malformed
        if position := _POSITION.match(text, string.end()):
            line = int(position.group(1)[:12])
            if line > MAX_LINE:
                raise _Malformed
            return Place(_ESCAPE.sub(_unescape, string.group(1)), line or None), position.end()
        if text.startswith("(", string.end()):
            place, end = self._parse(text, string.end() + 1, depth + 1)
            return place, _expect(text, end, ")")
        return None, string.end()


def _expect(text: str, at: int, token: str) -> int:
    if not text.startswith(token, at):
        raise _Malformed
    return at + len(token)


def _unescape(escape: re.Match[str]) -> str:
    code = escape.group(1)
    return chr(int(code, 16)) if len(code) == 2 else code
