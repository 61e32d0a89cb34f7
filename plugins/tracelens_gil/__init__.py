"""Rules about CPython's global interpreter lock: who holds it, and who waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from tracelens.experiment import Experiment
from tracelens.hookspecs import hookimpl
from tracelens.rule import Detector


@hookimpl
def detectors() -> Iterable[Detector]:
    """GIL001 and GIL002."""
    from tracelens_gil import gil001_native_call_holds_gil as gil001
    from tracelens_gil import gil002_gil_convoy as gil002

    return [gil001.detect, gil002.detect]


@hookimpl
def experiments() -> Iterable[Experiment]:
    """How GIL findings are put to the test."""
    return [
        Experiment(
            name="release-gil",
            says="run the same workload with the native call releasing the GIL while it waits",
            changes="the call releases the GIL (Py_BEGIN_ALLOW_THREADS, py::gil_scoped_release); nothing else",
            metric="net GIL wait of the probe, share of wall",
            control="probe ticks start to land inside the call (≥ 0.5 per ms)",
        ),
        Experiment(
            name="switch-interval",
            says="run the same workload with a ten times shorter switch interval",
            changes="sys.setswitchinterval at the start of the process; nothing else",
            metric="net GIL wait of the probe, share of wall",
            control="sys.getswitchinterval reads back the new value in the recorded process",
        ),
    ]
