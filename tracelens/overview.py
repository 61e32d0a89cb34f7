"""What a trace holds, beyond findings: the parts of a Report that no rule writes.

Arranges the figures of `tracelens.analyses`; computes none itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tracelens.analyses import summary
from tracelens.finding import Bottleneck, Coverage, Environment, SourceInfo, Summary, TraceInfo
from tracelens.trace import Trace


def overview(trace: Trace) -> dict[str, Any]:
    """The fields environment, trace, coverage, bottleneck, steps, breakdown and kernels of a Report."""
    return {
        "environment": _environment(trace),
        "trace": _info(trace),
        "coverage": Coverage(),
        "bottleneck": Bottleneck(class_="unknown", because="not judged"),
        "steps": (),
        "breakdown": {},
        "kernels": (),
    }


def _environment(trace: Trace) -> Environment:
    facts = trace.facts
    names = sorted({device.name for device in facts.devices if device.name})
    return Environment(
        engine=facts.engine,
        versions=facts.versions,
        device=", ".join(names) or None,
        parallelism=facts.parallelism,
        graph_mode=None,
        profiler=facts.profiler,
    )


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
