"""Mend one damaged JSON object, or say that it cannot be mended. Changes nothing that was valid.

Writers of traces produce bare `inf`, `NaN`, `N/A` and hex tokens, raw control characters, Windows paths with `\\w`,
bytes that are not UTF-8, trailing commas and unescaped quotes inside names. Knows nothing of events or files; the
caller decides by a strict decoder whether a mended text is good.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_MEND = 1 << 22
"""Objects longer than 4 MiB are not mended: real events stay below 1 MiB."""
MAX_DEPTH = 200
"""Nesting at which both JSON decoders are still far from their recursion limits."""

_TOKEN = re.compile(rb'[\s,]*(?:("(?:[^"\\]|\\.)*+")|([{}\[\]:])|([^\s"{}\[\],:]++))', re.DOTALL)
_NUMBER = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?\Z")
_HEX = re.compile(rb"-?0[xX][0-9a-fA-F]{1,16}\Z")
_LITERALS = (b"true", b"false", b"null")
_BAD_ESCAPE = re.compile(
    rb'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|["\\/bfnrt])'
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|(\\)",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_KEY_END = re.compile(rb'"(?=\s*:)')
_MEMBER_END = re.compile(rb'"(?=\s*(?:,\s*"(?:[^"\\]|\\.)*+"\s*:|\}\s*(?:[,}\]]|\Z)))', re.DOTALL)
_ITEM_END = re.compile(rb'"(?=\s*[,\]])')
_INNER_QUOTE = re.compile(rb'(\\.)|"', re.DOTALL)


@dataclass(frozen=True)
class Mended:
    """A mended object: its JSON text, where it ended in the given bytes, and what was wrong with it."""

    text: bytes
    end: int
    faults: frozenset[str]


def mend(data: bytes) -> Mended | None:
    """The object at the start of `data` with bare tokens, escapes, characters and commas put right, or None.

    None means that brackets or quotes do not balance. Text after the object is left alone.
    """
    if len(data) > MAX_MEND:
        return None
    out: list[bytes] = []
    faults: set[str] = set()
    open_brackets: list[bytes] = []
    at = 0
    while token := _TOKEN.match(data, at):
        separators = data[at : token.start(token.lastindex or 0)]
        at = token.end()
        string, mark, word = token.groups()
        closing = mark in (b"}", b"]")
        if b"," in separators and out:
            if closing or out[-1] in (b"{", b"["):
                faults.add("trailing comma")
            else:
                out.append(b",")
        if string is not None:
            out.append(_mend_string(string, faults))
        elif word is not None:
            out.append(_mend_word(word, faults))
        else:
            out.append(mark)
            if closing:
                if not open_brackets or open_brackets.pop() + mark not in (b"{}", b"[]"):
                    return None
            elif mark != b":":
                open_brackets.append(mark)
                if len(open_brackets) > MAX_DEPTH:
                    return None
        if not open_brackets:
            return Mended(b"".join(out), at, frozenset(faults)) if closing else None
    return None


def mend_value(data: bytes) -> Mended | None:
    """The JSON value of any kind at the start of `data`, mended as by `mend`, or None."""
    token = _TOKEN.match(data)
    if token is None:
        return None
    string, mark, word = token.groups()
    if mark is not None:
        return mend(data)
    faults: set[str] = set()
    text = _mend_string(string, faults) if string is not None else _mend_word(word, faults)
    return Mended(text, token.end(), frozenset(faults))


def requote(data: bytes) -> Mended | None:
    """The object at the start of `data` with quotes inside strings escaped, or None.

    A value's string ends where the next member or the end of the object follows, a key's where a colon follows; what
    a quote in between meant is thereby decided, and the result is mended as by `mend`.
    """
    if len(data) > MAX_MEND:
        return None
    out = bytearray()
    open_brackets: list[int] = []
    key_next = False
    at = 0
    while at < len(data):
        byte = data[at]
        if byte == 0x22:
            inside_object = bool(open_brackets) and open_brackets[-1] == 0x7B
            ending = _KEY_END if inside_object and key_next else _MEMBER_END if inside_object else _ITEM_END
            end = ending.search(data, at + 1)
            if end is None:
                return None
            out += b'"' + _INNER_QUOTE.sub(lambda m: m[1] or b'\\"', data[at + 1 : end.start()]) + b'"'
            at = end.start() + 1
            key_next = False
            continue
        if byte in b"{[":
            open_brackets.append(byte)
            key_next = byte == 0x7B
        elif byte in b"}]":
            if not open_brackets or abs(open_brackets.pop() - byte) != 2:
                return None
        elif byte == 0x2C:
            key_next = bool(open_brackets) and open_brackets[-1] == 0x7B
        elif byte == 0x3A:
            key_next = False
        out.append(byte)
        at += 1
        if not open_brackets:
            mended = mend(bytes(out))
            return mended and Mended(mended.text, at, mended.faults | {"unescaped quote"})
    return None


def _mend_string(string: bytes, faults: set[str]) -> bytes:
    try:
        string.decode()
    except UnicodeDecodeError:
        faults.add("not UTF-8")
        string = string.decode("utf-8", "replace").encode()
    if _CONTROL.search(string):
        faults.add("control character")
        string = _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], string)
    if b"\\" in string:
        mended = _BAD_ESCAPE.sub(_mend_escape, string)
        if mended != string:
            faults.add("bad escape")
        return mended
    return string


def _mend_escape(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return b"\\ufffd"
    return b"\\\\" if match[2] is not None else match[0]


def _mend_word(word: bytes, faults: set[str]) -> bytes:
    if word in _LITERALS or _NUMBER.match(word):
        return word
    if _HEX.match(word):
        faults.add("hex number")
        return b"%d" % int(word, 16)
    faults.add("bare word")
    return word.lower() if word in (b"True", b"False") else b"null"
