"""Load, choose and list plugins. There is no global manager: `load()` makes one, tests pass their own.

Plugins are entry points of the group "tracelens"; the bundled ones register the same way as a stranger's. Environment:
TRACELENS_PLUGINS=gil,numerics selects rule plugins by entry point name, TRACELENS_TRACE_PLUGINS=1 prints hook calls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

from tracelens import hookspecs
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.contracts import Presenter, Reader, Recorder
    from tracelens.experiment import Experiment
    from tracelens.rule import Detector

GROUP = "tracelens"
CORE = "core"


@dataclass(frozen=True)
class LoadedPlugin:
    """One entry point: where it comes from, and the error if it could not be loaded."""

    name: str
    distribution: str | None
    version: str | None
    error: str | None = None


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing")
NamedThing = TypeVar("NamedThing", bound=_Named)


@dataclass
class Plugins:
    """What all loaded plugins offer. Conflicts are errors naming both plugins."""

    manager: pluggy.PluginManager
    loaded: list[LoadedPlugin] = field(default_factory=list)

    def readers(self) -> list[Reader]:
        """All readers, by name."""
        return _unique(self._collect("readers"), lambda reader: reader.name, "reader")

    def detectors(self) -> list[Detector]:
        """All detectors, by rule code."""
        return _unique(self._collect("detectors"), lambda detector: detector.rule.code, "rule")

    def presenters(self) -> list[Presenter]:
        """All presenters, by name."""
        return _unique(self._collect("presenters"), lambda presenter: presenter.name, "presenter")

    def recorders(self) -> list[Recorder]:
        """All recorders, by name."""
        return _unique(self._collect("recorders"), lambda recorder: recorder.name, "recorder")

    def experiments(self) -> list[Experiment]:
        """All experiments, by name."""
        return _unique(self._collect("experiments"), lambda experiment: experiment.name, "experiment")

    def _collect(self, hook: str) -> Iterator[tuple[str, Any]]:
        """(plugin name, thing) of one hook. A plugin whose hook raises is reported and left out."""
        for implementation in getattr(self.manager.hook, hook).get_hookimpls():
            try:
                things = list(implementation.function() or ())
            except Exception as error:
                self._failed(implementation.plugin_name, f"{hook}(): {type(error).__name__}: {error}")
                continue
            yield from ((implementation.plugin_name, thing) for thing in things)

    def _failed(self, name: str, error: str) -> None:
        for index, plugin in enumerate(self.loaded):
            if plugin.name == name and plugin.error is None:
                self.loaded[index] = LoadedPlugin(name, plugin.distribution, plugin.version, error)
                complain(name, error)


def _unique(things: Iterable[tuple[str, Thing]], key: Any, what: str) -> list[Thing]:
    seen: dict[str, tuple[str, Thing]] = {}
    for plugin, thing in things:
        name = key(thing)
        if name in seen:
            raise TracelensError(
                f"{what} {name} comes from two plugins: {seen[name][0]} and {plugin}",
                "uninstall one of them, or choose with TRACELENS_PLUGINS",
            )
        seen[name] = (plugin, thing)
    return [thing for _, (_, thing) in sorted(seen.items())]


def load(extra: Iterable[tuple[str, object]] = ()) -> Plugins:
    """Load every chosen entry point, and `extra` (name, module) pairs on top."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    plugins = Plugins(manager)
    for entry in _chosen(sorted(entry_points(group=GROUP), key=lambda entry: entry.name)):
        plugins.loaded.append(_load(manager, entry))
    for name, module in extra:
        manager.register(module, name=name)
        plugins.loaded.append(LoadedPlugin(name, None, None))
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise TracelensError(f"plugin {error.plugin}: {error}", "see plugins/README.md for the hooks") from error
    if os.environ.get("TRACELENS_TRACE_PLUGINS") == "1":
        manager.trace.root.setwriter(lambda text: print(text.rstrip(), file=sys.stderr))
        manager.enable_tracing()
    return plugins


def _chosen(entries: list[EntryPoint]) -> list[EntryPoint]:
    wanted = os.environ.get("TRACELENS_PLUGINS")
    if wanted is None:
        return entries
    names = {name.strip() for name in wanted.split(",") if name.strip()}
    unknown = sorted(names - {entry.name for entry in entries})
    if unknown:
        known = ", ".join(entry.name for entry in entries if entry.name != CORE)
        raise TracelensError(f"TRACELENS_PLUGINS names no such plugin: {unknown[0]}", f"installed: {known}")
    return [entry for entry in entries if entry.name in names or entry.name == CORE]


def _load(manager: pluggy.PluginManager, entry: EntryPoint) -> LoadedPlugin:
    distribution = entry.dist.name if entry.dist else None
    version = entry.dist.version if entry.dist else None
    try:
        manager.register(entry.load(), name=entry.name)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        complain(entry.name, problem)
        return LoadedPlugin(entry.name, distribution, version, problem)
    return LoadedPlugin(entry.name, distribution, version)


def complain(name: str, error: str) -> None:
    """One line on stderr for a plugin that cannot be used."""
    print(f"tracelens: plugin {name} is not used: {' '.join(error.split())[:300]}", file=sys.stderr)
