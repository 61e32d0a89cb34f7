"""`tracelens doctor`: what is installed, what can be recorded here, which plugins were loaded, and why not."""

from __future__ import annotations

import argparse
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tracelens.commands import shared

if TYPE_CHECKING:
    from tracelens.contracts import Recorder

PACKAGES = ("polars", "numpy", "msgspec", "textual", "perfetto", "torch", "triton", "py-spy")
PROGRAMS = ("cc", "ptxas")
OWN = "tracelens-profiler"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the state of this installation; 2 if it cannot work, else 0."""
    state = examine()
    if args.json:
        from tracelens.presenters.json import dumps

        shared.emit(dumps(state))
    else:
        from tracelens.presenters.text import clean

        shared.emit("".join(clean(line) + "\n" for line in _lines(state)))
    return 2 if state["problems"] else 0


def examine() -> dict[str, Any]:
    """Versions, programs, recorders, plugins, and the problems that keep tracelens from working."""
    from tracelens import __version__, plugins
    from tracelens.errors import TracelensError
    from tracelens.installed import other_owner

    problems = []
    if owner := other_owner():
        problems.append(f"the distribution {owner} also installs a package called tracelens: uninstall it")
    recorders: list[dict[str, str | bool | None]] = []
    try:
        loaded = plugins.load()
        recorders = [_recorder(recorder) for recorder in loaded.recorders()]
        loaded.detectors()
        infos = [vars(plugin) for plugin in loaded.loaded]
    except TracelensError as error:
        infos = []
        problems.append(error.message)
    problems += [f"plugin {info['name']} is not used: {info['error']}" for info in infos if info["error"]]
    return {
        "tracelens": __version__,
        "installed_as": f"{OWN} {_version(OWN)}" if _version(OWN) else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "recorders": recorders,
        "plugins": infos,
        "problems": problems,
    }


def _recorder(recorder: Recorder) -> dict[str, str | bool | None]:
    """One recorder's state; one that cannot even say whether it works is reported, not fatal."""
    try:
        here, reason, cure = recorder.available()
    except Exception as error:
        here, reason, cure = False, f"it failed when asked: {type(error).__name__}: {error}", "report it to its plugin"
    return {"name": recorder.name, "says": recorder.says, "available": here, "why": reason, "cure": cure}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lines(state: dict[str, Any]) -> list[str]:
    lines = [f"tracelens {state['tracelens']} on Python {state['python']}, {state['system']}"]
    if state["installed_as"] is None:
        lines.append(f"not installed as a distribution: no plugin is registered (pip install {OWN})")
    lines += ["", "packages"]
    lines += [f"  {name:<12}{found or 'not installed'}" for name, found in state["packages"].items()]
    lines += ["", "programs"]
    lines += [f"  {name:<12}{found or 'not on PATH'}" for name, found in state["programs"].items()]
    lines += ["", "recorders"]
    for recorder in state["recorders"]:
        lines.append(f"  {recorder['name']:<12}{'yes' if recorder['available'] else 'no'}: {recorder['says']}")
        if recorder["why"]:
            lines.append(f"  {'':<12}{recorder['why']} → {recorder['cure'] or 'nothing to do'}")
    lines += ["", "plugins"]
    for plugin in state["plugins"]:
        origin = f"{plugin['distribution'] or 'given'} {plugin['version'] or ''}".strip()
        lines.append(f"  {plugin['name']:<12}{plugin['error'] or f'loaded from {origin}'}")
    lines += ["", *(f"problem: {problem}" for problem in state["problems"])]
    return lines if state["problems"] else [*lines[:-1], "", "no problem found"]
