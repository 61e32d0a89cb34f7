"""A Trace → one file that holds all its tables: a zip of Parquet files and what belongs to no table, as JSON.

Our own saved form: nothing is lost and it opens at once. The reader is `tracelens/readers/parquet.py`. The zip itself
does not compress, Parquet does, so any Parquet tool can read the members.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any, BinaryIO

import msgspec

from tracelens import schema
from tracelens.trace import Trace

FORMAT = "tracelens.tables/1"
HEAD = "tracelens-tables.json"
"""First member of the zip, so that its name stands within the first bytes."""


def write_tables(trace: Trace, file: BinaryIO) -> int:
    """Write one trace; returns the number of tables with rows. Same trace, same bytes."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "schema_version": schema.VERSION,
        "origin_unix_ns": trace.origin_unix_ns,
        "clock_halfwidth_ns": trace.clock_halfwidth_ns,
        "facts": trace.facts,
        "health": list(trace.health),
    }
    written = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(HEAD), msgspec.json.encode(head))
        for name, table in trace.tables().items():
            if table.height:
                content = io.BytesIO()
                table.write_parquet(content, compression="zstd")
                archive.writestr(zipfile.ZipInfo(f"{name}.parquet"), content.getvalue())
                written += 1
    return written
