"""GGUF files as tests need them, written by hand: metadata, a table of tensors, and as much data as is wanted."""

from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Any

ALIGNMENT = 32


def text(value: str) -> bytes:
    return pack("<Q", len(value.encode())) + value.encode()


def value(held: Any) -> bytes:
    """A typed value: a bool, an int (uint32; int32 in a list), a float, a text, or a list of one of them."""
    if isinstance(held, bool):
        return pack("<I?", 7, held)
    if isinstance(held, int):
        return pack("<II", 4, held)
    if isinstance(held, float):
        return pack("<If", 6, held)
    if isinstance(held, str):
        return pack("<I", 8) + text(held)
    inner = [pack("<Ii", 5, each) if type(each) is int else value(each) for each in held]
    kind = inner[0][:4] if inner else pack("<I", 4)
    return pack("<I", 9) + kind + pack("<Q", len(inner)) + b"".join(each[4:] for each in inner)


def header(metadata: dict[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], int]], sizes: list[int]) -> bytes:
    """A header: ``tensors`` have dimensions, innermost first, and a type; ``sizes`` are the bytes of their data."""
    parts = [pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    parts += [text(key) + value(held) for key, held in metadata.items()]
    offset = 0
    for (name, (shape, kind)), size in zip(tensors.items(), sizes, strict=True):
        parts.append(text(name) + pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return b"".join(parts)


QWEN35_27B: dict[str, Any] = {
    "general.architecture": "qwen35",
    "general.name": "Qwen3.5-27B",
    "qwen35.block_count": 65,
    "qwen35.nextn_predict_layers": 1,
    "qwen35.context_length": 262144,
    "qwen35.embedding_length": 5120,
    "qwen35.attention.head_count": 24,
    "qwen35.attention.head_count_kv": 4,
    "qwen35.attention.key_length": 256,
    "qwen35.attention.value_length": 256,
    "qwen35.full_attention_interval": 4,
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.inner_size": 6144,
    "qwen35.ssm.state_size": 128,
    "qwen35.ssm.time_step_rank": 48,
    "qwen35.ssm.group_count": 16,
}
"""The sizes of Qwen3.5-27B, with its draft layer."""


def qwen35_27b(path: Path) -> Path:
    """A header of Qwen3.5-27B: its sizes, and two tensors."""
    tensors = {"token_embd.weight": ((5120, 248320), 12), "output_norm.weight": ((5120,), 0)}
    path.write_bytes(header(QWEN35_27B, tensors, [5120 * 248320 // 256 * 144, 5120 * 4]))
    return path
