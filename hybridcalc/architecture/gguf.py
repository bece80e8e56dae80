"""What does the header of a GGUF file say: its metadata and the table of its tensors, without their data?

    "GGUF" version tensors keys | key type value ... | name dimensions type offset ...      little-endian

Read is what lies before the data, at most LARGEST_HEADER of it: first a small piece, then larger ones until the table
is whole, so that a header of a few KB costs a few KB. Long arrays (a vocabulary) are counted, not kept. A model in
several files is read from all their headers. Source: ggml/include/gguf.h, ggml/src/ggml.c type_traits (b11549).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from struct import Struct, error
from typing import Any, NamedTuple

from hybridcalc.errors import InputError, printable, quoted

LARGEST_HEADER = 64 * 2**20
PIECES = (2**18, 2**22, 2**24, LARGEST_HEADER)
"""Bytes that are read, until one piece holds the whole header: vocabularies take 2 to 30 MiB of it."""
MOST_KEYS, MOST_TENSORS, MOST_FILES = 2**14, 2**18, 512
MOST_KEPT = 4096
"""Values of an array that are kept; of a longer one the count is."""
LONGEST_KEY, MOST_DIMENSIONS, LARGEST_SIZE = 2**16, 4, 2**50

TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Type of a tensor -> its name, the elements of a block and the bytes of one."""

_NUMBER = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"), 5: Struct("<i"),
    6: Struct("<f"), 7: Struct("<?"), 10: Struct("<Q"), 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
_BLOCKS = {kind: block for kind, (_, block, _) in TYPES.items()}
_STRING, _ARRAY = 8, 9
_OPENS = Struct("<4sIQQ")
_LENGTH, _KIND, _LIST = Struct("<Q"), Struct("<I"), Struct("<IQ")
_TENSOR = tuple(Struct(f"<{dimensions}QIQ") for dimensions in range(MOST_DIMENSIONS + 1))
_SPLIT = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf$", re.IGNORECASE)


class LongArray(NamedTuple):
    """An array that is not kept: how many values it has."""

    values: int


class Tensor(NamedTuple):
    """One tensor: its dimensions, the innermost first, its type, and where its data lie behind the header."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def bytes(self) -> int:
        """Bytes of its data: rows in whole blocks."""
        _, block, size = TYPES[self.type]
        elements = 1
        for length in self.shape:
            elements *= length
        return elements // block * size

    @property
    def parameters(self) -> int:
        """Its elements."""
        elements = 1
        for length in self.shape:
            elements *= length
        return elements


class Header(NamedTuple):
    """Metadata and tensors of a model, over all its files."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """What llama.cpp calls the kind of model. Raises InputError where it is not named."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise InputError("a GGUF file that names no general.architecture")
        return name

    @property
    def vocabulary(self) -> int:
        """Tokens of the vocabulary; 0 where there is none."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return tokens.values if isinstance(tokens, LongArray) else len(tokens) if isinstance(tokens, list) else 0


class _ShortError(Exception):
    """The piece of the file that was read ends inside the header."""


def read_header(path: Path) -> Header:
    """The header of a model: of one file, or of all files of a split one. Raises InputError for what is none."""
    metadata, tensors = _read(path)
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        own, tensors = tensors, []
        for part in _parts(path, count):
            tensors += _read(part)[1] if part != path else own
            if len(tensors) > MOST_TENSORS:
                raise InputError(f"{printable(path.name, 80)}: files of more than {MOST_TENSORS:,} tensors")
        if metadata.get("split.no", 0) != 0:
            metadata = _read(next(_parts(path, count)))[0]
    return Header(metadata, tuple(tensors))


def _parts(path: Path, count: int) -> Iterator[Path]:
    """All files of a split model, in order."""
    found = _SPLIT.search(path.name)
    if found is None or int(found[2]) != count or count > MOST_FILES:
        raise InputError(
            f"{printable(path.name, 80)}: one of {count:,} files, and not named so", fix="keep their names"
        )
    for number in range(1, count + 1):
        part = path.with_name(f"{path.name[: found.start()]}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise InputError(f"{printable(part.name, 80)}: no such file, and the model is in {count} of them")
        yield part


def _read(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    where = printable(str(path), 120)
    try:
        if not path.is_file():
            raise InputError(f"{where}: not a regular file")
        with path.open("rb") as stream:
            data = b""
            for most in PIECES:
                data += stream.read(most - len(data))
                try:
                    return _parse(data)
                except _ShortError:
                    if len(data) < most:
                        raise InputError(f"{where}: a GGUF header that ends too early") from None
                except InputError as found:
                    raise InputError(f"{where}: {found.message}") from None
        raise InputError(f"{where}: a GGUF header of more than {LARGEST_HEADER // 2**20} MiB")
    except OSError as failed:
        raise InputError(f"{where}: {(failed.strerror or 'cannot be read').lower()}") from None


def _parse(data: bytes) -> tuple[dict[str, Any], list[Tensor]]:
    """Metadata and tensors. Raises _ShortError where ``data`` end before them, InputError for what they cannot be."""
    try:
        magic, version, tensors, keys = _OPENS.unpack_from(data)
        if magic != b"GGUF":
            raise InputError("not a GGUF file")
        if version not in (2, 3):
            raise InputError(f"version {version} of GGUF, not 2 or 3 (little-endian)")
        if keys > MOST_KEYS or tensors > MOST_TENSORS:
            raise InputError(f"a GGUF header of {keys:,} keys and {tensors:,} tensors")
        metadata: dict[str, Any] = {}
        at = _OPENS.size
        for _ in range(keys):
            key, at = _key(data, at)
            (kind,) = _KIND.unpack_from(data, at)
            if key in metadata:
                raise InputError(f"key {quoted(key)} appears twice")
            metadata[key], at = _value(data, at + 4, kind)
        return metadata, _table(data, at, tensors)
    except error:
        if data[:4] not in (b"GGUF"[: len(data)], b"GGUF"):
            raise InputError("not a GGUF file") from None
        raise _ShortError from None


def _key(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    if length > LONGEST_KEY:
        raise InputError(f"a GGUF header with a name of {length:,} bytes")
    begin, end = at + 8, at + 8 + length
    if end > len(data):
        raise _ShortError
    return _text(data[begin:end]), end


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError("a GGUF header with a name that is no text (UTF-8)") from None


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value and where the next one begins."""
    number = _NUMBER.get(kind)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    if kind == _STRING:
        (length,) = _LENGTH.unpack_from(data, at)
        end = at + 8 + length
        if length > LARGEST_HEADER:
            raise InputError(f"a GGUF header with a text of {length:,} bytes")
        if end > len(data):
            raise _ShortError
        return data[at + 8 : end].decode(errors="replace"), end
    if kind != _ARRAY:
        raise InputError(f"a GGUF header with a value of unknown type {kind}")
    inner, count = _LIST.unpack_from(data, at)
    at += _LIST.size
    number = _NUMBER.get(inner)
    if count > LARGEST_HEADER:
        raise InputError(f"a GGUF header with an array of {count:,} values")
    if number is not None:
        end = at + count * number.size
        if end > len(data):
            raise _ShortError
        if count > MOST_KEPT:
            return LongArray(count), end
        return list(Struct(f"<{count}{number.format[1:]}").unpack_from(data, at)), end
    if inner != _STRING:
        raise InputError(f"a GGUF header with an array of unknown type {inner}")
    held = len(data)
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += 8 + length
        if at > held:
            if length > LARGEST_HEADER:
                raise InputError(f"a GGUF header with a text of {length:,} bytes")
            raise _ShortError
    return LongArray(count), at


def _table(data: bytes, at: int, count: int) -> list[Tensor]:
    """The tensors: this loop is most of what a header costs."""
    found: list[Tensor] = []
    length_of, blocks = _LENGTH.unpack_from, _BLOCKS
    names: dict[int, Struct] = {}
    for _ in range(count):
        (length,) = length_of(data, at)
        named = names.get(length)
        if named is None:
            if length > LONGEST_KEY:
                raise InputError(f"a GGUF header with a name of {length:,} bytes")
            named = names[length] = Struct(f"<{length}sI")
        name, dimensions = named.unpack_from(data, at + 8)
        if dimensions > MOST_DIMENSIONS:
            raise InputError(f"a tensor of {dimensions:,} dimensions")
        form, begin = _TENSOR[dimensions], at + 12 + length
        fields = form.unpack_from(data, begin)
        shape, kind = fields[:dimensions], fields[dimensions]
        block = blocks.get(kind)
        if block is None:
            raise InputError(f"a tensor of unknown type {kind}")
        for size in shape:
            if size > LARGEST_SIZE:
                raise InputError(f"tensor {quoted(_text(name))}: dimensions beyond any memory")
        if shape and shape[0] % block:
            raise InputError(f"tensor {quoted(_text(name))}: rows of {shape[0]:,} are no blocks of {block}")
        found.append(Tensor(_text(name), shape, kind, fields[-1]))
        at = begin + form.size
    return found
