"""What does a container start? Its command and arguments, under its environment, as an orchestrator joins them.

    command: [bash, -c]   args: ["exec vllm serve $MODEL ..."]   env: MODEL   ->   vllm, its words

Kubernetes replaces ``$(VAR)`` and compose ``${VAR}`` before anything else sees the text; ``$$`` stands for one ``$``.
Arguments alone go to the entrypoint of the image, which is an engine where the image's name or the flags say so.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from hybridcalc.engines.engine import ENGINES
from hybridcalc.manifests.fields import split_words
from hybridcalc.manifests.scripts import launches_of_words
from hybridcalc.manifests.yamltree import Node, Scalar
from hybridcalc.manifests.yamltree import Sequence as Items
from hybridcalc.shell.bounds import spend
from hybridcalc.shell.launch import SCRIPT_OPTION, Launch
from hybridcalc.shell.source import Place, Setting, Text, Word
from hybridcalc.shell.variables import LONGEST_VALUE, Outside

Lookup = Callable[[str], Setting | None]
KUBERNETES = re.compile(r"\$(?:\$(?=\()|\(([A-Za-z_.][A-Za-z0-9_.-]*)\))")
COMPOSE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^{}]|\{[^{}]*\})*))?\})")
_WRAPPER = re.compile(r"(.*/)?(tini|dumb-init|entrypoint(\.sh)?|nvidia_entrypoint\.sh|docker-entrypoint\.sh|catatonit)")


def replaced(text: Text, pattern: re.Pattern[str], lookup: Lookup) -> tuple[Text, dict[str, str]]:
    """A text with its references replaced, and why those that stay are not known, by name."""
    missing: dict[str, str] = {}

    def value(match: re.Match[str]) -> str | None:
        name = match[1] or (match[2] if pattern is COMPOSE else None)
        if name is None:
            return "$"
        setting = lookup(name)
        operator, default = (match[3], match[4]) if pattern is COMPOSE else (None, None)
        if setting is None and operator in (":-", "-") and default is not None:
            return COMPOSE.sub(lambda inner: value(inner) or "", default)
        if operator in (":+", "+"):
            return (default or "") if setting is not None and setting.text else ""
        if setting is None:
            missing[name] = f"{name} comes from outside"
            return None
        if setting.text == "" and operator == ":-":
            return default or ""
        if setting.text is None:
            missing[name] = setting.reason
        return setting.text

    length = 0

    def grown(match: re.Match[str]) -> str | None:
        nonlocal length
        new = value(match)
        length += len(new or "")
        if length <= LONGEST_VALUE:
            spend(characters=len(new or ""))
            return new
        missing[match[1] or (match[2] if pattern is COMPOSE else None) or "$"] = "its value grows too long"
        return None

    return text.replaced(pattern, grown), missing


def resolved_words(
    node: Node | None, pattern: re.Pattern[str], lookup: Lookup, before: Sequence[Word] = ()
) -> list[Word]:
    """The words of a ``command`` or ``args``, ``before`` the words of the other: a list of words, or one text that is
    split. A script after ``bash -c`` keeps references nobody resolved: the shell sees them too.
    """
    if isinstance(node, Scalar):
        if node.empty:
            return []
        text, missing = replaced(node.text(), pattern, lookup)
        return _marked(split_words(text), missing)
    words: list[Word] = []
    for item in node.items if isinstance(node, Items) else []:
        spend(words=1)
        if not isinstance(item, Scalar):
            words.append(Word("[...]", item.source, item.begin, item.end, why="it is no text"))
            continue
        word = item.word()
        if word.why:
            words.append(word)
            continue
        text, missing = replaced(item.text(), pattern, lookup)
        if missing and not _is_script([*before, *words]):
            words.append(word.instead(text.text, next(iter(missing.values()))))
        else:
            written = _written(item, pattern, lookup)
            words.append(Word(text.text, word.source, word.begin, word.end, text, written=written))
    return words


def _written(item: Scalar, pattern: re.Pattern[str], lookup: Lookup) -> Place | None:
    """Where the value is written of an item that is one reference and nothing else."""
    match = pattern.fullmatch(item.value)
    name = (match[1] or (match[2] if pattern is COMPOSE else None)) if match is not None else None
    setting = lookup(name) if name else None
    return setting.place if setting is not None else None


def _is_command_line(word: str) -> bool:
    """Whether blanks follow the name of an engine."""
    named = ENGINES.launchers.named.search(word)
    return named is not None and any(char.isspace() for char in word[named.end() :])


def _is_script(words: Sequence[Word]) -> bool:
    return bool(words) and SCRIPT_OPTION.fullmatch(words[-1]) is not None


def _marked(words: list[Word], missing: Mapping[str, str]) -> list[Word]:
    """Words that hold a reference nobody resolved, with the reason why."""
    marked: list[Word] = []
    for word in words:
        why = next((why for name, why in missing.items() if re.search(rf"\$[({{]?{re.escape(name)}\b", word)), None)
        marked.append(word.instead(word, why) if why is not None else word)
    return marked


def launches(
    command: Sequence[Word],
    arguments: Sequence[Word],
    env: Mapping[str, Setting],
    outside: Outside,
    *,
    image: str = "",
    bare: bool = True,
) -> list[Launch]:
    """What a container starts. ``bare`` arguments may be those of an engine that is the image's entrypoint."""
    words = [*command, *arguments]
    found = launches_of_words(words, env, outside) if words else []
    for at, word in enumerate(words if not found else ()):  # a whole command line as one word
        if not word.why and word.chars is not None and _is_command_line(word):
            found = launches_of_words([*split_words(word.chars), *words[at + 1 :]], env, outside)
            if found:
                break
    entry = [word for word in command if not _WRAPPER.fullmatch(word) and word != "--"]
    if not found and bare and words and not (entry and not entry[0].startswith("-")):
        found = _arguments_alone([*entry, *arguments], env, image)
    return [launch if launch.image else launch._replace(image=image) for launch in found]


def _arguments_alone(words: list[Word], env: Mapping[str, Setting], image: str) -> list[Launch]:
    """The launch that arguments make of an image whose entrypoint is an engine."""
    if len(words) == 1 and not words[0].why and words[0].chars is not None and words[0].startswith("--"):
        words = split_words(words[0].chars) if " " in words[0] else words
    names = {word.partition("=")[0] for word in words if word.startswith("-")}
    launchers = ENGINES.launchers
    engine = (launchers.image_engine(image) or launchers.engine_of_flags(names)) if names else None
    return [Launch(engine, tuple(words), env, words[0].place)] if engine is not None else []
