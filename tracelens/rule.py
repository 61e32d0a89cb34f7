"""The contract between core and a detector: Rule (identity card), `@detector`, Abstain and Options.

Knows no root cause. A rule sees a Trace, never a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tracelens.finding import Confidence, Finding
from tracelens.trace import Trace

MANUAL_HEADINGS = ("What it sees", "Why it costs", "When it is wrong", "What to change", "How to prove it")
"""Every rule's manual has these sections, in this order."""

OptionValue = float | int | str | bool


@dataclass(frozen=True)
class Need:
    """One alternative of evidence that a rule can work with.

    `evidence` are names of the needs-vocabulary (`Trace.evidence`), all of them wanted; `earns` is the confidence they
    can give; `record` is the command that records them.
    """

    evidence: tuple[str, ...]
    earns: Confidence
    record: str


@dataclass(frozen=True)
class Option:
    """A threshold that `tracelens.toml` may change, with its reason."""

    default: OptionValue
    says: str


@dataclass(frozen=True)
class Rule:
    """A root cause's identity card: AAA### code, kebab name of the *bad* thing, needs, manual, options."""

    code: str
    name: str
    summary: str
    needs: tuple[Need, ...]
    manual: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Z]{3}[0-9]{3}", self.code):
            raise ValueError(f"rule code {self.code!r}: three capital letters and three digits, please")

    @property
    def family(self) -> str:
        """The three letters of the code."""
        return self.code[:3]


class Options(Mapping[str, OptionValue]):
    """A rule's options with the user's configuration applied."""

    def __init__(self, rule: Rule, configured: Mapping[str, OptionValue] | None = None) -> None:
        self._values = {name: option.default for name, option in rule.options.items()}
        self._values.update(configured or {})

    def __getitem__(self, name: str) -> OptionValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def number(self, name: str) -> float:
        """A numeric option."""
        return float(self._values[name])


class Abstain(Exception):
    """Raised by a detector that has its evidence and still cannot know.

    `number` is the figure that was too low or high and `threshold` what it would have to be, `need` the evidence that
    would settle it, `unlock` the command that gives it (else the rule's first need's).
    """

    def __init__(
        self,
        why: str,
        *,
        need: str | None = None,
        number: float | None = None,
        threshold: float | None = None,
        unlock: str | None = None,
    ) -> None:
        super().__init__(why)
        self.why = why
        self.need = need
        self.number = number
        self.threshold = threshold
        self.unlock = unlock


@dataclass(frozen=True)
class Abstained:
    """Yielded by a detector for a part of the trace that it cannot judge."""

    where: str
    why: str


Judgement = Finding | Abstained
Detect = Callable[[Trace, Options], Iterable[Judgement]]


@dataclass(frozen=True)
class Detector:
    """A rule and the function that recognises it."""

    rule: Rule
    detect: Detect


def detector(rule: Rule) -> Callable[[Detect], Detector]:
    """Make a detect function a Detector under `rule`."""

    def wrap(detect: Detect) -> Detector:
        return Detector(rule, detect)

    return wrap


Status = Literal["ran", "skipped", "abstained", "failed", "disabled"]
