"""llama-server's slots: the settings that its flags make, what slots and saved prompts weigh, what else to try.

    a prompt on the host = tokens * (KV of a token + 12 for each cache) + (1 + checkpoints) * state

The 12 bytes are a cell's position and sequence; the heads of layers, and positions in pictures, are left out. Units:
bytes, tokens, slots. Source: llama.cpp src/llama-kv-cache.cpp state_write (b11434).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hybridcalc.architecture import Architecture
from hybridcalc.engines.llamacpp import MOST_SEQUENCES, ContextParams, padded
from hybridcalc.engines.llamacpp.flags import SLOTS
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.reuse.hosts import Weight
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.server_slots import NO_LIMIT, SlotServer
from hybridcalc.reuse.settings import Cost, Settings, Variant
from hybridcalc.units import GIB, MIB

SPARE = ""
LEAST_SLOTS = 1
CELL = 12
"""Bytes of a cell of the KV beside its rows, as it is saved."""
DEFAULTS = ContextParams()
MORE, SIMILAR = 4, 0.5
_SAME = ("engine_version", "ctx_checkpoints", "checkpoint_min_step", "slot_prompt_similarity")


def of_line(args: ContextParams) -> Mapping[str, Any]:
    """What a launch line says, under the names of the command's options."""
    return {
        **{name: getattr(args, name) for name in _SAME},
        "slots": args.n_seq_max,
        "cache_ram": args.cache_ram_mib,
        "max_total_tokens": args.n_ctx or None,
    }


def asked(
    options: Mapping[str, Any], model: Architecture | None, base: ContextParams | None = None
) -> tuple[Settings, ContextParams]:
    """The settings of a command's options, and the arguments that they make. Raises InputError, Refusal, and
    IllegalCombination for a launch line that keeps no prompts.
    """
    if base is not None and not base.cache_prompt:
        raise IllegalCombination(
            "--no-cache-prompt keeps no prefixes: nothing is reused", fix="drop it to ask what would be"
        )
    for flag in ("host_slots", "host_kv_tokens"):
        if options[flag]:
            raise InputError(f"--{flag.replace('_', '-')} is SGLang's", fix="write --cache-ram MIB")
    given = {name: options[name] for name in _SAME if options[name] is not None}
    cached = options["cache_ram"]
    if cached is None:
        cached = 0 if model is None else (base or DEFAULTS).cache_ram_mib
    if cached > 0 and model is None:
        raise InputError("--cache-ram holds as many prompts as they weigh", fix="name a MODEL, or write -1: no limit")
    context, slots, running = options["max_total_tokens"], options["slots"] or 1, options["running"]
    args = replace(base or DEFAULTS, **given, n_ctx=context or 0, n_seq_max=slots, cache_ram_mib=cached)
    server = SlotServer(
        args.slot_prompt_similarity,
        args.ctx_checkpoints,
        args.checkpoint_min_step,
        args.n_batch,
        min(args.n_ubatch, args.n_batch),
        args.kv_unified,
        cached * MIB if cached > 0 else NO_LIMIT if cached < 0 else 0,
    )
    if model is not None:
        token, state = _saved(_ready(model, args, 1))
        server = server._replace(token_bytes=token, state_bytes=state, trained=model.max_context)
    each = server.context_of_slot(context, slots)
    return Settings("llama.cpp", slots, running, kv_tokens=context, server=server, context=each), args


def _ready(model: Architecture, args: ContextParams, slots: int) -> Prepared:
    """A context of so many slots; more than there may be weigh as many times."""
    return prepare(model, replace(args, n_seq_max=min(slots, MOST_SEQUENCES)))


def _saved(ready: Prepared) -> tuple[int, int]:
    """Bytes of a token and of a state on the host."""
    caches = len(ready.caches) + (ready.draft is not None)
    return ready.kv_bytes_per_token + CELL * caches, ready.checkpoint_bytes


def policy(settings: Settings) -> Policy:
    """Slots that hold prompts; where checkpoints lie is the cache's own."""
    server = settings.server or SlotServer()
    return Policy("llama.cpp slots", 1, 1, server.ubatch, 0, 0, 1)


def variants(now: Settings) -> Iterator[Variant]:
    """Changes worth a look."""
    server = now.server or SlotServer()
    more = MORE * max(server.checkpoints, 1)
    yield Variant("checkpoints", f"--ctx-checkpoints {more}", now._replace(server=server._replace(checkpoints=more)))
    similar = 0.1 if server.similarity == SIMILAR else SIMILAR
    stricter = now._replace(server=server._replace(similarity=similar))
    yield Variant("similarity", f"--slot-prompt-similarity {similar:g}", stricter)
    if server.state_bytes and server.cache_bytes >= 0:
        mib = MORE * server.cache_bytes // MIB or DEFAULTS.cache_ram_mib
        cached = now._replace(server=server._replace(cache_bytes=mib * MIB))
        yield Variant("host cache", f"--cache-ram {mib}", cached)


def wanted(settings: Settings, slots: int) -> tuple[Settings, str, str]:
    """The settings with so many slots, what to do for it ("set" flags, or "want" what they say)."""
    changed, flags = settings._replace(slots=slots), f"--parallel {slots}"
    if slots > MOST_SEQUENCES:
        return changed, "want", f"{slots:,} slots, of which a server has {MOST_SEQUENCES}"
    context = slots * padded(settings.longest)  # -c is divided among the slots
    if settings.kv_tokens is not None and context > settings.kv_tokens:
        changed, flags = changed._replace(kv_tokens=context), f"--ctx-size {context} {flags}"
    return changed, "set", flags


def split(model: Architecture, args: ContextParams, settings: Settings, rest_gib: float) -> int:
    """The server's own: no memory makes them."""
    del model, args, settings, rest_gib
    return SLOTS


def share(model: Architecture, args: ContextParams, settings: Settings, rest_gib: float) -> tuple[str, int, int] | None:
    """Nothing splits the memory: a context takes what it is asked for."""
    del model, args, settings, rest_gib
    return None


def host_for(now: Settings, slots: int, kv_tokens: int, cost: Cost) -> Variant | None:
    """A host cache for so many prompts with a checkpoint each."""
    server = now.server or SlotServer()
    if cost.weight is None or server.cache_bytes:
        return None
    mib = -(-(2 * slots * cost.weight.slot + kv_tokens * server.token_bytes) // MIB)
    cached = now._replace(server=server._replace(cache_bytes=mib * MIB))
    return Variant("host cache for all", f"--cache-ram {mib}", cached)


def held(plan: Any, slots: int, kv_tokens: int) -> tuple[int, int]:
    """Slots, and the cells of all."""
    del slots, kv_tokens
    return plan.ready.sequences, plan.ready.n_ctx


def cost(model: Architecture, args: ContextParams, settings: Settings, rest_gib: float | None = None) -> Cost:
    """What the states of the slots take on the cards, what checkpoints and saved prompts may on the host, and the KV
    tokens that the rest holds. Raises Refusal.
    """
    ready, server = _ready(model, args, 1), settings.server or SlotServer()
    states = settings.slots * ready.state_bytes
    host = settings.slots * server.checkpoints * ready.checkpoint_bytes + max(server.cache_bytes, 0)
    tokens = None
    if rest_gib is not None:
        tokens = max(int(rest_gib * GIB) - states, 0) // max(ready.kv_bytes_per_token, 1)
        tokens = min(tokens, settings.kv_tokens or tokens)
    return Cost(states, 0, host, tokens, weight=Weight(ready.checkpoint_bytes, ready.kv_bytes_per_token))
