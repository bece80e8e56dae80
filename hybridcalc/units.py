"""Bytes, token counts and dtypes: how they are read and how they are written.

GiB is 2**30 and GB is 10**9; the two are never mixed, although SGLang and vLLM print "GB" for GiB in their logs.
Token counts use 1k = 1,024 and 1M = 1,048,576, as context lengths are named.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from hybridcalc.errors import InputError, quoted

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = r"(?a)\s*((?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*"
_TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}

MOST_RANKS, MOST_SLOTS = 4096, 10**9
LARGEST_TOKENS = 2**40
"""No deployment or served context comes near them; figures beyond are slips of the keyboard."""
LARGEST_BYTES = 2**60
"""One EiB: beyond any machine this is asked about."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
_DTYPE_SPELLINGS = {
    "fp32": "float32", "float": "float32", "f32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16", "half": "float16", "f16": "float16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "fp8": "fp8_e4m3",
}  # fmt: skip

_SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8 e5m2"}


def parse_bytes(text: str) -> int:
    """Bytes in ``80GiB``, ``80GB``, ``143771MiB`` or a plain number of bytes.

    Raises InputError for anything else, for sizes that are not positive and for sizes above one EiB.
    """
    return int(_bytes(text))


def _bytes(text: str) -> Fraction:
    amount = _amount(text, _SIZE_UNITS)
    if amount is None:
        raise InputError(
            f"{quoted(text)} is not a size", fix="write 80GiB (2**30), 80GB (10**9), 143771MiB or plain bytes"
        )
    size = int(amount)
    if not 0 < size <= LARGEST_BYTES:
        raise InputError(f"{quoted(text)} is not a usable size", fix="a size is above 0 and at most 1,048,576 TiB")
    if amount != size and text.strip()[-1].isdecimal():
        raise InputError(f"{quoted(text)} is not a whole number of bytes", fix=f"write {in_gib(text)} if that is meant")
    return amount


def in_gib(text: str) -> str:
    """The number of a size in GiB, as advice where its unit may be another than was meant: ``28`` is ``28GiB``."""
    match = re.fullmatch(_SIZE, text.strip()[:40])
    return f"{match[1]}GiB" if match else "a size in GiB"


def parse_gib(text: str) -> float:
    """GiB as engines hold them, a float: ``28.55GiB`` is 28.55 itself, no whole number of bytes. Raises InputError."""
    return float(_bytes(text) / GIB)


def parse_tokens(text: str) -> int:
    """Tokens in ``9216``, ``8k`` (8,192) or ``1M`` (1,048,576). Raises InputError for what is not a positive count."""
    count = _amount(text, _TOKEN_UNITS)
    if count is None:
        raise InputError(f"{quoted(text)} is not a token count", fix="write 9216, 8k (8,192) or 1M (1,048,576)")
    if count.denominator != 1 or count < 1 or count > LARGEST_TOKENS:
        raise InputError(
            f"{quoted(text)} is not a usable token count", fix=f"whole tokens from 1 to {LARGEST_TOKENS:,}"
        )
    return int(count)


def parse_dtype(text: str) -> str:
    """The full name of a dtype, whichever way it is spelt (``bf16`` -> ``bfloat16``). Raises InputError otherwise."""
    name = text.strip().lower().removeprefix("torch.")
    name = _DTYPE_SPELLINGS.get(name, name)
    if name not in DTYPE_BYTES:
        raise InputError(f"{quoted(text)} is not a dtype known here", fix=f"write one of {', '.join(DTYPE_BYTES)}")
    return name


def short_dtype(name: str) -> str:
    """A dtype as people say it: ``fp32``, ``bf16``, ``fp8``."""
    return _SHORT_DTYPES.get(name, name)


def format_bytes(size: int | Fraction) -> str:
    """A size in the largest binary unit that leaves at least one whole: ``53.57 MiB``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{float(Fraction(size) / unit):,.2f} {name}"
    return f"{float(size):,.0f} B"


def rounded_up(size: int, multiple: int) -> int:
    """The next multiple of a size, or the size where it is one: tokens of whole pages, bytes of whole blocks."""
    return -(-size // multiple) * multiple


def ratio_text(ratio: Fraction | float) -> str:
    """A ratio as a flag value: two decimals, or three significant digits below one."""
    value = float(ratio)
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def percent_text(percent: float) -> str:
    """A share in whole percent; one decimal where that would read as none or all of what is not."""
    if 99.5 <= percent < 100:
        return f"{min(percent, 99.9):.1f}"
    return f"{max(percent, 0.1):.1f}" if 0 < percent < 0.5 else f"{percent:.0f}"


def gib_text(size: int) -> str:
    """GiB with two decimals, exactly as the engines' logs print "GB": ``13.04``."""
    return f"{size / GIB:.2f}"


_VERSION = (
    r"(?a)v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(?:\.[0-9]+)*(?:\.?(?:a|b|rc|post|dev)[0-9]*)*"
    r"(?:[-+][\w.+-]*)?"
)
"""A version, and what is left out of it: a candidate, a later build, what it was built for."""


@lru_cache(maxsize=256)
def version_numbers(text: str) -> tuple[int, ...]:
    """(0, 5, 23) of an engine version ``0.5.23``, ``v0.5.23.post1`` or ``0.5.23rc1-cu126``; (0, 33) of ``0.33``, which
    is the series; (11549,) of llama.cpp's build ``b11549``. Raises InputError for what is no version.
    """
    if text.isascii() and all(part.isdecimal() and len(part) <= 6 for part in text.split(".")) and text.count(".") == 2:
        return tuple(int(part) for part in text.split("."))  # most: every table of releases is of them
    if text[:1] == "b" and 3 <= len(text[1:]) <= 6 and text[1:].isascii() and text[1:].isdecimal():
        return (int(text[1:]),)
    match = re.fullmatch(_VERSION, text.strip()) if len(text) <= 80 else None
    if match is None:
        raise InputError(f"{quoted(text)} is not a version", fix="write one like 0.5.23 or 0.33.0")
    return tuple(int(part) for part in match.groups() if part is not None)


def _amount(text: str, units: Mapping[str, int]) -> Fraction | None:
    """The number times its unit, exactly; None for anything else."""
    match = re.fullmatch(_SIZE, text) if len(text) <= 40 else None
    if match is None or match[2].lower() not in units:
        return None
    return Fraction(match[1].replace(",", "").replace("_", "")) * units[match[2].lower()]


def is_later(version: str, than: str) -> bool:
    """Whether a version is later than another; a series (0.33) is not later than a release of it, nor one than it.

    Raises InputError for one that is none.
    """
    one, other = version_numbers(version), version_numbers(than)
    return one[: len(other)] > other[: len(one)]
