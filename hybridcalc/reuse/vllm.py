"""vLLM's prefix cache: the settings that its flags make, where it saves states, what slots weigh, what else to try.

    a state takes one block of each group of state layers: K * state groups * block

Units: bytes, tokens, slots.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.configuration import check_mode_all, model_length
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import RuleSet, rules_for
from hybridcalc.errors import HybridcalcError, IllegalCombination, InputError, quoted
from hybridcalc.reuse.hosts import Weight, chunk_bytes, offload_tier
from hybridcalc.reuse.policy import LIVE, PREFILL_CHUNK, Policy, prefill_chunk_of
from hybridcalc.reuse.requests import BlockPool
from hybridcalc.reuse.settings import BLOCK, Cost, Settings, Variant
from hybridcalc.units import GIB, rounded_up

DENSE = "dense"
OFFLOADED = 64
"""GiB of host memory that are tried."""
LEAST_SLOTS = 2
EVICTION = "lru"
"""The policy of the host tier that is simulated, and the default."""
OWN = 2
"""Slots that a running request holds in align mode."""
SPARE = ""
"""Slots of the pool beside those that hold a state."""


_SAME = ("kv_cache_dtype", "block_size", "prefix_match_unit", "mamba_cache_mode", "engine_version")


def of_line(args: EngineArgs) -> Mapping[str, Any]:
    """What a launch line says, under the names of the command's options."""
    retention = args.prefix_cache_retention_interval
    return {
        **{name: getattr(args, name) for name in _SAME},
        "tp_size": args.tensor_parallel_size,
        "mamba_ssm_dtype": args.mamba_ssm_cache_dtype,
        "chunked_prefill_size": args.max_num_batched_tokens,
        "kv_offloading_size": args.kv_offloading_size,
        "prefix_cache_retention_interval": DENSE if retention is None else str(retention),
    }


def asked(
    options: Mapping[str, Any], model: Architecture | None, base: EngineArgs | None = None
) -> tuple[Settings, EngineArgs]:
    """The settings of a command's options, and the arguments that they make; the block that ``model`` makes.

    Raises InputError for what does not go together, Refusal, and IllegalCombination where no states are saved.
    """
    mode, retention = options["mamba_cache_mode"], _retention(options["prefix_cache_retention_interval"])
    if mode not in ("align", "all"):
        raise InputError(f"--mamba-cache-mode {quoted(mode)} saves no states", fix="write align or all")
    args = replace(
        base or EngineArgs(),
        tensor_parallel_size=options["tp_size"],
        kv_cache_dtype=options["kv_cache_dtype"],
        block_size=options["block_size"],
        mamba_ssm_cache_dtype=options["mamba_ssm_dtype"] or "auto",
        prefix_match_unit=options["prefix_match_unit"],
        prefix_cache_retention_interval=retention,
        engine_version=options["engine_version"],
        mamba_cache_mode=mode,
        enable_prefix_caching=True,
    )
    for flag in ("host_slots", "host_kv_tokens", "hicache_mamba_ratio", "hicache_mamba_size_gb"):
        if options[flag]:
            raise InputError(f"--{flag.replace('_', '-')} is SGLang's", fix="write --kv-offloading-size GIB")
    if options["kv_offloading_size"] and model is None:
        raise InputError("--kv-offloading-size holds as many blocks as they weigh", fix="name a MODEL")
    rules, _ = rules_for(args.engine_version)
    check_mode_all(args, rules)
    _check_line(base, rules)
    settings = Settings(
        "vllm",
        options["slots"] or 1,
        options["running"],
        prefill_chunk=options["chunked_prefill_size"],
        kv_tokens=options["max_total_tokens"],
        offload_gib=options["kv_offloading_size"] or 0.0,
        block_size=options["block_size"] or BLOCK,
        match_unit=options["prefix_match_unit"],
        retention=retention,
        every_block=mode == "all",
        context=args.max_model_len if model is None else model_length(model, args),
    )
    if model is not None:
        settings = vllm_settings(model, args, settings)
    return settings._replace(all_block=_all_block(model, args, settings)), args


def _check_line(base: EngineArgs | None, rules: RuleSet) -> None:
    """Raise InputError for a launch line that asks for what is not simulated, IllegalCombination where it keeps no
    prefixes.
    """
    extra = ((base and base.kv_transfer_config) or {}).get("kv_connector_extra_config")
    evicts = extra.get("eviction_policy", EVICTION) if isinstance(extra, dict) else EVICTION
    if evicts != EVICTION:
        raise InputError(f"eviction_policy {quoted(str(evicts))} is not simulated", fix=f"leave it out: {EVICTION} is")
    if (
        base is None
        or base.enable_prefix_caching
        or (base.enable_prefix_caching is None and rules.caches_hybrid_prefixes)
    ):
        return
    if base.enable_prefix_caching is None:
        said, fix = "this release keeps prefixes of hybrids only with --enable-prefix-caching", "add it"
    else:
        said, fix = "--no-enable-prefix-caching keeps no prefixes", "drop it to ask what would be"
    raise IllegalCombination(f"{said}: nothing is reused", fix=fix)


def _all_block(model: Architecture | None, args: EngineArgs, settings: Settings) -> int | None:
    """The block of the mode `all`, where the release has it and the model runs in it."""
    if settings.every_block:
        return None
    try:
        asked = replace(args, mamba_cache_mode="all")
        check_mode_all(asked, rules_for(args.engine_version)[0])
        return (settings if model is None else vllm_settings(model, asked, settings)).block_size
    except HybridcalcError:
        return None


def policy(settings: Settings) -> Policy:
    """Where states are saved. Raises InputError for settings that do not go together."""
    return vllm_policy(
        settings.block_size,
        unit=settings.match_unit,
        retention=settings.retention,
        prefill_chunk=settings.prefill_chunk,
        every_block=settings.every_block,
        checkpoints=settings.checkpoints,
    )


def wanted(settings: Settings, slots: int) -> tuple[Settings, str, str]:
    """The settings with so many slots for states, what to do for it ("set" flags, or "want" what they say)."""
    return settings._replace(slots=slots), "want", f"{slots:,} blocks for each group of state layers"


def variants(now: Settings) -> Iterator[Variant]:
    """Changes worth a look."""
    if now.every_block:
        yield Variant("align mode", "--mamba-cache-mode align", now._replace(every_block=False))
        return
    if now.all_block is not None:
        every = now._replace(every_block=True, block_size=now.all_block, match_unit=None, retention=None)
        yield Variant("all mode", "--mamba-cache-mode all", every)
    dense = now._replace(retention=None)
    yield Variant("dense retention", "--prefix-cache-retention-interval dense", dense)
    sparse = now._replace(retention=4 * now.block_size)
    yield Variant("retention", f"--prefix-cache-retention-interval {sparse.retention}", sparse)
    for block in (now.block_size // 2, 2 * now.block_size):
        free = now.match_unit is None and not now.retention and not now.block_fixed
        if free and block and now.block_size % 2 == 0:
            yield Variant("block", f"a block of {block:,} tokens", now._replace(block_size=block))
    if now.block_fixed and not now.has_host:
        yield Variant("host tier", f"--kv-offloading-size {OFFLOADED}", now._replace(offload_gib=OFFLOADED))
    if now.block_size % 16 == 0:
        yield Variant("match unit", "--prefix-match-unit 16", now._replace(match_unit=16))


def split(model: Architecture, args: EngineArgs, settings: Settings, rest_gib: float) -> int:
    """The most states that the pool has blocks for; it holds none apart."""
    del settings
    ready = prepare(model, args)
    states = sum(group.recurrent for group in ready.groups)
    return max((int(rest_gib * GIB) // ready.bytes_per_block - 1) // max(states, 1), 1)


def share(model: Architecture, args: EngineArgs, settings: Settings, rest_gib: float) -> tuple[str, int, int] | None:
    """Nothing splits vLLM's pool."""
    del model, args, settings, rest_gib
    return None


def host_for(now: Settings, slots: int, kv_tokens: int, cost: Cost) -> Variant | None:
    """Native offloading of a size for so much."""
    if cost.host is None or cost.host.chunks is None or cost.chunk_bytes is None:
        return None
    _, per_state, per_page = cost.host.chunks
    chunks = per_state * slots + per_page * -(-kv_tokens // now.block_size)
    size = ceil(chunks * cost.chunk_bytes / GIB)
    return Variant("host tier for all", f"--kv-offloading-size {size}", now._replace(offload_gib=size))


def held(plan: Any, slots: int, kv_tokens: int) -> tuple[int, int]:
    """As many times what is asked as the blocks are."""
    figures = plan.engine_figures
    kinds = Counter(group.recurrent for group in prepare(plan.model, plan.args).groups)
    wanted = kinds[True] * slots + max(kinds[False], 1) * -(-kv_tokens // figures["attn_block_size"])
    there = figures["num_blocks"] - 1
    return slots * there // max(wanted, 1), kv_tokens * there // max(wanted, 1)


def cost(model: Architecture, args: EngineArgs, settings: Settings, rest_gib: float | None = None) -> Cost:
    """What the slots of ``settings`` weigh in blocks, the KV tokens that the other blocks hold, and the pool that both
    share. Raises Refusal.
    """
    ready = prepare(model, replace(args, mamba_cache_mode="all") if settings.every_block else args)
    states = sum(group.recurrent for group in ready.groups)
    pages = max(len(ready.groups) - states, 1)
    taken, tokens, pool, host = settings.slots * states, None, None, None
    shape = BlockPool(0, max(states, 1), pages)
    if rest_gib is not None:
        blocks = int(rest_gib * GIB) // ready.bytes_per_block - 1
        tokens = max(blocks - taken, 0) // pages * ready.pages.block
        pool = shape._replace(blocks=blocks)
    if settings.offload_gib:
        host = offload_tier(settings.offload_gib, ready.bytes_per_block, args.tensor_parallel_size, shape)
    weight = Weight(states * ready.bytes_per_block, pages * ready.bytes_per_block / ready.pages.block)
    chunk = chunk_bytes(ready.bytes_per_block, args.tensor_parallel_size) if host else None
    return Cost(
        taken * ready.bytes_per_block,
        0,
        host.bytes if host else 0,
        tokens,
        pool,
        host,
        weight,
        chunk_bytes=chunk,
        ranks=args.tensor_parallel_size * args.pipeline_parallel_size,
    )


def vllm_policy(
    block: int,
    *,
    unit: int | None = None,
    retention: int | None = 0,
    prefill_chunk: int = PREFILL_CHUNK,
    every_block: bool = False,
    checkpoints: int = 0,
) -> Policy:
    """The prefix cache of vLLM on blocks of ``block`` tokens; ``every_block`` is the mode `all` (0.22 to 0.31).

    ``unit`` is --prefix-match-unit, ``retention`` --prefix-cache-retention-interval (None: dense), ``checkpoints`` the
    blocks that a prefill takes for the state it exports.

    Raises InputError for a unit that does not divide the block, and a retention that is no multiple of it.
    """
    unit = block if unit is None else unit
    if block % unit:
        raise InputError(
            f"--prefix-match-unit {unit} does not divide the block of {block} tokens", fix=f"write a divisor of {block}"
        )
    if retention and retention % block:
        raise InputError(
            f"--prefix-cache-retention-interval {retention} is no multiple of the block of {block} tokens",
            fix=f"write {rounded_up(retention, block)}, 0, or dense",
        )
    if every_block:
        return Policy(
            "vLLM all",
            block,
            block,
            PREFILL_CHUNK,
            block,
            LIVE,
            LIVE,
            on_blocks=True,
            every_block=True,
            retention=None,
            kv_with_state=False,
        )
    decode_grid, own = block if retention is None else retention, OWN + checkpoints
    return Policy(
        "vLLM align",
        unit,
        block,
        prefill_chunk_of(prefill_chunk, 1),
        decode_grid,
        own,
        own,
        on_blocks=True,
        retention=retention,
        kv_with_state=False,
    )


def vllm_settings(model: Architecture, args: EngineArgs, settings: Settings) -> Settings:
    """The block, match unit and retention that vLLM comes to for ``model``.

    Raises Refusal, and IllegalCombination where it saves no states.
    """
    ready = prepare(model, args)
    asked = args.mamba_cache_mode
    if ready.prefix_caching and asked == "all" and ready.mode != asked:
        raise IllegalCombination(
            f"vLLM {ready.rules.version} runs {model.name} in mode {ready.mode}, not {asked}",
            fix="leave out --mamba-cache-mode",
        )
    if not ready.prefix_caching or ready.mode not in ("align", "all"):
        raise IllegalCombination(f"vLLM {ready.rules.version} saves no states of {model.name} for prefix reuse")
    return settings._replace(
        block_size=ready.pages.block,
        match_unit=args.prefix_match_unit,
        every_block=ready.mode == "all",
        retention=args.prefix_cache_retention_interval,
        checkpoints=ready.held.checkpoints,
        block_fixed=True,
    )


def _retention(text: str) -> int | None:
    if text == DENSE:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise InputError(
            f"--prefix-cache-retention-interval {quoted(text, 20)} is no interval",
            fix="write a multiple of the block, 0, or dense",
        )
    return int(text)
