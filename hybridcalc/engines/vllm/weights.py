"""Which part of the weights does a rank hold under vLLM, and what does it add to them?

    attention, mixers, MLP / tp      experts / (tp x dp): each cut, or with expert parallelism shared out whole

Latent down projections, norms and routers are whole on every rank. Added after loading: the table of rotary angles in
the model's dtype, the up projection of a quantised MLA layer in 16 bits. The log's "Model loading took" has the draft
layers, but not their embedding and head, which are the target's.
Mirrors vLLM model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe/layer.py, models/*.py (0.33.0).
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.tensors import Local, Tensor, Widths
from hybridcalc.architecture.weights import Parameters
from hybridcalc.engines.placement import (
    Extra,
    Placement,
    absorbed,
    as_stored,
    check_split,
    padded_experts,
    rope_bytes,
    scale_a_row,
    stages_of,
)
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.units import is_later

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization, Scheme
    from hybridcalc.engines.weights import Held

EMBEDDING_WHOLE = ("InklingFor",)
"""Classes that keep the embedding whole on every rank."""
FP8_CARDS = (8, 9)
"""Compute capability from which a card multiplies fp8; older ones run it through Marlin."""
LAST_WITH_FOUR_TABLES = "0.30.0"
"""Release to which the rotary table of a model with video positions has four times the rows."""
MARLIN_PADS = 128, 256
"""What an expert's width and the hidden size are rounded up to by the kernels of MXFP4."""
ROCM_ROW, ROCM_PAD = 512, 256
WHOLE_GATES = ("awq", "gptq", "auto-round", "autoround")
"""Quantisation by which the two gates of Qwen3.5's mixer are whole on every rank: their kernels need 64 rows."""


DECIDED_BY = attrgetter(
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "dtype",
    "quantization", "language_model_only", "mm_encoder_tp_mode", "speculative_method",
    "gpu_capability", "engine_version", "rocm", "enable_eplb", "redundant_experts",
)  # fmt: skip
"""The arguments that weights follow from."""


def dtype_of(model: Architecture, args: EngineArgs) -> str:
    """The dtype of what is not quantised."""
    given = {"half": "float16", "float": "float32"}.get(args.dtype, args.dtype)
    return model.model_dtype if given == "auto" else given


def placement(model: Architecture, args: EngineArgs) -> "Callable[[Parameters, Quantization | None], Placement]":
    """Where vLLM puts the tensors of a model, on a card of ``gpu_capability``."""
    tp, dp = args.tensor_parallel_size, args.data_parallel_size
    ranks = dict.fromkeys(("attention", "mlp", "shared", "embedding", "head"), tp)
    if args.enable_expert_parallel and tp > 1 and dp > 1:  # each rank has tokens of its own in the experts
        ranks["shared"] = 1
    ranks["vision"] = 1 if args.mm_encoder_tp_mode == "data" else tp
    if model.architecture.startswith(EMBEDDING_WHOLE):
        ranks["embedding"] = 1
    share = tp * dp if args.enable_expert_parallel else 1
    widths = Widths(
        ranks,
        share,
        1 if args.enable_expert_parallel else tp * dp,
        frozenset({"vision"}),
        whole_experts=args.enable_eplb,
        redundant=args.redundant_experts,
        pads_vocabulary=False,
    )
    base = Placement(
        widths,
        stages_of(model.num_layers, args.pipeline_parallel_size, args.env.get("VLLM_PP_LAYER_PARTITION", "")),
        draft=(args.speculative_method or "").endswith("mtp"),  # by its own layers' number where none is given
        vision=not args.language_model_only,
        wide=frozenset({"router"}) if model.architecture.startswith(("NemotronH", "Bailing")) else frozenset(),
        cut={"fc": "rows"},
    )
    return partial(_placed, model=model, args=args, base=base)


def _placed(
    found: Parameters, quantization: "Quantization | None", *, model: Architecture, args: EngineArgs, base: Placement
) -> Placement:
    tp = args.tensor_parallel_size
    check_split(found, quantization, base.widths, tp, "--enable-expert-parallel")
    rows = (model.max_context or 0) * _tables(model, args)
    extras = [Extra("rotary table", rope_bytes(model, found, rows, 2), f"{rows:,} positions in the model's dtype")]
    copies = absorbed(model, tp)
    if (
        copies.layers
        and quantization is not None
        and quantization.of_layers(copies.name, copies.layers[:1]).keys() - {None}
    ):
        extras.append(
            Extra("kv_b_proj in 16 bits", copies.elements * 2, "a quantised MLA layer keeps it beside", copies.layers)
        )
    marlin = args.capability < FP8_CARDS
    method = quantization.method if quantization is not None else ""
    whole = frozenset({"in_proj_ba", "in_proj_b", "in_proj_a"})
    placed = base._replace(
        extras=tuple(extras),
        whole=whole if model.architecture.startswith("Qwen3_5") and method.startswith(WHOLE_GATES) else frozenset(),
        matrix=_on_rocm if args.rocm and rocm_pads(args) else _in_marlin if marlin else _on_card,
        plain=frozenset({"fc"}) if method == "modelopt nvfp4" else frozenset(),
    )
    if not args.enable_eplb:
        return placed
    from hybridcalc.engines.weights import held_by

    buffer = _experts_of_a_layer(held_by(found, quantization, placed, dtype_of(model, args)))
    return placed._replace(extras=(*extras, Extra("EPLB's buffer", buffer, "experts of a layer, as they move")))


def _experts_of_a_layer(held: "tuple[Held, ...]") -> int:
    """Bytes of the first layer's routed experts on a rank."""
    first = min((block.layers[0] for block, tensor, *_ in held if tensor.experts and block.layers), default=None)
    return sum(
        size
        for block, tensor, _, _, layers, size in held
        if tensor.experts and first in (block.layers if layers is None else layers)
    )


def rocm_pads(args: EngineArgs) -> bool:
    """Whether rows of fp8 are padded on ROCm."""
    return args.env.get("VLLM_ROCM_FP8_PADDING", "1").strip() != "0"


def _tables(model: Architecture, args: EngineArgs) -> int:
    """How many rows a position has in the rotary table: four with video positions in older releases."""
    if not (model.multimodal and model.architecture.startswith("Qwen3_5")):
        return 1
    version = args.engine_version
    return 1 if version is None or is_later(version, LAST_WITH_FOUR_TABLES) else 4


def _on_card(scheme: "Scheme", tensor: Tensor, local: Local) -> int:
    """As it is stored; MXFP4 experts are padded for their kernels."""
    if scheme.name == "mxfp4" and tensor.experts:
        return padded_experts(scheme, tensor, local, *MARLIN_PADS)
    return as_stored(scheme, tensor, local)


def _in_marlin(scheme: "Scheme", tensor: Tensor, local: Local) -> int:
    """On a card without fp8."""
    return scale_a_row(scheme, local) if scheme.block[0] > 1 else _on_card(scheme, tensor, local)


def _on_rocm(scheme: "Scheme", tensor: Tensor, local: Local) -> int:
    """On ROCm 256 bytes are added to every row of fp8 that takes a multiple of 512."""
    size = scheme.stored(local.rows, local.columns)
    padded = scheme.bits == 8 and not local.columns % ROCM_ROW and not tensor.experts
    return size + (sum(local.rows) * ROCM_PAD if padded else 0)
