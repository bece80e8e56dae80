"""The recorded results of SGLang's own classes: inputs as server arguments, and the model each case is about.

`CASES` is of the newest release and in part of 0.5.16; `RECORDED` has the files of single releases.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from hybridcalc import Architecture
from hybridcalc.engines.sglang import ServerArgs

VECTOR_FILES = Path(__file__).resolve().parent.parent / "data" / "vectors"
RECORDED = sorted(path.name.removesuffix(".json.xz") for path in (VECTOR_FILES / "releases").glob("sglang-*.xz"))
"""Names of the files of single releases."""


@cache
def recorded(name: str) -> dict[str, Any]:
    """A file of results: ``geometries`` (configs by name) and ``cases``."""
    plain = VECTOR_FILES / f"{name}.json"
    packed = VECTOR_FILES / "releases" / f"{name}.json.xz"
    read: dict[str, Any] = json.loads(plain.read_bytes() if plain.exists() else lzma.decompress(packed.read_bytes()))
    return read


CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in recorded("sglang")["cases"]}
ARGUMENTS = {
    "tp": "tp_size", "pp": "pp_size", "attn_dp": "dp_size", "dcp": "dcp_size", "kv_dtype": "kv_cache_dtype",
    "page_size": "page_size", "attention_backend": "attention_backend", "linear_backend": "linear_attn_backend",
    "ssm_dtype": "mamba_ssm_dtype", "strategy": "mamba_radix_cache_strategy",
    "ratio": "mamba_full_memory_ratio", "max_mamba_cache_size": "max_mamba_cache_size",
    "max_running_requests": "max_running_requests", "max_total_tokens": "max_total_tokens",
    "swa_ratio": "swa_full_tokens_ratio", "mamba_track_interval": "mamba_track_interval",
    "spec": "speculative_algorithm", "draft_tokens": "speculative_num_draft_tokens", "topk": "speculative_eagle_topk",
    "max_draft_tokens": "max_draft_tokens", "draft_layers": "draft_layers",
    "draft_cell_size": "draft_kv_bytes_per_token", "record_len": "linear_replayssm_cache_len",
    "disagg": "disaggregation_mode", "extra_slots": "disaggregation_decode_extra_slots",
    "int8_ckpt": "enable_int8_mamba_checkpoint", "ckpt_size": "int8_mamba_ckpt_size", "platform": "platform",
}  # fmt: skip
"""Inputs that are an argument each; the others switch something (`arguments_of`) or are null throughout."""


def arguments_of(case_id: str, **changed: Any) -> ServerArgs:
    """The server arguments of a case of the newest release."""
    return arguments(CASES[case_id]["inputs"], **changed)


def arguments(inputs: dict[str, Any], **changed: Any) -> ServerArgs:
    """The inputs of a case as server arguments."""
    named = {argument: inputs[name] for name, argument in ARGUMENTS.items()}
    env = {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"} if inputs["skip_lock"] else {}
    if inputs["conv_dtype"]:
        env["SGLANG_MAMBA_CONV_DTYPE"] = inputs["conv_dtype"]
    switches = {
        "enable_dp_attention": inputs["attn_dp"] > 1,
        "disable_overlap_schedule": not inputs["overlap"],
        "disable_radix_cache": not inputs["radix"],
        "dsa_prefill_backend": inputs["dsa_backend"],
        "dsa_decode_backend": inputs["dsa_backend"],
        "enable_linear_replayssm": inputs["replayssm"] == "decode",
        "enable_linear_replayssm_spec": inputs["replayssm"] == "spec",
        "env": env,
        "qsa_indexer_dtype": inputs.get("qsa_indexer_dtype", "auto"),
        "chunked_prefill_size": inputs.get("chunk"),
    }
    return ServerArgs(**named | switches | changed)


def model_of(case_id: str) -> Architecture:
    """The model of a case of the newest release."""
    return model("sglang", CASES[case_id])


def model(name: str, case: dict[str, Any]) -> Architecture:
    """The model of a case of a file, with the fields the case overwrites in its config."""
    return _read(name, case["model"], json.dumps(case.get("inputs", {}).get("cfg_patch") or {}))


@cache
def _read(file: str, name: str, patch: str) -> Architecture:
    config = json.loads(json.dumps(recorded(file)["geometries"][name]))
    (config.get("text_config") or config).update(json.loads(patch))
    return Architecture.from_hf_config(config, name=name)


def refused_at(case_id: str) -> str:
    """The stage at which the engine refuses a case, or an empty string."""
    refusal: dict[str, str] = CASES[case_id]["outputs"].get("raises") or {}
    return refusal.get("stage", "")
