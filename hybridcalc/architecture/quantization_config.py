"""How does a checkpoint say that it is quantised?

In ``quantization_config`` of its config.json, by method, or in the ``hf_quant_config.json`` that ModelOpt writes; each
method names what it leaves out in lists of its own. A method that is not known is refused, never guessed.
Mirrors the configurations of SGLang layers/quantization/*.py and vLLM model_executor/layers/quantization (0.5.23,
0.33.0): which keys are read, and in which order.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from hybridcalc.architecture.quantization import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8,
    LONGEST_PATTERN,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    Named,
    Quantization,
    Scheme,
    integers,
)
from hybridcalc.errors import InputError, quoted

MOST_NAMES = 200_000
"""Entries of a list of modules; the longest released ones name every expert of every layer."""

MODELOPT = {
    "FP8": FP8_TENSOR, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "FP8_PB_WO": FP8_BLOCK, "FP8_PB_REAL": FP8_BLOCK,
    "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "W4A8_NVFP4_FP8": NVFP4, "NVFP4_AWQ": NVFP4, "MXFP8": MXFP8,
    "MXFP4": MXFP4, "W4A8_MXFP4_FP8": MXFP4, "INT8_SQ": INT8,
}  # fmt: skip
"""ModelOpt's names of algorithms."""


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """How a checkpoint is quantised, by its config.json (with ``hf_quant_config`` in it, where that file is there).

    None for one that is not. Raises InputError for a method that is not known.
    """
    for source in (config, *(config.get(t) for t in ("text_config", "llm_config", "language_config"))):
        given = source.get("quantization_config") if isinstance(source, Mapping) else None
        if isinstance(given, Mapping):
            return _read(given)
    beside = config.get("hf_quant_config")
    if isinstance(beside, Mapping):
        inner = beside.get("quantization", beside)
        return _modelopt(inner if isinstance(inner, Mapping) else {})
    return None


def _read(given: Mapping[str, Any]) -> Quantization | None:
    method = str(given.get("quant_method") or given.get("quant_type") or "").lower().replace("_", "-")
    algorithm = given.get("quant_algo")
    if not method and algorithm is None and isinstance(given.get("quantization"), Mapping):
        return _modelopt(given["quantization"])
    if method.startswith("modelopt") or (not method and algorithm is not None):
        return _modelopt(given)
    reader = _READERS.get(method.removeprefix("intel/"))
    if reader is None:
        raise InputError(f"quantisation {quoted(method)} is not known here", fix="give --weights SIZE")
    return reader(given)


def _names(given: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The first list of names there is, bounded."""
    for key in keys:
        value = given.get(key)
        if isinstance(value, str):
            return (value[:LONGEST_PATTERN],)
        if isinstance(value, list | tuple):
            return tuple(str(item)[:LONGEST_PATTERN] for item in value[:MOST_NAMES])
    return ()


def _number(given: Mapping[str, Any], *keys: str, default: int) -> int:
    for key in keys:
        value = given.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**16:
            return value
    return default


ACT_ORDER_BYTES = 8
"""A column's group and its place among columns sorted by it, of GPTQ's activation order: two int32."""
SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")


def _fp8(given: Mapping[str, Any]) -> Quantization:
    block = given.get("weight_block_size")
    scheme = FP8_TENSOR
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and 0 < n <= 4096 for n in block):
        scheme = MXFP8 if tuple(block) == (1, 32) else FP8_BLOCK._replace(block=(block[0], block[1]))
    return Quantization("fp8", scheme, _names(given, *SKIPPED))


def _modelopt(given: Mapping[str, Any]) -> Quantization:
    algorithm = str(given.get("quant_algo") or "").upper()
    excluded = _names(given, "exclude_modules", "ignore", "modules_to_not_convert")
    listed = given.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" or (not algorithm and isinstance(listed, Mapping)):
        named = Named()
        for name, how in list((listed if isinstance(listed, Mapping) else {}).items())[:MOST_NAMES]:
            found = MODELOPT.get(str(how.get("quant_algo", "")).upper()) if isinstance(how, Mapping) else None
            if found is not None:
                named[str(name)] = found
        return Quantization("modelopt mixed", None, named=named)
    if algorithm.startswith(("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ")):
        scheme = integers(4, _number(given, "group_size", default=128))
    elif algorithm in MODELOPT:
        scheme = MODELOPT[algorithm]
    else:
        raise InputError(f"quantisation {quoted(algorithm)} of ModelOpt is not known here", fix="give --weights SIZE")
    return Quantization(f"modelopt {scheme.name}", scheme, excluded, head=True)


def _compressed(given: Mapping[str, Any]) -> Quantization:
    groups = given.get("config_groups")
    only: list[tuple[str, Scheme]] = []
    for group in list((groups if isinstance(groups, Mapping) else {}).values())[:64]:
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            continue
        scheme = _of_weights(group["weights"], str(group.get("format") or given.get("format") or ""))
        targets = _names(group, "targets") or ("Linear",)
        only += [("re:.*" if target == "Linear" else target, scheme) for target in targets]
    if not only:
        raise InputError("compressed-tensors without config_groups", fix="give --weights SIZE")
    listed = tuple(only) if {pattern for pattern, _ in only} != {"re:.*"} else ()
    leanest = sorted({scheme for _, scheme in only}, key=lambda scheme: scheme.bits)
    method = f"compressed-tensors {' and '.join(dict.fromkeys(scheme.name for scheme in leanest))}"
    return Quantization(method, only[0][1], _names(given, "ignore"), listed, head=True)


def _of_weights(weights: Mapping[str, Any], layout: str) -> Scheme:
    """A group of compressed-tensors."""
    bits, group = _number(weights, "num_bits", default=8), _number(weights, "group_size", default=0)
    strategy = str(weights.get("strategy") or ("group" if group else "tensor"))
    if weights.get("type") == "float":
        if bits == 4:
            return MXFP4 if "mxfp4" in layout or group == 32 else NVFP4
        if strategy == "block":
            return FP8_BLOCK
        return MXFP8 if group == 32 else FP8_CHANNEL if strategy == "channel" else FP8_TENSOR
    if bits == 8 and strategy == "channel":
        return INT8
    return integers(bits, group, symmetric=weights.get("symmetric") is not False)


def _packed(given: Mapping[str, Any]) -> Quantization:
    """AWQ, GPTQ and AutoRound: integers in groups, with lists of what is left out in three ways."""
    bits, group = _number(given, "bits", "w_bit", default=4), _number(given, "group_size", "q_group_size", default=128)
    method = str(given.get("quant_method", "")).lower()
    symmetric = given.get("sym") is True or (method != "awq" and given.get("sym") is not False)
    if method == "awq":
        symmetric = given.get("zero_point") is False
    skipped = list(_names(given, *SKIPPED))
    dynamic = given.get("dynamic")
    if isinstance(dynamic, Mapping):
        skipped += [f"re:{key[2:]}" for key in map(str, dynamic) if key.startswith("-:")]
    extra = given.get("extra_config")
    if isinstance(extra, Mapping):
        kept = (key for key, how in extra.items() if isinstance(how, Mapping) and _number(how, "bits", default=4) >= 16)
        skipped += [f"re:{key}" if any(letter in str(key) for letter in "*^$|(") else str(key) for key in kept]
    blocks = _names(given, "block_name_to_quantize")
    scheme = integers(bits, group, symmetric=symmetric)
    if method.startswith("gptq") and given.get("desc_act") is True and group:
        scheme = scheme._replace(order=ACT_ORDER_BYTES)
    only = tuple((f"re:.*{re.escape(name)}\\.", scheme) for text in blocks for name in text.split(",") if name.strip())
    return Quantization(f"{method} {scheme.name}", scheme, tuple(skipped), only, head=given.get("lm_head") is True)


def _bitsandbytes(given: Mapping[str, Any]) -> Quantization:
    scheme = INT8 if given.get("load_in_8bit") is True else NF4
    return Quantization("bitsandbytes", scheme, _names(given, "llm_int8_skip_modules", *SKIPPED))


def _plain(scheme: Scheme, *, experts_only: bool = False) -> "Callable[[Mapping[str, Any]], Quantization]":
    def read(given: Mapping[str, Any]) -> Quantization:
        skipped = _names(given, *SKIPPED)
        return Quantization(scheme.name, scheme, skipped, experts_only=experts_only)

    return read


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "fp8": _fp8, "compressed-tensors": _compressed, "awq": _packed, "gptq": _packed, "gptq-marlin": _packed,
    "auto-round": _packed, "awq-marlin": _packed, "bitsandbytes": _bitsandbytes, "fbgemm-fp8": _plain(FP8_CHANNEL),
    "mxfp4": _plain(MXFP4, experts_only=True), "mxfp8": _plain(MXFP8), "w8a8-fp8": _plain(FP8_CHANNEL),
    "w8a8-int8": _plain(INT8), "ptpc-fp8": _plain(FP8_CHANNEL),
}  # fmt: skip
"""quant_method -> its reader."""
