"""Which launches run ReplaySSM: what classes, drafts, kernels, runner and buffer?

Nemotron-H replays inputs of its states, with drafts on FlashInfer kernels without prefix caching; KDA recovers rejected
drafts by it, on Triton kernels and one pipeline stage. Releases differ in most of this (releases.py). Mirrors vLLM
config/vllm.py validate_mamba_cached_kernel.
"""

from typing import NoReturn

from hybridcalc.architecture import Architecture
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.connectors import connectors
from hybridcalc.engines.vllm.releases import RELEASES, RuleSet
from hybridcalc.errors import Refusal, Write, with_release

REPLAYING = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
"""Classes whose states are replayed."""
RECOVERING = ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")
"""Classes that ReplaySSM recovers rejected drafts for."""


def _refuse(reason: str, fix: str = "leave out --use-replayssm", flag: str = "--use-replayssm") -> NoReturn:
    raise Refusal(reason, stage="create_engine_config", rule="HC049", fix=fix, flag=flag)


def check_replayssm(model: Architecture, args: EngineArgs, rules: RuleSet, *, mode: str, on_v2: bool) -> None:
    """Raise Refusal for a launch that asks for ReplaySSM and cannot have it."""
    flashinfer, drafts = args.mamba_backend == "flashinfer", args.num_speculative_tokens
    recovers = rules.recovers_kda and model.architecture in RECOVERING
    if not rules.replayssm:
        first = RELEASES.oldest_with("replayssm", True)
        _refuse(f"vLLM {args.engine_version or rules.version} has no ReplaySSM", with_release(first))
    if model.architecture not in REPLAYING and not recovers:
        _refuse(f"{model.architecture} does not run ReplaySSM")
    if mode == "all":
        _refuse("ReplaySSM does not run with --mamba-cache-mode all", Write("--mamba-cache-mode", "align"))
    if flashinfer and not rules.replays_flashinfer:
        _refuse("ReplaySSM runs on Triton kernels alone", Write("--mamba-backend", "triton"))
    _check_buffer(args, rules)
    if drafts and recovers:
        _check_recovery(args, mode=mode, on_v2=on_v2)
    elif drafts:
        _check_drafts(args, rules, mode=mode)
    elif flashinfer and mode == "align":
        _refuse("FlashInfer ReplaySSM does not run with prefix caching", "add --no-enable-prefix-caching")
    elif not flashinfer and on_v2 and not rules.replays_on_v2:
        other = "write --mamba-backend flashinfer, or " if rules.replays_flashinfer else ""
        _refuse("Triton ReplaySSM does not run on model runner V2", f"{other}set VLLM_USE_V2_MODEL_RUNNER=0")
    if connectors(args) and not (recovers and drafts and not rules.kda_records_in_pool):
        _refuse("ReplaySSM does not run with KV connectors")


def _check_buffer(args: EngineArgs, rules: RuleSet) -> None:
    most, buffer = rules.replay_buffer_most, args.replayssm_buffer_len
    if args.mamba_backend == "flashinfer" and most and buffer > most:
        flag = "--replayssm-buffer-len"
        _refuse(f"FlashInfer ReplaySSM takes a buffer of {most} steps at most", Write(flag, most), flag)


def _check_recovery(args: EngineArgs, *, mode: str, on_v2: bool) -> None:
    if args.pipeline_parallel_size > 1:
        _refuse("KDA does not recover drafts in pipeline stages", "write -pp 1, or leave out --use-replayssm")
    if args.mamba_backend != "triton":
        _refuse("KDA recovers drafts on Triton kernels alone", Write("--mamba-backend", "triton"))
    if mode == "align" and not on_v2:
        _refuse(
            "KDA recovers drafts beside cached prefixes under model runner V2 alone, which does not serve here",
            "add --no-enable-prefix-caching",
        )


def _check_drafts(args: EngineArgs, rules: RuleSet, *, mode: str) -> None:
    least, flag = 1 + args.num_speculative_tokens, "--replayssm-buffer-len"
    if not rules.replays_drafts:
        _refuse("ReplaySSM does not run with speculation")
    if mode == "align":
        _refuse("ReplaySSM with speculation does not run with prefix caching", "add --no-enable-prefix-caching")
    if args.replayssm_buffer_len < least:
        _refuse(f"ReplaySSM needs a buffer of 1 + {args.num_speculative_tokens} steps", Write(flag, least), flag)
    if args.mamba_backend != "flashinfer":
        _refuse("Triton ReplaySSM does not run with speculation", Write("--mamba-backend", "flashinfer"))
