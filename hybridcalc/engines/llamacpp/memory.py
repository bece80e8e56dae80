"""How much memory is left for the caches of a llama.cpp server, and what do its weights and its scratch take?

    rest = cards x (memory - 1 GiB that --fit leaves free) - weights - compute buffer

Without a GPU nothing bounds a context: it takes what was asked for, and the plan says how much. Weights are the tensors
of a GGUF header; where no file is at hand, parameters times the bits of the type mix that a name like Q4_K_M stands
for, which is an interval. The compute buffer is an interval too: no closed form has it, on 64 recorded contexts of
eight models it was 20 to 470 bytes a token of a batch and hidden value beside logits and mask.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.gguf import Header
from hybridcalc.architecture.gguf_model import HEADER
from hybridcalc.architecture.quantization_names import TYPE_MIXES, mix_of
from hybridcalc.architecture.weights import parameters, widths_of
from hybridcalc.deployment import COMPUTED, ESTIMATED, GPU, WEIGHTS, WEIGHTS_NAME, Memory, MemoryPart, Rest, exact_rest
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.overrides import NotPlain, Overrides, read_overrides
from hybridcalc.engines.llamacpp.placement import (
    Devices,
    LayerWeights,
    layers_in_all,
    of_drafts,
    of_header,
    of_parameters,
    placed,
)
from hybridcalc.engines.llamacpp.planner import ELEMENT, Prepared, prepare
from hybridcalc.errors import ConfigError, InputError, MemoryUnknown, NotModelled
from hybridcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hybridcalc.engines.weights import Weights
    from hybridcalc.hardware import Gpu

FREE_GIB = 1.0
"""GiB of each device that --fit leaves free, --fit-target by default."""
MTP = "draft-mtp"
UNBOUNDED = "as much as -c, -np and the types of K and V ask for: --gpu NAME says whether it fits"


class Compute(NamedTuple):
    """Bounds of the compute buffers of all devices, and their likely size: bytes."""

    low: int
    likely: int
    high: int


NO_SIZES = Compute(0, GIB // 2, 2 * GIB)
"""Compute buffers of a model whose sizes are not known."""


def compute_buffer(ready: Prepared) -> Compute | None:
    """Scratch of a batch: logits of its tokens, the mask, and activations; None where the model's sizes are not known.

    A server that computes logits of its slots' last tokens alone has fewer: the lower bound. An indexer scores every
    cell.
    """
    model, batch = ready.model, ready.n_ubatch
    sizes = widths_of(model) if header_of(model) is None else None
    hidden = model.hidden_size or (sizes.hidden if sizes is not None else 0)
    vocabulary = vocabulary_of(model)
    if not hidden or not vocabulary:
        return None
    cells = max((cache.cells for cache in ready.caches), default=0)
    mask, logits = cells * batch * 2, vocabulary * batch * ELEMENT
    scored = 2 if any(cache.name == "index" for cache in ready.caches) else int(not ready.flash)
    scores = scored * cells * batch * (model.num_attention_heads or 1) * ELEMENT
    activations = batch * hidden
    return Compute(
        mask // 2 + 4 * activations,
        mask + max(logits + 20 * activations, 0 if ready.flash else scores),
        2 * mask + logits + scores + 512 * activations + 2 * ready.sequences * (ready.r + ready.s) * ELEMENT + 4 * MIB,
    )


def header_of(model: Architecture) -> Header | None:
    """The GGUF header that a model was read from; None for any other."""
    found = model.config.get(HEADER) if model.config is not None else None
    return found if isinstance(found, Header) else None


def vocabulary_of(model: Architecture) -> int:
    """Tokens of the vocabulary; 0 where they are not known."""
    header = header_of(model)
    if header is not None:
        return header.vocabulary
    sizes = widths_of(model)
    return sizes.vocabulary if sizes is not None else 0


class Weighed(NamedTuple):
    """The weights by layer, what a unit of them takes at least, usually and at most in bytes, and how that is known."""

    layers: LayerWeights
    bytes_of: tuple[float, float, float]
    why: str

    def part(self, units: int, more: str = "") -> MemoryPart:
        """So many units of them, GiB."""
        low, likely, high = (units * each / GIB for each in self.bytes_of)
        how = COMPUTED if low == high else ESTIMATED
        return MemoryPart(WEIGHTS_NAME, low, likely, high, how, self.why + more)


def weighed(ready: Prepared) -> Weighed | None:
    """The weights: of the header's tensors, or of the type mix in the model's name; None where neither is."""
    model = ready.model
    header, layers = header_of(model), layers_in_all(model)
    loaded = layers if MTP in (ready.args.spec_type or "").split(",") else model.num_layers
    if header is not None:
        why = f"{len(header.tensors):,} tensors of the GGUF header"
        return Weighed(_overridden(of_header, header, layers, loaded, ready.args), (1.0, 1.0, 1.0), why)
    mix = mix_of(model.asked)
    if mix is None:
        return None
    try:
        found = _overridden(of_parameters, parameters(model), layers, loaded, ready.args)
    except (NotModelled, ConfigError):
        return None
    low, likely, high = (bits / 8 for bits in TYPE_MIXES[mix])
    why = f"{found.whole:,} parameters in {mix}: {TYPE_MIXES[mix][0]:g} to {TYPE_MIXES[mix][2]:g} bits each"
    return Weighed(found, (low, likely, high), why)


def _overridden(
    weigh: Callable[[Any, int, int, Overrides], LayerWeights], of: Any, layers: int, loaded: int, args: ContextParams
) -> LayerWeights:
    """Weights by layer, and what -ot moves; without that where it does not follow from names that are known."""
    if not args.override_tensor:
        return weigh(of, layers, loaded, ())
    try:
        return weigh(of, layers, loaded, read_overrides(args.override_tensor, args.cards, counted=args.gpu_bytes > 0))
    except NotPlain:
        return weigh(of, layers, loaded, ())._replace(modelled=False)


def weights_of(ready: Prepared) -> MemoryPart | None:
    """All weights, on cards and on the host, GiB; None where nothing says them."""
    found = weighed(ready)
    return None if found is None else found.part(found.layers.whole)


def part_on_cards(found: Weighed, where: Devices) -> MemoryPart:
    """The weights of all cards, GiB, with what the host holds besides."""
    host = found.part(where.host.weights)
    return found.part(where.weights, f"; {host.likely:.2f} GiB more on the host" if host.likely >= 0.005 else "")


def weights_on_card(model: Architecture, args: ContextParams) -> "Weights":
    """The weights of the heaviest card. Raises NotModelled where nothing says them."""
    from hybridcalc.engines.weights import Counted, Weights

    ready = prepare(model, args.changed(n_ctx=1))
    found, header, mix = weighed(ready), header_of(model), mix_of(model.asked)
    if found is None:
        raise NotModelled(
            f"{model.name}: nothing says how its file is stored",
            lacking="weights of an unnamed type mix",
            fix="give a GGUF file, or a name with its type mix (MODEL:Q4_K_M)",
        )
    where = placed(ready, found.layers)
    heaviest, host = max(card.weights for card in where.cards), found.part(where.host.weights)
    beside = [f"{host.text} GiB are on the host, embeddings among them"] if host.likely >= 0.005 else []
    if model.draft_layers and MTP not in (args.spec_type or ""):
        beside.append(f"draft layers are not loaded: --spec-type {MTP} loads them")
    low, likely, high = (int(heaviest * each) for each in found.bytes_of)
    if header is None:
        known = parameters(model)
        text = known.number(draft=False, vision=False)
        counted = Counted(parameters=known.number(vision=False), text=text, others="draft layers")
    else:
        count, size = sum(each.parameters for each in header.tensors), sum(each.bytes for each in header.tensors)
        text = count - sum(each.parameters for each in header.tensors if of_drafts(each.name, model.num_layers))
        counted = Counted(parameters=count, text=text, others="draft layers", stored=lambda: size)
    uncertain = "" if low == high else f"the share of each type in a file of {mix} differs"
    whole = Weights(model, model.asked, mix or "gguf", low, likely, high, found.why, counted, uncertain)
    return whole._replace(beside="; ".join(beside))


def check_memory(known: Memory) -> None:
    """Raise InputError for figures of which one would be ignored."""
    if known.available is not None and known.gpu is not None:
        raise InputError("the memory is given in more than one way", fix="keep --available or --gpu")
    if known.weights is not None and known.gpu is None:
        raise InputError("--weights says nothing without --gpu", fix="add --gpu NAME")


def rest_of(model: Architecture, args: ContextParams, known: Memory) -> Rest:
    """The memory for the caches: as given, of the GPU beside weights and scratch, or what is asked for.

    Raises MemoryUnknown where a GPU is named and nothing says what the weights take.
    """
    if known.available is not None:
        return exact_rest(known.available)
    if known.gpu is None:
        ready = prepare(model, args)
        return exact_rest((ready.kv_bytes + ready.draft_bytes + ready.state_bytes) / GIB, UNBOUNDED)
    return _rest_of_gpu(known.gpu, model, args, known)


def _rest_of_gpu(gpu: "Gpu", model: Architecture, args: ContextParams, known: Memory) -> Rest:
    ready = prepare(model, args)
    found, weights = weighed(ready), known.weights_part()
    if weights is None and found is not None:
        weights = part_on_cards(found, placed(ready, found.layers))
    if weights is None:
        fix = "give a GGUF file, a name with its type mix (MODEL:Q4_K_M), or --weights SIZE"
        if args.ollama:
            fix = "add the type mix to the tag, as -q4_K_M, which most tags of Ollama's library are; or --weights SIZE"
        raise MemoryUnknown("--gpu needs the weights", figures=(GPU, WEIGHTS), fix=fix)
    buffers = compute_buffer(ready)
    why = f"batches of {ready.n_ubatch} (-ub)" if buffers is not None else "the model's sizes are not known"
    low, likely, high = (size / GIB for size in buffers or NO_SIZES)
    scratch = MemoryPart("compute", low, likely, high, ESTIMATED, why)
    total, free = gpu.engine_gib * args.used_cards, FREE_GIB * args.used_cards if args.fit else 0.0
    left = total - free
    return Rest(
        left - weights.likely - scratch.likely,
        left - weights.high - scratch.high,
        left - weights.low - scratch.low,
        f"{args.used_cards} x {gpu.engine_gib:.2f} GiB ({gpu.source}) - {free:.2f} left free - {weights.text} of "
        f"weights - {scratch.text} of compute buffers",
        None,
        (("weights", weights.likely), ("compute buffers", scratch.likely), ("headroom", free)),
        gpu.source,
        total,
        weights.why,
        (weights, scratch),
    )
