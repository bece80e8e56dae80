"""What does a draft model of its own keep beside a model with states, and which groups does that make?

    a_d    = KV heads of the rank x (keys + values) x bytes      bytes of a token in one layer of the draft
    same heads as the model's attention                           its layers join the attention's bucket, as MTP's do
    else a bucket of its own, the last; pages become equal:
    page   = the largest of the model's and block x a_d
    state                                                         padded to the page
    attention and draft                                           blocks longer by the whole factor; padded where there
                                                                  is none, which latent rows are not: no start

A draft is found by ``speculative_config.model``: a folder or a preset. Nothing is counted of one that is not known or
has windows, states or latent rows unlike the model's; and of other heads beside a model without states, in releases
before 0.28, with context parallelism, or where VLLM_KV_CACHE_LAYOUT puts blocks outermost: ``--draft-layers`` says it
then. Mirrors vLLM
v1/core/kv_cache_planning.py unify_kv_cache_spec_page_size (0.33.0; 0.28.0 says the same in kv_cache_utils.py).
"""

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.architecture.presets import model_if_known
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.pages import DRAFT, STATE, Group, Padding, Pages, Prepared, form_groups, kv_bytes_per_token
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import Refusal


def _drafter(args: EngineArgs) -> Architecture | None:
    """The draft model that is named, where it is known and of attention alone."""
    found = None if args.draft_path is None else model_if_known(args.draft_path)
    known = found is not None and found.state is None and not found.window_layers and found.attention_layers
    return found if known else None


def joining_layers(model: Architecture, args: EngineArgs) -> int:
    """Layers of the draft model that share the attention of the model: those of the same heads."""
    found = _drafter(args)
    return found.attention_layers if found is not None and found.attention == model.attention else 0


def own_drafter(model: Architecture, args: EngineArgs, rules: RuleSet) -> Architecture | None:
    """The draft model that keeps rows of its own beside states, where they can be counted."""
    outermost = args.env.get("VLLM_KV_CACHE_LAYOUT", "").startswith("B")
    if not rules.drafts_apart or args.decode_context_parallel_size > 1 or outermost:
        return None
    found = _drafter(args) if model.state is not None and model.attention is not None else None
    apart = found is not None and found.attention != model.attention and isinstance(found.attention, GroupedQueryKV)
    return found if apart else None


def counted(ready: Prepared) -> bool:
    """Whether the KV of the draft model is in the figures."""
    return bool(ready.pages.draft_bytes or joining_layers(ready.model, ready.args))


def groups_of(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    counts: dict[str, int],
    pages: Pages,
    page: int,
    model_dtype: str,
) -> tuple[tuple[Group, ...], tuple[Padding, ...], Pages]:
    """Groups of layers of this ``page``, with the draft's own where it has some; what they pad; and the pages with the
    draft's bytes. Raises Refusal.
    """
    draft = own_drafter(model, args, rules)
    if draft is None:
        return *form_groups(counts, block=pages.block, mamba_block=pages.mamba_block, page=page), pages
    row = kv_bytes_per_token(draft, args, model_dtype)
    sizes = dict.fromkeys(counts, page) | {DRAFT: pages.block * row}
    page = max(sizes.values())
    if page % pages.page and isinstance(model.attention, LatentKV):
        raise Refusal(
            f"the draft's page of {page:,} B is no multiple of the {pages.page:,} B of latent rows, which nothing pads",
            stage="layout+groups",
            rule="HC049",
            fix="use another draft model, or another --kv-cache-dtype",
            flag="--speculative-config",
        )
    groups, paddings = form_groups(
        counts | {DRAFT: draft.attention_layers}, block=pages.block, mamba_block=pages.mamba_block, page=page
    )
    longer = {kind: page // own if page % own == 0 and kind != STATE else 1 for kind, own in sizes.items()}
    longest = tuple(group._replace(block=group.block * longer[group.kind]) for group in groups)
    return longest, paddings, pages._replace(draft_bytes=row)
