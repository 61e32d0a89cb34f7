"""The JSON presenter: the Report as strict JSON, the same bytes for the same report.

ASCII only: names from a trace may hold terminal control characters, and this is printed on terminals too.
"""

from __future__ import annotations

import json
import math
from typing import Any, TextIO

import msgspec

from tracelens.contracts import Presenter
from tracelens.errors import TracelensError
from tracelens.finding import Report


def render(report: Report, stream: TextIO, color: bool, width: int) -> None:
    """Write the report as indented JSON. Raises TracelensError if a rule reported a number that is not finite."""
    stream.write(dumps(msgspec.to_builtins(report, order="deterministic")))


def dumps(value: Any) -> str:
    """Any plain value as indented strict JSON with a newline at its end."""
    return json.dumps(_strict(value, "report"), indent=2, allow_nan=False) + "\n"


def _strict(value: Any, path: str) -> Any:
    """The value with lone surrogates (bytes of a path that are not UTF-8) replaced: JSON cannot carry them."""
    if isinstance(value, dict):
        return {_strict(key, path): _strict(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        raise TracelensError(
            f"{path} is not a finite number", "this is a defect of the rule that computed it: report it"
        )
    return value


PRESENTER = Presenter("json", "strict JSON, schema tracelens.report/1 (`tracelens explain --schema`)", render)
