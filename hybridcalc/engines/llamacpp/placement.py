"""Which device holds what: weights by layer, KV and states with their layers, the output layer, what stays on the host.

    first = layers + 1 - ngl        layers before it are the host's; the output counts as the last layer
    card  = the first whose part of the split, cumulated in float32, is above (layer - first) / ngl

Embeddings of tokens are the host's, and are there twice where the output is tied to them and on a card. -ts states the
parts of the split, free memory does else: even parts of equal cards. --cpu-moe and --n-cpu-moe leave experts to the
host, -nkvo KV and states, -ot tensors by name. -sm row shares the rows of each matrix but those of experts by the parts
of the split, to a few rows (not checked against a boot). Source: llama.cpp src/llama-model.cpp load_tensors,
src/llama-kv-cache.cpp (b11434). Leaves out -sm tensor.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from struct import pack, unpack
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.gguf import Header
from hybridcalc.architecture.tensors import DRAFT, FIRST, LAST, VISION, Tensor
from hybridcalc.architecture.weights import Parameters
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.overrides import HOST, Overrides, device_of, whole_layers
from hybridcalc.engines.llamacpp.planner import ELEMENT, CellCache, Prepared
from hybridcalc.errors import InputError, quoted

MOST_PARTS = 128
_BLOCK = re.compile(r"blk\.([0-9]{1,5})\.")
_EXPERTS = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")


class LayerWeights(NamedTuple):
    """Sizes by layer, in bytes or in parameters: without experts, of experts; of the embeddings, and of the output,
    which is the embeddings once more where it is ``tied`` to them. ``moved``: devices and what -ot puts there by name;
    ``modelled`` is false where that does not follow, and what is not moved stands with its layers.
    """

    dense: tuple[int, ...]
    experts: tuple[int, ...]
    embeddings: int
    output: int
    tied: bool
    moved: tuple[tuple[int, int], ...] = ()
    modelled: bool = True

    @property
    def whole(self) -> int:
        """All of it, once."""
        of_layers = sum(self.dense) + sum(self.experts) + sum(size for _, size in self.moved)
        return of_layers + self.embeddings + self.output


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


def of_header(header: Header, layers: int, loaded: int, overrides: Overrides = ()) -> LayerWeights:
    """Bytes of the tensors of a GGUF header; layers from ``loaded`` on are of drafts that are not used."""
    dense, experts, moved, embeddings, output, tied = [0] * layers, [0] * layers, Counter[int](), 0, 0, True
    for tensor in header.tensors:
        block, size = _BLOCK.match(tensor.name), tensor.bytes
        device = device_of(tensor.name, overrides) if overrides else None
        layer = int(block[1]) if block is not None else layers
        tied = tied and not (tensor.name == "output.weight" or ("token_embd" in tensor.name and device is not None))
        if loaded <= layer < layers:
            continue
        if "token_embd" in tensor.name:
            embeddings += size
        elif device is not None:
            moved[device] += size
        elif layer < layers:
            (experts if _EXPERTS.search(tensor.name) else dense)[layer] += size
        else:
            output += size
    return LayerWeights(tuple(dense), tuple(experts), embeddings, output, tied, tuple(moved.items()))


@lru_cache(maxsize=64)
def of_parameters(found: Parameters, layers: int, loaded: int, overrides: Overrides = ()) -> LayerWeights:
    """Parameters by layer; those of drafts that are used are in the last one. Raises NotPlain."""
    dense, experts, moved, embeddings, output = [0] * layers, [0] * layers, Counter[int](), 0, 0
    elsewhere = whole_layers(layers, overrides) if overrides else {}
    for block in found.blocks:
        one = sum(tensor.parameters for tensor in block.tensors if not tensor.experts)
        of_experts = [(_ggml_names(tensor), tensor.parameters) for tensor in block.tensors if tensor.experts]
        many = sum(size for _, size in of_experts)
        for layer in block.layers if block.place not in (FIRST, LAST, DRAFT, VISION) else ():
            if layer in elsewhere:
                moved[elsewhere[layer]] += one
            else:
                dense[layer] += one
            if not overrides:
                experts[layer] += many
                continue
            for names, size in of_experts:
                for name in names:
                    device = device_of(f"blk.{layer}.{name}.weight", overrides)
                    if device is None:
                        experts[layer] += size // len(names)
                    else:
                        moved[device] += size // len(names)
        if block.place == FIRST:
            embeddings += block.times * one
        elif block.place == LAST:
            output += block.times * one
        elif block.place == DRAFT and loaded == layers:
            dense[-1] += block.times * one
            experts[-1] += block.times * many
    tied = found.tied and device_of("token_embd.weight", overrides) is None
    if output and (device := device_of("output.weight", overrides)) is not None:
        moved[device], output = moved[device] + output, 0
    return LayerWeights(tuple(dense), tuple(experts), embeddings, output, tied, tuple(moved.items()))


def _ggml_names(tensor: Tensor) -> tuple[str, ...]:
    """What a GGUF file calls the parts of a tensor of experts, each as large."""
    if "down" in tensor.name:
        return ("ffn_down_exps",)
    return ("ffn_gate_exps", "ffn_up_exps")[-len(tensor.rows) :]


def of_drafts(name: str, layers: int) -> bool:
    """Whether a tensor of a GGUF file belongs to a block behind so many layers."""
    block = _BLOCK.match(name)
    return block is not None and int(block[1]) >= layers


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
    for device, size in weights.moved if weights is not None else ():
        held[device][1] += size
    if args.split_mode == "row":
        _share_rows(held, weights, where, parts)
    names = [f"GPU {args.main_gpu if args.split_mode == 'none' else at}" for at in range(len(parts))]
    *cards, host = (Device(name, *each) for name, each in zip((*names, "host"), held, strict=True))
    return Devices(tuple(cards), host, args.split_mode != "tensor" and (weights is None or weights.modelled))


def _share_rows(
    held: list[list[int]], weights: LayerWeights | None, where: tuple[int, ...], parts: tuple[float, ...]
) -> None:
    """Rows of every matrix but those of experts, shared by the parts of the split: -sm row."""
    if weights is None:
        return
    sizes = (*weights.dense, weights.output + (weights.embeddings if weights.tied else 0))
    shared = 0
    for size, device in zip(sizes, where, strict=True):
        if device != HOST:
            held[device][1] -= size
            shared += size
    for card, part in enumerate(parts):
        held[card][1] += round(shared * part / sum(parts))


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
