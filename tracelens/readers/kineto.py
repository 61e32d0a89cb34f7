"""Torch profiler (Kineto) JSON → Trace: CUDA, ROCm and CPU recordings of any age, damaged ones too.

What this file does not know: whether anything is slow. What the format does not say: the source line of a call (stacks
give a function's definition), the ops behind kernels replayed from a graph, and the GIL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import polars as pl

from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import json_tables, kineto_facts, kineto_health, kineto_steps
from tracelens.readers.json_columns import Columns
from tracelens.readers.json_elements import Elements
from tracelens.trace import Trace

CERTAIN = 95
LIKELY = 80
_HEADER = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo)"\s*:')
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|kernel|python_function|cuda_runtime|cuda_driver|gpu_memcpy|gpu_memset'
    rb'|user_annotation|gpu_user_annotation|cpu_instant_event|ac2g|xpu_runtime|mtia_runtime|privateuse1_runtime)"',
    re.IGNORECASE,
)
_FOREIGN = re.compile(rb'"cat"\s*:\s*"py-spy"|"\$schema"\s*:\s*"https://www\.speedscope\.app')
_ENGINES = (("sglang", "/sglang/srt/"), ("sglang", "sglang/python/"), ("vllm", "vllm/v1/"), ("vllm", "vllm/worker/"))


def json_score(head: bytes) -> int:
    """1 for what may be JSON of events, 0 for what cannot be."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return int(text[:1] in (b"{", b"[") and not _FOREIGN.search(head))


def sniff(head: bytes, name: str) -> int:
    """Certain by Kineto's top-level keys or categories."""
    if not json_score(head):
        return 0
    if _CATEGORY.search(head):
        return CERTAIN
    return LIKELY if _HEADER.search(head) else 0


def read(source: Source, health: Health) -> Trace:
    """The file's Trace. Raises TracelensError if it holds no events to save."""
    return read_json(source, health, kineto=True)


def read_json(source: Source, health: Health, *, kineto: bool) -> Trace:
    """Any trace in JSON; `kineto` adds what only torch's profiler writes and what is odd there."""
    stream = source.open(health)
    elements = Elements(stream, health)
    columns = Columns()
    columns.extend(elements.batches())
    if not elements.found_events:
        raise TracelensError(
            f"{source.name}: JSON without traceEvents", "a trace has a list of events, at the top or under traceEvents"
        )
    _note_columns(columns, health, source.name)
    facts = kineto_facts.facts(elements.header, elements.count)
    tables = json_tables.assemble(columns, health, source.name, facts.rank, facts.host)
    steps = kineto_steps.steps(tables.slices, tables.tracks)
    slices = kineto_steps.assign(tables.slices, tables.tracks, tables.flows, steps)
    origin = kineto_facts.origin_unix_ns(elements.header, tables.first_ns)
    if origin is None and tables.first_ns is not None and source.alignment is not None:
        origin = tables.first_ns + source.alignment.offset_ns
    trace = Trace(
        origin_unix_ns=origin,
        clock_halfwidth_ns=source.alignment.halfwidth_ns if source.alignment else 0,
        tracks=tables.tracks,
        slices=slices,
        steps=steps,
        launches=tables.launches,
        flows=tables.flows,
        counters=tables.counters,
        health=health,
        facts=msgspec.structs.replace(
            facts,
            engine=engine(steps, slices),
            parallelism=parallelism(tables.labels),
            profiler={**_recorded(slices), **facts.profiler},
        ),
    )
    _note_empty(trace, health, source.name)
    if kineto:
        kineto_health.note(trace, elements.header, tables.labels, columns, health, source.name)
    return trace


def engine(steps: pl.DataFrame, slices: pl.DataFrame) -> str | None:
    """The serving engine by the files of its Python frames; without frames, by its step annotations; else None.

    Other programs borrow an engine's annotations, so frames that name no engine outweigh them.
    """
    files = slices["file"].drop_nulls().unique().to_list()
    for name, mark in _ENGINES:
        if any(mark in file for file in files):
            return name
    if files:
        return None
    said = [kineto_steps.parse(text) for text in steps["source"].drop_nulls().unique(maintain_order=True)]
    return next((step.engine for step in said if step and step.engine), None)


def parallelism(labels: tuple[str, ...]) -> str | None:
    """How many ranks a merged file's labels name, e.g. "TP2 DP1"; None for a file of one rank."""
    counts: dict[str, set[str]] = {}
    for label in labels:
        for name, number in re.findall(r"([A-Za-z]+)(\d+)", label):
            counts.setdefault(name, set()).add(number)
    return " ".join(f"{name}{len(numbers)}" for name, numbers in counts.items()) or None


def _recorded(slices: pl.DataFrame) -> dict[str, bool]:
    """Profiler flags that the rows themselves show to have been on."""
    kinds = set(slices["kind"].unique())
    found = {"stacks": "python" in kinds, "gpu": bool(kinds & {"kernel", "memcpy", "memset"}), "cpu": "op" in kinds}
    return {name: True for name, seen in found.items() if seen}


def _note_columns(columns: Columns, health: Health, where: str) -> None:
    if columns.skipped:
        phases: Mapping[str, int] = columns.skipped
        listed = ", ".join(f"{phase!r} {count}" for phase, count in sorted(phases.items())[:8])
        says = f"events of phases that hold no times were left out: {listed}"
        health.add("events.other-phase", "info", says, count=sum(phases.values()), where=where)
    if columns.string_ids:
        says = "correlation, device or stream ids are written as text and were read as numbers"
        health.add("ids.text", "info", says, count=columns.string_ids, where=where)
    if columns.damaged_args:
        says = "arguments hold bytes that are not UTF-8; those were replaced"
        health.add("bytes.not-utf8", "warning", says, count=columns.damaged_args, where=where)


def _note_empty(trace: Trace, health: Health, where: str) -> None:
    if not trace.slices.height and not trace.counters.height:
        says = (
            "the file holds no timed events, only metadata" if trace.facts.source_events else "the file holds no events"
        )
        health.add("trace.no-timed-events", "warning", says, where=where)


READER = Reader("kineto", "torch profiler (Kineto) JSON", sniff, read)
