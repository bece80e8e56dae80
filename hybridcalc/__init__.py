"""hybridcalc: how an LLM server splits GPU memory between recurrent state and KV cache, to the byte.

    plan("vllm serve Qwen/Qwen3.6-35B-A3B -tp 2", gpu="h100", length="32k")    what a server holds; plan("kimi-k3", ...)
    fit("qwen3.5-397b-a17b", length="64k", concurrency=200, gpu="h200,b200")   which GPUs and flags serve a workload
    weights("kimi-k3", tp_size=8)                                              what weights take, by group of tensors
    load_model("kimi-k3")                                                      an Architecture, from a preset or config
    sglang.plan(load_model("kimi-k3"), sglang.ServerArgs(tp_size=8), rest_gib=28.55)     an engine's own arguments
    vllm.plan(load_model("kimi-k3"), vllm.EngineArgs(tensor_parallel_size=8), available_bytes=2**35)

An answer says its figures as `repr`, is a table in notebooks, has rows for pandas (`to_records`) and the document of
`--json` (`to_dict`). What does not start raises a Refusal, what cannot be read an InputError (`hybridcalc.errors`).

Importing this package loads no pydantic, rich, yaml or torch; names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture as Architecture
    from hybridcalc.architecture.presets import load_model as load_model
    from hybridcalc.engines import llamacpp as llamacpp
    from hybridcalc.engines import sglang as sglang
    from hybridcalc.engines import vllm as vllm
    from hybridcalc.engines.ask import plan as plan
    from hybridcalc.engines.ask import weights as weights
    from hybridcalc.fitting.ask import fit as fit
    from hybridcalc.speed import decode_step as decode_step
    from hybridcalc.speed import prefill as prefill

__version__ = "0.2.0"

_HOMES = {
    "Architecture": ("hybridcalc.architecture", "Architecture"),
    "plan": ("hybridcalc.engines.ask", "plan"),
    "decode_step": ("hybridcalc.speed", "decode_step"),
    "prefill": ("hybridcalc.speed", "prefill"),
    "weights": ("hybridcalc.engines.ask", "weights"),
    "fit": ("hybridcalc.fitting.ask", "fit"),
    "load_model": ("hybridcalc.architecture.presets", "load_model"),
    "llamacpp": ("hybridcalc.engines.llamacpp", None),
    "sglang": ("hybridcalc.engines.sglang", None),
    "vllm": ("hybridcalc.engines.vllm", None),
}

__all__ = [
    "Architecture",
    "__version__",
    "decode_step",
    "fit",
    "llamacpp",
    "load_model",
    "plan",
    "prefill",
    "sglang",
    "vllm",
    "weights",
]


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'hybridcalc' has no attribute {name!r}")
        module, attribute = _HOMES[name]
        found = import_module(module)
        return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)
