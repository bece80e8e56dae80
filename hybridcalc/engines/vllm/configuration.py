"""The first stages of vLLM's start-up: drafts, prefix caching, cache mode, length, and what they refuse.

    0.33.0: prefix caching is on for hybrids; the mode is align with it and none without, whatever was asked for
    0.22.1: it is off for hybrids; with it the mode is all where the class supports that and align is not asked for

Mirrors vLLM engine/arg_utils.py, config/vllm.py, config/cache.py, model_executor/models/config.py.
"""

from dataclasses import replace
from functools import lru_cache

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.architecture.presets import plain
from hybridcalc.engines.vllm import AUTO_FIT, EngineArgs, layers
from hybridcalc.engines.vllm.families import ModelClass, family_rule, undivided
from hybridcalc.engines.vllm.layers import NEMOTRON, PACKED, QWEN3_5, Backend, StateTensor, dtypes_taken, layer_state
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet
from hybridcalc.errors import InputError, Refusal, ShardingError, Write, with_release, write_one_of
from hybridcalc.formulas import divisors
from hybridcalc.units import is_later

MOST_DRAFTS = 1024
MOST_RANKS_TRIED = 128
SUFFIX_DRAFTS = 24
"""Draft tokens of the suffix method where none are given: the depth of its tree."""
ASSUMED_LENGTH = 2048
"""max_model_len of a model whose config names no longest sequence."""
EXPERTS_ON_RANKS, LEAST_EXPERTS = ("Qwen3Next", "Qwen3_5Moe", "Lfm2Moe"), 16
"""How names of the classes begin that do not run on more ranks than they have experts."""
WITHOUT_STAGES = (
    "Mamba2ForCausalLM", "Zamba2ForCausalLM", "MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM",
)  # fmt: skip
"""Classes that no release cuts into pipeline stages."""


LATER_ARGUMENTS = {
    "mamba_backend": "0.20.0", "prefix_match_unit": "0.26.0", "kda_prefill_backend": "0.27.0",
    "prefix_cache_retention_interval": "0.29.0",
}  # fmt: skip
"""Arguments -> the first release that has them, where it is not the oldest known here."""
_UNSET = EngineArgs()


def check_choices(args: EngineArgs, rules: RuleSet) -> None:
    """Raise Refusal for an argument that the release does not have, or a value of one that it does not take: a cache
    mode, the dtype of a state, a KV format.
    """
    version, given = args.engine_version or rules.version, args.kv_cache_dtype
    later = [
        (f"--{name.replace('_', '-')}", first)
        for name, first in LATER_ARGUMENTS.items()
        if getattr(args, name) != getattr(_UNSET, name)
    ]
    if given in PACKED:
        later.append((f"--kv-cache-dtype {given}", PACKED[given].first))
    for flag, first in later:
        if is_later(first, RELEASES.counted(version)):
            raise Refusal(
                f"vLLM {version} has no {flag}: the first version that has it is {first}",
                stage="create_engine_config",
                rule="HC049",
                fix=f"leave it out, or {with_release(first)}",
                flag=flag.split()[0],
                release=first,
            )
    if rules.mode_all_refused or args.command_line:
        check_mode_all(args, rules)
    for flag, dtype in (
        ("--mamba-cache-dtype", args.mamba_cache_dtype),
        ("--mamba-ssm-cache-dtype", args.mamba_ssm_cache_dtype),
    ):
        if dtype == "bfloat16" and not rules.bfloat16_states:
            first = RELEASES.oldest_with("bfloat16_states", True)
            raise Refusal(
                f"vLLM {version} has no {flag} bfloat16: the first version that has it is {first}",
                stage="create_engine_config",
                rule="HC049",
                fix=f"write auto, or {with_release(first)}",
                flag=flag,
                release=first,
            )


def check_mode_all(args: EngineArgs, rules: RuleSet) -> None:
    """Raise Refusal for mode all where the release does not run it."""
    if args.mamba_cache_mode == "all" and not rules.modes:
        last = RELEASES.newest_with("modes", True)
        raise Refusal(
            f"vLLM {args.engine_version or rules.version} has no Mamba cache mode all: the last version that had it is "
            f"{last}, later ones run align",
            stage="create_engine_config",
            rule="HC042",
            fix=f"leave out --mamba-cache-mode, or {with_release(last)}",
            release=last,
        )


def with_kv_of_checkpoint(model: Architecture, args: EngineArgs) -> EngineArgs:
    """``args`` with --kv-cache-dtype auto resolved as the checkpoint's quantisation says, where that is known."""
    if args.kv_cache_dtype != "auto" or plain(model):
        return args
    from hybridcalc.engines.checkpoints import kv_cache_said

    said = kv_cache_said(model)
    return replace(args, kv_cache_dtype=said) if said else args


def with_drafts(model: Architecture, args: EngineArgs, kind: ModelClass) -> tuple[EngineArgs, int]:
    """``args`` with the number of draft tokens settled, and the attention layers that the draft model adds.

    MTP drafts with the model's own layers, and by their number where none is given. A separate draft model (eagle,
    draft_model) adds what ``draft_layers`` says. Raises Refusal for more drafts than its layers divide.
    """
    method, layers = args.speculative_method, args.draft_layers
    if method is None:
        return args, 0
    config = args.speculative_config or {}
    if config.get("method") is None and config.get("model") is None:
        raise _refusal(
            "HC049",
            "speculation names neither a method nor a draft model",
            'add "method" to --speculative-config: mtp, ngram, eagle3, ...',
            "--speculative-config",
        )
    if method == "suffix" and not args.num_speculative_tokens:
        return _drafting(args, SUFFIX_DRAFTS), layers or 0
    if not method.endswith("mtp"):
        if not args.num_speculative_tokens:
            raise _refusal(
                "HC049",
                f"the speculative method {method[:40]} needs a number of draft tokens",
                'add "num_speculative_tokens": N to --speculative-config',
                "--speculative-config",
            )
        if layers is None and config.get("model"):
            from hybridcalc.engines.vllm.drafts import joining_layers

            layers = joining_layers(model, args)
        return args, layers or 0
    version = RELEASES.counted(args.engine_version or RELEASES.newest)
    if kind.mtp_first and is_later(kind.mtp_first, version):
        raise _refusal(
            "HC049",
            f"vLLM {version} does not draft with MTP layers of {model.architecture} yet: the first is {kind.mtp_first}",
            f"use another speculative method, or {with_release(kind.mtp_first)}",
            "--speculative-config",
        )
    own = layers if layers is not None else (model.draft_layers or kind.mtp_layers)
    if not own:
        raise _refusal(
            "HC049",
            f"{model.name} has no MTP layers to draft with",
            "use another speculative method, or --draft-layers N",
            "--speculative-config",
        )
    if own > MOST_DRAFTS:
        raise InputError(f"{model.name} has {own:,} draft layers, beyond any model")
    drafts = args.num_speculative_tokens or own
    if drafts > own and drafts % own:
        raise _refusal(
            "HC049",
            f"{drafts} speculative tokens are no multiple of the {own} MTP layers",
            f"write a multiple of {own}",
            "--speculative-config",
        )
    return _drafting(args, drafts), own


def _drafting(args: EngineArgs, drafts: int) -> EngineArgs:
    config = {**(args.speculative_config or {}), "num_speculative_tokens": drafts}
    return replace(args, speculative_config=config, num_speculative_tokens=drafts)


def cache_mode(model: Architecture, args: EngineArgs, rules: RuleSet, kind: ModelClass) -> tuple[bool, str]:
    """Whether prefixes are cached, and the cache mode of the states."""
    caching = args.enable_prefix_caching
    if caching is None:
        hybrid = model.state is not None
        pure = hybrid and not model.attention_layers and not model.window_layers
        caching = not hybrid or (rules.caches_hybrid_prefixes and not pure)
    if not caching or model.state is None:
        return caching, "none"
    if not rules.modes:
        return True, "align"
    asked = args.mamba_cache_mode or "none"
    drafting = rules.align_under_drafts and args.num_speculative_tokens
    wanted = "all" if asked == "none" and rules.all_by_default and not drafting else asked
    return True, "all" if wanted == "all" and kind.caches_all else "align"


def ssm_setting(model: Architecture, args: EngineArgs) -> str:
    """mamba_ssm_cache_dtype as the configuration shows it once the model's own hook has seen it."""
    if args.mamba_ssm_cache_dtype != "auto":
        return args.mamba_ssm_cache_dtype
    if model.architecture in NEMOTRON:
        return model.declared_ssm_cache_dtype or "float32"
    return (model.declared_ssm_dtype or "auto") if model.architecture in QWEN3_5 else "auto"


def _refusal(rule: str, reason: str, fix: str, flag: str = "") -> Refusal:
    return Refusal(reason, stage="create_engine_config", rule=rule, fix=fix, flag=flag)


def check_configuration(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    kind: ModelClass,
    *,
    model_dtype: str,
    caching: bool,
    mode: str,
    on_v2: bool,
) -> None:
    """Raise Refusal for what the configuration refuses, in its order."""
    longest, asked = longest_of(model), args.max_model_len
    if longest and asked is not None and asked > longest and not (model.retrained or _allows_long(args)):
        raise _refusal(
            "HC051",
            f"max_model_len {asked:,} is beyond the model's own {longest:,}",
            f"write --max-model-len {longest}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        )

    if args.enable_expert_parallel or args.enable_eplb or args.redundant_experts:
        from hybridcalc.engines.vllm.experts import check_balancing

        check_balancing(model, args)
    heads, tp = model.num_attention_heads, args.tensor_parallel_size
    if heads and heads % tp and (model.attention_layers or model.window_layers):
        raise _refusal(
            "HC050", f"tensor parallel size {tp} does not divide the {heads} attention heads", ranks_that_divide(model)
        )
    if args.pipeline_parallel_size > 1 and model.architecture in WITHOUT_STAGES:
        raise _refusal("HC050", f"{model.architecture} does not run pipeline stages", "write -pp 1", "-pp")
    drafting = (args.speculative_method or "").endswith("mtp") and kind.mtp_whole and not rules.drafts_on_last_stage
    if args.pipeline_parallel_size > 1 and drafting:
        first = RELEASES.oldest_with("drafts_on_last_stage", True)
        raise _refusal(
            "HC050",
            f"MTP of {model.architecture} does not run pipeline stages in this release",
            f"write -pp 1, draft by another method, or {with_release(first)}",
            "-pp",
        )
    if args.kv_cache_dtype in ("float16", "bfloat16") and args.kv_cache_dtype != model_dtype:
        raise _refusal(
            "HC049",
            f"--kv-cache-dtype {args.kv_cache_dtype} is not the model's dtype {model_dtype}",
            "write auto",
            "--kv-cache-dtype",
        )
    if args.kv_cache_dtype.startswith("turboquant") and model.state is not None and not rules.turboquant_hybrids:
        first = RELEASES.oldest_with("turboquant_hybrids", True)
        raise _refusal(
            "HC049",
            f"--kv-cache-dtype {args.kv_cache_dtype} does not lie beside states in this release",
            f"write auto, or {with_release(first)}",
            "--kv-cache-dtype",
        )
    unlisted = kind.layers_unlisted or isinstance(model.attention, LatentKV) or not set("aw") & set(model.layers)
    if args.kv_cache_dtype.startswith("turboquant") and model.state is not None and unlisted:
        raise _refusal(
            "HC049",
            f"--kv-cache-dtype {args.kv_cache_dtype} finds no layer of plain attention alone",
            Write("--kv-cache-dtype", "fp8"),
            "--kv-cache-dtype",
        )
    float32 = family_rule(model).float32 if model.state is not None else ""
    if args.mamba_cache_dtype == "float32" and float32 and not getattr(rules, float32):
        first = RELEASES.oldest_with(float32, True)
        raise _refusal(
            "HC049",
            "the state of lightning attention is not kept in float32 in this release",
            f"write --mamba-cache-dtype auto, or {with_release(first)}",
            "--mamba-cache-dtype",
        )
    if args.mamba_block_size not in (None, model_length(model, args)) and not caching:
        raise _refusal(
            "HC049",
            "--mamba-block-size needs prefix caching",
            "leave it out, or add --enable-prefix-caching",
            "--mamba-block-size",
        )
    if caching and model.state is not None and args.enable_chunked_prefill is False:
        raise _refusal(
            "HC049",
            "caching prefixes of recurrent layers needs chunked prefill",
            "leave out --no-enable-chunked-prefill",
            "--enable-chunked-prefill",
        )
    _check_batch(model, args)
    layers.check_mixed(model, args, rules)
    if args.use_replayssm:
        from hybridcalc.engines.vllm.replay import check_replayssm

        check_replayssm(model, args, rules, mode=mode, on_v2=on_v2)
    dcp, taken = args.decode_context_parallel_size, context_parallel_sizes(model, tp)
    if dcp not in taken:
        whole = f"decode context parallel size {dcp} does not divide tensor parallel size {tp}"
        raise _refusal(
            "HC050",
            whole if tp % dcp else f"decode context parallel size {dcp} is more than copies of the KV heads allow",
            f"write one of {', '.join(map(str, taken))}" if len(taken) > 1 else "leave it out",
            "--decode-context-parallel-size",
        )


def _check_batch(model: Architecture, args: EngineArgs) -> None:
    """Raise Refusal for a step of too few tokens. Source: vLLM config/scheduler.py verify_max_model_len."""
    tokens, length = args.max_num_batched_tokens, model_length(model, args)
    if tokens is None:
        return
    if tokens < args.seqs:
        raise _refusal(
            "HC049",
            f"{tokens:,} tokens of a step are fewer than max_num_seqs {args.seqs:,}",
            f"write --max-num-batched-tokens {args.seqs} or more",
            "--max-num-batched-tokens",
        )
    if args.enable_chunked_prefill is False and tokens < length:
        raise _refusal(
            "HC049",
            f"without chunked prefill a step of {tokens:,} tokens holds no request of {length:,}",
            f"write --max-num-batched-tokens {length} or more, or leave out --no-enable-chunked-prefill",
            "--max-num-batched-tokens",
        )


def context_parallel_sizes(model: Architecture, tp: int) -> list[int]:
    """What --decode-context-parallel-size may be on ``tp`` ranks: latent rows are shared out among any that divide
    them, plain heads among the ranks that hold copies of one, as many as divide its queries. Source: vLLM
    config/model.py verify_with_parallel_config.
    """
    heads = model.attention or model.window_attention
    if heads is None:
        return [1]
    if not isinstance(heads, GroupedQueryKV):
        return divisors(tp)
    queries = (model.num_attention_heads or 0) // heads.kv_heads
    return [size for size in divisors(tp) if size == 1 or (size <= tp // heads.kv_heads and queries % size == 0)]


def model_length(model: Architecture, args: EngineArgs) -> int:
    """max_model_len as given, or the model's own, or what the engine assumes of a config that names none."""
    if args.max_model_len is not None and args.max_model_len != AUTO_FIT:
        return args.max_model_len
    return longest_of(model) or ASSUMED_LENGTH


def with_overrides(model: Architecture, args: EngineArgs) -> Architecture:
    """A model with the context that --hf-overrides name; the rest of them changes nothing here, nor do fields beside
    the ``text_config`` that a multimodal class reads.
    """
    nested = model.architecture.endswith("ForConditionalGeneration")
    if not args.hf_overrides or (nested and "text_config" not in args.hf_overrides):
        return model
    from hybridcalc.architecture.config_json import context_of

    return model._replace(**context_of(args.hf_overrides, "--hf-overrides"))


def longest_of(model: Architecture) -> int | None:
    """The longest sequence the model was made for; None where its config does not say."""
    return int(model.max_context * model.rope_scaling_factor) if model.max_context else None


def _allows_long(args: EngineArgs) -> bool:
    return args.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").strip().lower() in ("1", "true")


def load(
    model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None
) -> tuple[tuple[StateTensor, ...], int]:
    """The state of one layer and its bytes. Raises Refusal for ranks or a block size that the layers refuse."""
    state: tuple[StateTensor, ...] = ()
    if model.state is not None:
        permits = family_rule(model).context_parallel
        if args.decode_context_parallel_size > 1 and permits and not getattr(rules, permits):
            raise Refusal(
                f"{model.architecture} does not run context parallelism in this release",
                stage="initialize_model",
                rule="HC050",
                fix=f"leave out --decode-context-parallel-size, or {with_release(RELEASES.newest)}",
            )
        taken = not dtypes_taken(model, args, rules)
        try:
            state = layer_state(model, args if taken else replace(args, mamba_ssm_cache_dtype="auto"))
        except ShardingError as error:
            fix = ranks_that_divide(model)
            uneven = any(getattr(model.state, size, 0) % error.parts for size in ("inner_size", "num_heads"))
            sized_first = rules.least_block and (uneven or error.total != getattr(model.state, "n_groups", 0))
            stage = "create_engine_config" if sized_first else "initialize_model"
            raise Refusal(error.message.replace("--tp ", "-tp "), stage=stage, rule="HC050", fix=fix) from None
        few = model.config is None and args.tensor_parallel_size <= LEAST_EXPERTS  # no shipped model has fewer
        if model.architecture.startswith(EXPERTS_ON_RANKS) and not few:
            from hybridcalc.engines.vllm.experts import check_count

            check_count(model, args.tensor_parallel_size)
    if undivided(model, args.tensor_parallel_size):
        raise Refusal(
            f"tensor parallel size {args.tensor_parallel_size} does not divide the "
            f"{undivided(model, args.tensor_parallel_size)}",
            stage="initialize_model",
            rule="HC050",
            fix=ranks_that_divide(model),
        )
    least = rules.least_block and bool(state)  # the block is settled before a backend sees it
    if backend is not None and args.block_size is not None and args.block_size % backend.kernel_block and not least:
        near = max(1, round(args.block_size / backend.kernel_block)) * backend.kernel_block
        raise Refusal(
            f"{backend.name} takes no block of {args.block_size} tokens: its kernels work on {backend.kernel_block}",
            stage="initialize_model",
            rule="HC047",
            fix=f"write --block-size {near}, or leave it out",
        )
    return state, sum(tensor.bytes for tensor in state)


@lru_cache(maxsize=256)
def ranks_that_divide(model: Architecture) -> str:
    """Tensor-parallel sizes that the attention heads, recurrent layers and vocabulary take, in words.

    Kept for a model: a search over flags is refused often, each time with this remedy.
    """
    heads = model.num_attention_heads if model.attention_layers or model.window_layers else None

    def divides(ranks: int) -> bool:
        try:
            _ = model.state is None or layer_state(model, EngineArgs(tensor_parallel_size=ranks))
        except ShardingError:
            return False
        return (not heads or heads % ranks == 0) and not undivided(model, ranks)

    fitting = [str(ranks) for ranks in range(1, MOST_RANKS_TRIED + 1) if divides(ranks)]
    return write_one_of("-tp", fitting)


def check_state_dtype(model: Architecture, args: EngineArgs, rules: RuleSet) -> None:
    """Raise Refusal for a state in a dtype its kernels do not take."""
    if model.state is not None and (taken := dtypes_taken(model, args, rules)):
        raise Refusal(
            f"vLLM keeps no {model.state.label} state in {args.mamba_ssm_cache_dtype}",
            stage="update_block_size_for_backend",
            rule="HC049",
            fix=f"one of {', '.join(taken)}",
            flag="--mamba-ssm-cache-dtype",
        )
