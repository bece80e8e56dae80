"""How much memory is left for the caches of a llama.cpp server, and what do its weights and its scratch take?

    rest = cards x (memory - 1 GiB that --fit leaves free) - weights - compute buffer

Without a GPU nothing bounds a context: it takes what was asked for, and the plan says how much. Weights are the tensors
of a GGUF header; where no file is at hand, parameters times the bits of the type mix that a name like Q4_K_M stands
for, which is an interval. The compute buffer is an interval too: no closed form has it, on 64 recorded contexts of
eight models it was 20 to 470 bytes a token of a batch and hidden value beside logits and mask.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.gguf import Header
from hybridcalc.architecture.gguf_model import HEADER
from hybridcalc.architecture.weights import parameters, widths_of
from hybridcalc.deployment import COMPUTED, ESTIMATED, GPU, WEIGHTS, WEIGHTS_NAME, Memory, MemoryPart, Rest, exact_rest
from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.placement import LayerWeights, layers_in_all, of_header, of_parameters, placed
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
BITS = {
    "F32": (32.0, 32.0, 32.0), "F16": (16.0, 16.0, 16.1), "BF16": (16.0, 16.0, 16.1), "Q8_0": (8.5, 8.5, 8.7),
    "Q6_K": (6.5, 6.56, 7.2), "Q5_K_M": (5.5, 5.7, 6.3), "Q5_K_S": (5.5, 5.57, 6.1), "Q5_0": (5.5, 5.6, 6.1),
    "Q5_1": (6.0, 6.1, 6.6), "Q4_K_M": (4.5, 4.89, 5.6), "Q4_K_S": (4.5, 4.67, 5.3), "Q4_K_XL": (4.5, 5.0, 6.0),
    "Q4_0": (4.5, 4.66, 5.2), "Q4_1": (5.0, 5.1, 5.6), "IQ4_XS": (4.25, 4.46, 5.1), "IQ4_NL": (4.5, 4.67, 5.2),
    "MXFP4_MOE": (4.25, 4.6, 6.0), "Q3_K_L": (3.44, 4.3, 4.9), "Q3_K_M": (3.44, 4.0, 4.7), "Q3_K_S": (3.44, 3.64, 4.4),
    "Q3_K_XL": (3.44, 4.2, 5.0), "IQ3_M": (3.44, 3.76, 4.5), "IQ3_S": (3.44, 3.66, 4.4), "IQ3_XS": (3.06, 3.5, 4.2),
    "IQ3_XXS": (3.06, 3.25, 4.0), "Q2_K": (2.63, 3.16, 4.0), "Q2_K_S": (2.63, 2.97, 3.8), "Q2_K_XL": (2.63, 3.3, 4.3),
    "IQ2_M": (2.56, 2.93, 3.7), "IQ2_S": (2.31, 2.74, 3.5), "IQ2_XS": (2.31, 2.59, 3.3), "IQ2_XXS": (2.06, 2.38, 3.2),
    "IQ1_M": (1.75, 2.15, 3.0), "IQ1_S": (1.56, 2.0, 2.8),
}  # fmt: skip
"""Name of a type mix -> least, usual and most bits a parameter: the base type alone; a Llama-3.1-8B (the table of
llama.cpp tools/quantize); small models, of whose parameters more are embeddings and head, which larger types hold.
"""
_MIX = re.compile(rf"(?:^|[-.:_])(?:UD-)?({'|'.join(sorted(BITS, key=len, reverse=True))})(?:[-.]|$)", re.IGNORECASE)


class Compute(NamedTuple):
    """Bounds of the compute buffers of all devices, and their likely size: bytes."""

    low: int
    likely: int
    high: int


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


def mix_of(name: str) -> str | None:
    """The type mix that the name of a file or of a model ends with: Q4_K_M of ``qwen3.5-27b-Q4_K_M.gguf``."""
    found = _MIX.search(name.rpartition("/")[2])
    return found[1].upper() if found is not None else None


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
        return Weighed(of_header(header, layers, loaded), (1.0, 1.0, 1.0), why)
    mix = mix_of(model.asked)
    if mix is None:
        return None
    try:
        found = of_parameters(parameters(model), layers, loaded)
    except (NotModelled, ConfigError):
        return None
    low, likely, high = (bits / 8 for bits in BITS[mix])
    why = f"{found.whole:,} parameters in {mix}: {BITS[mix][0]:g} to {BITS[mix][2]:g} bits each"
    return Weighed(found, (low, likely, high), why)


def weights_of(ready: Prepared) -> MemoryPart | None:
    """All weights, on cards and on the host, GiB; None where nothing says them."""
    found = weighed(ready)
    return None if found is None else found.part(found.layers.whole)


def weights_on_card(model: Architecture, args: ContextParams) -> "Weights":
    """The weights of the heaviest card. Raises NotModelled where nothing says them."""
    from hybridcalc.engines.weights import Counted, Weights

    ready = prepare(model, args if args.n_ctx else args.changed(n_ctx=1))
    found, header, mix = weighed(ready), header_of(model), mix_of(model.asked)
    if found is None:
        raise NotModelled(
            f"{model.name}: nothing says how its file is stored",
            lacking="weights of an unnamed type mix",
            fix="give a GGUF file, or a name with its type mix (MODEL:Q4_K_M)",
        )
    heaviest = max(card.weights for card in placed(ready, found.layers).cards)
    low, likely, high = (int(heaviest * each) for each in found.bytes_of)
    if header is None:
        counted = Counted(parameters=parameters(model).number(vision=False))
    else:
        count, size = sum(each.parameters for each in header.tensors), sum(each.bytes for each in header.tensors)
        counted = Counted(parameters=count, stored=lambda: size)
    uncertain = "" if low == high else f"the share of each type in a file of {mix} differs"
    return Weights(model, model.asked, mix or "gguf", low, likely, high, found.why, counted, uncertain)


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
        on_cards, host = placed(ready, found.layers).weights, found.part(placed(ready, found.layers).host.weights)
        more = f"; {host.likely:.2f} GiB more on the host" if host.likely >= 0.005 else ""
        weights = found.part(on_cards, more)
    if weights is None:
        named = "qwen3.5:35b-q4_K_M" if args.ollama else "MODEL:Q4_K_M"
        raise MemoryUnknown(
            "--gpu needs the weights",
            figures=(GPU, WEIGHTS),
            fix=f"give a GGUF file, a name with its type mix ({named}), or --weights SIZE",
        )
    buffers = compute_buffer(ready)
    scratch = MemoryPart("compute", 0.0, 0.5, 2.0, ESTIMATED, "the model's sizes are not known")
    if buffers is not None:
        low, likely, high = (size / GIB for size in buffers)
        scratch = MemoryPart("compute", low, likely, high, ESTIMATED, f"batches of {ready.n_ubatch} (-ub)")
    total, free = gpu.engine_gib * args.cards, FREE_GIB * args.cards if args.fit else 0.0
    left = total - free
    return Rest(
        left - weights.likely - scratch.likely,
        left - weights.high - scratch.high,
        left - weights.low - scratch.low,
        f"{args.cards} x {gpu.engine_gib:.2f} GiB ({gpu.source}) - {free:.2f} left free - {weights.text} of weights - "
        f"{scratch.text} of compute buffers",
        None,
        (("weights", weights.likely), ("compute buffers", scratch.likely), ("headroom", free)),
        gpu.source,
        total,
        weights.why,
        (weights, scratch),
    )
