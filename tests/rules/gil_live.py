"""Record live workloads and judge them with a GIL rule; as a program, many times, for the figures in docs/evidence.md.

python -m tests.rules.gil_live [--rule GIL001] [--runs 20] [--seconds 2] [NAME …]
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tracelens import opening, plugins
from tracelens.analyzing import analyze
from tracelens.config import Config
from tracelens.recorders import together

WORKLOAD = Path(__file__).with_name("gil_workload.py")
HOLDS = ("hold", "spin_hold")
HOGS = ("hog", "loop_hog")
CONTROLS = ("release", "spin_release", "lockstep", "ctypes_hold", "sleep", "select", "sha256", "sort")


def record(name, folder, seconds=2.0):
    """One recording of a workload; returns its folder."""
    capture = Path(folder) / "run.capture"
    command = [sys.executable, str(WORKLOAD), name, f"{seconds + 2:g}"]
    recording = together.record(command, capture, seconds=seconds, force=True)
    assert recording.exit_code == 0, f"{name} ended with {recording.exit_code}"
    return capture


def judged(capture, code="GIL001"):
    """(status of every rule, findings of one) on one capture."""
    loaded = plugins.load()
    report = analyze(opening.open_trace(str(capture), plugins=loaded), loaded, Config(select=(code,)))
    return report.rules, [found for found in report.findings if found.rule == code]


def main():
    """Print a table of outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*HOLDS, *HOGS, *CONTROLS])
    parser.add_argument("--rule", default="GIL001")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print("| workload | runs | found | grades | otherwise |\n|---|---|---|---|---|", flush=True)
    for name in options.names:
        found, grades, otherwise = 0, Counter(), Counter()
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                rules, findings = judged(record(name, folder, options.seconds), options.rule)
            found += bool(findings)
            grades.update(finding.confidence for finding in findings)
            if not findings:
                status = next(rule for rule in rules if rule.code == options.rule)
                otherwise[f"{status.status}: {status.why or 'silent'}"] += 1
        rest = "; ".join(f"{count}× {why}" for why, count in otherwise.most_common(4))
        print(f"| {name} | {options.runs} | {found} | {dict(grades)} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
