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

Ranks of context parallelism share out the tokens of its layers as those of the model; windows do not run there. From
0.31 on each rank keeps all of a DFLASH or DSPARK draft of plain heads, windows too, in groups of its own whatever its
heads. Where its pages are not the model's, blocks lie outermost and pages stay as they are: attention in one group,
states in groups of as many as fill the widest.

A draft is found by ``speculative_config.model``: a folder or a preset. Nothing is counted of one that is not known or
has states or latent rows unlike the model's; of other heads or windows beside a model without states, in releases
before 0.28, or where VLLM_KV_CACHE_LAYOUT puts blocks outermost; of windows on FlashInfer, whose kernels cut other
blocks; and of a draft on it that ranks keep whole: ``--draft-layers`` says it then. Mirrors vLLM
v1/core/kv_cache_planning.py unify_kv_cache_spec_page_size, _get_packed_kv_cache_groups,
v1/attention/backends/utils.py resolve_kv_cache_layout, model_executor/layers/attention/attention.py get_kv_cache_spec
(0.33.0; 0.28.0 says the same of drafts that are shared out).
"""

from collections.abc import Mapping, Sequence

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
from hybridcalc.engines.vllm.releases import RuleSet, rules_for
from hybridcalc.errors import Refusal

SPLIT = (STATE, DRAFT_WINDOW)
"""Kinds of which a block may hold one layer."""
COPIED = ("dflash", "dspark")
"""Methods whose drafts of plain heads every rank of context parallelism keeps whole."""


def _drafter(args: EngineArgs) -> Architecture | None:
    """The draft model that is named, where it is known and of attention alone; its windows are full attention to a
    class that ignores them, which that of DFLASH does not. Windows that its own fields name are not known.
    """
    found = None if args.draft_path is None else model_if_known(args.draft_path)
    flash, own = args.speculative_method == "dflash", found.config if found is not None and found.config else {}
    settings = own.get("dflash_config")
    if flash and isinstance(settings, Mapping) and settings.get("use_swa"):
        return None
    ignored = found is not None and CLASSES.get(found.architecture, ModelClass()).ignores_window and not flash
    if found is not None and found.window_layers and ignored:
        whole_kv = found.attention or found.window_attention
        found = found._replace(layers=found.layers.replace("w", "a"), attention=whole_kv, window=None)
    known = found is not None and found.state is None and (found.attention_layers or found.window_layers)
    return found if known else None


def _copied(args: EngineArgs, found: Architecture, rules: RuleSet) -> bool:
    """Whether each rank of context parallelism keeps all of the draft."""
    plain = isinstance(found.attention or found.window_attention, GroupedQueryKV)
    shared_out = args.decode_context_parallel_size > 1 and args.speculative_method in COPIED
    return shared_out and plain and rules.drafts_copied


def joining_layers(model: Architecture, args: EngineArgs) -> int:
    """Layers of the draft model that share the attention of the model: those of the same heads."""
    found, (rules, _) = _drafter(args), rules_for(args.engine_version)
    joins = found is not None and found.attention == model.attention and not _copied(args, found, rules)
    return found.attention_layers if found is not None and joins else 0


def own_layers(
    model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None
) -> dict[str, tuple[int, Architecture]]:
    """Layers that keep rows of their own beside states, where they can be counted: how many of each kind, and a model
    of that kind alone.
    """
    found, outermost = _drafter(args), args.env.get("VLLM_KV_CACHE_LAYOUT", "").startswith("B")
    if found is None or not rules.drafts_apart or outermost or model.state is None or model.attention is None:
        return {}
    copied = _copied(args, found, rules)
    if copied and (backend is None or backend.name == "FLASHINFER"):
        return {}
    own = dict[str, tuple[int, Architecture]]()
    windows_first = found.layers.lstrip(".").startswith("w")
    apart = copied or found.attention != model.attention
    if found.attention_layers and apart and isinstance(found.attention, GroupedQueryKV):
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
    layout: str,
) -> tuple[tuple[Group, ...], tuple[Padding, ...], Pages, str]:
    """Groups of layers of this ``page``, with the draft's own where it has some; what they pad; the pages with the
    draft's bytes; and the layout. Raises Refusal.
    """
    own = own_layers(model, args, rules, backend)
    if not own:
        return *form_groups(counts, block=pages.block, mamba_block=pages.mamba_block, page=page), pages, layout
    copied = any(_copied(args, draft, rules) for _, draft in own.values())
    if DRAFT_WINDOW in own and args.decode_context_parallel_size > 1 and not copied:
        raise _refusal("windows of a draft model do not run under context parallelism", "use another draft model")
    rows = {kind: kv_bytes_per_token(draft, args, model_dtype) for kind, (_, draft) in own.items()}
    sizes = dict.fromkeys(counts, page) | {kind: pages.block * row for kind, row in rows.items()}
    layers = counts | {kind: count for kind, (count, _) in own.items()}
    with_rows = pages._replace(draft_bytes=rows.get(DRAFT, 0))
    if copied and len(set(sizes.values())) > 1:
        outermost = next((name for name in backend.layouts if name.startswith("B")), layout) if backend else layout
        return _packed(layers, sizes, pages, list(own)), (), with_rows, outermost
    page = max(sizes.values())
    if page % pages.page and isinstance(model.attention, LatentKV):
        raise _refusal(
            f"the draft's page of {page:,} B is no multiple of the {pages.page:,} B of latent rows, which nothing pads",
            "use another draft model, or another --kv-cache-dtype",
        )
    groups, paddings = form_groups(layers, block=pages.block, mamba_block=pages.mamba_block, page=page)
    longer = {kind: page // size if page % size == 0 and kind != STATE else 1 for kind, size in sizes.items()}
    longest = tuple(
        group._replace(block=group.block * longer[group.kind], copied=copied and group.kind in own) for group in groups
    )
    return longest, paddings, with_rows, layout


def _packed(layers: dict[str, int], sizes: dict[str, int], pages: Pages, copied: Sequence[str]) -> tuple[Group, ...]:
    """Groups whose pages differ: each kind in one, but states in as many as the widest of the others asks for."""
    widest = max(sizes[kind] * (1 if kind in SPLIT else count) for kind, count in layers.items())
    groups = list[Group]()
    for kind, count in layers.items():
        parts = -(-count // max(widest // sizes[kind], 1)) if kind in SPLIT else 1
        block = pages.mamba_block if kind == STATE else pages.block
        groups += [
            Group(kind, len(range(part, count, parts)), block, sizes[kind], copied=kind in copied)
            for part in range(parts)
        ]
    return tuple(groups)


def _refusal(reason: str, fix: str) -> Refusal:
    return Refusal(reason, stage="layout+groups", rule="HC049", fix=fix, flag="--speculative-config")
