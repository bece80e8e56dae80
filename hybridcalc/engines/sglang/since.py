"""Which flags, and which of their values, does a release of SGLang not have?

A flag that came later is refused by the parser of the releases before, and so is a choice of it. Names that changed
(flags.py `RETIRED`) count from their first name on.
Source: SGLang srt/server_args.py, arg_groups/choices.py, fields/, speculative/spec_info.py (0.5.9 to 0.5.23).
"""

from hybridcalc.engines.arguments import is_later
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import Refusal, with_release

FLAGS = {
    "dcp_size": "0.5.15", "linear_attn_backend": "0.5.10", "linear_attn_decode_backend": "0.5.10",
    "qsa_indexer_dtype": "0.5.22", "mamba_max_states_per_path": "0.5.17", "enable_linear_replayssm": "0.5.15",
    "enable_linear_replayssm_spec": "0.5.16", "linear_replayssm_cache_len": "0.5.15",
    "disaggregation_decode_extra_slots": "0.5.14", "disaggregation_decode_enable_radix_cache": "0.5.11",
    "enable_int8_mamba_checkpoint": "0.5.14", "int8_mamba_ckpt_size": "0.5.14", "radix_cache_backend": "0.5.13",
    "enable_unified_memory": "0.5.15", "enable_pd_role_switch": "0.5.21", "mm_feature_transport": "0.5.16",
    "cuda_graph_backend_prefill": "0.5.14", "disable_prefill_cuda_graph": "0.5.14", "speculative_adaptive": "0.5.11",
}  # fmt: skip
"""Argument -> the first release that has its flag, of those that 0.5.9 lacks."""

ATTENTION = {
    "dsv4": "0.5.12", "compressed": "0.5.12", "tokenspeed_mla": "0.5.12", "dsa": "0.5.13", "cutedsl_mla": "0.5.13",
    "hpc_ops": "0.5.17", "minicpm_flashattn": "0.5.19", "minicpm_flashinfer": "0.5.19", "qsa": "0.5.20",
}  # fmt: skip
LINEAR = {
    "flashkda": "0.5.15", "nvidia_kda": "0.5.17", "ptx_kda": "0.5.17", "helion": "0.5.18", "intel_xpu": "0.5.19",
}  # fmt: skip
SPARSE = {"flashmla_sparse_q8": "0.5.16", "flashinfer_sparse_mla": "0.5.17"}
VALUES = {
    "speculative_algorithm": {"DFLASH": "0.5.11", "DSPARK": "0.5.16"},
    "mamba_radix_cache_strategy": {"extra_buffer_lazy": "0.5.13"},
    "kv_cache_dtype": {"mxfp8": "0.5.16"},
    "attention_backend": ATTENTION,
    "linear_attn_backend": LINEAR,
    "linear_attn_decode_backend": LINEAR,
    "dsa_prefill_backend": SPARSE,
    "dsa_decode_backend": SPARSE,
}
"""Argument -> its values that later releases brought, each with the first that has it."""
LAST = {("attention_backend", "cutlass_mla"): "0.5.19", ("attention_backend", "dual_chunk_flash_attn"): "0.5.19"}
"""A value that later releases dropped -> the last that has it."""


def check_since(args: ServerArgs, rules: RuleSet) -> None:
    """Raise Refusal (stage "arguments") for a flag, or a value of one, that the release has not yet or no more."""
    for name, value, own in args.held():
        if value == own:
            continue
        flag = f"--{name.replace('_', '-')}"
        said = f"{flag} {value}"
        first = VALUES.get(name, {}).get(value) if isinstance(value, str) else None
        if name in FLAGS and (first is None or is_later(FLAGS[name], rules.version)):
            first, said = FLAGS[name], flag
        if first is not None and is_later(first, rules.version):
            raise _lacks(rules, flag, said, f"yet: the first release that has it is {first}", first)
        last = LAST.get((name, value)) if isinstance(value, str) else None
        if last is not None and is_later(rules.version, last):
            raise _lacks(rules, flag, said, f"any more: the last release that has it is {last}", last)


def _lacks(rules: RuleSet, flag: str, said: str, when: str, release: str) -> Refusal:
    return Refusal(
        f"SGLang {rules.version} has no {said} {when}",
        stage="arguments",
        rule="HC024",
        fix=f"drop {flag}, or {with_release(release)}",
        flag=flag,
        release=release,
    )
