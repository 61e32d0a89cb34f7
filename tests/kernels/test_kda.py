"""The KDA chain: references agree, Triton's interpreter equals them, and TF32 drifts exactly where memory is long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tracelens_kernels import emulate
from tracelens_kernels.kda import chunks, inputs, reference


def initial_state(heads: int, k_dim: int, v_dim: int) -> torch.Tensor:
    return torch.randn(heads, k_dim, v_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 70),
    k_dim=st.integers(1, 9),
    v_dim=st.integers(1, 9),
    size=st.integers(1, 20),
    blocks=st.integers(1, 5),
    remember=st.booleans(),
)
def test_the_affine_chain_equals_the_recurrence(
    tokens: int, k_dim: int, v_dim: int, size: int, blocks: int, remember: bool
) -> None:
    make = inputs.long_memory if remember else inputs.forgetting
    given = make(2, tokens, k_dim, v_dim, seed=tokens)
    initial = initial_state(2, k_dim, v_dim)
    outputs, final = reference.recurrent(given, initial)
    cut = chunks.cut(given, size)
    chained, starts = reference.context_parallel(cut, initial, blocks)
    torch.testing.assert_close(chained, outputs, rtol=0, atol=1e-11)
    torch.testing.assert_close(starts[:, -1], final, rtol=0, atol=1e-11)
    torch.testing.assert_close(reference.block_scan(cut, starts)[1], starts[:, 1:], rtol=0, atol=1e-11)


def test_strong_gates_do_not_overflow() -> None:
    given = inputs.forgetting(1, 128, 8, 8)
    strong = inputs.Inputs(given.q, given.k, given.v, given.g * 50, given.beta)
    outputs, final = reference.recurrent(strong, initial_state(1, 8, 8))
    chained, starts = reference.context_parallel(chunks.cut(strong, 64), initial_state(1, 8, 8), 2)
    torch.testing.assert_close(chained, outputs, rtol=0, atol=1e-11)
    torch.testing.assert_close(starts[:, -1], final, rtol=0, atol=1e-11)


def test_interpreted_triton_equals_the_reference() -> None:
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    chains = [each for each in results if each["input"] != "gemv"]
    assert len(chains) == 8
    for each in chains:
        assert each["shape"][1] == each["tokens"]
        assert each["output"] < 5e-6, each
        assert each["state"] < 5e-6, each
        assert each["input"] == "forgetting" or each["remembered"] >= 0.5
    products = [each["error"] for each in results if each["input"] == "gemv"]
    assert len(products) == 4
    assert max(products) < 1e-3


@cache
def drift(precision: str, tokens: int, remember: bool = True) -> float:
    """Relative error of the final state with the chain's products at an emulated precision."""
    make = inputs.long_memory if remember else inputs.forgetting
    cut = chunks.cut(make(1, tokens, 64, 64), 64)
    initial = initial_state(1, 64, 64)
    if remember:
        assert reference.remembered(cut, 4) >= 0.5
    exact = reference.context_parallel(cut, initial, 4)[1][:, -1]
    states = reference.context_parallel(cut.float(), initial.float(), 4, getattr(emulate, precision))[1]
    return float((states[:, -1].double() - exact).norm() / exact.norm())


def test_truncated_tf32_drifts_on_long_memory_and_tf32x3_does_not() -> None:
    assert drift("tf32", 1024) > 1e-3
    assert drift("tf32x3", 1024) < 1e-5
    assert drift("tf32_rounded", 1024) < drift("tf32", 1024) / 3


def test_drift_grows_with_length() -> None:
    assert drift("tf32", 1024) > 2 * drift("tf32", 256)


def test_forgetting_input_hides_the_drift() -> None:
    assert drift("tf32", 1024, remember=False) < 1e-3


def test_tf32_keeps_ten_bits() -> None:
    x = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 2**-10 + 2**-11, -(1 + 2**-11), 0.0])
    assert emulate.truncated(x).tolist() == [1 + 2**-10, 1.0, 1 + 2**-10, -1.0, 0.0]
    assert emulate.rounded(x).tolist() == [1 + 2**-10, 1 + 2**-10, 1 + 2**-9, -(1 + 2**-10), 0.0]


@pytest.mark.parametrize(("precision", "bias"), [("tf32", -7e-4), ("tf32_rounded", 0.0)])
def test_truncation_is_biased_low_and_rounding_is_not(precision: str, bias: float) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.rand(64, 64, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    assert float(((getattr(emulate, precision)(a, b) - exact) / exact).mean()) == pytest.approx(bias, abs=1e-4)
