"""What does --fit change of a server that does not fit? First a context that nobody set, then what the cards hold.

    n_ctx = least + (most - least) x (target - used(least)) / (used(most) - used(least)), in steps of 256 a stream
    layers: from the last one on, as many as each card holds; of a model with experts those go to the host first

``most`` is the trained length for every stream, ``least`` --fit-ctx for each; the target is what the cards have less 1
GiB each and, of several cards, less what whole layers waste. Source: llama.cpp common/fit.cpp (b11434). Used is an
estimate where weights or compute buffers are, so what this says is what the likely memory gives. Leaves out: parts of a
layer, extra models.
"""

from typing import NamedTuple

from hybridcalc.deployment import Rest
from hybridcalc.engines.llamacpp import PADDING, ContextParams
from hybridcalc.engines.llamacpp.memory import FREE_GIB, NO_SIZES, Weighed, compute_buffer, weighed
from hybridcalc.engines.llamacpp.placement import caches_on_cards, layers_in_all, most_layers, placed
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.units import GIB


class Shrunk(NamedTuple):
    """What --fit leaves: the context, layers on cards (None: as asked), and layers whose experts the host holds."""

    ready: Prepared
    offloaded: int | None = None
    experts_on_host: int = 0


def free_of_cards(ready: Prepared, rest: Rest) -> list[float]:
    """Bytes of each card for weights, KV and states; empty where no card is named."""
    if rest.total_gib is None:
        return []
    cards = ready.args.used_cards
    kept = FREE_GIB if ready.args.fit else 0.0
    return [(rest.total_gib / cards - kept) * GIB - scratch_of(ready)] * cards


def scratch_of(ready: Prepared) -> float:
    """Bytes of compute buffers, as is likely."""
    return (compute_buffer(ready) or NO_SIZES).likely


def shrunk(asked: Prepared, rest: Rest) -> Shrunk:
    """What --fit makes of a server; the same where it fits."""
    ready = asked
    if not asked.args.n_ctx and used_bytes(asked, rest) > rest_bytes(asked, rest):
        ready = _shorter(asked, rest)
    args, free = ready.args, free_of_cards(ready, rest)
    found = weighed(ready) if free else None
    if found is None or not movable(args) or _fits(ready, found, free):
        return Shrunk(ready)
    return _moved(ready, found, free)


def movable(args: ContextParams) -> bool:
    """Whether --fit is on and may move layers: nothing that says where they are is set."""
    by_hand = args.tensor_split or args.override_tensor or args.cpu_moe or args.n_cpu_moe
    return args.fit and not by_hand and args.n_gpu_layers < 0 and args.split_mode in ("layer", "none")


def used_bytes(ready: Prepared, rest: Rest) -> float:
    """KV and states on the cards, and where a card is named what grows with the context of compute buffers."""
    return caches_on_cards(ready) + (scratch_of(ready) if rest.total_gib is not None else 0)


def rest_bytes(asked: Prepared, rest: Rest) -> float:
    """What there is for them."""
    return rest.likely_gib * GIB + (scratch_of(asked) if rest.total_gib is not None else 0)


def _shorter(asked: Prepared, rest: Rest) -> Prepared:
    """The context by interpolation between the shortest and the whole one."""
    args, streams = asked.args, asked.streams
    most, least = asked.n_ctx, args.fit_ctx * streams
    if most <= least:
        return asked
    target = rest_bytes(asked, rest)
    if args.used_cards > 1 and rest.total_gib is not None and (found := weighed(asked)) is not None:
        layer = found.layers.whole * found.bytes_of[1] / layers_in_all(asked.model)
        target -= (args.cards + 1) * layer / (6 if any(found.layers.experts) else 2)
    shortest = prepare(asked.model, args.changed(n_ctx=least))
    used_least, used_most = used_bytes(shortest, rest), used_bytes(asked, rest)
    tokens = least
    if target > used_least:
        tokens += int((most - least) * (target - used_least) / (used_most - used_least))
        tokens = max(tokens - tokens % (PADDING * streams), least)
    return prepare(asked.model, args.changed(n_ctx=tokens))


def _fits(ready: Prepared, found: Weighed, free: list[float]) -> bool:
    cards = placed(ready, found.layers).cards
    return all(
        card.weights * found.bytes_of[1] + card.kv + card.state <= left for card, left in zip(cards, free, strict=True)
    )


def _moved(ready: Prepared, found: Weighed, free: list[float]) -> Shrunk:
    """Layers moved to the host: whole ones of a dense model; of experts first, as few as do."""
    layers = layers_in_all(ready.model)
    if not any(found.layers.experts):
        return Shrunk(ready, most_layers(ready, found.layers, found.bytes_of[1], free))
    for count in range(1, layers + 1):
        if _fits(ready._replace(args=ready.args.changed(n_cpu_moe=count)), found, free):
            return Shrunk(ready, None, count)
    dense = found.layers._replace(experts=(0,) * layers)
    return Shrunk(ready, most_layers(ready, dense, found.bytes_of[1], free), layers)
