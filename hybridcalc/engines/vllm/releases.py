"""What does each release of vLLM do its own way? `RuleSet` has a field a fact, `CHANGES` a row a change.

Of 0.19.0 only the token figure that it prints is known to differ from 0.22.1 (vLLM issue 40691).
"""

from typing import NamedTuple

from hybridcalc.engines.releases import RECORDED, Change, Releases


class RuleSet(NamedTuple):
    """What a release does its own way; everything else is common to all. The defaults are those of 0.18.0.

    Prefixes: ``caches_hybrid_prefixes``: caching is on by default for hybrids; ``fine_hits``: hits may land inside a
    block; ``sparse_retention``: few states of a prefix are kept unless told otherwise, and an interval is checked.
    Cache modes: ``modes``: --mamba-cache-mode is obeyed; ``all_by_default``: mode all is taken where a class supports
    it, else align; ``mode_all_refused``: an explicit mode all does not start.
    Pages: ``latent_block``: MLA blocks are multiples of 128; ``latent_fp8_triton``: fp8 MLA runs on Triton kernels;
    ``kernel_blocks``: a block is a multiple of the kernels' own; ``checkpoint_blocks``: prefill checkpoints take a
    block; ``checkpoint_grid``: blocks lie on their grid; ``class_counts_drafts``: every class sizes the page with the
    rows that drafts add; ``kda_draft_rows``, ``shortconv_draft_rows``: drafts widen these convolutions.
    Memory: ``seqs_refused``: max_num_seqs above the blocks does not start; ``null_block_reserved``: the memory check
    leaves out block 0; ``one_buffer``: all layers lie on one buffer, not one a layer slot.
    Log: ``tokens_of_pool``: the token figure is blocks // groups x block, not concurrency x max_model_len;
    ``one_capacity_line``: tokens and concurrency share a line; ``caching_warned``: caching states is called
    experimental; ``device_named``: sizes say "GiB GPU"; ``layout_line``, ``group_lines``. Figures that a recorded
    start-up includes: ``hits_recorded``, ``layout_recorded``.
    """

    version: str
    recorded: bool = False
    caches_hybrid_prefixes: bool = False
    fine_hits: bool = False
    sparse_retention: bool = False
    modes: bool = True
    all_by_default: bool = True
    mode_all_refused: bool = False
    latent_block: bool = False
    latent_fp8_triton: bool = False
    kernel_blocks: bool = False
    checkpoint_blocks: bool = False
    checkpoint_grid: bool = False
    class_counts_drafts: bool = False
    kda_draft_rows: bool = False
    shortconv_draft_rows: bool = False
    seqs_refused: bool = False
    null_block_reserved: bool = False
    one_buffer: bool = False
    tokens_of_pool: bool = True
    one_capacity_line: bool = False
    device_named: bool = False
    caching_warned: bool = True
    layout_line: bool = False
    group_lines: bool = False
    hits_recorded: bool = False
    layout_recorded: bool = False


LINES = frozenset({
    "tokens_of_pool", "one_capacity_line", "caching_warned", "device_named", "layout_line", "group_lines",
    "hits_recorded", "layout_recorded",
})  # fmt: skip
"""Rules that change what is printed, and no figure that is."""
READ = "its source, not its results"
PLANNING, UTILS, HITS = "v1/core/kv_cache_planning.py", "v1/core/kv_cache_utils.py", "v1/core/kv_cache_coordinator.py"
BLOCKS, LAYERS, SHAPES = "platforms/interface.py", "model_executor/layers/mamba/", "layers/mamba/mamba_utils.py"
CHANGES: tuple[Change, ...] = (
    Change("0.18.0", RECORDED, False, READ),
    Change("0.20.0", "seqs_refused", True, "config/compilation.py"),
    Change("0.20.2", "tokens_of_pool", False, f"{UTILS} _report_kv_cache_config"),
    Change("0.22.1", RECORDED, True, "results of its own classes"),
    Change("0.26.0", "caches_hybrid_prefixes", True, "engine/arg_utils.py"),
    Change("0.26.0", "fine_hits", True, HITS),
    Change("0.26.0", "sparse_retention", True, HITS),
    Change("0.26.0", "hits_recorded", True, HITS),
    Change("0.27.0", "latent_block", True, BLOCKS),
    Change("0.27.0", "latent_fp8_triton", True, "platforms/cuda.py"),
    Change("0.27.0", "kda_draft_rows", True, SHAPES),
    Change("0.28.0", "all_by_default", False, "model_executor/models/config.py"),
    Change("0.28.0", "caching_warned", False, "model_executor/models/config.py"),
    Change("0.28.0", "one_capacity_line", True, UTILS),
    Change("0.28.0", "device_named", True, PLANNING),
    Change("0.28.0", "one_buffer", True, "v1/worker/utils.py"),
    Change("0.29.0", "null_block_reserved", True, PLANNING),
    Change("0.29.0", "checkpoint_blocks", True, f"{LAYERS} get_kv_cache_spec"),
    Change("0.29.0", "shortconv_draft_rows", True, SHAPES),
    Change("0.29.0", "layout_line", True, "v1/attention/backends/utils.py"),
    Change("0.29.0", "layout_recorded", True, "v1/attention/backends/utils.py"),
    Change("0.30.0", "group_lines", True, PLANNING),
    Change("0.31.0", RECORDED, False, READ),
    Change("0.32.0", "modes", False, "config/cache.py"),
    Change("0.32.0", "mode_all_refused", True, "config/cache.py"),
    Change("0.32.0", "kernel_blocks", True, f"{BLOCKS} _align_hybrid_block_size"),
    Change("0.32.0", "class_counts_drafts", True, "model_executor/models/"),
    Change("0.33.0", RECORDED, True, "results of its own classes"),
    Change("0.33.0", "checkpoint_grid", True, BLOCKS),
)  # fmt: skip
"""A new release is added here, a row a change, or one row where it changed nothing."""

RELEASES = Releases("vLLM", RuleSet(CHANGES[0].release), CHANGES)
NEWEST_VERSION = RELEASES.newest
rules_for = RELEASES.rules_for
