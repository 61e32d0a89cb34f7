"""Recognises native Perfetto traces, and loads what decodes them only when there is one to read."""

from __future__ import annotations

import re

from tracelens.contracts import Reader, Source
from tracelens.health import Health
from tracelens.readers.perfetto_packets import looks_like_packets
from tracelens.trace import Trace

KNOWN_FIELDS = frozenset(range(1, 140)) | {900, 1000}
TEXT = re.compile(rb"(?:\s|#[^\n]*\n)*packet\s*:?\s*\{")


def sniff(head: bytes, name: str) -> int:
    """Certain after two packets with fields that a packet has; text protos are recognised in order to refuse them."""
    return 90 if TEXT.match(head) else looks_like_packets(head, KNOWN_FIELDS)


def read(source: Source, health: Health) -> Trace:
    """Read one file; see `tracelens.readers.perfetto`."""
    from tracelens.readers import perfetto

    return perfetto.read(source, health)


READER = Reader("perfetto", "native Perfetto traces", sniff, read)
