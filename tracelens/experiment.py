"""Experiment: the controlled test behind a Finding: change one thing, repeat, compare, decide.

A Finding names its experiment; the Experiment says what is changed, what must move and what else could explain it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experiment:
    """One controlled experiment that a plugin knows.

    `changes` is the one thing that differs between the arms, `metric` what is compared, `control` the positive control
    that shows the change took effect.
    """

    name: str
    says: str
    changes: str
    metric: str
    control: str
