"""What is stored carries the state: rings, int8 checkpoints and chunks against the recurrence written out in Python."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.architecture.families.mamba1 import Mamba1
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.behaviour import behaviour_checks, sample_inputs
from hybridcalc.crosscheck.recurrence import Inputs, convolve, quantise, replay, restore, run, run_at_once, split

GDN = GatedDeltaNet(num_v_heads=2, num_k_heads=2, v_head_dim=8, k_head_dim=16, conv_kernel=4)
KDA = KimiDelta(num_heads=2, head_dim=16, conv_kernel=4)
STATES = {
    "gdn": GDN, "kda": KDA, "mamba2": Mamba2(2, 8, 16, 1, 16, 4), "mamba1": Mamba1(2, 16, 4),
    "lightning": Lightning(2, 16),
}  # fmt: skip


def tokens(name: str, seed: int = 3) -> tuple[Inputs, torch.Tensor]:
    return sample_inputs(present(STATES[name].recurrence), torch.Generator().manual_seed(seed))


def written_out(start: Any, inputs: Inputs, *, decay_last: bool = False) -> Any:
    """The gated delta rule with loops and floats: decay, then what is lacking, then the update."""
    heads, dv, _ = start.shape
    state = [[[float(x) for x in row] for row in head] for head in start]
    for t in range(inputs.k.shape[0]):
        for h in range(heads):
            k, v = inputs.k[t, h].tolist(), inputs.v[t, h].tolist()
            gate = [exp(x) for x in inputs.g[t, h].tolist()]
            beta = None if inputs.beta is None else float(inputs.beta[t, h])
            for i in range(dv):
                row = state[h][i]
                if not decay_last:
                    row = [x * a for x, a in zip(row, gate, strict=True)]
                d = v[i] if beta is None else beta * (v[i] - sum(x * y for x, y in zip(row, k, strict=True)))
                row = [x + d * y for x, y in zip(row, k, strict=True)]
                state[h][i] = [x * a for x, a in zip(row, gate, strict=True)] if decay_last else row
    return torch.tensor(state, dtype=torch.float64)


def apart(one: Any, other: Any) -> float:
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("name", STATES)
def test_the_recurrence_is_the_one_written_out(name: str) -> None:
    inputs, start = tokens(name)
    assert apart(run(start, inputs)[0], written_out(start, inputs)) < 1e-12


@pytest.mark.parametrize("name", STATES)
def test_records_replay_the_state_of_taking_every_step(name: str) -> None:
    """(d, k, g) alone, from any token on: the state between is never read."""
    inputs, start = tokens(name)
    _, d = run(start, inputs)
    before, _ = run(start, inputs.part(0, 9))
    assert apart(replay(before, d[9:], inputs.k[9:], inputs.g[9:]), written_out(start, inputs)) < 1e-12


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_the_order_matters(name: str) -> None:
    """Decay after the update is another model: the same records in that order are far off."""
    inputs, start = tokens(name)
    final, d = run(start, inputs)
    assert apart(written_out(start, inputs, decay_last=True), final) > 0.01
    swapped = start
    for t in range(d.shape[0]):
        swapped = (swapped + d[t].unsqueeze(-1) * inputs.k[t].unsqueeze(-2)) * torch.exp(inputs.g[t]).unsqueeze(-2)
    assert apart(swapped, final) > 0.01
    backwards = replay(start, d.flip(0), inputs.k.flip(0), inputs.g.flip(0))
    assert apart(backwards, final) > 0.01


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("chunk", [1, 5, 7, 24])
def test_a_state_handed_over_in_chunks_is_the_state_at_once(name: str, chunk: int) -> None:
    """Each chunk from its triangular system, whatever the chunk length, against the loops."""
    inputs, start = tokens(name)
    state = start
    for first in range(0, 24, chunk):
        state = run_at_once(state, inputs.part(first, first + chunk))
    assert apart(state, written_out(start, inputs)) < 1e-12


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_int8_is_within_half_a_scale_of_each_head_and_key_channel(scale_dtype: Any) -> None:
    """The scale is a 127th of the largest value over dv. In bf16 it rounds: the largest values clip by 2^-8 of it."""
    state = torch.randn(3, 8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state *= torch.logspace(-3, 3, 16, dtype=torch.float64)  # channels of very different size keep their precision
    values, scale = quantise(state, scale_dtype)
    assert values.shape == state.shape and scale.shape == (3, 1, 16)
    off = (restore(values, scale, torch.float64) - state).abs()
    clipped = 0.0 if scale_dtype is torch.float32 else 127 * 2.0**-8
    assert (off <= scale.to(torch.float64) * (0.5 + clipped + 2.0**-16)).all()
    assert torch.allclose(scale.squeeze(1).double(), state.abs().amax(dim=1) / 127, rtol=2.0**-8, atol=0.0)


def test_one_scale_a_head_would_lose_small_channels() -> None:
    """Why there are H * dk scales and not H: with one a head, small key channels round to nothing."""
    state = torch.ones(1, 4, 2, dtype=torch.float64) * torch.tensor([1000.0, 1.0], dtype=torch.float64)
    assert torch.equal(restore(*quantise(state, torch.float32), torch.float64).round(), state)
    single = (state / state.abs().max() * 127).round() * state.abs().max() / 127
    assert (single[..., 1] == 0).all()


@pytest.mark.parametrize("name", ["gdn", "kda"])
def test_an_error_does_not_grow_where_the_recurrence_contracts(name: str) -> None:
    """|k| <= 1, 0 <= beta <= 1 and decay: two states come closer at every step, whatever the tokens."""
    inputs, start = tokens(name)
    assert float(inputs.k.norm(dim=-1).max()) <= 1
    other = restore(*quantise(start, torch.float32), torch.float64)
    for t in range(24):
        before = (other - start).norm()
        start, other = (run(state, inputs.part(t, t + 1))[0] for state in (start, other))
        assert (other - start).norm() <= before


def test_an_error_grows_where_it_does_not_contract() -> None:
    """Keys of length 2 undo the bound: beta |k|^2 = 4 turns the error round and trebles it."""
    k = torch.tensor([[[2.0, 0.0]]], dtype=torch.float64)
    inputs = Inputs(k, torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros_like(k), torch.ones(1, 1).double())
    after, _ = run(torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), inputs)
    assert float(after.abs().max()) == 3.0


def test_pairs_of_bf16_hold_what_one_does_not() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    high, low = split(values, torch.bfloat16)
    assert ((high.double() + low.double() - values).abs() <= values.abs() * 2.0**-16).all()
    assert ((high.double() - values).abs() > values.abs() * 2.0**-12).any()


def test_a_convolution_needs_its_last_inputs_only() -> None:
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randn(11, 3, generator=draw, dtype=torch.float64)
    weights = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    whole, window = convolve(torch.zeros(3, 3, dtype=torch.float64), inputs, weights)
    expected = [sum(float(inputs[t - 3 + i, 0] * weights[i, 0]) for i in range(4) if t - 3 + i >= 0) for t in range(11)]
    assert whole[:, 0].tolist() == pytest.approx(expected)
    assert torch.equal(window, inputs[-3:])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("kimi-k3", 6),
        ("qwen3.6-27b", 6),
        ("nemotron-3-nano-4b", 4),
        ("falcon-mamba-7b", 4),
        ("ling-2.6-flash", 3),
        ("lfm2-1.2b", 1),
        ("llama-3.1-8b", 0),
    ],
)
def test_every_family_s_checks_hold(name: str, count: int) -> None:
    checks = behaviour_checks(load_model(name))
    assert (len(checks), [check for check in checks if not check.ok]) == (count, [])
