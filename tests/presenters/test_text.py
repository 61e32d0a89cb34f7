"""`clean` is what stands between a trace and a terminal: these tests attack it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reports import HOSTILE
from tracelens.presenters import text


@given(st.text(), st.none() | st.integers(1, 40), st.sampled_from(["start", "end"]))
def test_clean_leaves_only_printable_characters_and_keeps_the_width(raw, width, keep):
    cleaned = text.clean(raw, width, keep)
    assert cleaned.isprintable()
    assert width is None or text.cells(cleaned) <= width


@given(st.text(), st.none() | st.integers(1, 40))
def test_clean_is_idempotent(raw, width):
    once = text.clean(raw, width)
    assert text.clean(once, width) == once


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"])))
def test_clean_leaves_harmless_text_alone(raw):
    assert text.clean(raw) == raw


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("line\u2028break", "line\\u2028break"),
        ("no\u00a0break", "no break"),
        ("\udcff", "\\udcff"),
        ("你好 µ", "你好 µ"),
    ],
)
def test_clean_shows_what_would_act_on_a_terminal(raw, shown):
    assert text.clean(raw) == shown


def test_clean_cuts_piles_of_combining_marks():
    assert text.clean("e" + "\u0301" * 50) == "e" + "\u0301" * text.MAX_MARKS


def test_clean_cuts_the_end_or_the_beginning_and_says_so():
    assert text.clean("abcdefgh", 5) == "abcd…"
    assert text.clean("abcdefgh", 5, "end") == "…efgh"
    assert text.clean("abcde", 5) == "abcde"
    assert text.clean("你好你好", 5) == "你好…"


def test_clean_looks_at_a_bounded_part_of_an_enormous_name():
    cleaned = text.clean("x" * 10_000_000)
    assert len(cleaned) == text.MAX_TEXT
    assert cleaned.endswith("…")


@given(st.text(), st.integers(2, 30), st.none() | st.integers(1, 4))
def test_fold_keeps_width_and_number_of_lines(raw, width, most):
    lines = text.fold(raw, width, most)
    assert all(text.cells(line) <= width for line in lines)
    assert most is None or len(lines) <= most


@given(st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=9), max_size=20))
def test_fold_keeps_all_words_in_order(words):
    assert " ".join(text.fold(" ".join(words), 10)).split() == words


def test_fold_marks_what_is_left_out():
    assert text.fold("one two three four five", 9, 2) == ["one two", "three fo…"]


def test_ansi_colours_only_when_asked_and_never_passes_escapes_on():
    line = (("error", "error"), (" ", ""), (HOSTILE, "bold"))
    assert "\x1b" not in text.ansi(line, color=False)
    coloured = text.ansi(line, color=True)
    assert coloured.startswith("\x1b[1;31merror\x1b[0m \x1b[1mevil[red]\\x1b[31m")
    assert coloured.count("\x1b") == 4
    assert all(unicodedata.category(char) not in ("Cf", "Zl") for char in coloured)


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1_000, "1 µs"), (999_700, "1 ms"), (31_200_000, "31.2 ms"), (15.6e9, "15.6 s"),
     (-2_500_000, "-2.5 ms"), (7_200e9, "7,200 s")],
)  # fmt: skip
def test_duration(ns, shown):
    assert text.duration(ns) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0 %"), (0.0001, "<0.1 %"), (0.001, "0.1 %"), (0.0949, "9.5 %"), (0.0996, "10 %"), (1, "100 %")],
)
def test_percent_shows_zero_only_for_nothing(share, shown):
    assert text.percent(share) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(3900, "ms", "3.9 s"), (1.5, "s", "1.5 s"), (536_969_216, "bytes", "537 MB"), (0.5, "share", "50 %"),
     (0.0049, "", "0.0049"), (12, "GB/s", "12 GB/s"), (1, "\x1b[0m", "1 \\x1b[0m")],
)  # fmt: skip
def test_quantity(value, unit, shown):
    assert text.quantity(value, unit) == shown


def test_bar_is_never_longer_than_its_place():
    assert text.bar(0.5, 4) == "██"
    assert text.bar(1 / 32, 4) == "▏"
    assert text.bar(7.0, 4) == "████"
    assert text.bar(-1.0, 4) == ""


def test_count_and_listed_words():
    assert text.count(1, "launch", "launches") == "1 launch"
    assert text.count(41_960, "kernel") == "41,960 kernels"
    assert text.listed("abcde", 3) == "a, b, c and 2 more"
    assert text.fitting(["first", "", "second", "third"], 16) == "first · second"
