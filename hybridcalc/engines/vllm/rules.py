"""What does vLLM refuse, and what does it start with although nobody wants it?

Every rule has an id, a severity, a title, the reason with its arithmetic, and a source. Refusals have no check here:
they are raised where the engine itself checks (configuration.py, pages.py, planner.py) and only described; traps are
looked for in a plan that starts, those that need no memory in a launch too. A rule is added here and nowhere else.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from hybridcalc.deployment import requests_text
from hybridcalc.engines.arguments import uncounted
from hybridcalc.engines.better import way_to
from hybridcalc.engines.vllm import AUTO_FIT
from hybridcalc.engines.vllm.configuration import longest_of
from hybridcalc.engines.vllm.families import family_rule
from hybridcalc.engines.vllm.figures import Figures, Unsized
from hybridcalc.engines.vllm.layers import LAYOUT_ALIASES
from hybridcalc.engines.vllm.pages import Prepared
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.engines.vllm.releases import RELEASES
from hybridcalc.engines.vllm.suggest import PrefixReuse, finest_reuse, prefix_reuse, serves
from hybridcalc.errors import HybridcalcError, Write, printable, quoted, with_release
from hybridcalc.findings import LENGTH, MEMORY, PREFIX, WANTED, Needs, Rule
from hybridcalc.units import format_bytes

PADDING_PERCENT = 20.0
SLOTS_PERCENT = 10.0
LARGE_GPU_SEQS = 1024
MISLEADING = 1.5
"""From this factor on, the printed concurrency says little about short requests."""
FLASH_READS = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
"""Formats of KV that FlashAttention reads."""
FAR = 4
"""From this factor on, max_num_seqs is far from what fits."""


def _unread(plan: Figures) -> Iterator[tuple[str, str]]:
    """What start-up settles and cannot read: a layout once the cache is made, a format of KV at the first step."""
    ready, layout = plan.ready, plan.args.env.get("VLLM_KV_CACHE_LAYOUT")
    if layout is not None and layout not in LAYOUT_ALIASES and not ready.rules.layouts_refused:
        yield (
            f"VLLM_KV_CACHE_LAYOUT={printable(layout, 20)} stops the start: this release knows "
            f"{' and '.join(LAYOUT_ALIASES)}",
            f"one of {', '.join(LAYOUT_ALIASES)}, or {with_release(RELEASES.oldest_with('layouts_refused', True))}",
        )
    kv, name = ready.args.kv_cache_dtype, ready.backend.name if ready.backend is not None else ""
    packed = kv == "nvfp4" and ready.args.capability[0] != 10 and not ready.rules.nvfp4_on_fa2
    if (name == "FLASH_ATTN" and kv not in FLASH_READS) or (name == "FLASHINFER" and packed):
        yield (
            f"--kv-cache-dtype {kv} stops the start at its last: {name} takes it on this GPU in this release, and "
            "cannot read it",
            Write("--kv-cache-dtype", "fp8"),
        )


def _prefix_needs(plan: Figures) -> Needs | None:
    """HC055 has nothing to judge without prefix caching, unless a prefix is asked for."""
    return (MEMORY, PREFIX) if plan.ready.prefix_caching or plan.workload.shared_prefix else None


def _prefix_too_short(plan: Figures) -> Iterator[tuple[str, str]]:
    shared, private = plan.workload.shared_prefix, plan.workload.private
    if not shared:
        return
    if not plan.ready.prefix_caching:
        off = f"a prefix of {shared:,} shared tokens is never reused: prefix caching is off"
        with_it = _caching(plan)
        if with_it is None or with_it.reused:
            yield off, "write --enable-prefix-caching"
        else:
            yield f"{off}, and with it {with_it.why}", "share a longer prefix"
        return
    reuse = prefix_reuse(plan.ready, plan.sizing, shared, private)
    if reuse.reused:
        return
    finer = finest_reuse(plan.ready, plan.sizing, shared, private)
    yield (
        f"a prefix of {shared:,} shared tokens is never reused: hits land on blocks of {reuse.unit:,}, and {reuse.why}",
        Write("--prefix-match-unit", finer.unit)
        if finer.reused
        else "share a longer prefix, or serve without prefix caching",
    )


def _caching(plan: Figures) -> PrefixReuse | None:
    """What the server would reuse with prefix caching; None where that does not start, or the memory is not known."""
    if isinstance(plan, Unsized):
        return None
    try:
        ready = prepare(plan.model, replace(plan.args, enable_prefix_caching=True))
        sizing = size(ready, plan.sizing.available_bytes)
    except HybridcalcError:
        return None
    return prefix_reuse(ready, sizing, plan.workload.shared_prefix, plan.workload.private)


def _padding(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.padding_pct <= PADDING_PERCENT or plan.padded_page_bytes is None:
        return
    other = _without_block(plan) if plan.args.block_size is not None else None
    yield (
        f"a state of {plan.ready.state_bytes:,} B fills a page of {plan.padded_page_bytes:,} B: "
        f"{plan.padding_pct:.1f} % of a state is padding",
        "leave out --block-size"
        if other is not None and other.settled.get("padding_pct", 0) <= PADDING_PERCENT
        else "",
    )


def _doubled_block(plan: Figures) -> Iterator[tuple[str, str]]:
    asked = plan.args.block_size
    if asked is None or not plan.ready.pages.grown:
        return
    other = _without_block(plan)
    least = other.pages.block if other is not None else None
    if least is not None and plan.attn_block_size >= 1.5 * least:
        yield (
            f"--block-size {asked} grows to {plan.attn_block_size:,} tokens, in steps of its own: {least:,} would do",
            "leave out --block-size",
        )


def _without_block(plan: Figures) -> Prepared | None:
    """The same launch without --block-size; None where that does not start."""
    try:
        ready = prepare(plan.model, replace(plan.args, block_size=None, max_num_seqs=1))
        size(ready, plan.available_bytes)
    except HybridcalcError:
        return None
    return ready


def _fp8_brings_little(plan: Figures) -> Iterator[tuple[str, str]]:
    args, ready = plan.args, plan.ready
    if not args.kv_cache_dtype.startswith("fp8") or not ready.state:
        return
    try:
        plain = prepare(plan.model, replace(args, kv_cache_dtype="auto"))
    except HybridcalcError:
        return
    if ready.bytes_per_block * 10 >= plain.bytes_per_block * 9 and ready.pages.block > plain.pages.block:
        yield (
            f"fp8 KV makes blocks of {ready.pages.block:,} tokens out of {plain.pages.block:,}, and pages stay at "
            f"{format_bytes(ready.pages.page)}: the state pins them, so only requests of many blocks gain",
            _halved_state(plan),
        )


def _halved_state(plan: Figures) -> str:
    """The state's dtype as advice, where a server of it starts and its pages are smaller."""
    try:
        halved = prepare(plan.model, replace(plan.args, mamba_ssm_cache_dtype="bfloat16"))
    except HybridcalcError:
        return ""
    smaller = halved.bytes_per_block < plan.ready.bytes_per_block
    return "--mamba-ssm-cache-dtype bfloat16 shrinks the page; check accuracy first" if smaller else ""


def _kv_not_known(plan: Figures) -> Iterator[tuple[str, str]]:
    """What of the KV is taken for granted, or not counted at all."""
    model, args, ready = plan.model, plan.args, plan.ready
    if args.kv_cache_dtype == "auto":
        from hybridcalc.engines.checkpoints import kv_cache_open, kv_cache_said

        if kv_cache_said(model) is None:
            yield kv_cache_open("vLLM", ready.model_dtype), "write --kv-cache-dtype fp8 if it does"
    method = args.speculative_method
    uncounted = method is not None and args.draft_layers is None and not method.endswith(("mtp", "ngram", "suffix"))
    if uncounted and args.draft_path:
        from hybridcalc.engines.vllm import drafts

        uncounted = not drafts.counted(ready)
    if uncounted:
        yield "no KV of the draft model is counted", "--draft-layers N adds layers of the model's own KV size"


def _misleading_concurrency(plan: Figures) -> Iterator[tuple[str, str]]:
    length = plan.workload.mean_length
    if length is None or not plan.fixed_blocks or length * 2 > plan.max_model_len:
        return
    printed, real = plan.max_concurrency, plan.running.fits
    naive = printed * plan.max_model_len / float(length)
    if real and naive >= MISLEADING * real:
        yield (
            f"the log's {printed:.2f}x at {plan.max_model_len:,} tokens is room for {requests_text(real)} of "
            f"{plan.workload.describe()}, not {naive:,.0f}: each holds {plan.fixed_blocks} blocks of states whatever "
            "its length",
            "",
        )


def _seqs_far_off(plan: Figures) -> Iterator[tuple[str, str]]:
    asked, fits = plan.args.max_num_seqs, plan.running.fits
    if asked is None or plan.workload.mean_length is None or not fits:
        return
    if asked >= FAR * fits or fits >= FAR * asked:  # what fits depends on the number itself
        fits = serves(plan, plan.args.changed(max_num_seqs=min(asked, fits))) or fits
    if asked >= FAR * fits:
        yield (
            f"--max-num-seqs {asked:,}, but {requests_text(fits)} of {plan.workload.describe()} fit: the others are "
            "preempted and computed again",
            Write("--max-num-seqs", fits),
        )
    elif fits >= FAR * asked:
        yield (
            f"--max-num-seqs {asked:,}, and {requests_text(fits)} of {plan.workload.describe()} fit",
            Write.flags(plan.args.seqs_flags(fits)),
        )


def _default_seqs_refused(plan: Figures) -> Iterator[tuple[str, str]]:
    args = plan.args
    if args.max_num_seqs is not None or args.gpu_memory_gib is not None or not plan.most_seqs:
        return
    if plan.num_blocks < LARGE_GPU_SEQS:
        yield (
            f"on a GPU of 70 GiB and more max_num_seqs is {LARGE_GPU_SEQS:,} by default, and {plan.num_blocks:,} "
            "blocks would be refused",
            Write.flags(args.seqs_flags(min(plan.num_blocks, max(1, plan.running.fits)))),
        )


def _unit_needs(plan: Figures) -> Needs | None:
    """HC045 is seen once the blocks are counted."""
    return (MEMORY,) if plan.args.prefix_match_unit is not None else None


def _interval_needs(plan: Figures) -> Needs | None:
    """HC048 is seen once the blocks are counted."""
    return (MEMORY,) if plan.args.prefix_cache_retention_interval else None


def _default_seqs_need(plan: Figures) -> Needs | None:
    """HC061 has nothing to judge where max_num_seqs or the GPU is known."""
    return (MEMORY,) if plan.args.max_num_seqs is None and plan.args.gpu_memory_gib is None else None


def _length_needs(plan: Figures) -> Needs:
    """HC062 needs the memory as well where the length is fitted to it."""
    return (MEMORY, LENGTH) if plan.args.max_model_len == AUTO_FIT else (LENGTH,)


def _draft_needs(plan: Figures) -> Needs | None:
    """HC067 multiplies the blocks of drafts by the requests that run."""
    return (MEMORY,) if plan.ready.held.drafts and _state_groups(plan) else None


def _state_groups(plan: Figures) -> int:
    return sum(group.recurrent for group in plan.ready.groups)


def _too_long(plan: Figures) -> Iterator[tuple[str, str]]:
    longest, served, own = plan.workload.longest, plan.max_model_len, longest_of(plan.model)
    if longest <= served:
        return
    fix: str = Write("--max-model-len", longest)
    if own is not None and longest > own:
        fix = f"shorten the requests: the model itself ends at {own:,}"
    elif plan.longest_model_len < longest:
        fix = f"shorten the requests, or use more memory: up to {plan.longest_model_len:,} start on this"
    thousands = f" ({served // 1000}k is {served:,} to vLLM, {served // 1000}K is {longest:,})"
    said = thousands if served % 1000 == 0 and served // 1000 * 1024 == longest else ""
    yield f"requests of {longest:,} tokens exceed max_model_len {served:,}{said}", fix


def _fewer_than_wanted(plan: Figures) -> Iterator[tuple[str, str]]:
    """Fewer run than are wanted, over all replicas; without a number, none of the length that is asked for."""
    wanted = plan.workload.wanted or (1 if plan.workload.mean_length is not None else 0)
    if plan.requests >= wanted or plan.binding == "context":
        return
    fits, seqs, each = plan.running.fits, plan.args.seqs, -(-wanted // plan.workers)
    fix = Write.flags(plan.args.seqs_flags(each))
    if fits >= each:
        text = f"max_num_seqs is {seqs:,}"
    else:
        text = f"{plan.usable_blocks:,} blocks hold {fits:,} x {float(plan.running.blocks_each):,.4g}"
        text += f", and max_num_seqs is {seqs:,}" if plan.binding == "limit" else ""
        fix = ""
    if fits < each or (serves(plan, plan.args) or 0) < each:  # each sequence more takes some of the memory
        fix = way_to(plan, wanted, "use more memory, or shorten the requests")
    text += f"; each of {plan.workers} replicas" if plan.workers > 1 else ""
    runs = "none runs" if not plan.requests else f"{plan.requests:,} run{'s' if plan.requests == 1 else ''}"
    yield f"{requests_text(wanted)} {'is' if wanted == 1 else 'are'} wanted, {runs}: {text}", fix


def _empty_slots(plan: Figures) -> Iterator[tuple[str, str]]:
    sizes = plan.group_sizes
    empty = 100 * (1 - Fraction(sum(sizes), max(sizes) * len(sizes)))
    if empty > SLOTS_PERCENT:
        yield (
            f"groups of {', '.join(map(str, sorted(set(sizes))))} layers share blocks of {max(sizes)}: "
            f"{float(empty):.0f} % of the layer slots stay empty",
            "",
        )


def _mode_ignored(plan: Figures) -> Iterator[tuple[str, str]]:
    asked, mode = plan.args.mamba_cache_mode, plan.ready.mode
    if asked is not None and asked != mode and plan.ready.state:
        why, fix = "the model class does not support it", "leave it out"
        if not plan.ready.prefix_caching:
            why, fix = "since prefix caching is off", "add --enable-prefix-caching, or leave it out"
        elif not plan.ready.rules.modes or asked == "none":
            why = "since prefix caching decides it"
        yield f"--mamba-cache-mode {asked} has no effect: the mode is {mode}, {why}", fix


def _unknown_connector(plan: Figures) -> Iterator[tuple[str, str]]:
    if not plan.args.moves_kv:
        return
    from hybridcalc.engines.vllm.connectors import connectors, keeps_hybrids

    for name in connectors(plan.args):
        if keeps_hybrids(name, plan.ready.rules) is None and plan.ready.state:
            yield (
                f"whether {quoted(name, 60)} keeps hybrid caches is not known: the server only starts where it does",
                "",
            )


def _block_ignored(plan: Figures) -> Iterator[tuple[str, str]]:
    asked, block = plan.args.mamba_block_size, plan.ready.pages.mamba_block
    if asked is not None and plan.ready.mode == "align" and asked != block and plan.ready.state:
        yield (
            f"--mamba-block-size {asked} has no effect: in mode align it is the attention block, {block:,}",
            "leave out --mamba-block-size",
        )


def _dtype_ignored(plan: Figures) -> Iterator[tuple[str, str]]:
    asked = plan.args.mamba_ssm_cache_dtype
    if asked == "auto" or not plan.ready.state:
        return
    kept = plan.ready.state[-1].dtype if family_rule(plan.model).ssm_dtype else None
    if kept is None or (kept != asked and not plan.args.use_replayssm):
        what = f"the temporal state stays {kept}" if kept else f"a {plan.model.family} layer keeps no temporal state"
        yield f"--mamba-ssm-cache-dtype {asked} has no effect: {what}", "leave it out"


def _draft_blocks(plan: Figures) -> Iterator[tuple[str, str]]:
    drafts, groups = plan.ready.held.drafts, _state_groups(plan)
    if drafts and groups and plan.concurrency:
        taken = drafts * groups * plan.bytes_per_block
        yield (
            f"{drafts} draft tokens hold {drafts} blocks in each of {groups} state groups: {format_bytes(taken)} a "
            f"request, {format_bytes(taken * plan.concurrency)} for {plan.concurrency:,}",
            "",
        )


PLANNING, UTILS = "vLLM v1/core/kv_cache_planning.py", "vLLM v1/core/kv_cache_utils.py"
INTERFACE = "vLLM platforms/interface.py"
RULES: tuple[Rule, ...] = (
    Rule("HC040", "error", "no memory for the cache",
         "Weights, activations and graphs leave less than one block and the null block.", PLANNING, needs=(MEMORY,),
         place=("--gpu-memory-utilization", "--kv-cache-memory-bytes")),
    Rule("HC041", "error", "one request does not fit",
         "A request of max_model_len holds a fixed number of blocks for its states and ceil(L / block) for its KV; one "
         "block more is never handed out.", PLANNING, needs=(MEMORY,), place=("--max-model-len",)),
    Rule("HC042", "error", "cache mode retired",
         "0.31 was the last release to run mode all. The command line of later ones has no such choice; the class "
         "EngineArgs of 0.33 takes it and runs align.", "vLLM config/cache.py, engine/arg_utils.py",
         place=("--mamba-cache-mode",)),
    Rule("HC043", "error", "model class unknown to the version", "Releases gain classes and lose them.",
         "vLLM model_executor/models/registry.py"),
    Rule("HC044", "error", "max_num_seqs exceeds the blocks",
         "Full CUDA graphs need a state block for every sequence, and all groups share one pool of blocks.",
         "vLLM config/compilation.py", needs=(MEMORY,), place=("--max-num-seqs",)),
    Rule("HC045", "error", "prefix match unit refused",
         "It divides the block of every group, and is the block where there is one group.", UTILS,
         asks=_unit_needs, place=("--prefix-match-unit",)),
    Rule("HC046", "error", "a layer's state outgrows its page",
         "The page is sized by the model class, the state by the layer; they count drafts and dtypes differently.",
         "vLLM v1/kv_cache_interface.py", place=("--mamba-ssm-cache-dtype", "--speculative-config")),
    Rule("HC047", "error", "block size, layout or KV format refused",
         "A block is a multiple of the backend's kernel block; both caches share one layout, whose name is read late "
         "before 0.29; before 0.22 FlashAttention took formats on Hopper that it does not read.",
         "vLLM v1/attention/selector.py, v1/attention/backends/utils.py, envs.py", _unread, place=("--block-size",)),
    Rule("HC048", "error", "retention interval refused", "It is a multiple of the scheduler's block.",
         "vLLM v1/core/kv_cache_coordinator.py", asks=_interval_needs, place=("--prefix-cache-retention-interval",)),
    Rule("HC049", "error", "flags refused together",
         "Prefix caching of states needs chunked prefill; ReplaySSM fits few classes, backends and modes; MTP drafts "
         "come in multiples of its layers; KDA states are float32 or bfloat16.", "vLLM config/vllm.py"),
    Rule("HC050", "error", "ranks do not divide the model",
         "Heads, groups, channels and the vocabulary, rounded up to 64 rows, are shared out exactly.",
         "vLLM model_executor/layers/mamba/mamba_utils.py", place=("--tensor-parallel-size",), settles=("HC073",)),
    Rule("HC051", "error", "longer than the model",
         "max_model_len beyond the config's own limit needs VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.", "vLLM config/model.py",
         place=("--max-model-len",)),
    Rule("HC052", "error", "hybrid manager off",
         "States beside attention are caches of two kinds, which nothing else keeps: --disable-hybrid-kv-cache-manager "
         "and KV connectors without support for them (LMCache, FlexKV, HF3FS, a MultiConnector with one of these) do "
         "not start.", "vLLM config/vllm.py, distributed/kv_transfer/kv_connector/factory.py",
         place=("--kv-transfer-config", "--kv-offloading-backend", "--disable-hybrid-kv-cache-manager")),
    Rule("HC053", "warning", "KV connector unknown",
         "A connector that keeps no hybrid caches turns the hybrid manager off, and the start fails.",
         "vLLM distributed/kv_transfer/kv_connector/factory.py", _unknown_connector, place=("--kv-transfer-config",)),
    Rule("HC054", "warning", "KV that is not known",
         "auto follows the quantization_config of the checkpoint; a draft model keeps KV of its own.",
         "vLLM model_executor/models/config.py, config/speculative.py", _kv_not_known),
    Rule("HC055", "warning", "block longer than the shared prefix",
         "Hits land on whole blocks, which cover a state: a shorter prefix is never found.", UTILS, _prefix_too_short,
         needs=(MEMORY, PREFIX), asks=_prefix_needs, place=("--prefix-match-unit",)),
    Rule("HC056", "warning", "padding above 20 %", "Every state takes a whole page: 100 (page - m) / m.", INTERFACE,
         _padding, place=("--block-size",)),
    Rule("HC057", "warning", "--block-size grows by its own steps",
         "A block that must cover a state is rounded up to a multiple of what was asked for.", INTERFACE,
         _doubled_block, place=("--block-size",)),
    Rule("HC058", "note", "fp8 KV brings little", "The page covers the state: halving KV doubles the block.", INTERFACE,
         _fp8_brings_little, place=("--kv-cache-dtype",)),
    Rule("HC059", "note", "the printed concurrency misleads for short requests",
         "States take blocks of their own, (2 + S + C) a group in mode align, whatever the length.", UTILS,
         _misleading_concurrency, needs=(MEMORY, LENGTH)),
    Rule("HC060", "warning", "max_num_seqs far from what fits", "Admitted requests that do not fit are preempted.",
         "vLLM v1/core/sched/scheduler.py", _seqs_far_off, needs=(MEMORY, LENGTH), place=("--max-num-seqs",)),
    Rule("HC061", "warning", "the default max_num_seqs may be refused",
         "It is 1,024 on GPUs of 70 GiB and more but A100, else 256.", "vLLM engine/arg_utils.py",
         _default_seqs_refused, needs=(MEMORY,), asks=_default_seqs_need),
    Rule("HC062", "error", "requests longer than max_model_len", "Such a request is refused.",
         "vLLM v1/engine/processor.py", _too_long, needs=(LENGTH,), asks=_length_needs, place=("--max-model-len",)),
    Rule("HC063", "error", "fewer requests run than wanted",
         "Usable blocks over the blocks of a request, and no more than max_num_seqs: raise that where it binds, else "
         "give more memory, shorter requests or a smaller KV dtype.", PLANNING, _fewer_than_wanted,
         needs=(MEMORY, WANTED), place=("--max-num-seqs",), settles=("HC060",)),
    Rule("HC064", "warning", "layer slots stay empty",
         "A block is a page in as many layer slots as the largest group has.", PLANNING, _empty_slots),
    Rule("HC065", "warning", "cache mode not obeyed", "Prefix caching and the model class decide.",
         "vLLM model_executor/models/config.py", _mode_ignored, place=("--mamba-cache-mode",)),
    Rule("HC066", "warning", "state dtype flag without effect",
         "KDA layers of Kimi-Linear and Ling-3 stay float32; linear attention and short convolutions take "
         "--mamba-cache-dtype.", "vLLM model_executor/layers/mamba/mamba_utils.py", _dtype_ignored,
         place=("--mamba-ssm-cache-dtype",)),
    Rule("HC067", "note", "draft tokens take blocks of states",
         "Every draft token holds a block in every state group of every request: S x groups x block bytes.",
         "vLLM model_executor/layers/mamba/abstract.py", _draft_blocks, asks=_draft_needs),
    Rule("HC068", "warning", "--mamba-block-size without effect", "In mode align it is the attention block.", INTERFACE,
         _block_ignored, place=("--mamba-block-size",)),
    Rule("HC069", "warning", "memory that is not modelled",
         "LoRA adapters take memory, offloaded layers free some; a plan counts neither.", "docs/engines.md", uncounted),
)  # fmt: skip
"""Every rule, refusals first."""
