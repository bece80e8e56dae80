"""Which model and EngineArgs does a launch command of vLLM ask for?

    vllm serve MODEL -tp 2 --max-model-len 128K --speculative-config.method mtp -> MODEL, EngineArgs(...)

Read as the engine reads it: underscores may stand for dashes, ``--no-x`` switches off, dotted names fill a JSON value
(``--speculative-config.num_speculative_tokens 3``), 1k is 1,000 and 1K is 1,024; shell/flags.py has the rest. Checks
one flag at a time: what flags do to each other is the planner's business. A file of flags (``--config``) is not read.
Mirrors vLLM engine/arg_utils.py and entrypoints/common/cli_args.py (0.33.0, 0.22.1).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.vllm.config import KNOWN_ENVIRONMENT, EngineArgs
from hybridcalc.engines.vllm.flags import FLAG_FILES, FLAGS, MOST_DRAFTS, OTHER_FLAGS
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import FlagTable, check_resolved, environment, is_flag, multiples

DEEPEST = 20
"""Levels of a dotted name."""
DTYPES = {"half": "float16", "float": "float32"}
_number = multiples({
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
})  # fmt: skip


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, EngineArgs]:
    """MODEL (None where no word names it) and EngineArgs of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a misspelt
    or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands before it.
    ``unknown`` collects the flags that are passed over although no list of vLLM's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    given = TABLE.read(_undotted(words), unknown=unknown)
    model = given.get("--model", given.get(""))
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS[1:] if flag.spellings[0] in given}
    if "dtype" in fields:
        fields["dtype"] = DTYPES.get(fields["dtype"], fields["dtype"])
    for name in ("mamba_backend", "gdn_prefill_backend", "kda_prefill_backend"):
        if name in fields:
            fields[name] = fields[name].lower()
    return model, EngineArgs(**_speculation(fields), env=env, command_line=True)


def _speculation(fields: dict[str, Any]) -> dict[str, Any]:
    """``--spec-method`` and ``--spec-tokens`` joined to the speculative configuration, and its number checked."""
    short = {name: fields.pop(name) for name in ("method", "num_speculative_tokens") if name in fields}
    config = {**fields.pop("speculative_config", {}), **short}
    if not config:
        return fields
    drafts = config.get("num_speculative_tokens")
    if drafts is not None and (
        isinstance(drafts, bool) or not isinstance(drafts, int) or not 1 <= drafts <= MOST_DRAFTS
    ):
        raise InputError(
            f"--speculative-config: num_speculative_tokens {quoted(drafts)} is not a whole number from 1 to "
            f"{MOST_DRAFTS:,}",
            flag="--speculative-config",
        )
    return fields | {"speculative_config": config}


def _spelling(name: str) -> str:
    """A flag as the engine spells it: dashes for the underscores before the first dot."""
    if not name.startswith("--"):
        return name
    head, dot, rest = name.partition(".")
    return head.replace("_", "-") + dot + rest


def _undotted(words: Sequence[str]) -> list[str]:
    """``words`` with dotted names gathered into one JSON value a flag, at the end, as the engine does."""
    kept, gathered = list[str](), dict[str, dict[str, Any]]()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if not word.startswith("-") or "." not in name or not is_flag(word):
            kept.append(word)
            continue
        if not equals:
            if at == len(words):
                raise InputError(f"{quoted(word)} has no value", fix="write it after the name", flag=name)
            value = words[at]
            at += 1
        flag, *path = _spelling(name).removesuffix("+").split(".")
        if not all(path):
            raise InputError(f"{quoted(word)} names no field", fix=f"write {flag}.NAME VALUE", flag=name)
        if flag in TABLE.by_spelling and TABLE.by_spelling[flag].kind == "json":
            check_resolved(value)
            _put(gathered.setdefault(flag, {}), path[:DEEPEST], _json_or_text(value))
    return kept + [word for flag, value in gathered.items() for word in (flag, json.dumps(value))]


def _put(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        below = tree.get(name)
        tree[name] = below if isinstance(below, dict) else {}
        tree = tree[name]
    tree[path[-1]] = value


def _json_or_text(text: str) -> Any:
    """A value after a dotted name: JSON, a number with a multiple, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        number = _tokens(text)
        return text if number is None else number


def _tokens(text: str) -> int | None:
    """The engine's human_readable_int: 1k is 1,000, 1K is 1,024 (no decimals); -1 for ``auto``."""
    if text.strip().lower() == "auto":
        return -1
    return _number(text.strip())


TABLE = FlagTable(
    "vLLM", FLAGS, OTHER_FLAGS, FLAG_FILES, read_tokens=_tokens, multiples="8k is 8,000, 8K is 8,192",
    spelling=_spelling,
)  # fmt: skip
