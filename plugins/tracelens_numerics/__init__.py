"""Rules about precision: arithmetic that is coarser than its operands' type says."""

from __future__ import annotations

from collections.abc import Iterable

from tracelens.experiment import Experiment
from tracelens.hookspecs import hookimpl
from tracelens.rule import Detector


@hookimpl
def detectors() -> Iterable[Detector]:
    """NUM001, NUM002."""
    from tracelens_numerics import num001_fp32_dot_runs_as_tf32 as num001
    from tracelens_numerics import num002_fp32_gemm_runs_as_tf32 as num002

    return [num001.detect, num002.detect]


@hookimpl
def experiments() -> Iterable[Experiment]:
    """How precision findings are put to the test."""
    return [
        Experiment(
            name="dot-precision",
            says="run the kernel on long-memory input with its fp32 dots at tf32 and at tf32x3, against fp64",
            changes="input_precision of the named tl.dot; nothing else",
            metric="relative error of the result against fp64",
            control="the input remembers (spectral norm of the transition product ≥ 0.5), and each arm's TTIR shows "
            "the precision it claims",
        ),
        Experiment(
            name="gemm-precision",
            says="run the op with fp32_precision tf32 and ieee on the recorded shapes, against fp64",
            changes="torch.backends' fp32_precision of this op's backend; nothing else",
            metric="relative error of the result against fp64",
            control="the kernel name of the ieee arm has no tf32 in it",
        ),
    ]
