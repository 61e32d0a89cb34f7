"""Places of events (pid, tid) → processes and threads: numbers, names and rank labels.

A pid may be text ("[TP00-DP01] 83", "Spans"). Knows nothing of events.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tracelens.readers.json_columns import Columns
from tracelens.readers.json_event import Scalar

_TAIL_NUMBER = re.compile(r"(\d{1,18})\s*\Z")
_LABEL = re.compile(r"\A\s*\[([^\]]+)\]")
_PART = re.compile(r"([A-Za-z]+)[ _-]?(\d{1,6})")
SYNTHETIC = -1000
"""Processes whose pid is text without a usable number get -1001, -1002, …"""


@dataclass(frozen=True)
class Process:
    """One pid of the file: `label` is the rank label in front of a merged file's pid, "" without one."""

    number: int
    name: str | None
    label: str
    rank: int | None


@dataclass(frozen=True)
class Places:
    """Processes by the source's pid, and what threads are called."""

    processes: dict[Scalar, Process]
    thread_names: dict[tuple[Scalar, Scalar], str]
    text_pids: int

    def process(self, pid: Scalar) -> Process:
        """The process of a pid of this file."""
        return self.processes[pid]


def resolve(columns: Columns) -> Places:
    """Name and number everything that the columns' places mention."""
    by_code = {code: place for place, code in columns.places.items()}
    names: dict[Scalar, str] = {}
    threads: dict[tuple[Scalar, Scalar], str] = {}
    for (code, what), value in columns.metadata.items():
        place = by_code[code]
        if what == "process_name":
            names[place[0]] = value
        elif what == "thread_name":
            threads[place] = value
    pids = list(dict.fromkeys(place[0] for place in columns.places))
    texts = [pid for pid in pids if isinstance(pid, str)]
    numbers = _numbers(pids)
    labels = {pid: _label(pid) for pid in pids}
    ranks = _ranks([label for label in labels.values() if label])
    processes = {
        pid: Process(
            numbers[pid],
            names.get(pid) or (pid if isinstance(pid, str) and pid else None),
            labels[pid],
            ranks.get(labels[pid]),
        )
        for pid in pids
    }
    return Places(processes, threads, len([pid for pid in texts if labels[pid]]))


def _numbers(pids: list[Scalar]) -> dict[Scalar, int]:
    """A number for each pid: itself, else the one its text ends in if no other has it, else a negative one."""
    numbers: dict[Scalar, int] = {pid: pid for pid in pids if isinstance(pid, int)}
    tails = {pid: int(found[1]) for pid in pids if isinstance(pid, str) and (found := _TAIL_NUMBER.search(pid))}
    taken = Counter([*numbers.values(), *tails.values()])
    numbers.update((pid, tail) for pid, tail in tails.items() if taken[tail] == 1)
    others = [pid for pid in pids if pid not in numbers]
    numbers.update((pid, SYNTHETIC - 1 - index) for index, pid in enumerate(others))
    return numbers


def _label(pid: Scalar) -> str:
    found = _LABEL.match(pid) if isinstance(pid, str) else None
    return found[1] if found else ""


def _ranks(labels: list[str]) -> dict[str, int]:
    """A rank for each label: the one part of it that differs between labels, else its place in their order."""
    distinct = sorted(set(labels))
    parts = {label: {name.lower(): int(number) for name, number in _PART.findall(label)} for label in distinct}
    names = sorted({name for part in parts.values() for name in part})
    varying = [name for name in names if len({part.get(name) for part in parts.values()}) > 1]
    if not distinct or not names:
        return {}
    chosen = varying[0] if len(varying) == 1 else "tp" if not varying and "tp" in names else None
    if not varying and chosen is None:
        chosen = names[0]
    if chosen is not None and all(chosen in part for part in parts.values()):
        return {label: parts[label][chosen] for label in distinct}
    return {label: index for index, label in enumerate(distinct)}
