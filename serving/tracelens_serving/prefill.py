"""A prefill rank: computes prompts, gives their KV to the transfer thread, and hosts half of the experts.

Runs as `python -m tracelens_serving.prefill`, started by the launcher. It does not know what becomes of the KV, nor how
the peer is reached.
"""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.profiler import record_function

from tracelens_serving.control import Control, Handoff, run_role
from tracelens_serving.expert_parallel import ExpertParallel, Pending
from tracelens_serving.kv_transfer import Chunk, KvSender
from tracelens_serving.model import KV_DTYPE, Model, prompt
from tracelens_serving.settings import MICRO_BATCHES, WORLD_SIZE


@dataclass
class MicroBatch:
    """One request on its way through the layers; without a request it is idle and only serves the peer's tokens."""

    request: int | None
    slot: int
    hidden: Tensor  # [tokens, hidden]
    pending: Pending | None = None


class PrefillRank:
    """The engine of one rank."""

    def __init__(self, handoff: Handoff):
        settings = self.settings = handoff.settings
        self.seed = handoff.seed
        self.ep = ExpertParallel(handoff.shared_fd, handoff.rank, settings)
        self.model = Model(settings.model, handoff.seed, self.ep.experts)
        self.layer_shape = (settings.load.prompt_tokens, 2 * settings.model.hidden)
        self.layer_bytes = self.layer_shape[0] * self.layer_shape[1] * KV_DTYPE.itemsize
        slots = [bytearray(settings.model.layers * self.layer_bytes) for _ in range(settings.kv.slots)]
        self.slots = [torch.frombuffer(slot, dtype=KV_DTYPE).view(-1, *self.layer_shape) for slot in slots]
        link = socket.create_connection(("127.0.0.1", handoff.port))
        self.sender = KvSender(link, slots, settings.kv.block_bytes, settings.kv.link_bytes_per_s)
        self.steps = self.requests = 0

    def step(self, requests: list[int], waiting: int) -> int:
        """Prefill up to `MICRO_BATCHES` requests; tell the peer how many wait here, return how many wait there."""
        batches = [self._start(request) for request in requests]
        batches += [self._start(None) for _ in range(MICRO_BATCHES - len(batches))]
        for layer in range(len(self.model.blocks)):
            for batch in batches:
                self._layer(layer, batch)
        peer_waiting = self.ep.announce(waiting)
        for batch in batches:
            self.ep.collect(batch.pending, batch.hidden)
            if batch.request is not None:
                first_token = int(self.model.next_tokens(batch.hidden[-1:]))
                self.sender.chunks.put(Chunk(batch.request, batch.slot, first_token=first_token))
        self.steps += 1
        self.requests += len(requests)
        return peer_waiting

    def _start(self, request: int | None) -> MicroBatch:
        if request is None:
            return MicroBatch(None, 0, torch.zeros(0, self.settings.model.hidden))
        tokens = prompt(self.seed, request, self.settings.load.prompt_tokens, self.settings.model.vocab)
        return MicroBatch(request, self.sender.take_slot(), self.model.embed(tokens))

    def _layer(self, layer: int, batch: MicroBatch) -> None:
        block = self.model.blocks[layer]
        if batch.pending:
            self.ep.collect(batch.pending, batch.hidden)
        if batch.request is not None:
            queries, keys_values = block.project(batch.hidden)
            cached = self.slots[batch.slot][layer]
            cached.copy_(keys_values)
            self.sender.chunks.put(Chunk(batch.request, batch.slot, layer * self.layer_bytes, self.layer_bytes))
            batch.hidden += block.attend(queries, cached, causal=True) @ block.out
        batch.pending = self.ep.mix_experts(block, batch.hidden)


def assigned(handoff: Handoff) -> Iterator[int]:
    """Return the requests of this rank in order: every `WORLD_SIZE`-th of them."""
    mine = itertools.count(handoff.rank, WORLD_SIZE)
    return mine if handoff.requests is None else itertools.takewhile(lambda request: request < handoff.requests, mine)


def prefill(handoff: Handoff, control: Control) -> dict:
    """Prefill this rank's requests until both ranks have none left; return the rank's report."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        rank = PrefillRank(handoff)
        worker = threading.Thread(target=rank.sender.transfer_worker, name="transfer_worker", daemon=True)
        worker.start()
        control.ready()
        begun, begun_cpu = time.perf_counter(), time.process_time()
        deadline = begun + (handoff.seconds or float("inf"))
        upcoming = assigned(handoff)
        requests, peer_waiting = list(itertools.islice(upcoming, MICRO_BATCHES)), MICRO_BATCHES
        while requests or peer_waiting:
            stop = control.stopping.is_set() or time.perf_counter() >= deadline
            following = [] if stop else list(itertools.islice(upcoming, MICRO_BATCHES))
            tokens = len(requests) * handoff.settings.load.prompt_tokens
            with record_function(f"execute_context_{len(requests)}({tokens})_generation_0(0)"):
                peer_waiting = rank.step(requests, len(following))
            requests = following
        wall, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        rank.sender.chunks.put(None)
        worker.join()
        rank.sender.check()
    buffer = rank.ep.buffer
    return {
        "rank": handoff.rank,
        "requests": rank.requests,
        "steps": rank.steps,
        "wall_s": round(wall, 4),
        "cpu_s": round(cpu, 4),
        "dispatch": {
            "calls": buffer.dispatches,
            "mean_wait_ms": round(buffer.wait_ns / buffer.dispatches / 1e6, 4),
            "share": round(buffer.wait_ns / 1e9 / wall, 4),
        },
        "kv": rank.sender.report(),
    }


if __name__ == "__main__":
    sys.exit(run_role(prefill))
