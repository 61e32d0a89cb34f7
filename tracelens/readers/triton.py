"""Triton compile artifacts: a kernel's TTIR and the metadata JSON beside it → tables `artifacts` and `dots`.

A Triton cache or dump folder is opened file by file. The `.ttir` file is the source; the JSON of the same stem gives
hash, target, warps and shared memory. What else such a folder holds (that JSON, TTGIR, LLVM IR, PTX, `.source`) is
recognised by the companion reader, which adds no rows: `.source` repeats the TTIR, and from TTGIR on the precision
that was asked for cannot be read any more ("tf32" stands in the PTX of tf32x3 too).

Text only: Triton is not imported, paths in locations are never opened. Does not know which artifact was launched, nor
registers unless the JSON has Triton's `n_regs` and `n_spills`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tracelens import schema
from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.mlir import Locations
from tracelens.streams import open_stream
from tracelens.trace import Facts, Trace

MAX_METADATA = 1 << 20
"""Metadata JSON is about 1 kB; more than 1 MiB is something else."""
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

_FUNCTION = re.compile(r'^\s*tt\.func public @(?:"([^"]+)"|([\w$.-]+))', re.MULTILINE)
_MODULE = re.compile(r"^module\b", re.MULTILINE)
_DOT = re.compile(r"tt\.dot[\s(]")
_GENERIC_DOT = re.compile(r'(?:^\s*|= )"tt\.dot"\(')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_DOT_TYPES = re.compile(
    r"\s:\s*tensor<(?:\d+x)+(\w+)>\s*\*\s*tensor<(?:\d+x)+(\w+)>\s*->\s*tensor<(?:\d+x)+(\w+)>\s*(?:loc\((.*)\)\s*)?$"
)
_DOT_ASKED = re.compile(
    r"tt\.dot\s+%[\w$.#-]+,\s*%[\w$.#-]+,\s*%[\w$.#-]+(?:,\s*inputPrecision = ([A-Za-z]\w*))?\s*(\{[^}]*\})?$"
)
_ALLOW_TF32 = re.compile(r"\ballowTF32 = (true|false)")
_LATER_IR = ("#ttg.", "ttg.num-warps", '"ttg.', "triton_gpu.", "#triton_gpu")


def _sniff(head: bytes, name: str) -> int:
    if b"tt.func" not in head or any(mark.encode() in head for mark in _LATER_IR) or b"IR Dump " in head:
        return 0
    if _stem(name, ".source") is not None or not re.search(rb"^module\b", head, re.MULTILINE):
        return 0
    return 95


def _sniff_companion(head: bytes, name: str) -> int:
    if head.lstrip()[:1] == b"{":
        metadata = all(key in head for key in (b'"num_warps"', b'"target"', b'"hash"'))
        return 90 if metadata or head.lstrip().startswith(b'{"child_paths"') else 0
    if b"tt.func" in head:
        return 0 if _sniff(head, name) else 90
    if b".visible .entry" in head and re.search(rb"^\.target sm_", head, re.MULTILINE):
        return 90
    return 90 if b"source_filename = " in head and _stem(name, ".llir") is not None else 0


def _read(source: Source, health: Health) -> Trace:
    stream = source.open(health)
    text = stream.read().decode("utf-8", "replace")
    function = _FUNCTION.search(text)
    if function is None:
        raise TracelensError(f"{source.name}: TTIR without a kernel (no `tt.func public`)", "is the file complete?")
    if len(_MODULE.findall(text)) > 1:
        raise TracelensError(
            f"{source.name}: several modules in one file", "give the .ttir file of a cache or dump folder, not a log"
        )
    metadata = _metadata(source, health)
    name = function.group(1) or function.group(2)
    dots = _dots(text, source.name, health)
    return Trace(
        artifacts=schema.ARTIFACTS.build(
            {
                "artifact_id": [0],
                "kernel": [name],
                "hash": [_text(metadata.get("hash"))],
                "target": [_target(metadata.get("target"))],
                "warps": [_integer(metadata.get("num_warps"), MAX_INT32)],
                "shared_bytes": [_integer(metadata.get("shared"), MAX_INT64)],
                "registers": [_integer(metadata.get("n_regs"), MAX_INT32)],
                "spills": [_integer(metadata.get("n_spills"), MAX_INT32)],
            }
        ),
        dots=dots,
        health=health,
        facts=_facts(metadata),
    )


def _dots(text: str, name: str, health: Health) -> Any:
    """The `dots` table of one module; what cannot be read is counted in health."""
    lines = text.split("\n")
    locations = Locations(lines)
    columns: dict[str, list[Any]] = {column: [] for column in schema.DOTS.dtypes}
    unreadable: list[int] = []
    unplaced: list[int] = []
    for number, line in enumerate(lines, 1):
        if "tt.dot" not in line or not _is_dot(line):
            continue
        types = _DOT_TYPES.search(line)
        precision = _precision(line[: types.start()]) if types else None
        if types is None or precision is None:
            unreadable.append(number)
            continue
        where = locations.resolve(types.group(4)) if types.group(4) is not None else None
        if where is None:
            unplaced.append(number)
        row = (0, where and where.file, where and where.line, precision, *types.group(1, 2, 3))
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    if not any(line.rstrip() == "}" or line.startswith("} loc(") for line in lines):
        health.add(
            "triton.ttir-cut",
            "warning",
            "The TTIR ends before its module does: dots after that point are unknown.",
            need="dots",
            where=name,
        )
    _note(
        health, "triton.dot-unreadable", "dot operations are in a form that this reader does not know", unreadable, name
    )
    _note(health, "triton.dot-unplaced", "dot operations have no readable source location", unplaced, name, "info")
    return schema.DOTS.build(columns)


def _is_dot(line: str) -> bool:
    """Whether the operation is a dot; the text of strings (paths, names) does not count."""
    return bool(_DOT.search(_STRING.sub('""', line)) or _GENERIC_DOT.search(line))


def _note(health: Health, code: str, says: str, lines: list[int], name: str, severity: Any = "warning") -> None:
    if lines:
        where = f"{name}: line {lines[0]}" + (f" and {len(lines) - 1} more" if len(lines) > 1 else "")
        need = "dots" if severity == "warning" else None
        health.add(code, severity, f"{len(lines)} {says}.", need=need, count=len(lines), where=where)


def _precision(operation: str) -> str | None:
    """What the dot asked for; None if anything stands there that is not understood, e.g. MLIR's generic form."""
    found = _DOT_ASKED.search(operation)
    if found is None:
        return None
    named, attributes = found.groups()
    if named is None and (old := _ALLOW_TF32.search(attributes or "")):
        return "tf32" if old.group(1) == "true" else "ieee"
    return named.lower() if named else "ieee"


def _metadata(source: Source, health: Health) -> dict[str, Any]:
    """The JSON object beside a TTIR file, {} with an entry in health where there is none."""
    stem = _stem(source.path.name, ".ttir")
    sibling = source.path.with_name(f"{stem}.json") if stem is not None else None
    if sibling is None or not sibling.is_file():
        health.add(
            "triton.no-metadata",
            "info",
            "No metadata JSON beside the TTIR: hash, warps and shared memory are unknown.",
            where=source.name,
        )
        return {}
    metadata = _object(open_stream(sibling, sibling.name, health).head(MAX_METADATA))
    if not metadata:
        health.add(
            "triton.metadata-damaged",
            "warning",
            "The metadata JSON beside the TTIR is not readable: hash, warps and shared memory are unknown.",
            need="artifacts",
            where=source.name,
        )
    return metadata


def _read_companion(source: Source, health: Health) -> Trace:
    head = source.open(health).head(MAX_METADATA)
    metadata = _object(head) if head.lstrip()[:1] == b"{" else {}
    return Trace(health=health, facts=_facts(metadata))


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _facts(metadata: dict[str, Any]) -> Facts:
    version = _text(metadata.get("triton_version"))
    return Facts(versions={"triton": version} if version else {})


def _target(value: Any) -> str | None:
    if not isinstance(value, dict):
        return _text(value)
    parts = [str(value[key]) for key in ("backend", "arch") if isinstance(value.get(key), str | int)]
    return ":".join(parts) or None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _integer(value: Any, largest: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest else None


def _stem(name: str, suffix: str) -> str | None:
    """The name without `suffix` and a compression suffix, or None if it has another one."""
    plain = Path(name).name
    for packed in (".gz", ".zst"):
        plain = plain.removesuffix(packed)
    return plain.removesuffix(suffix) if plain.endswith(suffix) else None


READERS = (
    Reader("triton", "Triton IR of compiled kernels (.ttir of a cache or dump folder)", _sniff, _read),
    Reader(
        "triton-companion",
        "what lies beside a .ttir file (metadata, later IR): adds no events",
        _sniff_companion,
        _read_companion,
    ),
)
