"""What may be varied of a llama.cpp server to make a model fit: the type mix of its file, cards, types of KV; and the
slots that then run.

Every slot has a stream of the longest request; a server takes as many slots as every card holds for certain: weights,
caches and compute buffers at the high end of what is estimated. Nothing is left to the host.

And what one combination of a sweep comes to: one whose caches the cards do not hold is refused, and a context that
nobody set is as long as fits.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import named_as_quantised
from hybridcalc.architecture.quantization_names import mix_of
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.better import Change
from hybridcalc.engines.llamacpp import MOST_SEQUENCES, PLAIN, ContextParams, padded
from hybridcalc.engines.llamacpp.memory import FREE_GIB, NO_SIZES, compute_buffer, header_of, weighed
from hybridcalc.engines.llamacpp.placement import caches_on_cards, placed
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.engines.llamacpp.server_plan import plan
from hybridcalc.engines.shapes import ACCURACY, AS_IT_IS, CONTEXT, Axes, Fitting, Nodes, Shape
from hybridcalc.engines.sweep import Outcome, Sweeping
from hybridcalc.errors import Refusal
from hybridcalc.units import GIB

MIXES = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")
"""Type mixes that are tried, from the whole weights down."""
WHOLE = frozenset({"BF16", "F16", "F32"})


def _checkpoints(models: Iterable[Architecture]) -> Iterator[Architecture]:
    """Files of each model: the one that is named with its mix, else one of every mix; checkpoints of other engines that
    are quantised their own way are none.
    """
    seen = set[str]()
    for model in models:
        if header_of(model) is not None or mix_of(model.asked) is not None:
            yield model
        elif model.config is None and model.name not in seen and not named_as_quantised(model.asked):
            seen.add(model.name)
            for mix in MIXES:
                yield model._replace(asked=f"{model.name}:{mix}")


def _shapes(model: Architecture, ranks: int, most_tp: int) -> Iterator[Shape]:
    """Layers shared out over the cards of one server."""
    if ranks <= most_tp:
        mix = mix_of(model.asked)
        risk = "none" if header_of(model) is not None or mix in WHOLE else "accuracy"
        yield Shape({"cards": ranks}, ranks, copied=False, risk=risk)


def _axes(model: Architecture, args: ContextParams, allowed: frozenset[str]) -> Axes:
    """Types of K and V."""
    if ACCURACY not in allowed or args.type_k not in PLAIN or not prepare(model, args).caches:
        return ((AS_IT_IS,),)
    fields = {"type_k": "q8_0", "type_v": "q8_0"}
    return ((AS_IT_IS, Change("-ctk q8_0 -ctv q8_0", fields, "about halves the KV of a token", "accuracy")),)


def _started(args: ContextParams, workload: Workload) -> ContextParams:
    return args.changed(n_ctx=workload.longest or 1, n_seq_max=1, kv_unified=False)


def _request_bytes(model: Architecture, args: ContextParams, workload: Workload) -> Fraction:
    """State and stream of a slot, on the average card. Raises Refusal for requests beyond the context."""
    if model.max_context and workload.longest > model.max_context:
        raise Refusal(
            f"{workload.longest:,} tokens are beyond the context of {model.name}, {model.max_context:,}",
            stage=CONTEXT,
            rule="",
        )
    ready = prepare(model, args.changed(n_seq_max=1))
    return Fraction(max(1, ready.kv_bytes + ready.draft_bytes + ready.state_bytes), args.cards)


def _slots(args: ContextParams, workload: Workload, slots: int) -> ContextParams:
    """So many streams, each as long as the longest request."""
    return args.changed(n_seq_max=slots, n_ctx=padded(max(1, workload.longest)) * slots)


def _leanest(args: ContextParams) -> ContextParams:
    """One slot, as started: more of them have larger compute buffers."""
    return args


def _tuned(
    model: Architecture, args: ContextParams, rest: Rest, workload: Workload, limit: int | None = None
) -> ContextParams:
    """The most slots that every card holds for certain, by halving."""
    low, high = 0, min(MOST_SEQUENCES, limit or MOST_SEQUENCES) + 1
    while low + 1 < high:
        middle = (low + high) // 2
        if _held(prepare(model, _slots(args, workload, middle)), rest):
            low = middle
        else:
            high = middle
    if not low:
        each = float(_request_bytes(model, args, workload)) * args.cards / GIB
        reason = f"a request takes {each:.2f} GiB, of which {rest.low_gib:.2f} are left for certain"
        raise Refusal(reason, stage="llama_kv_cache", rule="HC204")
    return _slots(args, workload, low)


def _held(ready: Prepared, rest: Rest) -> bool:
    """Whether every card holds its part at the high end of the estimates."""
    found = weighed(ready)
    if found is None or rest.total_gib is None:
        return ready.kv_bytes + ready.draft_bytes + ready.state_bytes <= rest.low_gib * GIB
    scratch = (compute_buffer(ready) or NO_SIZES).high
    each = (rest.total_gib / ready.args.used_cards - FREE_GIB) * GIB - scratch
    cards = placed(ready, found.layers).cards
    return all(card.weights * found.bytes_of[2] + card.kv + card.state <= each for card in cards)


FITTING = Fitting(_shapes, _axes, _started, _tuned, _request_bytes, _leanest, "", Nodes(), _checkpoints)


ROUNDING = 1024
"""Bytes that a size in GiB may be off by as a float."""


def _solve(ready: Prepared, args: ContextParams, gib: float, work: Workload) -> Outcome:
    """Slots, tokens, requests and what binds. Raises Refusal for what does not start, or not whole on the cards."""
    found = plan(ready.model, args, rest=exact_rest(gib), workload=work)
    needed = caches_on_cards(found.ready)
    if needed > gib * GIB + ROUNDING:
        reason = f"KV and states take {needed / GIB:.2f} GiB, {max(gib, 0):.2f} are left: layers go to the host"
        raise Refusal(reason, stage="llama_kv_cache", rule="HC219")
    return Outcome(found.ready.sequences, found.tokens, found.requests, found.binding)


SWEEPING = Sweeping(prepare, _solve, (), ("n_seq_max", "n_ctx"), "slots", tried=False)
