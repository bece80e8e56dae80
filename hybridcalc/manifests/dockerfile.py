r"""Which engine does a Dockerfile or a systemd unit start? ``CMD`` and ``ENTRYPOINT``; ``ExecStart``.

    ENTRYPOINT ["vllm", "serve"]          ExecStart=/usr/bin/vllm serve MODEL \\
    CMD ["MODEL", "--max-num-seqs", "8"]      --max-num-seqs 8

``ENV``, ``ARG`` and ``Environment=`` give variables; the last stage and its last ``CMD`` and ``ENTRYPOINT`` count.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.containers import launches
from hybridcalc.manifests.environment import env_file
from hybridcalc.manifests.fields import split_words
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Setting, Source, Text, Word
from hybridcalc.shell.containers import installed, mounted
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside, Variables

_ITEM = re.compile(r'"(?:[^"\\]|\\.)*"')
_PAIR = re.compile(r"(?<!\w)([A-Za-z_]\w*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^\s\\]|\\.)*)")
_ASSIGNED = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s\"'\\]|\\.)+")
_QUOTE = re.compile(r"[\"']|\\(.)")
"""Assignments of a unit, which quotes hold together, and what is taken out of them."""
_QUOTED = re.compile(r"(?<!\S)'((?:[^'\\]|\\[\s\S])*)'(?!\S)")
_BEHIND = re.compile(r"(?<=\\)[ \t]+(?=\r?\n)")
"""Blanks behind a backslash that ends a line, of which Docker takes no notice."""
_COMMENT = re.compile(r"(?<=\n)[ \t]*#[^\n]*(\n|$)")


class Instruction(NamedTuple):
    """A line of a file with those that continue it: its name, and the text after it (continuations kept)."""

    name: str
    text: Text


class Image(NamedTuple):
    """What the last stage of a Dockerfile makes: the image it is built on, its entrypoint and command, its variables,
    and the releases that are installed in it.
    """

    base: str
    entrypoint: Text | None
    command: Text | None
    env: dict[str, Setting]
    releases: dict[str, str]


def image_of(file: Text, outside: Outside) -> Image:
    """The image that a Dockerfile makes."""
    entrypoint = command = None
    image = ""
    known = Variables(file, {}, {}, ())
    stages: dict[str, str] = {}
    releases: dict[str, str] = {}
    for instruction in _instructions(file, re.compile(r"[ \t]*([A-Za-z]+)[ \t]+")):
        name = instruction.name.upper()
        if name == "FROM":
            words = [word for word in instruction.text.text.split() if not word.startswith("--")]
            releases = releases if words and words[0] in stages else {}
            image, entrypoint, command = stages.get(words[0], words[0]) if words else "", None, None
            if len(words) == 3 and words[1].upper() == "AS":
                stages[words[2]] = image
        elif name == "RUN":
            releases |= installed(instruction.text.text.split())
        elif name == "ENTRYPOINT":
            entrypoint, command = instruction.text, None
        elif name == "CMD":
            command = instruction.text
        elif name in ("ENV", "ARG"):
            _variables(instruction.text, known, outside, argument=name == "ARG")
    return Image(image, entrypoint, command, known.env, releases)


def read_dockerfile(file: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """What the image of a Dockerfile starts."""
    image = image_of(file, outside)
    for launch in image_launches(image, image.env, outside):
        release = launch.release or image.releases.get(launch.engine, "")
        yield Deployment(file.source, "Dockerfile", image.base, launch._replace(release=release))


def image_launches(image: Image, env: dict[str, Setting], outside: Outside) -> list[Launch]:
    """What an image starts by itself under variables."""
    entrypoint, command = image.entrypoint, image.command
    forms = [exec_form(text) for text in (entrypoint, command) if text is not None]
    if any(words is None for words in forms):  # a shell form: it is a script, and no CMD reaches its entrypoint
        text = entrypoint if entrypoint is not None and exec_form(entrypoint) is None else command
        first = exec_form(entrypoint) if entrypoint is not None and text is command else None
        found = run_script(text, env, outside).launches if text is not None and not first else []
        return [launch if launch.image else launch._replace(image=image.base) for launch in found]
    words = [word for form in forms for word in form or []]
    return launches(words, [], env, outside, image=image.base) or launches([], words, env, outside, image=image.base)


def exec_form(text: Text) -> list[Word] | None:
    """The words of a JSON array; None for a shell form."""
    content = text.text.strip()
    if not content.startswith("["):
        return None
    try:
        values = json.loads(re.sub(r"\\[ \t]*\r?\n", "", content))
    except ValueError:
        return None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    words: list[Word] = []
    for value, match in zip(values, _ITEM.finditer(text.text), strict=False):
        inner = text.part(match.start() + 1, match.end() - 1)
        chars = inner if inner.text == value else None
        words.append(Word(value, text.source, text.at(match.start() + 1), text.end(match.end() - 1), chars))
    return words


def _variables(text: Text, known: Variables, outside: Outside, *, argument: bool) -> None:
    pairs = list(_PAIR.finditer(text.text))
    if not pairs and not argument:  # ENV NAME value
        name, _, value = text.text.strip().partition(" ")
        begin = text.text.find(value)
        known.env[name] = Setting(
            (Word(value.strip(), text.source, text.at(begin), text.end(len(text.text.rstrip()))),)
        )
        return
    for pair in pairs:
        value = pair[2][1:-1] if pair[2][:1] in ("'", '"') else pair[2]
        given = outside.get(pair[1]) if argument else None
        new, why = (given, "") if given is not None else known.resolved(value)
        word = Word(value if new is None else new, text.source, text.at(pair.start(2)), text.end(pair.end(2)), why=why)
        known.env[pair[1]] = Setting((word,))


def read_unit(file: Text, outside: Outside, beside: Callable[[str], Source | None]) -> Iterator[Deployment]:
    """What a systemd unit starts; a Quadlet's ``Image`` with its ``Exec``."""
    source = file.source
    env: dict[str, Setting] = {}
    lines = list(_instructions(file, re.compile(r"[ \t]*([A-Za-z]+)[ \t]*=[ \t]*")))
    for line in lines:
        if line.name == "EnvironmentFile":
            env |= env_file(beside(line.text.text.strip().removeprefix("-")))
        elif line.name == "Environment":
            for assigned in _ASSIGNED.finditer(line.text.text):
                text = line.text.part(*assigned.span()).replaced(_QUOTE, lambda match: match[1] or "")
                name, equals, value = text.text.partition("=")
                held = text.part(len(name) + 1, len(text.text))
                if equals:
                    env[name] = Setting((Word(value, source, held.at(0), held.end(len(value)), held),))
    last = {line.name: line.text for line in lines}
    image, execute = last.get("Image"), last.get("Exec")
    name = source.path.rpartition("/")[2]
    if image is not None:
        words = split_words(execute) if execute is not None else []
        mounts = [
            mount
            for line in lines
            if line.name == "Volume"
            for word in split_words(line.text)
            for mount in mounted(word, word)
        ]
        for launch in launches([], words, env, outside, image=image.text.strip()):
            model = ENGINES.launchers.model_of(launch.words, mounts)
            yield Deployment(source, "quadlet", name, launch._replace(model=model))
    for line in lines:
        if line.name == "ExecStart":
            begin = len(line.text.text) - len(line.text.text.lstrip("-@:+! \t"))
            text = line.text.part(begin, len(line.text.text)).replaced(_QUOTED, _as_shell)
            for launch in run_script(text, env, outside).launches:
                yield Deployment(source, "systemd", name, launch)


def _as_shell(match: re.Match[str]) -> str | None:
    """A word in single quotes, in which systemd reads escapes, as a shell has it."""
    inner = match[1]
    return "'" + inner.replace("\\'", "'\\''").replace('\\"', '"') + "'" if "\\" in inner else None


def _instructions(file: Text, head: re.Pattern[str]) -> Iterator[Instruction]:
    """The instructions of a file, comments left out; a backslash at its end continues a line."""
    text = file.text
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        match = head.match(text, at, end)
        if match is not None:
            while end < len(text) and _goes_on(text, at, end):
                following = text.find("\n", end + 1)
                end = len(text) if following < 0 else following
            content = _COMMENT.sub(lambda comment: " " * len(comment[0]), text[match.end() : end]).removesuffix("\r")
            held = file.part(match.end(), match.end() + len(content))
            whole = Text(file.source, content, held.base, held.spots)
            yield Instruction(match[1], whole.replaced(_BEHIND, lambda _: ""))
        at = end + 1


def _goes_on(text: str, begin: int, end: int) -> bool:
    """Whether an instruction goes on after ``end``: its last line that is no comment ends in a backslash."""
    while end > begin:
        start = text.rfind("\n", begin, end) + 1
        line = text[start:end] if start else text[begin:end]
        if start and line.lstrip().startswith("#"):
            end = start - 1
            continue
        return line.rstrip().endswith("\\")
    return False
