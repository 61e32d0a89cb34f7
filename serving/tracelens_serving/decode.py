"""The decode process: receives KV into its slots and continues each request greedily, several at a time.

Runs as `python -m tracelens_serving.decode`, started by the launcher. It holds all experts and does not know which rank
computed a prompt.
"""

from __future__ import annotations

import hashlib
import json
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

import torch
from torch.profiler import record_function

from tracelens_serving.control import Control, Handoff, run_role
from tracelens_serving.kv_transfer import kv_receiver
from tracelens_serving.model import KV_DTYPE, Model
from tracelens_serving.settings import WORLD_SIZE, Settings


@dataclass
class Sequence:
    """A request that is being continued."""

    request: int
    slot: int
    tokens: list[int] = field(default_factory=list)  # new ones; the first came from prefill


class KvSlots:
    """Memory for the KV of `decode.slots` requests, filled by the receiving threads and read by the decoding one."""

    def __init__(self, settings: Settings):
        self.prompt_tokens = settings.load.prompt_tokens
        layers, width = settings.model.layers, 2 * settings.model.hidden
        received = [
            bytearray(layers * self.prompt_tokens * width * KV_DTYPE.itemsize) for _ in range(settings.decode.slots)
        ]
        self._views = [memoryview(buffer) for buffer in received]
        self._prompts = [torch.frombuffer(b, dtype=KV_DTYPE).view(layers, -1, width) for b in received]
        self._contexts = torch.empty(len(received), layers, self.prompt_tokens + settings.load.new_tokens, width)
        self._free: queue.Queue[int] = queue.Queue()
        for slot in range(settings.decode.slots):
            self._free.put(slot)
        self._slots: dict[int, int] = {}  # of requests that are not complete
        self.ready: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()

    def place(self, request: int) -> memoryview:
        """Return the memory for a request's KV; waits for a free slot at its first block."""
        if request not in self._slots:
            self._slots[request] = self._free.get()
        return self._views[self._slots[request]]

    def complete(self, request: int, first_token: int) -> None:
        """Hand a request whose KV is there to the decoding thread."""
        self.ready.put(Sequence(request, self._slots.pop(request), [first_token]))

    def closed(self) -> None:
        """Tell the decoding thread that one link is closed."""
        self.ready.put(None)

    def open(self, slot: int) -> torch.Tensor:
        """Return a float32 context `[layers, prompt + new tokens, 2 * hidden]` that starts with the received KV."""
        context = self._contexts[slot]
        context[:, : self.prompt_tokens] = self._prompts[slot]
        return context

    def release(self, slot: int) -> None:
        """Let another request use the slot."""
        self._free.put(slot)


class Decoder:
    """Continues batches of sequences."""

    def __init__(self, handoff: Handoff, slots: KvSlots):
        self.settings = handoff.settings
        self.slots = slots
        self.model = Model(self.settings.model, handoff.seed, range(self.settings.model.experts))
        self.steps = 0

    def finish(self, batch: list[Sequence]) -> None:
        """Decode all new tokens of a batch and free its slots."""
        contexts = [self.slots.open(sequence.slot) for sequence in batch]
        for length in range(self.slots.prompt_tokens, self.slots.prompt_tokens + self.settings.load.new_tokens - 1):
            with record_function(f"execute_context_0(0)_generation_{len(batch)}({len(batch)})"):
                self._step(batch, contexts, length)
        for sequence in batch:
            self.slots.release(sequence.slot)

    def _step(self, batch: list[Sequence], contexts: list[torch.Tensor], length: int) -> None:
        """Add one token to each sequence; `length` tokens of each context are there."""
        hidden = self.model.embed(torch.tensor([sequence.tokens[-1] for sequence in batch]))
        for layer, block in enumerate(self.model.blocks):
            queries, keys_values = block.project(hidden)
            read = []
            for row, context in enumerate(contexts):
                cached = context[layer]
                cached[length] = keys_values[row]
                read.append(block.attend(queries[row : row + 1], cached[: length + 1], causal=False))
            hidden = self.model.mix_experts(block, hidden + torch.cat(read) @ block.out)
        for sequence, token in zip(batch, self.model.next_tokens(hidden).tolist(), strict=True):
            sequence.tokens.append(token)
        self.steps += 1


def next_batch(ready: queue.SimpleQueue[Sequence | None], most: int) -> tuple[list[Sequence], int]:
    """Wait for a request, add those that are there too; return them and how many links were found closed."""
    batch, closed = [], 0
    while not batch or not ready.empty():
        sequence = ready.get()
        if sequence is None:
            closed += 1
            if not batch:
                break
        else:
            batch.append(sequence)
        if len(batch) == most:
            break
    return batch, closed


def decode(handoff: Handoff, control: Control) -> dict:
    """Decode whatever arrives until every prefill rank has closed its link; return the report."""
    torch.set_num_threads(1)
    listener = socket.socket(fileno=handoff.listener_fd)
    slots = KvSlots(handoff.settings)
    with torch.inference_mode():
        decoder = Decoder(handoff, slots)
        for number in range(WORLD_SIZE):
            receive = (listener, slots.place, slots.complete, slots.closed)
            threading.Thread(target=kv_receiver, args=receive, name=f"kv_receiver_{number}", daemon=True).start()
        control.on_stop = lambda: [slots.closed() for _ in range(WORLD_SIZE)]
        control.ready()
        begun_cpu = time.process_time()
        done: list[Sequence] = []
        links = WORLD_SIZE
        while links > 0:
            batch, closed = next_batch(slots.ready, handoff.settings.decode.max_batch)
            if batch:
                decoder.finish(batch)
            done += batch
            links -= closed
    outputs = sorted((sequence.request, sequence.tokens) for sequence in done)
    return {
        "requests": len(done),
        "tokens": sum(len(sequence.tokens) for sequence in done),
        "steps": decoder.steps,
        "cpu_s": round(time.process_time() - begun_cpu, 4),
        "outputs_sha256": hashlib.sha256(json.dumps(outputs).encode()).hexdigest(),
    }


if __name__ == "__main__":
    sys.exit(run_role(decode))
