"""What does a container start? Its command and arguments, under its environment, as an orchestrator joins them.

    command: [bash, -c]   args: ["exec vllm serve $MODEL ..."]   env: MODEL   ->   vllm, its words

Kubernetes replaces ``$(VAR)`` and compose ``${VAR}`` before anything else sees the text; ``$$`` stands for one ``$``.
Arguments alone go to the entrypoint of the image, which is an engine where the image's name or the flags say so.
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.engines import ENGINES
from hybridcalc.manifests.fields import split_words
from hybridcalc.manifests.scripts import launches_of_words
from hybridcalc.manifests.yamltree import Node, Scalar
from hybridcalc.manifests.yamltree import Sequence as Items
from hybridcalc.shell import Setting, Text, Word, spend
from hybridcalc.shell.launch import SCRIPT_OPTION, Launch
from hybridcalc.shell.variables import LONGEST_VALUE, NESTED, Outside, Variables

KUBERNETES = re.compile(r"\$(?:\$(?=\()|\(([A-Za-z_.][A-Za-z0-9_.-]*)\))")
COMPOSE = re.compile(rf"\$(?:\$|([A-Za-z_]\w*)|\{{({NESTED})\}})")
"""References, and the mark that stands for one ``$``."""
_WRAPPER = re.compile(r"(.*/)?(tini|dumb-init|entrypoint(\.sh)?|nvidia_entrypoint\.sh|docker-entrypoint\.sh|catatonit)")


def replaced(text: Text, pattern: re.Pattern[str], known: Variables) -> tuple[Text, dict[str, str]]:
    """A text with its references replaced, and why those that stay are not known, by name."""
    missing: dict[str, str] = {}
    length = 0

    def value(match: re.Match[str]) -> str | None:
        nonlocal length
        inside = next(filter(None, match.groups()), None)
        if inside is None:
            return "$"
        if inside.startswith(("{", "<", "%")):
            return None
        setting = known.lookup(inside)
        new, why = known.parameter(inside) if pattern is COMPOSE else (setting.text, setting.reason)
        length += len(new or "")
        if new is None or length > LONGEST_VALUE:
            missing[re.split(r"\W", inside)[0]] = why or "its value grows too long"
            return None
        spend(characters=len(new))
        return new

    return text.replaced(pattern, value), missing


def resolved_word(item: Scalar, pattern: re.Pattern[str], known: Variables, *, script: bool = False) -> Word:
    """A value as one word, its references replaced. A script keeps those nobody resolved: the shell sees them too."""
    word = item.word()
    if word.why or "$" not in word:
        return word
    text, missing = replaced(item.text(), pattern, known)
    if missing and not script:
        return word.instead(text.text, next(iter(missing.values())))
    reference = pattern.fullmatch(item.value)
    name = next(filter(None, reference.groups()), "") if reference is not None else ""
    written = known.lookup(re.split(r"\W", name)[0]).place if name else None
    return Word(text.text, word.source, word.begin, word.end, text, written=written)


def resolved_words(
    node: Node | None, pattern: re.Pattern[str], known: Variables, before: Sequence[Word] = ()
) -> list[Word]:
    """The words of a ``command`` or ``args``, ``before`` the words of the other: a list of words, or one text that is
    split.
    """
    if isinstance(node, Scalar):
        text, missing = replaced(node.text(), pattern, known)
        return [] if node.empty else marked(split_words(text), missing)
    words: list[Word] = []
    for item in node.items if isinstance(node, Items) else []:
        spend(words=1)
        if isinstance(item, Scalar):
            words.append(resolved_word(item, pattern, known, script=_is_script([*before, *words])))
        else:
            words.append(Word("[...]", item.source, item.begin, item.end, why="it is no text"))
    return words


def _is_command_line(word: str) -> bool:
    """Whether blanks follow the name of an engine."""
    named = ENGINES.launchers.spoken.search(word)
    return named is not None and any(char.isspace() for char in word[named.end() :])


def _is_script(words: Sequence[Word]) -> bool:
    return bool(words) and SCRIPT_OPTION.fullmatch(words[-1]) is not None


def marked(words: list[Word], missing: Mapping[str, str]) -> list[Word]:
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
    """What a container starts. ``bare`` arguments may be those of an engine that is the image's entrypoint; an
    ``image`` with its place may start an engine without any.
    """
    words = [*command, *arguments]
    serving = ENGINES.launchers.serving(image) if isinstance(image, Word) and not command else None
    if serving is not None and arguments[:1] in ([], list(serving.words[:1])):
        return [serving._replace(words=(*serving.words, *arguments[1:]), env=env)]
    if not words:
        made = ENGINES.launchers.by_variables(env, image)
        return [] if made is None else [made]
    found = launches_of_words(words, env, outside)
    for at, word in enumerate(words if not found else ()):  # a whole command line as one word
        if not word.why and word.chars is not None and _is_command_line(word):
            found = launches_of_words([*split_words(word.chars), *words[at + 1 :]], env, outside)
            if found:
                break
    entry = [word for word in command if not _WRAPPER.fullmatch(word) and word != "--"]
    if not found and bare and words and not (entry and not entry[0].startswith("-")):
        found = _arguments_alone([*entry, *arguments], env, image)
    return [launch if launch.image else launch._replace(image=str(image)) for launch in found]


def _arguments_alone(words: list[Word], env: Mapping[str, Setting], image: str) -> list[Launch]:
    """The launch that arguments make of an image whose entrypoint is an engine."""
    if len(words) == 1 and not words[0].why and words[0].chars is not None and words[0].startswith("--"):
        words = split_words(words[0].chars) if " " in words[0] else words
    if words and words[0] == "serve":  # the rest of the program that is the entrypoint
        words = words[1:]
    end = next((at for at, word in enumerate(words) if at and word == "--"), len(words))
    words = words[:end]  # behind it is what a script of somebody's own hands to another program
    names = {word.partition("=")[0] for word in words if word.startswith("-")}
    launchers = ENGINES.launchers
    engine = launchers.image_engine(image) if names else None
    if engine is None and names and (words[0].startswith("-") or words[0].why or "/" in words[0]):  # and no program
        engine = launchers.engine_of_flags(names)
    return [Launch(engine, tuple(words), env, words[0].place)] if engine is not None else []
