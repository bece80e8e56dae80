"""SGLang's prefix cache: the settings that its flags make, where it saves states, what slots weigh, what else to try.

    state pool (K + 1) * slot;  int8 pool (N + 1) * int8 slot, out of the headroom;  host tier H * slot

The engine's own sizing gives the bytes and, where the memory is known, the KV tokens that are left beside K slots. Left
out: rings, draft states and what else a server allocates; `hybridcalc plan` has them all. Units: bytes, tokens, slots.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import lcm
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import ServerArgs, check_arguments
from hybridcalc.engines.sglang.allocation import Allocation, int8_pool
from hybridcalc.engines.sglang.planner import allocation, prepare, start
from hybridcalc.engines.sglang.refusals import chunk_size
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.sizes import context_length
from hybridcalc.engines.sglang.strategy import resolve_strategy, uses_radix_cache
from hybridcalc.errors import IllegalCombination, InputError, Refusal, quoted
from hybridcalc.formulas import Strategy, slots_per_request
from hybridcalc.reuse.hosts import USUAL_RATIO, HiCache, HostTier, Weight, hicache_size_for, hicache_tier
from hybridcalc.reuse.policy import DEFAULT_CHUNK, LIVE, NO_CAP, PREFILL_CHUNK, TRACK_INTERVAL, Policy, prefill_chunk_of
from hybridcalc.reuse.settings import Cost, Settings, Variant

INT8_FACTOR = 2
"""Checkpoint slots of an int8 pool for each slot of the active one, unless --int8-mamba-ckpt-size says otherwise."""
BASE = 3
"""The base of S: the live state, the one that the tree keeps for it, and a copy."""
PATH_CAP = 2
WRITE_POLICY = "write_through"
"""The one that is simulated, and the default."""
HIGHEST_RATIO = 100
LEAST_SLOTS = 3
"""Slots of a request in the leanest settings that keep states for reuse."""
SPARE = " + 1"
"""Slots of the pool beside those that hold a state."""


_SAME = ("page_size", "tp_size", "kv_cache_dtype", "mamba_ssm_dtype", "max_total_tokens", "engine_version")
_ALIKE = (
    *_SAME, "chunked_prefill_size", "mamba_track_interval", "mamba_max_states_per_path",
    "enable_int8_mamba_checkpoint", "int8_mamba_ckpt_size", "disable_overlap_schedule", "hicache_ratio", "hicache_size",
)  # fmt: skip
"""Options of the command and arguments of the engine of one name."""


def of_line(args: ServerArgs) -> Mapping[str, Any]:
    """What a launch line says, under the names of the command's options."""
    said = {name: getattr(args, name) for name in _ALIKE}
    if args.enable_hierarchical_cache and args.hicache_ratio is None and not args.hicache_size:
        said["hicache_ratio"] = USUAL_RATIO
    slots = args.max_mamba_cache_size and args.max_mamba_cache_size // args.attn_dp_size
    return {**said, "strategy": args.mamba_radix_cache_strategy, "slots": slots}


def asked(
    options: Mapping[str, Any], model: Architecture | None, base: ServerArgs | None = None
) -> tuple[Settings, ServerArgs]:
    """The settings of a command's options, and the arguments that they make; what ``auto`` becomes for ``model``.

    Raises InputError for what does not go together, and Refusal or IllegalCombination for what does not start.
    """
    if base is not None and not base.radix_cache:
        flag = "--disable-radix-cache" if base.disable_radix_cache else "--disaggregation-mode decode"
        raise IllegalCombination(
            f"{flag} keeps no prefixes: nothing is reused", fix=f"drop {flag} to ask what would be"
        )
    if base is not None and base.hicache_write_policy not in (None, WRITE_POLICY):
        raise InputError(
            f"--hicache-write-policy {quoted(base.hicache_write_policy)} is not simulated",
            fix=f"leave it out: {WRITE_POLICY} is",
        )
    int8, slots, interval = options["enable_int8_mamba_checkpoint"], options["slots"], options["mamba_track_interval"]
    if options["int8_mamba_ckpt_size"] is not None and not int8:
        raise InputError("--int8-mamba-ckpt-size has no effect alone", fix="add --enable-int8-mamba-checkpoint")
    hicache = _hicache(options)
    if options["mamba_max_states_per_path"] == 0:
        raise InputError("--mamba-max-states-per-path 0 keeps no state at all", fix="write -1 (no cap), 1 or more")
    if int8 and not slots:
        raise InputError("an int8 pool is a share of the slots", fix="add --slots N")
    args = replace(
        base or ServerArgs(),
        **{name: options[name] for name in _SAME},
        mamba_radix_cache_strategy=options["strategy"],
        disable_overlap_schedule=options["disable_overlap_schedule"] or None,
        mamba_track_interval=interval,
        mamba_max_states_per_path=options["mamba_max_states_per_path"],
    )
    check_arguments(args)
    settings = Settings(
        "sglang",
        slots or 1,
        options["running"],
        page_size=args.page_size or 1,
        track_interval=interval,
        prefill_chunk=options["chunked_prefill_size"],
        max_states_per_path=args.mamba_max_states_per_path,
        int8_slots=(options["int8_mamba_ckpt_size"] or INT8_FACTOR * slots) if int8 else None,
        host_slots=options["host_slots"],
        host_kv_tokens=options["host_kv_tokens"],
        kv_tokens=args.max_total_tokens,
        hicache=hicache,
        context=args.context_length or (None if model is None else context_length(model)),
        sharing=args.attn_dp_size,
    )
    if hicache is not None and model is None:
        if not slots:
            raise InputError("a host tier is as large as the pools on the GPU are", fix="add --slots N")
        host = hicache_tier(hicache, slots, settings.kv_tokens, None)
        settings = settings._replace(host_slots=host.slots, host_kv_tokens=host.kv_tokens)
    return _resolved(settings, model, args), args


def _hicache(options: Mapping[str, Any]) -> HiCache | None:
    """What is asked of the host tier; None where nothing is. Raises InputError for what excludes each other."""
    names = ("hicache_ratio", "hicache_size", "hicache_mamba_ratio", "hicache_mamba_size_gb")
    ratio, size, state_ratio, state_size = (options[name] or None for name in names)
    if not (options["enable_hierarchical_cache"] or ratio or size or state_ratio or state_size):
        return None
    if options["host_slots"] or options["host_kv_tokens"]:
        raise InputError("--host-slots and --host-kv-tokens say how large the host tier is", fix="drop --hicache-...")
    if state_ratio and state_size:
        raise InputError("--hicache-mamba-ratio and --hicache-mamba-size-gb exclude each other", fix="drop one of them")
    return HiCache(ratio or USUAL_RATIO, size, state_ratio, state_size)


def policy(settings: Settings) -> Policy:
    """Where states are saved. Raises InputError, and IllegalCombination, for settings that do not go together."""
    if settings.int8_slots is not None and settings.has_host:
        raise IllegalCombination("int8 checkpoints do not run with a host tier", fix="drop one of them")
    return sglang_policy(
        settings.strategy,
        page=settings.page_size,
        chunk=settings.chunk,
        track_interval=settings.track_interval,
        prefill_chunk=settings.prefill_chunk,
        overlap=settings.overlap,
        path_cap=settings.max_states_per_path,
    )


def wanted(settings: Settings, slots: int) -> tuple[Settings, str, str]:
    """The settings with so many slots for states, what to do for it ("set" flags, or "want" what they say)."""
    if settings.int8_slots is not None:
        return settings._replace(int8_slots=slots), "set", f"--int8-mamba-ckpt-size {slots}"
    return settings._replace(slots=slots), "set", f"--max-mamba-cache-size {slots * settings.sharing}"


def variants(now: Settings) -> Iterator[Variant]:
    """Changes worth a look."""
    pool = INT8_FACTOR * now.slots
    if now.int8_slots is None and not now.has_host:
        yield Variant("int8 checkpoints", "--enable-int8-mamba-checkpoint", now._replace(int8_slots=pool))
    if not now.has_host and now.int8_slots is None:
        asked = HiCache()
        host = hicache_tier(asked, now.slots, now.kv_tokens, None)
        tiered = now._replace(hicache=asked, host_slots=host.slots, host_kv_tokens=host.kv_tokens)
        yield Variant("host tier", "--enable-hierarchical-cache", tiered)
    cap = now._replace(max_states_per_path=PATH_CAP if now.max_states_per_path == NO_CAP else NO_CAP)
    yield Variant("path cap", f"--mamba-max-states-per-path {cap.max_states_per_path}", cap)
    if now.strategy is not Strategy.NO_BUFFER:
        for interval in (64, 1024):
            if interval % now.page_size == 0 and interval != now.track_interval:
                changed = now._replace(track_interval=interval)
                yield Variant("track interval", f"--mamba-track-interval {interval}", changed)
        if now.running and now.overlap:
            other = Strategy.EXTRA_BUFFER if now.strategy is Strategy.EXTRA_BUFFER_LAZY else Strategy.EXTRA_BUFFER_LAZY
            yield Variant("buffers", f"--strategy {other.value}", now._replace(strategy=other))
        for page in (1, 64, 256):
            if (
                page != now.page_size
                and now.track_interval % page == 0
                and max(now.chunk, page) % min(now.chunk, page) == 0
            ):
                yield Variant("page", f"--page-size {page}", now._replace(page_size=page))
    if now.page_size == 1:
        other = Strategy.NO_BUFFER if now.strategy is not Strategy.NO_BUFFER else Strategy.EXTRA_BUFFER
        flags = f"--strategy {other.value}" + (" --disable-overlap-schedule" if other is Strategy.NO_BUFFER else "")
        yield Variant("buffers", flags, now._replace(strategy=other, overlap=other is not Strategy.NO_BUFFER))


def split(model: Architecture, args: ServerArgs, settings: Settings, rest_gib: float) -> int:
    """K as the engine makes it of the memory."""
    return start(prepare(model, _args_of(args, settings, None)), rest_gib).state.slots


def share(model: Architecture, args: ServerArgs, settings: Settings, rest_gib: float) -> tuple[str, int, int] | None:
    """The least --mamba-full-memory-ratio, in hundredths, that makes the slots of ``settings``, and K and T of it."""
    own = _args_of(args, settings, None)

    def planned(hundredths: int) -> tuple[int, int]:
        try:
            sizing = start(prepare(model, replace(own, mamba_full_memory_ratio=hundredths / 100)), rest_gib)
        except Refusal:
            return 0, 0
        return sizing.state.slots, sizing.tokens * args.dcp_size

    low, high = 0, HIGHEST_RATIO * 100
    while high - low > 1:
        middle = (low + high) // 2
        slots, tokens = planned(middle)
        if slots >= settings.slots or (not tokens and middle > 100):  # no KV is left: too much, not too little
            high = middle
        else:
            low = middle
    slots, tokens = planned(high)
    return (f"--mamba-full-memory-ratio {high / 100:g}", slots, tokens) if slots >= settings.slots else None


def host_for(now: Settings, slots: int, kv_tokens: int, cost: Cost) -> Variant | None:
    """HiCache of a size for so much."""
    if cost.weight is None or cost.held is None or now.int8_slots is not None:
        return None
    size = hicache_size_for(slots, kv_tokens, cost.weight, cost.held)
    tiered = now._replace(hicache=HiCache(size_gb=size))
    return Variant("host tier for all", f"--enable-hierarchical-cache --hicache-size {size}", tiered)


def held(plan: Any, slots: int, kv_tokens: int) -> tuple[int, int]:
    """K and T."""
    del slots, kv_tokens
    figures = plan.engine_figures
    return figures["max_mamba_cache_size"], figures["max_total_num_tokens"] * plan.args.dcp_size


def _args_of(args: ServerArgs, settings: Settings, slots: int | None) -> ServerArgs:
    """The arguments that make ``settings``; ``slots`` None leaves K to the engine."""
    return replace(
        args,
        max_mamba_cache_size=slots and slots * args.attn_dp_size,
        page_size=settings.page_size,
        mamba_radix_cache_strategy=settings.strategy.value,
        mamba_track_interval=settings.track_interval,
        disable_overlap_schedule=True if settings.strategy is Strategy.NO_BUFFER else args.disable_overlap_schedule,
        enable_int8_mamba_checkpoint=settings.int8_slots is not None,
        int8_mamba_ckpt_size=settings.int8_slots,
        enable_hierarchical_cache=settings.has_host,
    )


def cost(model: Architecture, args: ServerArgs, settings: Settings, rest_gib: float | None = None) -> Cost:
    """What the slots of ``settings`` weigh for ``model``. Raises Refusal for what the engine does not start with."""
    args = _args_of(args, settings, settings.slots)
    ready = prepare(model, args)
    int8 = int8_pool(ready.slot, ready.slot.layers, settings.slots, args)
    tokens = held = None
    if rest_gib is not None:
        try:
            sizing = start(ready, rest_gib)
            tokens = sizing.tokens * args.dcp_size
            held = _held(allocation(ready, sizing)) if settings.hicache is not None else None
        except Refusal:
            tokens = 0
    slot = ready.stage_slot_bytes
    weight = Weight(slot, max(cell.price for cell in ready.cells), args.page_size or 1)
    host = None
    if settings.hicache is not None:
        kv = settings.kv_tokens if tokens is None else min(tokens, settings.kv_tokens or tokens)
        host = hicache_tier(settings.hicache, settings.slots, kv, weight, held)
    elif settings.host_slots:
        kv_bytes = (settings.host_kv_tokens or 0) * weight.token
        host = HostTier(settings.host_slots, settings.host_kv_tokens, round(settings.host_slots * slot + kv_bytes))
    return Cost(
        (settings.slots + 1) * slot,
        int8.bytes if int8 else 0,
        host.bytes if host else 0,
        tokens,
        host=host,
        weight=weight,
        held=held,
        ranks=args.tp_size * args.pp_size,
    )


def _held(pools: Allocation) -> tuple[int, int] | None:
    """Bytes of states, those of drafts too, and of KV on the GPU; None where KV is not known."""
    states = pools.conv_state + pools.ssm_state + pools.intermediate_ssm + pools.intermediate_conv
    return (states, sum(pools.kv)) if pools.kv else None


def sglang_policy(
    strategy: Strategy = Strategy.EXTRA_BUFFER,
    *,
    page: int = 1,
    chunk: int = DEFAULT_CHUNK,
    track_interval: int = TRACK_INTERVAL,
    prefill_chunk: int = PREFILL_CHUNK,
    overlap: bool = True,
    path_cap: int = NO_CAP,
) -> Policy:
    """SGLang's radix cache. ``chunk`` is the kernel's, ``prefill_chunk`` --chunked-prefill-size (below 1: no chunks).

    Raises InputError for a page that does not go with the chunk or the interval, IllegalCombination for lazy buffers
    without the overlap scheduler.
    """
    if strategy is Strategy.NO_BUFFER:
        if page != 1:
            raise InputError(f"no_buffer needs --page-size 1, not {page}", fix="write --strategy extra_buffer")
        count = slots_per_request(strategy, overlap=overlap).count
        return Policy(
            "SGLang no_buffer",
            1,
            1,
            prefill_chunk_of(prefill_chunk, 1),
            0,
            LIVE,
            count,
            at_ends=True,
            path_cap=path_cap,
        )
    if max(chunk, page) % min(chunk, page):
        raise InputError(
            f"--page-size {page} neither divides the kernel's chunk of {chunk} tokens nor is a multiple of it",
            fix=f"write --page-size {chunk}",
        )
    if track_interval % page:
        raise InputError(
            f"--mamba-track-interval {track_interval} is no multiple of --page-size {page}",
            fix=f"write --mamba-track-interval {-(-track_interval // page) * page}",
        )
    grid = max(chunk, page)
    count = slots_per_request(strategy, overlap=overlap).count
    return Policy(
        f"SGLang {strategy.value}",
        page,
        grid,
        prefill_chunk_of(prefill_chunk, page),
        lcm(grid, track_interval),
        LIVE + count - BASE,
        count,
        path_cap=path_cap,
    )


def _resolved(settings: Settings, model: Architecture | None, args: ServerArgs) -> Settings:
    """The strategy that auto becomes, and the kernel's chunk. Raises Refusal for what the engine does not start."""
    overlap = not args.disable_overlap_schedule
    if model is None:
        typed = args.mamba_radix_cache_strategy
        fallback = Strategy.EXTRA_BUFFER if overlap or settings.page_size > 1 else Strategy.NO_BUFFER
        chosen = fallback if typed == "auto" else Strategy(typed)
        if chosen is Strategy.NO_BUFFER and overlap:
            raise IllegalCombination(
                "no_buffer does not run under the overlap scheduler", fix="add --disable-overlap-schedule"
            )
        return settings._replace(
            strategy=chosen, overlap=overlap and chosen is not Strategy.NO_BUFFER, chunk=DEFAULT_CHUNK
        )
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: its prefix cache holds no states")
    rules, _ = rules_for(args.engine_version)
    if not uses_radix_cache(model, rules):
        raise IllegalCombination(f"SGLang keeps no states of {model.architecture} for prefix reuse")
    resolved = resolve_strategy(model, args, rules)
    chosen = Strategy(resolved.strategy)
    return settings._replace(strategy=chosen, overlap=resolved.overlap, chunk=chunk_size(model))
