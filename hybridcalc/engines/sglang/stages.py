"""How does SGLang share a model's layers out over pipeline stages?

Of n layers a stage has n // pp, and one more on each of the last n mod pp; SGLANG_PP_LAYER_PARTITION=46,47 sets them by
hand. A stage keeps the states and the KV of its own layers; a slot is priced at the share of the stage with the most
recurrent layers, on every stage. Where windows have a pool of their own, releases up to 0.5.20 count the first layer of
the next stage as well.
Mirrors get_pp_indices, model_executor/model_runner_components/layer_setup.py (0.5.23).
"""

from itertools import pairwise
from typing import NamedTuple

from hybridcalc.architecture import STATE_LETTERS, Architecture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import FULL_LENGTH_WINDOWS, window_kv
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.errors import InputError, Refusal


class Stage(NamedTuple):
    """One pipeline stage: layers [first, end), and how many of them keep state, full-length KV and windowed KV."""

    first: int
    end: int
    state_layers: int
    kv_layers: int
    window_layers: int


def pipeline_stages(model: Architecture, args: ServerArgs) -> tuple[Stage, ...]:
    """The stages of a model; one for pp 1. Raises Refusal for a class that has none, for more stages than layers and
    for a stage without KV where that does not start; InputError for a partition that is off.
    """
    rules = rules_for(args.engine_version)[0]
    if args.pp_size > 1 and args.disable_overlap_schedule is not False and model.architecture in rules.unstaged_classes:
        raise Refusal(
            f"{model.architecture} does not run pipeline stages in SGLang {rules.version}",
            stage="load",
            rule="HC024",
            fix="write --pp-size 1",
            flag="--pp-size",
        )
    bounds = _bounds(model.num_layers, args)
    stages = tuple(_stage(model, first, end, rules) for first, end in pairwise(bounds))
    bare = next((at for at, stage in enumerate(stages) if not (stage.kv_layers or stage.window_layers)), None)
    if args.pp_size > 1 and bare is not None and not rules.bare_stages and model.attention is not None:
        raise Refusal(
            f"pipeline stage {bare} of {args.pp_size} has no attention layer, which stops the start of SGLang "
            f"{rules.version}",
            stage="tokens",
            rule="HC009",
            fix=f"write --pp-size {_most_stages(model, args, rules)} or less",
            flag="--pp-size",
        )
    return stages


def _most_stages(model: Architecture, args: ServerArgs, rules: RuleSet) -> int:
    """The most stages, of equal shares, each of which has KV."""
    for count in range(args.pp_size, 1, -1):
        bounds = pairwise(_bounds(model.num_layers, args.changed(pp_size=count, env={})))
        if all(stage.kv_layers or stage.window_layers for stage in (_stage(model, *ends, rules) for ends in bounds)):
            return count
    return 1


def _bounds(layers: int, args: ServerArgs) -> list[int]:
    partition = args.env.get("SGLANG_PP_LAYER_PARTITION")
    if args.pp_size > 1 and partition:
        counts = [_count(part.strip()) for part in partition.split(",")]
        if len(counts) != args.pp_size or min(counts) < 0 or sum(counts) != layers:
            raise InputError(
                f"SGLANG_PP_LAYER_PARTITION={partition[:40]} does not share {layers} layers over {args.pp_size} stages",
                fix="write one count a stage; they add up to the layers of the model",
            )
    else:
        if args.pp_size > layers:
            raise Refusal(
                f"{layers:,} layers do not make {args.pp_size:,} pipeline stages",
                stage="load",
                rule="HC009",
                fix=f"write --pp-size {layers} or less",
                flag="--pp-size",
            )
        base, more = divmod(layers, args.pp_size)
        counts = [base + (stage >= args.pp_size - more) for stage in range(args.pp_size)]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return bounds


def _count(text: str) -> int:
    """Layers of a stage; -1 for what is no count."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else -1


def _stage(model: Architecture, first: int, end: int, rules: RuleSet) -> Stage:
    part = model.layers[first:end]
    state = sum(part.count(letter) for letter in STATE_LETTERS)
    apart = window_kv(model) is not None
    if apart and rules.stages_share_a_layer:
        part = model.layers[first : end + 1]
    full, windowed = part.count("a") + part.count("b"), part.count("w") + part.count("v")
    if (model.state is None and not apart) or model.architecture in FULL_LENGTH_WINDOWS:
        full, windowed = full + windowed, 0
    return Stage(first, end, state, full, windowed)
