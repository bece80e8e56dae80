"""Which model and ContextParams does a command line of llama-server or llama-cli ask for?

    llama-server -m qwen3.5-27b.gguf -c 32768 -np 4 -> MODEL, ContextParams(n_ctx=32768, n_seq_max=4)

Read as the server reads it: without -np it has 4 slots that share one cache, with -np N a cache is in N streams unless
-kvu joins them; --kv-unified-per-slot M without -c makes a cache of N x M. LLAMA_ARG_* variables set what no flag does.
Mirrors common/arg.cpp and tools/server/server.cpp (b11434).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.llamacpp.config import ALL_LAYERS, AUTO_LAYERS, KNOWN_ENVIRONMENT, ContextParams
from hybridcalc.engines.llamacpp.engine import VERBS
from hybridcalc.engines.llamacpp.flags import FALSE, FLAGS, OTHER_FLAGS, TRUE, VARIABLES
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import FlagTable, environment

SLOTS = 4
"""Slots of a server that is not told how many."""
LAYER_WORDS = {"auto": AUTO_LAYERS, "all": ALL_LAYERS}

TABLE = FlagTable(
    "llama.cpp", FLAGS, OTHER_FLAGS, (), read_tokens=lambda text: int(text) if text.isdecimal() else None, multiples=""
)


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, ContextParams]:
    """MODEL (None where no word names it) and ContextParams of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, and for a
    misspelt flag. ``unknown`` collects the flags that are ignored although no list of llama.cpp's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    if words and words[0] in VERBS:
        from hybridcalc.engines.llamacpp.ollama import from_words as of_ollama

        return of_ollama(words, env, _fields(_of_variables(env)), unknown=unknown)
    given = {**_of_variables(env), **TABLE.read(words, unknown=unknown)}
    model = given.get("--model", given.get("--hf-repo", given.get("")))
    return model, ContextParams(**_slots(_fields(given)), command_line=True, env=env)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, of values by the spellings of flags."""
    names = {flag.spellings[0]: flag.field for flag in FLAGS[2:]}
    fields: dict[str, Any] = {names[name]: value for name, value in given.items() if name in names}
    if fields.pop("kv_apart", False):
        fields["kv_unified"] = False
    if fields.pop("kv_on_host", False):
        fields["offload_kqv"] = False
    if "flash_attn_type" in fields:
        typed = fields["flash_attn_type"]
        fields["flash_attn_type"] = 1 if typed in TRUE else 0 if typed in FALSE else -1
    if "fit" in fields:
        fields["fit"] = fields["fit"] in TRUE
    if "n_gpu_layers" in fields:
        fields["n_gpu_layers"] = _layers(fields["n_gpu_layers"])
    return fields


def _slots(fields: dict[str, Any]) -> dict[str, Any]:
    """The server's own defaults of what a context has no default for."""
    slots = fields.pop("n_seq_max", -1)
    if slots == 0:
        raise InputError("--parallel 0: llama-server refuses it", fix="write a number of slots, or leave it out")
    if slots < 0:
        fields["kv_unified"] = True
    fields["n_seq_max"] = slots = SLOTS if slots < 0 else slots
    each = fields.get("kv_unified_per_slot", 0)
    if each and not fields.get("n_ctx") and fields.get("kv_unified"):
        fields["n_ctx"] = slots * each
    return fields


def _layers(text: str) -> int:
    """``auto``, ``all`` or a number of layers."""
    if text in LAYER_WORDS:
        return LAYER_WORDS[text]
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 6):
        raise InputError(f"--n-gpu-layers {quoted(text)} is not a number of layers", fix="write a number, auto or all")
    return max(int(text), ALL_LAYERS)


def _of_variables(env: Mapping[str, str]) -> dict[str, Any]:
    """What variables set, by the flags that they stand for. Raises InputError naming one whose value is none."""
    found: dict[str, Any] = {}
    for name, spelling in VARIABLES.items():
        if name not in env:
            continue
        flag, value = TABLE.by_spelling[spelling], env[name]
        if flag.kind in ("flag", "switch"):
            if value not in (*TRUE, *FALSE):
                raise InputError(f"{name}={quoted(value)} is neither true nor false", fix="write 1 or 0")
            found[spelling] = value in TRUE
        else:
            found[spelling] = TABLE.value(flag, name, value)
    return found
