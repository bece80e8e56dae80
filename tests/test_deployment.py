"""The question: lengths, how many requests of each, and the memory there is."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.deployment import KINDS, MOST_REQUESTS, Rest, Workload, exact_rest, parse_lengths
from hybridcalc.errors import InputError
from hybridcalc.units import LARGEST_TOKENS

LENGTHS = st.lists(st.tuples(st.integers(1, LARGEST_TOKENS), st.integers(1, MOST_REQUESTS)), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k:20,128k:2", ((8192, 20), (131_072, 2))),
        ("9216", ((9216, 1),)),
        (" 1M : 3 ,,2 ", ((1_048_576, 3), (2, 1))),
        (f"1:{MOST_REQUESTS}", ((1, MOST_REQUESTS),)),
        ("8k:1,8k:1", ((8192, 1), (8192, 1))),
    ],
    ids=["two lengths", "a length alone", "spaces and empty parts", "most requests", "a length twice"],
)
def test_lengths_are_read_with_their_requests(text: str, lengths: tuple[tuple[int, int], ...]) -> None:
    """length:requests, 1k = 1,024; a length alone counts once."""
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("", "'' holds no lengths", "write 8k:20,128k:2 (length:requests, ...)"),
        (" , ", "' , ' holds no lengths", "write 8k:20,128k:2 (length:requests, ...)"),
        (",".join(["8k"] * 1001), "1,001 lengths are more than 1,000", "write equal ones as LENGTH:REQUESTS"),
        ("8,192:5", "'8,192:5': a comma parts lengths, not thousands", "write 8192:5, or 128:1,256:1"),
        (
            "8k:" + "1" * 5000,
            "'8k:" + "1" * 34 + "...': the requests of a length are a whole number",
            "write 8k:20,128k:2",
        ),
        (
            "8k:00000000019999999999",
            "'8k:00000000019999999999': the requests of a length are a whole number",
            "write 8k:20,128k:2",
        ),
        ("8k,8k:0", "'8k:0': the requests of a length are a whole number", "write 8k:20,128k:2"),
        ("8k:", "'8k:': the requests of a length are a whole number", "write 8k:20,128k:2"),
        ("8k:-1", "'8k:-1': the requests of a length are a whole number", "write 8k:20,128k:2"),
        ("8k:1.5", "'8k:1.5': the requests of a length are a whole number", "write 8k:20,128k:2"),
        ("8k:²", "'8k:²': the requests of a length are a whole number", "write 8k:20,128k:2"),
        ("8k:2:3", "'8k:2:3': the requests of a length are a whole number", "write 8k:20,128k:2"),
        (
            f"8k:{MOST_REQUESTS + 1}",
            "'8k:1000000001': the requests of a length are a whole number",
            "write 8k:20,128k:2",
        ),
        (":3", "'' is not a token count", "write 9216, 8k (8,192) or 1M (1,048,576)"),
        ("8x:3", "'8x' is not a token count", "write 9216, 8k (8,192) or 1M (1,048,576)"),
        ("0:3", "'0' is not a usable token count", f"whole tokens from 1 to {LARGEST_TOKENS:,}"),
    ],
)
def test_what_is_no_list_of_lengths_is_refused_by_the_part_that_is_not(text: str, message: str, fix: str) -> None:
    """The part at fault is quoted, the form is shown."""
    with pytest.raises(InputError) as error:
        parse_lengths(text)
    assert (error.value.message, error.value.fix) == (message, fix)


@pytest.mark.parametrize("text", ["1," * 1001, "8k:" + "9" * 100_000, "9" * 100_000, "8k:1" * 50_000])
def test_a_text_of_any_size_is_refused_at_once(text: str, steps: Callable[..., Any]) -> None:
    """More than 1,000 lengths, and numbers without end, cost no time."""

    def refuse() -> Any:
        with pytest.raises(InputError) as error:
            parse_lengths(text)
        return error

    assert len(refuse().value.message) < 120
    assert steps(refuse) < 20_000


@given(st.text(max_size=60))
def test_any_text_is_lengths_or_refused(text: str) -> None:
    """Nothing else happens, and what is read is usable."""
    try:
        lengths = parse_lengths(text)
    except InputError:
        return
    assert all(0 < tokens <= LARGEST_TOKENS and 0 < count <= MOST_REQUESTS for tokens, count in lengths)


@given(LENGTHS)
def test_lengths_survive_being_written_and_read(lengths: list[tuple[int, int]]) -> None:
    """parse_lengths undoes length:requests."""
    assert parse_lengths(",".join(f"{tokens}:{count}" for tokens, count in lengths)) == tuple(lengths)


@given(LENGTHS)
def test_the_mean_is_what_memory_adds_up_to(lengths: list[tuple[int, int]]) -> None:
    """Requests x mean length is every token that all of them hold, exactly; the mean is never above the longest."""
    workload = Workload(tuple(lengths))
    requests = sum(count for _, count in lengths)
    assert workload.mean_length is not None
    assert workload.mean_length * requests == sum(tokens * count for tokens, count in lengths)
    assert min(tokens for tokens, _ in lengths) <= workload.mean_length <= workload.longest


@pytest.mark.parametrize(
    ("workload", "mean", "longest", "wanted", "words"),
    [
        (Workload(), None, 0, None, "no length"),
        (Workload((), 12), None, 0, 12, "no length"),
        (Workload.at(9216), 9216, 9216, None, "9,216 tokens"),
        (Workload.at(9216, concurrency=64), 9216, 9216, 64, "9,216 tokens"),
        (Workload(((9216, 3),)), 9216, 9216, 3, "9,216 tokens"),
        (Workload(((8192, 20), (131_072, 2))), Fraction(212_992, 11), 131_072, 22, "19,363 tokens on average"),
        (Workload(((8192, 20), (131_072, 2)), 40), Fraction(212_992, 11), 131_072, 40, "19,363 tokens on average"),
    ],
    ids=["nothing", "concurrency alone", "one length", "with concurrency", "counted", "mixed", "concurrency wins"],
)
def test_what_a_workload_asks_for(
    workload: Workload, mean: Fraction | int | None, longest: int, wanted: int | None, words: str
) -> None:
    """Mean and longest length, the requests that should run at once, and the words for it."""
    assert (workload.mean_length, workload.longest, workload.wanted) == (mean, longest, wanted)
    assert workload.describe() == words


def test_a_known_rest_has_no_sides() -> None:
    """An exact rest is one figure; an interval is not, be it never so small."""
    assert exact_rest(28.55)[:4] == (28.55, 28.55, 28.55, "as given") and exact_rest(28.55).exact
    assert exact_rest(1.0, "a boot").why == "a boot"
    assert not Rest(28.55, 28.545, 28.555, "a log").exact


def test_the_kinds_of_work() -> None:
    """Four change what is worth setting."""
    assert KINDS == ("long", "agent", "batch", "small")
