"""Open a trace file as decompressed bytes, whatever its suffix says.

gzip (also several members, also cut short), zstd and plain files are recognised by content. Damage ends the stream
early with an entry in health instead of an exception; a compression bomb ends in one clear error. Knows no format.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from tracelens.errors import TracelensError
from tracelens.health import Health

BLOCK = 1 << 20
HEAD = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_PIECE = 1 << 15
"""Compressed bytes a step: all that damage inside a member can cost beyond the damage itself."""
MAX_RATIO = 1100
"""deflate cannot exceed about 1032:1; real traces reach 30:1, so more than that from zstd is a bomb."""
MAX_FREE = 1 << 28
"""Decompressed bytes below which the ratio is not looked at: 256 MiB harm nobody."""

MAX_LINE = 1 << 26
"""No line of a real text format reaches 64 MiB; more would be one object held in memory."""


class Stream:
    """Blocks of decompressed bytes of one file.

    `size` is the file's size on disk, `compression` one of "none", "gzip", "zstd"; `complete` turns False when the
    compressed data ended early or was damaged.
    """

    def __init__(self, path: Path, name: str, health: Health) -> None:
        self.name = name
        self.path = path
        self.complete = True
        self._health = health
        if path.exists() and not path.is_file():
            raise TracelensError(f"{name}: not a regular file", "name a trace file; `-` reads standard input")
        try:
            self.size = path.stat().st_size
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise unreadable(name, error) from error
        self.compression = "gzip" if magic[:2] == GZIP_MAGIC else "zstd" if magic == ZSTD_MAGIC else "none"

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """The content in pieces of about `size` bytes."""
        pieces = {"none": self._plain, "gzip": self._gzip, "zstd": self._zstd}[self.compression](size)
        produced = 0
        limit = max(MAX_FREE, self.size * MAX_RATIO)
        try:
            for piece in pieces:
                produced += len(piece)
                if produced > limit:
                    raise TracelensError(
                        f"{self.name}: decompresses to more than {MAX_RATIO} times its size",
                        "this looks like a compression bomb; decompress it yourself if you trust it",
                    )
                if piece:
                    yield piece
        except OSError as error:
            raise unreadable(self.name, error) from error

    def read(self) -> bytes:
        """All content at once."""
        return b"".join(self.blocks())

    def head(self, size: int = HEAD) -> bytes:
        """The first bytes of the content."""
        out = io.BytesIO()
        for piece in self.blocks(size):
            out.write(piece)
            if out.tell() >= size:
                break
        return out.getvalue()[:size]

    def lines(self, limit: int = MAX_LINE) -> Iterator[bytes]:
        """The lines without their ends; one longer than `limit` comes in pieces of about that size."""
        rest = b""
        for block in self.blocks():
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r")
            if len(rest) > limit:
                yield rest
                rest = b""
        if rest:
            yield rest

    def _plain(self, size: int) -> Iterator[bytes]:
        with self.path.open("rb", buffering=0) as file:
            while piece := file.read(size):
                yield piece

    def _gzip(self, size: int) -> Iterator[bytes]:
        from isal import isal_zlib

        with self.path.open("rb", buffering=0) as file:
            data = file.read(GZIP_PIECE)
            while data:
                member = isal_zlib.decompressobj(wbits=31)
                while not member.eof:
                    try:
                        yield member.decompress(data)
                    except isal_zlib.error as error:  # type: ignore[misc]
                        self._damaged(f"damaged gzip data ({error})", file.tell() - len(data))
                        return
                    if member.eof:
                        break
                    data = file.read(GZIP_PIECE)
                    if not data:
                        self._damaged("the gzip stream ends early (was the writer killed?)", file.tell())
                        return
                data = member.unused_data.lstrip(b"\0") or file.read(GZIP_PIECE)
                if data and not data.startswith(GZIP_MAGIC[: len(data)]):
                    self._damaged("what follows the gzip stream is not gzip", file.tell() - len(data))
                    return

    def _zstd(self, size: int) -> Iterator[bytes]:
        import zstandard

        with self.path.open("rb", buffering=0) as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            while True:
                try:
                    piece = reader.read(size)
                except zstandard.ZstdError as error:
                    self._damaged(f"damaged zstd data ({error})", file.tell())
                    return
                if not piece:
                    return
                yield piece

    def _damaged(self, says: str, at: int) -> None:
        self.complete = False
        self._health.add(
            "bytes.damaged-compression",
            "warning",
            f"{says}; everything before it was read",
            lost_bytes=self.size - at,
            where=f"{self.name}: byte {at:,} of {self.size:,}",
        )


def open_stream(path: Path, name: str, health: Health) -> Stream:
    """Open one file for reading. Raises TracelensError if it cannot be opened."""
    return Stream(path, name, health)


def unreadable(name: str, error: OSError) -> TracelensError:
    """One clear line for a file that the system will not give us."""
    reason = (error.strerror or str(error)).lower()
    hint = "check the path" if isinstance(error, FileNotFoundError) else "check permissions and the disk"
    return TracelensError(f"{name}: {reason}", hint)
