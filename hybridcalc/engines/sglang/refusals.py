"""What does SGLang refuse of flags that it takes one by one, and of pools once they are sized?

Strategies of the radix cache (no_buffer, extra buffers), what int8 checkpoints and unified memory do not run beside,
dtypes of KV, flags and values that a release does not have (names that changed, flags.py `RENAMED`, count from their
first name on); ReplaySSM has replay.py. Every refusal carries its stage, the rule that docs/rules.md explains, and
what to write.
Mirrors server_args.py, arg_groups/choices.py, mamba_hook.py, attention_hook.py, kv_cache_hook.py, fields/ and
mem_cache/memory_pool.py (0.5.23; what a release lacks: 0.5.9 to 0.5.23).
"""

from typing import NamedTuple

from hybridcalc.architecture import Architecture, LatentKV, uneven_heads
from hybridcalc.engines.sglang import ServerArgs, drop_drafts
from hybridcalc.engines.sglang.kv import DSA_PAGE, fuses_drafts, index_page
from hybridcalc.engines.sglang.releases import FLAGS_SINCE, VALUES_SINCE, VALUES_UNTIL, RuleSet
from hybridcalc.engines.sglang.served import check_served, data_parallel_attention
from hybridcalc.engines.sglang.sizes import NO_STATE, StateSlot, dense_windows, family_rule, keeps_drafts, state_slot
from hybridcalc.errors import Drop, Either, OneOf, Refusal, ShardingError, Write, WriteAll, with_release, write_one_of
from hybridcalc.formulas import Strategy
from hybridcalc.units import is_later, rounded_up

FIXED_CHUNKS = {
    "MambaForCausalLM": 256, "FalconMambaForCausalLM": 256, "Lfm2ForCausalLM": 1, "Lfm2MoeForCausalLM": 1,
    "ZayaForCausalLM": 1, "InklingForConditionalGeneration": 64,
}  # fmt: skip
DEFAULT_CHUNK = 64
AUTOMATIC, BUFFERED = Drop("--mamba-radix-cache-strategy"), Write("--mamba-radix-cache-strategy", "extra_buffer")
UNIFIED_SPECULATION = ("DSPARK", "DFLASH", "EAGLE", "EAGLE3")
NGRAM_BRANCHES, NGRAM_PAGES, TREE_PAGES = 10, ("flashinfer",), ("flashinfer", "fa3", "triton")
"""Branches of NGRAM drafts, and the backends that verify trees of drafts on pages of several tokens."""


class Unbuildable(NamedTuple):
    """Why pools are refused: the rule, the reason, and what to write; ``states_built``: the states stand by then."""

    rule: str
    reason: str
    fix: str
    states_built: bool = False

    def refusal(self) -> Refusal:
        """The refusal, to be raised at its stage."""
        return Refusal(self.reason, stage="alloc", rule=self.rule, fix=self.fix)


def chunk_size(model: Architecture) -> int:
    """Tokens of one chunk of the recurrent kernel, which pages must divide or be divided by."""
    return FIXED_CHUNKS.get(model.architecture) or model.chunk_size or DEFAULT_CHUNK


def unbuildable(model: Architecture, args: ServerArgs, rules: RuleSet, *, replay_active: bool) -> Unbuildable | None:
    """What the engine refuses of the pools, which it only sees once they are sized: states first, then pages of KV."""
    if args.speculative and args.enable_linear_replayssm_spec:
        if args.speculative_algorithm in ("DSPARK", "DFLASH") and not family_rule(model).kimi_pool:
            return Unbuildable(
                "HC006",
                f"ReplaySSM verification under {args.speculative_algorithm} needs a KDA model",
                Drop("--enable-linear-replayssm-spec"),
            )
        if replay_active:
            from hybridcalc.engines.sglang.pools import ring_problem

            problem = ring_problem(model, args.linear_replayssm_cache_len, args.most_draft_tokens)
            if problem:
                return Unbuildable("HC006", problem, "change --linear-replayssm-cache-len")
    if model.ple_conv is not None and args.enable_int8_mamba_checkpoint:
        return Unbuildable(
            "HC007", "int8 checkpoints do not hold per-layer-embedding states", Drop("--enable-int8-mamba-checkpoint")
        )
    windows = {window.rows for window in model.state.shapes(1).conv} if model.state is not None else set[int]()
    overlap = rules.one_window_length and keeps_drafts(args, rules) and not dense_windows(model, args, rules)
    if len(windows) > 1 and overlap:
        return Unbuildable(
            "HC026",
            f"draft windows of {model.architecture} are not all of one length, and cannot overlap in a linear chain",
            drop_drafts(args),
        )
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None and args.tokens_per_page // (index_page(indexer, rules) // DSA_PAGE) != DSA_PAGE:
        page = index_page(indexer, rules)
        interval = f" --mamba-track-interval {page}" if args.mamba_track_interval % page else ""
        return Unbuildable(
            "HC004",
            f"the sparse-attention index needs pages of 64 pooled tokens, {indexer.kpool} to one, not pages of "
            f"{args.tokens_per_page}",
            Write.flags(f"--page-size {page}{interval}"),
            states_built=True,
        )
    compressed = getattr(model.attention, "compressed", None)
    if compressed is not None and args.tokens_per_page % compressed.ratio:
        return Unbuildable(
            "HC004",
            f"compressed index keys need pages of a multiple of {compressed.ratio} tokens, not {args.tokens_per_page}",
            Write("--page-size", DSA_PAGE),
            states_built=True,
        )
    return None


def shapes(model: Architecture, args: ServerArgs) -> StateSlot:
    """The state slot of a rank. Raises Refusal for ranks that do not share it out."""
    try:
        return state_slot(model, args)
    except ShardingError as error:
        fix = error.fix
        if isinstance(fix, OneOf) and args.attn_dp_size == 1:
            heads = [at for at in fix.values if not uneven_heads(model.attention, model.num_attention_heads, int(at))]
            fix = write_one_of(fix.flag, heads)
        raise Refusal(error.message, stage="shapes", rule="HC009", fix=fix) from error


def undivided(model: Architecture, args: ServerArgs) -> tuple[Refusal, ...]:
    """What a build that does have the class, as vendors ship them, refuses whatever its rules: ranks."""
    try:
        _ = NO_STATE if model.state is None else shapes(model, args)
    except Refusal as refusal:
        return (refusal,)
    return ()


def check_index(model: Architecture, args: ServerArgs) -> None:
    """Raise Refusal (stage "tokens") for a compressed index that the engine's kernels cannot select from."""
    index = getattr(model.attention, "compressed", None)
    if index is None:
        if args.qsa_indexer_dtype == "fp8_e4m3":
            raise refused("HC028", "there are no compressed index keys to keep in fp8", Drop("--qsa-indexer-dtype"))
        return
    problems = {
        f"{index.heads} index KV heads, not 1": index.heads != 1,
        f"one key for {index.ratio} token, not 2 or more": index.ratio < 2,
        f"a budget of {index.budget}, which keys of {index.ratio} tokens do not divide": index.budget % index.ratio,
        f"{index.budget // index.ratio:,} keys a query, not 512 or 2,048": index.budget // index.ratio
        not in (512, 2048),
    }
    problem = next((words for words, given in problems.items() if given), None)
    if problem is not None:
        raise Refusal(f"the compressed index has {problem}", stage="tokens", rule="HC028", fix="check the config")


def check_pools(model: Architecture, args: ServerArgs, rules: RuleSet, *, replay_active: bool = False) -> None:
    """Raise Refusal for pools that the engine refuses, for questions that size none."""
    problem = unbuildable(model, args, rules, replay_active=replay_active)
    if problem is not None:
        raise problem.refusal()


def check_no_buffer(overlap: bool, args: ServerArgs) -> None:
    """Raise Refusal for what no_buffer does not run with."""
    if args.tokens_per_page != 1:
        raise refused("HC004", f"no_buffer needs --page-size 1, not {args.tokens_per_page}", Drop("--page-size"))
    if overlap:
        raise refused(
            "HC003",
            "no_buffer does not run under the overlap scheduler",
            Either(WriteAll("--disable-overlap-schedule"), AUTOMATIC),
        )
    if args.attention_backend == "trtllm_mha":
        reason = "no_buffer does not run with --attention-backend trtllm_mha"
        raise refused("HC003", reason, Write("--attention-backend", "triton"), "--attention-backend")


def check_extra_buffer(
    strategy: Strategy, model: Architecture, args: ServerArgs, rules: RuleSet, supported: bool
) -> None:
    """Raise Refusal for what extra buffers do not run with: the engine's checks, in its order."""
    if not supported:
        raise refused("HC003", f"{strategy.value} is not supported for {model.architecture} here", AUTOMATIC)
    if args.platform not in rules.extra_buffer_platforms:
        raise refused("HC003", f"{strategy.value} does not run on {args.platform}", AUTOMATIC)
    lazy, page, interval = strategy is Strategy.EXTRA_BUFFER_LAZY, args.tokens_per_page, args.mamba_track_interval
    if lazy and args.disaggregation_mode != "null" and rules.lazy_refused_under_disaggregation:
        raise refused("HC003", "extra_buffer_lazy does not run on disaggregated servers", BUFFERED)
    if lazy and args.speculative_num_draft_tokens is not None and not rules.lazy_with_speculation:
        raise Refusal(
            f"SGLang {rules.version} refuses extra_buffer_lazy with speculation",
            stage="arguments",
            rule="HC003",
            fix=BUFFERED,
        )
    if lazy and args.speculative_algorithm == "DFLASH" and not rules.lazy_with_dflash:
        raise refused("HC003", f"SGLang {rules.version} refuses extra_buffer_lazy with DFLASH drafts", BUFFERED)
    if interval < args.draft_tokens:
        raise refused(
            "HC005",
            f"--mamba-track-interval {interval} is below the {args.draft_tokens} draft tokens of a step",
            Write("--mamba-track-interval", rounded_up(args.draft_tokens, page)),
        )
    chunk = chunk_size(model)
    uneven = max(chunk, page) % min(chunk, page)
    if interval % page:
        raise refused(
            "HC005",
            f"--mamba-track-interval {interval} is no multiple of --page-size {page}",
            Write("--page-size", chunk) if uneven else Write("--mamba-track-interval", rounded_up(interval, page)),
        )
    if uneven:
        raise refused(
            "HC004",
            f"--page-size {page} neither divides the kernel's chunk of {chunk} tokens nor is a multiple of it",
            Write("--page-size", chunk),
        )


def caches_when_judged(args: ServerArgs, rules: RuleSet) -> bool:
    """Whether prefixes are cached while strategies are judged: a decode server may lose its cache before or after."""
    return args.radix_cache if rules.decode_settled_first else not args.disable_radix_cache


def check_early_buffers(
    strategy: Strategy, model: Architecture, args: ServerArgs, rules: RuleSet, supported: bool
) -> None:
    """Raise Refusal for what a strategy does not run with in releases that have no automatic one."""
    cached = caches_when_judged(args, rules)
    if strategy is Strategy.NO_BUFFER:
        if args.speculative and cached:
            raise refused(
                "HC003",
                f"SGLang {rules.version} caches no prefixes beside drafts under no_buffer",
                Either(BUFFERED, WriteAll("--disable-radix-cache")),
            )
        return
    if supported and not cached and rules.buffers_need_radix_cache:
        raise refused("HC003", "extra buffers keep states of the radix cache, which is off", AUTOMATIC)
    check_extra_buffer(strategy, model, args, rules, supported)


def check_kv_dtype(args: ServerArgs) -> None:
    """Raise Refusal for a KV dtype that the GPU lacks operands for; an unknown GPU is taken to have them."""
    major = args.capability[0] if args.capability is not None else 10
    if args.kv_cache_dtype == "mxfp8" and (args.platform != "cuda" or major < 10):
        raise refused(
            "HC025",
            "--kv-cache-dtype mxfp8 runs on Blackwell alone",
            Write("--kv-cache-dtype", "fp8_e4m3"),
            "--kv-cache-dtype",
        )


def check_kernels(model: Architecture, typed: ServerArgs, args: ServerArgs, rules: RuleSet) -> None:
    """Raise Refusal for what a backend, as it is ``typed`` or settled, does not run with, where the GPU is known."""
    if args.capability is None or args.platform != "cuda":
        return
    major, backend, dtype = args.capability[0], args.attention_backend, args.kv_cache_dtype
    branches = NGRAM_BRANCHES if args.speculative_algorithm == "NGRAM" else args.speculative_eagle_topk or 1
    tree = args.speculative and branches > 1
    pages = NGRAM_PAGES if args.speculative_algorithm == "NGRAM" else TREE_PAGES
    sparse = getattr(model.attention, "indexer", None) is not None
    problems = {
        f"{backend} does not run on compute capability {args.gpu_capability}": major
        not in {"trtllm_mha": rules.trtllm_mha_majors, "trtllm_mla": (10, 12)}.get(backend or "", (major,)),
        f"{backend} does not read {dtype} there": (backend == "trtllm_mha" and major == 12 and dtype == "fp8_e4m3")
        or (backend == "trtllm_mla" and dtype not in ("auto", "bf16", "fp8_e4m3"))
        or (sparse and dtype not in ("auto", "bf16", "bfloat16", "fp8_e4m3")),
        f"{backend} does not verify trees of drafts": tree and backend == "trtllm_mha",
        f"{backend} does not verify trees of drafts on pages of {args.tokens_per_page}": tree
        and args.tokens_per_page > 1
        and backend not in pages,
        "layers of convolutions do not run on triton": typed.attention_backend == "triton"
        and model.architecture in rules.convolution_classes,
        "Nemotron-H does not run on triton in this release": typed.attention_backend == "triton"
        and model.architecture.startswith("NemotronH")
        and not rules.nemotron_by_drafts,
        "NGRAM drafts do not run under data-parallel attention": args.speculative_algorithm == "NGRAM"
        and args.attn_dp_size > 1,
    }
    problem = next((words for words, given in problems.items() if given), None)
    if problem is not None:
        drafts = drop_drafts(args) if args.speculative else ""
        workers = Drop("--enable-dp-attention") if args.attn_dp_size > 1 and "data-parallel" in problem else ""
        kernels = () if workers else (Drop("--attention-backend"), Write("--page-size", 1), Drop("--kv-cache-dtype"))
        raise refused("HC025", problem, Either(*filter(None, (*kernels, workers, drafts))))


def check_companions(model: Architecture, args: ServerArgs, rules: RuleSet) -> None:
    """Raise Refusal for what int8 checkpoints and unified memory do not run beside."""
    others = {
        "--enable-hierarchical-cache": args.enable_hierarchical_cache,
        "--radix-cache-backend": args.radix_cache_backend is not None,
        "--enable-lmcache": args.enable_lmcache,
    }
    beside = next((flag for flag, given in others.items() if given), None)
    if args.enable_int8_mamba_checkpoint and beside is not None:
        raise refused("HC007", f"int8 checkpoints do not run with {beside}", Drop("--enable-int8-mamba-checkpoint"))
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None and indexer.kpool > 1 and args.dcp_size > 1:
        reason = f"{indexer.kpool} tokens share an index key, and context parallelism would part them"
        raise refused("HC027", reason, Drop("--dcp-size"), "--dcp-size")
    if model.architecture.startswith("MiniCPMSALA") and data_parallel_attention(args, rules):
        reason = "MiniCPM does not run under data-parallel attention"
        raise refused("HC025", reason, Drop("--enable-dp-attention"), "--enable-dp-attention")
    if args.dcp_size > 1 and args.platform != "hip" and not rules.dcp_unlimited:
        if args.platform != "cuda":
            reason = f"SGLang {rules.version} runs no context parallelism on {args.platform}"
            raise refused("HC027", reason, Drop("--dcp-size"), "--dcp-size")
        if args.speculative:
            reason = f"SGLang {rules.version} runs no drafts under context parallelism"
            raise refused("HC027", reason, Either(Drop("--dcp-size"), drop_drafts(args)), "--dcp-size")
    if not args.enable_unified_memory:
        return
    problems = {
        "on disaggregated servers": args.disaggregation_mode != "null",
        "with --enable-lmcache": args.enable_lmcache,
        "with --enable-two-batch-overlap": args.enable_two_batch_overlap,
        "with compressed index keys": getattr(model.attention, "compressed", None) is not None,
        "with fp4 KV": args.kv_cache_dtype.startswith("fp4"),
        "under context parallelism without MLA": args.dcp_size > 1 and not isinstance(model.attention, LatentKV),
        "with this kind of speculation": args.speculative
        and (args.speculative_algorithm not in UNIFIED_SPECULATION or args.speculative_eagle_topk not in (None, 1)),
        "with a draft whose KV cannot lie beside the target's: latent rows, context parallelism": rules.fused_drafts
        and args.speculative_algorithm in ("EAGLE", "EAGLE3", "DFLASH")
        and not fuses_drafts(model, args, rules),
    }
    problem = next((words for words, given in problems.items() if given), None)
    if problem is not None:
        raise refused("HC008", f"unified memory does not run {problem}", Drop("--enable-unified-memory"))


def refused(rule: str, reason: str, fix: str, flag: str = "") -> Refusal:
    """A refusal at the stage of the arguments that are held against each other."""
    return Refusal(reason, stage="strategy", rule=rule, fix=fix, flag=flag)


def check_release(model: Architecture, args: ServerArgs, rules: RuleSet) -> None:
    """Raise Refusal for a model, a flag or a value of one that the release does not have; with what else it refuses."""
    try:
        check_served(rules, model)
        check_since(args, rules)
    except Refusal as refusal:
        refusal.beside = undivided(model, args)
        raise


def check_since(args: ServerArgs, rules: RuleSet) -> None:
    """Raise Refusal (stage "arguments") for a flag, or a value of one, that the release has not yet or no more."""
    for name, value, own in args.held():
        if value == own:
            continue
        flag = f"--{name.replace('_', '-')}"
        said = f"{flag} {value}"
        first = VALUES_SINCE.get(name, {}).get(value) if isinstance(value, str) else None
        if name in FLAGS_SINCE and (first is None or is_later(FLAGS_SINCE[name], rules.version)):
            first, said = FLAGS_SINCE[name], flag
        if first is not None and is_later(first, rules.version):
            raise _lacks(rules, args, flag, said, f"yet: the first release that has it is {first}", first)
        last = VALUES_UNTIL.get((name, value)) if isinstance(value, str) else None
        if last is not None and is_later(rules.version, last):
            raise _lacks(rules, args, flag, said, f"any more: the last release that has it is {last}", last)


def _lacks(rules: RuleSet, args: ServerArgs, flag: str, said: str, when: str, release: str) -> Refusal:
    return Refusal(
        f"SGLang {rules.version} has no {said} {when}",
        stage="arguments",
        rule="HC024",
        fix=Either(drop_drafts(args) if flag == "--speculative-algorithm" else Drop(flag), with_release(release)),
        flag=flag,
        release=release,
    )
