"""What must be stored so that a recurrent state can be rebuilt, compressed or handed over? The arithmetic itself.

Per head, S is a dv x dk matrix. One token with key k, value v, log decay g (one a head, or one a key channel) does

    S <- S * exp(g)                 decay first
    d  = beta * (v - S k)           what the decayed state lacks at k; without the delta rule d = v
    S <- S + d k^T                  then the update

so (d, k, g) of a few tokens replay a state without reading it, and (v, k, g, beta) do by taking every step again. A
whole chunk comes at once from a triangular system, d_i + beta_i sum_j<i W_ij d_j = beta_i (v_i - S0 exp(G_i) k_i) with
G the running sum of g and W_ij = (k_j * exp(G_i - G_j)) . k_i. Int8 checkpoints keep one scale for each head and key
channel: the largest |S| over dv, a 127th of it. Shapes: S (H, dv, dk); k, g (T, H, dk); v (T, H, dv); beta (T, H).
Source: gated delta rule and KDA; SGLang mem_cache/memory_pool.py, mamba_checkpoint_pool.py (0.5.23).
"""

from typing import Any, NamedTuple

from hybridcalc.crosscheck.backend import torch
from hybridcalc.formulas import Ring

LARGEST_INT8 = 127


class Inputs(NamedTuple):
    """Tokens of one layer. ``beta`` is None without the delta rule."""

    k: Any
    v: Any
    g: Any
    beta: Any | None

    def part(self, start: int, end: int) -> "Inputs":
        """Tokens start to end."""
        beta = None if self.beta is None else self.beta[start:end]
        return Inputs(self.k[start:end], self.v[start:end], self.g[start:end], beta)


def step(state: Any, token: Inputs) -> tuple[Any, Any]:
    """The state after one token (``token`` without its time axis), and d, what it was updated by."""
    decayed = state * torch.exp(token.g).unsqueeze(-2)
    d = token.v
    if token.beta is not None:
        d = token.beta.unsqueeze(-1) * (token.v - torch.einsum("hvk,hk->hv", decayed, token.k))
    return decayed + d.unsqueeze(-1) * token.k.unsqueeze(-2), d


def run(state: Any, inputs: Inputs) -> tuple[Any, Any]:
    """The state after every token in turn, and the d of each, (T, H, dv)."""
    updates = []
    for t in range(inputs.k.shape[0]):
        beta = None if inputs.beta is None else inputs.beta[t]
        state, d = step(state, Inputs(inputs.k[t], inputs.v[t], inputs.g[t], beta))
        updates.append(d)
    return state, torch.stack(updates)


def replay(state: Any, d: Any, k: Any, g: Any) -> Any:
    """The state after tokens of which (d, k, g) are kept: decay, then update, in their order."""
    for t in range(d.shape[0]):
        state = state * torch.exp(g[t]).unsqueeze(-2) + d[t].unsqueeze(-1) * k[t].unsqueeze(-2)
    return state


def run_at_once(state: Any, inputs: Inputs) -> Any:
    """The state after all tokens from one triangular system a head, without a step in between."""
    decay = torch.cumsum(inputs.g, 0)
    k, v = inputs.k, inputs.v
    if inputs.beta is not None:
        later = decay.unsqueeze(1) - decay.unsqueeze(0)
        later = later.masked_fill(_not_before(k.shape[0]), -torch.inf)
        weights = torch.einsum("jhc,ijhc,ihc->hij", k, torch.exp(later), k)
        seen = torch.einsum("hvk,thk->thv", state, torch.exp(decay) * k)
        lacking = (inputs.beta.unsqueeze(-1) * (v - seen)).transpose(0, 1)
        system = torch.eye(k.shape[0], dtype=k.dtype) + inputs.beta.transpose(0, 1).unsqueeze(-1) * weights
        v = torch.linalg.solve_triangular(system, lacking, upper=False).transpose(0, 1)
    left = torch.exp(decay[-1] - decay) * k
    return state * torch.exp(decay[-1]).unsqueeze(-2) + torch.einsum("thv,thk->hvk", v, left)


def _not_before(tokens: int) -> Any:
    """(i, j, 1, 1): whether j is not before i."""
    return torch.ones(tokens, tokens, dtype=torch.bool).triu()[:, :, None, None]


class RingStore:
    """ReplaySSM's buffers for one slot: token t at place t mod L of each ring, (heads, L, width) or (heads, L)."""

    def __init__(self, rings: tuple[Ring, ...], dtypes: dict[str, Any]) -> None:
        self._rings = {ring.name: torch.zeros(ring.shape[2:], dtype=dtypes[ring.name]) for ring in rings}

    def write(self, position: int, **values: Any) -> None:
        """Keep one token's values, each (heads, width) or (heads)."""
        for name, value in values.items():
            ring = self._rings[name]
            ring[:, position % ring.shape[1]] = value.to(ring.dtype)

    def read(self, name: str, start: int, count: int) -> Any:
        """``count`` tokens from ``start`` on, (T, heads, ...), in float64."""
        ring = self._rings[name]
        places = torch.arange(start, start + count) % ring.shape[1]
        return ring[:, places].transpose(0, 1).to(torch.float64)


def split(values: Any, dtype: Any) -> tuple[Any, Any]:
    """Values as a high part in ``dtype`` and what it leaves, in ``dtype`` too."""
    high = values.to(dtype)
    return high, (values - high.to(values.dtype)).to(dtype)


def quantise(state: Any, scale_dtype: Any) -> tuple[Any, Any]:
    """int8 values and their scales, (H, 1, dk): the scale is rounded to its storage before it divides."""
    largest = state.abs().amax(dim=-2, keepdim=True).clamp(min=1e-8)
    scale = (largest / LARGEST_INT8).to(scale_dtype)
    rounded = torch.round(state / scale.to(state.dtype)).clamp(-LARGEST_INT8, LARGEST_INT8)
    return rounded.to(torch.int8), scale


def restore(values: Any, scale: Any, dtype: Any) -> Any:
    """The state that int8 values and scales stand for."""
    return values.to(dtype) * scale.to(dtype)


def convolve(window: Any, inputs: Any, weights: Any) -> tuple[Any, Any]:
    """A causal depthwise convolution: outputs (T, width), and the window of the last K - 1 inputs to hand on."""
    columns = torch.cat([window, inputs])
    taps = weights.shape[0]
    out = sum(columns[tap : tap + inputs.shape[0]] * weights[tap] for tap in range(taps))
    return out, columns[columns.shape[0] - (taps - 1) :]
