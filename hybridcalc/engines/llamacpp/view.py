"""What a llama.cpp plan comes to, for people: verdict, figures, cells of a comparison."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hybridcalc.deployment import WEIGHTS_NAME
from hybridcalc.engines.llamacpp.figures import bounded
from hybridcalc.engines.llamacpp.memory import compute_buffer, part_on_cards
from hybridcalc.engines.llamacpp.overrides import HOST
from hybridcalc.engines.llamacpp.server_plan import MOST, Plan
from hybridcalc.engines.view import counted, memory_figure, pools_picture
from hybridcalc.findings import Quantity
from hybridcalc.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from hybridcalc.engines.charts import Picture
    from hybridcalc.engines.play import Play

SAID = ()


def verdict(plan: Plan) -> tuple[str, str]:
    """What the plan comes to: the headline, and what it means."""
    ready = plan.ready
    slots = f"{ready.sequences} slot{'' if ready.sequences == 1 else 's'}"
    each = f"{slots} of {ready.slot_tokens:,} tokens"
    if ready.streams == 1 and ready.sequences > 1:
        each = f"{slots} share {ready.n_ctx:,} tokens"
    elif ready.sequences > 1:
        each += f", {ready.sequences * ready.slot_tokens:,} in all"
    if ready.front is not None:
        each += f", by Ollama {ready.front.rules.version}"
    if plan.workload.lengths and plan.binding == "context":
        each += f", and none holds {plan.workload.longest:,}"
    return counted(plan), each


def figures(plan: Plan) -> list[Quantity]:
    """The figures it rests on."""
    ready, (moved, devices) = plan.ready, _devices(plan)
    rows = list[Quantity]()
    if ready.state_layers:
        copies = f" x {1 + ready.copies} copies" if ready.copies else ""
        one, token = ready.sequence_state_bytes, ready.kv_bytes_per_token
        weighs = f" ({one / token:,.0f} tokens of KV)" if token else ""
        each = f"{ready.sequences} x {format_bytes(one)}{weighs}{copies}, f32"
        rows.append(Quantity("states", f"{ready.state_bytes:,} B", f"{ready.state_bytes / MIB:,.2f} MiB", each))
    if ready.caches:
        types = "" if plan.args.type_k == plan.args.type_v == "f16" else f", {plan.args.type_k}/{plan.args.type_v}"
        row = sum(held.layers * (held.k_row + held.v_row) for held in ready.caches if held.name != "window")
        streams = f"{ready.streams} streams of" if ready.streams > 1 else "one stream of"
        why = f"{streams} {ready.n_ctx_seq:,} cells, {row:,} B a token{types}"
        rows.append(Quantity("KV", f"{ready.kv_bytes:,} B", format_bytes(ready.kv_bytes), why))
    rows += [*moved, *devices]
    if ready.draft_bytes:
        rows.append(
            Quantity(
                "KV of drafts", f"{ready.draft_bytes:,} B", f"{ready.draft_bytes / MIB:,.2f} MiB", "its own context"
            )
        )
    on_cards = [part for part in plan.rest.parts if part.name == WEIGHTS_NAME]
    if not on_cards and plan.weighed is not None:
        on_cards = [part_on_cards(plan.weighed, plan.placement)]
    weights, compute = on_cards[0] if on_cards else None, compute_buffer(ready)
    if weights is not None:
        rows.append(Quantity("weights", weights.text, "GiB", weights.why))
    if compute is not None:
        low, likely, high = (size / MIB for size in compute)
        rows.append(
            Quantity(
                "compute",
                f"{likely:,.0f}",
                "MiB",
                f"an estimate, {low:,.0f} to {high:,.0f}: batches of {ready.n_ubatch}",
            )
        )
    if ready.checkpoint_bytes:
        most = f"of host memory; {plan.args.ctx_checkpoints} a slot: {format_bytes(plan.checkpoints_bytes)} at most"
        rows.append(
            Quantity("checkpoint", f"{ready.checkpoint_bytes:,} B", f"{ready.checkpoint_bytes / MIB:,.3f} MiB", most)
        )
    if bounded(plan.rest):
        rows.append(memory_figure(plan.rest))
    return rows if plan.rest.total_gib is None else [_whole(plan, plan.rest.total_gib), *rows]


def _whole(plan: Plan, cards_gib: float) -> Quantity:
    """Weights, caches and compute buffers together, against the memory of all cards."""
    caches, rest, cards = plan.placement.caches / GIB, plan.rest, plan.args.used_cards
    low, likely, high = (caches + sum(getattr(part, end) for part in rest.parts) for end in ("low", "likely", "high"))
    fits = "fits" if caches <= rest.low_gib else "may fit" if caches <= rest.high_gib else "does not fit"
    if plan.offloaded is not None or plan.experts_on_host:
        fits = "does not fit"
    elif fits == "fits" and (lack := plan.lacking(MOST)) is not None:
        fits = f"{lack.name} may lack {lack.held - lack.card:.2f}"
    bounds = "" if low == high else f"{low:.2f} to {high:.2f} "
    free = f", {rest.headroom_gib:.2f} kept free" if rest.headroom_gib else ""
    of = f"{bounds}of {cards_gib:.2f}{'' if cards == 1 else f' on {cards} cards'}{free}: {fits}"
    label = "on the cards" if _left_to_host(plan) and fits != "does not fit" else "all of it"
    return Quantity(label, f"{likely:.2f}", "GiB", of)


def _left_to_host(plan: Plan) -> bool:
    """Whether the host computes with weights: of layers, or of experts."""
    args = plan.args
    moved = plan.weighed is not None and any(device == HOST for device, _ in plan.weighed.layers.moved)
    return bool(plan.placement.host.layers or plan.experts_on_host or args.cpu_moe or args.n_cpu_moe or moved)


def _devices(plan: Plan) -> tuple[list[Quantity], list[Quantity]]:
    """What each card and the host hold, where that is more than one card with everything; the host first and apart
    where it computes with some of it.
    """
    placement, found = plan.placement, plan.weighed
    cards, host = placement.cards, placement.host
    if not placement.modelled or found is None or (len(cards) == 1 and not _left_to_host(plan)):
        return [], []
    rows = []
    for device in (*(card for card in cards if card.layers), host):
        part = found.part(device.weights)
        caches = (device.kv + device.state) / GIB
        what = f"{device.layers} layer{'' if device.layers == 1 else 's'}, {caches:.2f} of KV and states"
        if device is host and device.layers == 0:
            what = "embeddings" + (", experts" if _left_to_host(plan) else "")
        rows.append(Quantity(device.name, f"{part.likely + caches:.2f}", "GiB", f"{part.text} of weights, {what}"))
    return (rows[-1:], rows[:-1]) if _left_to_host(plan) else ([], rows)


def cells(plan: Plan) -> dict[str, str]:
    """One side of a comparison."""
    ready = plan.ready
    return {
        "slots": f"{ready.sequences}",
        "tokens a slot": f"{ready.slot_tokens:,}" + (" shared" if ready.streams < ready.sequences else ""),
        "KV": format_bytes(ready.kv_bytes),
        "states": format_bytes(ready.state_bytes),
        "checkpoints": format_bytes(plan.checkpoints_bytes),
        "requests at once": f"{plan.requests:,}",
    }


def pictures(plan: Plan) -> Mapping[str, "Callable[[], Picture]"]:
    """Where the memory goes."""
    return {"memory": partial(pools_picture, plan)}


def play(plan: Plan) -> "Play | None":
    """Nothing that a browser could recompute."""
    return None
