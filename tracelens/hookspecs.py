"""The whole extension surface, on one screen. A plugin implements any of these with `@tracelens.hookimpl`."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from tracelens.contracts import Presenter, Reader, Recorder
from tracelens.experiment import Experiment
from tracelens.rule import Detector

hookspec = pluggy.HookspecMarker("tracelens")
hookimpl = pluggy.HookimplMarker("tracelens")


@hookspec
def readers() -> Iterable[Reader]:  # type: ignore[empty-body]
    """Formats this plugin can turn into a Trace."""


@hookspec
def detectors() -> Iterable[Detector]:  # type: ignore[empty-body]
    """Root causes this plugin can recognise in a Trace."""


@hookspec
def presenters() -> Iterable[Presenter]:  # type: ignore[empty-body]
    """Ways this plugin can show a Report."""


@hookspec
def recorders() -> Iterable[Recorder]:  # type: ignore[empty-body]
    """Sources this plugin can capture."""


@hookspec
def experiments() -> Iterable[Experiment]:  # type: ignore[empty-body]
    """Controlled experiments this plugin can run to confirm or refute a Finding."""
