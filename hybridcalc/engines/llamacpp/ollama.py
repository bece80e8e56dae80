"""Which llama-server does Ollama start for a model? Its slots, context and types of KV, as its scheduler settles them.

    OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=8192 ollama run granite4:7b-a1b-h -> llama-server -c 32768 -np 4

A context is that of one slot: the model's num_ctx, else OLLAMA_CONTEXT_LENGTH, else by the memory of all GPUs, no more
than was trained; -c is that times the slots. Kinds with recurrent states get one slot, whatever is asked. LLAMA_ARG_
variables reach llama-server and count where Ollama passes no flag. Source: Ollama server/sched.go, server/routes.go,
llm/llama_server.go, envconfig/config.go (v0.33.0-rc2). Leaves out: the runners of its own that it had before 0.30.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.arguments import Change, Releases
from hybridcalc.engines.llamacpp import ROWS, ContextParams
from hybridcalc.engines.llamacpp.store import stored
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import Flag, FlagTable
from hybridcalc.units import GIB, LARGEST_TOKENS

BY_MEMORY = 0
"""A default context that the memory of all GPUs decides."""
CONTEXTS = ((47 * GIB, 262144), (23 * GIB, 32768), (0, 4096))
"""Bytes of all GPUs, at least -> tokens of a slot where nothing sets them."""
BATCHES = ((32768, 2048), (4096, 1024), (0, 512))
"""Tokens of all slots, more than -> tokens of a batch where nothing sets them, and memory is plenty."""
LEAST_CONTEXT, LEAST_OF_IMAGES = 4, 2048
MODELS_OF_A_GPU = 3
HYBRIDS = frozenset({
    "Qwen3NextForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "Lfm2VlForConditionalGeneration",
})  # fmt: skip
NEMOTRON_AND_QWEN = frozenset({
    "NemotronHForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM",
})  # fmt: skip
OMNI = frozenset({"NemotronH_Nano_Omni_Reasoning_V3"})


class OllamaRules(NamedTuple):
    """What a release of Ollama does: slots and context where nothing sets them, classes of models that get one slot,
    whether runners of its own hold the caches, and the build of llama.cpp in it.

    Slots are 0 where memory decides them: they are taken to be 1.
    """

    version: str
    recorded: bool = False
    slots: int = 0
    context: int = 2048
    one_slot: frozenset[str] = frozenset()
    own_runners: bool = True
    build: str = ""


CHANGES = (
    Change("0.5.13", "context", 2048, "envconfig/config.go OLLAMA_CONTEXT_LENGTH"),
    Change("0.6.7", "context", 4096, "envconfig/config.go"),
    Change("0.10.0", "slots", 1, "envconfig/config.go OLLAMA_NUM_PARALLEL"),
    Change("0.15.5", "context", BY_MEMORY, "server/routes.go"),
    Change("0.15.5", "one_slot", HYBRIDS, "server/sched.go load"),
    Change("0.17.1", "one_slot", HYBRIDS | NEMOTRON_AND_QWEN, "server/sched.go load"),
    Change("0.22.1", "one_slot", HYBRIDS | NEMOTRON_AND_QWEN | OMNI, "server/sched.go load"),
    Change("0.30.0", "own_runners", False, "llm/server.go NewLlamaServer"),
    Change("0.30.0", "build", "b9452", "LLAMA_CPP_VERSION"),
    Change("0.32.15", "build", "b10488", "LLAMA_CPP_VERSION"),
)
RELEASES = Releases("Ollama", OllamaRules("0.5.13"), CHANGES)

FLAGS = (
    Flag("model", ("--model",), "str"),
    Flag("n_ctx", ("--num-ctx",), "int", 0, LARGEST_TOKENS),
    Flag("n_batch", ("--num-batch",), "int", 1, 2**20),
    Flag("n_gpu_layers", ("--num-gpu",), "int", -1, 2**20),
    Flag("draft_n_max", ("--draft-num-predict",), "int", 0, 1024),
)
"""Parameters of a Modelfile, as words behind the model; --model is a model that is named beside a server."""
OTHERS = (
    "--keepalive", "--verbose", "--insecure", "--nowordwrap", "--format", "--think", "--hidethinking", "--truncate",
    "--dimensions", "--experimental", "--experimental-yolo",
)  # fmt: skip
TABLE = FlagTable("Ollama", FLAGS, OTHERS, (), read_tokens=lambda text: None, multiples="")
PASSED = frozenset({"n_ctx", "n_seq_max", "n_batch", "n_ubatch", "flash_attn_type", "kv_unified_per_slot"})
"""Arguments that Ollama always passes flags for, so that no LLAMA_ARG_ variable counts."""
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_PREFIX = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/|(?:registry\.ollama\.ai/)?library/")
_MIX = re.compile(r"-(i?q[0-9]\w*|fp16|bf16|f16|mxfp4\w*)$", re.IGNORECASE)


class Front(NamedTuple):
    """What Ollama made of a launch: its rules, the slots and tokens of a slot asked for and given, what decided the
    latter, and the type of KV that was asked for and is not used.
    """

    rules: OllamaRules
    asked_slots: int
    slots: int
    num_ctx: int
    context_from: str
    dropped_type: str = ""


def from_words(
    words: Sequence[str], env: Mapping[str, str], below: dict[str, Any], *, unknown: list[str] | None = None
) -> tuple[str | None, ContextParams]:
    """MODEL (None where no word names it) and the arguments of ``ollama run MODEL`` or ``ollama serve``.

    ``words`` begin with the verb; ``below``: what LLAMA_ARG_ variables set. Raises InputError for a model that is not
    served here.
    """
    rest = list(words[1:])
    named = rest[0] if words[0] == "run" and rest and not rest[0].startswith("-") else None
    if named is not None:
        prompt = 1
        while prompt < len(rest) and not rest[prompt].startswith("-"):
            prompt += 1
        rest = rest[prompt:]  # what is typed behind MODEL is a prompt
    given = TABLE.read(rest, unknown=unknown)
    model = given.pop("--model", named)
    names = {flag.spellings[0]: flag.field for flag in FLAGS}
    fields = {names[name]: value for name, value in given.items() if name in names}
    if fields.get("draft_n_max"):
        fields["spec_type"] = "draft-mtp"
    kept = {name: value for name, value in below.items() if name not in PASSED}
    found = None if model is None else stored(str(model)) or model_named(str(model))
    return found, ContextParams(**{**kept, **fields}, ollama=True, env=env)


def model_named(name: str) -> str:
    """A model of Ollama's library as presets are named: ``qwen3.5:27b-q4_K_M`` is ``qwen3.5-27b:Q4_K_M``.

    Raises InputError for one that runs on Ollama's own servers.
    """
    bare = _PREFIX.sub("", name, count=1)
    stem, _, tag = bare.partition(":")
    if tag == "cloud" or tag.endswith("-cloud"):
        raise InputError(f"{quoted(name)} runs on Ollama's servers", fix="name a model that is served here")
    if (bare != name and "/" in bare) or name.startswith((".", "/", "~")) or not tag or tag == "latest":
        return bare.removesuffix(":latest")
    mix = _MIX.search(tag)
    size = tag[: mix.start()] if mix is not None else tag
    if mix is None and _MIX.fullmatch(f"-{tag}"):
        return bare
    kind = "" if mix is None else f":{mix[1].upper().replace('FP16', 'F16')}"
    return f"{stem}-{size}{kind}"


def settled(model: Architecture, args: ContextParams) -> tuple[ContextParams, Front]:
    """The context parameters that Ollama gives llama-server, and what it made of those that were asked for."""
    version = args.engine_version
    named = None if version is None or version.startswith("b") else version
    rules = RELEASES.rules_for(named)[0]
    rules = rules._replace(version=named or rules.version)
    asked = _unsigned(args.env, "OLLAMA_NUM_PARALLEL")
    slots = max(rules.slots if asked is None else asked, 1)
    given = 1 if model.architecture in rules.one_slot else slots
    num_ctx, why = _context(model, args, rules)
    automatic = next(tokens for more, tokens in BATCHES if num_ctx * given > more)
    batch = args.given().get("n_batch", automatic)
    kind, dropped = _kv_type(args, rules)
    flash = _flag(args.env.get("OLLAMA_FLASH_ATTENTION", ""))
    made = args.changed(
        ollama=False,
        n_ctx=num_ctx * given,
        n_seq_max=given,
        spec_type=args.spec_type if model.draft_layers else None,
        n_batch=batch,
        n_ubatch=batch,
        type_k=kind or args.type_k,
        type_v=kind or args.type_v,
        flash_attn_type=-1 if flash is None else int(flash),
        engine_version=None,
        env={name: value for name, value in args.env.items() if not name.startswith("OLLAMA_")},
    )
    return made, Front(rules, slots, given, num_ctx, why, dropped)


def _context(model: Architecture, args: ContextParams, rules: OllamaRules) -> tuple[int, str]:
    """Tokens of a slot, and what decides them."""
    said = _unsigned(args.env, "OLLAMA_CONTEXT_LENGTH")
    if args.n_ctx:
        tokens, why = args.n_ctx, "num_ctx"
    elif said:
        tokens, why = said, "OLLAMA_CONTEXT_LENGTH"
    elif rules.context != BY_MEMORY:
        tokens, why = rules.context, "Ollama's default"
    else:
        held = max(0, args.gpu_bytes - args.cards * (_unsigned(args.env, "OLLAMA_GPU_OVERHEAD") or 0))
        tokens = next(tokens for least, tokens in CONTEXTS if held >= least)
        why = f"Ollama's default for {held / GIB:.1f} GiB of GPU memory" if args.gpu_bytes else "Ollama's least default"
    tokens = max(tokens, LEAST_OF_IMAGES if model.multimodal else LEAST_CONTEXT)
    if model.max_context and tokens > model.max_context:
        return model.max_context, f"the trained length; {why} is {tokens:,}"
    return tokens, why


def _kv_type(args: ContextParams, rules: OllamaRules) -> tuple[str, str]:
    """The type of K and V, and the one that was asked for where it falls back to f16. Raises InputError for none."""
    kind = _clean(args.env.get("OLLAMA_KV_CACHE_TYPE", "")).lower()
    if not rules.own_runners:
        if kind and kind not in ROWS:
            raise InputError(
                f"OLLAMA_KV_CACHE_TYPE={quoted(kind)} is no type of llama-server", fix=f"one of {', '.join(ROWS)}"
            )
        return kind, ""
    flash = _flag(args.env.get("OLLAMA_FLASH_ATTENTION", ""))
    known = kind in ("", "f16") or (kind in ("q8_0", "q4_0") and flash is True)
    return (kind, "") if known else ("f16", kind)


def _clean(text: str) -> str:
    """A value without the blanks and quotes around it."""
    return text.strip().strip("\"'")


def _unsigned(env: Mapping[str, str], name: str) -> int | None:
    """A whole number; None where it is not set, or none: Ollama then takes its default."""
    text = _clean(env.get(name, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _flag(text: str) -> bool | None:
    """A switch; what is neither on nor off counts as on, and None is unset."""
    text = _clean(text)
    return None if not text else text not in _FALSE


def notes(front: Front, args: ContextParams) -> list[str]:
    """What to know of a server that Ollama starts."""
    rules = front.rules
    said = [
        f"Ollama {rules.version} starts llama-server -c {args.n_ctx} -np {args.n_seq_max}: {front.num_ctx:,} tokens "
        f"a slot, by {front.context_from}"
    ]
    if rules.own_runners:
        said.append("Ollama before 0.30 lays caches out in runners of its own, which are not known here")
    else:
        said.append(f"its llama.cpp is {rules.build}, whose caches were not compared")
    if args.n_batch > BATCHES[-1][1]:
        said.append(f"a batch is {args.n_batch:,} tokens, fewer where memory is short")
    models = _unsigned(args.env, "OLLAMA_MAX_LOADED_MODELS")
    said.append(
        f"up to {models or MODELS_OF_A_GPU * args.cards} models stay loaded where they fit, each with its own caches "
        "(OLLAMA_MAX_LOADED_MODELS)"
    )
    return said
