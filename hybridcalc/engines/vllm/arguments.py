"""Is every vLLM argument one that its command line would take? And those that vLLM takes and no plan here models."""

from hybridcalc.engines.arguments import Bounds
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.flags import ELSEWHERE, FLAGS
from hybridcalc.errors import InputError, quoted

BOUNDS = Bounds(EngineArgs, (*ELSEWHERE, *FLAGS))


def check_arguments(args: EngineArgs) -> None:
    """Raise InputError for an argument that the command line would refuse."""
    BOUNDS.check(args)
    method = (args.speculative_config or {}).get("method")
    if method is not None and not isinstance(method, str):
        raise InputError(f"the speculative method {quoted(method)} is not a name", fix="mtp, ngram, eagle3, ...")
    if args.max_model_len == 0:
        raise InputError("max_model_len 0 is not a usable length", fix="write tokens, or -1 for what fits")


def check_together(args: EngineArgs) -> None:
    """Raise InputError for arguments that no plan here models."""
    if args.pipeline_parallel_size > 1:
        raise InputError("pipeline parallelism of vLLM is not modelled", fix="leave out --pipeline-parallel-size")
