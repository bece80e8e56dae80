"""vLLM launch commands of any kind: valid flags in any order are read back, hostile texts have an end."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_vllm_command import JOINED, LOWERED, SPELLINGS

from hybridcalc.engines.ask import read_command
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.flags import FLAGS, from_words
from hybridcalc.errors import InputError
from hybridcalc.shell.flags import Flag

from_command = partial(read_command, "vllm")


def test_hostile_texts_have_an_end(steps: Callable[..., Any]) -> None:
    """Many names nobody knows, a value of a megabyte, brackets without a bottom, a name of a thousand dots."""

    def unknown(many: int) -> None:
        with pytest.raises(InputError, match=r"(?m)^more than 100 flags are unknown to vLLM$"):
            from_words([f"--{number:040b}" for number in range(many)], {})

    assert steps(lambda: unknown(10_000)) < 100 * 10_000 + 2 * steps(lambda: unknown(101))
    with pytest.raises(InputError, match="is not a JSON object"):
        from_words(["--speculative-config", '{"a": ' * 100_000], {})
    with pytest.raises(InputError, match="is not a JSON object"):
        from_words(["--hf-overrides", json.dumps({"a": "x" * 2**20})], {})
    assert steps(lambda: from_words(["--hf-overrides" + ".a" * 1000, "1"], {})) < 100_000


def valid(flag: Flag) -> st.SearchStrategy[tuple[Flag, list[str], object]]:
    values: st.SearchStrategy[tuple[str, Any]]
    if flag.kind in ("int", "tokens"):
        values = st.integers(max(flag.least, 0), flag.most).map(lambda value: (str(value), value))
    elif flag.kind == "float":
        values = st.floats(flag.least, flag.most, exclude_min=True).map(lambda value: (repr(value), value))
    elif flag.kind == "json":
        values = st.dictionaries(st.text("abc", min_size=1), st.integers(), max_size=2).map(
            lambda value: (json.dumps(value), value)
        )
    elif flag.kind == "str":
        values = st.sampled_from(flag.choices or ("a", "b/c", "d e")).map(lambda value: (value, value))
    else:
        return st.sampled_from(
            [
                (spelling, on)
                for s in flag.spellings
                if s.startswith("--")
                for spelling, on in ((s, True), ("--no-" + s[2:], False))
            ]
        ).map(lambda drawn: (flag, [drawn[0]], drawn[1]))
    return st.tuples(st.sampled_from(flag.spellings), values, st.booleans()).map(
        lambda drawn: (flag, [f"{drawn[0]}={drawn[1][0]}"] if drawn[2] else [drawn[0], drawn[1][0]], drawn[1][1])
    )


PLAIN = [flag for flag in FLAGS if flag.field not in JOINED | LOWERED | {"dtype"}]


@given(st.lists(st.sampled_from(PLAIN).flatmap(valid), max_size=8))
@settings(max_examples=40)
def test_any_order_of_valid_flags_is_read_back(drawn: list[Any]) -> None:
    """The last of repeated flags wins, whichever way each is spelt."""
    _, read = from_words([word for _, words, _ in drawn for word in words], {})
    assert read == EngineArgs(**{flag.field: value for flag, _, value in drawn})


words = st.lists(
    st.sampled_from([*(spelling for _, spelling in SPELLINGS), "--help", "--port", "--", "-", "-1", "8", "0.5", "8K",
                     "", "{}", "--speculative-config.a", "-sc.a.b", "--hf-overrides+", "--no-enforce-eager"])
    | st.text(max_size=12).map("-tp=".__add__)
    | st.text(alphabet="-=.tpdzemru0189_kK$ \u00e9\u2013{}\"\n", max_size=10)
    | st.text(max_size=10),
    max_size=10,
)  # fmt: skip


@given(words, st.dictionaries(st.text(), st.text(), max_size=2))
def test_any_words_give_arguments_or_an_input_error(drawn: list[str], env: dict[str, str]) -> None:
    try:
        read = from_words(drawn, env)[1]
    except InputError as error:
        said = error.message + error.fix
    else:
        said = ""
        assert read.env == env
    assert "\n" not in said and len(said) < 400


@given(st.text() | words.map(" ".join).map("vllm serve m ".__add__) | st.text().map("vllm serve m ".__add__))
def test_any_text_gives_arguments_or_an_input_error(text: str) -> None:
    try:
        _, read = from_command(text)
    except InputError:
        return
    assert isinstance(read, EngineArgs)
