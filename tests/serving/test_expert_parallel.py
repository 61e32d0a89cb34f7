"""Two ranks that share the experts compute what one process with all experts computes."""

import os
import threading

import pytest

torch = pytest.importorskip("torch")

from tracelens_serving.settings import resolve  # noqa: E402

SMALL = {"model.layers": 2, "model.hidden": 32, "model.expert_hidden": 16, "load.prompt_tokens": 24}


def test_two_ranks_agree_with_one_process(deep_ep):
    from tracelens_serving.expert_parallel import ExpertParallel, local_experts
    from tracelens_serving.model import Model, prompt

    settings = resolve(SMALL)
    whole = Model(settings.model, 1, range(settings.model.experts))
    lengths = ((24, 0), (7, 24))  # of the two micro-batches of each rank; one of them is idle
    expected, computed, waiting = {}, {}, {}
    fd = os.memfd_create("test")

    def rank(number):
        with torch.inference_mode():
            ep = ExpertParallel(fd, number, settings)
            model = Model(settings.model, 1, local_experts(number, settings))
            batches = [model.embed(prompt(9, number, tokens, settings.model.vocab)) for tokens in lengths[number]]
            pending = [None] * len(batches)
            for block in model.blocks:
                for i, hidden in enumerate(batches):
                    if pending[i]:
                        ep.collect(pending[i], hidden)
                    pending[i] = ep.mix_experts(block, hidden)
            waiting[number] = ep.announce(number + 5)
            for i, hidden in enumerate(batches):
                ep.collect(pending[i], hidden)
                computed[number, i] = hidden

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    with torch.inference_mode():
        for number in range(2):
            for i, tokens in enumerate(lengths[number]):
                hidden = whole.embed(prompt(9, number, tokens, settings.model.vocab))
                for block in whole.blocks:
                    hidden = whole.mix_experts(block, hidden) if tokens else hidden
                expected[number, i] = hidden
    assert waiting == {0: 6, 1: 5}
    assert computed.keys() == expected.keys()
    for key, hidden in expected.items():
        torch.testing.assert_close(computed[key], hidden)


def test_the_skew_sends_more_tokens_to_rank_1():
    from tracelens_serving.model import Model, prompt

    shares = []
    for skew in (0, 1.2):
        settings = resolve({"model.layers": 1, "model.router_skew": skew}).model
        model = Model(settings, 0, range(0))
        counts = model.blocks[0].route(model.embed(prompt(0, 0, 256, settings.vocab)))[1].counts
        shares.append(sum(counts[settings.experts // 2 :]) / sum(counts))
    assert 0.4 < shares[0] < 0.6
    assert 0.65 < shares[1] < 0.85
