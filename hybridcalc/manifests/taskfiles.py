r"""Which engines do files start that hold commands and are no shell's? justfiles, Procfiles, programs of
supervisord, tasks in TOML, sections of flags in an INI file.

    model := "org/m"                      ->   vllm  org/m  --max-model-len  8192
    serve:
        vllm serve {{model}} \
          --max-model-len 8192

Each is told by a `Dialect`: how it sets a variable, where its commands stand, how it writes a reference and a line that
goes on. Commands are read as a shell's then. Left out: functions of just, dependencies, loops.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Setting, Text, Word
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside, Variables

MOST_SETTINGS = 2_000
TOO_MANY = f"the file sets more than {MOST_SETTINGS:,} variables, of which the first are read"
_TO_THE_END = r"(?:[^\\\n]|\\[\s\S])*"
"""The rest of a line, and those that a backslash joins to it."""
_CONTINUED = re.compile(r"\\[ \t]*\r?\n[ \t]*")


_SECTION = re.compile(r"(?m)^\[([^\]\n]+)\][^\n]*(?:\n(?!\[)[^\n]*)*")
_FIELD = r"(?m)^{}[ \t]*=[ \t]*([^\n]*(?:\n(?:[ \t]+[^\n]*|[;#][^\n]*))*)"
_COMMAND, _ENVIRONMENT = re.compile(_FIELD.format("command")), re.compile(_FIELD.format("environment"))
_COMMENT = re.compile(r"(?m)(?:^|[ \t])[;#][^\n]*")
_PAIR = re.compile(r"([A-Za-z_]\w*)[ \t]*=[ \t]*(\"[^\"\n]*\"|'[^'\n]*'|[^,\s\"']*)")
_PERCENT = re.compile(r"%%|%\(ENV_([A-Za-z_]\w*)\)s|%\((\w+)\)[0-9]*[sd]")
_DOLLAR = re.compile(r"'[^'\n]*'|[$`]")


class Dialect(NamedTuple):
    """How a kind of file writes commands.

    ``settings``: variables with their ``name``, ``value``, and ``default`` where it may come from outside.
    ``commands``: where commands stand (the group that is there). ``prefix``: what stands before one of them and is no
    part of it. ``reference``: a variable (the group that is there), or the mark of a character. ``joined``: what joins
    two lines.
    """

    settings: re.Pattern[str]
    commands: re.Pattern[str]
    prefix: re.Pattern[str] = re.compile(r"(?!)")
    reference: re.Pattern[str] = re.compile(r"(?!)")
    joined: re.Pattern[str] = re.compile(r"(?!)")


NEVER = re.compile(r"(?!)")
DIALECTS = {
    "justfile": Dialect(
        re.compile(
            r"(?m)^(?:export[ \t]+)?(?P<name>[A-Za-z_][\w-]*)[ \t]*:=[ \t]*"
            r"(?:(?P<default>env(?:_var_or_default)?\([^,()]*,)[ \t]*)?(?P<value>\"[^\"\n]*\"|'[^'\n]*')"
            r"|(?<=[ \t])(?P<parameter>[A-Za-z_][\w-]*)="
            r"(?P<held>\"[^\"\n]*\"|'[^'\n]*'|[\w./-]+)(?=[^\n{}]{0,400}:[^=])"
        ),
        re.compile(rf"(?m)((?:^[ \t]+{_TO_THE_END}(?:\n|\Z))+)"),
        re.compile(r"(?m)(?<!\\\n)^[ \t]+[@-]*"),
        re.compile(r"\{\{[ \t]*([A-Za-z_][\w-]*)[ \t]*\}\}"),
    ),
    "procfile": Dialect(NEVER, re.compile(r"(?m)^[\w-]+:[ \t]*([^\n]*)$")),
    "tasks": Dialect(
        re.compile(r"(?m)^(?P<name>[A-Z_]\w*)[ \t]*=[ \t]*(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[0-9]+)"),
        re.compile(
            r"(?m)^[ \t]*(?:run|cmd|command|script|serve|exec)[ \t]*=[ \t]*"
            r"(?:\"\"\"([\s\S]*?)\"\"\"|'''([\s\S]*?)'''|\"((?:[^\"\\\n]|\\.)*)\"|'([^'\n]*)')"
        ),
        re.compile(r"\\(?=[\"])"),
    ),
}  # fmt: skip


def read_commands(kind: str, text: Text, outside: Outside) -> Iterator[Deployment]:
    """What the commands of a file start, in a dialect of DIALECTS."""
    dialect = DIALECTS[kind]
    known = Variables(text, {}, outside, ())
    for count, match in enumerate(dialect.settings.finditer(text.text)):
        if count >= MOST_SETTINGS:
            name = match["name"] or match["parameter"]
            known.env[name.replace("-", "_")] = Setting((), TOO_MANY)
            continue
        _set(match, text, dialect, known, outside)
    for match in dialect.commands.finditer(text.text):
        group = next(number for number, held in enumerate(match.groups(), 1) if held is not None)
        held = text.part(*match.span(group))
        for pattern, new in ((dialect.joined, " \\\n"), (dialect.prefix, "")):
            held = held.replaced(pattern, lambda _, new=new: new)  # type: ignore[misc]
        held = held.replaced(dialect.reference, _reference)
        for launch in run_script(held, known.env, outside).launches:
            yield Deployment(text.source, kind, "", launch)


def _set(match: re.Match[str], text: Text, dialect: Dialect, known: Variables, outside: Outside) -> None:
    """Take in one variable."""
    groups = match.groupdict()
    name = groups["name"] or groups["parameter"]
    where = "value" if groups["value"] is not None else "held"
    begin, end = match.span(where)
    if text.text[begin : begin + 1] in ("'", '"'):
        begin, end = begin + 1, end - 1
    held = text.part(begin, end).replaced(_CONTINUED, lambda _: " ").replaced(dialect.reference, _reference)
    may_differ = groups.get("default") is not None or where == "held"
    given = outside.get(name) if may_differ else None
    value, why = (given, "") if given is not None else known.resolved(held.text.strip())
    word = Word(value or held.text, text.source, text.at(begin), text.end(end), text.part(begin, end), why=why)
    known.env[name.replace("-", "_")] = Setting((word,))


def _reference(match: re.Match[str]) -> str:
    name = next(filter(None, match.groups()), None)
    return "$" if name is None else f"${{{name.replace('-', '_')}}}"


def read_supervisord(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """What the programs of a supervisord start: each under its own ``environment`` and that of [supervisord] alone. No
    shell reads a command, so that a dollar stands for itself.
    """
    sections = list(_SECTION.finditer(text.text))
    shared: dict[str, Setting] = {}
    for section in sections:
        if section[1].strip() == "supervisord":
            shared = _environment(text, section, shared, outside)
    for section in sections:
        if section[1].partition(":")[0] not in ("program", "fcgi-program", "eventlistener"):
            continue
        env = _environment(text, section, shared, outside)
        for match in _COMMAND.finditer(text.text, *section.span()):
            held = text.part(*match.span(1)).replaced(_COMMENT, lambda _: "")
            held = held.replaced(re.compile(r"\s*\n\s*"), lambda _: " ")
            held = held.replaced(_DOLLAR, lambda found: None if found[0][0] == "'" else f"\\{found[0]}")
            held = held.replaced(_PERCENT, _percent)
            names = {
                found[2]: Setting((), "supervisord decides it") for found in _PERCENT.finditer(match[1]) if found[2]
            }
            for launch in run_script(held, env | names, outside).launches:
                yield Deployment(text.source, "supervisord", "", launch)


_KEY = re.compile(r"(?m)^([A-Za-z][\w-]*)[ \t]*=[ \t]*([^\n;#]*?)[ \t]*\r?(?=[;#\n]|\Z)")
_OFF = frozenset({"0", "false", "off", "no"})


def read_ini(text: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """What programs of supervisord start; else the servers of a router: each section is a model's, its keys are flags,
    and those of ``[*]`` are every model's. A section's name is its model where it is an id and no key names one.
    """
    yield from read_supervisord(text, outside)
    for engine, row in ENGINES.rows.items():
        shared: list[Word] = []
        for section in _SECTION.finditer(text.text):
            words = [word for key in _KEY.finditer(text.text, *section.span()) for word in _flag(text, key, engine)]
            named = not set(words).isdisjoint(row.starter.model_flags)
            name = Word(section[1].strip(), text.source, text.at(section.start(1)), text.end(section.end(1)))
            if name == "*":
                shared = words
            elif len(words) + len(shared) > 2 and (named or (words and "/" in name)):
                launch = Launch(engine, (*shared, *words), {}, name.place, model=None if named else name)
                yield Deployment(text.source, "ini", name, launch)


def _flag(text: Text, key: re.Match[str], engine: str) -> Iterator[Word]:
    """The words of a key and its value, where that is a sizing flag of an engine."""
    table = ENGINES[engine].flags.by_spelling
    spelled = next((name for name in (f"--{key[1]}", f"-{key[1]}") if name in table), None)
    switch = spelled is not None and table[spelled].kind in ("flag", "switch")
    if spelled is not None and not (switch and key[2].lower() in _OFF):
        yield Word(spelled, text.source, text.at(key.start(1)), text.end(key.end(1)))
        yield from () if switch else (Word(key[2], text.source, text.at(key.start(2)), text.end(key.end(2))),)


def _environment(
    text: Text, section: re.Match[str], shared: dict[str, Setting], outside: Outside
) -> dict[str, Setting]:
    """The environment of a section, over one that it shares."""
    known = Variables(text, shared, outside, ())
    for field in _ENVIRONMENT.finditer(text.text, *section.span()):
        for count, match in enumerate(_PAIR.finditer(text.text, *field.span(1))):
            if count >= MOST_SETTINGS:
                known.env[match[1]] = Setting((), TOO_MANY)
                continue
            begin, end = match.span(2)
            if match[2][:1] in ("'", '"'):
                begin, end = begin + 1, end - 1
            part = text.part(begin, end)
            value, why = known.resolved(part.replaced(_PERCENT, _percent).text)
            word = Word(value or part.text, text.source, text.at(begin), text.end(end), part, why=why)
            known.env[match[1]] = Setting((word,))
    return known.env


def _percent(match: re.Match[str]) -> str:
    return "%" if match[0] == "%%" else f"${{{match[1]}}}" if match[1] else f"$({match[2]})"
