"""Which device holds what: weights by layer, KV and states with their layers, the output layer, what stays on the host.

    first = layers + 1 - ngl        layers before it are the host's; the output counts as the last layer
    card  = the first whose part of the split, cumulated in float32, is above (layer - first) / ngl

Embeddings of tokens are the host's, and are there twice where the output is tied to them and on a card. -ts states the
parts of the split, free memory does else: even parts of equal cards. --cpu-moe and --n-cpu-moe leave experts to the
host, -nkvo KV and states. Source: llama.cpp src/llama-model.cpp load_tensors, src/llama-kv-cache.cpp (b11434). Leaves
out: rows of a layer shared by cards (-sm row, -sm tensor), tensors moved by name (-ot).
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from struct import pack, unpack
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.gguf import Header
from hybridcalc.architecture.tensors import DRAFT, FIRST, LAST, VISION
from hybridcalc.architecture.weights import Parameters
from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.planner import ELEMENT, CellCache, Prepared
from hybridcalc.errors import InputError, quoted

HOST = -1
"""The host, where devices are numbered."""
MOST_PARTS = 128
UNMODELLED = ("row", "tensor")
_BLOCK = re.compile(r"blk\.([0-9]{1,5})\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")


class LayerWeights(NamedTuple):
    """Sizes by layer, in bytes or in parameters: without experts, of experts; of the embeddings, and of the output,
    which is the embeddings once more where it is ``tied`` to them.
    """

    dense: tuple[int, ...]
    experts: tuple[int, ...]
    embeddings: int
    output: int
    tied: bool

    @property
    def whole(self) -> int:
        """All of it, once."""
        return sum(self.dense) + sum(self.experts) + self.embeddings + self.output


class Device(NamedTuple):
    """What a card holds, or the host: layers (the output is one), and bytes of weights (or parameters), KV, states."""

    name: str
    layers: int
    weights: int
    kv: int
    state: int


class Devices(NamedTuple):
    """Every card and the host; ``modelled`` is false where cards share rows of layers, and only sums hold."""

    cards: tuple[Device, ...]
    host: Device
    modelled: bool = True

    @property
    def caches(self) -> int:
        """Bytes of KV and states on the cards."""
        return sum(card.kv + card.state for card in self.cards)

    @property
    def weights(self) -> int:
        """Weights on the cards."""
        return sum(card.weights for card in self.cards)


def of_header(header: Header, layers: int, loaded: int) -> LayerWeights:
    """Bytes of the tensors of a GGUF header; layers from ``loaded`` on are of drafts that are not used."""
    dense, experts, embeddings, output, tied = [0] * layers, [0] * layers, 0, 0, True
    for tensor in header.tensors:
        block, size = _BLOCK.match(tensor.name), tensor.bytes
        if block is not None and int(block[1]) < layers:
            held = experts if _EXPERTS.search(tensor.name) else dense
            held[int(block[1])] += size if int(block[1]) < loaded else 0
        elif "token_embd" in tensor.name:
            embeddings += size
        else:
            output += size
            tied = tied and tensor.name != "output.weight"
    return LayerWeights(tuple(dense), tuple(experts), embeddings, output, tied)


@lru_cache(maxsize=64)
def of_parameters(found: Parameters, layers: int, loaded: int) -> LayerWeights:
    """Parameters by layer; those of drafts that are used are in the last one."""
    dense, experts, embeddings, output = [0] * layers, [0] * layers, 0, 0
    for block in found.blocks:
        one = sum(tensor.parameters for tensor in block.tensors if not tensor.experts)
        of_experts = sum(tensor.parameters for tensor in block.tensors if tensor.experts)
        for layer in block.layers if block.place not in (FIRST, LAST, DRAFT, VISION) else ():
            dense[layer] += one
            experts[layer] += of_experts
        if block.place == FIRST:
            embeddings += block.times * one
        elif block.place == LAST:
            output += block.times * one
        elif block.place == DRAFT and loaded == layers:
            dense[-1] += block.times * one
            experts[-1] += block.times * of_experts
    return LayerWeights(tuple(dense), tuple(experts), embeddings, output, found.tied)


def parts_of(args: ContextParams) -> tuple[float, ...]:
    """What of the layers each card gets: -ts, or even parts. Raises InputError for parts that are none."""
    if args.split_mode == "none":
        return (1.0,)
    if args.tensor_split is None:
        return (1.0,) * args.cards
    words = re.split(r"[,/]+", args.tensor_split)
    if len(words) > MOST_PARTS or not all(re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", word.strip()) for word in words):
        raise InputError(f"--tensor-split {quoted(args.tensor_split, 40)} is no list of parts", fix="write 3,1")
    parts = [float(word) for word in words][: args.cards]
    parts += [0.0] * (args.cards - len(parts))
    return tuple(parts) if any(parts) else (1.0,) * args.cards


@lru_cache(maxsize=64)
def devices_of(layers: int, offloaded: int, parts: tuple[float, ...]) -> tuple[int, ...]:
    """The device of every layer, the output last; ``offloaded`` counts it."""
    points, total = [], 0.0
    for part in parts:
        total = _single(total + part)
        points.append(total)
    points = [_single(point / total) for point in points]
    first, count = max(layers + 1 - offloaded, 0), min(offloaded, layers + 1)
    return tuple(
        HOST if layer < first or layer - first >= count else bisect_right(points, _single((layer - first) / count))
        for layer in range(layers + 1)
    )


def _single(number: float) -> float:
    """A number as float32 holds it."""
    found: float = unpack("<f", pack("<f", number))[0]
    return found


def offloaded_of(args: ContextParams, layers: int) -> int:
    """Layers that are given to cards, the output among them, before --fit changes that."""
    return layers + 1 if args.n_gpu_layers < 0 else min(args.n_gpu_layers, layers + 1)


def placed(
    ready: Prepared, weights: LayerWeights | None, offloaded: int | None = None, experts_on_host: int = 0
) -> Devices:
    """Where everything lies; ``weights`` None leaves weights out, the others are what --fit leaves on the cards."""
    args, layers, parts = ready.args, layers_in_all(ready.model), parts_of(ready.args)
    experts_on_host = max(experts_on_host, layers if args.cpu_moe else args.n_cpu_moe)
    where = devices_of(layers, offloaded_of(args, layers) if offloaded is None else offloaded, parts)
    held = [[0, 0, 0, 0] for _ in range(len(parts) + 1)]  # the host is the last
    for layer, device in enumerate(where):
        held[device][0] += 1
        if weights is not None:
            if layer < layers:
                held[device][1] += weights.dense[layer]
                held[HOST if layer < experts_on_host else device][1] += weights.experts[layer]
            else:
                held[device][1] += weights.output + (weights.embeddings if weights.tied and device != HOST else 0)
    held[HOST][1] += weights.embeddings if weights is not None else 0
    for layer, (kv, state) in enumerate(_caches(ready)):
        device = where[layer] if args.offload_kqv else HOST
        held[device][2] += kv
        held[device][3] += state
    *cards, host = (Device(f"GPU {at}", *each) for at, each in enumerate(held))
    return Devices(tuple(cards), host._replace(name="host"), args.split_mode not in UNMODELLED)


def _caches(ready: Prepared) -> list[tuple[int, int]]:
    """Bytes of KV and of states in each layer, those of drafts last."""
    caches = {cache.name: _each(cache) for cache in ready.caches}
    whole = caches.get("all", 0) + caches.get("index", 0)
    held = {"a": whole, "b": whole, "w": caches.get("window", 0)}
    state = ready.sequences * (1 + ready.copies) * (ready.r + ready.s) * ELEMENT if ready.state_layers else 0
    rows = [(held.get(letter, 0), state if letter in "sb" else 0) for letter in ready.model.layers]
    draft = _each(ready.draft) if ready.draft is not None else 0
    return [*rows, *([(draft, 0)] * ready.model.draft_layers)]


def _each(cache: CellCache) -> int:
    return (cache.k_bytes + cache.v_bytes) // cache.layers


def most_layers(ready: Prepared, weights: LayerWeights, bytes_of: float, free: Sequence[float]) -> int:
    """Layers that the cards hold when --fit fills them from the last layer on, with their caches, the output first.

    ``bytes_of`` a unit of ``weights``, ``free`` bytes of each card.
    """
    layers, rows = layers_in_all(ready.model), [*_caches(ready), (0, 0)]
    output = weights.output + (weights.embeddings if weights.tied else 0)
    sizes = [
        (output if layer == layers else weights.dense[layer] + weights.experts[layer]) * bytes_of
        + (sum(rows[layer]) if ready.args.offload_kqv else 0)
        for layer in range(layers + 1)
    ]
    count = 0
    for left in reversed(free):
        while count <= layers and sizes[layers - count] <= left:
            left -= sizes[layers - count]
            count += 1
    return count


def caches_on_cards(ready: Prepared) -> int:
    """Bytes of KV and states on the cards, as asked."""
    if ready.args.n_gpu_layers < 0 and ready.args.offload_kqv:
        return ready.kv_bytes + ready.draft_bytes + ready.state_bytes
    return placed(ready, None).caches


def layers_in_all(model: Architecture) -> int:
    """Blocks of a model's file: layers, and those of drafts."""
    return len(model.layers) + model.draft_layers
