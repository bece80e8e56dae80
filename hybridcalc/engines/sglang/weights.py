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

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.tensors import Local, Tensor, Widths
from hybridcalc.architecture.weights import Parameters, config_word
from hybridcalc.engines.placement import (
    ALL,
    Absorbed,
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
from hybridcalc.engines.sglang import OWN_DRAFT_CELL, ServerArgs, is_set
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.errors import InputError

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization, Scheme

EMBEDDING_WHOLE = ("Qwen3_5", "BailingMoeV2_5", "BailingMoeV3")
"""Classes that keep the embedding whole under data-parallel attention."""
EMBEDDING_TOLD = ("Deepseek", "Glm5Next", "KimiK3")
"""Classes that keep it whole with SGLANG_ENABLE_EMBED_REPLICATION."""
DENSE_WHOLE = ("Deepseek", "Glm5Next", "Bailing")
"""Classes whose dense MLPs are whole with --moe-dense-tp-size 1."""
HOPPER = (9, 0)
MXFP4_PADS = (64, 1), (128, 256)
"""What an expert's width and the hidden size are rounded up to by Triton, and by FlashInfer on Blackwell."""
ROUTER_IN_FP32 = ("NemotronH", "Bailing")
OWN_CHECKPOINT = ("EAGLE3", "STANDALONE", *OWN_DRAFT_CELL, "NGRAM")
"""Algorithms whose draft is no layer of the model's own checkpoint."""


DECIDED_BY = attrgetter(
    "tp_size", "pp_size", "ep_size", "attn_dp_size", "moe_dense_tp_size", "moe_a2a_backend", "enable_dp_lm_head",
    "mm_enable_dp_encoder", "quantization", "speculative_algorithm", "engine_version", "platform",
    "ep_num_redundant_experts", "gpu_capability", "context_length",
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
    ranks = {
        "attention": attention,
        "mlp": 1 if args.moe_dense_tp_size == 1 and model.architecture.startswith(DENSE_WHOLE) else tp,
        "shared": 1 if args.moe_a2a_backend not in (None, "none") else tp,
        "vision": 1 if args.mm_enable_dp_encoder else tp,
        "embedding": 1 if _whole_embedding(model, args) else attention,
        "head": attention if args.enable_dp_lm_head else tp,
    }
    rules = rules_for(args.engine_version)[0]
    widths = Widths(
        ranks,
        ep,
        tp // ep,
        frozenset({"vision"}),
        redundant=args.ep_num_redundant_experts,
        pads_vocabulary=rules.vocabulary_padded or args.platform == "cpu",
    )
    given = args.env.get("SGLANG_PP_LAYER_PARTITION", "")
    stages = stages_of(model.num_layers, args.pp_size, given, last_first=True)
    narrow = config_word(model, "router_dtype") in ("bf16", "bfloat16")
    wide = {"router"} if model.architecture.startswith(ROUTER_IN_FP32) and not narrow else set()
    if model.architecture.startswith(rules.head_in_fp32):
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
        args=args,
    )


def _whole_embedding(model: Architecture, args: ServerArgs) -> bool:
    """Whether every rank keeps all of the embedding: some classes under data-parallel attention, others when told."""
    told = is_set(args.env.get("SGLANG_ENABLE_EMBED_REPLICATION")) and model.architecture.startswith(EMBEDDING_TOLD)
    return told or (args.attn_dp_size > 1 and model.architecture.startswith(EMBEDDING_WHOLE))


def _placed(
    found: Parameters, quantization: "Quantization | None", *, model: Architecture, base: Placement, args: ServerArgs
) -> Placement:
    tp, attention = args.tp_size, args.attn_tp_size
    check_split(found, quantization, base.widths, tp, f"--ep {tp}")
    copies = absorbed(model, attention)
    rows = max(model.max_context or 0, args.context_length or 0)
    beside = LOADED_BESIDE[0 if tp == len(base.stages) == 1 else 1]
    each = _absorbed_bytes(model, quantization, copies)
    extras = (
        Extra("libraries and rounding", beside, "an estimate, 0.0 to 0.3 GiB: what the driver loses beside tensors"),
        Extra("absorbed kv_b_proj", copies.elements * each, "MLA keeps two copies of its up projection", copies.layers),
        Extra("rotary table", rope_bytes(model, found, rows, 4), f"{rows:,} positions in fp32"),
    )
    known = args.capability or HOPPER
    return base._replace(
        extras=extras,
        matrix=partial(_on_card, marlin=(8, 0) <= known < (8, 9), blackwell=known >= (10, 0)),
        plain=frozenset({ALL}) if _plain_draft(quantization) else frozenset(),
    )


def _plain_draft(quantization: "Quantization | None") -> bool:
    """Whether draft layers are in 16 bits: ModelOpt's checkpoints have them so, unless a list names one of them."""
    if quantization is None or not quantization.method.startswith("modelopt"):
        return False
    named = quantization.named
    return not any(name.startswith("mtp.") for name in named) if named is not None else "nvfp4" in quantization.method


def _absorbed_bytes(model: Architecture, quantization: "Quantization | None", copies: Absorbed) -> int:
    """Bytes an element of the copies of an up projection: fp8 in blocks of 128 becomes 16 bits, other fp8 does not,
    nor any of Ling-3.0.
    """
    if quantization is None or not copies.layers:
        return 2
    scheme = next(iter(quantization.of_layers(copies.name, copies.layers[:1])))
    if scheme is None or scheme.bits != 8:
        return 2
    return 2 if scheme.block == (128, 128) and not model.architecture.startswith("BailingMoeV3") else 1


def _on_card(scheme: "Scheme", tensor: Tensor, local: Local, *, marlin: bool, blackwell: bool) -> int:
    """As it is stored; padded or in another order where kernels of the card want it so."""
    if marlin and scheme.block[0] > 1:
        return scale_a_row(scheme, local)
    if scheme.name == "mxfp4" and tensor.experts:
        return padded_experts(scheme, tensor, local, *MXFP4_PADS[blackwell])
    size = as_stored(scheme, tensor, local)
    rows, columns = sum(local.rows), local.columns
    if tensor.experts or scheme.name not in ("mxfp8", "nvfp4"):
        return size
    if scheme.name == "mxfp8":
        return size + rows * -(-columns // 32)
    return size + (rows * -(-columns // 16) if rows % 128 or columns % 64 else 0)  # else it is its own copy
