"""The two functions of the public API: open a trace, analyse it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracelens import analyzing, opening, plugins
from tracelens import config as configuring
from tracelens.finding import Report
from tracelens.trace import Trace


def open(*paths: str | Path, options: opening.OpenOptions | None = None) -> Trace:  # noqa: A001 - tracelens.open
    """One Trace of files, captures, folders or globs. Raises TracelensError with a hint for what cannot be read."""
    return opening.open_trace(
        *(str(path) for path in paths), plugins=plugins.load(), options=options or opening.OpenOptions()
    )


def analyze(
    *sources: str | Path | Trace, config: configuring.Config | None = None, select: Sequence[str] = ()
) -> Report:
    """The Report of one Trace, or of files to open. `config` defaults to the working directory's."""
    loaded = plugins.load()
    chosen = config or configuring.load(Path.cwd())
    if select:
        chosen = configuring.merged(chosen, select=tuple(select))
    if len(sources) == 1 and isinstance(sources[0], Trace):
        trace = sources[0]
    else:
        options = opening.OpenOptions(roofs=chosen.roof, kernel_bytes=chosen.bytes)
        trace = opening.open_trace(*(str(source) for source in sources), plugins=loaded, options=options)
    return analyzing.analyze(trace, loaded, chosen)
