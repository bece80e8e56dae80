"""Which model and which ServerArgs does an SGLang launch command ask for?

    sglang serve MODEL --tp 8 --context-length 128Ki -> MODEL, ServerArgs(tp_size=8, context_length=131072)

Read as the engine's argparse reads it: ``--flag value`` and ``--flag=value``, the last of repeated flags, abbreviations
that fit one flag alone. Values mean what they mean there, so that 8k tokens are 8,000 and 8Ki are 8,192. Flags a plan
does not need (`flags.OTHER_FLAGS`, and names nobody knows) are passed over with their values; a name that all but
spells a needed one is refused. Checks one flag at a time: what flags do to each other is the planner's business, but
for the pairs that share a field here. A file of flags (``--config``) is refused, not read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.sglang.flags import FLAG_FILES, FLAGS, OTHER_FLAGS
from hybridcalc.errors import InputError
from hybridcalc.shell.flags import FlagTable, environment, multiples

_tokens = multiples({
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
})  # fmt: skip
"""The engine's human_readable_int; decimals of the last digit are cut off."""


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, ServerArgs]:
    """MODEL (None where no flag names it) and ServerArgs of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, for a misspelt
    or ambiguous flag, and for a word that belongs to no flag unless a flag that is passed over stands before it.
    ``unknown`` collects the flags that are passed over although no list of SGLang's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    given = TABLE.read(words, unknown=unknown)
    if "" in given:
        given.setdefault(FLAGS[0].spellings[0], given.pop(""))
    fields = _fields(given)
    return fields.pop("model_path", None), ServerArgs(**fields, env=env)


TABLE = FlagTable("SGLang", FLAGS, OTHER_FLAGS, FLAG_FILES, read_tokens=_tokens, multiples="8k is 8,000, 8Ki is 8,192")


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flag -> values by field, the fields that several flags share settled."""
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS if flag.spellings[0] in given}
    if "speculative_algorithm" in fields:
        fields["speculative_algorithm"] = fields["speculative_algorithm"].upper()
    fields |= {"speculative_num_draft_tokens": _draft_tokens(given, fields.get("speculative_algorithm"))}
    return fields | _attention_workers(given)


def _attention_workers(given: Mapping[str, Any]) -> dict[str, Any]:
    """``--attn-dp-size N`` is the newer way to say ``--dp-size N --enable-dp-attention``; the engine refuses a mix."""
    replicas, workers = given.get("--dp-size", 1), given.get("--attn-dp-size", 1)
    if workers == 1:
        return {"dp_size": replicas}
    if replicas > 1:
        raise InputError(
            f"--dp-size {replicas} beside --attn-dp-size {workers}: SGLang takes one of them",
            fix="leave out --dp-size",
            flag="--dp-size",
        )
    return {"dp_size": workers, "enable_dp_attention": True}


def _draft_tokens(given: Mapping[str, Any], algorithm: str | None) -> int | None:
    """D; DFLASH calls it its block size, and DSPARK's block leaves out the token that is verified along with it."""
    asked: int | None = given.get("--speculative-num-draft-tokens")
    name, more = {
        "DFLASH": ("--speculative-dflash-block-size", 0),
        "DSPARK": ("--speculative-dspark-block-size", 1),
    }.get(algorithm or "", ("", 0))
    if name not in given:
        return asked
    drafts = int(given[name]) + more
    if asked is not None and asked != drafts:
        raise InputError(
            f"{name} {given[name]} makes {drafts} draft tokens, not {asked}",
            fix="leave out one of the two flags",
            flag=name,
        )
    return drafts
