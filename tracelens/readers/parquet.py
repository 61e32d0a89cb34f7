"""Our own saved form (`tracelens convert -o x.parquet`) → the Trace it was written from, whole.

A zip of Parquet tables may come from anybody: sizes, columns, dtypes and every id are checked before a rule sees them.
It does not know the files that the trace was first read from.
"""

from __future__ import annotations

import io
import zipfile
from typing import Annotated, Any

import msgspec
import polars as pl

from tracelens import schema
from tracelens.contracts import Reader, Source
from tracelens.errors import TracelensError
from tracelens.health import Health, HealthEntry
from tracelens.trace import Facts, Trace

FORMAT = "tracelens.tables/1"
HEAD = "tracelens-tables.json"
MAX_ROWS = 100_000_000
"""Rows of one table; a constant column compresses without bound, and 100 million slices are some 10 GB in memory."""
HINT = "convert the trace again with `tracelens convert TRACE -o x.parquet`"

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_KEYS = {
    "slices": "slice_id", "tracks": "track_id", "steps": "step_id", "stacks": "stack_id", "frames": "frame_id",
    "artifacts": "artifact_id",
}  # fmt: skip
_REFERENCES = {
    "slices": {"track_id": "tracks", "parent_id": "slices", "step_id": "steps"},
    "launches": {"slice_id": "slices"},
    "flows": {"from_id": "slices", "to_id": "slices"},
    "counters": {"track_id": "tracks"},
    "samples": {"track_id": "tracks", "stack_id": "stacks"},
    "stacks": {"parent_id": "stacks", "frame_id": "frames"},
    "measurements": {"track_id": "tracks"},
    "dots": {"artifact_id": "artifacts"},
    "ticks": {"track_id": "tracks"},
}


class Head(msgspec.Struct):
    """What belongs to no table."""

    format: str
    schema_version: int
    origin_unix_ns: Int64 | None
    clock_halfwidth_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    facts: Facts
    health: list[HealthEntry]


def sniff(head: bytes, name: str) -> int:
    """Certain if the zip's first member is ours."""
    return 100 if head[:4] == b"PK\x03\x04" and HEAD.encode() in head[:100] else 0


def read(source: Source, health: Health) -> Trace:
    """Read one file. Raises TracelensError for anything in it that is not as it must be."""
    content = source.open(health).read()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
                raise TracelensError(f"{source.name}: a compressed zip, which tracelens does not write", HINT)
            raw = {name: archive.read(info) for name, info in members.items()}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise TracelensError(f"{source.name}: a damaged or cut zip ({error})", HINT) from error
    head = _head(source.name, raw.pop(HEAD, b""))
    unknown = sorted(name for name in raw if name.removesuffix(".parquet") not in schema.TABLES)
    if unknown:
        raise TracelensError(f"{source.name}: holds {unknown[0][:80]!r}, which is no table", HINT)
    tables: dict[str, Any] = {
        name.removesuffix(".parquet"): _table(source.name, name.removesuffix(".parquet"), data)
        for name, data in raw.items()
    }
    _check_ids(source.name, tables)
    for entry in head.health:
        health.add(**msgspec.structs.asdict(entry))
    return Trace(
        origin_unix_ns=head.origin_unix_ns,
        clock_halfwidth_ns=head.clock_halfwidth_ns,
        health=health,
        facts=head.facts,
        **tables,
    )


def _head(name: str, text: bytes) -> Head:
    try:
        head = msgspec.json.decode(text, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TracelensError(f"{name}: its {HEAD} is unreadable ({error})", HINT) from error
    if head.format != FORMAT or head.schema_version != schema.VERSION:
        raise TracelensError(
            f"{name}: written as {head.format[:40]!r} with tables of version {head.schema_version}, this tracelens "
            f"reads {FORMAT!r} and {schema.VERSION}",
            HINT,
        )
    return head


def _table(name: str, table: str, data: bytes) -> pl.DataFrame:
    try:
        rows = pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item()
        if rows > MAX_ROWS:
            raise TracelensError(f"{name}: {rows:,} rows in {table}, more than {MAX_ROWS:,}", HINT)
        made = schema.TABLES[table].build(pl.read_parquet(io.BytesIO(data)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise TracelensError(f"{name}: its table {table} is damaged ({reason})", HINT) from error
    if "dur_ns" in made.columns and (made["dur_ns"] < 0).any():
        raise TracelensError(f"{name}: table {table} holds a negative duration", HINT)
    return made


def _check_ids(name: str, tables: dict[str, pl.DataFrame]) -> None:
    """Keys are unique and every id leads to a row: joins elsewhere rely on it."""
    keys: dict[str, pl.Series] = {}
    for table, key in _KEYS.items():
        keys[table] = tables[table][key] if table in tables else pl.Series(key, [], dtype=pl.UInt32)
        if keys[table].n_unique() != len(keys[table]):
            raise TracelensError(f"{name}: table {table} has a {key} twice", HINT)
    for table, columns in _REFERENCES.items():
        for column, target in columns.items() if table in tables else ():
            ids = tables[table][column].drop_nulls()
            if not ids.is_in(keys[target].implode()).all():
                raise TracelensError(f"{name}: {column} of table {table} leads to no row of {target}", HINT)


READER = Reader("tables", "tables saved by `tracelens convert` (.parquet)", sniff, read)
