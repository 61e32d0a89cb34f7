"""A Finding as styled lines: a compact card for the list, or everything it holds. Knows no rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from tracelens.finding import Evidence, Finding, Impact, Locality, Verify
from tracelens.presenters.text import (
    Line,
    cells,
    clean,
    count,
    digits,
    duration,
    field,
    listed,
    pad,
    percent,
    quantity,
    size,
)

LINE_KINDS = {"definition": "where it is defined", "executing": "executing line", "call": "call site"}
MAX_SAYS = 3
MAX_CELL = 60
MARGIN = 14
MEANS = {
    "observed": "observed: the trace shows it happen",
    "inferred": "inferred: follows from what the trace shows",
    "suspected": "suspected: fits what the trace shows, other causes would too",
}


def card(finding: Finding, width: int) -> list[Line]:
    """One finding in about ten lines."""
    fix = f"{finding.fix.summary} ({finding.fix.safety})"
    lines = [
        _title(finding, width),
        *_body(finding.message, width),
        *field("where", place(_shortened(finding.where)), width, 4, indent=2),
        *field("costs", cost(finding.impact), width, 3, indent=2),
    ]
    for index, evidence in enumerate(finding.evidence[:MAX_SAYS]):
        lines += field("" if index else finding.confidence, evidence.says.rstrip(": "), width, 3, indent=2)
    lines += field("fix", fix, width, 2, indent=2)
    return [*lines, *field("prove", prediction(finding.verify), width, 3, indent=2)]


def _title(finding: Finding, width: int) -> Line:
    known = "  known" if finding.known else ""
    name = clean(finding.name, max(width - 44, 16))
    head: Line = ((finding.severity, finding.severity), (f" {clean(finding.rule, 8)} ", "bold"), (name, "bold"))
    return (*head, (known, "good"), (f"  {clean(finding.fingerprint, 16)}", "dim"))


def _body(text: str, width: int) -> Iterator[Line]:
    yield from field("", text, width, at=0, indent=2)


def _shortened(where: Locality) -> Locality:
    """The address with a kernel name that leaves room for the rest: C++ templates fill a screen."""
    return msgspec.structs.replace(where, kernel=clean(where.kernel, MAX_CELL)) if where.kernel else where


def place(where: Locality) -> str:
    """The address of a finding in one sentence of parts, most local first."""
    return " · ".join(filter(None, (code_place(where), device_place(where), thread_place(where), moment(where))))


def code_place(where: Locality) -> str:
    """Native call, kernel, op, function and file:line."""
    parts = list(dict.fromkeys(filter(None, (where.kernel, where.op, where.function, where.module))))
    text = " in ".join(parts)
    if where.file:
        kind = f" ({LINE_KINDS[where.line_kind]})" if where.line_kind else ""
        text += f"{' at ' if text else ''}{where.file}{f':{where.line}' if where.line is not None else ''}{kind}"
    return text


def thread_place(where: Locality) -> str:
    """Thread, process and rank."""
    thread = named("thread", where.thread, where.thread_id)
    process = named("process", where.process, where.process_id)
    rank = f"rank {where.rank}" if where.rank is not None else ""
    return ", ".join(filter(None, (thread, process, rank, where.role)))


def named(what: str, name: str | None, number: int | None) -> str:
    """Name and number of a thread or process, as far as known, neither said twice."""
    if name is None:
        return f"{what} {number}" if number is not None else ""
    label = "" if name.startswith(what) else f"{what} "
    digits_in_name = re.findall(r"\d+", name)
    return f"{label}{name}" + (f" {number}" if number is not None and str(number) not in digits_in_name else "")


def device_place(where: Locality) -> str:
    """GPU and stream."""
    device = f"GPU {where.device}" if where.device is not None else ""
    stream = f"stream {where.stream}" if where.stream is not None else ""
    return " ".join(filter(None, (device, stream)))


def moment(where: Locality) -> str:
    """Step, phase and request."""
    step = f"step {where.step}" if where.step is not None else ""
    request = f"request {where.request}" if where.request else ""
    return ", ".join(filter(None, (where.phase, step, request)))


def short_place(where: Locality) -> str:
    """The one most telling part of an address, for a table cell."""
    file = f"{where.file}:{where.line}" if where.file and where.line is not None else where.file
    thread = where.thread or (f"thread {where.thread_id}" if where.thread_id is not None else None)
    return where.kernel or where.op or where.function or file or thread or where.process or "the whole trace"


def cost(impact: Impact) -> str:
    """The price in words, with what kind of bound it is and the arithmetic behind it."""
    bound = {"estimate": "about", "upper": "at most", "lower": "at least"}[impact.bound]
    share = f", {percent(impact.share)}" + (f" of {impact.of}" if impact.of else "") if impact.share is not None else ""
    end_to_end = f"; end to end: {impact.end_to_end}" if impact.end_to_end else ""
    return f"{impact.quantity}: {bound} {quantity(impact.value, impact.unit)}{share} ({impact.basis}){end_to_end}"


def short_cost(impact: Impact) -> str:
    """The price for a table cell: the share if there is one."""
    return percent(impact.share) if impact.share is not None else quantity(impact.value, impact.unit)


def prediction(verify: Verify) -> str:
    """What to change, what must then happen, and what would refute the finding."""
    predicts = verify.predicts
    least = quantity(predicts.at_least, predicts.unit)
    return (
        f"{verify.changes} → {predicts.metric} {predicts.direction} by at least {least}; refuted if {verify.refuted_if}"
    )


def full(finding: Finding, width: int, rows: bool) -> list[Line]:
    """Everything a finding holds; `rows` prints the copied evidence rows."""
    fix = finding.fix
    lines = [
        _title(finding, width),
        *_body(finding.message, width),
        *field("known by", MEANS[finding.confidence], width, indent=2),
        *locality(finding, width),
        *field("costs", cost(finding.impact), width, indent=2),
    ]
    for fingerprint in finding.impact.overlaps_with:
        lines += field("overlaps", f"{fingerprint}: do not add the two savings", width, indent=2)
    for fingerprint in finding.explains:
        lines += field("explains", fingerprint, width, indent=2)
    lines += evidence_lines(finding.evidence, width, rows)
    lines += field("fix", f"{fix.summary} ({fix.safety})", width, indent=2)
    if fix.change:
        lines += field("change", fix.change, width, indent=2)
    for link in fix.links:
        lines += field("see", link, width, indent=2)
    return [*lines, *experiment(finding.verify, width)]


def locality(finding: Finding, width: int) -> list[Line]:
    """Every part of the address on its own line."""
    where = finding.where
    lines: list[Line] = []
    for label, text in (
        ("where", code_place(where) or "the evidence names no code"),
        ("device", device_place(where)),
        ("thread", thread_place(where)),
        ("moment", moment(where)),
        ("happened", count(finding.occurrences, "time")),
        ("steps", listed(map(str, finding.steps), 12)),
        ("windows", _windows(where)),
    ):
        if text:
            lines += field(label, text, width, indent=2)
    return lines


def _windows(where: Locality) -> str:
    if not where.windows:
        return ""
    spans = [f"{duration(w.start_ns)} +{duration(w.end_ns - w.start_ns)}" for w in where.windows]
    text = listed(spans, 4)
    total = max(where.windows_total, len(spans))
    return f"{text} ({total:,} in all)" if total > len(spans) else text


def evidence_lines(evidence: Iterable[Evidence], width: int, rows: bool) -> list[Line]:
    """What supports a finding, sentence by sentence, with the copied rows if wanted."""
    lines: list[Line] = []
    for item in evidence:
        lines += field("evidence", item.says, width, indent=2)
        if rows:
            lines += _table(item, width)
        elif item.rows:
            source = f" of table {item.table}" if item.table else ""
            lines += field("", f"{count(len(item.rows), 'row')}{source} copied: --rows shows them", width, indent=2)
    return lines


def _table(item: Evidence, width: int) -> Iterator[Line]:
    """The copied rows, columns aligned and cut to the width."""
    names = [*item.columns, *("" for _ in range(max(map(len, item.rows), default=0) - len(item.columns)))]
    table = [[clean(_heading(name), MAX_CELL) for name in names]]
    table += [
        [clean(_cell(name, value), MAX_CELL) for name, value in zip(names, row, strict=False)] for row in item.rows
    ]
    widths = [max(cells(row[index]) if index < len(row) else 0 for row in table) for index in range(len(names))]
    for index, row in enumerate(table if item.rows else []):
        text = "  ".join(pad(value, widths[column]) for column, value in enumerate(row))
        yield ((" " * MARGIN, ""), (clean(text.rstrip(), width - MARGIN), "" if index else "dim"))
    if item.ids:
        yield ((" " * MARGIN, ""), (f"{item.table or 'table'} ids: {listed(map(str, item.ids), 8)}", "dim"))


def _heading(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def _cell(name: str, value: str | int | float | bool | None) -> str:
    """A value in the unit that its column's name ends with."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value).lower()
    if isinstance(value, str):
        return value
    if name.endswith("_ns"):
        return duration(value)
    if name.endswith("_bytes"):
        return size(value)
    return str(value) if isinstance(value, int) else digits(value)


def experiment(verify: Verify, width: int) -> list[Line]:
    """The controlled experiment: what to change, what it predicts, what would refute it."""
    predicts = verify.predicts
    least = quantity(predicts.at_least, predicts.unit)
    arguments = ", ".join(f"{name}={value}" for name, value in sorted(verify.arguments.items()))
    lines: list[Line] = []
    for label, text in (
        ("experiment", verify.experiment + (f" ({arguments})" if arguments else "")),
        ("changes", verify.changes),
        ("predicts", f"{predicts.metric} goes {predicts.direction} by at least {least}"),
        ("refuted if", verify.refuted_if),
    ):
        lines += field(label, text, width, indent=2)
    return lines
