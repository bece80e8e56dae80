"""Which part of a tensor a rank holds, in how many bytes, and on which pipeline stage."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.architecture.quantization import FP8_BLOCK, INT8, MXFP4, NVFP4, Quantization, Scheme, integers
from hybridcalc.architecture.tensors import Local, Part, Tensor, Widths, linear
from hybridcalc.architecture.weights import parameters
from hybridcalc.engines.placement import Absorbed, absorbed, as_stored, check_split, rope_bytes, stages_of
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang import weights as sglang
from hybridcalc.engines.sglang.stages import pipeline_stages
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm import weights as vllm
from hybridcalc.engines.vllm.runner import stage_bounds
from hybridcalc.errors import InputError, Refusal, ShardingError

K3, QWEN = load_model("kimi-k3"), load_model("qwen3.5-35b-a3b")
sizes = st.integers(1, 700)
PLAIN = linear("down_proj", "mlp", 64, 64, "columns", "mlp")
UP, DOWN = (PLAIN._replace(name=name, over="experts", experts=4) for name in ("gate_up_proj", "down_proj"))


@given(st.lists(sizes, min_size=1, max_size=3), sizes)
def test_fp4_of_linear_layers_is_padded_for_its_kernels(rows: list[int], columns: int) -> None:
    """Values to multiples of 32 rows and columns, scales to 128 rows and 4 of 16 columns; experts as they are."""
    local, whole = Local(1, tuple(rows), columns), sum(rows)
    values = ceil(whole / 32) * 32 * ceil(columns / 32) * 32 // 2
    scales = ceil(whole / 128) * 128 * ceil(ceil(columns / 16) / 4) * 4
    assert as_stored(NVFP4, PLAIN, local) == values + scales + 8
    assert as_stored(NVFP4, UP, local) == NVFP4.stored(rows, columns)
    assert as_stored(FP8_BLOCK, PLAIN, local) == FP8_BLOCK.stored(rows, columns)


@given(sizes, sizes)
def test_vllm_pads_fp4_experts_and_repeats_scales_where_there_is_no_fp8(rows: int, columns: int) -> None:
    """The inner width to 128, the model's to 256, of either projection; a block's scale once a row, in 16 bits."""

    def matrix(capability: str, scheme: Scheme, tensor: Tensor) -> int:
        args = EngineArgs(gpu_capability=capability)
        placed = vllm.placement(QWEN, args)(parameters(QWEN), Quantization("x", scheme))
        return placed.matrix(scheme, tensor, Local(1, (rows,), columns))

    inner, own = ceil(rows / 128) * 128, ceil(columns / 256) * 256
    assert matrix("9.0", MXFP4, UP) == MXFP4.stored([inner], own)
    assert matrix("9.0", MXFP4, DOWN) == MXFP4.stored([ceil(rows / 256) * 256], ceil(columns / 128) * 128)
    assert matrix("9.0", MXFP4, PLAIN) == MXFP4.stored([rows], columns)
    for capability in ("8.9", "9.0", "10.0"):
        assert matrix(capability, FP8_BLOCK, PLAIN) == FP8_BLOCK.stored([rows], columns)
    for capability in ("8.0", "8.6"):
        assert matrix(capability, FP8_BLOCK, PLAIN) == rows * columns + 2 * rows * ceil(columns / 128)
        assert matrix(capability, INT8, PLAIN) == INT8.stored([rows], columns)


@given(st.integers(1, 200), st.integers(1, 40), st.booleans())
def test_stages_share_layers_evenly_and_in_order(layers: int, stages: int, last_first: bool) -> None:
    """What is over goes to the last stages in SGLang, to those before the last in vLLM."""
    if stages > layers:
        with pytest.raises(ShardingError, match="do not make"):
            stages_of(layers, stages, last_first=last_first)
        return
    bounds = stages_of(layers, stages, last_first=last_first)
    counts = [end - first for first, end in bounds]
    assert [first for first, _ in bounds] == [0, *(end for _, end in bounds[:-1])] and bounds[-1][1] == layers
    base, over = divmod(layers, stages)
    larger = range(stages - over, stages) if last_first else range(stages - 1 - over, stages - 1)
    assert counts == [base + (n in larger) for n in range(stages)] if stages > 1 else [layers]


@pytest.mark.parametrize("text", ["4,5", "5,5,0", "4,x", "10", "4,,6", "-1,11", "9" * 5000 + ",1"])
def test_a_partition_that_is_none_of_the_layers_is_refused(text: str) -> None:
    """By weights and caches alike, as long as it may be."""
    with pytest.raises(InputError, match="the layer partition"):
        stages_of(10, 2, text)
    with pytest.raises(Refusal) as caught:
        stage_bounds(10, EngineArgs(pipeline_parallel_size=2, env={"VLLM_PP_LAYER_PARTITION": text}))
    assert caught.value.message == "10 layers do not make 2 pipeline stages"
    assert caught.value.fix == f"leave out VLLM_PP_LAYER_PARTITION={text[:40]}"
    with pytest.raises(InputError, match=r"^SGLANG_PP_LAYER_PARTITION="):
        pipeline_stages(QWEN._replace(layers="sa" * 5), ServerArgs(pp_size=2, env={"SGLANG_PP_LAYER_PARTITION": text}))


@pytest.mark.parametrize("text", ["4,6", " 4 , 6 ", "4, 6"])
def test_a_partition_by_hand_is_taken_as_it_is(text: str) -> None:
    asked = EngineArgs(pipeline_parallel_size=2, env={"VLLM_PP_LAYER_PARTITION": text})
    assert stages_of(10, 2, text) == stage_bounds(10, asked) == ((0, 4), (4, 10))
    ours = ServerArgs(pp_size=2, env={"SGLANG_PP_LAYER_PARTITION": text})
    stages = pipeline_stages(QWEN._replace(layers="sa" * 5), ours)
    assert stages == ((0, 4, 2, 2, 0), (4, 10, 3, 3, 0))
    assert pipeline_stages(QWEN._replace(layers="sa" * 5), ours.changed(pp_size=1)) == ((0, 10, 5, 5, 0),)


@given(st.integers(1, 200), st.integers(1, 40))
def test_weights_and_caches_are_cut_into_the_same_stages(layers: int, stages: int) -> None:
    asked = EngineArgs(pipeline_parallel_size=stages)
    if stages > layers:
        with pytest.raises(Refusal) as caught:
            stage_bounds(layers, asked)
        assert caught.value.fix == f"write -pp {layers} or less"
    else:
        assert stage_bounds(layers, asked) == stages_of(layers, stages)
        row = "s" * layers
        ours = pipeline_stages(QWEN._replace(layers=row), ServerArgs(pp_size=stages))
        assert [(one.first, one.end) for one in ours] == list(stages_of(layers, stages, last_first=True))


@pytest.mark.parametrize(
    ("units", "repeated", "ranks", "share"),
    [
        (8, True, 2, 512),
        (8, True, 8, 128),
        (8, True, 16, 128),
        (8, True, 64, 128),
        (8, False, 8, 128),
        (0, False, 4, 256),
    ],
)
def test_heads_are_shared_and_those_that_are_fewer_than_the_ranks_copied(
    units: int, repeated: bool, ranks: int, share: int
) -> None:
    assert Part(1024, units, repeated).share(ranks, "x") == share


@pytest.mark.parametrize(
    ("units", "repeated", "ranks", "counted"),
    [(8, True, 3, "8 heads"), (8, True, 12, "8 heads"), (8, False, 16, "8 heads")],
)
def test_heads_that_ranks_do_not_divide_are_refused(units: int, repeated: bool, ranks: int, counted: str) -> None:
    with pytest.raises(ShardingError, match=f"(?m)^--tp {ranks} does not divide the {counted} of x$"):
        Part(1024, units, repeated).share(ranks, "x")


@pytest.mark.parametrize(
    ("height", "ranks", "multiple", "rows"),
    [
        (1000, 1, 64, 1024),
        (1024, 8, 64, 128),
        (1025, 8, 64, 136),
        (1000, 3, 64, 384),
        (1152, 3, 64, 384),
        (1153, 5, 64, 256),
    ],
)
def test_a_vocabulary_is_rounded_up_to_64_and_to_the_ranks(height: int, ranks: int, multiple: int, rows: int) -> None:
    """To 64 where that divides, else to 64 for each rank."""
    widths = Widths({"embedding": ranks}, vocabulary_multiple=multiple)
    tensor = Tensor("embed_tokens", "embedding", (Part(height),), 16, over="embedding")
    assert widths.local(tensor) == Local(1, (rows,), 16)


def test_experts_are_shared_out_first_and_each_is_cut_then() -> None:
    tensor = linear("gate_up_proj", "experts", (Part(256), Part(256)), 64, "rows", "experts")._replace(experts=10)
    assert Widths({}, 2, 4).local(tensor) == Local(5, (64, 64), 64)
    assert Widths({}, 1, 4).local(tensor._replace(cut="columns")) == Local(10, (256, 256), 16)
    assert Widths({}, 4, 1, whole_experts=False).local(tensor) == Local(3, (256, 256), 64)
    with pytest.raises(ShardingError, match="--ep 4 does not divide 10 experts"):
        Widths({}, 4, 1).local(tensor)
    assert Widths({"mlp": 4}).local(PLAIN) == Local(1, (64,), 16)
    assert Widths({"mlp": 4}).local(PLAIN._replace(cut="rows")) == Local(1, (16,), 64)
    assert Widths({"mlp": 4}).local(PLAIN._replace(cut="")) == Local(1, (64,), 64)


@pytest.mark.parametrize(("size", "units", "ranks", "share"), [(1152, 16, 16, 72), (1152, 16, 5, 288), (100, 0, 8, 13)])
def test_a_padded_kind_is_rounded_up_to_whole_heads_of_every_rank(
    size: int, units: int, ranks: int, share: int
) -> None:
    """16 heads of 72 on five ranks are 20: four each."""
    tensor = Tensor("qkv", "vision", (Part(size, units),), 8, "rows", "vision")
    assert Widths({"vision": ranks}, padded=frozenset({"vision"})).local(tensor) == Local(1, (share,), 8)


@pytest.mark.parametrize(
    ("model", "width", "given"),
    [("kimi-k3", 0, 0), ("nemotron-h-8b", 0, 0), ("deepseek-v3", 64, 64), ("llama-3-8b", 128, 32),
     ("codestral-mamba-7b", 0, 0)],
)  # fmt: skip
def test_one_table_of_angles_serves_all_layers(model: str, width: int, given: int) -> None:
    """As wide as the rotary part, which a config may say; none for classes without rotary positions or attention."""
    found = load_model(model)
    asked = replace(parameters(found), rotary=0)
    assert rope_bytes(found, asked, 1000, 4) == 1000 * width * 4
    assert rope_bytes(found, replace(asked, rotary=32), 10, 2) == 10 * given * 2


def test_mla_layers_keep_their_up_projection_once_more() -> None:
    """Its share of the ranks in each of the attention layers; no such layer without latent attention."""
    found = absorbed(K3, 4)
    assert len(found.layers) == K3.attention_layers
    assert absorbed(K3, 1).elements == 4 * found.elements > 0
    assert absorbed(QWEN, 1) == Absorbed(0, ())


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_ranks_may_not_cut_a_block_of_fp8(ranks: int) -> None:
    """Experts of 512 rows on 8 ranks are 64; shared out whole they are not cut."""
    quantized = Quantization("fp8", FP8_BLOCK, ("attn", "linear_attn", "self_attn", "shared_expert"))
    found = parameters(QWEN)
    widths = Widths(dict.fromkeys(("attention", "mlp", "shared"), 1), 1, ranks)
    if ranks > 4:
        with pytest.raises(
            ShardingError, match=rf"(?m)^--tp {ranks} cuts .*, which blocks of 128 do not divide$"
        ) as caught:
            check_split(found, quantized, widths, ranks, "--ep")
        assert caught.value.fix == "--ep"
    else:
        check_split(found, quantized, widths, ranks, "--ep")
    for other in (None, Quantization("int4", integers(4, 128)), Quantization("mixed", None)):
        check_split(found, other, widths, ranks, "--ep")


ENGINES: dict[str, tuple[ModuleType, Any, list[dict[str, Any]]]] = {
    "sglang": (sglang, ServerArgs, [{}, {"tp_size": 8, "dp_size": 2, "enable_dp_attention": True, "ep_size": 4}]),
    "vllm": (vllm, EngineArgs, [{}, {"tensor_parallel_size": 8, "enable_expert_parallel": True}]),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_follow_from_no_argument_that_is_not_named(engine: str) -> None:
    """What is weighed once is kept by the arguments of DECIDED_BY: placing reads those, variables, and no more."""
    module, arguments, cases = ENGINES[engine]
    named = {*module.DECIDED_BY.__reduce__()[1], "env", "attn_tp_size", "speculative", "capability", "changed"}
    for name in ("qwen3.5-35b-a3b", "kimi-k3", "nemotron-h-8b", "ling-2.6-flash", "llama-3-8b"):
        for flags in cases:
            read = set[str]()

            class Reading:
                def __init__(self, args: Any, read: set[str] = read) -> None:
                    self._args, self._read = args, read

                def __getattr__(self, name: str) -> Any:
                    self._read.add(name)
                    return getattr(self._args, name)

            model = load_model(name)
            module.placement(model, Reading(arguments(**flags)))(parameters(model), None)
            module.dtype_of(model, Reading(arguments(**flags)))
            assert read <= named, sorted(read - named)


def test_a_partition_says_nothing_of_a_model_in_one_stage() -> None:
    """SGLang reads SGLANG_PP_LAYER_PARTITION where there are stages to part."""
    model = QWEN._replace(layers="sa" * 5)
    (whole,) = pipeline_stages(model, ServerArgs())
    for text in ("3,7", "10", "nothing"):
        assert pipeline_stages(model, ServerArgs(env={"SGLANG_PP_LAYER_PARTITION": text})) == (whole,)
