"""Ranks that do not divide a model are refused, and none that do: every preset, tp 1 to 16, experts cut or shared out.

The rule is worked out here from the sizes of a config alone, as the engines' linear layers state it: heads, widths and
experts are shared evenly, KV heads evenly or whole on several ranks, blocks of fp8 are never cut, and rows of the
vocabulary, rounded up to 64, are shared evenly by vLLM, and by SGLang up to 0.5.21.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from present import present

import hybridcalc
from hybridcalc import Architecture, load_model
from hybridcalc.architecture import GroupedQueryKV
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.families.lightning import Lightning
from hybridcalc.architecture.families.mamba1 import Mamba1
from hybridcalc.architecture.families.mamba2 import Mamba2
from hybridcalc.architecture.families.shortconv import ShortConv
from hybridcalc.architecture.presets import model_names, shipped_checkpoints, shipped_config
from hybridcalc.architecture.weights import parameters
from hybridcalc.engines import ENGINES
from hybridcalc.engines.ranks import RANKS_TRIED, not_shared, ranks_that_do
from hybridcalc.errors import ConfigError, HybridcalcError, InputError, NotModelled, ShardingError

RANKS = range(1, 17)
OF_THEIR_OWN = ("Zamba2", "JetNemotron", "Inkling", "Zaya", "Plamo2")
"""Classes with shapes that a few fields do not tell."""


def _mixer_divides(state: Any, tp: int) -> bool:
    if isinstance(state, GatedDeltaNet):
        return state.num_v_heads % tp == 0 == state.num_k_heads % tp
    if isinstance(state, Mamba2):
        return state.num_heads % tp == 0 and (state.n_groups == 1 or state.n_groups % tp == 0)
    if isinstance(state, Mamba1):
        return state.inner_size % tp == 0
    if isinstance(state, ShortConv):
        return state.streams[0].width % tp == 0
    assert isinstance(state, KimiDelta | Lightning)
    return state.num_heads % tp == 0


def _attention_divides(model: Architecture, tp: int) -> bool:
    if model.attention is None:
        return True
    queries = (model.num_attention_heads or 0) % tp == 0
    if not isinstance(model.attention, GroupedQueryKV):
        return queries
    heads = model.attention.kv_heads
    return queries and (heads % tp == 0 or (tp > heads and tp % heads == 0))


def _widths(model: Architecture) -> Iterator[tuple[str, int]]:
    """Widths of MLPs, by what cuts them."""
    for block in parameters(model).blocks:
        for tensor in block.tensors:
            if tensor.name.endswith("down_proj") and tensor.cut and block.place == "layers":
                yield tensor.over, tensor.columns


def _divides(model: Architecture, engine: str, tp: int, ep: int, *, pads: bool) -> bool:
    config, padded = shipped_config(model.name), -(-shipped_config(model.name)["vocab_size"] // 64) * 64
    cuts = {"mlp": tp, "shared": tp, "experts": tp // ep}
    experts = next(
        (config[name] for name in ("num_experts", "n_routed_experts", "num_local_experts") if name in config), 0
    )
    return (
        (model.state is None or _mixer_divides(model.state, tp))
        and _attention_divides(model, tp)
        and all(width % cuts[over] == 0 for over, width in _widths(model))
        and (engine == "vllm" or not experts or experts % ep == 0)
        and (pads or padded % tp == 0)
    )


@pytest.mark.parametrize(("engine", "release"), [("sglang", "0.5.21"), ("sglang", "0.5.23"), ("vllm", "0.33.0")])
@pytest.mark.parametrize("name", [n for n in model_names() if not load_model(n).architecture.startswith(OF_THEIR_OWN)])
def test_ranks_are_refused_by_the_rule_and_by_nothing_else(name: str, engine: str, release: str) -> None:
    """With experts cut over the ranks, and shared out whole."""
    model, served = load_model(name), ENGINES[engine]
    for tp in RANKS:
        for ep in {1, tp}:
            given = (
                {"tp_size": tp, "ep_size": ep}
                if engine == "sglang"
                else {"tensor_parallel_size": tp, "enable_expert_parallel": ep > 1}
            )
            try:
                served.weights(model, type(served.arguments())(**given, engine_version=release))
                refused = ""
            except (ShardingError, InputError) as error:
                refused = error.message
            divides = _divides(model, engine, tp, ep, pads=release == "0.5.23")
            assert bool(refused) is not divides, (tp, ep, refused)


ALONE = "weights alone take"
CHECKPOINTS = sorted({each["id"] for name in model_names() for each in shipped_checkpoints(name)})


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("gpu", ["l40s", "h100"])
def test_the_fewest_ranks_that_a_refusal_names_are_the_fewest(engine: str, gpu: str) -> None:
    """Of every checkpoint that is too large for one card: planned again with so many it is not, with fewer it is."""
    told = 0
    for checkpoint in CHECKPOINTS:
        refused = _refused(checkpoint, engine, gpu, 1)
        if refused is None or not refused["reason"].startswith(ALONE):
            continue
        named = re.search(r"at least --?tp (\d+): ([\d.]+) GiB", refused["fix"] or "")
        if named is None:
            continue
        told += 1
        for ranks in (tried for tried in RANKS_TRIED if tried <= int(named[1])):
            again = _refused(checkpoint, engine, gpu, ranks)
            reason = again["reason"] if again else ""
            if ranks == int(named[1]):
                assert not reason.startswith(ALONE), (checkpoint, ranks, reason)
            else:
                assert reason, (checkpoint, ranks)
    assert told > 20


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_ranks_are_refused_whatever_is_known_of_memory_as_by_the_weights(engine: str) -> None:
    """Every checkpoint, ranks that divide its heads and ranks that do not: `check_ranks`, which weighs no more than it
    must, refuses what the weights refuse, and of the rest what the heads do.
    """
    served, refused = ENGINES[engine], 0
    for checkpoint in sorted({*CHECKPOINTS, *model_names()}):
        model = load_model(checkpoint)
        for ranks in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64):
            args = served.with_options(served.arguments(), {"tp_size": ranks})
            found = [
                _says(served.check_heads, model, args),
                _says(lambda *asked: served.weights(*asked, mended=False), model, args),
            ]
            wanted = next((reason for reason in found if reason), "")
            wanted = wanted.replace("--tp ", f"{served.tp_flag} ")
            assert _says(served.check_ranks, model, args) == wanted, (checkpoint, ranks)
            refused += bool(wanted)
    assert refused > 100


def _says(asked: Any, model: Architecture, args: Any) -> str:
    try:
        asked(model, args)
    except (NotModelled, ConfigError):
        return ""
    except HybridcalcError as error:
        return error.message
    return ""


def _refused(checkpoint: str, engine: str, gpu: str, ranks: int) -> dict[str, Any] | None:
    """The refusal of a plan on so many cards; None for one that has memory left, or none for the caches alone."""
    shared: dict[str, Any] = {"tp_size" if engine == "sglang" else "tensor_parallel_size": ranks}
    try:
        found = hybridcalc.plan(checkpoint, engine=engine, gpu=gpu, length="1k", **shared).to_dict()
    except HybridcalcError as error:
        return {"reason": error.message, "fix": error.fix}
    refusal: dict[str, Any] | None = found["refusal"]
    return refusal


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_ranks_that_do_are_those_of_a_power_of_two_or_three_of_them(engine: str) -> None:
    """384 heads, which each divides, up to 128 ranks and 16 GPUs."""
    heads = GroupedQueryKV(384, 64, 64)
    model = Architecture("toy", "LlamaForCausalLM", "a", None, heads, num_attention_heads=384, hidden_size=384)
    served = ENGINES[engine]
    args = served.with_options(served.arguments(), {"tp_size": 5})
    upto_16 = [1, 2, 3, 4, 6, 8, 12, 16]
    told = not_shared(served, model, args, 5, ShardingError("heads", total=384, parts=5))
    named = [re.findall(r"\d+", text) for text in (ranks_that_do(served, model, args), present(told).fix)]
    assert [list(map(int, ranks)) for ranks in named] == [[*upto_16, 24, 32, 48, 64, 96, 128], upto_16]
