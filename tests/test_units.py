"""Sizes, token counts and dtypes: what is read, what is refused word for word, what is printed."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.errors import InputError
from hybridcalc.units import (
    DTYPE_BYTES,
    LARGEST_BYTES,
    LARGEST_TOKENS,
    format_bytes,
    gib_text,
    parse_bytes,
    parse_dtype,
    parse_tokens,
    percent_text,
)

READERS = pytest.mark.parametrize("read", [parse_bytes, parse_tokens, parse_dtype], ids=lambda f: f.__name__)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("80GiB", 80 * 2**30),
        ("80GB", 80 * 10**9),
        ("143771MiB", 143_771 * 2**20),
        ("512 KiB", 2**19),
        ("1.5tib", 3 * 2**39),
        ("2kB", 2000),
        ("0.1GB", 10**8),
        (".5 KiB", 512),
        ("1,073,741,824", 2**30),
        ("1_000b", 1000),
        (" 7 B ", 7),
    ],
)
def test_a_size_is_read_exactly_and_gib_is_never_gb(text: str, size: int) -> None:
    """GiB is 2**30, GB is 10**9 (DESIGN: never mixed); a decimal is exact, not a float."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("9216", 9216), ("8k", 8192), ("8K", 8192), ("1M", 1_048_576), ("1.5k", 1536), ("131,072", 131_072)],
)
def test_k_and_m_of_tokens_are_binary(text: str, tokens: int) -> None:
    """Context lengths are named in 1,024s: 128k is 131,072."""
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "GiB", "80 Gi", "80GiB extra", "-1GiB", "1e9", "0x10", "٣GiB", "8k", "1..5MiB"])
def test_what_is_no_size_is_refused_with_the_ways_to_write_one(text: str) -> None:
    """The words of the refusal, with the text itself."""
    with pytest.raises(InputError) as refusal:
        parse_bytes(text)
    assert refusal.value.message == f"{text!r} is not a size"
    assert refusal.value.fix == "write 80GiB (2**30), 80GB (10**9), 143771MiB or plain bytes"


@pytest.mark.parametrize("text", ["0", "0GiB", "0.4", "1048577TiB", "9" * 39])
def test_a_size_out_of_range_is_refused_with_the_range(text: str) -> None:
    """One EiB is beyond any machine; a slip of the keyboard is not an answer."""
    with pytest.raises(InputError) as refusal:
        parse_bytes(text)
    assert refusal.value.message == f"{text!r} is not a usable size"
    assert refusal.value.fix == "a size is above 0 and at most 1,048,576 TiB"


@pytest.mark.parametrize("text", ["", "k", "8g", "8 tokens", "-4", "1e4", "8kk", "½"])
def test_what_is_no_token_count_is_refused_with_the_ways_to_write_one(text: str) -> None:
    """The words of the refusal, with the text itself."""
    with pytest.raises(InputError) as refusal:
        parse_tokens(text)
    assert refusal.value.message == f"{text!r} is not a token count"
    assert refusal.value.fix == "write 9216, 8k (8,192) or 1M (1,048,576)"


@pytest.mark.parametrize("text", ["0", "0k", "1.5", "0.3k", "1048577M"])
def test_a_token_count_that_is_not_whole_or_too_large_is_refused(text: str) -> None:
    """Half a token does not exist, and 1,048,576 M is the end."""
    with pytest.raises(InputError) as refusal:
        parse_tokens(text)
    assert refusal.value.message == f"{text!r} is not a usable token count"
    assert refusal.value.fix == "whole tokens from 1 to 1,099,511,627,776"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("FP32", "float32"),
        ("float", "float32"),
        ("half", "float16"),
        (" fp8 ", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("torch.float8_e5m2", "fp8_e5m2"),
    ],
)
def test_a_dtype_has_one_name_whatever_its_spelling(text: str, name: str) -> None:
    """The spellings of torch, of the engines' flags and of config files."""
    assert parse_dtype(text) == name
    assert parse_dtype(name) == name


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    """The words of the refusal."""
    with pytest.raises(InputError) as refusal:
        parse_dtype("int4")
    assert refusal.value.message == "'int4' is not a dtype known here"
    assert refusal.value.fix == "write one of float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, int8"


@READERS
def test_a_long_text_is_shown_shortened(read: Callable[..., Any]) -> None:
    """A refusal stays one line of a terminal."""
    with pytest.raises(InputError) as refusal:
        read("x" * 5000)
    assert repr("x" * 37 + "...") in refusal.value.message


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (56_171_520, "53.57 MiB"),
        (13_824, "13.50 KiB"),
        (Fraction(2**31, 3), "682.67 MiB"),
        (2**60, "1,048,576.00 TiB"),
    ],
)
def test_a_size_is_written_in_the_largest_whole_binary_unit(size: Fraction | int, text: str) -> None:
    """53.57 MiB is the state slot of Kimi-K3 on 8 ranks."""
    assert format_bytes(size) == text


def test_a_pool_prints_one_slot_more_than_it_admits() -> None:
    """SGLang's pools hold K + 1 slots: 258 x 54,263,808 B prints as 13.04GB for K = 257 (boot log, Kimi-K3 TP8)."""
    assert gib_text(258 * 54_263_808) == "13.04"
    assert gib_text(258 * 1_907_712) == "0.46"


@given(st.integers(1, LARGEST_BYTES))
def test_a_written_size_reads_back_within_its_last_digit(size: int) -> None:
    """format then parse is off by at most half of the last printed digit."""
    text = format_bytes(size)
    unit = parse_bytes(f"1{text.split()[1]}")
    assert abs(parse_bytes(text) - size) <= Fraction(unit, 200) + 1


@given(st.integers(1, LARGEST_BYTES))
def test_plain_and_grouped_bytes_read_back_exactly(size: int) -> None:
    """Plain bytes are exact, with or without thousands separators."""
    assert parse_bytes(str(size)) == parse_bytes(f"{size:,}") == parse_bytes(f"{size} B") == size


@given(st.integers(1, LARGEST_TOKENS), st.integers(1, LARGEST_TOKENS // 2**20))
def test_plain_tokens_read_back_exactly_and_units_multiply(tokens: int, millions: int) -> None:
    """Plain counts are exact; M is 1,024 k."""
    assert parse_tokens(str(tokens)) == parse_tokens(f"{tokens:,}") == tokens
    assert parse_tokens(f"{millions}M") == parse_tokens(f"{millions * 1024}k") == millions * 2**20


@READERS
@given(
    text=st.text(max_size=60)
    | st.from_regex(r"\A\s*[0-9.,_]{0,30}\s*[A-Za-z]{0,4}\s*\Z")
    | st.sampled_from([*DTYPE_BYTES])
)
def test_any_text_is_read_or_refused_in_one_line(read: Callable[..., Any], text: str) -> None:
    """No text gets another exception than InputError, and no message breaks its line."""
    try:
        value = read(text)
    except InputError as error:
        lines = [error.message.splitlines(), error.fix.splitlines()]
    else:
        lines = [[value], [value]]
        assert value in DTYPE_BYTES if read is parse_dtype else 0 < value <= LARGEST_BYTES
    assert [len(part) for part in lines] == [1, 1]


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        (0, "0"),
        (0.004, "0.1"),
        (0.49, "0.5"),
        (0.51, "1"),
        (62.4, "62"),
        (99.49, "99"),
        (99.52, "99.5"),
        (99.999, "99.9"),
        (100, "100"),
    ],
)
def test_a_share_is_neither_none_nor_all_where_it_is_not(percent: float, text: str) -> None:
    assert percent_text(percent) == text
