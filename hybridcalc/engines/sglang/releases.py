"""What does each release of SGLang do its own way? `RuleSet` has a field a fact, `CHANGES` a row a change."""

from typing import NamedTuple

from hybridcalc.engines.releases import RECORDED, Change, Releases
from hybridcalc.errors import Refusal, with_release

EXTRA_BUFFER_0_5_16 = frozenset({
    "KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "NemotronHForCausalLM", "FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM",
})  # fmt: skip
EXTRA_BUFFER = EXTRA_BUFFER_0_5_16 | {
    "KimiK3ForConditionalGeneration", "BailingMoeV3ForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
    "Qwen4ExpForConditionalGeneration", "Glm5NextForConditionalGeneration", "InklingForConditionalGeneration",
}  # fmt: skip


class RuleSet(NamedTuple):
    """What a release does its own way; everything else is common to all. The defaults are those of 0.5.16.

    Model classes: ``missing_classes`` begin the names of those it lacks; ``extra_buffer_classes`` can keep extra
    buffers, on ``extra_buffer_platforms`` (none named: on any); ``state_class_checked``: buffers are refused for a
    class that has no prefix cache.
    Strategies: ``lazy_with_speculation``, ``replayssm_with_extra_buffer``: run together;
    ``lazy_refused_under_disaggregation``.
    Solver: ``padding_slot_charged``: the slot that pads the pool is paid for; ``worker_limit_at_least_one``: request
    limit // dp is 1 at least; ``replayssm_priced``: rings are; ``own_draft_cell``: DSPARK and DFLASH drafts are priced
    by a cell of their own; ``draft_cell_apart``: an EAGLE draft's cell is rounded down apart from the target's.
    Memory: ``multimodal_reserve`` is kept; ``after_capture``: KV can be sized after graph capture; ``unified_memory``:
    slots and KV can share a pool.
    Log: ``cap_line``: says why slots cap the requests; ``int8_lines``: of the checkpoint pool; ``kv_line_recorded``: a
    recorded start-up includes the line of the KV pool.
    Weights: ``head_in_fp32`` begin the names of classes whose output head is held in fp32.
    """

    version: str
    recorded: bool = False
    missing_classes: tuple[str, ...] = ("KimiK3",)
    extra_buffer_classes: frozenset[str] = EXTRA_BUFFER_0_5_16
    extra_buffer_platforms: tuple[str, ...] = ()
    state_class_checked: bool = False
    lazy_with_speculation: bool = False
    lazy_refused_under_disaggregation: bool = False
    replayssm_with_extra_buffer: bool = False
    padding_slot_charged: bool = False
    worker_limit_at_least_one: bool = False
    replayssm_priced: bool = False
    own_draft_cell: bool = False
    draft_cell_apart: bool = False
    multimodal_reserve: bool = False
    after_capture: bool = False
    unified_memory: bool = False
    cap_line: bool = False
    int8_lines: bool = False
    kv_line_recorded: bool = False
    head_in_fp32: tuple[str, ...] = ("Bailing",)


OVERRIDES, CONFIGURATOR = "arg_groups/overrides.py", "mem_cache/kv_cache_configurator.py"
HOOK, CELL = "arg_groups/mamba_hook.py", "model_executor/pool_configurator.py"
CHANGES: tuple[Change, ...] = (
    Change("0.5.16", RECORDED, True, "results of its own classes"),
    Change("0.5.23", RECORDED, True, "results of its own classes"),
    Change("0.5.23", "missing_classes", (), "models/"),
    Change("0.5.23", "extra_buffer_classes", EXTRA_BUFFER, f"{OVERRIDES} _MAMBA_EXTRA_BUFFER_ARCHS"),
    Change("0.5.23", "extra_buffer_platforms", ("cuda", "musa", "npu", "hip"), HOOK),
    Change("0.5.23", "state_class_checked", True, "arg_groups/model_hook.py"),
    Change("0.5.23", "lazy_with_speculation", True, HOOK),
    Change("0.5.23", "lazy_refused_under_disaggregation", True, HOOK),
    Change("0.5.23", "replayssm_with_extra_buffer", True, HOOK),
    Change("0.5.23", "padding_slot_charged", True, f"{CONFIGURATOR} _handle_max_mamba_cache"),
    Change("0.5.23", "worker_limit_at_least_one", True, f"{CONFIGURATOR} resolve_max_num_reqs"),
    Change("0.5.23", "replayssm_priced", True, f"{CONFIGURATOR} _calculate_mamba_ratio"),
    Change("0.5.23", "own_draft_cell", True, f"{CELL} _dflash_draft_cell_size"),
    Change("0.5.23", "draft_cell_apart", True, f"{CELL} DefaultPoolConfigurator.__init__"),
    Change("0.5.23", "multimodal_reserve", True, f"{CONFIGURATOR} mm_runtime_reservation_gb"),
    Change("0.5.23", "after_capture", True, f"{OVERRIDES} post_capture_kv_sizing_planned"),
    Change("0.5.23", "unified_memory", True, "mem_cache/unified_memory_pool.py"),
    Change("0.5.23", "cap_line", True, CONFIGURATOR),
    Change("0.5.23", "int8_lines", True, "mem_cache/mamba_checkpoint_pool.py"),
    Change("0.5.23", "head_in_fp32", ("BailingMoeV2_5", "BailingMoeLinear"), "models/bailing_moe_v3.py"),
    Change("0.5.23", "kv_line_recorded", True, "results of its own classes"),
)  # fmt: skip
"""A new release is added here, a row a change, or one row where it changed nothing."""

RELEASES = Releases("SGLang", RuleSet(CHANGES[0].release), CHANGES)
NEWEST_VERSION = RELEASES.newest
rules_for = RELEASES.rules_for


def check_model(rules: RuleSet, architecture: str) -> None:
    """Raise Refusal for a model class the release does not have."""
    if architecture.startswith(rules.missing_classes):
        raise Refusal(
            f"SGLang {rules.version} has no class for {architecture}",
            stage="arguments",
            rule="HC024",
            fix=with_release(NEWEST_VERSION),
            release=NEWEST_VERSION,
        )
