"""What a prefix cache does, for people: verdict, figures, what to set, what else would change, the best split."""

from collections.abc import Iterator, Sequence

from hybridcalc.findings import BOLD, SAFE, Choice, Quantity, Table, View
from hybridcalc.reuse.answer import BLOCKS, BOTH, CHECKPOINTS, HOST_KV, HOST_STATE, KV, STATE, Reuse
from hybridcalc.reuse.knee import COARSE_KV_STEPS, SHARE, Knee
from hybridcalc.reuse.pictures import pictures_of
from hybridcalc.reuse.play import play_of
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.settings import Cost
from hybridcalc.reuse.simulation import Outcome
from hybridcalc.reuse.what_if import SLOTS, Row, Split
from hybridcalc.units import MIB, format_bytes

SPLITS_SHOWN = 7
HELD_SHOWN = 6


def reuse_view(answer: Reuse) -> View:
    """The whole answer."""
    own, priced = _wants(answer.outcome, answer.knee, answer.kv_needed), answer.priced is not None
    rows, same = [(*own, *_price(answer, answer.price(answer.settings)), "as asked")], []
    for row in answer.rows or ():
        weighs = answer.price(row.variant.settings)
        host = f", {_on_host(weighs)}" if weighs is not None and weighs.host_bytes else ""
        cells = _wants(row.outcome, row.knee, row.kv_needed)
        if cells[:2] == own[:2] and _alike(row.kv_needed, answer.kv_needed):
            same.append(row.variant.flags)
        else:
            rows.append((*cells, *_price(answer, weighs), row.variant.flags + host))
    what_if = Table(
        "What if",
        ("reused", "knee", "KV wanted", *(("memory",) if priced else ()), "what if"),
        tuple(rows) if answer.rows else (),
        tuple(range(4 if priced else 3)),
    )
    header = ("running", "cached slots", "tokens reused", "recomputed", "work", "")
    split = Table("Split", header, tuple(_split_rows(answer.splits)) if answer.splits else (), tuple(range(5)))
    return View(
        f"Prefix reuse on {answer.settings.engine}: {answer.workload.name}",
        *_verdict_of_all(answer),
        figures=tuple(_figures(answer)),
        choices=tuple(_choices(answer)),
        tables=(what_if, split),
        notes=(*([f"no more is reused with {'; '.join(same)}"] if same else ()), *answer.notes),
        steps=tuple(answer.steps),
        pictures=pictures_of(answer),
        play=lambda: play_of(answer),
    )


def _verdict_of_all(answer: Reuse) -> tuple[str, str]:
    """The verdict, with which requests it is of: of one worker, and without those that the server refuses."""
    headline, meaning = _verdict(answer)
    within, workers = answer.within, answer.workers
    if workers > 1:
        shared = answer.workload.rounds is not None
        meaning += f"; {'each' if shared else 'one'} of {workers:,} workers, "
        meaning += "which share the prefixes" if shared else "sent the whole trace"
    if within is not None and within.refused:
        sent = f"{within.refused:,} of {within.served + within.refused:,} requests"
        meaning += f"; {sent} are refused: longer than {within.context:,} tokens"
    return headline, meaning


def _verdict(answer: Reuse) -> tuple[str, str]:
    """What the answer comes to: the headline, and what it means."""
    outcome, knee, given = answer.outcome, answer.knee, answer.settings.slots
    headline = f"{_percent(outcome.token_hit_rate)} of prompt tokens reused"
    if knee is None:
        return headline, f"{_percent(outcome.hit_rate)} of requests hit, with {given:,} slots"
    if knee.slots is None:
        capped = answer.setup.policy.path_cap != NO_CAP and not answer.settings.running
        alone = ", one request at a time" if capped else ""
        return headline, f"this workload reuses nothing with any number of slots{alone}"
    if answer.setup.server is not None and answer.lost_to == CHECKPOINTS:
        few = answer.setup.server.checkpoints
        return headline, f"checkpoints lose the rest: a slot keeps {few:,} (--ctx-checkpoints)"
    if answer.setup.has_host:
        return headline, _with_host(answer, knee)
    if answer.lost_to in (KV, BOTH, BLOCKS):
        return headline, _short_of(answer, knee)
    if not answer.given and not answer.setup.bounds_kv:
        return headline, f"with {_slots(knee.slots)} and {answer.kv_needed or 0:,} KV tokens"
    if answer.setup.pool is not None:
        blocks = f"of the {answer.setup.pool.blocks:,} blocks there are"
        return headline, f"{_slots(knee.slots)} and {answer.kv_needed or 0:,} KV tokens are wanted {blocks}"
    int8 = answer.settings.int8_slots
    pool, kind = (given, "") if int8 is None else (int8, "int8 ")
    given_text = f"{pool:,} {'is' if pool == 1 else 'are'} given" if int8 is None else f"the int8 pool has {pool:,}"
    if not answer.given:
        given_text = f"the engine's own share of the memory is {pool:,}"
    one = knee.slots == 1
    verb = ("suffices" if one else "suffice") if answer.enough else ("is wanted" if one else "are wanted")
    given_text = "" if pool == knee.slots else f", {given_text}"
    return headline, f"{knee.slots:,} {kind}slot{'' if one else 's'} {verb}{given_text}"


def _slots(number: int) -> str:
    return f"{number:,} slot{'' if number == 1 else 's'}"


def _with_host(answer: Reuse, knee: Knee) -> str:
    """What the host tier does, and which of its pools lost the rest."""
    setup, need, limit = answer.setup, answer.host_needed, knee.limit.hit_tokens
    if setup.server is not None and limit < SHARE * answer.outcome.hit_tokens:
        return f"the host cache adds to the {_percent(knee.limit.token_hit_rate)} that slots alone reach"
    needed, kv_tokens = answer.kv_needed or 0, setup.kv_tokens
    if answer.enough and setup.cached_slots >= (knee.cached_slots or 0) and (kv_tokens is None or kv_tokens >= needed):
        return f"{_slots(knee.slots or 0)} would do without the host tier"
    without = f"without a host tier {_slots(knee.slots or 0)} and {answer.kv_needed or 0:,} KV tokens are wanted"
    if answer.enough:
        return f"the host tier suffices; {without}"
    if need is None:
        return f"no host tier reaches {_percent(knee.limit.token_hit_rate)}; {without}"
    if answer.lost_to == HOST_STATE:
        return f"the host's states lose the rest: {need.slots or 0:,} slots are wanted, it has {setup.host_slots:,}"
    if answer.lost_to == HOST_KV:
        return (
            f"the host's KV loses the rest: {need.kv_tokens or 0:,} tokens are wanted, it has {setup.host_kv_tokens:,}"
        )
    if setup.server is not None:
        has = format_bytes(setup.server.cache_bytes)
        return f"the host cache loses the rest: {format_bytes(need.bytes or 0)} are wanted, it has {has}"
    if setup.host_chunks is not None:
        return f"the host loses the rest: {need.chunks:,} chunks are wanted, it has {setup.host_chunks.blocks:,}"
    return f"the host loses the rest: {need.slots:,} slots and {need.kv_tokens:,} KV tokens are wanted there"


def _short_of(answer: Reuse, knee: Knee) -> str:
    """What is wanted where KV lacks, or both do, or the blocks of their one pool."""
    wanted, setup = f"{answer.kv_needed or 0:,} KV tokens", answer.setup
    if setup.pool is not None and answer.lost_to == BLOCKS:
        blocks = setup.pool.per_state * (knee.slots or 0) + setup.pool.per_page * -(
            -(answer.kv_needed or 0) // setup.policy.grid
        )
        return f"the pool loses the rest: {blocks:,} blocks are wanted, it has {setup.pool.blocks:,}"
    there = f"{setup.kv_tokens or 0:,} lie beside {_slots(answer.settings.slots)}"
    if answer.machines is not None:
        there += f"; {answer.machines.gpus} x {answer.machines.gpu} hold them {answer.machines.differs}".rstrip()
    if answer.lost_to == KV:
        return f"KV loses the rest: {wanted} are wanted, {there}"
    return f"both pools lose the rest: {_slots(knee.slots or 0)} and {wanted} are wanted, {there}"


def _wants(outcome: Outcome, knee: Knee | None, kv_needed: int | None) -> tuple[str, str, str]:
    """Cells: the rate, the slots and the KV tokens that are wanted for it."""
    slots = "-" if knee is None or knee.slots is None else f"{knee.slots:,}"
    return _percent(outcome.token_hit_rate), slots, "-" if kv_needed is None else f"{kv_needed:,}"


def _alike(one: int | None, other: int | None) -> bool:
    """Whether KV needs differ by no more than what they are rounded by."""
    return one == other if one is None or other is None else COARSE_KV_STEPS * abs(one - other) <= 2 * other


def _figures(answer: Reuse) -> list[Quantity]:
    """The figures it rests on, the most telling first."""
    outcome, settings, knee = answer.outcome, answer.settings, answer.knee
    rounds, pool = answer.warmup_rounds, settings.slots if settings.int8_slots is None else settings.int8_slots
    left_out = f"; {rounds:,} warm-up round{'' if rounds == 1 else 's'} left out" if rounds else ""
    rows = []
    if knee is not None and knee.slots is not None and knee.at_knee is not None:
        rate, most = _percent(knee.at_knee.token_hit_rate), _percent(knee.limit.token_hit_rate)
        told = f"{rate} of tokens; any number of slots: {most}"
        at_knee = answer.price(settings.room.wanted(settings, knee.slots)[0])
        weigh = "" if at_knee is None else f"they weigh {format_bytes(at_knee.gpu_bytes)}"
        rows.append(Quantity("knee", f"{knee.slots:,}", "slots", told, weigh))
        if answer.kv_needed is not None:
            told = "" if answer.setup.kv_tokens is None else f"{answer.setup.kv_tokens:,} there are"
            rows.append(Quantity("KV wanted", f"{answer.kv_needed:,}", "tokens", "beside the knee", told))
    own = answer.price(settings)
    if answer.setup.pool is not None:
        blocks, per_state, per_page = answer.setup.pool
        why = f"a state takes {per_state}, {answer.setup.policy.grid:,} tokens of KV {per_page}"
        rows.append(Quantity("pool", f"{blocks:,}", "blocks", why))
    elif own is not None:
        why = f"{settings.slots:,}{settings.room.SPARE} slots" + (
            f", {settings.int8_slots:,} + 1 in int8" if own.int8_bytes else ""
        )
        rows.append(Quantity("slots weigh", f"{own.gpu_bytes:,} B", format_bytes(own.gpu_bytes), why))
        if own.kv_tokens is not None:
            told = "as asked for" if own.kv_tokens == settings.kv_tokens else "left of the memory"
            rows.append(Quantity("KV beside", f"{own.kv_tokens:,}", "tokens", told))
    if settings.running and answer.setup.policy.own_slots:
        each, count = answer.setup.policy.own_slots, answer.setup.policy.slots_per_request
        requests = "1 request" if settings.running == 1 else f"{settings.running:,} requests"
        why = f"{each} each of {requests}, beside the states they lock"
        told = f"the engine counts {count} each"
        rows.append(Quantity("running", f"{settings.running * each:,}", "slots", why, told))
    hits = f"{_percent(outcome.hit_rate)}; {answer.setup.policy.name}"
    return [
        *rows,
        *_host_figures(answer),
        Quantity("hit tokens", f"{outcome.hit_tokens:,}", "tokens", f"of {outcome.prompt_tokens:,} in prompts"),
        Quantity("recomputed", f"{outcome.recomputed_tokens:,}", "tokens", *_recomputed(answer)),
        Quantity("hit", f"{outcome.hits:,}", "requests", hits),
        Quantity("evictions", f"{outcome.evictions:,}", *_other_losses(answer)),
        Quantity(
            "held", f"{outcome.most_cached:,}", "slots", f"at most by cached states, of {pool:,}", _course(outcome)
        ),
        Quantity.of(
            "requests", f"{outcome.requests:,}", "", f"{answer.workload.name}: {answer.workload.description}{left_out}"
        ),
    ]


def _host_figures(answer: Reuse) -> Iterator[Quantity]:
    """What the host holds, and what goes there and back."""
    setup, need, outcome, moved = answer.setup, answer.host_needed, answer.outcome, answer.transfers
    if not setup.has_host:
        return
    if setup.server is not None:
        limit, prompts = setup.server.cache_bytes, f"{outcome.host_hits:,} hits from there"
        told = "" if need is None or need.bytes is None else f"{format_bytes(need.bytes)} are wanted"
        size = (f"{limit // MIB:,}", "MiB") if limit > 0 else ("no limit", "")
        yield Quantity("host cache", *size, prompts, told)
    elif setup.host_chunks is not None:
        per_state, per_page = setup.host_chunks.per_state, setup.host_chunks.per_page
        why = f"a state takes {per_state}, {setup.policy.grid:,} tokens of KV {per_page}"
        told = "" if need is None else f"{need.chunks:,} are wanted"
        yield Quantity("host", f"{setup.host_chunks.blocks:,}", "chunks", why, told)
    else:
        tokens = (
            "and as much KV as comes" if setup.host_kv_tokens is None else f"and {setup.host_kv_tokens:,} KV tokens"
        )
        told = "" if need is None else f"{need.slots:,} and {need.kv_tokens:,} are wanted"
        yield Quantity("host", f"{setup.host_slots:,}", "slots", tokens, told)
    if moved is None:
        told = f"{outcome.loaded_tokens:,} KV tokens with them, {outcome.stored_states:,} states stored"
        yield Quantity("loaded", f"{outcome.loaded_states:,}", "states", told)
        return
    least = "" if moved.floor_seconds is None else f"at least {_seconds(moved.floor_seconds)} s a GPU, both ways"
    told = f"from the host; {format_bytes(moved.stored_bytes)} stored there"
    yield Quantity("loaded", format_bytes(moved.loaded_bytes), "", told, least)


def _recomputed(answer: Reuse) -> tuple[str, str]:
    """What the computed tokens cost, and which of them are replayed."""
    cost, replayed = answer.recomputed, _replayed(answer.outcome)
    if cost is None:
        return replayed, ""
    low, high = cost.band_seconds
    price = f"{_seconds(cost.gpu_seconds)} s of a GPU or more, usually {_seconds(low)} to {_seconds(high)}"
    return price, replayed


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def _replayed(outcome: Outcome) -> str:
    if not outcome.preemptions:
        return ""
    return f"{outcome.replayed_tokens:,} of them after {outcome.preemptions:,} preemptions"


def _other_losses(answer: Reuse) -> tuple[str, str]:
    """What went, and what else, where it did."""
    outcome, server = answer.outcome, answer.setup.server is not None
    capped = "checkpoints over their limit" if server else "more to the path cap"
    parts = [
        f"{outcome.capped:,} {capped}" if outcome.capped else "",
        f"{outcome.kv_evictions:,} KV tokens" if outcome.kv_evictions else "",
        f"{outcome.host_hits:,} hits from the host" if outcome.host_hits else "",
    ]
    return "prompts" if server else "states", "; ".join(part for part in parts if part)


def _course(outcome: Outcome) -> str:
    """A few points of the slots held, in order."""
    held = outcome.held
    step = max(len(held) // HELD_SHOWN, 1)
    return "over time " + " ".join(f"{point.cached:,}" for point in held[step - 1 :: step][:HELD_SHOWN])


def _choices(answer: Reuse) -> Iterator[Choice]:
    """What to set, each once."""
    seen = set[str]()
    for choice in _all_choices(answer):
        if choice.flags not in seen:
            seen.add(choice.flags)
            yield choice


def _all_choices(answer: Reuse) -> Iterator[Choice]:
    """Flags that reach the knee, where the slots given do not: more slots, and each other setting that does."""
    knee, settings = answer.knee, answer.settings
    if knee is None or knee.slots is None or knee.at_knee is None:
        return
    wanted, label, told = settings.room.wanted(settings, knee.slots)
    weighs = answer.price(wanted)
    more_kv = (wanted.kv_tokens or 0) if wanted.kv_tokens != settings.kv_tokens else 0
    if not answer.given and not answer.setup.bounds_kv:
        yield Choice(SAFE if label == "set" else label, told, _effect(knee.at_knee, weighs), after=1)
    if (
        not answer.enough
        and (answer.lost_to == STATE or (answer.setup.server and answer.lost_to != CHECKPOINTS))
        and _holds(weighs, max(answer.kv_needed or 0, more_kv))
    ):
        effect, after = _effect(knee.at_knee, weighs), knee.at_knee.hit_tokens
        yield Choice(SAFE if label == "set" else label, told, effect, after=after)
    if answer.share is not None:
        flags, slots, kv_tokens = answer.share
        yield Choice(SAFE, flags, f"{slots:,} slots and {kv_tokens:,} KV tokens", after=knee.limit.hit_tokens)
    if answer.machines is not None:
        found = answer.machines
        servers = "" if found.workers == 1 else f", {found.workers} workers, each prefix on its own"
        held = f"{found.gpus} x {found.gpu} hold {found.slots:,} slots and {found.kv_tokens:,} KV tokens{servers}"
        yield Choice("GPUs", found.line, f"{held}; {found.differs}" if found.differs else held)
    yield from _others(answer, knee)


def _holds(weighs: Cost | None, kv_needed: int) -> bool:
    """Whether the memory has the KV that is wanted beside those slots."""
    return weighs is None or weighs.kv_tokens is None or weighs.kv_tokens >= kv_needed


def _others(answer: Reuse, knee: Knee) -> Iterator[Choice]:
    """Other settings that reuse as much as can be, or at least more; or as much with far fewer slots. The one that
    changes what the model computes is the bold one.
    """
    priced = answer.priced is not None
    rows = [row for row in answer.rows or () if row.variant.name != SLOTS]
    rows = [row for row in rows if not priced or answer.price(row.variant.settings) is not None]
    if answer.setup.server is not None:
        rows = [row for row in rows if _gains(answer, row) or not answer.enough]
    if answer.enough and answer.setup.server is None:
        for row in (row for row in rows if row.variant.settings.has_host == answer.settings.has_host):
            if knee.reached_by(row.outcome) and row.knee.slots and 10 * row.knee.slots <= 9 * (knee.slots or 0):
                told = f"{_slots(row.knee.slots)} instead of {knee.slots:,} suffice"
                yield Choice(_label(row), row.variant.flags, told, after=row.outcome.hit_tokens)
        return
    reaching = [row for row in rows if knee.reached_by(row.outcome)]
    more = [row for row in rows if row.outcome.hit_tokens > answer.outcome.hit_tokens]
    for row in sorted(reaching, key=lambda row: _bytes(answer, row)) or sorted(
        more, key=lambda row: (-row.outcome.hit_tokens, _bytes(answer, row))
    ):
        effect = _effect(row.outcome, answer.price(row.variant.settings))
        yield Choice(_label(row), row.variant.flags, effect, after=row.outcome.hit_tokens)


def _bytes(answer: Reuse, row: Row) -> tuple[int, int]:
    """What a setting takes of the host, and of the GPU."""
    weighs = answer.price(row.variant.settings)
    return (0, 0) if weighs is None else (weighs.host_bytes, weighs.gpu_bytes)


def _gains(answer: Reuse, row: Row) -> bool:
    """Whether a setting of llama-server reuses clearly more than any number of its slots as they are."""
    return answer.outcome.hit_tokens < SHARE * row.outcome.hit_tokens


def _label(row: Row) -> str:
    return BOLD if row.variant.settings.int8_slots is not None else SAFE


def _effect(outcome: Outcome, weighs: Cost | None) -> str:
    return f"{_percent(outcome.token_hit_rate)} of tokens" + (f", {_memory(weighs)}" if weighs is not None else "")


def _split_rows(splits: Sequence[Split]) -> Iterator[tuple[str, ...]]:
    """The best split among others spread over all that were tried, fewest running first."""
    best, tried = splits[0], sorted(splits, key=lambda split: split.running)
    step = -(-len(tried) // SPLITS_SHOWN)
    for place, split in enumerate(tried):
        if split is best or place % step == 0:
            work = f"{split.work_tokens / best.work_tokens:.2f}" if best.work_tokens else "-"
            label = "least work" if split is best else ""
            yield f"{split.running:,}", f"{split.cached_slots:,}", *_cells(split.outcome), work, label


def _cells(outcome: Outcome) -> tuple[str, str]:
    return _percent(outcome.token_hit_rate), f"{outcome.recomputed_tokens:,}"


def _price(answer: Reuse, weighs: Cost | None) -> tuple[str, ...]:
    if answer.priced is None:
        return ()
    return ("refused",) if weighs is None else (_memory(weighs, host=False),)


def _memory(weighs: Cost, *, host: bool = True) -> str:
    parts = [format_bytes(weighs.gpu_bytes)]
    if host and weighs.host_bytes:
        parts.append(_on_host(weighs))
    if weighs.kv_tokens == 0:
        parts.append("no KV left")
    return ", ".join(parts)


def _on_host(weighs: Cost) -> str:
    each = f" for each of {weighs.ranks} ranks" if weighs.ranks > 1 else ""
    return f"host {format_bytes(weighs.host_bytes)}{each}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
