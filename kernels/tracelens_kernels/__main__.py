"""Command line of the kernel lab; `python -m tracelens_kernels --help`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tracelens_kernels import PRECISIONS
from tracelens_kernels import __doc__ as says


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 2 could not."""
    parser = argparse.ArgumentParser("python -m tracelens_kernels", description=says, formatter_class=_Raw)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile", help="compile the KDA kernels without a GPU and dump TTIR and metadata")
    compiling.add_argument(
        "--precision", action="append", choices=PRECISIONS, help="of the chain's dots; may be repeated (default tf32x3)"
    )
    compiling.add_argument("--dim", type=int, default=128, help="K = V")
    compiling.add_argument("--arch", type=int, default=90, help="CUDA compute capability, e.g. 90")
    compiling.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    for name, what in (("record", "the KDA pair"), ("record-pairs", "the gemv and matmul pairs")):
        recording = commands.add_parser(name, help=f"record {what} on a CUDA GPU")
        recording.add_argument("folder", type=Path, metavar="DIR")
    arm = commands.add_parser("record-arm", help="one arm of a pair, in this process")
    arm.add_argument("case", choices=("kda", "gemv", "matmul"))
    arm.add_argument("side", choices=("bad", "good"))
    arm.add_argument("folder", type=Path, metavar="DIR")
    given = parser.parse_args(arguments)
    if given.command == "compile":
        return _compile(given)
    return _record(given)


class _Raw(argparse.RawDescriptionHelpFormatter):
    """The package's own text as it is."""


def _compile(given: argparse.Namespace) -> int:
    from tracelens_kernels import compile as compiling

    for path in compiling.compile_to(given.output, given.precision or ["tf32x3"], dim=given.dim, arch=given.arch):
        print(path)
    return 0


def _record(given: argparse.Namespace) -> int:
    import torch

    from tracelens_kernels import record

    if not torch.cuda.is_available():
        return _cannot(f"{given.command} needs a CUDA device")
    if given.command == "record-arm":
        for path in record.record_arm(given.case, given.side == "bad", given.folder):
            print(f"{path.stat().st_size:>9,} {path}")
        return 0
    cases = ("kda",) if given.command == "record" else ("gemv", "matmul")
    for case in cases:
        folder = given.folder / record.CASES[case][0]
        for side in ("bad", "good"):
            arm = [sys.executable, "-m", "tracelens_kernels", "record-arm", case, side, str(folder / side)]
            if subprocess.run(arm, check=False).returncode:
                return _cannot(f"recording {case} ({side}) failed")
        made = {"command": f"python -m tracelens_kernels {given.command} DIR", "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        (folder / "provenance.json").write_text(json.dumps({**made, **record.provenance()}, indent=1) + "\n")
    return 0


def _cannot(why: str) -> int:
    print(f"tracelens_kernels: error: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
