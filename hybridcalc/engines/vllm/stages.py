"""Which layers lie on which pipeline stage, and what has each stage of the groups of the whole model?

Mirrors vLLM distributed/utils.py get_pp_indices and v1/core/kv_cache_planning.py _project_kv_cache_groups_to_worker.
"""

from collections import Counter
from itertools import accumulate

from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import DRAFTS, FULL, LETTERS, TAIL, Group
from hybridcalc.errors import Refusal


def stage_bounds(layers: int, args: EngineArgs) -> tuple[tuple[int, int], ...]:
    """First layer and the one after the last of each pipeline stage.

    Stages have layers // stages each, and what remains goes one by one to the stages before the last; the environment
    variable VLLM_PP_LAYER_PARTITION says otherwise ("10,12,10"). Raises Refusal for numbers that do not add up. Source:
    vLLM distributed/utils.py get_pp_indices.
    """
    stages, said = args.pipeline_parallel_size, args.env.get("VLLM_PP_LAYER_PARTITION")
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    if said:
        sizes = [int(part) if part.strip().isdecimal() and len(part) < 8 else -1 for part in said.split(",")]
    if len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        reason = f"{layers:,} layers do not make {stages:,} pipeline stages"
        fix = f"write -pp {layers} or less" if not said else f"leave out VLLM_PP_LAYER_PARTITION={said[:40]}"
        raise Refusal(reason, stage="initialize_model", rule="HC050", fix=fix)
    ends = list(accumulate(sizes))
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def on_stages(
    groups: tuple[Group, ...], letters: str, draft_layers: int, bounds: tuple[tuple[int, int], ...]
) -> tuple[tuple[Group, ...], ...]:
    """What each pipeline stage has of the groups; draft layers lie on the last."""
    if len(bounds) == 1:
        return (groups,)
    found = list[tuple[Group, ...]]()
    for number, (first, end) in enumerate(bounds):
        dealt, own = Counter[str](), list[Group]()
        last = number == len(bounds) - 1
        for group in groups:
            held = [at for at, letter in enumerate(letters) if letter in LETTERS[group.kind]]
            before, upto = sum(at < first for at in held), sum(at < end for at in held)
            upto += draft_layers if last and group.kind in (FULL, TAIL) else 0
            if group.kind in DRAFTS:
                own.append(group if last else group._replace(layers=0))
                continue
            parts = sum(other.kind == group.kind for other in groups)
            own.append(
                group._replace(layers=len([at for at in range(before, upto) if at % parts == dealt[group.kind]]))
            )
            dealt[group.kind] += 1
        found.append(tuple(own))
    return tuple(found)
