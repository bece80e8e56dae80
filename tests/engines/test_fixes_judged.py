"""What a refusal says to write is judged as the start-up would: it starts, or breaks another rule, in no circle."""

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

import hybridcalc
from hybridcalc import Architecture, load_model
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.errors import Drop, Either, HybridcalcError, OneOf, Refusal, Write, flags_of

REFUSALS = 40
MODELS = (
    "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "lfm2-8b-a1b", "falcon-h1-3b", "nemotron-h-8b",
    "granite-4.0-h-small", "ling-2.6-flash", "kimi-k3", "qwen3.6-35b-a3b",
)  # fmt: skip
SGLANG = {
    "tp_size": (3, 4, 8, 12), "ep_size": (2, 12), "pp_size": (2, 60), "page_size": (16, 48, 64),
    "mamba_radix_cache_strategy": ("no_buffer", "extra_buffer", "extra_buffer_lazy"),
    "disable_overlap_schedule": (True,), "attention_backend": ("triton", "trtllm_mha", "trtllm_mla", "flashinfer"),
    "kv_cache_dtype": ("fp8_e5m2", "mxfp8", "fp8_e4m3"), "enable_int8_mamba_checkpoint": (True,),
    "enable_hierarchical_cache": (True,), "enable_unified_memory": (True,),
    "enable_linear_replayssm": (True,), "enable_linear_replayssm_spec": (True,), "mamba_track_interval": (2, 100),
    "linear_attn_decode_backend": ("flashinfer", "helion"), "speculative_algorithm": ("EAGLE", "NGRAM", "DFLASH"),
    "speculative_num_draft_tokens": (4, 12), "disaggregation_mode": ("prefill", "decode"),
    "engine_version": ("0.5.9", "0.5.12", "0.5.16", "0.5.19", "0.5.23"), "gpu_capability": ("9.0", "10.0", "12.0"),
}  # fmt: skip
VLLM = {
    "tensor_parallel_size": (3, 4, 8, 16), "pipeline_parallel_size": (2, 60), "decode_context_parallel_size": (2, 16),
    "kv_cache_dtype": ("fp8", "fp8_e5m2", "fp8_inc", "nvfp4", "turboquant_3bit_nc"), "block_size": (16, 48),
    "attention_backend": ("FLEX_ATTENTION", "TRITON_ATTN", "FLASHMLA", "FLASH_ATTN"), "use_replayssm": (True,),
    "mamba_cache_mode": ("all", "align"), "mamba_block_size": (8, 512), "enable_prefix_caching": (True, False),
    "max_model_len": (2**21,), "max_num_seqs": (4, 100_000), "enable_expert_parallel": (True,),
    "mamba_ssm_cache_dtype": ("float16", "bfloat16"),
    "speculative_config": ({"method": "mtp", "num_speculative_tokens": 2},),
    "engine_version": ("0.20.0", "0.22.1", "0.29.0", "0.33.0"), "gpu_capability": ("8.0", "9.0", "10.0"),
}  # fmt: skip


def refused(engine: str, model: Architecture, args: Any) -> Refusal | None:
    """Why a plan does not start; None for one that does. Raises InputError for what makes no sense."""
    try:
        ENGINES[engine].check_together(args)
        ENGINES[engine].plan(model, args, exact_rest(30.0), Workload())
    except Refusal as refusal:
        return refusal
    return None


def applied(engine: str, args: Any, fix: str, flag: str) -> Iterator[Any]:
    """The arguments with each way of a fix that says flags."""
    served = ENGINES[engine]
    for way in fix.ways if isinstance(fix, Either) else (fix,):
        left_out = re.match(r"leave out (--[\w-]+)(?!.*=)", way)
        if isinstance(way, Drop) or left_out:
            names = way.flags if isinstance(way, Drop) else (left_out[1],) if left_out else ()
            fields = [served.flags.by_spelling[name].field for name in names]
            yield args.changed(**{field: args.defaults[field][1] for field in fields})
        elif isinstance(way, OneOf):
            for value in way.values if " without " not in way else ():
                yield served.changed(args, f"{way.flag} {value}")
        elif isinstance(way, Write) and not way.flag:
            yield served.changed(args, f"{flag} {way.value}")
        elif flags_of(way):
            yield served.changed(args, flags_of(way))
        elif way.startswith("use --engine-version "):
            yield args.changed(engine_version=way.split()[-1])


def drawn(engine: str) -> Iterator[tuple[Architecture, Any, Refusal]]:
    """Refusals of arguments that are drawn, the same each time."""
    chance, choices, found = random.Random(engine), SGLANG if engine == "sglang" else VLLM, 0
    while found < REFUSALS:
        model = load_model(chance.choice(MODELS))
        names = chance.sample(sorted(choices), chance.randint(2, 5))
        try:
            args = ENGINES[engine].arguments().changed(**{name: chance.choice(choices[name]) for name in names})
            refusal = refused(engine, model, args)
        except HybridcalcError:
            continue
        if refusal is not None:
            found += 1
            yield model, args, refusal


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_a_refusal_says_to_write_does_not_break_the_same_rule(engine: str) -> None:
    """Nor does the fix of what it breaks next lead back."""
    tried, wrong = 0, list[tuple[Any, ...]]()
    for model, args, refusal in drawn(engine):
        for made in applied(engine, args, refusal.fix, refusal.flag):
            tried += 1
            try:
                again = refused(engine, model, made)
            except HybridcalcError as error:
                wrong.append((model.name, args, refusal.reason, refusal.fix, error.message))
                continue
            if again is None:
                continue
            back = args in [found for found in applied(engine, made, again.fix, again.flag) if found != made]
            if (again.rule == refusal.rule and again.reason == refusal.reason) or back:
                wrong.append((model.name, args, refusal.reason, refusal.fix, again.reason, again.fix))
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > REFUSALS / 3


def fix_of(line: str, release: str = "", gpu: str = "") -> str:
    """The fix of a launch that does not start."""
    found = ENGINES.launch(line)
    served = ENGINES[found.engine or ""]
    model, args = served.read(found.words, {})
    args = args.changed(engine_version=release or None, gpu_capability=gpu or args.gpu_capability)
    refusal = refused(served.name, load_model(str(model or found.model)), args)
    assert refusal is not None
    return str(refusal.fix)


NEXT = "sglang serve --model-path Qwen/Qwen3-Next-80B-A3B-Instruct"
KIMI = "sglang serve --model-path moonshotai/Kimi-K3 --tp-size 12"


@pytest.mark.parametrize(
    ("line", "release", "gpu", "fix"),
    [
        ("sglang serve --model-path nvidia/NVIDIA-Nemotron-Nano-9B-v2 --speculative-algorithm NGRAM",
         "0.5.12", "", "write --disable-radix-cache"),
        (f"{NEXT} --enable-linear-replayssm --enable-linear-replayssm-spec --mamba-radix-cache-strategy no_buffer "
         "--disable-overlap-schedule", "", "",
         "drop --enable-linear-replayssm, or drop --enable-linear-replayssm-spec"),
        (f"{NEXT} --tp 8 --dp 8 --enable-dp-attention --speculative-algorithm NGRAM --attention-backend triton",
         "", "9.0", "drop --enable-dp-attention, or drop --speculative-algorithm"),
        (f"{NEXT} --speculative-algorithm DSPARK --speculative-num-draft-tokens 4 --speculative-num-steps 3", "0.5.15",
         "", "drop --speculative-algorithm, --speculative-num-draft-tokens and --speculative-num-steps, or use "
         "--engine-version 0.5.16"),
        (f"{NEXT} --pp 2", "", "", "write --pp 1"),
        (f"{NEXT} --pipeline-parallel-size=2", "", "", "write --pipeline-parallel-size 1"),
        (f"{NEXT} --tp-size 3", "", "", "write --tp-size 1, 2, 4, 8 or 16"),
        (f"{KIMI} --ep 12", "0.5.21", "", "write --tp-size 1, 2, 4, 8, 16 or 32 without --ep"),
        (f"{KIMI} --dp 3 --enable-dp-attention", "0.5.21", "", "write --tp-size 1, 2, 4, 8, 16 or 32 without --dp"),
        ("vllm serve ibm-granite/granite-4.0-h-small --tensor_parallel_size 7", "", "",
         "write --tensor_parallel_size 1, 2, 4, 8, 16 or 32"),
        ("vllm serve ibm-granite/granite-4.0-h-small -tp 7", "", "", "write -tp 1, 2, 4, 8, 16 or 32"),
    ],
)  # fmt: skip
def test_a_fix_names_every_flag_that_goes_as_it_was_typed(line: str, release: str, gpu: str, fix: str) -> None:
    assert fix_of(line, release, gpu) == fix


def test_ranks_that_do_are_no_more_than_the_gpus() -> None:
    """In Python, as on the command line."""
    with pytest.raises(Refusal) as raised:
        hybridcalc.plan("kimi-k3", gpu="12xb300", length="8k", engine_version="0.5.21", tp_size=12, ep_size=12)
    assert raised.value.fix == "write --tp 1, 2, 4 or 8 without --ep-size"


def test_a_flag_set_to_its_default_is_set() -> None:
    """As a fix that writes --tp 1 over --tp 3 does."""
    served = ENGINES["sglang"]
    args = served.arguments().changed(tp_size=3)
    assert served.changed(args, "--tp 1").tp_size == 1


@pytest.mark.parametrize(
    ("flags", "model", "release", "reason"),
    [
        ({"attention_backend": "FLEX_ATTENTION", "kv_cache_dtype": "fp8"}, "qwen3-next-80b-a3b", "0.29.0",
         "FLEX_ATTENTION does not read --kv-cache-dtype fp8"),
        ({"tensor_parallel_size": 8}, "ling-2.6-flash", "0.29.0",
         "tensor parallel size 8 does not divide the groups of the norm"),
        ({"tensor_parallel_size": 4}, "ling-2.6-flash", "0.29.0", ""),
        ({"quantization": "modelopt_mixed", "gpu_capability": "8.0"}, "nemotron-h-8b", "0.23.0",
         "modelopt_mixed needs compute capability 8.9, not 8.0"),
        ({"quantization": "modelopt_mixed", "gpu_capability": "8.9"}, "nemotron-h-8b", "0.23.0", ""),
        ({"quantization": "modelopt_mixed", "gpu_capability": "8.0"}, "nemotron-h-8b", "0.24.0", ""),
        ({"quantization": "modelopt_mixed", "gpu_capability": "7.0"}, "nemotron-h-8b", "0.24.0",
         "modelopt_mixed needs compute capability 7.5, not 7.0"),
    ],
)  # fmt: skip
def test_what_vllm_refuses_by_its_sources(flags: dict[str, Any], model: str, release: str, reason: str) -> None:
    """flex_attention.py of all releases, bailing_linear_attn.py, modelopt.py."""
    args = ENGINES["vllm"].arguments().changed(engine_version=release, **flags)
    try:
        ENGINES["vllm"].prepare(load_model(model), args)
        said = ""
    except Refusal as refusal:
        said = refusal.reason
    assert said == reason
