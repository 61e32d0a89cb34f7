"""An fp32 matrix product or convolution of the library runs on TF32 tensor cores.

What it sees
    Kernel names of cuBLAS, cuDNN and CUTLASS that say TF32: `…_f32f32_tf32f32_…`, `…_tf32f32_tf32f32_…`, or `s1688gemm`
    without a half-precision prefix (a batched product's name has no "tf32" in it at all). `fp16_s1688gemm` and
    `bf16_s1688gemm` are half precision, `ffma` and `simt` are fp32: none of them counts. The launching op comes from
    the launch flow; if its input types were recorded they must contain float.

Why it costs
    TF32 keeps 10 bits of the mantissa: relative error 3e-4 instead of 1e-6 for a 4096³ product (the libraries round to
    nearest, so it does not drift as Triton's truncation does). Routers, scores and states that rely on fp32 lose it
    silently. It is also about eight times faster, which is why it may well be meant.

When it is wrong
    When TF32 was chosen on purpose. PyTorch uses it for convolutions by default and for products only when told to.
    Without recorded input types the finding rests on the kernel's name alone (inferred).

What to change
    `torch.backends.cuda.matmul.fp32_precision = "ieee"` for products, `torch.backends.cudnn.conv.fp32_precision =
    "ieee"` for convolutions. Do not mix these with the older `allow_tf32`: reading that one then raises.

How to prove it
    Experiment `gemm-precision`: the op on the recorded shapes at tf32 and ieee against fp64. The error must fall at
    least tenfold; else the result does not depend on it and the finding is refuted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import polars as pl

from tracelens.analyses.attribution import attribute
from tracelens.finding import MAX_WINDOWS, Evidence, Finding, Fix, Impact, Locality, Prediction, Verify, Window
from tracelens.rule import Judgement, Need, Options, Rule, detector
from tracelens.trace import Trace

TF32_NAMES = r"tf32f32|s1688(?:tf32)?gemm"
HALF_NAMES = r"(?:^|_)(?:fp16|f16|bf16)_s1688gemm|s1688gemm_(?:fp16|f16|bf16)(?:_|$)"
"""s1688 is the tensor core's 16x8x8 shape: TF32 operands unless a half type stands beside it."""
ERROR_FALLS_BY = 0.9
"""2.9e-4 to 1.1e-6 measured for a product, 2.9e-4 to 4.3e-7 for a convolution: tenfold is a safe prediction."""

_FLOAT = ("float", "float32")

RULE = Rule(
    code="NUM002",
    name="fp32-gemm-runs-as-tf32",
    summary="A library kernel computes an fp32 product or convolution at TF32 precision.",
    needs=(
        Need(("slices:kernel", "slices:op", "flows:launch"), "observed", "tracelens record --with torch -- COMMAND"),
        Need(("slices:kernel",), "inferred", "tracelens record --with torch -- COMMAND"),
    ),
    manual=__doc__ or "",
)


@detector(RULE)
def detect(trace: Trace, options: Options) -> Iterable[Judgement]:
    """One finding per launching op, or per kernel where the op is unknown."""
    kernels = trace.select("kernel").with_columns(pl.col("name").cast(pl.String))
    hits = kernels.filter(pl.col("name").str.contains(TF32_NAMES) & ~pl.col("name").str.contains(HALF_NAMES))
    if not hits.height:
        return
    sites = attribute(trace).select("slice_id", "op_id", pl.col("op").cast(pl.String), "module", "file", "line")
    hits = hits.select("slice_id", "start_ns", "dur_ns", "name", "step_id").join(sites, on="slice_id", how="left")
    fp32 = {op: _is_fp32(args) for op, args in trace.args(hits["op_id"].drop_nulls().unique().to_list()).items()}
    hits = hits.with_columns(fp32=pl.Series([fp32.get(op) for op in hits["op_id"]], dtype=pl.Boolean))
    hits = hits.filter(pl.col("fp32").is_null() | pl.col("fp32"))
    hits = hits.with_columns(site=pl.coalesce("op", "name")).sort("start_ns", "slice_id")
    total = int(kernels["dur_ns"].sum())
    for _, rows in hits.group_by("site", maintain_order=True):
        yield _finding(trace, rows, total)


def _is_fp32(args: dict[str, Any]) -> bool | None:
    """Whether an op multiplies fp32 tensors, by its recorded input types; None where they were not recorded."""
    types = args.get("Input type")
    if not isinstance(types, list):
        return None
    tensors = [kind for kind in types if isinstance(kind, str) and (kind in _FLOAT or kind.startswith("c10::"))]
    return any(kind in _FLOAT for kind in tensors) if tensors else None


def _more(kernels: int) -> str:
    """How many kernels besides the one that is named."""
    return f" and {kernels - 1} more kernel{'s' if kernels > 2 else ''}" if kernels > 1 else ""


def _finding(trace: Trace, rows: pl.DataFrame, total: int) -> Finding:
    by_kernel = (
        rows.group_by("name", maintain_order=True)
        .agg(calls=pl.len(), total_ns=pl.col("dur_ns").sum())
        .sort("total_ns", "name", descending=[True, False])
    )
    op, kernel = rows["op"][0], str(by_kernel["name"][0])
    observed = rows["fp32"].fill_null(False).all()
    convolution = "conv" in (op or kernel) or "fprop" in kernel
    ran = int(rows["dur_ns"].sum())
    file, line, module = (_only(rows, column) for column in ("file", "line", "module"))
    switch = "torch.backends.cudnn.conv" if convolution else "torch.backends.cuda.matmul"
    return Finding(
        rule=RULE.code,
        name=RULE.name,
        message=(
            f"{op or 'an unnamed op'} runs on TF32 tensor cores ({_short(kernel)}{_more(by_kernel.height)}), "
            f"launches: {rows.height}"
        ),
        severity="warning" if observed else "info",
        confidence="observed" if observed else "inferred",
        where=Locality(
            op=op,
            kernel=kernel,
            file=file,
            line=line,
            module=module,
            line_kind="definition" if line is not None else None,
            windows=tuple(
                Window(start_ns=start, end_ns=start + dur)
                for start, dur in rows.select("start_ns", "dur_ns").head(MAX_WINDOWS).iter_rows()
            ),
            windows_total=rows.height,
        ),
        occurrences=rows.height,
        steps=tuple(rows["step_id"].drop_nulls().unique().sort().to_list()),
        evidence=(
            Evidence(
                says="kernels whose name says TF32"
                + (", under an op with float inputs" if observed else "; the op's input types were not recorded"),
                table="slices",
                ids=tuple(rows["slice_id"].to_list()[:MAX_WINDOWS]),
                columns=("kernel", "calls", "total_ns"),
                rows=tuple(by_kernel.head(MAX_WINDOWS).iter_rows()),
            ),
        ),
        impact=Impact(
            quantity="GPU time computed at TF32",
            value=ran / 1e6,
            unit="ms",
            share=ran / total if total else None,
            of="summed kernel time",
            bound="upper",
            basis=f"sum over {rows.height} launches; what is lost is accuracy (relative error about 3e-4), not time",
        ),
        fix=Fix(
            summary="compute it in fp32 where the result needs it; about eight times slower",
            safety="measure",
            change=f'{switch}.fp32_precision = "ieee"',
            links=("https://docs.pytorch.org/docs/stable/notes/cuda.html",),
        ),
        verify=Verify(
            experiment="gemm-precision",
            changes=f"{switch}.fp32_precision from tf32 to ieee",
            arguments={"kernel": kernel, **({"op": op} if op else {})},
            predicts=Prediction(
                metric="relative error of the result against fp64",
                direction="down",
                at_least=ERROR_FALLS_BY,
                unit="share",
            ),
            refuted_if="the error falls by less than that: the op's inputs or an earlier op set it",
        ),
    )


def _only(rows: pl.DataFrame, column: str) -> Any:
    """The value that all rows share, or None."""
    values = rows[column].unique().to_list()
    return values[0] if len(values) == 1 else None


def _short(kernel: str) -> str:
    """The part of a C++ kernel name that says what it computes."""
    inner = re.search(r"[\w]*(?:tf32f32|s1688)[\w]*", kernel)
    return inner.group() if inner else kernel
