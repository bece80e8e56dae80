"""What a number of a launch line may be: one table an engine, and both ends of every row of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridcalc import llamacpp
from hybridcalc.engines import ENGINES
from hybridcalc.engines.llamacpp import BOUNDS
from hybridcalc.errors import InputError
from hybridcalc.shell.flags import Flag

RANKS, DRAFTS, WIDE, SLOTS, TOKENS = 4096, 1024, 2**20, 10**9, 2**40
NUMBERS: dict[str, dict[tuple[int, int], str]] = {
    "sglang": {
        (1, RANKS): "tp-size pp-size dp-size attn-dp-size dcp-size ep-size moe-dense-tp-size",
        (
            1,
            DRAFTS,
        ): "max-draft-tokens speculative-num-draft-tokens speculative-dflash-block-size speculative-eagle-topk",
        (1, DRAFTS - 1): "speculative-dspark-block-size",  # a token more is drafted
        (0, DRAFTS): "speculative-num-steps",
        (0, RANKS): "draft-layers ep-num-redundant-experts",
        (0, WIDE): "hicache-size cpu-offload-gb",
        (1, WIDE): "page-size linear-replayssm-cache-len cuda-graph-max-bs-decode cuda-graph-max-bs-prefill",
        (1, SLOTS): "max-mamba-cache-size mamba-track-interval max-running-requests",
        (-1, SLOTS): "mamba-max-states-per-path",  # -1 for all
        (0, SLOTS): "disaggregation-decode-extra-slots int8-mamba-ckpt-size",
        (1, TOKENS): "max-total-tokens context-length max-prefill-tokens",
        (-1, TOKENS): "chunked-prefill-size",  # -1 for whole prompts
        (0, TOKENS): "draft-kv-bytes-per-token",
        (1, 2**30): "gpu-memory-mib",
    },
    "vllm": {
        (1, RANKS): "tensor-parallel-size pipeline-parallel-size decode-context-parallel-size data-parallel-size",
        (1, WIDE): "block-size replayssm-buffer-len",
        (1, SLOTS): "max-num-seqs num-gpu-blocks-override",
        (1, 2**30): "mamba-block-size prefix-match-unit",
        (-1, TOKENS): "max-model-len",  # -1 for what fits
        (1, TOKENS): "max-num-batched-tokens",
        (0, TOKENS): "prefix-cache-retention-interval",
        (1, 2**60): "kv-cache-memory-bytes",
        (0, DRAFTS): "draft-layers",
    },
}
SHARES: dict[str, dict[tuple[int, int], str]] = {
    "sglang": {
        (0, 10**6): "mamba-full-memory-ratio hicache-ratio",
        (0, 1): "swa-full-tokens-ratio mem-fraction-static",
    },
    "vllm": {
        (0, 1): "gpu-memory-utilization",
        (0, 2**20): "gpu",
        (0, 2**30): "kv-offloading-size",
        (-1, 2**20): "cpu-offload-gb",
    },
}

WORDS: dict[str, dict[str, str]] = {
    "sglang": {
        "disaggregation-mode": "null prefill decode",
        "mm-feature-transport": "cpu cuda_ipc cuda_vmm",
        "mamba-radix-cache-strategy": "auto no_buffer extra_buffer extra_buffer_lazy",
        "mamba-ssm-dtype": "float32 bfloat16 float16",
        "qsa-indexer-dtype": "auto bfloat16 fp8_e4m3",
    },
    "vllm": {
        "performance-mode": "balanced interactivity throughput",
        "mm-encoder-tp-mode": "weights data",
        "mamba-ssm-cache-dtype": "auto float32 bfloat16 float16",
        "mamba-cache-dtype": "auto float32 bfloat16 float16",
        "mamba-cache-mode": "all align none",
        "dtype": "auto half float16 bfloat16 float float32",
    },
    "llama.cpp": {
        "fit": "on off enabled disabled true false 1 0",
        "split-mode": "none layer row tensor",
        "flash-attn": "on off auto enabled disabled true false 0 1 -1",
        "cache-type-k": "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1",
        "cache-type-v": "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1",
    },
}
"""What the engines' own parsers take, but for names of backends."""


@pytest.mark.parametrize("engine", WORDS)
def test_a_word_that_the_engine_takes_is_read_and_no_other(engine: str) -> None:
    for name, words in WORDS[engine].items():
        for word in words.split():
            ENGINES[engine].read([f"--{name}", word], {})
        with pytest.raises(InputError):
            ENGINES[engine].read([f"--{name}", "float8"], {})


def numbers(engine: str, *kinds: str) -> dict[str, Flag]:
    """The flags of these kinds by their own names, options of hybridcalc among them."""
    module = ENGINES[engine].part("flags")
    return {
        flag.spellings[0].removeprefix("--"): flag for flag in (*module.ELSEWHERE, *module.FLAGS) if flag.kind in kinds
    }


@pytest.mark.parametrize("engine", NUMBERS)
def test_every_number_lies_between_its_bounds(engine: str) -> None:
    found: dict[str, tuple[int, int]] = {}
    for (least, most), names in NUMBERS[engine].items():
        found |= dict.fromkeys(names.split(), (least, most))
    flags = numbers(engine, "int", "tokens")
    flags.pop("spec-tokens", None)  # in a JSON of drafts as well
    assert {name: (flag.least, flag.most) for name, flag in flags.items()} == found
    shares = {name: bounds for bounds, names in SHARES[engine].items() for name in names.split()}
    assert {name: (flag.least, flag.most) for name, flag in numbers(engine, "float").items()} == shares


@pytest.mark.parametrize("engine", NUMBERS)
def test_both_ends_are_taken_and_what_lies_beyond_is_refused(engine: str) -> None:
    """As they are typed; a share lies above its least."""
    read: Any = ENGINES[engine].read
    for name, flag in numbers(engine, "int", "tokens").items():
        if f"--{name}" not in ENGINES[engine].flags.by_spelling:
            continue
        for value in (flag.least, flag.most):
            if name not in ("speculative-dspark-block-size", "attn-dp-size", "max-model-len"):  # say more than a number
                read([f"--{name}", str(value)], {})
        for value in (flag.least - 1, flag.most + 1):
            with pytest.raises(InputError, match="is not a whole number from"):
                read([f"--{name}={value}"], {})


FROM_PYTHON = {
    "n_seq_max": (1, WIDE), "flash_attn_type": (-1, 1), "n_gpu_layers": (-2, WIDE), "n_rs_seq": (0, 1024),
    "cards": (1, RANKS), "kv_unified_per_slot": (0, TOKENS),
}  # fmt: skip


@pytest.mark.parametrize("field", FROM_PYTHON)
def test_arguments_of_llama_cpp_from_python_lie_between_the_same_bounds(field: str) -> None:
    """Where no flag of their name takes them."""
    least, most = FROM_PYTHON[field]
    for value in (least, most):
        BOUNDS.check(replace(llamacpp.ContextParams(), **{field: value}))  # type: ignore[arg-type]
    for value in (least - 1, most + 1):
        with pytest.raises(InputError):
            BOUNDS.check(replace(llamacpp.ContextParams(), **{field: value}))  # type: ignore[arg-type]
