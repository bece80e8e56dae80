"""How many tokens does SGLang keep of sliding windows, where these have a pool of their own?

    ratio     int(T * --swa-full-tokens-ratio), in whole pages; a pool that does not hold a window and a page is refused
    limit     requests * (window + eviction * D + page + decode) + chunks * chunk + page, up to whole pages

``limit`` holds where no prefixes are cached, the requests are limited, and the prefill chunk is known (and above 0,
from 0.5.22 on): the pool is then as large as the most that is alive at once, and the others get what is left,
T = (KV bytes - windows) // cell.
decode: what a step allocates, twice under the overlap scheduler with drafts; chunks: those in flight, 2 under it.
Mirrors model_executor/pool_configurator.py HybridSWAPoolConfigurator, SWARequestCapPoolConfigurator (0.5.23).
"""

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.allocation import decode_tokens
from hybridcalc.engines.sglang.kv import KvCell, window_kv
from hybridcalc.engines.sglang.pools import per_worker_limit
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import Refusal
from hybridcalc.units import rounded_up

EVICTION_INTERVAL = 128
"""SGLANG_SWA_EVICTION_INTERVAL where it is not set."""


def limited_windows(model: Architecture, args: ServerArgs, rules: RuleSet, *, overlap: bool) -> int | None:
    """Tokens of the windows' pool where the request limit sizes it; None where the ratio does."""
    limit, chunk = per_worker_limit(args, rules), _chunk(args, rules)
    decoding = args.disaggregation_mode == "decode"
    if not rules.windows_by_limit or args.radix_cache or limit is None or chunk is None or not model.window:
        return None
    if not model.attention_layers or (rules.limit_needs_chunks and chunk <= 0 and not decoding):
        return None
    page, ahead = args.tokens_per_page, 1
    if args.speculative:
        ahead = 2 * decode_tokens(args) if overlap else rounded_up(decode_tokens(args), page)
    evicted = max(1, int(args.env.get("SGLANG_SWA_EVICTION_INTERVAL") or EVICTION_INTERVAL))
    request = model.window + evicted * (args.draft_tokens or 1) + page + (ahead if args.speculative else page)
    if decoding:
        return rounded_up(request * limit + (model.window + page) * (args.disaggregation_decode_extra_slots or 0), page)
    return rounded_up(request * limit + (2 if overlap else 1) * chunk + page, page)


def tokens_beside(held: int, cell: KvCell, kv_bytes: int, args: ServerArgs) -> int:
    """T of the other layers beside ``held`` tokens of windows. Raises Refusal where not a page is left."""
    page, windows = args.tokens_per_page, held * cell.window_bytes
    tokens = int((kv_bytes - windows) // cell.other_bytes) // page * page
    if tokens <= 0:
        raise Refusal(
            f"{held:,} tokens of sliding windows take {windows:,} B of the {kv_bytes:,} B of KV and leave nothing",
            stage="tokens",
            rule="HC001",
            fix="lower --max-running-requests",
        )
    return tokens


def window_tokens(
    model: Architecture, args: ServerArgs, rules: RuleSet, tokens: int, held: int | None, capped: int | None
) -> int | None:
    """Tokens of the windows' pool beside ``tokens`` of the others; ``held``: those that the request limit makes of it,
    ``capped``: what another stage or --max-total-tokens leaves of all, None where nothing does. Raises Refusal for a
    pool that does not hold a window and a page.
    """
    if window_kv(model) is None:
        return None
    page = args.tokens_per_page
    if held is not None:
        return held if capped is None else min(held, capped)
    found = int(tokens * args.window_ratio) // page * page
    if rules.windows_checked and found <= (model.window or 0) + page:
        raise Refusal(
            f"the sliding-window pool of {found:,} tokens does not hold a window of {model.window} and a page",
            stage="tokens",
            rule="HC001",
            fix="raise --swa-full-tokens-ratio",
        )
    return found


def _chunk(args: ServerArgs, rules: RuleSet) -> int | None:
    """The prefill chunk of a worker, as given or by the GPU; None where neither is known."""
    if args.gpu_memory_mib is None:
        chunk = args.chunked_prefill_size
        return None if chunk is None else chunk // args.attn_dp_size
    from hybridcalc.engines.sglang.fraction import by_memory

    return by_memory(args, args.gpu_memory_mib, rules)[0] // args.attn_dp_size
