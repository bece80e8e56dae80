"""Which variables does a field declare? ``env``, ``envs`` and ``environment`` in all their forms, and .env files.

env: {A: x}      env: [{name: A, value: x}]      environment: [A=x, B]      ->      A: x, and B without a value
"""

from collections.abc import Callable, Iterator

from hybridcalc.manifests.yamltree import Mapping, Node, Scalar, Sequence
from hybridcalc.shell import Setting, Source, Word, spend


def declared(
    field: Node | None, word_of: Callable[[Scalar], Word] = Scalar.word
) -> Iterator[tuple[str, Setting | None, Node]]:
    """Every variable of a field, its value as ``word_of`` reads it (None where none stands there), and its entry."""
    if isinstance(field, Mapping):
        for key, value in field.entries():
            spend(words=1)
            given = isinstance(value, Scalar) and not value.empty
            yield key.value, Setting((word_of(value),)) if given and isinstance(value, Scalar) else None, value
    for item in field.items if isinstance(field, Sequence) else ():
        spend(words=1)
        if isinstance(item, Mapping):
            held = item.get("value")
            yield item.string("name"), Setting((word_of(held),)) if isinstance(held, Scalar) else None, item
        elif isinstance(item, Scalar):
            word = word_of(item)
            name, equals, text = word.partition("=")
            yield name, Setting((word if word.why else word.ending(len(text)),)) if equals else None, item


def env_file(source: Source | None, *, plain: bool = False) -> dict[str, Setting]:
    """The variables of a ``.env`` file: NAME=VALUE lines, comments, one pair of quotes; ``plain``: all behind the = is
    the value.
    """
    values: dict[str, Setting] = {}
    if source is None:
        return values
    offset = 0
    for line in source.text.splitlines(keepends=True):
        stripped = line.strip()
        name, equals, value = stripped.removeprefix("export ").partition("=")
        if equals and not stripped.startswith("#") and name.strip().isidentifier():
            value = value.strip()
            if plain:
                pass
            elif value[:1] in ("'", '"') and value.find(value[0], 1) > 0:
                value = value[1 : value.find(value[0], 1)]
            else:
                value = value.partition(" #")[0].strip()
            begin = offset + line.find("=") + 1
            values[name.strip()] = Setting((Word(value, source, begin, offset + len(line.rstrip())),))
        offset += len(line)
    spend(words=len(values))
    return values
