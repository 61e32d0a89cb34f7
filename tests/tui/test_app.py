"""The TUI, driven by keys: each test says what a person presses and what must then be on screen."""

import threading

import pytest
from textual.widgets import DataTable, LoadingIndicator, Static

from tests import reports
from tracelens.errors import TracelensError
from tracelens.rule import Need, Option, Rule
from tracelens.tui.app import TracelensApp
from tracelens.tui.screens.keys import KeysScreen
from tracelens.tui.screens.loading import LoadingScreen
from tracelens.tui.screens.report import ReportScreen
from tracelens.tui.widgets.detail import TABS, Detail, Page, manual_lines

MANUAL = (
    "A call holds the lock.\n\nWhat it sees\n    A call\n    and another.\n\nWhy it costs\n    Threads stand still."
)
RULE = Rule(
    code="GIL001",
    name="native-call-holds-gil",
    summary="a native call keeps the GIL",
    needs=(Need(("ticks", "slices:python"), "observed", "tracelens record --with torch,gil -- COMMAND"),),
    manual=MANUAL,
    options={"min_share": Option(0.02, "2 % is the reporting line")},
)
SIZES = [(80, 24), (160, 48)]


def app_of(report, title="runs/decode.json.gz"):
    app = TracelensApp(title, lambda: report, {"GIL001": RULE})
    app.animation_level = "none"  # the tab underline glides for 0.3 s
    return app


async def shown(pilot):
    """Wait until the report is on screen."""
    for _ in range(200):
        if isinstance(pilot.app.screen, ReportScreen):
            await pilot.pause()
            return pilot.app.screen
        await pilot.pause(0.02)
    raise AssertionError("the report never came")


def page(app, name=None):
    """The text of a page, the active one by default."""
    detail = app.screen.query_one(Detail)
    body = app.screen.query_one(f"#body-{name or detail.active}", Static)
    return str(body.content)


def screen_text(app):
    """Everything visible, as text."""
    width = app.size.width
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip)[:width] for strip in strips)


@pytest.mark.parametrize("size", SIZES)
async def test_it_opens_on_the_first_finding_with_its_evidence(size):
    app = app_of(reports.report())
    async with app.run_test(size=size) as pilot:
        screen = await shown(pilot)
        assert screen.has_class("wide") == (size[0] == 160)
        assert app.focused.id == "findings-table"
        visible = screen_text(app)
        for words in ("runs/decode.json.gz", "2 findings · 2 of 5 rules ran", "error", "GIL001", "intranode_dispatch",
                      "25 %", "observed", "NUM001", "Not judged (3)", "abstained", "quit", "keys", "open"):  # fmt: skip
            assert words in visible
        assert "mooncake-poll waited 3.71 s for the GIL" in page(app)
        assert "9.15 ms  8.05 ms  1 µs" in page(app)


async def test_arrows_walk_through_the_findings_and_the_details_follow():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("down")
        assert app.focused.cursor_row == 1
        assert page(app).startswith("kda_chunk_kernel multiplies")
        await pilot.press("down")
        assert app.focused.cursor_row == 1
        await pilot.press("up")
        assert page(app).startswith("intranode_dispatch held")


async def test_tab_goes_round_the_panes_and_the_details_follow():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("tab")
        assert app.focused.id == "page-evidence"
        assert page(app).startswith("intranode_dispatch held")
        await pilot.press("tab")
        assert app.focused.id == "unjudged-table"
        assert page(app).startswith("MEM001 bandwidth-stall failed")
        await pilot.press("down")
        assert page(app).startswith("GIL002 gil-convoy abstained")
        assert "number      1, needed 2" in page(app)
        assert "unlock      tracelens record --with torch,gil -- COMMAND" in page(app)
        await pilot.press("tab")
        assert app.focused.id == "findings-table"
        assert page(app).startswith("intranode_dispatch held")
        await pilot.press("shift+tab")
        assert app.focused.id == "unjudged-table"


async def test_digits_and_arrows_turn_the_tabs():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(pilot)
        detail = screen.query_one(Detail)
        for digit, name in zip("2341", (*TABS[1:], TABS[0]), strict=True):
            await pilot.press(digit)
            assert detail.active == name
        for name in (*TABS[1:], TABS[0]):
            await pilot.press("right")
            assert detail.active == name
        await pilot.press("left")
        assert detail.active == "overview"
        assert app.focused.id == "findings-table"


async def test_each_tab_answers_its_question():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        assert "GIL001 native-call-holds-gil" in page(app, "manual")
        assert "A call and another." in page(app, "manual")
        assert "min_share = 0.02: 2 % is the reporting line" in page(app, "manual")
        assert "predicts    late ticks inside the call goes down by at least 50 %" in page(app, "experiment")
        assert "refuted if  ticks stay as late with the GIL released" in page(app, "experiment")
        assert "release the GIL around the native wait" in page(app, "experiment")
        assert "vLLM on NVIDIA H200" in page(app, "overview")
        await pilot.press("down")
        assert "The plugin of NUM001 is not loaded" in page(app, "manual")


@pytest.mark.parametrize("size", SIZES)
async def test_enter_gives_the_details_the_screen_and_escape_goes_back(size):
    app = app_of(reports.report())
    async with app.run_test(size=size) as pilot:
        screen = await shown(pilot)
        await pilot.press("down", "enter")
        assert not screen.query_one("#lists").display
        assert app.focused.id == "page-evidence"
        await pilot.press("4")
        assert app.focused.id == "page-overview"
        await pilot.press("escape")
        assert screen.query_one("#lists").display
        assert app.focused.id == "findings-table"
        assert app.focused.cursor_row == 1


async def test_tab_stays_in_details_that_have_the_screen():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("enter", "tab", "tab")
        assert app.focused.id == "page-evidence"
        await pilot.press("escape")
        assert app.focused.id == "findings-table"


async def test_home_and_end_walk_the_list_and_never_scroll_it_sideways():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("end")
        assert (app.focused.cursor_row, app.focused.scroll_x) == (1, 0)
        await pilot.press("home")
        assert app.focused.cursor_row == 0


async def test_long_pages_scroll():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(pilot)
        await pilot.press("tab", "down", "down")
        await pilot.pause()
        assert screen.query_one("#page-evidence", Page).scroll_offset.y > 0


@pytest.mark.parametrize("closing", ["escape", "question_mark", "enter"])
async def test_question_mark_shows_every_key(closing):
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("question_mark")
        assert isinstance(app.screen, KeysScreen)
        for key in ("Tab", "Enter", "Esc", "← →, 1–4", "quit", "abstained", "suspected"):
            assert key in screen_text(app)
        await pilot.press(closing)
        assert isinstance(app.screen, ReportScreen)
        assert app.focused.id == "findings-table"


async def test_q_quits_with_0():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("q")
    assert app.return_code == 0
    assert app.failure is None


async def test_while_loading_something_moves_and_q_works():
    ready = threading.Event()
    app = TracelensApp("big.json", lambda: ready.wait(30) and reports.report(), {})
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, LoadingScreen)
        assert app.screen.query_one(LoadingIndicator).display
        assert "reading and judging big.json" in screen_text(app)
        await pilot.press("q")
    ready.set()
    assert app.return_code == 0


async def test_what_cannot_be_loaded_ends_the_application_and_is_kept_for_the_caller():
    problem = TracelensError("bad.json: not JSON", "record again")

    def load():
        raise problem

    app = TracelensApp("bad.json", load, {})
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(200):
            if app.failure is not None:
                break
            await pilot.pause(0.02)
    assert app.failure is problem
    assert app.return_code == 2


async def test_without_findings_the_overview_comes_first_and_the_reason_in_words():
    app = app_of(reports.report(findings=()))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(pilot)
        assert screen.query_one(Detail).active == "overview"
        assert "No findings: 2 rules ran and found nothing; 3 did not judge." in screen_text(app)
        await pilot.press("1")
        assert page(app).startswith("None: 2 rules ran and found nothing")
        await pilot.press("escape")
        assert app.focused.id == "unjudged-table"
        assert page(app).startswith("MEM001 bandwidth-stall failed")


@pytest.mark.parametrize("size", SIZES)
async def test_an_empty_report_is_walkable(size):
    app = app_of(reports.bare())
    async with app.run_test(size=size) as pilot:
        await shown(pilot)
        assert "No findings: no rule is installed." in screen_text(app)
        for key in ("tab", "enter", "escape", "1", "2", "3", "4", "left", "right", "up", "down", "tab"):
            await pilot.press(key)
        assert "no timed events" in page(app, "overview")


@pytest.mark.parametrize("size", SIZES)
async def test_names_from_traces_are_shown_literally(size):
    app = app_of(reports.hostile(), title=reports.HOSTILE)
    literal = "evil[red]\\x1b[31m\\x1b]0;title\\x07\\u202egnp\\x9b2J[/red]\\nnext[@click=app.quit]line"
    async with app.run_test(size=size) as pilot:
        screen = await shown(pilot)
        for table in screen.query(DataTable):
            for row in range(table.row_count):
                assert all(cell.plain.isprintable() for cell in table.get_row_at(row))
        for name in TABS:
            await pilot.press(str(TABS.index(name) + 1))
            assert all(line.isprintable() for line in page(app).splitlines())
            assert all(line.isprintable() for line in screen_text(app).splitlines())
        assert literal in page(app, "evidence").replace("\n", "").replace(" ", "")
        assert "evil[red]\\x1b[31m" in screen_text(app)


async def test_resizing_folds_the_text_anew_and_moves_the_panes():
    app = app_of(reports.report())
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await shown(pilot)
        narrow = page(app, "overview")
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert screen.has_class("wide")
        assert max(map(len, page(app, "overview").splitlines())) > max(map(len, narrow.splitlines()))
        lists, detail = screen.query_one("#lists").region, screen.query_one(Detail).region
        assert lists.right <= detail.x
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert screen.query_one("#lists").region.bottom <= screen.query_one(Detail).region.y
        assert page(app, "overview") == narrow


def test_manual_lines_mark_headings_and_join_paragraphs():
    lines = manual_lines(RULE, 60)
    assert (("", ""), ("What it sees", "head")) in lines
    assert (("  ", ""), ("A call and another.", "")) in lines
