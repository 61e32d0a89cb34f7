import io

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reports
from tracelens.finding import Bottleneck, Next, RuleStatus
from tracelens.presenters import outcome, terminal
from tracelens.presenters.text import cells, plain


def rendered(report, width=80, color=False):
    out = io.StringIO()
    terminal.PRESENTER.render(report, out, color, width)
    return out.getvalue()


def test_the_first_screen_answers_the_first_questions():
    shown = rendered(reports.report(findings=()))
    for fact in (
        "tracelens 0.1.0   runs/decode.json.gz · kineto · 12.4 MB",
        "vLLM on NVIDIA H200 · TP8 DP2 · graphs: full decode · 1 of 8 ranks",
        "15.6 s · 41,960 kernels · 480 graph replays",
        "decode 480 × 31.2 ms (p99 44 ms) · 8 requests · 3,840 tokens",
        "host 33 % of the GPU window in decode: the GPU waits for the next",
        "not observed  GPU for 2.82 s, 19 % of the GPU window: 10 % of graph replays have",
        "7 of 8 ranks: no file",
        "9.18 s of GPU work by kernel family",
        "attention                █████▎          44 %  4 s · 9,600 ×",
        "96 % of GPU time to an op · 40 % to a source line",
        "none: 2 rules ran and found nothing; 3 did not judge",
        "2 ran · 1 abstained (GIL002) · 1 skipped (NUM003) · 1 failed",
        "tracelens record --with torch,gil -- COMMAND → GIL002",
    ):
        assert fact in shown


def test_a_card_says_what_where_who_how_much_how_known_what_to_do_and_how_to_prove_it():
    shown = " ".join(rendered(reports.report()).split())
    for fact in (
        "error GIL001 native-call-holds-gil",
        reports.gil_finding().fingerprint,
        "intranode_dispatch in moe_layer at serving/model/moe.py:120 (call site) · thread MainThread 4242",
        "GIL held: at most 3.9 s, 25 % of wall time (sum of the 480 calls, less 50 µs at each end)",
        "observed the GIL probe ran 0 times inside the 480 calls; 3,840 were expected",
        "mooncake-poll waited 3.71 s for the GIL, 95 % of the held time",
        "release the GIL around the native wait: py::gil_scoped_release (measure)",
        "late ticks inside the call down by at least 50 %; refuted if ticks stay as late with the GIL released",
    ):
        assert fact in shown


def test_known_findings_are_marked():
    assert "native-call-holds-gil  known  " in rendered(reports.report(findings=(reports.gil_finding(known=True),)))
    assert "known  " not in rendered(reports.report())


@pytest.mark.parametrize("width", [1, 60, 80, 120, 500])
@pytest.mark.parametrize("made", [reports.report, reports.bare, reports.hostile])
def test_lines_fit_and_are_printable(made, width):
    for line in rendered(made(), width).splitlines():
        assert cells(line) <= min(max(width, terminal.MIN_WIDTH), terminal.MAX_WIDTH)
        assert line.isprintable()


def crowded(words):
    """A report in which everything that can be long or many is."""
    report = reports.report()
    step = msgspec.structs.replace(report.steps[0], phase=words)
    health = tuple(
        msgspec.structs.replace(report.health[0], severity="error", need=words, says=words, where=words)
        for _ in range(9)
    )
    rules = tuple(
        RuleStatus(code=f"AAA{number:03}", name=words, status=status, why=words, unlock=words)
        for number in range(40)
        for status in ("ran", "abstained", "skipped", "failed", "disabled")
    )
    return reports.report(
        findings=(),
        environment=msgspec.structs.replace(report.environment, engine=words, parallelism=words),
        bottleneck=Bottleneck(class_="mixed", because=words, phase=words, share=0.5, of=words, trust="doubtful"),
        steps=(step,) * 9,
        breakdown={"all": tuple(reports.family(f"{n}{words}", 1, 1_000, 0.01) for n in range(90))},
        health=health,
        rules=rules,
        next=(Next(kind="record", command=words, why=words, unlocks=(words,) * 9),) * 9,
    )


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=400), st.integers(40, 140))
def test_without_findings_the_screen_has_at_most_30_lines(words, width):
    assert len(rendered(crowded(words), width).splitlines()) <= 30


def test_the_crowded_screen_keeps_every_section_and_counts_what_it_leaves_out():
    shown = rendered(crowded("word " * 60))
    assert len(shown.splitlines()) == 30
    for label in ("recorded", "holds", "host steps", "bottleneck", "not observed", "time", "attributed", "health",
                  "findings", "rules", "next"):  # fmt: skip
        assert f"\n{label} " in shown
    assert "4,320" not in shown
    assert "2,880 in 6 more phases" in shown
    assert "86 others" in shown
    assert "and 12 more" in shown
    assert "(and 8 more)" in shown


def test_a_recording_of_samples_alone_shows_functions_instead_of_kernels():
    summary = msgspec.structs.replace(reports.SUMMARY, kernels=0, gpu_busy_ns=0, gpu_idle_ns=None, top_kernels=())
    trace = msgspec.structs.replace(reports.report().trace, summary=summary)
    shown = rendered(reports.report(trace=trace, breakdown={}, findings=()))
    assert "1,560 samples by innermost function" in shown
    assert "poll                     █████▍          45 %  700 · transfer.py" in shown


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ((), "none: no rule is installed"),
        (reports.RULES[1:2], "none, and none possible: no rule had the evidence it needs"),
        (reports.RULES[:1], "none: 1 rule ran and found nothing"),
    ],
)
def test_no_findings_is_said_in_words(rules, words):
    assert outcome.no_findings(reports.report(findings=(), rules=rules)) == words


def test_why_names_the_reason_the_number_and_the_unlock_of_every_rule_that_did_not_judge():
    shown = "\n".join(map(plain, outcome.why(reports.report(), 80)))
    assert "GIL001" not in shown
    assert "GIL002 gil-convoy  abstained" in shown
    assert "why         only one Python thread ran long enough" in shown
    assert "number      1, needed 2" in shown
    assert "unlock      tracelens record --with torch,gil -- COMMAND" in shown
    assert "MEM001 bandwidth-stall  failed" in shown


def test_colour_only_when_asked():
    assert "\x1b[" not in rendered(reports.report())
    assert "\x1b[1;31merror\x1b[0m" in rendered(reports.report(), color=True)
