"""Do the stored shapes carry what the model needs of them? The recurrence of a family, on small tensors, in float64.

    replay       a state rebuilt from ring records (d, k, g), wrapped around, is the state of taking every step
    pairs        GDN keeps d and k as bf16 pairs: their replay is within 2^-14 of exact, single bf16 is not
    raw          KDA keeps v, k, g, beta and takes every step again: bf16 inputs replay exactly
    int8         a checkpoint differs from its state by half a scale at most, and the recurrence does not widen that
    hand-over    chunk after chunk, each at once from its triangular system, comes to the state of token after token
    window       the convolution's last K - 1 inputs are all that the next chunk needs

Each check is an error found and its bound. Sizes: two heads of the model's own widths, 64 at most.
"""

from collections.abc import Iterator
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.families import Recurrence
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.devices import Check
from hybridcalc.crosscheck.recurrence import (
    Inputs,
    RingStore,
    convolve,
    quantise,
    replay,
    restore,
    run,
    run_at_once,
    split,
)
from hybridcalc.formulas import replay_rings

HEADS, WIDEST, TOKENS, RING = 2, 64, 24, 16
PAIR_BOUND = 2.0**-14
FLOAT64_BOUND = 1e-12
DOUBLE = torch.float64


def behaviour_checks(model: Architecture) -> list[Check]:
    """The checks that apply to the family of ``model``; none without a recurrent state. On one thread: tensors this
    small are slower on several, and much slower where other programs run.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_checks(model))
    finally:
        torch.set_num_threads(threads)


def _checks(model: Architecture) -> Iterator[Check]:
    state, draw = model.state, torch.Generator().manual_seed(20)
    if state is None:
        return
    recurrence = state.recurrence
    if recurrence is not None:
        inputs, start = sample_inputs(recurrence, draw)
        final, d = run(start, inputs)
        if recurrence.replay is not None:
            yield from _replay_checks(recurrence, start, inputs, d)
        yield from _int8_checks(final, inputs)
        yield Check("chunked hand-over", FLOAT64_BOUND, _handover_error(start, inputs, final), "<=")
    for window in state.shapes(1).conv[:1]:
        yield _window_check(min(window.width, WIDEST), window.rows + 1, draw)


def sample_inputs(recurrence: Recurrence, draw: torch.Generator) -> tuple[Inputs, Any]:
    """Tokens as a layer meets them, and a state to begin with: keys of length 1, decays below 1."""
    dv, dk = min(recurrence.v_dim, WIDEST), min(recurrence.k_dim, WIDEST)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=draw, dtype=DOUBLE).to(torch.bfloat16).to(DOUBLE)

    k, v = normal(TOKENS, HEADS, dk), normal(TOKENS, HEADS, dv)
    channels = dk if recurrence.channel_decay else 1
    g = -torch.rand(TOKENS, HEADS, channels, generator=draw, dtype=DOUBLE).float().to(DOUBLE)
    beta = None
    if recurrence.delta_rule:
        k = (k / k.norm(dim=-1, keepdim=True)).to(torch.bfloat16).to(DOUBLE)
        k = k * (1 - 2.0**-7)  # bf16 rounding must not make a key longer than 1; the factor is a bf16 step
        k = k.to(torch.bfloat16).to(DOUBLE)
        beta = torch.rand(TOKENS, HEADS, generator=draw, dtype=DOUBLE).float().to(DOUBLE)
    return Inputs(k, v, g.expand(TOKENS, HEADS, dk), beta), normal(HEADS, dv, dk)


def _replay_checks(recurrence: Recurrence, start: Any, inputs: Inputs, d: Any) -> Iterator[Check]:
    """Write all tokens into rings that are shorter, and rebuild the last ones' state from the one before them."""
    count = RING // 2
    first = TOKENS - count
    before, _ = run(start, inputs.part(0, first))
    after, _ = run(before, inputs.part(first, TOKENS))
    dv, dk = start.shape[-2:]
    assert recurrence.replay is not None  # noqa: S101  (asked above)
    rings = replay_rings(
        recurrence.replay,
        layers=1,
        slots=1,
        v_heads=HEADS,
        v_head_dim=dv,
        k_heads=HEADS,
        k_head_dim=dk,
        cache_len=RING,
        conv_dtype="bfloat16",
    )
    exact = RingStore(rings, {ring.name: DOUBLE for ring in rings})
    stored = RingStore(rings, {ring.name: getattr(torch, ring.dtype) for ring in rings})
    per_channel = recurrence.channel_decay
    for t in range(TOKENS):
        gate = inputs.g[t] if per_channel else inputs.g[t, :, 0]
        exact.write(t, d=d[t], k=inputs.k[t], g=gate)
        if per_channel:
            assert inputs.beta is not None  # noqa: S101  the delta rule has one
            stored.write(t, rawv=inputs.v[t], rawk=inputs.k[t], g=gate, beta=inputs.beta[t])
        else:
            (d_high, d_low), (k_high, k_low) = split(d[t], torch.bfloat16), split(inputs.k[t], torch.bfloat16)
            stored.write(t, d=d_high, rawv=d_low, k=k_high, rawk=k_low, g=gate)

    def gates(store: RingStore) -> Any:
        read = store.read("g", first, count)
        return read if per_channel else read.unsqueeze(-1).expand(count, HEADS, dk)

    rebuilt = replay(before, exact.read("d", first, count), exact.read("k", first, count), gates(exact))
    yield Check("ring replay", FLOAT64_BOUND, _error(rebuilt, after), "<=")
    if per_channel:
        raw = Inputs(
            stored.read("rawk", first, count),
            stored.read("rawv", first, count),
            gates(stored),
            stored.read("beta", first, count),
        )
        yield Check("raw replay", FLOAT64_BOUND, _error(run(before, raw)[0], after), "<=")
        return
    d_pair, k_pair = [
        stored.read(high, first, count) + stored.read(low, first, count) for high, low in (("d", "rawv"), ("k", "rawk"))
    ]
    yield Check("bf16 pairs", PAIR_BOUND, _error(replay(before, d_pair, k_pair, gates(stored)), after), "<=")


def _int8_checks(state: Any, inputs: Inputs) -> Iterator[Check]:
    """Half a scale at most; and with decay, beta <= 1 and |k| <= 1 each step maps the error to no larger one."""
    values, scale = quantise(state, torch.float32)
    restored = restore(values, scale, DOUBLE)
    halves = ((restored - state).abs() / (scale.to(DOUBLE) / 2)).max().item()
    yield Check("int8 round trip", 1.0 + 2.0**-16, halves, "<=")
    growth, one, other = 0.0, state, restored
    for t in range(inputs.k.shape[0]):
        before = (other - one).norm()
        one, other = (run(each, inputs.part(t, t + 1))[0] for each in (one, other))
        growth = max(growth, ((other - one).norm() / before).item())
    yield Check("int8 error growth", 1.0, growth, "<=")


def _handover_error(start: Any, inputs: Inputs, final: Any) -> float:
    state = start
    for first in range(0, TOKENS, 7):
        state = run_at_once(state, inputs.part(first, min(first + 7, TOKENS)))
    return max(_error(state, final), _error(run_at_once(start, inputs), final))


def _window_check(width: int, kernel: int, draw: torch.Generator) -> Check:
    inputs = torch.randn(TOKENS, width, generator=draw, dtype=DOUBLE)
    weights = torch.randn(kernel, width, generator=draw, dtype=DOUBLE)
    window = torch.zeros(kernel - 1, width, dtype=DOUBLE)
    whole, _ = convolve(window, inputs, weights)
    parts = []
    for first in range(0, TOKENS, 7):
        out, window = convolve(window, inputs[first : first + 7], weights)
        parts.append(out)
    return Check("window hand-over", 0.0, _error(torch.cat(parts), whole))


def _error(found: Any, exact: Any) -> float:
    """Largest difference, in units of the largest value."""
    return float((found - exact).abs().max() / exact.abs().max())
