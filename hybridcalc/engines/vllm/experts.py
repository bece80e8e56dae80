"""Which launches may share experts out: do the flags go together, and has the model any?

Mirrors vLLM config/parallel.py _validate_parallel_config, config/model.py _verify_with_expert_parallelism.
"""

from collections.abc import Mapping
from typing import NoReturn

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import shipped_config
from hybridcalc.architecture.weights import expert_choice
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.layers import NEMOTRON
from hybridcalc.errors import Refusal


def check_balancing(model: Architecture, args: EngineArgs) -> None:
    """Raise Refusal for copies of experts without what shares them out, and for sharing where there are none."""
    if args.redundant_experts and not args.enable_eplb:
        _refuse(
            f"{args.redundant_experts:,} redundant experts need EPLB",
            "add --enable-eplb, or leave num_redundant_experts out",
            "--eplb-config",
        )
    if args.enable_eplb and not args.enable_expert_parallel:
        _refuse("EPLB needs expert parallelism", "add --enable-expert-parallel", "--enable-eplb")
    if args.enable_eplb and args.tensor_parallel_size * args.data_parallel_size == 1:
        _refuse("EPLB needs several tp or dp ranks", "leave it out on one rank", "--enable-eplb")
    if args.enable_expert_parallel and _without_experts(model):
        flag = "--enable-expert-parallel"
        _refuse(f"{model.name} has no experts to share out", f"leave out {flag}", flag)


def check_count(model: Architecture, ranks: int) -> None:
    """Raise Refusal for more tensor-parallel ranks than experts."""
    config: Mapping[str, object] = model.config if model.config is not None else shipped_config(model.name)
    text = config.get("text_config")
    experts = (text if isinstance(text, Mapping) else config).get("num_experts")
    if isinstance(experts, int) and 0 < experts < ranks:
        raise Refusal(
            f"tensor parallel size {ranks} is more than the {experts:,} experts",
            stage="initialize_model",
            rule="HC050",
            fix=f"write -tp {experts} or less",
        )


def _without_experts(model: Architecture) -> bool:
    """Whether a config is known that names no experts, of a class that has no number of its own."""
    known = model.config is not None or bool(shipped_config(model.name))
    counted = model.architecture not in NEMOTRON and "Moe" not in model.architecture
    return known and counted and not expert_choice(model)[0]


def _refuse(reason: str, fix: str, flag: str) -> NoReturn:
    raise Refusal(reason, stage="create_engine_config", rule="HC049", fix=fix, flag=flag)
