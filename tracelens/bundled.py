"""What ships with core, offered through the same hooks as anybody's plugin. Imports nothing until a hook is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracelens.hookspecs import hookimpl

if TYPE_CHECKING:
    from tracelens.contracts import Presenter, Reader, Recorder


@hookimpl
def readers() -> Iterable[Reader]:
    """Formats that core reads."""
    from tracelens.readers import chrome, gil, kineto, measurements, parquet, perfetto_sniff, pyspy, speedscope, triton

    return [
        kineto.READER,
        chrome.READER,
        gil.READER,
        *pyspy.READERS,
        speedscope.READER,
        measurements.READER,
        perfetto_sniff.READER,
        parquet.READER,
        *triton.READERS,
    ]


@hookimpl
def presenters() -> Iterable[Presenter]:
    """Ways core shows a Report."""
    from tracelens.presenters import json, terminal

    return [json.PRESENTER, terminal.PRESENTER]


@hookimpl
def recorders() -> Iterable[Recorder]:
    """Sources core captures."""
    from tracelens.recorders import device, events, gil, measurements, pyspy, torch, triton

    sources = (torch, gil, pyspy, triton, device, events, measurements)
    return [source.RECORDER for source in sources]
