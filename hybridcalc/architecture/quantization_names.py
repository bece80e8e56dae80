"""What do a value of --quantization and the name of a checkpoint say of how a model is quantised?

A value names a kind of number, and what an engine quantises on load; a name the kind alone, so that it means anything
from every linear layer to the experts.
"""

import re

from hybridcalc.architecture.quantization import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_TENSOR,
    INT8,
    MXFP4,
    MXFP8,
    NF4,
    NVFP4,
    Quantization,
    Scheme,
    integers,
)
from hybridcalc.errors import InputError, quoted

SPOKEN: dict[str, Scheme] = {
    "fp8": FP8_CHANNEL, "fp8_per_tensor": FP8_TENSOR, "fp8_per_block": FP8_BLOCK, "fp8_block": FP8_BLOCK,
    "w8a8_fp8": FP8_CHANNEL, "nvfp4": NVFP4, "modelopt_fp4": NVFP4, "modelopt": FP8_TENSOR, "modelopt_fp8": FP8_TENSOR,
    "mxfp4": MXFP4, "mxfp8": MXFP8, "w8a8_int8": INT8, "int8": INT8, "bitsandbytes": NF4, "experts_int8": INT8,
    "awq": integers(4, 128, symmetric=False), "gptq": integers(4, 128), "int4": integers(4, 128),
    "auto-round": integers(4, 128), "autoround": integers(4, 128), "compressed-tensors": integers(4, 128),
    "ptpc_fp8": FP8_CHANNEL, "fp8_e4m3": FP8_CHANNEL,
}  # fmt: skip
"""Values of --quantization, and plain words for them -> the scheme of a linear layer."""
KEPT = ("lm_head", "model.visual", "in_proj_a", "in_proj_b")
"""What is left in 16 bits where a checkpoint is quantised on load, or nothing says how it was."""


WITHOUT_LAYOUT = (
    "cpu_awq", "fp_quant", "fbgemm_fp8", "gguf", "inc", "marlin", "modelopt_mixed", "modelopt_mxfp8", "modelslim",
    "moe_wna16", "online", "petit_nvfp4", "qoq", "quark", "quark_int4fp8_moe", "quark_mxfp4", "torchao", "w4afp8",
)  # fmt: skip
"""Other values of --quantization, which say less than how a linear layer is stored."""
UNQUANTISED = ("none", "bf16", "bfloat16", "fp16", "unquant", "")


def _spoken(name: str) -> tuple[str, Scheme | None]:
    """A value of --quantization as it is looked up, and its scheme. Raises InputError for one that no engine has."""
    plain = name.strip().lower().replace("-", "_").replace("auto_round", "autoround")
    scheme = SPOKEN.get(plain) or SPOKEN.get(plain.replace("_", "-")) or SPOKEN.get(plain.removesuffix("_marlin"))
    if scheme is None and plain not in (*UNQUANTISED, *WITHOUT_LAYOUT):
        raise InputError(
            f"--quantization {quoted(name)} is not known here",
            fix=f"write {', '.join(sorted(SPOKEN)[:8])}, ... or none",
        )
    return plain, scheme


def check_quantization(name: str) -> None:
    """Raise InputError for a value of --quantization that no engine has."""
    _spoken(name)


def named_quantization(name: str) -> Quantization | None:
    """The quantisation that a launch asks for by name; None for none. Raises InputError for one without a layout."""
    plain, scheme = _spoken(name)
    if plain in UNQUANTISED:
        return None
    if scheme is None:
        raise InputError(f"--quantization {quoted(name)}: its layout is not known here", fix="give --weights SIZE")
    return Quantization(plain, scheme, KEPT, experts_only=plain in ("mxfp4", "experts_int8"))


def agrees(name: str, found: Quantization) -> bool:
    """Whether a value of --quantization may mean what a checkpoint has; False where it is another kind of number."""
    plain, scheme = _spoken(name)
    method = found.method.partition(" ")[0].replace("-", "_").replace("auto_round", "autoround")
    if scheme is None:
        return plain not in UNQUANTISED
    if found.scheme is None or (method != "modelopt" and plain.replace("-", "_").startswith(method)):
        return True
    return scheme.name.partition(" ")[0] == found.scheme.name.partition(" ")[0]


MARKED: dict[str, tuple[Scheme, Scheme]] = {
    "fp8": (FP8_TENSOR, FP8_BLOCK), "nvfp4": (NVFP4, NVFP4), "fp4": (NVFP4, NVFP4), "mxfp4": (MXFP4, MXFP4),
    "mxfp8": (MXFP8, MXFP8), "w8a8": (INT8, FP8_CHANNEL), "int8": (INT8, integers(8, 128)),
    "8bit": (INT8, integers(8, 128)), "w8a16": (INT8, integers(8, 128)),
}  # fmt: skip
"""What a name says -> the leanest and the widest scheme it may mean; any other name means four-bit integers."""


def meant_by(mark: str, *, experts: bool) -> tuple[Quantization, Quantization, Quantization]:
    """What a name may mean: every linear layer, those that releases usually quantise, and the experts or MLPs alone."""
    lean, rich = MARKED.get(mark, (integers(4, 128), integers(4, 32, symmetric=False)))
    only = "re:.*experts.*" if experts else "re:.*(mlp|feed_forward|mixer)\\..*"
    return (
        Quantization(mark, lean, head=True),
        Quantization(mark, lean, (*KEPT, "mtp.fc")),
        Quantization(mark, rich, KEPT, ((only, rich),)),
    )


def without_blocks(guessed: Quantization) -> Quantization:
    """The same modules in the layout of their kind that any ranks may cut: a scale a row."""
    only = tuple((pattern, FP8_CHANNEL) for pattern, _ in guessed.only)
    return guessed._replace(scheme=FP8_CHANNEL, only=only)


TYPE_MIXES = {
    "F32": (32.0, 32.0, 32.0), "F16": (16.0, 16.0, 16.1), "BF16": (16.0, 16.0, 16.1), "Q8_0": (8.5, 8.5, 8.7),
    "Q6_K": (6.5, 6.56, 7.2), "Q5_K_M": (5.5, 5.7, 6.3), "Q5_K_S": (5.5, 5.57, 6.1), "Q5_0": (5.5, 5.6, 6.1),
    "Q5_1": (6.0, 6.1, 6.6), "Q4_K_M": (4.5, 4.89, 5.6), "Q4_K_S": (4.5, 4.67, 5.3), "Q4_K_XL": (4.5, 5.0, 6.0),
    "Q4_0": (4.5, 4.66, 5.2), "Q4_1": (5.0, 5.1, 5.6), "IQ4_XS": (4.25, 4.46, 5.1), "IQ4_NL": (4.5, 4.67, 5.2),
    "MXFP4_MOE": (4.25, 4.6, 6.0), "Q3_K_L": (3.44, 4.3, 4.9), "Q3_K_M": (3.44, 4.0, 4.7), "Q3_K_S": (3.44, 3.64, 4.4),
    "Q3_K_XL": (3.44, 4.2, 5.0), "IQ3_M": (3.44, 3.76, 4.5), "IQ3_S": (3.44, 3.66, 4.4), "IQ3_XS": (3.06, 3.5, 4.2),
    "IQ3_XXS": (3.06, 3.25, 4.0), "Q2_K": (2.63, 3.16, 4.0), "Q2_K_S": (2.63, 2.97, 3.8), "Q2_K_XL": (2.63, 3.3, 4.3),
    "IQ2_M": (2.56, 2.93, 3.7), "IQ2_S": (2.31, 2.74, 3.5), "IQ2_XS": (2.31, 2.59, 3.3), "IQ2_XXS": (2.06, 2.38, 3.2),
    "IQ1_M": (1.75, 2.15, 3.0), "IQ1_S": (1.56, 2.0, 2.8),
}  # fmt: skip
"""Name of a type mix -> least, usual and most bits a parameter: the base type alone; a Llama-3.1-8B (the table of
llama.cpp tools/quantize); small models, of whose parameters more are embeddings and head, which larger types hold.
"""
_NAMES = "|".join(sorted(TYPE_MIXES, key=len, reverse=True))
_MIX = re.compile(rf"(?:^|[-.:_])(?:UD-)?({_NAMES})(?:[-.]|$)", re.IGNORECASE)


def mix_of(name: str) -> str | None:
    """The type mix that the name of a file or of a model ends with: Q4_K_M of ``qwen3.5-27b-Q4_K_M.gguf``."""
    found = _MIX.search(name.rpartition("/")[2])
    return found[1].upper() if found is not None else None
