"""What a recording costs the recorded processes: CPU time a step of the bundled stack, with and without, interleaved.

python -m tests.evidence.overhead [--pairs 15] [--seconds 6] [--seed 1]

Every block runs each arm once, in random order. An arm's figure is the mean of its block-wise ratios to the arm that it
is compared with, and a 95 % bootstrap interval of that mean; the limit holds for the upper end.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tracelens.recorders import together

ARMS = {
    "off": None,
    "torch": (("torch",), False),
    "all": (together.SOURCES, False),
    "torch+stacks": (("torch",), True),
    "all+stacks": (together.SOURCES, True),
}
COMPARED = (
    ("all", "off", 0.08),
    ("all+stacks", "off", 0.15),
    ("all", "torch", 0.03),
    ("all+stacks", "torch+stacks", 0.03),
    ("torch", "off", None),
    ("torch+stacks", "off", None),
)
"""(arm, what it is compared with, what issue 5 allows it)."""
RESAMPLES = 10_000


def cpu_per_step(arm, seconds, seed):
    """CPU seconds a step over all processes of one run, as the stack itself counts them."""
    command = [sys.executable, "-m", "tracelens_serving", "run", "--json", f"--seconds={seconds}", f"--seed={seed}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "summary.json"
        shell = [sys.executable, "-c", _REDIRECTED, str(out), *command]
        if ARMS[arm] is None:
            subprocess.run(shell, check=True)
        else:
            sources, stacks = ARMS[arm]
            capture = Path(folder) / "run.capture"
            recording = together.record(shell, capture, sources, seconds=0, delay=0, stacks=stacks)
            if recording.exit_code:
                raise SystemExit(f"{arm}: the stack ended with {recording.exit_code}")
        summary = json.loads(out.read_text())
    parts = [*summary["prefill"], summary["decode"]]
    return sum(part["cpu_s"] for part in parts) / sum(part["steps"] for part in parts)


_REDIRECTED = (
    "import os, sys; os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1); os.execv(sys.argv[2], sys.argv[2:])"
)


def interval(ratios, seed):
    """Mean and 95 % bootstrap interval."""
    values = np.array(ratios)
    chosen = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[chosen].mean(axis=1), [2.5, 97.5])
    return values.mean(), low, high


def main():
    """Print the table; exit 1 if an upper end is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    order = random.Random(options.seed)
    blocks = []
    for index in range(options.pairs):
        arms = list(ARMS)
        order.shuffle(arms)
        blocks.append({arm: cpu_per_step(arm, options.seconds, options.seed + index) for arm in arms})
        told = "  ".join(f"{arm} {value * 1e3:.2f}" for arm, value in sorted(blocks[-1].items()))
        print(f"block {index + 1}: ms CPU a step: {told}", file=sys.stderr, flush=True)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.pairs} blocks of {options.seconds:g} s\n")
    print("| arm | against | overhead | 95 % interval | limit |\n|---|---|---|---|---|")
    good = True
    for arm, base, limit in COMPARED:
        mean, low, high = interval([block[arm] / block[base] - 1 for block in blocks], options.seed)
        print(
            f"| {arm} | {base} | {mean:+.1%} | {low:+.1%} … {high:+.1%} | {f'{limit:.0%}' if limit else 'reported'} |"
        )
        good &= limit is None or high <= limit
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
