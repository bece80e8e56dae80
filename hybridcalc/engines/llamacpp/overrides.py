"""Which tensors does -ot (--override-tensor) put where, by name?

    PATTERN=DEVICE,...     the first pattern that is found in a tensor's name says its device: CPU, CUDA0, ROCm1, ...

Of a GGUF header each tensor is asked for by name. A preset has those of its experts and embeddings; of the others a
pattern has to take all of a layer, or none. Mirrors what llama.cpp's help says of the flag; neither read in the
engine's source nor checked against a boot.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hybridcalc.architecture.quantization import compiled
from hybridcalc.errors import InputError, quoted
from hybridcalc.hardware import gpus_in_words

HOST = -1
"""The host, where devices are numbered."""
MOST, MOST_REPEATS = 256, 4
_CARD = re.compile(r"(?:CUDA|ROCm|Vulkan|SYCL|MUSA|HIP|Metal)([0-9]{1,3})?", re.ASCII)
_USUAL = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output", "attn_kv_a_mqa", "attn_q_norm",
    "ssm_in", "ssm_out", "ssm_conv1d", "ssm_a", "ssm_dt", "ssm_norm", "ssm_alpha", "ssm_beta", "ssm_ba",
    "post_attention_norm",
    "ffn_norm", "ffn_up", "ffn_gate", "ffn_down", "ffn_gate_inp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
    "ffn_gate_inp_shexp", "shortconv.conv", "shortconv.in_proj", "shortconv.out_proj",
)  # fmt: skip
"""Tensors of layers beside experts, as GGUF files call those of hybrids."""

EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps")

Overrides = tuple[tuple[str, int], ...]
"""Patterns, and the number of the device of each."""


class NotPlain(Exception):
    """An override whose sizes do not follow from names that are known."""


@lru_cache(maxsize=64)
def read_overrides(text: str, cards: int, *, counted: bool = False) -> Overrides:
    """The overrides of a value of -ot. Raises InputError for what is none, and for a card that is not there where they
    are ``counted``; NotPlain for a device that is not known.
    """
    found = []
    for each in text.split(",")[:MOST]:
        pattern, equals, device = each.rpartition("=")
        if not equals or not pattern:
            raise InputError(f"--override-tensor {quoted(each, 40)} names no device", fix="write PATTERN=CPU")
        if len(re.findall(r"[*+{]", pattern)) > MOST_REPEATS:
            raise InputError(f"--override-tensor {quoted(pattern, 40)} repeats too much", fix="write it plainer")
        compiled(pattern, "--override-tensor")
        card = _CARD.fullmatch(device)
        if counted and card is not None and int(card[1] or 0) >= cards:
            there = f"{gpus_in_words(cards)}, numbered from 0"
            raise InputError(f"--override-tensor {quoted(each, 40)} on {there}", fix="name a device that is there")
        number = HOST if device == "CPU" else int(card[1] or 0) if card is not None else cards
        if number >= cards:
            raise NotPlain(device)
        found.append((pattern, number))
    return tuple(found)


def device_of(name: str, overrides: Overrides) -> int | None:
    """The device that a tensor is put on; None where it stays with its layer."""
    for pattern, device in overrides:
        if compiled(pattern, "--override-tensor").search(name):
            return device
    return None


def unfound(overrides: Overrides, names: Iterable[str]) -> list[str]:
    """Patterns that are found in no tensor's name."""
    names = tuple(names)
    return [
        pattern
        for pattern, _ in overrides
        if not any(compiled(pattern, "--override-tensor").search(name) for name in names)
    ]


def names_known(layers: int, *, experts: bool) -> Iterator[str]:
    """Names of the tensors that such models have."""
    yield from ("token_embd.weight", "output.weight", "output_norm.weight")
    for layer in range(layers):
        yield from (f"blk.{layer}.{name}.weight" for name in (*_USUAL, *(EXPERTS if experts else ())))


@lru_cache(maxsize=64)
def whole_layers(layers: int, overrides: Overrides) -> dict[int, int]:
    """Layers all of whose tensors beside experts are put on one device. Raises NotPlain where some of one are."""
    found = {}
    for layer in range(layers):
        devices = {device_of(f"blk.{layer}.{name}.weight", overrides) for name in _USUAL}
        if len(devices) > 1:
            raise NotPlain(f"blk.{layer}")
        device = devices.pop()
        if device is not None:
            found[layer] = device
    return found
