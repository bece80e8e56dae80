"""Which model and which ServerArgs does an SGLang launch command ask for?

    sglang serve MODEL --tp 8 --context-length 128Ki -> MODEL, ServerArgs(tp_size=8, context_length=131072)

Read as the engine's argparse reads it: ``--flag value`` and ``--flag=value``, the last of repeated flags, abbreviations
that fit one flag alone. Values mean what they mean there, so that 8k tokens are 8,000 and 8Ki are 8,192. Flags a plan
does not need (`flags.OTHER_FLAGS`, and names nobody knows) are passed over with their values; a name that all but
spells a needed one is refused. Checks one flag at a time: what flags do to each other is the planner's business, but
for the pairs that share a field here. A file of flags (``--config``) is refused, not read.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hybridcalc.commandline import read_launch
from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.sglang.flags import FLAG_FILES, FLAGS, OTHER_FLAGS, Flag
from hybridcalc.errors import InputError
from hybridcalc.shell import is_unresolved, shown, split_command

MOST_UNKNOWN = 100
"""Names neither list has, in one command; each is compared with every name there is."""
LIKENESS = 0.8
"""From this difflib ratio on, an unknown name counts as a misspelling."""

_BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}
_NAMES = sorted({*_BY_SPELLING, *OTHER_FLAGS})
_NEGATIVE = re.compile(r"-(?:[0-9]+|[0-9]*\.[0-9]+)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?")
_TOKENS = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,20}))?(k|M|G|T|Ki|Mi|Gi|Ti)")
_TOKEN_UNITS = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_DASHES = tuple("\u2010\u2011\u2012\u2013\u2014\u2015\u2212")


def from_command(text: str) -> tuple[str | None, ServerArgs]:
    """MODEL and ServerArgs of a launch command, or of its arguments alone; see `from_words`."""
    launch = read_launch(split_command(text))
    if launch.engine not in ("sglang", None):
        raise InputError(
            f"{' '.join(launch.program)} starts {launch.engine}, not SGLang",
            fix="give a command of python -m sglang.launch_server or sglang serve",
        )
    return from_words(launch.words, launch.env)


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, ServerArgs]:
    """MODEL (None where no flag names it) and ServerArgs of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a misspelt
    or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands before it.
    ``unknown`` collects the flags that are passed over although no list of SGLang's has them.
    """
    given: dict[str, Any] = {}
    names = _Names()
    before, passing = "", False
    at = 0
    env = {name: value for name, value in env.items() if name in KNOWN_ENVIRONMENT or not is_unresolved(value)}
    for name, value in env.items():
        _check_resolved(value, f"{name}={value}")
    if words and not _is_flag(words[0]):
        given[FLAGS[0].spellings[0]] = _value(FLAGS[0], "MODEL", words[0])
        at = 1
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            if not passing or is_unresolved(words[at - 2]):
                _check_resolved(word)
                raise InputError(f"{shown(word)}{before} belongs to no flag", fix="leave it out, or name its flag")
            continue
        name, equals, value = word.partition("=")
        flag = names.flag(name)
        before, passing = f" after {name[:40]}", flag is None
        if flag is None:
            continue
        if flag.kind == "flag":
            if equals:
                raise InputError(f"{name} takes no value, but has {shown(value)}", fix=f"write {name} alone")
        elif not equals:
            if at == len(words) or _is_flag(words[at]):
                raise InputError(f"{name} has no value", fix=f"write {name} and {_wanted(flag)}")
            value = words[at]
            at += 1
        given[flag.spellings[0]] = flag.kind == "flag" or _value(flag, name, value)
    if unknown is not None:
        unknown.extend(sorted(names.unknown))
    fields = _fields(given)
    return fields.pop("model_path", None), ServerArgs(**fields, env=dict(env))


def find_flag(name: str) -> Flag | None:
    """The flag that a plan needs under a spelling or an unambiguous abbreviation of it; None for any other name."""
    if name in _BY_SPELLING or name in OTHER_FLAGS or not name.startswith("--"):
        return _BY_SPELLING.get(name)
    near = _NAMES[bisect_left(_NAMES, name) : bisect_left(_NAMES, name + "\U0010ffff")]
    flags = {_BY_SPELLING.get(full) for full in near}
    return flags.pop() if len(flags) == 1 else None


def _check_resolved(word: str, text: str = "") -> None:
    if is_unresolved(word):
        raise InputError(f"{shown(text or word)} is a value the shell decides", fix="give it literally")


class _Names:
    """Finds flags by what was typed, and counts the names that no list has."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()

    def flag(self, name: str) -> Flag | None:
        """The flag a plan needs; None for one it does not. Raises InputError for a misspelt or ambiguous name."""
        if name in _BY_SPELLING:
            return _BY_SPELLING[name]
        if name in OTHER_FLAGS or name in self.unknown:
            return None
        if name in FLAG_FILES:
            raise InputError(f"{name} names a file of flags, which is not read", fix="give its flags in its place")
        if name == "--":
            raise InputError("-- stands alone: SGLang takes nothing but flags", fix="leave it out")
        near = _NAMES[bisect_left(_NAMES, name) : bisect_left(_NAMES, name + "\U0010ffff")]
        flags = {_BY_SPELLING.get(full) for full in near if name.startswith("--")}
        if len(flags) == 1:
            return flags.pop()
        if flags:
            some = ", ".join(near[:3]) + (", ..." if len(near) > 3 else "")
            raise InputError(f"{name} could be {some}", fix="write the flag in full")
        self._check_spelling(name)
        return None

    def _check_spelling(self, name: str) -> None:
        from difflib import get_close_matches

        self.unknown.add(name)
        if len(self.unknown) > MOST_UNKNOWN:
            raise InputError(f"more than {MOST_UNKNOWN} flags are unknown to SGLang", fix="give its own command line")
        typed = "--" + name.lstrip("-").replace("_", "-")
        for nearest in get_close_matches(typed, _NAMES, n=1, cutoff=LIKENESS) if len(name) <= 80 else ():
            if nearest in _BY_SPELLING:
                raise InputError(f"{shown(name)[1:-1]} is not a flag of SGLang", fix=f"write {nearest}")


def _is_flag(word: str) -> bool:
    """Whether argparse takes a word for a flag. Raises InputError for a dash that a word processor has lengthened."""
    if word.startswith(_DASHES):
        raise InputError(
            f"{shown(word)} begins with a typographic dash", fix=f"write --{shown(word[1:].lstrip('-'))[1:-1]}"
        )
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word) and " " not in word.partition("=")[0]


def _value(flag: Flag, name: str, text: str) -> Any:
    """A value of a flag, read as the engine reads it."""
    _check_resolved(text)
    value = _READERS[flag.kind](text)
    if flag.kind == "str":
        fits = bool(text) and (not flag.choices or text in flag.choices)
    elif flag.kind == "float":
        fits = value is not None and flag.least < value <= flag.most
    else:
        fits = value is not None and flag.least <= value <= flag.most
    if not fits:
        raise InputError(f"{name} {shown(text)} is not {_wanted(flag)}")
    return value


def _wanted(flag: Flag) -> str:
    """What a flag takes, in words."""
    if flag.choices:
        return f"one of {', '.join(flag.choices)}"
    if flag.kind == "str":
        return "a name"
    if flag.kind == "float":
        return f"a number above {flag.least} and at most {flag.most:,}"
    tokens = " (8k is 8,000, 8Ki is 8,192)" if flag.kind == "tokens" else ""
    return f"a whole number from {flag.least:,} to {flag.most:,}{tokens}"


def _whole(text: str) -> int | None:
    return int(text) if _WHOLE.fullmatch(text) else None


def _number(text: str) -> float | None:
    return float(text) if _DECIMAL.fullmatch(text) else None


def _tokens(text: str) -> int | None:
    """The engine's human_readable_int: thousands by k, M, G, T (decimals are cut off), 1,024s by Ki, Mi, Gi, Ti."""
    match = _TOKENS.fullmatch(text)
    if match is None or (match[2] and match[3].endswith("i")):
        return _whole(text)
    decimals = match[2] or ""
    unit = _TOKEN_UNITS[match[3]]
    return int(match[1] + decimals) * unit // int(10 ** len(decimals))


_READERS: dict[str, Callable[[str], Any]] = {"int": _whole, "float": _number, "tokens": _tokens, "str": str}


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flag -> values by field, the fields that several flags share settled."""
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS if flag.spellings[0] in given}
    if "speculative_algorithm" in fields:
        fields["speculative_algorithm"] = fields["speculative_algorithm"].upper()
    fields |= {
        "dsa_backend": _dsa_backend(given),
        "speculative_num_draft_tokens": _draft_tokens(given, fields.get("speculative_algorithm")),
    }
    return fields | _attention_workers(given)


def _attention_workers(given: Mapping[str, Any]) -> dict[str, Any]:
    """``--attn-dp-size N`` is the newer way to say ``--dp-size N --enable-dp-attention``; the engine refuses a mix."""
    replicas, workers = given.get("--dp-size", 1), given.get("--attn-dp-size", 1)
    if workers == 1:
        return {"dp_size": replicas}
    if replicas > 1:
        raise InputError(
            f"--dp-size {replicas} beside --attn-dp-size {workers}: SGLang takes one of them", fix="leave out --dp-size"
        )
    return {"dp_size": workers, "enable_dp_attention": True}


def _draft_tokens(given: Mapping[str, Any], algorithm: str | None) -> int | None:
    """D; DFLASH calls it its block size, and DSPARK's block leaves out the token that is verified along with it."""
    asked: int | None = given.get("--speculative-num-draft-tokens")
    name, more = {
        "DFLASH": ("--speculative-dflash-block-size", 0), "DSPARK": ("--speculative-dspark-block-size", 1),
    }.get(algorithm or "", ("", 0))  # fmt: skip
    if name not in given:
        return asked
    drafts = int(given[name]) + more
    if asked is not None and asked != drafts:
        raise InputError(
            f"{name} {given[name]} makes {drafts} draft tokens, not {asked}", fix="leave out one of the two flags"
        )
    return drafts


def _dsa_backend(given: Mapping[str, Any]) -> str | None:
    """The sparse-attention backend that decides the layout of a KV row: trtllm if either side that runs here uses it,
    any other only if both sides do (SGLang mem_cache/kv_cache_configurator.py).
    """
    sides: dict[str, str | None] = {
        "prefill": given.get("--dsa-prefill-backend"), "decode": given.get("--dsa-decode-backend"),
    }  # fmt: skip
    mode = given.get("--disaggregation-mode", "null")
    if "trtllm" in ((sides[mode],) if mode in sides else sides.values()):
        return "trtllm"
    return sides["prefill"] if sides["prefill"] == sides["decode"] else None
