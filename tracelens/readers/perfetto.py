"""Native Perfetto traces (protobuf) → Trace, without the trace processor; needs only the `perfetto` package's messages.

Reads TrackEvents (also legacy ones), counters, flows, debug annotations, scheduler switches, stack samples and GPU
stages, on the trace's clock, and on CLOCK_REALTIME where a clock snapshot connects the two. The order of work: split
into packets, decode each in file order with its sequence's state, convert all times, sort, build slices.

What it does not read is counted by packet type (heap graphs, logs, Android's tables); traces of other machines merged
into the file are left out, because their clocks differ. Perfetto says nothing of ranks, steps or launch geometry.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.perfetto_batch import Batches
from tracelens.readers.perfetto_clocks import Clocks
from tracelens.readers.perfetto_events import CLEARED, NEEDS_STATE, TrackEvents
from tracelens.readers.perfetto_fast import MAX_BATCH, Way, single_runs, suited
from tracelens.readers.perfetto_losses import account
from tracelens.readers.perfetto_others import Others
from tracelens.readers.perfetto_packets import Block, Damage, Inflater, field, split
from tracelens.readers.perfetto_sequence import Sequence
from tracelens.readers.perfetto_sniff import TEXT
from tracelens.readers.perfetto_tables import tables
from tracelens.readers.perfetto_tracks import Tracks
from tracelens.trace import Facts, Trace

EVENT_FIELD, INTERNED_FIELD, ANNOTATION_FIELD = 11, 12, 4
MAX_LAYERS = 2
"""Compressed packets inside compressed packets; Perfetto writes one layer."""
IGNORED = frozenset(
    (
        "clock_snapshot", "trace_config", "trace_uuid", "system_info", "service_event", "synchronization_marker",
        "ui_state", "ftrace_stats", "trigger", "cpu_info", "trace_provenance", "chrome_metadata",
        "extension_descriptor",
    )
)  # fmt: skip
"""Packets about the recording itself, which hold no event."""


def read(source: Source, health: Health) -> Trace:
    """Read one file, in the way that suits its size; see `read_by`."""
    return read_by(None, source, health)


def read_by(way: Way | None, source: Source, health: Health) -> Trace:
    """Read one file in one way (`perfetto_fast`), which all give the same Trace; None for the one that suits its size.

    Raises TracelensError for text protos, compression bombs, and files without one whole packet.
    """
    stream = source.open(health)
    if TEXT.match(stream.head()):
        raise TracelensError(
            f"{source.name}: a Perfetto trace as text (textproto)",
            "convert it: protoc --encode=perfetto.protos.Trace … < trace.textproto > trace.pftrace",
        )
    decoder = Decoder(source.name, stream.size, way or suited(stream.size))
    with _no_gc():
        decoder.feed(split(stream.blocks(), decoder.damage, decoder.way.chain))
        if not decoder.packets:
            raise TracelensError(f"{source.name}: not one whole Perfetto packet", "was the recording cut? record again")
        decoder.others.close()
        made = tables(decoder.track_events, decoder.others.samples, decoder.tracks, decoder.clocks, decoder.losses)
    origin, halfwidth = made.origin_unix_ns, made.halfwidth_ns
    if source.alignment is not None:
        origin, halfwidth = source.alignment.offset_ns + made.base_ns, source.alignment.halfwidth_ns
    account(source.name, decoder, made, health)
    frames: Any = made.frames
    return Trace(
        origin_unix_ns=origin,
        clock_halfwidth_ns=halfwidth,
        health=health,
        facts=Facts(source_events=decoder.packets),
        **frames,
    )


@contextmanager
def _no_gc() -> Iterator[None]:
    """Millions of new rows make the collector run for nothing: half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Decoder:
    """Everything known so far of one file, fed packet by packet in file order."""

    def __init__(self, name: str, size: int, way: Way) -> None:
        from google.protobuf.message import DecodeError
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

        self.packets = 0
        self.losses: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.damage = Damage()
        self.clocks = Clocks()
        self.tracks = Tracks()
        self.track_events = TrackEvents(self.clocks, self.tracks, self.losses)
        self.others = Others(self.track_events, self.tracks, self.losses)
        self._sequences: dict[int, Sequence] = {}
        self._inflater = Inflater(name, size)
        self._parse = TracePacket.FromString
        self._undecodable = DecodeError
        self.way = way
        self._batches = Batches(self, self._argument, self._interned) if way.walk else None

    def feed(self, blocks: Iterator[Block], layer: int = 0) -> None:
        """Take packets in file order."""
        for block in blocks:
            if self._batches is None or self.way.walk is None:
                self._one_by_one(block, 0, len(block.starts), layer)
                continue
            for first in range(0, len(block.starts), MAX_BATCH):
                part = Block(block.data, *(each[first : first + MAX_BATCH] for each in (block.starts, block.ends)))
                for start, end in single_runs(part, self._batches, self.way.walk):
                    self._one_by_one(part, start, end, layer)

    def _one_by_one(self, block: Block, first: int, last: int, layer: int) -> None:
        """Take packets [first, last) of a block, each by itself."""
        parse, take = self._parse, self._take
        for body in block.bodies(first, last):
            self.packets += 1
            try:
                packet = parse(body)
            except self._undecodable:
                self.losses["bad-packets"] += 1
                self.damage.lost_bytes += len(body)
                continue
            take(packet, layer)

    def _argument(self, content: bytes) -> Any:
        """The DebugAnnotation with this content, parsed at the depth of a packet; None if it is none."""
        event = field(ANNOTATION_FIELD, content)
        try:
            return self._parse(field(EVENT_FIELD, event)).track_event.debug_annotations[0]
        except self._undecodable:
            return None

    def _interned(self, content: bytes) -> Any:
        """The InternedData with this content; None if it is none."""
        try:
            return self._parse(field(INTERNED_FIELD, content)).interned_data
        except self._undecodable:
            return None

    def sequence(self, sequence_id: int) -> Sequence:
        """The state of a packet sequence, made when first asked for."""
        found = self._sequences.get(sequence_id)
        if found is None:
            found = self._sequences[sequence_id] = Sequence(sequence_id)
        return found

    def _take(self, packet: Any, layer: int) -> None:
        which = packet.WhichOneof("data")
        if which in ("compressed_packets", "zstd_compressed_packets"):
            self._inflate(packet, which, layer)
            return
        if packet.machine_id:
            self.losses["other-machine"] += 1
            return
        sequence_id = packet.trusted_packet_sequence_id
        sequence = self.sequence(sequence_id)
        flags = packet.sequence_flags
        if flags & CLEARED or packet.incremental_state_cleared:
            sequence.clear()
        elif packet.previous_packet_dropped:
            sequence.valid = False
        if packet.previous_packet_dropped and not packet.first_packet_on_sequence:
            self.losses["dropped-by-writer"] += 1
        if packet.HasField("trace_packet_defaults"):
            sequence.take_defaults(packet.trace_packet_defaults)
        if packet.HasField("interned_data"):
            if sequence.valid:
                sequence.intern(packet.interned_data)
            else:
                self.losses["interned-data-skipped"] += 1
        if which == "clock_snapshot":
            self.clocks.snapshot(sequence_id, packet.clock_snapshot)
        elif flags & NEEDS_STATE and not sequence.valid:
            self.losses["needs-state"] += which is not None
        elif which == "track_event":
            self.track_events.take(packet, sequence)
        elif which in self.others.handlers:
            self.others.handlers[which](packet, sequence)
        elif which is None:
            state_only = flags & CLEARED or packet.HasField("interned_data") or packet.HasField("trace_packet_defaults")
            self.unread.update(() if state_only or packet.incremental_state_cleared else ("unknown",))
        elif which not in IGNORED:
            self.unread[which] += 1

    def _inflate(self, packet: Any, which: str, layer: int) -> None:
        data = getattr(packet, which)
        if layer >= MAX_LAYERS:
            self.losses["bad-compressed"] += 1
            self.damage.lost_bytes += len(data)
            return
        deflate = which == "compressed_packets"
        content, whole = self._inflater.deflated(data) if deflate else self._inflater.zstandard(data)
        inner = Damage()
        self.feed(split(iter((content,)), inner), layer + 1)
        if not whole or inner.broken or inner.truncated:
            self.losses["bad-compressed"] += 1
            self.damage.lost_bytes += inner.lost_bytes
