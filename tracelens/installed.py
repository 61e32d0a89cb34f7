"""Whether this installation is alone: on PyPI the name `tracelens` belongs to another project."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution


def other_owner() -> str | None:
    """Another installed distribution that brings a package `tracelens`, or None.

    On PyPI `tracelens` is an unrelated project; AMD's `TraceLens` installs `TraceLens/`, which does not collide.
    """
    try:
        found = distribution("tracelens")
    except PackageNotFoundError:
        return None
    files = found.files
    if files is not None and not any(file.parts[0] in ("tracelens", "tracelens.py") for file in files):
        return None
    return f"{found.name} {found.version}"
