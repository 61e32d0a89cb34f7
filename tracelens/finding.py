"""Finding: a hypothesis with an address, evidence, a price and a test; and the Report that holds them.

These structs *are* the JSON contract `tracelens.report/1` (see `report_schema`). Knows no rule and no file.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

SCHEMA = "tracelens.report/1"
MAX_WINDOWS = 16

Severity = Literal["error", "warning", "info"]
Confidence = Literal["observed", "inferred", "suspected"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
CONFIDENCES: tuple[Confidence, ...] = ("observed", "inferred", "suspected")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, ns since the trace's origin."""

    start_ns: int
    end_ns: int


class Locality(msgspec.Struct, frozen=True, kw_only=True):
    """Where: null means that the evidence does not say.

    `function` is what the finding is about (a native call, say), `caller` the function that calls it; `file` and `line`
    then belong to the caller. `line_kind`: Kineto stacks give a function's definition, py-spy the executing line.
    """

    process: str | None = None
    process_id: int | None = None
    rank: int | None = None
    role: str | None = None
    thread: str | None = None
    thread_id: int | None = None
    device: int | None = None
    stream: int | None = None
    step: int | None = None
    phase: str | None = None
    request: str | None = None
    op: str | None = None
    kernel: str | None = None
    function: str | None = None
    caller: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
    line_kind: Literal["definition", "executing", "call"] | None = None
    windows: tuple[Window, ...] = ()
    windows_total: int = 0


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that support a finding: a few copied, `ids` let anyone fetch the rest of `table`."""

    says: str
    table: str | None = None
    ids: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | int | float | bool | None, ...], ...] = ()


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    """The price. `basis` is the arithmetic in words; savings of findings in `overlaps_with` must not be added."""

    quantity: str
    value: float
    unit: str
    bound: Literal["estimate", "upper", "lower"]
    basis: str
    share: float | None = None
    of: str | None = None
    end_to_end: str | None = None
    overlaps_with: tuple[str, ...] = ()


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """What to change. `safety` says how sure we are that it is harmless."""

    summary: str
    safety: Literal["safe", "measure", "risky"]
    change: str | None = None
    links: tuple[str, ...] = ()


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the experiment must show if the finding is true: `metric` moves in `direction` by `at_least`."""

    metric: str
    direction: Literal["down", "up"]
    at_least: float
    unit: str


class Verify(msgspec.Struct, frozen=True, kw_only=True):
    """The controlled experiment that would confirm or refute a finding."""

    experiment: str
    changes: str
    predicts: Prediction
    refuted_if: str
    arguments: dict[str, str | int | float | bool] = {}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A hypothesis about one root cause at one place. `known` marks one that a baseline report already holds."""

    rule: str
    name: str
    message: str
    severity: Severity
    confidence: Confidence
    where: Locality
    evidence: tuple[Evidence, ...]
    impact: Impact
    fix: Fix
    verify: Verify
    occurrences: int = 1
    steps: tuple[int, ...] = ()
    explains: tuple[str, ...] = ()
    fingerprint: str = ""
    known: bool = False


def fingerprinted(finding: Finding) -> Finding:
    """The finding with its fingerprint: 16 hex digits that stay the same for the same cause in another recording."""
    where = finding.where
    kernel = re.sub(r"\d+", "#", where.kernel) if where.kernel else ""
    parts = (finding.rule, where.op or "", kernel, where.function or "", _short_file(where.file))
    return msgspec.structs.replace(finding, fingerprint=hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16])


def _short_file(file: str | None) -> str:
    """The end of a path that does not depend on where a checkout or environment lies."""
    if not file:
        return ""
    text = file.replace("\\", "/")
    inside = text.rpartition("site-packages/")[2]
    return inside if inside != text else "/".join(PurePosixPath(text).parts[-2:])


class RuleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one rule. `unlock` is how to record what it lacked."""

    code: str
    name: str
    status: Literal["ran", "skipped", "abstained", "failed", "disabled"]
    why: str | None = None
    unlock: str | None = None
    need: str | None = None
    number: float | None = None
    threshold: float | None = None


class Next(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: the one shape of every "cannot answer: because, unlock"."""

    kind: Literal["record", "experiment", "inspect"]
    command: str
    why: str
    unlocks: tuple[str, ...] = ()
    cost: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A health entry as reported (see `tracelens.health`)."""

    code: str
    severity: Severity
    says: str
    need: str | None = None
    count: int = 1
    lost_ns: int | None = None
    lost_bytes: int | None = None
    where: str | None = None


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read, as the user named it."""

    path: str
    reader: str
    size_bytes: int


class NamedTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with its calls and total time."""

    name: str
    calls: int
    total_ns: int


class NamedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled function with the number of samples in which it was innermost."""

    name: str
    file: str | None
    self_samples: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and sums of a trace: integers, ns; null where the source has no such thing."""

    source_events: int | None
    slices: int
    threads: int
    devices: int
    streams: int
    kernels: int
    kernel_total_ns: int
    kernel_busy_ns: int
    memcpy: int
    memcpy_total_ns: int
    memset: int
    gpu_busy_ns: int
    launches_matched: int
    graph_launches: int
    python_functions: int
    samples: int | None
    samples_with_gil: int | None
    flows: int
    counters: int
    steps: int
    span_ns: int | None
    gpu_window_ns: int | None
    gpu_idle_ns: dict[str, int] | None
    top_kernels: tuple[NamedTotal, ...]
    top_functions: tuple[NamedSamples, ...]


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was analysed. `origin_unix_ns` is text: JavaScript integers are exact only to 2^53."""

    sources: tuple[SourceInfo, ...]
    origin_unix_ns: str | None
    clock_halfwidth_ns: int
    ranks: tuple[int, ...]
    roles: tuple[str, ...]
    summary: Summary


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what was recorded can be attributed: shares of 1, null where the question has no meaning."""

    gpu_time_with_op: float | None = None
    gpu_time_with_file: float | None = None
    launches_with_kernels: float | None = None
    kernels_with_launch: float | None = None
    graph_replays_recorded: float | None = None
    ranks_present: int | None = None
    ranks_expected: int | None = None
    window_complete: bool | None = None
    window_because: str | None = None
    host_times: Literal["clean", "inflated"] | None = None


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the run, as far as the recording can tell."""

    class_: Literal["gpu", "host", "comm", "copy", "mixed", "unknown"] = msgspec.field(name="class")
    because: str
    phase: str | None = None
    share: float | None = None
    of: str | None = None
    trust: Literal["trusted", "doubtful"] = "trusted"


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase. Times are host windows, `gpu_busy_ns` by correlation."""

    phase: str
    count: int
    requests: int | None
    tokens: int | None
    kv_tokens: int | None
    wall_ns: dict[str, int]
    gpu_busy_ns: int | None
    launches: int | None
    exposed_comm_ns: int | None
    outliers: tuple[int, ...] = ()


class FamilyShare(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel family's share of GPU work."""

    family: str
    calls: int
    total_ns: int
    share: float


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel name with what is known about its launches."""

    name: str
    family: str
    backend: str | None
    calls: int
    total_ns: int
    p50_ns: int
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    op: str | None
    module: str | None
    file: str | None
    line: int | None
    shapes: str | None
    dtypes: str | None
    attribution: str


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the sources say about where the run took place, else null."""

    engine: str | None
    versions: dict[str, str]
    device: str | None
    parallelism: str | None
    graph_mode: str | None
    profiler: dict[str, bool]


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that was loaded, or why not."""

    name: str
    distribution: str | None
    version: str | None
    error: str | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a controlled experiment said about a finding."""

    finding: str
    outcome: Literal["confirmed", "refuted", "inconclusive", "not_run"]
    why: str
    baseline: tuple[float, ...] = ()
    changed: tuple[float, ...] = ()
    effect: float | None = None
    interval: tuple[float, float] | None = None
    seeds: tuple[int, ...] = ()
    environment: dict[str, str] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one analysis says. Same inputs, same bytes."""

    schema: str
    tool: str
    analysis_id: str
    environment: Environment
    trace: TraceInfo
    coverage: Coverage
    bottleneck: Bottleneck
    steps: tuple[StepStats, ...]
    breakdown: dict[str, tuple[FamilyShare, ...]]
    kernels: tuple[KernelRow, ...]
    health: tuple[Health, ...]
    plugins: tuple[PluginInfo, ...]
    rules: tuple[RuleStatus, ...]
    findings: tuple[Finding, ...]
    next: tuple[Next, ...]
    verdicts: tuple[Verdict, ...] = ()
    truncated: dict[str, int] = {}
    untrusted_text: bool = True


def report_schema() -> dict[str, Any]:
    """JSON Schema of the Report."""
    (reference,), components = msgspec.json.schema_components([Report], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "tracelens report",
        **reference,
        "$defs": components,
    }


def sort_key(finding: Finding) -> tuple[int, float, str, int, int]:
    """Order of findings: severity, impact, fingerprint, place."""
    share = finding.impact.share if finding.impact.share is not None else 0.0
    return (
        SEVERITIES.index(finding.severity),
        -share,
        finding.fingerprint,
        finding.where.process_id or 0,
        finding.where.thread_id or 0,
    )
