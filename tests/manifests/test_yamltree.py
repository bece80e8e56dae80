"""YAML as nodes with places: every character of a value stands where it says, and nothing unfolds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc.errors import InputError
from hybridcalc.manifests.fields import plain
from hybridcalc.manifests.yamltree import DEEPEST, Mapping, Scalar, documents
from hybridcalc.shell import Source


def load(text: str) -> list[Any]:
    return documents(Source("x.yaml", text))


SCALARS = {
    "plain": "k: abc def\n", "single": "k: 'abc def'\n", "double": 'k: "abc def"\n',
    "literal": "k: |\n  abc\n    def\n",
    "folded": "k: >-\n  abc\n  def\n", "plain over lines": "k: abc\n  def\n", "double over lines": 'k: "abc\n  def"\n',
    "escapes": 'k: "a\\"b\\tc \\u00e9 d"\n', "doubled quotes": "k: 'it''s abc'\n", "crlf": "k: |\r\n  abc\r\n  def\r\n",
    "indicator": "k: |2-\n   abc\n  def\n", "flow": "{k: [abc, 'd e']}\n", "astral": "k: \U0001f600 abc\n",
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARS.values(), ids=SCALARS)
def test_each_character_stands_where_it_says(text: str) -> None:
    """Letters and digits of a value are found at their offsets in the file."""
    (document,) = load(text)
    value = document.get("k")
    scalars = [value] if isinstance(value, Scalar) else present(value).items
    for scalar in scalars:
        chars = scalar.text()
        assert chars.text == scalar.value
        for index, char in enumerate(chars.text):
            if char.isalnum() and "''" not in text and char != "\u00e9":
                assert text[chars.at(index)] == char


def test_anchors_are_shared_and_merged() -> None:
    (document,) = load("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\n")
    assert plain(document.get("b")) == {"y": 3, "x": 1}
    assert plain(document.get("c")) == {"x": 1, "y": 2, "z": 4}
    assert document.mapping("b").string("x") == "1"


def test_tags_construct_nothing() -> None:
    (document,) = load('k: !!python/object/apply:os.system ["false"]\nr: !Ref X\ns: !!str 1\n')
    assert plain(document.get("k")) == ["false"]
    word = document.scalar("r").word()
    assert word.why
    assert word.why == "the tag !Ref decides it"
    assert document.scalar("s").word() == "1"


def test_bombs_do_not_unfold(steps: Callable[..., Any]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 15)]
    (document,) = load("\n".join(lines))
    assert isinstance(document, Mapping)
    with pytest.raises(InputError, match="nested too deep, or more than"):
        plain(document)
    merges = ["m0: &m0 {k: v}"] + [f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: v}}" for n in range(1, 40)]
    (document,) = load("\n".join(merges))
    assert len(list(document.mapping("m39").entries())) > 10
    assert steps(lambda: list(load("\n".join(merges))[0].mapping("m39").entries())) < 50 * len("\n".join(merges))


BAD = {
    "deep flow": ("[" * 5_000, "nesting depth|deeper than"),
    "deep block": ("".join(f"{' ' * n}a:\n" for n in range(200)), f"deeper than {DEEPEST}"),
    "unknown alias": ("a: *b", "names no anchor|undefined alias"), "tab": ("a:\n\t- b", "no YAML"),
    "self alias": ("a: &a\n  b: *a\nc: d", None), "nul": ("a: \x00", "no YAML"), "open": ("a: [b", "no YAML"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_is_no_yaml_is_refused_with_its_file(text: str, message: str | None) -> None:
    if message is None:
        assert load(text)
        return
    with pytest.raises(InputError, match=message):
        load(text)


def test_a_byte_order_mark_shifts_nothing() -> None:
    (document,) = load("\ufeffk: abc\n")
    assert document.scalar("k").word().place[1:3] == (1, 5)


@given(st.text(st.characters(codec="utf-8"), max_size=80))
@settings(max_examples=200)
def test_any_text_is_nodes_or_an_input_error(text: str) -> None:
    try:
        load(text)
    except InputError as refused:
        message = refused.message
    else:
        message = "x.yaml"
    assert message.startswith("x.yaml")
