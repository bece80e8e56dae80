"""Which flags do the fields of a configuration stand for? Engine YAML and typed fields of custom resources -> words.

    maxModelLen: 8192, tensor_parallel_size: 2, extraArgs: [--enforce-eager]
    -> --max-model-len 8192 --tensor-parallel-size 2 --enforce-eager

A field counts where the engine has a flag of its name. True is the flag alone; false is left out, or is vLLM's
``--no-...``; mappings become JSON.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests.yamltree import Mapping, Node, Scalar, Sequence
from hybridcalc.shell import Text, Word, spend
from hybridcalc.shell.commands import RETURN
from hybridcalc.shell.launch import SCRIPT_OPTION, Launch
from hybridcalc.shell.parse import placed, tokens
from hybridcalc.shell.variables import A_VARIABLE

EXTRA = frozenset({"extra-args", "extra-engine-args", "additional-args", "args", "engine-args", "server-args"})
MODEL_FIELDS = (
    "model-path", "model-source", "model", "model-url", "model-uri", "hf-model-id", "hf-id", "model-id", "model-name",
    "llm-model-id", "hf-path", "hf-repo", "repo-id", "model-repo",
)  # fmt: skip
MOST_PLAIN = 50_000
_FALSE, _TRUE = frozenset({"false", "no", "off"}), frozenset({"true", "yes", "on"})
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")


def kebab(name: str) -> str:
    """A field's name as a flag's: ``memFractionStatic`` and ``mem_fraction_static`` are ``mem-fraction-static``."""
    return _HUMP.sub("-", name).replace("--", "-").lower()


@cache
def names_of(engine: str) -> frozenset[str]:
    """Flag names of an engine, without dashes."""
    return frozenset(name.removeprefix("--") for name in ENGINES.launchers.flags(engine))


def field_words(fields: Mapping, engine: str, *, known_only: bool = True) -> Iterator[Word]:
    """The words that fields stand for, in their order."""
    names = names_of(engine)
    for key, value in fields.entries():
        name = kebab(key.value)
        if name in EXTRA and not isinstance(value, Scalar):
            yield from extra_words(value, engine)
        elif name in EXTRA and isinstance(value, Scalar):
            yield from split_words(value.text())
        elif name in names or not known_only:
            yield from _flag(key, name, value, engine)


def extra_words(value: Node, engine: str) -> Iterator[Word]:
    """The words of an extra-arguments field: a list of words or of whole flags, a text, or more fields."""
    if isinstance(value, Sequence):
        spend(words=len(value.items))
        for item in value.items:
            if isinstance(item, Scalar):
                word = item.word()
                if not word.why and word.startswith("-") and " " in word and "{" not in word:
                    yield from split_words(item.text())
                else:
                    yield word
            elif isinstance(item, Mapping):
                yield from field_words(item, engine)
    elif isinstance(value, Mapping):
        yield from field_words(value, engine, known_only=False)
    elif isinstance(value, Scalar):
        yield from split_words(value.text())


def with_config(launch: Launch, read: Callable[[str], Mapping | None]) -> Launch:
    """A launch with the fields of the ``--config`` file that ``read`` finds, in front: what the command says wins."""
    words = launch.words
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--config" and (equals or at + 1 < len(words)):
            held = read(value if equals else str(words[at + 1]))
            if held is None:
                return launch
            own = (*words[:at], *words[at + (1 if equals else 2) :])
            first = own[:1] if own and not own[0].startswith("-") else ()
            return launch._replace(words=(*first, *field_words(held, launch.engine), *own[len(first) :]))
    return launch


def split_words(text: Text) -> list[Word]:
    """The words of a text as a shell splits them; what a shell would expand stays unknown."""
    words: list[Word] = []
    try:
        split = tokens(RETURN.sub(" ", text.text))
    except InputError as error:
        raise text.source.error(text.at(0), error.message, error.fix) from None
    spend(words=len(split))
    for token in split:
        if token.kind in ("word", "live"):
            word = placed(text, token)
            script = bool(words) and SCRIPT_OPTION.fullmatch(words[-1]) is not None  # its shell expands it
            words.append(word if token.kind == "word" or script else word.instead(token.text, A_VARIABLE))
    return words


def model_field(fields: Mapping) -> Word | None:
    """The model that fields name."""
    for name in MODEL_FIELDS:
        for key, value in fields.entries():
            if kebab(key.value) == name and isinstance(value, Scalar) and not value.empty:
                return value.known()
    return None


def sizing_fields(fields: Mapping, engine: str) -> int:
    """How many fields are flags that a plan needs, the model's aside."""
    table = ENGINES[engine].flags
    names = {f"--{kebab(key.value)}" for key, _ in fields.entries()}
    return len(names & table.by_spelling.keys() - set(ENGINES.rows[engine].starter.model_flags))


def engine_of_fields(fields: Mapping, *, least: int = 2) -> str | None:
    """The engine whose flags most of the fields are, where at least three in five are, and ``least`` of them."""
    names = [kebab(key.value) for key, _ in fields.entries()]
    counts = {engine: sum(name in names_of(engine) for name in names) for engine in ENGINES}
    most = max(counts.values())
    if most < least or most * 5 < len(names) * 3:
        return None
    best = [engine for engine in ENGINES if counts[engine] == most]
    named = [engine for engine in best if ENGINES.rows[engine].starter.model_flags[0].removeprefix("--") in names]
    return best[0] if len(best) == 1 else next(iter(named), None)


def _flag(key: Scalar, name: str, value: Node, engine: str) -> Iterator[Word]:
    flag = Word(f"--{name}", key.source, key.begin, key.end)
    known = ENGINES[engine].flags.known(f"--{name}")
    several = isinstance(value, Mapping) or (isinstance(value, Sequence) and bool(value.items))
    if several and known is not None and known.kind not in ("json", "str"):
        yield flag
        yield Word(json.dumps(plain(value)), value.source, value.begin, value.begin, why="it differs by what runs it")
        return
    if isinstance(value, Scalar):
        text = value.value
        if value.empty:
            return
        if value.style is None and text.lower() in _TRUE:
            yield flag
        elif value.style is None and text.lower() in _FALSE:
            if f"--no-{name}" in ENGINES.launchers.flags(engine):
                yield Word(f"--no-{name}", key.source, key.begin, key.end)
        else:
            yield flag
            yield value.word()
    elif isinstance(value, Sequence):
        spend(words=len(value.items))
        scalars = [item.word() for item in value.items if isinstance(item, Scalar)]
        if scalars:
            yield flag
            yield from scalars
    else:
        yield flag
        yield Word(json.dumps(plain(value)), value.source, value.begin, value.begin)


def plain(node: Node) -> Any:
    """A node as plain data: numbers and truth values where the text is one, unquoted. Raises InputError for one that
    aliases unfold beyond MOST_PLAIN nodes.
    """
    return _plain(node, 0, [MOST_PLAIN])


def _plain(node: Node, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if depth > 20 or left[0] < 0:
        raise node.source.error(None, f"nested too deep, or more than {MOST_PLAIN:,} values")
    if isinstance(node, Mapping):
        return {key.value: _plain(value, depth + 1, left) for key, value in node.entries()}
    if isinstance(node, Sequence):
        return [_plain(item, depth + 1, left) for item in node.items]
    assert isinstance(node, Scalar)  # noqa: S101
    if node.style is not None:
        return node.value
    if node.empty:
        return None
    lowered = node.value.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind, pattern in ((int, r"[+-]?[0-9]{1,18}"), (float, r"[+-]?[0-9]{1,18}\.?[0-9]{0,18}([eE][+-]?[0-9]{1,3})?")):
        if re.fullmatch(pattern, node.value):
            return kind(node.value)
    return node.value
