"""What does a draft model of its own keep beside a model with states, and which groups does that make?

    a_d    = KV heads of the rank x (keys + values) x bytes      bytes of a token in one layer of the draft
    same heads as the model's attention                           its layers join the attention's bucket, as MTP's do
    else a bucket of its own, the last; pages become equal:
    page   = the largest of the model's and block x a_d
    state                                                         padded to the page
    attention and draft                                           blocks longer by the whole factor; padded where there
                                                                  is none, which latent rows are not: no start
    its windows                                                   a bucket of their own whatever their heads; a request
                                                                  holds ceil(min(W - 1 + in flight, L) / block) + 1

Ranks of context parallelism share out the tokens of its layers as those of the model; windows do not run there. A draft
is found by ``speculative_config.model``: a folder or a preset. Nothing is counted of one that is not known or has
states or latent rows unlike the model's; of other heads or windows beside a model without states, in releases before
0.28, or where VLLM_KV_CACHE_LAYOUT puts blocks outermost; of windows on FlashInfer, whose kernels cut other blocks; and
of DFLASH under context parallelism, which its ranks do not share out: ``--draft-layers`` says it then. Mirrors vLLM
v1/core/kv_cache_planning.py unify_kv_cache_spec_page_size, model_executor/layers/attention/attention.py
get_kv_cache_spec (0.33.0; 0.28.0 says the same).
"""

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.architecture.presets import model_if_known
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES, ModelClass
from hybridcalc.engines.vllm.layers import Backend
from hybridcalc.engines.vllm.pages import (
    DRAFT,
    DRAFT_WINDOW,
    STATE,
    Group,
    Padding,
    Pages,
    Prepared,
    form_groups,
    kv_bytes_per_token,
)
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import Refusal

REPLICATED = ("dflash",)
"""Methods whose drafts of plain heads every rank of context parallelism keeps whole."""


def _drafter(args: EngineArgs) -> Architecture | None:
    """The draft model that is named, where it is known and of attention alone; its windows are full attention to a
    class that ignores them.
    """
    found = None if args.draft_path is None else model_if_known(args.draft_path)
    if found is not None and found.window_layers and CLASSES.get(found.architecture, ModelClass()).ignores_window:
        whole_kv = found.attention or found.window_attention
        found = found._replace(layers=found.layers.replace("w", "a"), attention=whole_kv, window=None)
    known = found is not None and found.state is None and (found.attention_layers or found.window_layers)
    whole = args.decode_context_parallel_size > 1 and args.speculative_method in REPLICATED
    return found if known and not whole else None


def joining_layers(model: Architecture, args: EngineArgs) -> int:
    """Layers of the draft model that share the attention of the model: those of the same heads."""
    found = _drafter(args)
    return found.attention_layers if found is not None and found.attention == model.attention else 0


def own_layers(
    model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None
) -> dict[str, tuple[int, Architecture]]:
    """Layers that keep rows of their own beside states, where they can be counted: how many of each kind, and a model
    of that kind alone.
    """
    found, outermost = _drafter(args), args.env.get("VLLM_KV_CACHE_LAYOUT", "").startswith("B")
    if found is None or not rules.drafts_apart or outermost or model.state is None or model.attention is None:
        return {}
    own = dict[str, tuple[int, Architecture]]()
    windows_first = found.layers.lstrip(".").startswith("w")
    if found.attention_layers and found.attention != model.attention and isinstance(found.attention, GroupedQueryKV):
        own[DRAFT] = found.attention_layers, found
    if found.window_layers and found.window and backend is not None and backend.name != "FLASHINFER":
        own[DRAFT_WINDOW] = found.window_layers, found._replace(attention=found.window_attention or found.attention)
    return dict(sorted(own.items(), reverse=windows_first))


def counted(ready: Prepared) -> bool:
    """Whether all KV of the draft model is in the figures."""
    found, kinds = _drafter(ready.args), {group.kind for group in ready.groups}
    if found is None:
        return False
    whole = not found.attention_layers or DRAFT in kinds or bool(joining_layers(ready.model, ready.args))
    return whole and (not found.window_layers or DRAFT_WINDOW in kinds)


def window_of(args: EngineArgs) -> int:
    """The window of the draft model, in tokens; 0 without one."""
    found = _drafter(args)
    return 0 if found is None else found.window or 0


def groups_of(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    counts: dict[str, int],
    pages: Pages,
    page: int,
    model_dtype: str,
    backend: Backend | None,
) -> tuple[tuple[Group, ...], tuple[Padding, ...], Pages]:
    """Groups of layers of this ``page``, with the draft's own where it has some; what they pad; and the pages with the
    draft's bytes. Raises Refusal.
    """
    own = own_layers(model, args, rules, backend)
    if not own:
        return *form_groups(counts, block=pages.block, mamba_block=pages.mamba_block, page=page), pages
    if DRAFT_WINDOW in own and args.decode_context_parallel_size > 1:
        raise _refusal("windows of a draft model do not run under context parallelism", "use another draft model")
    rows = {kind: kv_bytes_per_token(draft, args, model_dtype) for kind, (_, draft) in own.items()}
    sizes = dict.fromkeys(counts, page) | {kind: pages.block * row for kind, row in rows.items()}
    page = max(sizes.values())
    if page % pages.page and isinstance(model.attention, LatentKV):
        raise _refusal(
            f"the draft's page of {page:,} B is no multiple of the {pages.page:,} B of latent rows, which nothing pads",
            "use another draft model, or another --kv-cache-dtype",
        )
    layers = counts | {kind: count for kind, (count, _) in own.items()}
    groups, paddings = form_groups(layers, block=pages.block, mamba_block=pages.mamba_block, page=page)
    longer = {kind: page // size if page % size == 0 and kind != STATE else 1 for kind, size in sizes.items()}
    longest = tuple(group._replace(block=group.block * longer[group.kind]) for group in groups)
    return longest, paddings, pages._replace(draft_bytes=rows.get(DRAFT, 0))


def _refusal(reason: str, fix: str) -> Refusal:
    return Refusal(reason, stage="layout+groups", rule="HC049", fix=fix, flag="--speculative-config")
