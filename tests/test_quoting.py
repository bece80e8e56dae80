"""What messages quote: short, on one line, and never what a terminal would obey."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.errors import printable, quoted


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("kimi", "'kimi'"),
        ("it's", '"it\'s"'),
        ("\x1b[31m", "'\\x1b[31m'"),
        ("k" * 40, repr("k" * 40)),
        ("k" * 41, repr("k" * 37 + "...")),
        (64, "64"),
        (None, "None"),
        ([64] * 20, "[64, 64, 64, 64, 64, 64, 64, 64, 64, ..."),
    ],
)
def test_a_value_is_quoted(value: Any, text: str) -> None:
    """Text keeps its closing quote when it is cut."""
    assert quoted(value) == text


def test_a_number_too_long_to_print_is_said_to_be_one() -> None:
    assert (quoted(10**5000), quoted([10**5000])) == ("a number of hundreds of digits", "a list")


@given(st.text(), st.integers(4, 200))
def test_what_is_printable_stands_on_one_line_within_its_length(text: str, most: int) -> None:
    """Of a long path, the beginning and the end: its file name is what tells it apart."""
    shown = printable(text, most)
    assert shown.isprintable() and len(shown) <= most
    assert len(text) > most or len(shown) == len(text)


def test_a_long_path_keeps_its_file_name() -> None:
    assert printable("/models/" + "x" * 200 + "/config.json", 40) == "/models/xxxxxxxxxx...xxxxxxx/config.json"
