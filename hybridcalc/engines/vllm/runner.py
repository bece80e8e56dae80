"""Which model runner serves, and how many batches are in flight at once?

VLLM_USE_V2_MODEL_RUNNER decides where it is set. Otherwise V2 serves from the release on that makes it the default,
before that a few classes and DSPARK, unless it lacks something that the launch asks for. Two batches overlap under
asynchronous scheduling, which V1 does not run with drafts made on the host nor with pipeline stages; one more than the
stages under V2. Mirrors vLLM config/vllm.py use_v2_model_runner, max_concurrent_batches.
"""

from hybridcalc.engines.vllm import WITHOUT_DRAFT_KV, EngineArgs
from hybridcalc.engines.vllm.families import ModelClass
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.errors import Refusal

PARALLEL_DRAFTERS = ("dflash", "dspark")
ON_THE_GPU = ("ngram_gpu",)
"""Drafts without KV that asynchronous scheduling runs with under model runner V1."""


def on_runner_v2(args: EngineArgs, rules: RuleSet, kind: ModelClass, *, states: bool, mode: str) -> bool:
    """Whether model runner V2 serves; ``states``: the model has some.

    Raises Refusal where the environment asks it for what it lacks.
    """
    config, method = args.speculative_config or {}, args.speculative_method or ""
    wanted = {
        "states": states,
        "states in mode align": states and mode == "align",
        "mode all": mode == "all",
        "eagle3 in stages": method == "eagle3" and args.pipeline_parallel_size > 1,
        "parallel drafting": bool(config.get("parallel_drafting")) and method not in PARALLEL_DRAFTERS,
        "ngram" if method == "ngram_gpu" else method: bool(method),
    }
    lacking = sorted(name for name, is_so in wanted.items() if is_so and name in rules.runner_v2_lacks)
    asked = args.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked is None:
        return (rules.runner_v2 or kind.runner_v2 or method == "dspark") and not lacking
    if asked.strip() != "0" and lacking:
        raise Refusal(
            f"model runner V2 does not run {lacking[0]}",
            stage="create_engine_config",
            rule="HC049",
            fix="leave out VLLM_USE_V2_MODEL_RUNNER",
            flag="--env",
        )
    return asked.strip() != "0"


def batches_in_flight(args: EngineArgs, rules: RuleSet, *, on_v2: bool) -> int:
    """Batches that are scheduled and not yet settled, whose blocks a window does not give back."""
    stages, method = args.pipeline_parallel_size, args.speculative_method
    if not rules.in_flight_batches:
        return 1
    if on_v2:
        return stages + 1
    on_host = method in WITHOUT_DRAFT_KV and method not in ON_THE_GPU
    return 2 if stages == 1 and not on_host else stages
