"""Which part of the weights does a rank hold under SGLang, and what does it add to them?

    attention, mixers / a    dense MLP, shared experts / tp    experts / ep, each / (tp / ep)    a = tp / dp attention

Latent down projections, norms and routers are whole on every rank. Added after loading: two absorbed copies of an MLA
layer's up projection, and the table of rotary angles in fp32; and, since SGLang counts weights by the driver's free
memory, libraries loaded on first use, rounding and NCCL buffers (LOADED_BESIDE, an estimate). The draft layers are
loaded with speculation alone; their own embedding and head, which the log counts, are given back.
Mirrors SGLang layers/linear.py, layers/vocab_parallel_embedding.py, models/*.py, distributed/utils.py (0.5.23).
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.tensors import Widths
from hybridcalc.architecture.weights import Parameters
from hybridcalc.engines.placement import Extra, Placement, absorbed, check_split, rope_bytes, stages_of
from hybridcalc.engines.sglang.config import OWN_DRAFT_CELL, ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.errors import InputError

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization

EMBEDDING_WHOLE = ("Qwen3_5", "BailingMoeV2_5", "BailingMoeV3")
"""Classes that keep the embedding whole under data-parallel attention."""
ROUTER_IN_FP32 = ("NemotronH", "Bailing")
OWN_CHECKPOINT = ("EAGLE3", "STANDALONE", *OWN_DRAFT_CELL, "NGRAM")
"""Algorithms whose draft is no layer of the model's own checkpoint."""


DECIDED_BY = attrgetter(
    "tp_size", "pp_size", "ep_size", "attn_dp_size", "moe_dense_tp_size", "moe_a2a_backend", "enable_dp_lm_head",
    "mm_enable_dp_encoder", "quantization", "speculative_algorithm", "engine_version", "platform",
)  # fmt: skip
"""The arguments that weights follow from."""
LOADED_BESIDE = 107_374_182, 214_748_364
"""Bytes that the driver's free memory loses beside tensors while they load, on one rank and on several: 0.1, 0.2 GiB,
the middle of what boots print beyond their tensors.
"""


def dtype_of(model: Architecture, args: ServerArgs) -> str:
    """The dtype of what is not quantised."""
    return model.model_dtype


def placement(model: Architecture, args: ServerArgs) -> "Callable[[Parameters, Quantization | None], Placement]":
    """Where SGLang puts the tensors of a model. Raises InputError for ranks that do not divide each other."""
    tp, attention, ep = args.tp_size, args.attn_tp_size, args.ep_size
    if tp % ep:
        raise InputError(f"--ep-size {ep} does not divide --tp-size {tp}", fix="experts are shared among the tp ranks")
    spread = args.attn_dp_size > 1
    ranks = {
        "attention": attention,
        "mlp": 1 if args.moe_dense_tp_size == 1 else tp,
        "shared": 1 if args.moe_a2a_backend not in (None, "none") else tp,
        "vision": 1 if args.mm_enable_dp_encoder else tp,
        "embedding": 1 if spread and model.architecture.startswith(EMBEDDING_WHOLE) else attention,
        "head": attention if args.enable_dp_lm_head else tp,
    }
    widths = Widths(ranks, ep, tp // ep, frozenset({"vision"}))
    given = args.env.get("SGLANG_PP_LAYER_PARTITION", "")
    stages = stages_of(model.num_layers, args.pp_size, given, last_first=True)
    wide = {"router"} if model.architecture.startswith(ROUTER_IN_FP32) else set()
    if model.architecture.startswith(rules_for(args.engine_version)[0].head_in_fp32):
        wide.add("lm_head")
    algorithm = (args.speculative_algorithm or "").upper()
    return partial(
        _placed,
        model=model,
        base=Placement(
            widths,
            stages,
            draft=args.speculative and algorithm not in OWN_CHECKPOINT,
            tables=args.platform != "cuda",
            wide=frozenset(wide),
        ),
        attention=attention,
        tp=tp,
    )


def _placed(
    found: Parameters,
    quantization: "Quantization | None",
    *,
    model: Architecture,
    base: Placement,
    attention: int,
    tp: int,
) -> Placement:
    check_split(found, quantization, base.widths, tp, f"--ep {tp}")
    copies = absorbed(model, attention)
    rows = model.max_context or 0
    beside = LOADED_BESIDE[0 if tp == len(base.stages) == 1 else 1]
    extras = (
        Extra("libraries and rounding", beside, "an estimate, 0.0 to 0.3 GiB: what the driver loses beside tensors"),
        Extra("absorbed kv_b_proj", copies.elements * 2, "MLA keeps two copies of its up projection", copies.layers),
        Extra("rotary table", rope_bytes(model, found, rows, 4), f"{rows:,} positions in fp32"),
    )
    return base._replace(extras=extras)
