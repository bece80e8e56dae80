"""How long must a prompt take at least, and what does a lost prefix cost?

    FLOPs of n tokens after c cached ones = 2 n parameters + heads (qk + v) ((c + n)^2 - c^2) a layer of attention
                                            + 6 n state elements

A prefill takes that over the peak, or one reading of the weights and of the cached KV. Tokens that are computed again
pass with others, so that weights are read anyhow: their floor is their operations alone, shared by all GPUs.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.errors import InputError
from hybridcalc.hardware import Rates, rates_of
from hybridcalc.speed.floor import EXPERTS, HEAD, PROMPT_SHARES, SCAN_FLOPS, SCANNED, WEIGHTS, Floor, Part
from hybridcalc.speed.step import attention_of, pair_flops, selected_tokens, weights_read
from hybridcalc.units import parse_tokens

if TYPE_CHECKING:
    from hybridcalc.engines.engine import Engine

USUAL_CHUNK = 64
"""Tokens of a kernel's chunk where the model does not say (GDN, KDA)."""
SHARED = (900, 1300, 4000)
"""Tokens that requests share, in the examples of what a boundary costs."""


def prefill_of(
    served: "Engine", model: Architecture, args: Any, rates: Rates, *, tokens: int, cached: int = 0
) -> Floor:
    """The floor of a prefill of ``tokens`` tokens of one request on an empty server, after ``cached`` ones whose KV and
    state it has: its arithmetic, or one reading of the weights, where it passes pipeline stages in chunks that follow
    each other. An estimate where kernels compute more: chunks of a scan, padding.
    """
    _check(tokens, cached)
    read, stream = weights_read(served, model, args), served.stream(model, args)
    share, stages = (read.chosen or 1) / read.experts if read.experts else 0.0, served.pipeline(args)
    body = (read.held[WEIGHTS] + read.held[EXPERTS] * share) / stages
    ranks = max(1, served.attention_ranks(args)) * stages
    attention = _attention_flops(model, tokens, cached)
    behind, _, notes = attention_of(model, stream.curve, cached or tokens)
    weights = sum(read.bytes.values()) - read.bytes[EXPERTS] * (1 - read.touched(tokens))
    after = f" after {cached:,} cached" if cached else ""
    cost = (
        Part("projections", round(weights), round(2 * body * tokens), "2 FLOP a weight and token"),
        Part(HEAD, 0, round(2 * read.held[HEAD]), "logits of the last token"),
        Part(
            "attention",
            behind // stream.sharing if cached else 0,
            round(attention / ranks),
            f"{tokens:,} tokens{after}, each of those before it",
        ),
        Part("scan", 2 * stream.state_bytes, SCAN_FLOPS * tokens * stream.state_elements // stages, SCANNED),
    )
    beyond = _chunks(model, tokens, ranks)
    return Floor(rates, cost, rates.peak(read.bits), 1, notes, beyond=() if beyond is None else (beyond,))


def _chunks(model: Architecture, tokens: int, ranks: int) -> Part | None:
    """What a scan in chunks computes beside the recurrence: each token against those of its chunk. None where a state
    is no matrix a head. An estimate: kernels differ.
    """
    temporal = () if model.state is None else model.state.shapes(1).temporal
    if len(temporal) != 3:
        return None
    chunk, (heads, keys, values) = model.chunk_size or USUAL_CHUNK, temporal
    flops = 2 * chunk * heads * (keys + values) * model.state_layers * tokens
    why = f"of a scan in chunks of {chunk}: 2 x {chunk} x ({keys} + {values}) FLOP a head and token"
    return Part("chunks", 0, round(flops / ranks), why)


class Recomputed(NamedTuple):
    """Tokens that a cache would have kept: the least seconds of one GPU that computing them again takes, all its time,
    and of a server of ``gpus`` that share them. ``plain_seconds``: those of a GPU that computes in 16 bits.
    """

    tokens: int
    gpu_seconds: float
    gpus: int
    plain_seconds: float

    @property
    def seconds(self) -> float:
        """The least time, with nothing else to do on any GPU."""
        return self.gpu_seconds / self.gpus

    @property
    def band_seconds(self) -> tuple[float, float]:
        """GPU seconds that public measurements of prompts let expect."""
        least, most = PROMPT_SHARES
        return max(self.gpu_seconds, self.plain_seconds / most), max(self.gpu_seconds, self.plain_seconds / least)

    def __add__(self, other: Any) -> "Recomputed":
        """Both together, on GPUs of one kind."""
        if not isinstance(other, Recomputed):
            return NotImplemented
        gpu, plain = self.gpu_seconds + other.gpu_seconds, self.plain_seconds + other.plain_seconds
        return Recomputed(self.tokens + other.tokens, gpu, self.gpus, plain)


def recompute_of(
    served: "Engine", model: Architecture, args: Any, rates: Rates, *, tokens: int, cached: int = 0, requests: int = 1
) -> Recomputed:
    """What ``tokens`` tokens cost that are computed again, in even parts for so many ``requests``, each after
    ``cached`` ones that are not. Attention grows with the square of a part, so that uneven parts cost more.
    """
    _check(tokens, cached)
    if requests < 1:
        raise InputError(f"tokens of {requests} requests", fix="at least one request")
    read, stream = weights_read(served, model, args), served.stream(model, args)
    share = (read.chosen or 1) / read.experts if read.experts else 0.0
    ranks = max(1, served.attention_ranks(args))
    weights = (read.parameters[WEIGHTS] + read.parameters[EXPERTS] * share) * ranks
    flops = tokens * (2 * weights + SCAN_FLOPS * stream.state_elements * ranks)
    flops += requests * _attention_flops(model, tokens / requests, cached)
    narrow, plain = (flops / rates.peak(bits) / 1e12 for bits in (read.bits, 16))
    return Recomputed(tokens, narrow, served.ranks(args), plain)


class Boundary(NamedTuple):
    """What is computed again of a prefix of ``shared`` tokens whose last state lies at a multiple of ``every``."""

    shared: int
    every: int
    cost: Recomputed


def boundaries(
    served: "Engine", model: Architecture, args: Any, rates: Rates, *, every: int, shared: tuple[int, ...] = SHARED
) -> tuple[Boundary, ...]:
    """What prefixes of ``shared`` tokens cost where a cache keeps a state ``every`` so many: all that lies beyond the
    last state is computed again.
    """
    if every < 1:
        raise InputError(f"a state every {every} tokens", fix="at least 1")
    found = []
    for tokens in shared:
        kept = tokens // every * every
        found.append(
            Boundary(tokens, every, recompute_of(served, model, args, rates, tokens=tokens - kept, cached=kept))
        )
    return tuple(found)


def _check(tokens: int, cached: int) -> None:
    """Raise InputError for less than nothing."""
    if tokens < 0 or cached < 0:
        raise InputError(f"{tokens} tokens after {cached}", fix="none are fewer than 0")


def _attention_flops(model: Architecture, tokens: float, cached: int) -> float:
    """FLOPs of attention of ``tokens`` that follow ``cached``, in full and in windowed layers, on all ranks."""

    def grown(most: float) -> float:
        return _pairs(cached + tokens, most) - _pairs(cached, most)

    attention, whole = model.attention, cached + tokens
    selected = selected_tokens(attention)
    full = pair_flops(model, attention, whole=selected is None)
    windowed = pair_flops(model, model.window_attention or attention, whole=True)
    flops = model.attention_layers * full * grown(whole if selected is None else selected)
    return flops + model.window_layers * windowed * grown(model.window or whole)


def _pairs(tokens: float, most: float) -> float:
    """Queries and keys of a causal sequence where a query sees at most so many keys."""
    seen = min(tokens, most)
    return seen * seen / 2 + (tokens - seen) * seen


def prefill(
    model: str | Architecture,
    *,
    gpu: str,
    tokens: int | str,
    cached: int | str = 0,
    engine: str | None = None,
    **arguments: Any,
) -> Floor:
    """The floor of a prefill of ``tokens`` tokens on an empty server, after ``cached`` ones. Arguments and errors as of
    `decode_step`.
    """
    from hybridcalc.engines.ask import arguments_of

    served, found, args = arguments_of(model, engine, arguments)
    return prefill_of(served, found, args, rates_of(gpu), tokens=_count(tokens), cached=_count(cached))


def recompute(
    model: str | Architecture,
    *,
    gpu: str,
    tokens: int | str,
    cached: int | str = 0,
    requests: int = 1,
    engine: str | None = None,
    **arguments: Any,
) -> Recomputed:
    """What tokens cost that are computed again. Arguments as of `recompute_of`, others and errors as of `decode_step`.

    Returns ``gpu_seconds``, the floor, its ``band_seconds``, and ``seconds`` of a server whose GPUs share them.
    """
    from hybridcalc.engines.ask import arguments_of

    served, found, args = arguments_of(model, engine, arguments)
    amount = _count(tokens)
    return recompute_of(served, found, args, rates_of(gpu), tokens=amount, cached=_count(cached), requests=requests)


def _count(tokens: int | str) -> int:
    return parse_tokens(tokens) if isinstance(tokens, str) else tokens
