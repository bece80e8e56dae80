"""What do the tensors of a checkpoint on disk take? From their headers, or from the index beside them.

A safetensors file opens with the length of a JSON header (8 bytes, little endian) that names every tensor with its
dtype, shape and place: exact, and a few MB of a checkpoint of TB. Only headers are read, of so many bytes at most.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from hybridcalc.errors import InputError, printable

MOST_FILES, LARGEST_HEADER_BYTES, MOST_HEADER_BYTES, LARGEST_INDEX_BYTES = 1024, 2**26, 2**28, 2**26
PACKED = ("weight_packed", "qweight", "_blocks", "weight_scale", "_scales", "scale_inv", "scales", "qzeros", "g_idx")
"""Names of tensors whose elements are not parameters, one by one: packed weights, and scales."""


class Sizes(NamedTuple):
    """What a folder tells: bytes of all tensors; parameters where none of them is packed; from where."""

    bytes: int
    parameters: int | None
    source: str


def read_folder(folder: Path) -> Sizes | None:
    """Sizes of the checkpoint in a folder: by its headers, else by its index; None where it holds neither.

    Raises InputError for a file that is damaged or larger than any checkpoint's.
    """
    try:
        files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())[: MOST_FILES + 1]
        index = folder / "model.safetensors.index.json"
        if not files:
            return _of_index(index) if index.is_file() else None
        if len(files) > MOST_FILES:
            raise InputError(f"{printable(str(folder), 80)}: more than {MOST_FILES} safetensors files")
        listed = _files_of(index) if index.is_file() else None
        if listed is not None and not listed <= {path.name for path in files}:
            return _of_index(index)  # part of it is not here
        kept = tuple((path, path.stat().st_size) for path in files if listed is None or path.name in listed)
        return _of_headers(kept, str(folder))
    except OSError as error:
        raise InputError(f"{printable(str(folder), 80)}: {(error.strerror or 'cannot be read').lower()}") from None


@lru_cache(maxsize=32)
def _of_headers(files: tuple[tuple[Path, int], ...], folder: str) -> Sizes:
    total, count, packed, left = 0, 0, False, MOST_HEADER_BYTES
    for path, size in files:
        with path.open("rb") as stream:
            header, length = read_header(stream, size, path.name, left)
        left -= length
        for name, elements, taken in tensors_of(header, path.name):
            total += taken
            count += elements
            packed = packed or name.endswith(PACKED)
    return Sizes(total, None if packed else count, f"safetensors headers of {printable(folder, 60)}")


def read_header(stream: BinaryIO, size: int, name: str, left: int = MOST_HEADER_BYTES) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file of ``size`` bytes, and its length. Raises InputError for what is none."""
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(LARGEST_HEADER_BYTES, left, max(size - 8, 0)):
        raise InputError(f"{printable(name, 80)}: no safetensors file, its header is cut or too long")
    return parse_header(stream.read(length), name), length


def parse_header(data: bytes, name: str) -> dict[str, Any]:
    """A header's JSON. Raises InputError for what is none."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{printable(name, 80)}: the header of this safetensors file is no JSON") from None
    if not isinstance(header, dict):
        raise InputError(f"{printable(name, 80)}: the header of this safetensors file is no JSON object")
    return header


def tensors_of(header: dict[str, Any], where: str) -> Iterator[tuple[str, int, int]]:
    """Name, elements and bytes of each tensor. Raises InputError for places that are none."""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        places = entry.get("data_offsets") if isinstance(entry, dict) else None
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not (_numbers(places) and _numbers(shape) and len(places) == 2):
            raise InputError(f"{printable(where, 80)}: tensor {printable(name, 60)} has no place or shape")
        if not 0 <= places[0] <= places[1] < 2**50:
            raise InputError(f"{printable(where, 80)}: tensor {printable(name, 60)} lies outside any file")
        yield name, prod(shape), places[1] - places[0]


def _numbers(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a short list of whole numbers."""
    return isinstance(value, list) and len(value) <= 16 and all(type(n) is int and 0 <= n < 2**50 for n in value)


def _index(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LARGEST_INDEX_BYTES:
        raise InputError(f"{printable(str(path), 80)}: larger than any index", fix="give --weights SIZE")
    return parse_index(path.read_bytes(), str(path))


def parse_index(data: bytes, where: str) -> dict[str, Any]:
    """An index's JSON, with its ``total`` size, None where it states none. Raises InputError for what is no index."""
    where = printable(where, 80)
    try:
        found = json.loads(data)
        total = found.get("metadata", {}).get("total_size")
    except (ValueError, AttributeError, RecursionError):
        raise InputError(f"{where}: not a safetensors index", fix="give --weights SIZE") from None
    if total is None:
        return {**found, "total": None}
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**60:
        raise InputError(f"{where}: metadata.total_size is not a size", fix="give --weights SIZE")
    return {**found, "total": int(total)}


def _of_index(path: Path) -> Sizes | None:
    total = _index(path)["total"]
    return None if total is None else Sizes(total, None, f"the index of {printable(str(path.parent), 60)}")


def _files_of(path: Path) -> set[str] | None:
    """Names of the files that an index lists."""
    return files_in(_index(path))


def files_in(index: dict[str, Any]) -> set[str] | None:
    """Names of the files that an index lists; None where it lists none."""
    listed = index.get("weight_map")
    return {str(name) for name in listed.values()} if isinstance(listed, dict) else None
