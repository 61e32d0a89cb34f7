"""A window on a byte stream that moves forward: read on, look ahead, drop. Knows nothing of what the bytes mean."""

from __future__ import annotations

from tracelens.streams import BLOCK, Stream


class Window:
    """`buffer` holds the content from byte `base` on; `final` says that nothing follows it."""

    def __init__(self, stream: Stream) -> None:
        self.buffer = b""
        self.base = 0
        self.final = False
        self._blocks = stream.blocks(BLOCK)

    def read(self, size: int) -> None:
        """Append at least `size` bytes, or all there are."""
        pieces = [self.buffer]
        while size > 0 and not self.final:
            piece = next(self._blocks, None)
            if piece is None:
                self.final = True
            else:
                pieces.append(piece)
                size -= len(piece)
        self.buffer = b"".join(pieces)

    def grow(self) -> None:
        """Twice the content, at least one block more: repeated growth costs linear time."""
        self.read(max(BLOCK, len(self.buffer)))

    def fill(self) -> None:
        """At least one block of content, if there is so much."""
        self.read(BLOCK - len(self.buffer))

    def drop(self, count: int) -> None:
        """Move past the first `count` bytes."""
        self.buffer = self.buffer[count:]
        self.base += count

    def peek(self) -> str:
        """Move past white space; the character there, "" at the end."""
        while not (content := self.buffer.lstrip(b" \t\r\n")) and not self.final:
            self.drop(len(self.buffer))
            self.read(BLOCK)
        self.drop(len(self.buffer) - len(content))
        return content[:1].decode("latin-1")

    def discard(self) -> int:
        """Move past everything that is left; returns how many bytes that was."""
        start = self.base
        while self.buffer or not self.final:
            self.drop(len(self.buffer))
            self.read(BLOCK)
        return self.base - start
