"""Every choice of the stack, as a small tree of ordinary settings with dotted keys.

A fault is nothing but a bad value of an ordinary setting: `FAULTS` is a table from a name to settings, and no other
module knows that faults exist. This module does not know what a setting does.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tracelens_serving.errors import ServingError

WORLD_SIZE = 2  # expert-parallel prefill ranks
MICRO_BATCHES = 2  # requests a rank computes alternately, so that a combine never waits on the host


@dataclass(frozen=True)
class ModelSettings:
    """The shape of the model; weights are random and seeded."""

    layers: int = 4
    hidden: int = 128
    heads: int = 2
    experts: int = 8
    top_k: int = 2
    expert_hidden: int = 512
    vocab: int = 512
    router_skew: float = 1.2  # logits added to the experts of rank 1: uneven expert load is a property of real routers


@dataclass(frozen=True)
class EpSettings:
    """Expert parallelism: how a rank waits for its peer in dispatch."""

    release_gil: bool = True
    wait: Literal["futex", "spin"] = "futex"
    timeout_s: float = 100.0


@dataclass(frozen=True)
class KvSettings:
    """The KV cache and its transfer from prefill to decode."""

    block_bytes: int = 16384
    slots: int = 6  # requests whose KV a prefill rank can hold; a slot is free again once it has been moved
    link_bytes_per_s: int = 20_000_000  # rate of a rank's link, paced by the kernel; 0 = as fast as loopback goes


@dataclass(frozen=True)
class LoadSettings:
    """The synthetic requests."""

    prompt_tokens: int = 256
    new_tokens: int = 3


@dataclass(frozen=True)
class DecodeSettings:
    """The decode process."""

    slots: int = 16
    max_batch: int = 8


@dataclass(frozen=True)
class Settings:
    """All settings; the defaults are healthy."""

    model: ModelSettings = field(default_factory=ModelSettings)
    ep: EpSettings = field(default_factory=EpSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)


FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "ep_hold_gil": {"ep.release_gil": False},
}


def flatten(settings: Settings) -> dict[str, Any]:
    """Return the settings as `{"ep.wait": "futex", ...}`, which `resolve` takes back."""
    return {
        f"{section}.{name}": value
        for section, values in dataclasses.asdict(settings).items()
        for name, value in values.items()
    }


def resolve(values: Mapping[str, Any]) -> Settings:
    """Return the defaults with `values` (dotted key → value, or its text) put in; ServingError if one is bad."""
    known = flatten(Settings())
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key not in known:
            raise ServingError(f"unknown setting '{key}'", f"known settings: {', '.join(known)}")
        section, name = key.split(".")
        wanted = get_type_hints(get_type_hints(Settings)[section])[name]
        sections.setdefault(section, {})[name] = _coerce(key, value, wanted)
    defaults = Settings()
    settings = dataclasses.replace(
        defaults,
        **{section: dataclasses.replace(getattr(defaults, section), **new) for section, new in sections.items()},
    )
    _check(settings)
    return settings


def from_command_line(file: Path | None, fault: str, assignments: Iterable[str]) -> Settings:
    """Return the settings of a command line: those in `file` (JSON, dotted keys), then the fault's, then each K=V."""
    if fault not in FAULTS:
        raise ServingError(f"unknown fault '{fault}'", f"known faults: {', '.join(FAULTS)}")
    values = (_read(file) if file else {}) | FAULTS[fault]
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ServingError(f"'{assignment}' is not KEY=VALUE", "for example: --set ep.wait=spin")
        values[key.strip()] = value.strip()
    return resolve(values)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ServingError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ServingError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ServingError(f"{path}: not a JSON object of settings", '{"ep.wait": "futex"}')
    return values


def _coerce(key: str, value: Any, wanted: Any) -> Any:
    """Return `value`, or the value that it spells, as `wanted`."""
    if get_origin(wanted) is Literal:
        if value in get_args(wanted):
            return value
        raise ServingError(f"{key}: '{value}' is not one of {', '.join(get_args(wanted))}")
    if wanted is bool:
        spelled = {"true": True, "false": False}.get(str(value).lower())
        if spelled is None:
            raise ServingError(f"{key}: '{value}' is not true or false")
        return spelled
    try:
        if isinstance(value, bool) or (wanted is int and isinstance(value, float)):
            raise ValueError
        number = wanted(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (OverflowError, TypeError, ValueError):
        raise ServingError(f"{key}: '{value}' is not {'an integer' if wanted is int else 'a number'}") from None


def _check(settings: Settings) -> None:
    """Raise ServingError unless every process can run with these settings."""
    may_be_zero = {"model.router_skew", "kv.link_bytes_per_s"}
    for key, value in flatten(settings).items():
        if key not in may_be_zero and isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            raise ServingError(f"{key}: {value} is not positive")
    model = settings.model
    if model.hidden % model.heads:
        raise ServingError(f"model.hidden: {model.hidden} is not a multiple of model.heads ({model.heads})")
    if model.experts % WORLD_SIZE:
        raise ServingError(f"model.experts: {model.experts} cannot be shared by {WORLD_SIZE} ranks")
    if model.top_k > model.experts:
        raise ServingError(f"model.top_k: {model.top_k} is more than model.experts ({model.experts})")
    if settings.kv.link_bytes_per_s < 0:
        raise ServingError(f"kv.link_bytes_per_s: {settings.kv.link_bytes_per_s} is negative")
    if settings.kv.slots < MICRO_BATCHES:
        raise ServingError(f"kv.slots: a rank computes {MICRO_BATCHES} requests at once")
    # Every rank can have all its micro-batches half received; one more slot lets a whole one be decoded.
    if settings.decode.slots <= WORLD_SIZE * MICRO_BATCHES:
        raise ServingError(f"decode.slots: must be more than {WORLD_SIZE * MICRO_BATCHES}")
