import msgspec
import pytest

from tests import reports
from tracelens.finding import Evidence, Impact, Locality
from tracelens.presenters import cards
from tracelens.presenters.text import plain


def text(lines):
    return "\n".join(map(plain, lines))


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        (Locality(), ""),
        (Locality(kernel="k", op="aten::mm", device=0, stream=7), "k in aten::mm · GPU 0 stream 7"),
        (Locality(file="a.py", line=0, line_kind="definition"), "a.py:0 (where it is defined)"),
        (Locality(file="a.py"), "a.py"),
        (Locality(thread="thread 7 (python)", thread_id=7, rank=0), "thread 7 (python), rank 0"),
        (Locality(thread="poll", thread_id=7, process_id=0), "thread poll 7, process 0"),
        (Locality(phase="decode", step=3, request="r1"), "decode, step 3, request r1"),
    ],
)
def test_place_says_what_is_known_once_and_nothing_else(where, shown):
    assert cards.place(where) == shown


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        (Locality(kernel="k", op="o", function="f"), "k"),
        (Locality(file="a.py", line=3, thread="t"), "a.py:3"),
        (Locality(thread_id=0), "thread 0"),
        (Locality(), "the whole trace"),
    ],
)
def test_short_place_is_the_most_telling_part(where, shown):
    assert cards.short_place(where) == shown


@pytest.mark.parametrize(("bound", "words"), [("estimate", "about"), ("upper", "at most"), ("lower", "at least")])
def test_cost_names_the_bound_the_share_and_the_arithmetic(bound, words):
    impact = Impact(quantity="GIL held", value=2.0, unit="s", share=0.5, of="wall", bound=bound, basis="a sum")
    assert cards.cost(impact) == f"GIL held: {words} 2 s, 50 % of wall (a sum)"
    assert cards.short_cost(impact) == "50 %"


def test_a_share_of_zero_is_not_an_unknown_share():
    impact = Impact(quantity="q", value=2.0, unit="s", share=0.0, bound="upper", basis="b")
    assert cards.cost(impact) == "q: at most 2 s, 0 % (b)"
    assert cards.short_cost(impact) == "0 %"
    assert cards.short_cost(msgspec.structs.replace(impact, share=None)) == "2 s"


def test_full_holds_everything_and_rows_when_asked():
    finding = reports.gil_finding()
    shown = text(cards.full(finding, 100, rows=False))
    for fact in (
        finding.message[:60], "observed: the trace shows it happen", "thread MainThread 4242", "480 times", "3, 4, 5",
        "1 ms +8.1 ms, 20 ms +8 ms (480 in all)", "2 rows of table ticks copied: --rows shows them",
        "py::gil_scoped_release release;", "https://docs.python.org/3/c-api/init.html",
        "release-gil (call=intranode_dispatch)", "refuted if  ticks stay as late",
    ):  # fmt: skip
        assert fact in shown
    rows = text(cards.full(finding, 100, rows=True)).splitlines()
    at = next(index for index, line in enumerate(rows) if line.strip().startswith("at "))
    assert [line.split() for line in rows[at : at + 3]] == [
        ["at", "late", "run", "delay"],
        ["9.15", "ms", "8.05", "ms", "1", "µs"],
        ["28.1", "ms", "7.9", "ms", "–"],
    ]
    assert rows[at + 3].strip() == "ticks ids: 3, 9, 12"


def test_links_between_findings_are_told():
    impact = msgspec.structs.replace(reports.gil_finding().impact, overlaps_with=("aa",), end_to_end="5 % of tokens/s")
    shown = text(cards.full(reports.gil_finding(impact=impact, explains=("bb",)), 100, rows=False))
    assert "aa: do not add the two savings" in shown
    assert "explains    bb" in shown
    assert "end to end: 5 % of tokens/s" in shown


def test_rows_of_uneven_length_and_without_columns_are_printed():
    evidence = Evidence(says="s", rows=((1, "two", True), (4.5,)))
    assert text(cards.evidence_lines([evidence], 80, rows=True)).split() == ["evidence", "s", "1", "two", "true", "4.5"]
