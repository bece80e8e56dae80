"""GGUF headers: what is read of them, what is refused, and that it is what the package `gguf` reads."""

import os
import tracemalloc
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from gguf_files import QWEN35_27B, header, qwen35_27b, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.architecture.gguf import PIECES, TYPES, LongArray, read_header
from hybridcalc.errors import ConfigError, HybridcalcError, InputError, NotModelled

TENSORS = {"a.weight": ((64, 4), 0), "b.weight": ((256, 8), 14)}
SIZES = [1024, 1680]


def write(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int]] | None = None) -> Path:
    path.write_bytes(header(metadata, tensors or {}, [0] * len(tensors or {})))
    return path


def test_metadata_and_tensors(tmp_path: Path) -> None:
    """Values of every kind, long arrays counted, tensors with their bytes by type."""
    metadata = {
        "general.architecture": "llama",
        "flag": True,
        "half": 0.5,
        "list": [7] * 4096,
        "long": [7] * 4097,
        "words": ["a", "b"],
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(header(metadata, TENSORS, SIZES))
    found = read_header(path)
    assert found.metadata == {**metadata, "long": LongArray(4097), "words": LongArray(2)}
    assert [(each.name, each.shape, each.bytes) for each in found.tensors] == [
        ("a.weight", (64, 4), 1024),
        ("b.weight", (256, 8), 1680),
    ]


def test_a_header_larger_than_the_first_piece(tmp_path: Path) -> None:
    """A vocabulary of texts lies before the tensors: it is walked over, and the table behind it is read."""
    path = tmp_path / "m.gguf"
    words = ["x" * 40] * (PIECES[0] // 40)
    path.write_bytes(header({"general.architecture": "llama", "tokenizer.ggml.tokens": words}, TENSORS, SIZES))
    found = read_header(path)
    assert found.vocabulary == len(words) and len(found.tensors) == 2


def test_a_model_in_several_files(tmp_path: Path) -> None:
    for number in range(2):
        metadata = {"split.count": 2, "split.no": number} | ({} if number else QWEN35_27B)
        name = f"t{number}.weight"
        data = header(metadata, {name: ((64, 4), 0)}, [1024])
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(data)
    for number in range(2):
        found = read_header(tmp_path / f"m-0000{number + 1}-of-00002.gguf")
        assert found.architecture == "qwen35"
        assert [tensor.name for tensor in found.tensors] == ["t0.weight", "t1.weight"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridcalc.architecture.gguf.MOST_TENSORS", 1)
        with pytest.raises(InputError, match="files of more than 1 tensors"):
            read_header(tmp_path / "m-00001-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(InputError, match=r"m-00002-of-00002\.gguf: no such file, and the model is in 2 of them"):
        read_header(tmp_path / "m-00001-of-00002.gguf")


def test_the_architecture_is_that_of_the_preset(tmp_path: Path) -> None:
    found, preset = load_model(str(qwen35_27b(tmp_path / "q.gguf"))), load_model("qwen3.5-27b")
    sizes = ("draft_layers", "max_context", "hidden_size", "window", "window_attention")
    for name in ("architecture", "layers", "attention", "state", *sizes):
        assert getattr(found, name) == getattr(preset, name), name


GQA = {"head_count": 4, "head_count_kv": 2, "key_length": 32, "value_length": 32}


def keys(kind: str, **values: Any) -> dict[str, Any]:
    sizes = {"block_count": 4, "embedding_length": 64, **{f"attention.{name}": size for name, size in GQA.items()}}
    return {"general.architecture": kind, **{f"{kind}.{name}": held for name, held in {**sizes, **values}.items()}}


@pytest.mark.parametrize(
    ("metadata", "error", "said"),
    [
        ({}, InputError, "names no general.architecture"),
        (keys("clip"), NotModelled, "GGUF of 'clip'"),
        (keys("llama", block_count=0), ConfigError, "llama.block_count 0 is no number of layers"),
        *(
            (keys("llama", embedding_length=size), ConfigError, r"llama.embedding_length .* is no size")
            for size in (True, "4", 2**31)
        ),
        (keys("mamba"), ConfigError, "mamba.ssm.inner_size is missing"),
        (keys("jamba", **{"attention.head_count_kv": [0, 2]}), ConfigError, "has 2 sizes for 4 layers"),
        (keys("llama", **{"attention.head_count_kv": [1, 2, 1, 2]}), NotModelled, r"layers of \[1, 2\] KV heads"),
        (keys("llama", **{"attention.sliding_window": 512}), NotModelled, "a window of 512 in llama"),
        (keys("qwen35", full_attention_interval=0), ConfigError, "full_attention_interval is 0"),
        (
            keys("qwen35", **{"attention.recurrent_layers": [True, False, True]}),
            ConfigError,
            "qwen35.attention.recurrent_layers names 3 of 4 layers",
        ),
    ],
)
def test_what_is_no_model(tmp_path: Path, metadata: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        load_model(str(write(tmp_path / "m.gguf", metadata)))


@pytest.mark.parametrize(("kernel", "columns"), [(4, 3), (1, 0)])
def test_embeddings_of_layers_keep_the_columns_before_a_token(tmp_path: Path, kernel: int, columns: int) -> None:
    """Of 2 layers, n-grams of 3 x 4 streams x 64 values; a kernel of one token keeps none."""
    sizes = {"ple.layers": [1, 3], "ple.ngram_size": 3, "hyper_connection.count": 4, "ple.conv_kernel": kernel}
    model = load_model(str(write(tmp_path / "m.gguf", keys("llama", **sizes))))
    assert model.ple_conv == (2, 768, columns)
    assert load_model(str(write(tmp_path / "n.gguf", keys("llama")))).ple_conv is None


BOMB = pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("k")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ends too early"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (pack(">4sIQQ", b"GGUF", 3, 0, 0), "version 50331648 of GGUF"),
        (pack("<4sIQQ", b"GGUF", 3, 2**40, 0), "a GGUF header of 0 keys and 1,099,511,627,776 tensors"),
        (pack("<4sIQQ", b"GGUF", 3, 2**18, 2**14), "ends too early"),
        (pack("<4sIQQ", b"GGUF", 3, 2**18 + 1, 0), "a GGUF header of 0 keys and 262,145 tensors"),
        (pack("<4sIQQ", b"GGUF", 3, 0, 2**14 + 1), "a GGUF header of 16,385 keys and 0 tensors"),
        (BOMB + pack("<IQ", 8, 2**60), "a text of 1,152,921,504,606,846,976 bytes"),
        (BOMB + pack("<IIQ", 9, 4, 2**60), "an array of 1,152,921,504,606,846,976 values"),
        (BOMB + pack("<IIQ", 9, 9, 1), "an array of unknown type 9"),
        (BOMB + pack("<I", 99), "a value of unknown type 99"),
        (pack("<4sIQQ", b"GGUF", 3, 0, 2) + (text("k") + pack("<II", 4, 1)) * 2, "key 'k' appears twice"),
        (pack("<4sIQQ", b"GGUF", 3, 1, 0) + text("t") + pack("<I", 5), "a tensor of 5 dimensions"),
        (pack("<4sIQQ", b"GGUF", 3, 1, 0) + text("t") + pack("<IQIQ", 1, 64, 77, 0), "a tensor of unknown type 77"),
        (pack("<4sIQQ", b"GGUF", 3, 1, 0) + text("t") + pack("<IQIQ", 1, 33, 2, 0), "rows of 33 are no blocks of 32"),
        (pack("<4sIQQ", b"GGUF", 3, 1, 0) + pack("<Q", 1) + b"\xff" + pack("<IQIQ", 1, 64, 0, 0), "no text"),
    ],
)
def test_hostile_headers_are_refused_in_a_line(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert said in caught.value.message and "\n" not in caught.value.message and "m.gguf" in caught.value.message


@pytest.mark.parametrize("good", [True, False])
def test_a_file_is_read_no_further_than_a_header_may_reach(
    tmp_path: Path, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file of 10 GiB: of a good header a piece is read, of one that never ends the largest piece at most."""
    monkeypatch.setattr("hybridcalc.architecture.gguf.PIECES", (2**16, 2**20))
    path = tmp_path / "m.gguf"
    endless = pack("<4sIQQ", b"GGUF", 3, 1, 1) + text("k") + pack("<IIQ", 9, 8, 2**25)
    path.write_bytes(header(QWEN35_27B, TENSORS, SIZES) if good else endless)
    os.truncate(path, 10 * 2**30)
    tracemalloc.start()
    if good:
        assert len(read_header(path).tensors) == 2
    else:
        with pytest.raises(InputError, match="a GGUF header of more than 64 MiB"):
            read_header(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < (2**19 if good else 2**22)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, cut or added anywhere: an Architecture or an error of ours, nothing else."""
    whole = bytearray(header(QWEN35_27B, TENSORS, SIZES))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        whole = whole or bytearray(b"G")
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    said, layers = "", 0
    try:
        layers = load_model(str(path)).num_layers
    except HybridcalcError as refused:
        said = refused.message
    assert (layers > 0) != (len(said.splitlines()) == 1)


BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "F64": 64, "I8": 8, "I16": 16, "I32": 32, "I64": 64,
    "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q8_1": 10, "IQ4_NL": 4.5, "MXFP4": 4.25,
    "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_K": 9.125,
    "IQ1_S": 1.5625, "IQ1_M": 1.75, "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625, "IQ3_XXS": 3.0625,
    "IQ3_S": 3.4375, "IQ4_XS": 4.25, "TQ1_0": 1.6875, "TQ2_0": 2.0625, "NVFP4": 4.5, "Q1_0": 1.125,
}  # fmt: skip
"""Bits of a weight, as llama.cpp and its `gguf` package state them (Q8_1, which no file holds, by the package)."""


def test_a_weight_of_each_type_takes_its_bits() -> None:
    """Blocks are of 256 weights, of 32 in the older types and MXFP4, of 64 in NVFP4, of 128 in Q1_0."""
    assert {name: size * 8 / block for name, block, size in TYPES.values()} == BITS
    of_32 = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "IQ4_NL", "MXFP4"}
    others = {"NVFP4": 64, "Q1_0": 128}
    for name, block, _ in TYPES.values():
        plain = 1 if name[0] in "FIB" and not name.startswith("IQ") else 256
        assert block == (32 if name in of_32 else others.get(name, plain)), name


def test_numbers_of_every_width_are_read(tmp_path: Path) -> None:
    """Signed and unsigned from 8 to 64 bits, both floats, and a bool."""
    held = {
        0: ("B", 200),
        1: ("b", -3),
        2: ("H", 60_000),
        3: ("h", -300),
        4: ("I", 2**31),
        5: ("i", -70_000),
        6: ("f", 0.5),
        7: ("?", True),
        10: ("Q", 2**40),
        11: ("q", -(2**40)),
        12: ("d", 0.1),
    }
    entries = b"".join(text(f"k{kind}") + pack(f"<I{code}", kind, number) for kind, (code, number) in held.items())
    path = tmp_path / "m.gguf"
    named = text("general.architecture") + pack("<I", 8) + text("llama")
    path.write_bytes(pack("<4sIQQ", b"GGUF", 3, 0, len(held) + 1) + named + entries)
    found = read_header(path).metadata
    assert {name: found[name] for name in found if name[0] == "k"} == {
        f"k{kind}": number for kind, (_, number) in held.items()
    }


@pytest.mark.needs("gguf")
def test_the_types_are_those_of_the_package(tmp_path: Path) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    theirs = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert theirs == TYPES


@pytest.mark.needs("gguf")
def test_the_package_reads_the_same(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = tmp_path / "m.gguf"
    data = header(QWEN35_27B, TENSORS, SIZES)
    path.write_bytes(data + bytes(-len(data) % 32) + bytes(2 * 2048))
    ours, theirs = read_header(path), GGUFReader(path)
    assert [(each.name, each.shape, each.bytes) for each in ours.tensors] == [
        (each.name, tuple(int(size) for size in each.shape), int(each.n_bytes)) for each in theirs.tensors
    ]
    for key, held in ours.metadata.items():
        assert theirs.fields[key].contents() == held
