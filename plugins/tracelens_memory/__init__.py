"""Rules about memory: bytes that move slower, more often or at another time than they need to."""

from __future__ import annotations

from collections.abc import Iterable

from tracelens.experiment import Experiment
from tracelens.hookspecs import hookimpl
from tracelens.rule import Detector


@hookimpl
def detectors() -> Iterable[Detector]:
    """MEM001."""
    from tracelens_memory import mem001_bandwidth_stall as mem001

    return [mem001.detect]


@hookimpl
def experiments() -> Iterable[Experiment]:
    """How memory findings are put to the test."""
    return [
        Experiment(
            name="access-pattern",
            says="time the kernel on the same bytes laid out so that neighbouring threads read neighbouring addresses",
            changes="the operand's layout (or the kernel's index order); not its values, not the grid",
            metric="bytes a launch ÷ kernel time, as a share of the copy roof measured in the same run",
            control="a plain copy of the same bytes reaches the roof before and after",
        )
    ]
