"""A Triton kernel multiplies fp32 matrices, and the hardware cuts the operands to TF32 first.

What it sees
    The compiled kernel's TTIR says of each `tl.dot` which types it multiplies and at what `inputPrecision`. The rule
    looks for dots whose operands are both f32 and whose precision is plain `tf32`, and only in variants that this
    recording launched: artifacts are joined to launches by the compiler's hash where the trace carries it, else by
    name, warps, shared memory and registers. File and line are those of the `tl.dot` itself (the executing line). bf16
    dots also print `tf32`, and the PTX of the cure, tf32x3, is full of the word: neither counts.

Why it costs
    TF32 keeps 10 bits of the mantissa. On sm_90, Triton hands fp32 operands to the tensor core as they are and it drops
    the low 13 bits: every product is biased low, by 7e-4 on average and 2·2⁻¹⁰ at most. In a chain of products
    (recurrent state, scan, context-parallel merge) the errors add up with length: 0.8 % at 1k tokens, 8 % at 16k, 57 %
    at 262k in a long-memory KDA chain on an H200, where tf32x3 stays below 0.1 %. No time is lost: the faulty kernel is
    the *faster* one, so timing never shows it.

When it is wrong
    Where TF32 was chosen, for results that tolerate 1e-3: suppress the finding with that reason. Where the state
    forgets quickly the error stays flat and small: the finding is inferred until a measurement shows the error. An
    accuracy test on random data passes with the fault in, whatever its length; only long-memory input shows it. If the
    artifacts come from another build than the trace, a join by name and shared memory can pick the wrong variant.

What to change
    Give the named dots `input_precision="tf32x3"` (about twice the time of these dots) or `"bf16x3"` (about the time of
    TF32, error within a factor of three of tf32x3). `"ieee"` is exact and runs on the FMA units: 70 to 200 times
    slower.

How to prove it
    Experiment `dot-precision`: the same kernel at tf32 and tf32x3 on long-memory input against an fp64 reference. The
    error must fall at least tenfold; if it does not, the loss is elsewhere and the finding is refuted. An accuracy test
    of your own raises the finding from inferred to observed if it fails its tolerance and names the kernel: {"name":
    "state", "metric": "relative_error", "value": 0.083, "unit": "1", "reference": 0, "tolerance": 0.001, "params":
    {"kernel": "NAME"}}, one such object a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl

from tracelens.finding import (
    MAX_WINDOWS,
    Evidence,
    Finding,
    Fix,
    Impact,
    Locality,
    Prediction,
    Verify,
    Window,
)
from tracelens.rule import Abstain, Abstained, Judgement, Need, Options, Rule, detector
from tracelens.trace import Trace
from tracelens_numerics.variants import Dot, Launched, Variant, launched, variants

ERROR_FALLS_BY = 0.9
"""tf32x3 was 190 to 1800 times more exact than tf32 at every length measured: tenfold is a safe prediction."""

_METRIC = "relative error of the result against fp64"
_RECORD = "TRITON_CACHE_DIR=DIR COMMAND; then tracelens analyze TRACE DIR"

RULE = Rule(
    code="NUM001",
    name="fp32-dot-runs-as-tf32",
    summary="A launched Triton kernel multiplies fp32 operands at TF32 precision.",
    needs=(
        Need(("artifacts", "slices:kernel", "measurements"), "observed", f"{_RECORD} MEASUREMENTS.jsonl"),
        Need(("artifacts", "slices:kernel"), "inferred", _RECORD),
    ),
    manual=__doc__ or "",
)


@dataclass(frozen=True)
class _Measured:
    """An accuracy test of one kernel that has a tolerance."""

    name: str
    metric: str
    value: float
    unit: str
    reference: float
    tolerance: float

    @property
    def failed(self) -> bool:
        return abs(self.value - self.reference) > self.tolerance


@detector(RULE)
def detect(trace: Trace, options: Options) -> Iterable[Judgement]:
    """One finding per launched variant with TF32 dots; abstains where variants of different precision fit a launch."""
    compiled = variants(trace)
    damaged = [entry for entry in trace.health if entry.need == "dots"]
    if not damaged and not any(variant.tf32_dots for variant in compiled):
        return
    groups = launched(trace, compiled)
    if not groups:
        raise Abstain(
            f"none of the {len(compiled)} compiled kernels was launched in this recording: "
            "artifacts and trace must come from one run",
            need="slices:kernel",
            number=0,
            threshold=1,
        )
    hits: dict[str, list[Launched]] = {}
    unclear: dict[Abstained, int] = {}
    judged = 0
    for group in groups:
        if doubt := _doubt(group):
            unclear.setdefault(Abstained(f"kernel {group.kernel}", doubt), len(group.candidates))
            continue
        judged += 1
        if group.candidates[0].tf32_dots:
            hits.setdefault(group.kernel, []).append(group)
    if not judged:
        raise Abstain(
            "; ".join(f"{each.where}: {each.why}" for each in unclear),
            need="launches" if any(unclear.values()) else "artifacts",
            number=max(unclear.values()),
            threshold=1,
        )
    for kernel, runs in hits.items():
        yield _finding(trace, kernel, runs)
    yield from unclear
    if damaged:
        where = damaged[0].where or "artifacts"
        yield Abstained(where, f"{len(damaged)} notes of damaged TTIR: dots may be missing, so silence proves nothing")


def _doubt(group: Launched) -> str | None:
    """Why it cannot be said whether these launches ran TF32 dots, or None."""
    bad = sum(bool(variant.tf32_dots) for variant in group.candidates)
    if not group.candidates:
        look = f"hash {group.hash}" if group.hash else f"{group.threads} threads, {group.shared_bytes} B shared memory"
        return f"no compiled variant fits its launches ({look}): the artifacts are not of this run"
    if 0 < bad < len(group.candidates):
        return (
            f"ambiguous: {len(group.candidates)} compiled variants fit its launches by {group.joined_by}, "
            f"{bad} of them with fp32 dots at TF32"
        )
    return None


def _finding(trace: Trace, kernel: str, runs: list[Launched]) -> Finding:
    rows = pl.concat([run.slices for run in runs]).sort("start_ns", "slice_id")
    ran = list({variant.artifact_id: variant for run in runs for variant in run.candidates}.values())
    dots = tuple(dict.fromkeys(dot for variant in ran for dot in variant.tf32_dots))
    measured = list(_measurements(trace, kernel))
    failed = [test for test in measured if test.failed]
    file, line, _ = dots[0]
    lines = ", ".join(f"{file or 'unknown file'}:{line or '?'}" for file, line, _ in dots)
    error = (
        f"; measured {failed[0].metric} {failed[0].value:.3g}, tolerance {failed[0].tolerance:.3g}" if failed else ""
    )
    return Finding(
        rule=RULE.code,
        name=RULE.name,
        message=f"{kernel} multiplies fp32 operands at TF32 in {len(dots)} tl.dot ({lines}), "
        f"launches: {rows.height}{error}",
        severity="error" if failed else "warning",
        confidence="observed" if failed else "inferred",
        where=_where(trace, kernel, rows, file, line),
        occurrences=rows.height,
        steps=tuple(rows["step_id"].drop_nulls().unique().sort().to_list()),
        evidence=tuple(_evidence(ran, dots, runs, rows, measured)),
        impact=_impact(trace, rows, kernel),
        fix=Fix(
            summary="ask for three TF32 products in the named dots: twice their time, 190 to 1800 times less error; "
            'input_precision="bf16x3" costs about what TF32 does now',
            safety="measure",
            change='tl.dot(…, input_precision="tf32x3")',
            links=("https://triton-lang.org/main/python-api/generated/triton.language.dot.html",),
        ),
        verify=Verify(
            experiment="dot-precision",
            changes="input_precision of the named tl.dot from tf32 to tf32x3",
            arguments={"kernel": kernel, **({"file": file} if file else {}), **({"line": line} if line else {})},
            predicts=Prediction(metric=_METRIC, direction="down", at_least=ERROR_FALLS_BY, unit="share"),
            refuted_if="the error on long-memory input falls by less than that: accuracy is lost elsewhere",
        ),
    )


def _where(trace: Trace, kernel: str, rows: pl.DataFrame, file: str | None, line: int | None) -> Locality:
    tracks = rows.select("track_id").unique().join(trace.tracks, on="track_id", how="left")
    ops = rows["op"].unique()

    def only(column: str) -> int | None:
        values = tracks[column].unique().to_list()
        return values[0] if len(values) == 1 else None

    return Locality(
        rank=only("rank"),
        device=only("device"),
        stream=only("stream"),
        op=ops.item() if len(ops) == 1 else None,
        kernel=kernel,
        function=kernel,
        file=file,
        line=line,
        line_kind="executing" if line else None,
        windows=tuple(
            Window(start_ns=start, end_ns=start + dur)
            for start, dur in rows.select("start_ns", "dur_ns").head(MAX_WINDOWS).iter_rows()
        ),
        windows_total=rows.height,
    )


def _evidence(
    ran: list[Variant], dots: tuple[Dot, ...], runs: list[Launched], rows: pl.DataFrame, measured: list[_Measured]
) -> Iterator[Evidence]:
    yield Evidence(
        says="dots of the launched variant that multiply f32 by f32 at plain tf32",
        table="dots",
        ids=tuple(variant.artifact_id for variant in ran),
        columns=("file", "line", "operands", "precision"),
        rows=tuple((file, line, types, "tf32") for file, line, types in dots),
    )
    yield Evidence(
        says=f"its launches, joined to the compiled variant by {' or '.join(sorted({run.joined_by for run in runs}))}",
        table="launches",
        ids=tuple(rows["slice_id"].to_list()[:MAX_WINDOWS]),
        columns=("launches", "hash", "threads", "shared_bytes", "registers"),
        rows=tuple((run.slices.height, *run.look) for run in runs[:MAX_WINDOWS]),
    )
    for test in measured:
        verdict = "outside" if test.failed else "inside (no proof: only long-memory input shows the drift)"
        yield Evidence(
            says=f"accuracy test {test.name}: {verdict} its tolerance",
            table="measurements",
            columns=("name", "metric", "value", "unit", "reference", "tolerance"),
            rows=((test.name, test.metric, test.value, test.unit, test.reference, test.tolerance),),
        )


def _impact(trace: Trace, rows: pl.DataFrame, kernel: str) -> Impact:
    ran, of = int(rows["dur_ns"].sum()), int(trace.select("kernel")["dur_ns"].sum())
    return Impact(
        quantity="GPU time computed at TF32",
        value=ran / 1e6,
        unit="ms",
        share=ran / of if of else None,
        of="summed kernel time",
        bound="upper",
        basis=f"sum over {rows.height} launches of {kernel}, whole kernels counted; what is lost is accuracy, not "
        "time: each product is low by up to 2·2⁻¹⁰, and chains add it up",
    )


def _measurements(trace: Trace, kernel: str) -> Iterator[_Measured]:
    """Accuracy tests with a tolerance that name this kernel and did not run it at another precision."""
    for row in trace.measurements.iter_rows(named=True):
        try:
            params = json.loads(row["params"])
        except ValueError:
            params = {}
        named = params.get("kernels", [params.get("kernel", row["name"])]) if isinstance(params, dict) else []
        if row["value"] is None or row["tolerance"] is None or not isinstance(named, list) or kernel not in named:
            continue
        if params.get("precision", "tf32") in ("tf32", "default"):
            yield _Measured(
                row["name"], row["metric"], row["value"], row["unit"], row["reference"] or 0.0, row["tolerance"]
            )
