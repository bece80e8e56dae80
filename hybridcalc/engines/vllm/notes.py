"""What should be said beside the figures of a vLLM plan: limits of what is known, and flags that do nothing here."""

from hybridcalc.engines.vllm.config import AUTO_FIT, KNOWN_ENVIRONMENT
from hybridcalc.engines.vllm.figures import Figures
from hybridcalc.engines.vllm.groups import STATE, WINDOW
from hybridcalc.engines.vllm.states import QWEN3_5


def plan_notes(plan: Figures) -> list[str]:
    """Notes in the order a reader needs them; empty where there is nothing to say."""
    model, args, ready = plan.model, plan.args, plan.ready
    notes = [model.reading] if model.reading else []
    if model.confidence == "second-hand":
        notes.append(f"geometry is second-hand: {model.source}")
    longest, asked = model.max_context, args.max_model_len
    if longest is None and asked in (None, AUTO_FIT):
        notes.append(f"{model.name} names no longest sequence: max_model_len {ready.length:,} is what vLLM assumes")
    if longest is not None and asked is not None and asked > longest * model.rope_scaling_factor:
        notes.append(
            f"max_model_len {asked:,} is above the model's own {longest:,}: vLLM refuses that unless its config or "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 allows it"
        )
    if args.data_parallel_size > 1:
        notes.append(f"figures are those of one of {args.data_parallel_size} data-parallel replicas")
    method = args.speculative_method
    if method is not None and args.draft_layers is None and not method.endswith(("mtp", "ngram", "suffix")):
        notes.append("no KV of the draft model is counted: --draft-layers N adds layers of the model's own KV size")
    if any(group.kind == WINDOW for group in ready.groups):
        notes.append("a window holds the tokens in flight as well: two batches of --max-num-batched-tokens")
    declared = model.declared_ssm_dtype if model.architecture in QWEN3_5 else None
    if declared is not None and args.mamba_ssm_cache_dtype not in ("auto", declared):
        notes.append(f"the model declares a {declared} state; the flag wins, with a warning")
    if args.hf_overrides:
        notes.append("--hf-overrides are not applied here: give a config.json that has them")
    if args.max_num_seqs is None and any(group.kind == STATE for group in ready.groups):
        gpu = "this GPU" if args.gpu_memory_gib is not None else "a GPU below 70 GiB; it is 1,024 above"
        notes.append(f"max_num_seqs is not given: {args.seqs:,}, the default on {gpu}")
    unknown = sorted(name for name in args.env if name not in KNOWN_ENVIRONMENT)
    if unknown:
        notes.append(f"{', '.join(unknown)[:60]}: no switch that changes a figure here")
    return notes
