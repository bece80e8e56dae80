"""Which model runner serves, how many batches are in flight at once, and which layers lie on which pipeline stage?

VLLM_USE_V2_MODEL_RUNNER decides where it is set. Otherwise V2 serves from the release on that makes it the default,
before that a few classes and DSPARK, unless it lacks something that the launch asks for. Two batches overlap under
asynchronous scheduling, which V1 does not run with drafts made on the host nor with pipeline stages; one more than the
stages under V2. Each stage has its layers of the groups of the whole model.
Mirrors vLLM config/vllm.py use_v2_model_runner, max_concurrent_batches; distributed/utils.py get_pp_indices;
v1/core/kv_cache_planning.py _project_kv_cache_groups_to_worker.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from hybridcalc.architecture import FULL_ATTENTION_LETTERS, STATE_LETTERS, WINDOW_LETTERS, Architecture
from hybridcalc.engines.vllm import WITHOUT_DRAFT_KV, EngineArgs
from hybridcalc.engines.vllm.families import ModelClass, family_rule
from hybridcalc.engines.vllm.layers import DEFAULT_BLOCK, Backend
from hybridcalc.engines.vllm.pages import ALONE, DRAFTS, FULL, LETTERS, STATE, WINDOW, Group, Pages
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet
from hybridcalc.errors import NotModelled, Refusal, with_release

COMPILED = (None, 3, "3", "VLLM_COMPILE")
"""Spellings of the compilation mode that cuts a model into pieces, which is the default."""
PARALLEL_DRAFTERS = ("dflash", "dspark")
ON_THE_GPU = ("ngram_gpu",)
"""Drafts without KV that asynchronous scheduling runs with under model runner V1."""


def on_runner_v2(args: EngineArgs, rules: RuleSet, kind: ModelClass, *, states: bool, mode: str) -> bool:
    """Whether model runner V2 serves; ``states``: the model has some.

    Raises Refusal where the environment asks it for what it lacks.
    """
    config, method = args.speculative_config or {}, args.speculative_method or ""
    declared = states and not kind.states_undeclared
    wanted = {
        "states": declared,
        "states in mode align": declared and mode == "align",
        "mode all": mode == "all",
        "eagle3 in stages": method == "eagle3" and args.pipeline_parallel_size > 1,
        "parallel drafting": bool(config.get("parallel_drafting")) and method not in PARALLEL_DRAFTERS,
        "ngram" if method == "ngram_gpu" else method: bool(method),
    }
    lacking = sorted(name for name, is_so in wanted.items() if is_so and name in rules.runner_v2_lacks)
    asked = args.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked is None:
        return (rules.runner_v2 or kind.runner_v2 or method == "dspark") and not lacking
    if asked.strip() != "0" and lacking:
        raise Refusal(
            f"model runner V2 does not run {lacking[0]}",
            stage="create_engine_config",
            rule="HC049",
            fix="leave out VLLM_USE_V2_MODEL_RUNNER",
            flag="--env",
        )
    return asked.strip() != "0"


def batches_in_flight(args: EngineArgs, rules: RuleSet, *, on_v2: bool) -> int:
    """Batches that are scheduled and not yet settled, whose blocks a window does not give back."""
    stages, method = args.pipeline_parallel_size, args.speculative_method
    if not rules.in_flight_batches:
        return 1
    if on_v2:
        return stages + 1
    on_host = method in WITHOUT_DRAFT_KV and method not in ON_THE_GPU
    return 2 if stages == 1 and not on_host else stages


def seqs_checked(
    model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None, *, states: bool
) -> bool:
    """Whether max_num_seqs may not exceed the blocks: full CUDA graphs of decoding need one a sequence.

    Kernels that do not run in them, or not with the several tokens of a step that verifies drafts, leave graphs in
    pieces, which need none. Source: vLLM config/compilation.py resolve_cudagraph_mode_and_sizes,
    get_cudagraph_support of v1/attention/backends/.
    """
    asked = args.compilation_config or {}
    in_pieces = str(asked.get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper() == "FULL_AND_PIECEWISE"
    if in_pieces and asked.get("mode") not in COMPILED and not rules.graphs_uncompiled:
        return False
    name = backend.name if backend is not None else ""
    latent_triton = name == "TRITON_MLA"
    if not (states and rules.seqs_refused and args.full_graphs) or (latent_triton and not rules.latent_triton_graphs):
        return False
    if not args.num_speculative_tokens:
        return True
    drafted = family_rule(model).draft_graphs
    if (drafted and not getattr(rules, drafted)) or (latent_triton and not rules.latent_triton_draft_graphs):
        return False
    return _flashinfer_runs_drafts(args, rules) if name == "FLASHINFER" else name != "CUTLASS_MLA"


def _flashinfer_runs_drafts(args: EngineArgs, rules: RuleSet) -> bool:
    """Whether FlashInfer verifies drafts in full CUDA graphs on this GPU."""
    major = args.capability[0]
    whole = args.decode_context_parallel_size == 1 or (major == 10 and rules.sharded_draft_graphs)
    unread = major == 9 and args.kv_cache_dtype.startswith("nvfp4")
    return str(major) in rules.flashinfer_draft_graphs and whole and not unread


def tokens_retained(args: EngineArgs, rules: RuleSet, draft_layers: int) -> int:
    """Tokens behind a window that MTP of several depths may compute again. Source: vLLM config/vllm.py
    num_prefill_lookahead_tokens.
    """
    several = args.speculative_method == "mtp" and min(draft_layers, args.num_speculative_tokens) > 1
    return args.num_speculative_tokens - 1 if several and rules.windows_retain_drafts else 0


def stage_bounds(layers: int, args: EngineArgs) -> tuple[tuple[int, int], ...]:
    """First layer and the one after the last of each pipeline stage.

    Stages have layers // stages each, and what remains goes one by one to the stages before the last; the environment
    variable VLLM_PP_LAYER_PARTITION says otherwise ("10,12,10"). Raises Refusal for numbers that do not add up. Source:
    vLLM distributed/utils.py get_pp_indices.
    """
    stages, said = args.pipeline_parallel_size, args.env.get("VLLM_PP_LAYER_PARTITION")
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    if said:
        sizes = [int(part) if part.strip().isdecimal() and len(part) < 8 else -1 for part in said.split(",")]
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        reason = f"{layers:,} layers do not make {stages:,} pipeline stages"
        fix = f"write -pp {layers} or less" if not said else f"leave out VLLM_PP_LAYER_PARTITION={said[:40]}"
        raise Refusal(reason, stage="initialize_model", rule="HC050", fix=fix)
    ends = list(accumulate(sizes))
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def buckets(layers: str, *, attention_first: bool, drafts: Mapping[str, int]) -> dict[str, int]:
    """Layers of each kind, in the order in which the engine meets the first of each, and those that ``drafts`` add.

    A layer that holds both (``b``, ``v``) registers its recurrent part first unless the class says otherwise.
    """
    order = (FULL, WINDOW, STATE, ALONE) if attention_first else (STATE, ALONE, FULL, WINDOW)
    counts = {kind: sum(layers.count(letter) for letter in LETTERS[kind]) for kind in order}

    def first_layer(kind: str) -> int:
        return min(layers.find(letter) for letter in LETTERS[kind] if letter in layers)

    kinds = [kind for kind in order if counts[kind]]
    if not attention_first:
        kinds.sort(key=first_layer)  # stable: a layer that holds both keeps the order above
    found = {kind: counts[kind] for kind in kinds}
    return found | {kind: found.get(kind, 0) + count for kind, count in drafts.items() if count}


def on_stages(
    groups: tuple[Group, ...], letters: str, drafts: Mapping[str, int], bounds: tuple[tuple[int, int], ...]
) -> tuple[tuple[Group, ...], ...]:
    """What each pipeline stage has of the groups; layers that ``drafts`` add lie on the last."""
    if len(bounds) == 1:
        return (groups,)
    found = list[tuple[Group, ...]]()
    for number, (first, end) in enumerate(bounds):
        dealt, own = Counter[str](), list[Group]()
        last = number == len(bounds) - 1
        for group in groups:
            held = [at for at, letter in enumerate(letters) if letter in LETTERS[group.kind]]
            before, upto = sum(at < first for at in held), sum(at < end for at in held)
            for kind, count in drafts.items() if last else ():
                upto += count if set(LETTERS[kind]) <= set(LETTERS[group.kind]) else 0
            if group.kind in DRAFTS:
                own.append(group if last else group._replace(layers=0))
                continue
            parts = sum(other.kind == group.kind for other in groups)
            own.append(
                group._replace(layers=len([at for at in range(before, upto) if at % parts == dealt[group.kind]]))
            )
            dealt[group.kind] += 1
        found.append(tuple(own))
    return tuple(found)


def stages_alone(
    letters: str,
    bounds: tuple[tuple[int, int], ...],
    args: EngineArgs,
    rules: RuleSet,
    pages: Pages,
    *,
    mode: str,
    state_bytes: int,
    drafts: Mapping[str, int],
    indexed: bool,
) -> tuple[str, int]:
    """The layers with recurrent ones of stages without attention marked where their blocks differ from those of the
    others, and the tokens of these blocks.

    A worker grows the block by its own attention layers, and pads states to it: one without any keeps the block that it
    was given, and pages of the state's own size. Raises Refusal where the release does not pad them to those of others.
    Source: vLLM platforms/interface.py update_block_size_for_backend, v1/core/kv_cache_utils.py
    unify_kv_cache_spec_page_size (0.33.0); before 0.20 the block was settled once for all.
    """
    own = [letters[first:end] for first, end in bounds]
    attends = [bool(set(FULL_ATTENTION_LETTERS + WINDOW_LETTERS) & set(part)) for part in own]
    attends[-1] = attends[-1] or any(drafts.values())
    alone = [not found and bool(set(STATE_LETTERS) & set(part)) for part, found in zip(own, attends, strict=True)]
    if rules.least_block or not any(alone) or not any(attends) or (indexed and not rules.index_packed):
        return letters, pages.mamba_block
    if state_bytes != pages.page and not rules.states_padded_apart:
        raise Refusal(
            "a pipeline stage has recurrent layers and no attention, whose pages are not those of the other stages",
            stage="layout+groups",
            rule="HC050",
            fix=f"write fewer stages, or {with_release(RELEASES.newest)}",
            flag="-pp",
        )
    block = args.mamba_block_size or args.block_size or DEFAULT_BLOCK
    if mode == "none" or block == pages.mamba_block:
        return letters, pages.mamba_block
    if indexed or args.draft_path is not None:
        lacking = "a pipeline stage without attention beside an index or a draft model"
        fix = "write fewer stages, or add --no-enable-prefix-caching"
        raise NotModelled(f"{lacking} is not modelled", lacking=lacking, fix=fix, flag="-pp")
    marked = (part.replace("s", LETTERS[ALONE]) if apart else part for part, apart in zip(own, alone, strict=True))
    return "".join(marked), block
