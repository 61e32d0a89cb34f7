"""Hand-made reports: what presenters, commands and the TUI are tested with, independent of readers and rules."""

from __future__ import annotations

from typing import Any

import msgspec

from tracelens.finding import (
    SCHEMA,
    Bottleneck,
    Coverage,
    Environment,
    Evidence,
    FamilyShare,
    Finding,
    Fix,
    Health,
    Impact,
    Locality,
    NamedSamples,
    NamedTotal,
    Next,
    PluginInfo,
    Prediction,
    Report,
    RuleStatus,
    SourceInfo,
    StepStats,
    Summary,
    TraceInfo,
    Verify,
    Window,
    fingerprinted,
)

HOSTILE = "evil[red]\x1b[31m\x1b]0;title\x07\u202egnp\x9b2J[/red]\nnext[@click=app.quit]line"
"""A name with markup, CSI and OSC sequences, a bidirectional override and a line break."""


def gil_finding(**changes: Any) -> Finding:
    """A native call that holds the GIL: time, thread and line known."""
    finding = Finding(
        rule="GIL001",
        name="native-call-holds-gil",
        message="intranode_dispatch held the GIL for 3.90 s of 15.6 s in 480 calls while mooncake-poll starved.",
        severity="error",
        confidence="observed",
        where=Locality(
            process="decode",
            process_id=4242,
            rank=0,
            role="decode",
            thread="MainThread",
            thread_id=4242,
            phase="decode",
            op="intranode_dispatch",
            function="moe_layer",
            file="serving/model/moe.py",
            line=120,
            line_kind="call",
            windows=(Window(start_ns=1_000_000, end_ns=9_100_000), Window(start_ns=20_000_000, end_ns=28_000_000)),
            windows_total=480,
        ),
        evidence=(
            Evidence(
                says="the GIL probe ran 0 times inside the 480 calls; 3,840 were expected",
                table="ticks",
                ids=(3, 9, 12),
                columns=("at_ns", "late_ns", "run_delay_ns"),
                rows=((9_150_000, 8_050_000, 1_000), (28_100_000, 7_900_000, None)),
            ),
            Evidence(says="mooncake-poll waited 3.71 s for the GIL, 95 % of the held time"),
        ),
        impact=Impact(
            quantity="GIL held",
            value=3900.0,
            unit="ms",
            share=0.25,
            of="wall time",
            bound="upper",
            basis="sum of the 480 calls, less 50 µs at each end",
        ),
        fix=Fix(
            summary="release the GIL around the native wait: py::gil_scoped_release",
            safety="measure",
            change="py::gil_scoped_release release;",
            links=("https://docs.python.org/3/c-api/init.html",),
        ),
        verify=Verify(
            experiment="release-gil",
            changes="the call releases the GIL",
            predicts=Prediction(metric="late ticks inside the call", direction="down", at_least=50.0, unit="%"),
            refuted_if="ticks stay as late with the GIL released",
            arguments={"call": "intranode_dispatch"},
        ),
        occurrences=480,
        steps=(3, 4, 5),
    )
    return fingerprinted(msgspec.structs.replace(finding, **changes))


def tf32_finding(**changes: Any) -> Finding:
    """A kernel that multiplies fp32 as TF32: a source line, a precision, no thread."""
    finding = Finding(
        rule="NUM001",
        name="fp32-dot-runs-as-tf32",
        message="kda_chunk_kernel multiplies fp32 operands as TF32 at kda.py:88; its error is 4.9e-3.",
        severity="warning",
        confidence="inferred",
        where=Locality(
            device=0, stream=7, kernel="kda_chunk_kernel", file="kernels/kda.py", line=88, line_kind="executing"
        ),
        evidence=(Evidence(says="dot #2 of the launched artifact has inputPrecision tf32", table="dots", ids=(2,)),),
        impact=Impact(
            quantity="largest relative error",
            value=0.0049,
            unit="",
            bound="estimate",
            basis="10 mantissa bits are left of 23",
        ),
        fix=Fix(summary='tl.dot(…, input_precision="tf32x3") or "ieee"', safety="measure"),
        verify=Verify(
            experiment="dot-precision",
            changes="input_precision=ieee",
            predicts=Prediction(metric="relative error", direction="down", at_least=90.0, unit="%"),
            refuted_if="the error stays",
        ),
    )
    return fingerprinted(msgspec.structs.replace(finding, **changes))


SUMMARY = Summary(
    source_events=120_345,
    slices=118_000,
    threads=3,
    devices=1,
    streams=2,
    kernels=41_960,
    kernel_total_ns=9_400_000_000,
    kernel_busy_ns=9_100_000_000,
    memcpy=120,
    memcpy_total_ns=90_000_000,
    memset=4,
    gpu_busy_ns=9_180_000_000,
    launches_matched=41_000,
    graph_launches=480,
    python_functions=52_000,
    samples=1_560,
    samples_with_gil=800,
    flows=41_000,
    counters=0,
    steps=490,
    span_ns=15_600_000_000,
    gpu_window_ns=15_000_000_000,
    gpu_idle_ns={"host": 3_000_000_000, "not_observed": 2_820_000_000},
    top_kernels=(NamedTotal(name="attention_decode", calls=9_600, total_ns=4_000_000_000),),
    top_functions=(NamedSamples(name="poll", file="transfer.py", self_samples=700),),
)

RULES = (
    RuleStatus(code="GIL001", name="native-call-holds-gil", status="ran"),
    RuleStatus(
        code="GIL002",
        name="gil-convoy",
        status="abstained",
        why="only one Python thread ran long enough",
        need="samples.gil",
        number=1.0,
        threshold=2.0,
        unlock="tracelens record --with torch,gil -- COMMAND",
    ),
    RuleStatus(code="MEM001", name="bandwidth-stall", status="failed", why="KeyError: 'bytes'"),
    RuleStatus(code="NUM001", name="fp32-dot-runs-as-tf32", status="ran"),
    RuleStatus(
        code="NUM003",
        name="state-error-grows-with-length",
        status="skipped",
        why="the trace has no measurements",
        unlock="tracelens record --with torch -- python -m tracelens_serving accuracy",
    ),
)


def family(name: str, calls: int, total_ns: int, share: float) -> FamilyShare:
    """One bar of the chart."""
    return FamilyShare(family=name, calls=calls, total_ns=total_ns, share=share)


def report(**changes: Any) -> Report:
    """A decode recording with two findings, abstentions and a damaged end."""
    made = Report(
        schema=SCHEMA,
        tool="tracelens 0.1.0",
        analysis_id="00112233aabbccdd",
        environment=Environment(
            engine="vLLM",
            versions={"torch": "2.8.0", "vllm": "0.11.0"},
            device="NVIDIA H200",
            parallelism="TP8 DP2",
            graph_mode="full decode",
            profiler={"stacks": True},
        ),
        trace=TraceInfo(
            sources=(SourceInfo(path="runs/decode.json.gz", reader="kineto", size_bytes=12_400_000),),
            origin_unix_ns="1700000000000000000",
            clock_halfwidth_ns=0,
            ranks=(0,),
            roles=("decode",),
            summary=SUMMARY,
        ),
        coverage=Coverage(
            gpu_time_with_op=0.96,
            gpu_time_with_file=0.4,
            launches_with_kernels=0.99,
            graph_replays_recorded=0.9,
            ranks_present=1,
            ranks_expected=8,
            window_complete=False,
            window_because="10 % of graph replays have fewer kernels than their graph",
            host_times="inflated",
        ),
        bottleneck=Bottleneck(
            class_="host", because="the GPU waits for the next launch", phase="decode", share=0.33, of="the GPU window"
        ),
        steps=(
            StepStats(
                phase="decode",
                count=480,
                requests=8,
                tokens=3_840,
                kv_tokens=None,
                wall_ns={"p50": 31_200_000, "p99": 44_000_000},
                gpu_busy_ns=9_000_000_000,
                launches=41_000,
                exposed_comm_ns=None,
            ),
            StepStats(
                phase="prefill",
                count=10,
                requests=8,
                tokens=65_536,
                kv_tokens=None,
                wall_ns={"p50": 62_000_000, "p99": 80_000_000},
                gpu_busy_ns=180_000_000,
                launches=960,
                exposed_comm_ns=None,
            ),
        ),
        breakdown={
            "all": (
                family("attention", 9_600, 4_000_000_000, 0.4357),
                family("gemm", 20_900, 3_650_000_000, 0.3976),
                family("norm", 8_000, 700_000_000, 0.0763),
                family("quantise", 3_000, 500_000_000, 0.0545),
                family("unattributed", 400, 300_000_000, 0.0327),
                family("embedding", 60, 30_000_000, 0.0033),
            ),
            "decode": (
                family("attention", 9_600, 4_000_000_000, 0.44),
                family("gemm", 20_000, 3_500_000_000, 0.39),
                family("norm", 8_000, 700_000_000, 0.08),
                family("quantise", 3_000, 500_000_000, 0.06),
                family("unattributed", 400, 300_000_000, 0.03),
            ),
            "prefill": (family("gemm", 900, 150_000_000, 0.8), family("embedding", 60, 30_000_000, 0.2)),
        },
        kernels=(),
        health=(
            Health(
                code="bytes.damaged-compression",
                severity="warning",
                says="the gzip stream ends early (was the writer killed?); everything before it was read",
                lost_bytes=1_234,
                where="runs/decode.json.gz: byte 12,398,766 of 12,400,000",
            ),
            Health(code="rank.unknown", severity="info", says="the file names no rank; taken as 0"),
        ),
        plugins=(PluginInfo(name="gil", distribution="tracelens-profiler", version="0.1.0"),),
        rules=RULES,
        findings=(gil_finding(), tf32_finding()),
        next=(
            Next(
                kind="experiment",
                command="tracelens explain GIL001",
                why="the call releases the GIL",
                unlocks=(gil_finding().fingerprint,),
            ),
            Next(
                kind="record",
                command="tracelens record --with torch,gil -- COMMAND",
                why="only one Python thread ran long enough",
                unlocks=("GIL002",),
            ),
        ),
    )
    return msgspec.structs.replace(made, **changes)


def bare(**changes: Any) -> Report:
    """A recording that holds nothing and says nothing: every optional fact is absent."""
    nothing = dict.fromkeys(Summary.__struct_fields__, 0)
    summary = Summary(
        **{
            **nothing,
            "source_events": None,
            "samples": None,
            "samples_with_gil": None,
            "span_ns": None,
            "gpu_window_ns": None,
            "gpu_idle_ns": None,
            "top_kernels": (),
            "top_functions": (),
        }
    )
    made = Report(
        schema=SCHEMA,
        tool="tracelens 0.1.0",
        analysis_id="0" * 16,
        environment=Environment(engine=None, versions={}, device=None, parallelism=None, graph_mode=None, profiler={}),
        trace=TraceInfo(sources=(), origin_unix_ns=None, clock_halfwidth_ns=0, ranks=(), roles=(), summary=summary),
        coverage=Coverage(),
        bottleneck=Bottleneck(class_="unknown", because="nothing was recorded"),
        steps=(),
        breakdown={},
        kernels=(),
        health=(),
        plugins=(),
        rules=(),
        findings=(),
        next=(),
    )
    return msgspec.structs.replace(made, **changes)


def hostile() -> Report:
    """The report with every text of it replaced by one that attacks the terminal."""
    return msgspec.convert(_poisoned(msgspec.to_builtins(report())), Report)


_KEPT = {"schema", "severity", "confidence", "status", "class", "trust", "bound", "safety", "direction", "kind",
         "line_kind", "host_times", "rule", "code", "fingerprint"}  # fmt: skip


def _poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {(HOSTILE if key in ("versions", "arguments") else name): _poisoned(item, name) for name, item in
                value.items()}  # fmt: skip
    if isinstance(value, list | tuple):
        return [_poisoned(item, key) for item in value]
    return HOSTILE if isinstance(value, str) and key not in _KEPT else value
