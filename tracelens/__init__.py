"""tracelens: findings from LLM inference traces that are local, cheap and carry their own experiment.

    import tracelens
    report = tracelens.analyze("run.capture")
    with tracelens.recording("run.capture"): ...

Everything is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelens.api import analyze, open  # noqa: A004 - tracelens.open
    from tracelens.finding import Finding, Report
    from tracelens.hookspecs import hookimpl
    from tracelens.recorders.session import recording
    from tracelens.rule import Abstain, Abstained, Need, Option, Options, Rule, detector
    from tracelens.trace import Trace

__version__ = "0.1.0"

_HOMES = {
    "open": "api",
    "analyze": "api",
    "recording": "recorders.session",
    "Trace": "trace",
    "Finding": "finding",
    "Report": "finding",
    "Abstain": "rule",
    "Abstained": "rule",
    "Need": "rule",
    "Option": "rule",
    "Options": "rule",
    "Rule": "rule",
    "detector": "rule",
    "hookimpl": "hookspecs",
}
__all__ = [
    "Abstain", "Abstained", "Finding", "Need", "Option", "Options", "Report", "Rule", "Trace",
    "analyze", "detector", "hookimpl", "open", "recording",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
    return getattr(import_module(f"tracelens.{_HOMES[name]}"), name)
