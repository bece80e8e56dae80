"""vLLM's start-up in the engine's order: configuration, model, block size, specs, groups, memory, block sizes, checks.

`prepare` does what no memory decides, `size` the rest: it is what a search calls again and again. A refusal carries the
stage that raised it and what the stages before it had settled. Mirrors vLLM config/vllm.py, platforms/interface.py,
v1/core/kv_cache_planning.py, kv_cache_utils.py, config/compilation.py (0.33.0, 0.22.1).
"""

from math import gcd, lcm
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.answer import own
from hybridcalc.engines.arguments import Last
from hybridcalc.engines.vllm import AUTO_FIT, EngineArgs, check_arguments, check_together, loglines, runner
from hybridcalc.engines.vllm.configuration import (
    cache_mode,
    check_choices,
    check_configuration,
    check_state_dtype,
    load,
    model_length,
    ssm_setting,
    with_drafts,
    with_kv_of_checkpoint,
    with_overrides,
)
from hybridcalc.engines.vllm.families import model_class
from hybridcalc.engines.vllm.layers import DEFAULT_BLOCK, attention_backend, backend_names, resolve_layout
from hybridcalc.engines.vllm.pages import (
    ALONE,
    FULL,
    STATES,
    TAIL,
    Group,
    Padding,
    Residency,
    blocks_held,
    check_layer_fits,
    checkpoint_grid,
    form_groups,
    kv_bytes_per_token,
    longest_length,
    resolve_pages,
    table_row,
)
from hybridcalc.engines.vllm.pages import Prepared as Prepared
from hybridcalc.engines.vllm.pages import Sizing as Sizing
from hybridcalc.engines.vllm.releases import RELEASES, rules_for
from hybridcalc.errors import NotModelled, Refusal, Write, with_release
from hybridcalc.formulas import blocks_for, divisors
from hybridcalc.units import DTYPE_BYTES, GIB


def prepare(model: Architecture, args: EngineArgs) -> Prepared:
    """Everything before memory, kept for whoever asks the same again, as a sweep over memory does.

    Raises Refusal, with the stage and what was settled; InputError for what is no size.
    """
    if (kept := _LAST.same(model, args)) is not None:
        return kept
    settled, log = dict[str, Any](), list[str]()
    try:
        return _LAST.keep(model, args, _prepare(model, args, settled, log))
    except Refusal as refusal:
        refusal.outputs = {**settled, "log": list(log)}
        raise


_LAST = Last[Prepared]()


def _prepare(model: Architecture, args: EngineArgs, settled: dict[str, Any], log: list[str]) -> Prepared:
    check_arguments(args)
    check_together(args)
    rules, _ = rules_for(args.engine_version)
    check_choices(args, rules)
    kind = model_class(model, RELEASES.counted(args.engine_version or rules.version))
    model = with_overrides(model, args)
    index, original = None, model
    if kind.conv_windows:
        from hybridcalc.engines.vllm import windows

        model = windows.without_states(model)
    if kind.indexed:
        from hybridcalc.engines.vllm import packed

        args = packed.with_kv_of_class(model, args, kind, rules)
        index = packed.index_of(model, args)
    asked_kv, args = args.kv_cache_dtype, with_kv_of_checkpoint(model, args)
    args, draft_layers = with_drafts(model, args, kind)
    caching, mode = cache_mode(model, args, rules, kind)
    model_dtype = model.model_dtype if args.dtype == "auto" else args.dtype
    ssm = ssm_setting(model, args)
    log += loglines.configuration(model, args, rules, kind, ssm_setting=ssm, caching=caching, mode=mode)
    on_v2 = runner.on_runner_v2(args, rules, kind, states=original.state is not None, mode=mode)
    check_configuration(model, args, rules, kind, model_dtype=model_dtype, caching=caching, mode=mode, on_v2=on_v2)
    length = model_length(model, args)
    settled |= {
        "model_dtype": f"torch.{model_dtype}",
        "kv_cache_dtype": args.kv_cache_dtype,
        "mamba_cache_dtype": args.mamba_cache_dtype,
        "mamba_ssm_cache_dtype": ssm,
        "prefix_caching": caching,
        "mamba_cache_mode": mode,
        "num_speculative_tokens": args.num_speculative_tokens,
        "group_sizes": [],
        "max_model_len": length,
    }
    backend = windows.BACKEND if kind.conv_windows else attention_backend(model, args, rules, model_dtype)
    if kind.indexed:
        backend, index = packed.checked(model, args, rules, backend, index)
    state, state_bytes = load(model, args, rules, backend)
    kv_bytes = kv_bytes_per_token(model, args, model_dtype)
    settled["attention_backends"] = backend_names(model, backend, kind)
    check_state_dtype(model, args, rules)
    embedded = sum(tensor.bytes for tensor in packed.embedding_state(model, args)) if kind.embedded_state else 0
    pages = resolve_pages(
        model,
        args,
        rules,
        kind,
        backend,
        mode=mode,
        kv_bytes=kv_bytes,
        length=length,
        index=index,
        embedded_bytes=embedded,
    )
    log += loglines.block_size(pages, args.block_size, backend)
    forgotten = rules.block_forgotten and bool(state) and args.block_size is None  # until the layers name theirs
    settled |= {"attn_block_size": DEFAULT_BLOCK if forgotten else pages.block, "mamba_block_size": pages.mamba_block}
    if pages.padded is not None:
        settled["padded_page_bytes"] = pages.padded
    check_layer_fits(model, args, pages, state_bytes)
    settled["attn_block_size"] = pages.block
    if state:
        settled |= {
            "state_shapes": [list(tensor.shape) for tensor in state],
            "state_dtypes": [t.dtype for t in state],
            "state_bytes_per_layer": state_bytes,
        }
    if kv_bytes:
        settled["attn_bytes_per_token_per_layer"] = float(kv_bytes)
    if pages.padded is not None and state_bytes:
        settled["padding_pct"] = 100 * (pages.padded - state_bytes) / state_bytes
    layout = resolve_layout(args, rules, backend)
    off = None
    if args.moves_kv or args.disable_hybrid_kv_cache_manager:
        from hybridcalc.engines.vllm import connectors

        off = connectors.without_hybrids(args, rules)
        layout = connectors.layout_of(model, args, rules, backend) or layout
    if off is not None and state and backend is not None:
        raise Refusal(
            f"{off.what} turns the hybrid manager off, which alone keeps states beside attention",
            stage="layout+groups",
            rule="HC052",
            fix=off.fix,
        )
    whole_kv = kind.ignores_window or (off is not None and model.attention_layers)
    letters = model.layers.replace("w", "a").replace("v", "b") if whole_kv else model.layers
    drafted = windows.drafts_of(original, args, draft_layers) if kind.conv_windows else {FULL: draft_layers}
    bounds, draft_window = runner.stage_bounds(len(letters), args), 0
    letters, alone = runner.stages_alone(
        letters, bounds, args, rules, pages, mode=mode, state_bytes=state_bytes, drafts=drafted, indexed=kind.indexed
    )
    layers = runner.buckets(letters, attention_first=kind.attention_first, drafts=drafted)
    if not layers:
        raise NotModelled(f"{model.name} has no layer that keeps a cache")
    page, unit = pages.page if backend is not None else state_bytes, 1
    if index is not None and backend is not None and state:
        whole = packed.groups_of(model, args, rules, pages, index, layers, letters, bounds)
        unit = packed.stride_unit(index, backend, pages, rules)
        paddings: tuple[Padding, ...] = ()
    elif kind.conv_windows:
        windows.check(original, args, model_dtype, off.what if off is not None else "")
        whole, paddings = windows.groups_of(original, args, layers, DTYPE_BYTES[model_dtype])
        longest = max(group.block for group in whole if group.kind in layers)
        pages = pages._replace(block=longest, page=whole[0].page, attention_page=whole[0].page)
    elif args.draft_path is not None:
        from hybridcalc.engines.vllm import drafts

        whole, paddings, pages, layout = drafts.groups_of(
            model, args, rules, layers, pages, page, model_dtype, backend, layout
        )
        draft_window = drafts.window_of(args)
    else:
        whole, paddings = form_groups(layers, block=pages.block, mamba_block=pages.mamba_block, page=page, alone=alone)
    stages = runner.on_stages(whole, letters, drafted, bounds)
    groups = max(stages, key=_block_bytes)
    if rules.layout_line:
        log.append(loglines.layout(layout))
    log += loglines.padding_layers(paddings)
    bytes_per_block = _block_bytes(groups, unit)
    held = Residency(
        mode=mode,
        drafts=0
        if args.use_replayssm or (mode == "all" and not rules.drafts_in_mode_all)
        else args.num_speculative_tokens,
        checkpoints=int(checkpoint_grid(model, args, kind, rules) is not None),
        dcp=args.decode_context_parallel_size,
        window=model.window or 0,
        in_flight_tokens=runner.batches_in_flight(args, rules, on_v2=on_v2) * args.batched_tokens,
        kernel=windows.kernel_of(original) if kind.conv_windows else 0,
        draft_window=draft_window,
        retained=runner.tokens_retained(args, rules, draft_layers),
    )
    if len(stages) > 1:
        settled |= {
            "stages": [list(bound) for bound in bounds],
            "group_sizes_per_stage": [[group.names for group in own] for own in stages],
            "bytes_per_block_per_stage": [_block_bytes(own, unit) for own in stages],
        }
    settled |= {
        "group_sizes": [group.names for group in whole],
        "num_groups": len(whole),
        "bytes_per_block": bytes_per_block,
        "layout": layout,
    }
    ready = Prepared(
        original,
        args,
        rules,
        kind,
        model_dtype,
        caching,
        mode,
        length,
        state,
        state_bytes,
        kv_bytes,
        backend,
        layout,
        pages,
        groups,
        stages,
        paddings,
        bytes_per_block,
        held,
        settled,
        tuple(log),
        args.kv_cache_dtype != asked_kv,
        embedded,
        runner.seqs_checked(original, args, rules, backend, states=bool(state)),
    )
    settled["per_request_bytes"] = bytes_per_block * ready.blocks_at(length)
    return ready


def _block_bytes(groups: tuple[Group, ...], unit: int = 1) -> int:
    """What a block takes: the largest group's share, a multiple of ``unit``."""
    return unit * blocks_for(max(group.bytes for group in groups), unit)


def size(ready: Prepared, available_bytes: int) -> Sizing:
    """Blocks of one GPU from the bytes free for them. Raises Refusal where the engine does not start."""
    args, per_block = ready.args, ready.bytes_per_block
    blocks = args.num_gpu_blocks_override or max(0, available_bytes) // per_block
    usable = usable_bytes(ready, available_bytes)
    length = ready.length
    if args.max_model_len == AUTO_FIT:
        length = longest_length(ready, usable, ready.length)
        if not length:
            raise _refusal(
                ready,
                available_bytes,
                "get_kv_cache_configs",
                "HC041",
                "no length fits: the memory does not hold a request of a single token",
                "give it more memory",
            )
    elif usable <= 0:
        raise _refusal(
            ready,
            available_bytes,
            "get_kv_cache_configs",
            "HC040",
            f"no memory for the cache: a block takes {per_block:,} B of {max(0, available_bytes):,} B",
            "raise --gpu-memory-utilization, or free memory",
        )
    per_request, checked = ready.blocks_at(length), ready.blocks_checked(length)
    if checked * per_block > usable:
        fits = longest_length(ready, usable, length)
        seqs = f" --max-num-seqs {blocks}" if ready.seqs_checked and args.seqs > blocks else ""
        remedy = (
            f"write --max-model-len {fits}{seqs}, or give it more memory" if fits else "no length fits: more memory"
        )
        raise _refusal(
            ready,
            available_bytes,
            "get_kv_cache_configs",
            "HC041",
            f"one request of {length:,} tokens takes {checked:,} blocks ({checked * per_block / GIB:.2f} GiB); "
            f"{max(0, usable) // per_block:,} are free",
            remedy,
        )
    sizes = _block_sizes(ready, available_bytes, blocks, length, per_request)
    if ready.seqs_checked and args.seqs > blocks:
        said = "" if args.max_num_seqs is not None else ", the default,"
        raise _refusal(
            ready,
            available_bytes,
            "cudagraph_mamba_check",
            "HC044",
            f"max_num_seqs {args.seqs:,}{said} exceeds the {blocks:,} blocks: full CUDA graphs need one a sequence",
            Write("--max-num-seqs", blocks),
            sizing=sizes,
        )
    return sizes


def usable_bytes(ready: Prepared, available_bytes: int) -> int:
    """Bytes that the memory check counts: those of the blocks that an override asks for, less the null block (0.33)."""
    override, per_block = ready.args.num_gpu_blocks_override, ready.bytes_per_block
    counted = override is not None and ready.rules.override_checked
    available = (override or 0) * per_block if counted else available_bytes
    return available - per_block if ready.rules.null_block_reserved else available


def outputs(ready: Prepared, sizing: Sizing) -> dict[str, Any]:
    """The engine's own figures, under their own names, and the lines of the log."""
    return figures(ready, sizing) | {"log": log_lines(ready, sizing)}


def figures(ready: Prepared, sizing: Sizing) -> dict[str, Any]:
    """The engine's own figures, under their own names."""
    found: dict[str, Any] = own(ready.settled) | _sized(ready, sizing)
    if ready.state and ready.rules.seqs_refused:
        found["cudagraph_mamba_check"] = "ok"
    return found


def log_lines(ready: Prepared, sizing: Sizing) -> list[str]:
    """The lines of a boot that bear on memory, in their order, without time and place."""
    return [*ready.log, *loglines.memory(ready, sizing)]


def _sized(ready: Prepared, sizing: Sizing) -> dict[str, Any]:
    return {
        "num_blocks": sizing.blocks,
        "allocated_bytes": sizing.blocks * ready.bytes_per_block,
        "group_blocks_per_request": [blocks_held(group, sizing.length, ready.held) for group in ready.groups],
        "blocks_per_request": sizing.per_request,
        "max_model_len": sizing.length,
        "max_concurrency": sizing.concurrency,
        "kv_cache_size_tokens": sizing.tokens,
        "scheduler_block_size": sizing.scheduler_block,
        "hash_block_size": sizing.hash_block,
        "cache_hit_alignment_tokens": sizing.hit_tokens,
        "block_table_row_len": [table_row(group, sizing.length, ready.held) for group in ready.groups],
    }


def _refusal(
    ready: Prepared,
    available_bytes: int,
    stage: str,
    rule: str,
    reason: str,
    fix: str,
    *,
    sizing: Sizing | None = None,
    without: tuple[str, ...] = (),
) -> Refusal:
    refusal = Refusal(reason, stage=stage, rule=rule, fix=fix)
    sized = {} if sizing is None else {k: v for k, v in _sized(ready, sizing).items() if k not in without}
    refusal.outputs = {
        **ready.settled,
        **sized,
        "log": [
            *ready.log,
            *(loglines.memory(ready, sizing) if sizing else loglines.overriding(ready, available_bytes)),
        ],
    }
    return refusal


def _block_sizes(ready: Prepared, available_bytes: int, blocks: int, length: int, per_request: int) -> Sizing:
    """Scheduler and hash block, and where hits land. Raises Refusal for a unit or an interval off their grid."""
    args, unit = ready.args, ready.args.prefix_match_unit
    dcp = args.decode_context_parallel_size
    spans = [group.span(dcp) for group in ready.groups if group.kind != TAIL]
    whole = lcm(*spans)
    tokens = loglines.printed_tokens(ready, blocks, length, per_request)
    sizing = Sizing(available_bytes, blocks, length, per_request, tokens, whole, whole, whole)
    after = ("scheduler_block_size", "hash_block_size", "cache_hit_alignment_tokens", "block_table_row_len")

    def refuse(reason: str, fix: str) -> Refusal:
        return _refusal(
            ready, available_bytes, "resolve_kv_cache_block_sizes", "HC045", reason, fix, sizing=sizing, without=after
        )

    if len(spans) > 1 and args.decode_context_parallel_size > 1 and not ready.rules.context_parallel_groups:
        raise refuse(
            "layers of several groups do not run context parallelism",
            f"leave out --decode-context-parallel-size, or {with_release(RELEASES.newest)}",
        )
    if len(spans) == 1:
        if ready.prefix_caching and unit not in (None, whole) and ready.rules.single_unit_checked:
            raise refuse(
                f"prefix_match_unit {unit} is not the block of {whole:,} tokens, and there is one group",
                f"leave it out, or write --prefix-match-unit {whole}",
            )
    elif ready.hashed_in_blocks:
        hashed = unit if unit is not None else gcd(*spans)
        if any(span % hashed for span in spans):
            near = max(unit for unit in divisors(gcd(*spans)) if unit <= hashed)
            raise refuse(
                f"prefix_match_unit {hashed} does not divide the block of {min(spans):,} tokens",
                f"write --prefix-match-unit {near}, or leave it out",
            )
        least = hashed if dcp == 1 else hashed - 1
        fine = ready.mode == "align" and any(g.kind in STATES and g.block > least for g in ready.groups)
        sizing = sizing._replace(hash_block=hashed, hit_tokens=hashed if fine and ready.rules.fine_hits else whole)
    _check_retention(ready, sizing)
    return sizing


def _check_retention(ready: Prepared, sizing: Sizing) -> None:
    """Raise Refusal for what the managers of blocks do not take: an interval off the scheduler's grid, and beside
    states of a stage without attention blocks that are not whole blocks of those that prefixes are hashed in.
    """
    interval = ready.args.prefix_cache_retention_interval if ready.rules.retention_checked else None
    kinds = {group.kind for group in ready.groups}
    step = sizing.scheduler_block
    reason, fix, rule = "", "", "HC048"
    if ready.prefix_caching and ALONE in kinds and any(group.block % sizing.hash_block for group in ready.groups):
        reason = (
            "beside states of a pipeline stage without attention prefixes are not hashed in the blocks of all layers"
        )
        fix, rule = "write fewer stages, or add --no-enable-prefix-caching", "HC050"
    elif interval and kinds == {FULL}:
        reason, fix = "prefix_cache_retention_interval is set, but no layer keeps a state or a window", "leave it out"
    elif interval and (interval < 0 or interval % step):
        near = max(step, interval // step * step)
        reason = f"prefix_cache_retention_interval {interval:,} is no multiple of the block of {step:,} tokens"
        fix = Write("--prefix-cache-retention-interval", near)
    if reason:
        raise _refusal(
            ready,
            sizing.available_bytes,
            "retention",
            rule,
            reason,
            fix,
            sizing=sizing,
            without=("block_table_row_len",),
        )
