"""vLLM: its arguments, how it sizes pages and blocks for a hybrid model, and what to set.

``plan(model, args, available_bytes=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import Memory
from hybridcalc.engines import names_of_modules
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.layers import layer_state, state_bytes_per_layer
from hybridcalc.engines.vllm.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import InputError, Refusal

if TYPE_CHECKING:
    from hybridcalc.engines.vllm.server_plan import Plan as Plan
    from hybridcalc.engines.vllm.server_plan import plan as plan
    from hybridcalc.hardware import Gpu
    from hybridcalc.shell.flags import Flag


__all__ = [
    "NEWEST_VERSION", "EngineArgs", "Plan", "Refusal", "layer_state", "plan", "rules_for", "state_bytes_per_layer",
]  # fmt: skip


class Vllm(Engine):
    """vLLM's server."""

    name, title = "vllm", "vLLM"
    model_flag = "--model"
    tp_flag, memory_option = "-tp", "available"
    options = frozenset(
        {
            "available",
            "gpu",
            "weights",
            "non_cache",
            "shared_prefix",
            "private",
            "engine_version",
            "draft_layers",
            "gpu_capability",
            "tp_size",
            "dcp_size",
            "kv_cache_dtype",
            "mamba_ssm_dtype",
            "enable_prefix_caching",
            "env",
            "max_total_tokens",
            "pp_size",
            "ep_size",
            "quantization",
        }
    )
    renamed = MappingProxyType(
        {
            "tp_size": "tensor_parallel_size",
            "pp_size": "pipeline_parallel_size",
            "dp_size": "data_parallel_size",
            "dcp_size": "decode_context_parallel_size",
            "mamba_ssm_dtype": "mamba_ssm_cache_dtype",
        }
    )
    model_after_flags = own_length = True
    indivisible = ("initialize_model", "HC050")
    variants = MappingProxyType({"--omni": "vLLM-Omni"})
    stages = (
        "create_engine_config",
        "initialize_model",
        "update_block_size_for_backend",
        "get_kv_cache_spec",
        "layout+groups",
        "get_kv_cache_configs",
        "resolve_kv_cache_block_sizes",
        "retention",
        "cudagraph_mamba_check",
    )

    def with_options(self, args: EngineArgs, given: Mapping[str, Any]) -> EngineArgs:
        """As every engine; a GPU (``gpu``, a hardware.Gpu) decides kernels and the default of max_num_seqs,
        ranks that share experts (``ep_size``) how many replicas there are.
        """
        card: Gpu | None = given.get("gpu")
        if card is not None:
            capability = card.capability or args.gpu_capability
            args = replace(args, gpu_memory_gib=card.gib, gpu_capability=capability, rocm=card.amd)
        ep = given.get("ep_size") or 1
        if ep > 1:
            args = replace(args, enable_expert_parallel=True)
        changed: EngineArgs = super().with_options(args, given)
        tp, dp = changed.tensor_parallel_size, changed.data_parallel_size
        if ep not in (1, tp * dp) and dp == 1 and ep % tp == 0:  # as many replicas as share the experts with it
            return self.with_options(replace(args, data_parallel_size=ep // tp), {**given, "tp_size": tp})
        if ep not in (1, tp * dp):
            shared = f"vLLM shares experts out among all tp x dp ranks, {tp * dp} here"
            raise InputError(f"--ep {ep}: {shared}", fix=f"write --ep {tp * dp}")
        _ = changed.capability  # raises for what is none
        return changed

    def remarks(self, args: EngineArgs, known: Memory) -> list[str]:
        """As every engine."""
        said = super().remarks(args, known)
        if known.available is not None and args.kv_cache_memory_bytes is not None:
            said.append("--available is given: --kv-cache-memory-bytes changes nothing here")
        return said

    def command(self, model: str) -> tuple[str, ...]:
        """As every engine; ``vllm serve`` takes the model without a flag."""
        return ("vllm", "serve", model)

    def typed(self, name: str, given: Mapping[str, Any]) -> "tuple[Flag, ...]":
        """As every engine; the number of draft tokens stands in the speculative configuration, where there is one."""
        return () if name == "num_speculative_tokens" and "speculative_config" in given else super().typed(name, given)

    def fraction(self, args: EngineArgs) -> dict[str, Any]:
        """As every engine."""
        given = args.gpu_memory_utilization is not None
        source = "--gpu-memory-utilization" if given else f"{self.title}'s default"
        return {"fraction": args.utilization, "fraction_from": source}

    def attention_ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size

    def server_ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size * args.pipeline_parallel_size

    def ranks(self, args: EngineArgs) -> int:
        """As every engine."""
        return args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size


ENGINE = Vllm()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(__name__, {"Plan": "server_plan", "plan": "server_plan"})
