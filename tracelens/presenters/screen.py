"""The first screen of a Report as styled lines: what was recorded, what bounds it, what was not observed, what next.

The terminal prints these lines, the TUI shows them in a tab. At most 30 lines when there is no finding, whatever the
trace holds. Knows no rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from tracelens.finding import Report, Summary
from tracelens.presenters.text import (
    LABEL,
    Line,
    Style,
    bar,
    cells,
    clean,
    count,
    duration,
    field,
    fitting,
    fold,
    listed,
    pad,
    percent,
    size,
)

MAX_PHASES = 3
MAX_FAMILIES = 5
MIN_STEPS = 20
"""Fewer steps than this have no 99th percentile worth the name."""
MAX_UNSEEN = 4
MIN_OUTSIDE = 0.05
"""Share of the recording outside the GPU window that is worth a line."""
MAX_LINES = 30
"""Of the whole screen without findings; the caps above leave two lines of it for the next steps, at the least."""
BAR = 12
CHANGES_ONLY = "pyspy.changes-only"
"""Health code of a format that writes a sample only where the stack changed."""


def first_screen(report: Report, width: int) -> list[Line]:
    """Everything above the findings."""
    return [
        *_header(report, width),
        *_recorded(report, width),
        *_steps(report, width),
        *_fact("bottleneck", _bottleneck(report), width, 2),
        *_bulleted("not observed", _unseen(report), width),
        *_time(report, width),
        *_fact("attributed", fitting(_attributed(report), width - LABEL), width, 1),
        *_health(report, width),
    ]


def _fact(label: str, text: str, width: int, lines: int) -> list[Line]:
    return field(label, text, width, lines, at=LABEL) if text else []


def _bulleted(label: str, texts: Iterable[str], width: int) -> list[Line]:
    """Each text in at most two lines, MAX_UNSEEN lines in all; the last says how many texts are left out."""
    items = list(texts)
    out: list[Line] = []
    for index, text in enumerate(items):
        lines = field("" if index else label, text, width, 2, at=LABEL)
        left = len(items) - index
        if len(out) + len(lines) + (left > 1) > MAX_UNSEEN:
            return [*out, *field("", f"and {left} more", width, 1, at=LABEL)]
        out += lines
    return out


def _header(report: Report, width: int) -> list[Line]:
    sources = report.trace.sources
    total = size(sum(source.size_bytes for source in sources))
    readers = listed(sorted({clean(source.reader, 10) for source in sources}), 1)
    files = f" · {len(sources)} files" if len(sources) > 1 else ""
    about = f"{files} · {readers} · {total}" if sources else ""
    tool = clean(report.tool, 18)
    room = width - cells(tool) - 3 - cells(about)
    return [((tool, "dim"), ("   ", ""), (clean(_source_name(report), room, keep="end"), "bold"), (about, "dim"))]


def _source_name(report: Report) -> str:
    """The file as given; of several the folder that holds them all, else the first."""
    paths = [source.path for source in report.trace.sources]
    if not paths:
        return "no source"
    try:
        common = os.path.commonpath(paths)
    except ValueError:  # absolute and relative ones
        common = ""
    return common if common not in ("", "/") else paths[0]


def _recorded(report: Report, width: int) -> list[Line]:
    environment, info, summary = report.environment, report.trace, report.trace.summary
    versions = [f"{name} {version}" for name, version in sorted(environment.versions.items())]
    engine = environment.engine or "unnamed engine"
    device = environment.device or ("unnamed device" if summary.devices else "")
    who = [
        f"{engine} on {device}" if device else f"{engine}, no GPU",
        environment.parallelism or "",
        f"graphs: {environment.graph_mode}" if environment.graph_mode else "",
        _ranks(report),
        "roles " + listed(info.roles) if info.roles else "",
        listed(versions, 4),
    ]
    return [
        *_fact("recorded", " · ".join(filter(None, who)), width, 2),
        *_fact("holds", fitting(_holds(summary), width - LABEL), width, 1),
    ]


def _ranks(report: Report) -> str:
    coverage, ranks = report.coverage, report.trace.ranks
    present = coverage.ranks_present if coverage.ranks_present is not None else len(ranks)
    if coverage.ranks_expected and coverage.ranks_expected > 1:
        return f"{present} of {count(coverage.ranks_expected, 'rank')}"
    return f"{present} ranks" if present > 1 else ""


def _holds(summary: Summary) -> Iterator[str]:
    if summary.span_ns is not None:
        yield duration(summary.span_ns)
    for number, noun in (
        (summary.kernels, "kernel"),
        (summary.graph_launches, "graph replay"),
        (summary.samples or 0, "sample"),
        (summary.threads, "thread"),
        (summary.streams, "stream"),
        (summary.python_functions, "Python call"),
    ):
        if number:
            yield count(number, noun)
    if not (summary.slices or summary.samples):
        yield "no timed events"


def _steps(report: Report, width: int) -> list[Line]:
    if not report.steps:
        return _fact("steps", "none found: all of it is one window", width, 1)
    shown = sorted(report.steps, key=lambda step: -step.count)
    out: list[Line] = []
    for step in shown[:MAX_PHASES]:
        wall = step.wall_ns
        parts = [
            f"{step.phase} {step.count:,} ×"
            + (f" {duration(wall['p50'])}" if "p50" in wall else "")
            + (f" (p99 {duration(wall['p99'])})" if "p99" in wall and step.count >= MIN_STEPS else ""),
            count(step.requests, "request") if step.requests is not None else "",
            count(step.tokens, "token") if step.tokens is not None else "",
            count(step.kv_tokens, "KV token") if step.kv_tokens is not None else "",
            f"GPU busy {duration(step.gpu_busy_ns)}" if step.gpu_busy_ns is not None else "",
            count(step.launches, "launch", "launches") if step.launches is not None else "",
        ]
        out += field("" if out else "host steps", fitting(parts, width - LABEL), width, 1, at=LABEL)
    if len(shown) > MAX_PHASES:
        rest = sum(step.count for step in shown[MAX_PHASES:])
        out += field("", f"{rest:,} in {len(shown) - MAX_PHASES} more phases", width, 1, at=LABEL)
    return out


def _bottleneck(report: Report) -> str:
    bottleneck = report.bottleneck
    parts: list[str] = [bottleneck.class_]
    if bottleneck.share is not None:
        parts.append(f" {percent(bottleneck.share)}" + (f" of {bottleneck.of}" if bottleneck.of else ""))
    if bottleneck.phase:
        parts.append(f" in {bottleneck.phase}")
    if bottleneck.trust == "doubtful":
        parts.append(" (doubtful)")
    return "".join(parts) + f": {bottleneck.because}"


def _unseen(report: Report) -> Iterator[str]:
    """What this recording cannot show, worst first."""
    coverage, summary = report.coverage, report.trace.summary
    for entry in report.health:
        if entry.severity == "error" and entry.need:
            yield f"{entry.need}: {entry.says}"
    hidden = (summary.gpu_idle_ns or {}).get("not_observed", 0)
    if hidden:
        of = f", {percent(hidden / summary.gpu_window_ns)} of the GPU window" if summary.gpu_window_ns else ""
        because = f": {coverage.window_because}" if coverage.window_because else ""
        yield f"GPU for {duration(hidden)}{of}{because}"
    elif coverage.window_complete is False:
        yield f"the whole GPU window: {coverage.window_because or 'it shows unrecorded work'}"
    outside = (summary.span_ns or 0) * summary.devices - (summary.gpu_window_ns or 0)
    if summary.gpu_window_ns and outside > MIN_OUTSIDE * (summary.span_ns or 0):
        yield f"GPU before its first and after its last recorded work: {duration(outside)}"
    if coverage.ranks_expected and (coverage.ranks_present or 0) < coverage.ranks_expected:
        yield f"{coverage.ranks_expected - (coverage.ranks_present or 0)} of {coverage.ranks_expected} ranks: no file"
    if coverage.graph_replays_recorded is not None and coverage.graph_replays_recorded < 1:
        yield f"kernels of {percent(1 - coverage.graph_replays_recorded)} of the graph replays"
    if coverage.host_times == "inflated":
        yield "true host times: the profiler recorded stacks or shapes, which slows the host"
    if summary.kernels and not coverage.gpu_time_with_file:
        yield (
            "source lines of kernels: recorded without Python stacks"
            if not summary.python_functions
            else ("source lines of kernels: no Python stack leads to them")
        )
    if not summary.kernels and not summary.gpu_busy_ns:
        yield "GPU work: the recording has none"
    if not summary.samples and not summary.python_functions:
        yield "what Python did: neither Python stacks nor samples"


def _time(report: Report, width: int) -> list[Line]:
    """Where the time goes, as a small bar chart: by kernel family, else by kernel, else by sampled function."""
    summary = report.trace.summary
    families = report.breakdown.get("all", ())
    rows = [(f.family, f.total_ns, f"{duration(f.total_ns)} · {f.calls:,} ×") for f in families]
    whole = sum(value for _, value, _ in rows)
    title = f"{duration(whole)} of GPU work by kernel family"
    if not whole and summary.top_kernels:
        rows = [(k.name, k.total_ns, f"{duration(k.total_ns)} · {k.calls:,} ×") for k in summary.top_kernels]
        whole = max(summary.kernel_total_ns, sum(value for _, value, _ in rows))
        title = f"{duration(whole)} in kernels, the longest by name"
    elif not whole:
        functions = summary.top_functions
        rows = [
            (f.name, f.self_samples, f"{f.self_samples:,} · {os.path.basename(f.file or 'no file')}") for f in functions
        ]
        whole = max(summary.samples or 0, sum(value for _, value, _ in rows))
        changes = any(entry.code == CHANGES_ONLY for entry in report.health)
        what = "changes of a sampled stack, not time," if changes else "samples"
        title = f"{whole:,} {what} by innermost function"
    if not rows or not whole:
        return _fact("time", "nothing to break down: no GPU work and no samples", width, 1)
    rows.sort(key=lambda row: (-row[1], row[0]))
    return [*_fact("time", title, width, 1), *_bars(rows, whole, width, duration if summary.kernels else None)]


def _bars(
    rows: list[tuple[str, int, str]], whole: int, width: int, show: Callable[[float], str] | None
) -> Iterator[Line]:
    shown, rest = (rows, []) if len(rows) <= MAX_FAMILIES else (rows[: MAX_FAMILIES - 1], rows[MAX_FAMILIES - 1 :])
    if rest:
        left = sum(value for _, value, _ in rest)
        more = show(left) if show else f"{left:,}"
        shown = [*shown, (f"{len(rest)} others", left, more)]
    name_width = min(max(width - LABEL - BAR - 30, 14), 40)
    for name, value, about in shown:
        share = value / whole
        head = pad(clean(name, name_width), name_width)
        left_room = width - LABEL - name_width - BAR - 11
        style: Style = "dim" if name == "unattributed" else "info"
        yield (
            (" " * LABEL + head + " ", ""),
            (pad(bar(share, BAR), BAR), style),
            (f" {percent(share):>7}  ", ""),
            (clean(about, left_room), "dim"),
        )


def _attributed(report: Report) -> Iterator[str]:
    coverage = report.coverage
    for share, says in (
        (coverage.gpu_time_with_op, "of GPU time to an op"),
        (coverage.gpu_time_with_file, "to a source line"),
        (coverage.launches_with_kernels, "of launches have their kernel"),
    ):
        if share is not None:
            yield f"{percent(share)} {says}"


def _health(report: Report, width: int) -> list[Line]:
    """The worst entry in words, the others counted."""
    ranked = sorted(report.health, key=lambda entry: ("error", "warning", "info").index(entry.severity))
    if not ranked or ranked[0].severity == "info":
        return []
    worst = ranked[0]
    more = f" (and {len(ranked) - 1} more)" if len(ranked) > 1 else ""
    where = f" ({worst.where})" if worst.where else ""
    lines = fold(worst.says + where, width - LABEL - len(more), 2)
    lines[-1] += more
    return [((pad("health" if not i else "", LABEL), "dim"), (text, worst.severity)) for i, text in enumerate(lines)]
