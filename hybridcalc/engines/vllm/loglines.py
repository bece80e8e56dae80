"""The lines that a vLLM boot prints about its caches, word for word, without time and place.

In the engine's order: configuration, block size, layout, padding layers, memory, group sizes. Wording of 0.33.0, and of
0.22.1 where that differs. Source: the format strings of model_executor/models/config.py, platforms/interface.py,
v1/attention/backends/utils.py, v1/core/kv_cache_planning.py and kv_cache_utils.py.
"""

from collections.abc import Iterable

from hybridcalc.architecture import Architecture
from hybridcalc.engines.vllm import AUTO_FIT, EngineArgs
from hybridcalc.engines.vllm.families import ModelClass
from hybridcalc.engines.vllm.layers import DEFAULT_BLOCK, NEMOTRON, Backend
from hybridcalc.engines.vllm.pages import Padding, Pages, Prepared, Sizing
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.units import GIB


def configuration(
    model: Architecture,
    args: EngineArgs,
    rules: RuleSet,
    kind: ModelClass,
    *,
    ssm_setting: str,
    caching: bool,
    mode: str,
) -> list[str]:
    """Lines of the model's own hook and of the cache mode."""
    lines = []
    if rules.mode_all_deprecated and args.mamba_cache_mode == "all":
        lines.append(
            "Mamba cache mode 'all' is deprecated and will be removed in an upcoming release. If this is a problem, "
            "please open an issue at https://github.com/vllm-project/vllm/issues."
        )
    if model.architecture in NEMOTRON and args.mamba_ssm_cache_dtype == "auto":
        lines.append(f"Updating mamba_ssm_cache_dtype to '{ssm_setting}' for NemotronH model")
    if model.state is None or not caching:
        if model.state is not None and rules.modes and args.mamba_cache_mode not in (None, "none"):
            lines.append("Mamba cache mode is set to 'none' when prefix caching is disabled")
        return lines
    enabled = "is enabled"
    if rules.align_under_drafts and args.num_speculative_tokens:
        enabled = "and speculative decoding are enabled"
    by_default = (
        f"Mamba cache mode is set to '{mode}' for {model.architecture} by default when prefix caching {enabled}"
    )
    if args.mamba_cache_mode in (None, "none") or not rules.modes:
        lines.append(by_default)
    if rules.modes and args.mamba_cache_mode == "all" and not kind.caches_all:
        lines.append(
            "Hybrid or mamba-based model detected without support for prefix caching with Mamba cache 'all' mode: "
            "falling back to 'align' mode."
        )
    if not rules.caching_warned:
        return lines
    return [
        *lines,
        f"Warning: Prefix caching in Mamba cache '{mode}' mode is currently enabled. Its support for Mamba layers is "
        "experimental. Please report any issues you may observe.",
    ]


def block_size(pages: Pages, asked: int | None, backend: Backend | None) -> list[str]:
    """Lines of the block size: preferred by the backend, grown to cover a state, padded to the page."""
    lines = []
    if backend is not None and asked is None and pages.preferred != DEFAULT_BLOCK:
        lines.append(f"Setting kv cache block size to {pages.preferred} for {backend.name} backend(s).")
    if pages.grown:
        lines.append(
            f"Setting attention block size to {pages.block} tokens to ensure that attention page size is >= mamba page "
            "size."
        )
    if pages.padded is not None:
        percent = 100 * (pages.padded - pages.class_bytes) / pages.class_bytes
        lines.append(
            f"Padding mamba page size by {percent:.2f}% to ensure that mamba page size and attention page size are "
            "exactly equal."
        )
    return lines


def layout(name: str) -> str:
    """The line of the cache layout."""
    return f"Using {name} KV cache layout."


def padding_layers(paddings: Iterable[Padding]) -> list[str]:
    """A warning for every bucket that its groups do not fill."""
    return [
        f"Add {padding.slots} padding layers, may waste at most {100 * padding.share:.2f}% KV cache memory"
        for padding in paddings
    ]


def memory(ready: Prepared, sizing: Sizing) -> list[str]:
    """Lines of a boot that found its memory enough."""
    return [*_fitting(ready, sizing), *_capacity(ready, sizing)]


def gib(size: int) -> str:
    """GiB as vLLM prints them: rounded to two decimals, zeros at the end left out."""
    return f"{round(size / GIB, 2)}"


def _fitting(ready: Prepared, sizing: Sizing) -> list[str]:
    available, override = sizing.available_bytes, ready.args.num_gpu_blocks_override
    lines = overriding(ready, available)
    if ready.args.max_model_len == AUTO_FIT:
        counted = available if override is None else override * ready.bytes_per_block
        free = gib(counted - ready.bytes_per_block if ready.rules.null_block_reserved else counted)
        whole, named = sizing.length >= ready.length, ready.rules.fitted_to_cache
        fits = f"full model context length {ready.length} fits" if whole else ""
        fits = fits or f"reduced from {ready.length} to {sizing.length} to fit"
        memory = f"KV cache memory ({free} GiB GPU)" if named else "GPU memory"
        left = "" if whole or named else f" ({free} GiB available for KV cache)"
        lines.append(f"Auto-fit max_model_len: {fits} in available {memory}{left}")
    return lines


def overriding(ready: Prepared, available_bytes: int) -> list[str]:
    """The line of --num-gpu-blocks-override, which stands before the memory is checked."""
    override, blocks = ready.args.num_gpu_blocks_override, available_bytes // ready.bytes_per_block
    return [] if override is None else [f"Overriding num_gpu_blocks={blocks} with num_gpu_blocks_override={override}"]


def _capacity(ready: Prepared, sizing: Sizing) -> list[str]:
    size = f"GPU KV cache size: {sizing.tokens:,} tokens"
    concurrency = f"Maximum concurrency for {sizing.length:,} tokens per request: {sizing.concurrency:.2f}x"
    if not ready.rules.one_capacity_line:
        return [size, concurrency]
    lines = [f"{size}, {concurrency}"]
    if ready.rules.group_lines and len(ready.groups) > 1:
        dcp = ready.args.decode_context_parallel_size
        spans = [group.span(dcp) for group in ready.groups]
        told = tuple(spans) if ready.rules.groups_in_round else spans
        lines += [f"kv cache group sizes {told}", f"kv lcm block sizes {sizing.scheduler_block}"]
    return lines


def printed_tokens(ready: Prepared, blocks: int, length: int, per_request: int) -> int:
    """The log's "GPU KV cache size": a length times the concurrency, before 0.20.2 the share of a group."""
    if not ready.rules.tokens_of_pool:
        return int(blocks / per_request * length)
    shortest = min(group.block for group in ready.groups)
    return blocks // len(ready.groups) * shortest * ready.args.decode_context_parallel_size
