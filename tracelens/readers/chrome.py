"""Any other Chrome trace JSON → Trace: complete, begin/end, async, instant, counter and flow events.

What the format does not say: when the recording was made (its clock has no origin), and what a category means.
"""

from __future__ import annotations

import re

from tracelens.contracts import Reader, Source
from tracelens.health import Health
from tracelens.readers import kineto
from tracelens.trace import Trace

LIKELY = 50
_EVENT = re.compile(rb'"ph"\s*:\s*"[A-Za-z]"')
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:')


def sniff(head: bytes, name: str) -> int:
    """Likely where events or their key are in sight."""
    if not kineto.json_score(head):
        return 0
    if _EVENT.search(head) or _EVENTS_KEY.search(head):
        return LIKELY
    return 0


def read(source: Source, health: Health) -> Trace:
    """The file's Trace. Raises TracelensError if it holds no events to save."""
    return kineto.read_json(source, health, kineto=False)


READER = Reader("chrome", "Chrome trace JSON", sniff, read)
