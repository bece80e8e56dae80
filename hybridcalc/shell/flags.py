"""How does an engine's command line read its flags, and which of its words mean something to a plan?

A `FlagTable` is an engine's list of flags: those a plan needs (`Flag`), those it does not (names alone), and those that
name a file of flags, which are refused. It reads words as argparse does: ``--flag value`` and ``--flag=value``, the
last of repeated flags, abbreviations that fit one flag alone. Flags a plan does not need, and names nobody knows, are
passed over with their values; a name that all but spells a needed one is refused. Knows no engine: engines/*/flags.py
has the tables, engines/*/flags.py settles flags against each other.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.errors import AmbiguousFlag, InputError, MisspeltFlag, quoted
from hybridcalc.shell import Word, is_unresolved

MOST_UNKNOWN = 100
"""Names no list has, in one command; each is compared with every name there is."""
LIKENESS = 0.8
SOME_LIKENESS = 0.7
"""From this difflib ratio on, an unknown name counts as a misspelling."""
PARTS_LIKE, WHOLE_LIKE = 0.5, 0.88
"""The same of a part between dashes of two names that have as many, and of the whole of others."""
LONGEST_JSON = 2**16
MOST_CHOICES = 12
"""Of the values that a flag takes, those that are listed."""

_NEGATIVE = re.compile(r"-(?:[0-9]+|[0-9]*\.[0-9]+)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_CUT = re.compile(r"([0-9]{1,9})([A-Za-z.,_].{0,20})")
_FACTORS = {"k": 2**10, "m": 2**20}
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")
_NAMES_MODEL = re.compile(r"(?i)[a-z].*[-/]")
FIRST = "a MODEL stands before the engine's flags; else name its flag"
_DASHES = tuple("\u2010\u2011\u2012\u2013\u2014\u2015\u2212")


class Flag(NamedTuple):
    """One flag: ``spellings`` begin with the engine's own.

    ``kind``: "flag" (no value), "switch" (no value, and a ``--no-`` form), "int", "tokens" (an int that also takes the
    engine's multiples), "float", "json" (an object) or "str". Whole numbers lie in [least, most], floats in (least,
    most]; a str is one of ``choices`` where there are any.
    """

    field: str
    spellings: tuple[str, ...]
    kind: str
    least: int = 0
    most: int = 0
    choices: tuple[str, ...] = ()


WEIGHTS_ELSEWHERE = frozenset({
    "--offload-group-size", "--kt-weight-path", "--kt-num-gpu-experts", "--enable-paged-experts",
    "--cpu-offload-params", "--offload-params",
})  # fmt: skip
"""Flags that put weights into host memory, how many of them no plan here knows."""


def among(words: Sequence[str], names: Collection[str], spelling: Callable[[str], str] = str) -> tuple[str, ...]:
    """Those of the flags ``names`` that stand in ``words``, each once."""
    found = (spelling(word.partition("=")[0]) for word in words)
    return tuple(dict.fromkeys(name for name in found if name in names))


def wanted(flag: Flag) -> str:
    """What a flag takes, in words."""
    if flag.choices:
        more = ", ..." if len(flag.choices) > MOST_CHOICES else ""
        return f"one of {', '.join(flag.choices[:MOST_CHOICES])}{more}"
    if flag.kind == "str":
        return "a name"
    if flag.kind == "json":
        return 'a JSON object, as {"method": "mtp"}'
    if flag.kind in ("flag", "switch"):
        return "true or false"
    if flag.kind == "float":
        return f"a number above {flag.least} and at most {flag.most:,}"
    return f"a whole number from {flag.least:,} to {flag.most:,}"


def holds(flag: Flag, value: object) -> bool:
    """Whether a value that no command line was read for, from Python or a file, is one the flag takes."""
    if flag.kind in ("flag", "switch"):
        return isinstance(value, bool)
    if flag.kind == "str":
        return isinstance(value, str) and bool(value) and (not flag.choices or value in flag.choices)
    if flag.kind == "json":
        return isinstance(value, Mapping)
    if isinstance(value, bool):
        return False
    if flag.kind == "float":
        return isinstance(value, int | float) and flag.least < value <= flag.most
    return isinstance(value, int) and flag.least <= value <= flag.most


class FlagTable:
    """The flags of one engine.

    ``read_tokens`` reads a number with the engine's multiples, ``multiples`` says what they are, ``spelling`` turns a
    typed name into the engine's own (some take underscores for dashes). ``leading_digits``: of a whole number the
    engine reads the digits in front (``std::stoi``), and starts with these.
    """

    def __init__(
        self,
        engine: str,
        flags: Sequence[Flag],
        others: Collection[str],
        files: Collection[str],
        *,
        read_tokens: Callable[[str], int | None],
        multiples: str,
        spelling: Callable[[str], str] = str,
        leading_digits: bool = False,
    ) -> None:
        self.engine, self.flags, self.others, self.files = engine, flags, others, files
        self.multiples, self.spelling, self.leading_digits = multiples, spelling, leading_digits
        self.by_field = {flag.field: flag for flag in reversed(flags)}
        self.by_spelling = {spelling: flag for flag in flags for spelling in flag.spellings}
        self.switched_off = {off: flag for flag in flags if flag.kind == "switch" for off in _negations(flag)}
        self.names = sorted({*self.by_spelling, *self.switched_off, *others})
        self._readers: dict[str, Callable[[str], Any]] = {
            "int": _whole,
            "float": _number,
            "tokens": read_tokens,
            "json": _object,
            "str": str,
        }

    def read(self, words: Sequence[str], *, unknown: list[str] | None = None) -> dict[str, Any]:
        """Values by the first spelling of their flags; the first word may be the model, which stands under "".

        Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a
        misspelt or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands
        before it. ``unknown`` collects the flags that are passed over although no list has them.
        """
        given: dict[str, Any] = {}
        seen: set[str] = set()
        before, passing, at, word = "", False, 0, ""
        try:
            if words and not is_flag(word := words[0]):
                check_resolved(word)
                given[""] = str(word)
                at = 1
            while at < len(words):
                word = words[at]
                at += 1
                if not is_flag(word):
                    if not passing or is_unresolved(words[at - 2]):
                        check_resolved(word)
                        fix = FIRST if _NAMES_MODEL.search(word) else "leave it out, or name its flag"
                        raise InputError(f"{quoted(word)}{before} belongs to no flag", fix=fix)
                    continue
                typed, equals, value = word.partition("=")
                name = self.spelling(typed)
                flag, off = self._flag(name, seen)
                before, passing = f" after {name[:40]}", flag is None
                if flag is None:
                    continue
                if flag.kind in ("flag", "switch"):
                    if equals:
                        raise InputError(f"{name} takes no value, but has {quoted(value)}", fix=f"write {name} alone")
                    given[flag.spellings[0]] = not off
                    continue
                if not equals:
                    if at == len(words) or is_flag(words[at]):
                        raise InputError(f"{name} has no value", fix=f"write {name} and {self._wanted(flag)}")
                    value = words[at]
                    at += 1
                given[flag.spellings[0]] = self.value(flag, name, value)
        except InputError as error:
            error.flag = word.partition("=")[0] if word.startswith("-") else str(word)
            raise
        if unknown is not None:
            unknown.extend(sorted(seen))
        return given

    def passed_over(self, words: Sequence[str]) -> list[str]:
        """The words that say nothing to a plan, in their order: flags it does not need, each with its values."""
        passing, kept = False, list[str]()
        for word in words:
            if is_flag(word):
                passing = self.known(word.partition("=")[0]) is None
            if passing:
                kept.append(word)
        return kept

    def named(self, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """For flags of several names that stand in the words: each other name, and the one that was typed."""
        typed = [word.partition("=")[0] for word in words if word.startswith("-")]
        found = [(name, self.by_spelling.get(self.spelling(name))) for name in typed]
        return tuple(
            (other, name) for name, flag in found for other in (flag.spellings if flag else ()) if other != name
        )

    def known(self, typed: str) -> Flag | None:
        """The flag a plan needs under a spelling or an unambiguous abbreviation of it; None for any other name."""
        name = self.spelling(typed.partition(".")[0])
        found = self.by_spelling.get(name) or self.switched_off.get(name)
        if found is not None or name in self.others or not name.startswith("--"):
            return found
        near = self.names[bisect_left(self.names, name) : bisect_left(self.names, name + "\U0010ffff")]
        flags = {self.by_spelling.get(full) for full in near}
        return flags.pop() if len(flags) == 1 else None

    def value(self, flag: Flag, name: str, text: str) -> Any:
        """A value of a flag, read as the engine reads it. Raises InputError for one that cannot be its own."""
        check_resolved(text)
        value = self._readers[flag.kind](text)
        if flag.kind == "str":
            fits = bool(text) and (not flag.choices or text in flag.choices)
        elif flag.kind == "json":
            fits = value is not None
        elif flag.kind == "float":
            fits = value is not None and flag.least < value <= flag.most
        else:
            fits = value is not None and flag.least <= value <= flag.most
        if not fits:
            raise self._unfit(flag, name, text)
        return value

    def _unfit(self, flag: Flag, name: str, text: str) -> InputError:
        cut = _CUT.fullmatch(text) if self.leading_digits and flag.kind == "int" else None
        if cut is None:
            return InputError(f"{name} {quoted(text)} is not {self._wanted(flag)}")
        factor = _FACTORS.get(cut[2].lower())
        fix = f"write {int(cut[1]) * factor}" if factor else "write digits alone"
        return InputError(f"{name} {quoted(text)} is read as {cut[1]}: {self.engine} stops behind the digits", fix=fix)

    def _wanted(self, flag: Flag) -> str:
        return wanted(flag) + (f" ({self.multiples})" if flag.kind == "tokens" else "")

    def _flag(self, name: str, unknown: set[str]) -> tuple[Flag | None, bool]:
        """The flag a plan needs, None for one it does not, and whether the name switches it off.

        Raises InputError for a misspelt or ambiguous name.
        """
        if name in self.by_spelling or name in self.switched_off:
            return self._meaning(name)
        positive = name.replace("--no-", "--", 1) if self.switched_off else name
        if name in self.others or positive in self.others or name in unknown:
            return None, False
        if name in self.files:
            raise InputError(f"{name} names a file of flags, which is not read", fix="give its flags in its place")
        if name == "--":
            raise InputError(f"-- stands alone: {self.engine} takes nothing but flags", fix="leave it out")
        near = self.names[bisect_left(self.names, name) : bisect_left(self.names, name + "\U0010ffff")]
        meanings = {self._meaning(full) for full in near if name.startswith("--")}
        if len(meanings) == 1:
            return meanings.pop()
        if meanings:
            some = ", ".join(near[:3]) + (", ..." if len(near) > 3 else "")
            raise AmbiguousFlag(f"{name} could be {some}", fix="write the flag in full")
        self._check_spelling(name, unknown)
        return None, False

    def _meaning(self, full: str) -> tuple[Flag | None, bool]:
        """What a name in full stands for."""
        off = self.switched_off.get(full) if full not in self.by_spelling else None
        return self.by_spelling.get(full, off), off is not None

    def place_of(self, flag: str, words: Sequence[str]) -> int | None:
        """Where the argument that an error is about stands: the last one typed so, else the last of that flag."""
        typed = [word.partition("=")[0] for word in words]
        for at in range(len(words) - 1, -1, -1):
            if flag in (typed[at], words[at]):
                return at
        for at in range(len(words) - 1, -1, -1):
            known = self.known(typed[at])
            if known is not None and flag == known.spellings[0]:
                return at
        return None

    def _check_spelling(self, name: str, unknown: set[str]) -> None:
        from difflib import get_close_matches

        unknown.add(name)
        if len(unknown) > MOST_UNKNOWN:
            raise InputError(
                f"more than {MOST_UNKNOWN} flags are unknown to {self.engine}", fix="give its own command line"
            )
        typed = "--" + name.lstrip("-").replace("_", "-")
        for nearest in get_close_matches(typed, self.names, n=1, cutoff=LIKENESS) if len(name) <= 80 else ():
            if (nearest in self.by_spelling or nearest in self.switched_off) and _is_slip(typed, nearest):
                raise MisspeltFlag(f"{quoted(name)[1:-1]} is not a flag of {self.engine}", instead=nearest)


SAME = (
    ("--mem-fraction-static", "--gpu-memory-utilization"),
    ("--tp-size", "--tensor-parallel-size"),
    ("--pp-size", "--pipeline-parallel-size"),
    ("--dp-size", "--data-parallel-size"),
    ("--dcp-size", "--decode-context-parallel-size"),
    ("--context-length", "--max-model-len", "--ctx-size"),
    ("--max-running-requests", "--max-num-seqs", "--parallel"),
    ("--chunked-prefill-size", "--max-num-batched-tokens", "--batch-size"),
    ("--mamba-ssm-dtype", "--mamba-ssm-cache-dtype"),
    ("--disable-radix-cache", "--no-enable-prefix-caching"),
    ("--page-size", "--block-size"),
    ("--model-path", "--model"),
)
"""Flags of which each is, in its engine, what the others are in theirs."""


def same_of(name: str, known: Collection[str]) -> str:
    """The one of the ``known`` flags that says what another engine's does; empty where none is."""
    typed = name.partition("=")[0].replace("_", "-")
    return next((each for group in SAME if typed in group for each in group if each != typed and each in known), "")


def advice_of(name: str, known: Collection[str]) -> str:
    """What to do about a flag of a launch line that its engine does not know."""
    same = same_of(name, known)
    return f"its name there is {same}" if same else "leave it out"


def question_of(name: str, known: Sequence[str]) -> str:
    """The one of the ``known`` flags that is it under another name; else whether the nearest is meant, "" for none."""
    from difflib import get_close_matches

    if same := same_of(name, known):
        return f"write {same}"
    near = get_close_matches(name.partition("=")[0][:80], known, n=1, cutoff=SOME_LIKENESS)
    return f"did you mean {near[0]}?" if near else ""


def environment(env: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """The environment of a launch, without variables that no figure depends on and that a shell would decide.

    Raises InputError for a ``known`` one that a shell would decide.
    """
    kept = {name: value for name, value in env.items() if name in known or not is_unresolved(value)}
    for name, value in kept.items():
        check_resolved(value, f"{name}={value}")
    return kept


def multiples(units: Mapping[str, int]) -> Callable[[str], int | None]:
    """Reads a number as engines do: whole, or with one of their units, of which only powers of ten take decimals."""
    pattern = re.compile(rf"([0-9]{{1,20}})(?:\.([0-9]{{1,20}}))?({'|'.join(units)})")

    def read(text: str) -> int | None:
        match = pattern.fullmatch(text)
        if match is None:
            return _whole(text)
        unit, decimals = units[match[3]], match[2] or ""
        if decimals and unit % 1000:
            return None
        return int(match[1] + decimals) * unit // int(10 ** len(decimals))

    return read


def check_resolved(word: str, text: str = "") -> None:
    """Raise InputError for a word that a shell would decide."""
    if is_unresolved(word):
        raise InputError(f"{quoted(text or word)} is a value the shell decides", fix="give it literally")


def values_after(words: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """The values of a flag that no plan needs."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                return [value]
            until = at + 1
            while until < len(words) and not words[until].startswith("-"):
                until += 1
            return [str(item) for item in words[at + 1 : until]]
    return []


def is_flag(word: str) -> bool:
    """Whether argparse takes a word for a flag. Raises InputError for a dash that a word processor has lengthened."""
    if word.startswith(_DASHES):
        name = quoted(word.lstrip("-" + "".join(_DASHES)))[1:-1]
        raise MisspeltFlag(f"{quoted(word)} begins with a typographic dash", instead=f"--{name}")
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word) and " " not in word.partition("=")[0]


def _is_slip(typed: str, meant: str) -> bool:
    """Whether a name is another one mistyped, and not that of another thing: part by part they are alike."""
    from difflib import SequenceMatcher

    parts = typed.strip("-").removeprefix("no-").split("-"), meant.strip("-").removeprefix("no-").split("-")
    several = len(parts[0]) > 1 or len(parts[1]) > 1
    if len(parts[0]) != len(parts[1]):
        parts = [typed], [meant]
    least = 0 if not several else PARTS_LIKE if len(parts[0]) > 1 else WHOLE_LIKE
    return all(SequenceMatcher(None, left, right).ratio() >= least for left, right in zip(*parts, strict=True))


def _negations(flag: Flag) -> list[str]:
    """Spellings that switch a switch off: ``--no-x``, and ``--disable-x`` for ``--enable-x``."""
    long = [spelling.removeprefix("--") for spelling in flag.spellings if spelling.startswith("--")]
    inverse = {name.replace("enable-", "disable-", 1) for name in long if name.startswith("enable-")}
    return [f"--no-{name}" for name in long] + [f"--{name}" for name in sorted(inverse)]


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _number(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if len(text) <= LONGEST_JSON else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


MOST_BEFORE = 24
"""Words from an interpreter to the module it runs, at most."""
_PYTHON_MODULE = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)


def python_module(words: Sequence[Word], at: int) -> tuple[str, int]:
    """The module an interpreter runs, and where the module's own words begin; an empty name where it runs none."""
    for _ in range(MOST_BEFORE):
        if at >= len(words) or not (words[at].startswith("-") or words[at].why):
            break
        module = _PYTHON_MODULE.fullmatch(words[at])
        at += 2 if words[at] in ("-X", "-W") else 1
        if module is not None:
            return (module[1], at) if module[1] else ("".join(words[at : at + 1]), at + 1)
    return "", at


def base(word: str) -> str:
    """A program's name without its path, and without what Windows adds to it."""
    return (re.split(r"[/\\]", word)[-1] if "\\" in word else word.rpartition("/")[2]).removesuffix(".exe")
