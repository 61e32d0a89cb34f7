"""What a trace holds, beyond findings: the parts of a Report that no rule writes.

Arranges the figures of `tracelens.analyses`; computes none itself.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from tracelens.analyses import attribution, bottleneck, kernels, launches, phases, summary
from tracelens.finding import (
    Bottleneck,
    Coverage,
    Environment,
    FamilyShare,
    KernelRow,
    SourceInfo,
    StepStats,
    Summary,
    TraceInfo,
)
from tracelens.trace import Trace


def overview(trace: Trace) -> dict[str, Any]:
    """The fields environment, trace, coverage, bottleneck, steps, breakdown, kernels and truncated of a Report."""
    rows, left_out = kernels.rows(trace)
    bound = asdict(bottleneck.bottleneck(trace))
    return {
        "environment": _environment(trace),
        "trace": _info(trace),
        "coverage": msgspec.convert(attribution.coverage(trace), Coverage),
        "bottleneck": msgspec.convert({"class": bound.pop("name"), **bound}, Bottleneck),
        "steps": msgspec.convert(phases.step_stats(trace), tuple[StepStats, ...]),
        "breakdown": msgspec.convert(phases.breakdown(trace), dict[str, tuple[FamilyShare, ...]]),
        "kernels": msgspec.convert(rows, tuple[KernelRow, ...]),
        "truncated": {"kernels": left_out} if left_out else {},
    }


def _environment(trace: Trace) -> Environment:
    facts = trace.facts
    names = sorted({device.name for device in facts.devices if device.name})
    return Environment(
        engine=facts.engine,
        versions=facts.versions,
        device=", ".join(names) or None,
        parallelism=facts.parallelism,
        graph_mode=_graph_mode(trace),
        profiler=facts.profiler,
    )


def _graph_mode(trace: Trace) -> str | None:
    """Whether GPU work was replayed from graphs, launched one by one, or both; None without GPU work."""
    joined = launches.join(trace)
    if not joined.height:
        return None
    replayed = int(joined["replayed"].sum())
    return "replay" if replayed == joined.height else "eager" if not replayed else "mixed"


def _info(trace: Trace) -> TraceInfo:
    tracks = trace.tracks
    return TraceInfo(
        sources=tuple(
            SourceInfo(path=source.path, reader=source.reader, size_bytes=source.size_bytes)
            for source in trace.provenance.sources
        ),
        origin_unix_ns=None if trace.origin_unix_ns is None else str(trace.origin_unix_ns),
        clock_halfwidth_ns=trace.clock_halfwidth_ns,
        ranks=tuple(sorted(tracks["rank"].drop_nulls().unique().to_list())),
        roles=tuple(sorted(tracks["role"].drop_nulls().unique().to_list())),
        summary=msgspec.convert(summary.summarize(trace), Summary),
    )
