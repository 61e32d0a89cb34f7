"""Hand-made GPU traces for rule tests: kernels with launches, host ops around them, artifacts, measurements."""

from __future__ import annotations

import json
from typing import Any

from tracelens import schema
from tracelens.config import Config
from tracelens.finding import Finding, RuleStatus
from tracelens.health import Health
from tracelens.rule import Detector
from tracelens.trace import Device, Facts, Trace

MS = 1_000_000


class GpuTrace:
    """Kernels run one after the other on one stream, each launched from a host thread below optional frames."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.flows: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.dots: list[dict[str, Any]] = []
        self.measurements: list[dict[str, Any]] = []
        self.health = Health()
        self.facts: dict[str, Any] = {"devices": (Device(index=0, multiprocessors=132),)}

    def _slice(self, **values: Any) -> int:
        self.slices.append({"slice_id": len(self.slices), "depth": 0, "track_id": 0, **values})
        return len(self.slices) - 1

    def kernel(
        self,
        name: str,
        dur_ns: int = MS,
        *,
        threads: int | None = 128,
        shared: int | None = 0,
        registers: int | None = None,
        grid: int | None = 264,
        size: int | None = None,
        around: tuple[dict[str, Any], ...] = (),
        launched: bool = True,
    ) -> int:
        """A kernel; `around` are the host slices of its launch, outermost first."""
        start = max((each["start_ns"] + each["dur_ns"] for each in self.slices), default=0)
        kernel = self._slice(track_id=1, start_ns=start, dur_ns=dur_ns, kind="kernel", name=name, bytes=size)
        one = 1 if threads is not None else None
        self.launches.append(
            {
                "slice_id": kernel, "grid_x": grid, "grid_y": grid and 1, "grid_z": grid and 1, "block_x": threads,
                "block_y": one, "block_z": one, "shared_bytes": shared, "registers": registers,
                "attribution": "correlation",
            }
        )  # fmt: skip
        if launched:
            parent = None
            for depth, host in enumerate((*around, {"kind": "runtime", "name": "cuLaunchKernelEx"})):
                args = json.dumps(host["args"]) if "args" in host else None
                parent = self._slice(
                    start_ns=start, dur_ns=1000, parent_id=parent, **{**host, "args": args, "depth": depth}
                )
            self.flows.append({"from_id": parent, "to_id": kernel, "kind": "launch"})
        return kernel

    def artifact(
        self,
        kernel: str,
        *precisions: str,
        shared: int | None = 0,
        warps: int | None = 4,
        registers: int | None = None,
        digest: str | None = None,
        dtype: str = "f32",
        target: str | None = "cuda:90",
        line: int = 23,
    ) -> int:
        """A compiled kernel with one dot per precision, on consecutive lines from `line`."""
        number = len(self.artifacts)
        self.artifacts.append(
            {
                "artifact_id": number, "kernel": kernel, "hash": digest or f"{number:064x}", "target": target,
                "warps": warps, "shared_bytes": shared, "registers": registers,
            }
        )  # fmt: skip
        for offset, precision in enumerate(precisions):
            self.dots.append(
                {
                    "artifact_id": number, "file": "/src/kern.py", "line": line + offset, "precision": precision,
                    "a_dtype": dtype, "b_dtype": dtype, "acc_dtype": "f32",
                }
            )  # fmt: skip
        return number

    def measure(self, name: str, metric: str, value: float, **more: Any) -> None:
        params = json.dumps(more.pop("params", {}))
        self.measurements.append(
            {"name": name, "metric": metric, "value": value, "unit": "1", "params": params, **more}
        )

    def build(self) -> Trace:
        tracks = [
            {"track_id": 0, "kind": "thread", "process_id": 7, "thread_id": 7},
            {"track_id": 1, "kind": "stream", "process_id": 0, "device": 0, "stream": 9},
        ]
        rows = {"tracks": tracks, **{name: getattr(self, name) for name in _TABLES}}
        tables = {
            name: schema.TABLES[name].build({c: [row.get(c) for row in each] for c in {k for row in each for k in row}})
            for name, each in rows.items()
        }
        return Trace(**tables, health=self.health, facts=Facts(**self.facts))


_TABLES = ("slices", "launches", "flows", "artifacts", "dots", "measurements")


def judge(detector: Detector, trace: Trace, **options: Any) -> tuple[RuleStatus, list[Finding]]:
    """What analyze makes of one rule on one trace."""
    from tracelens.analyzing import judge as core_judge

    return core_judge(trace.blind(), detector, Config(rules={detector.rule.code: options} if options else {}))
