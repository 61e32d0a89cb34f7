"""The KV cache on its way from a prefill rank to the decode process, block by block over a loopback TCP connection.

A block is sent when the one before it has been acknowledged, as Mooncake's synchronous transfers are. Prefill frees a
slot when its last block has been acknowledged. This module does not know what is in a block.
"""

from __future__ import annotations

import queue
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tracelens_serving.errors import ServingError
from tracelens_serving.report import quantiles_ms

HEADER = struct.Struct("<qqqq")  # request, offset in its KV, bytes (0: the request is complete), first new token
ACK = b"k"
SO_MAX_PACING_RATE = 47  # Linux; the socket module does not name it


@dataclass
class Chunk:
    """Consecutive KV of one request; without any bytes it says that the request is complete."""

    request: int
    slot: int
    offset: int = 0  # bytes from the start of the request's KV
    size: int = 0
    first_token: int = 0
    queued_ns: int = field(default_factory=time.perf_counter_ns)


class KvSender:
    """The sending side: `transfer_worker` is the body of a thread, the other methods are for the computing thread."""

    def __init__(self, link: socket.socket, slots: list[bytearray], block_bytes: int, bytes_per_s: int):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if bytes_per_s:
            link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)
        self.link = link
        self.views = [memoryview(slot) for slot in slots]
        self.block_bytes = block_bytes
        self.chunks: queue.Queue[Chunk | None] = queue.Queue()
        self.free: queue.Queue[int] = queue.Queue()
        for slot in range(len(slots)):
            self.free.put(slot)
        self.block_ns: list[int] = []
        self.lag_ns: list[int] = []
        self.bytes = self.busy_ns = self.busy_until_ns = 0
        self.lost = False

    def take_slot(self) -> int:
        """Wait for a free slot; ServingError when the link is lost."""
        slot = self.free.get()
        self.check()
        return slot

    def check(self) -> None:
        """Raise ServingError when the link is lost."""
        if self.lost:
            raise ServingError("the KV link to decode is lost")

    def transfer_worker(self) -> None:
        """Move chunks until there is `None`; then close the link."""
        try:
            while (chunk := self.chunks.get()) is not None:
                self.send_chunk(chunk)
        except OSError:
            self.lost = True
            self.free.put(-1)  # wakes a computing thread that waits for a slot
        finally:
            self.link.close()

    def send_chunk(self, chunk: Chunk) -> None:
        """Send the blocks of a chunk, or say that its request is complete and free the slot."""
        view = self.views[chunk.slot]
        end = chunk.offset + chunk.size
        for start in range(chunk.offset, end, self.block_bytes):
            block = view[start : min(start + self.block_bytes, end)]
            begun = time.perf_counter_ns()
            self.send_block(HEADER.pack(chunk.request, start, len(block), 0), block)
            self.block_ns.append(time.perf_counter_ns() - begun)
            self.bytes += len(block)
        if not chunk.size:
            self.send_block(HEADER.pack(chunk.request, 0, 0, chunk.first_token), b"")
            self.free.put(chunk.slot)
        done = time.perf_counter_ns()
        self.busy_ns += done - max(chunk.queued_ns, self.busy_until_ns)
        self.busy_until_ns = done
        if not chunk.size:
            self.lag_ns.append(done - chunk.queued_ns)

    def send_block(self, header: bytes, block: memoryview | bytes) -> None:
        """Send one block and wait until the peer has it."""
        self.link.sendall(header)
        if block:
            self.link.sendall(block)
        if not self.link.recv(len(ACK)):
            raise ConnectionResetError

    def report(self) -> dict:
        """Say what was moved. Busy is the time in which there was something to move, waiting in the queue included."""
        return {
            "bytes": self.bytes,
            "blocks": len(self.block_ns),
            "busy_s": round(self.busy_ns / 1e9, 4),
            "busy_mb_per_s": round(self.bytes * 1e3 / max(self.busy_ns, 1), 3),
            "block_ms": quantiles_ms(self.block_ns),
            "lag_ms": quantiles_ms(self.lag_ns),
        }


def kv_receiver(
    listener: socket.socket,
    place: Callable[[int], memoryview],
    complete: Callable[[int, int], None],
    closed: Callable[[], None],
) -> None:
    """Accept one sender and receive its blocks into `place(request)` until it closes the link; the body of a thread.

    `complete(request, first_token)` is called when all of a request's KV is there, `closed()` at the end.
    """
    link, _ = listener.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    header = memoryview(bytearray(HEADER.size))
    try:
        while _receive(link, header):
            request, offset, size, first_token = HEADER.unpack(header)
            if size and not _receive(link, place(request)[offset : offset + size]):
                break
            if not size:
                complete(request, first_token)
            link.sendall(ACK)
    except ConnectionError:
        pass  # the sender died: whoever supervises it says so
    finally:
        link.close()
        closed()


def _receive(link: socket.socket, view: memoryview) -> bool:
    """Fill `view`; False when the link is closed before."""
    while view:
        count = link.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True
