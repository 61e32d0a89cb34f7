"""Expert parallelism over two ranks of one host: tokens go to the rank that holds their expert, and come back.

The tokens lie in shared memory; `native/deep_ep.c` counts steps and waits. Every rank computes its micro-batches
alternately, so the peer's answers to one are in place when the dispatch of the next has returned: a combine never waits
on the host. This module does not know of requests, attention or the KV cache.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from tracelens_serving import native
from tracelens_serving.model import Block, Routing
from tracelens_serving.settings import WORLD_SIZE, Settings

FLOAT_BYTES = 4
COUNT_BYTES = 8
TURNS = 2  # mailboxes that a rank uses in turn: the ranks are never more than one step apart
PAGE = 4096  # the header of deep_ep.c has the first page


@dataclass
class Pending:
    """Tokens of this rank whose answers the peer owes."""

    step: int
    routing: Routing  # of those tokens only


class Mailbox:
    """What one rank sends in one step: token rows, their count for each expert, and answers to the peer's rows."""

    def __init__(self, mapping: mmap.mmap, offset: int, settings: Settings):
        hidden, experts, rows = settings.model.hidden, settings.model.experts // WORLD_SIZE, _rows(settings)

        def view(count: int, dtype: torch.dtype, at: int) -> Tensor:
            return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset + at)

        size = rows * hidden * FLOAT_BYTES
        self.rows = view(rows * hidden, torch.float32, 0).view(rows, hidden)
        self.answers = view(rows * hidden, torch.float32, size).view(rows, hidden)
        self.counts = view(experts, torch.int64, 2 * size)


class ExpertParallel:
    """This rank's half of the experts, and the way to the other half."""

    def __init__(self, shared_fd: int, rank: int, settings: Settings):
        """Map `shared_fd`, an empty or equally long memory file that both ranks have."""
        mailbox = _mailbox_bytes(settings)
        os.ftruncate(shared_fd, PAGE + WORLD_SIZE * TURNS * mailbox)
        mapping = mmap.mmap(shared_fd, 0)
        self.buffer = native.load().Buffer(
            mapping,
            rank,
            wait=settings.ep.wait,
            release_gil=settings.ep.release_gil,
            timeout_s=settings.ep.timeout_s,
        )
        self.experts = local_experts(rank, settings)
        boxes = [
            [Mailbox(mapping, PAGE + (r * TURNS + turn) * mailbox, settings) for turn in range(TURNS)]
            for r in range(WORLD_SIZE)
        ]
        self.mine, self.peers = boxes[rank], boxes[1 - rank]

    def mix_experts(self, block: Block, hidden: Tensor) -> Pending:
        """Add the answers of this rank's experts to `hidden [tokens, hidden]`, and serve the peer's tokens."""
        rows, routing = block.route(hidden)
        here, there = self._divide(routing)
        received, counts = self._dispatch(rows, there)
        inputs = rows[here.tokens].split(here.counts)
        peer_inputs = received.split(counts)
        answers, peer_answers = [], []
        for e, own, foreign in zip(self.experts, inputs, peer_inputs, strict=True):
            if len(own) + len(foreign):
                both = block.expert(e, torch.cat([own, foreign]))
                answers.append(both[: len(own)])
                peer_answers.append(both[len(own) :])
        if answers:
            hidden.index_add_(0, here.tokens, torch.cat(answers) * here.weights)
            torch.cat(peer_answers, out=self.mine[self.buffer.step % TURNS].answers[: len(received)])
        self.buffer.intranode_combine()
        return Pending(self.buffer.step, there)

    def collect(self, pending: Pending, hidden: Tensor) -> None:
        """Add the peer's answers to `hidden`; at least one dispatch must have followed that of `pending`."""
        if not self.buffer.has_combined(pending.step):
            raise RuntimeError(f"the peer has not combined step {pending.step}")
        answers = self.peers[pending.step % TURNS].answers[: len(pending.routing.tokens)]
        hidden.index_add_(0, pending.routing.tokens, answers * pending.routing.weights)

    def announce(self, waiting: int) -> int:
        """Tell the peer how many requests wait at this rank, and return how many wait at the peer."""
        return self.buffer.intranode_dispatch(waiting)

    def _dispatch(self, rows: Tensor, there: Routing) -> tuple[Tensor, list[int]]:
        """Send the peer its rows; return the peer's rows `[received, hidden]` and their count for each expert."""
        turn = (self.buffer.step + 1) % TURNS
        outbox, sent = self.mine[turn], len(there.tokens)
        torch.index_select(rows, 0, there.tokens, out=outbox.rows[:sent])
        outbox.counts.copy_(torch.tensor(there.counts))
        received = self.buffer.intranode_dispatch(sent)
        inbox = self.peers[turn]
        return inbox.rows[:received], inbox.counts.tolist()

    def _divide(self, routing: Routing) -> tuple[Routing, Routing]:
        """Return the choices of this rank's experts, and those of the peer's."""
        half = len(routing.counts) // WORLD_SIZE
        split = sum(routing.counts[:half])
        low = Routing(routing.tokens[:split], routing.weights[:split], routing.counts[:half])
        high = Routing(routing.tokens[split:], routing.weights[split:], routing.counts[half:])
        return (low, high) if self.experts.start == 0 else (high, low)


def local_experts(rank: int, settings: Settings) -> range:
    """Return the numbers of the experts that a rank holds."""
    share = settings.model.experts // WORLD_SIZE
    return range(rank * share, (rank + 1) * share)


def _rows(settings: Settings) -> int:
    """Return the most rows that a rank can send in a step: all its choices."""
    return settings.load.prompt_tokens * settings.model.top_k


def _mailbox_bytes(settings: Settings) -> int:
    rows = 2 * _rows(settings) * settings.model.hidden * FLOAT_BYTES
    return -(-(rows + settings.model.experts // WORLD_SIZE * COUNT_BYTES) // PAGE) * PAGE
