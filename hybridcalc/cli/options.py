"""Every flag that commands share, each in its one place: spelling, help, bounds; and the groups that they come in.

A group is a NamedTuple of flags. A command that takes one as a keyword gets what was typed for them together, under
the arguments' own names (`app.command`). Help pages show options by the panel that each names. Values that need parsing
(sizes, token counts, dtypes) arrive as text and are read here, so that a wrong one is reported in this tool's words.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model, model_names
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, quoted
from hybridcalc.findings import SEVERITIES
from hybridcalc.units import GIB, MOST_RANKS, MOST_SLOTS, in_gib, parse_dtype, parse_gib, parse_tokens

SMALLEST_MEMORY = 2**20
"""Below a MiB a unit was forgotten."""
RANKS, CACHES, DRAFTS, MEMORY, ENGINE, PICTURE = (
    "Ranks", "States and KV", "Drafts", "Memory", "Engine", "Picture or page",
)  # fmt: skip
"""The panels of help pages, beside arguments and options that are in none."""


RANK_SPELLINGS = {
    **dict.fromkeys(("--tp", "-tp", "--tp-size", "--tensor-parallel-size"), "tp_size"),
    **dict.fromkeys(("--pp", "-pp", "--pp-size", "--pipeline-parallel-size"), "pp_size"),
    **dict.fromkeys(("--dp", "-dp", "--dp-size", "--data-parallel-size"), "dp_size"),
}
"""How ranks may be typed for this tool, whatever the engine: its argument, before an engine renames it."""


def spelt_for(engine: Engine, words: Sequence[str]) -> list[str]:
    """Words typed for this tool, with ranks as the engine itself spells them."""
    table, spelt = engine.flags, list[str]()
    for word in words:
        name, equals, value = word.partition("=")
        field = RANK_SPELLINGS.get(name, "")
        flag = table.by_field.get(engine.renamed.get(field, field))
        if flag is not None and name not in table.by_spelling:
            word = (name[1:] if name[1:] in flag.spellings else flag.spellings[0]) + equals + value
        spelt.append(word)
    return spelt


EXPERT_RANKS = ("--ep", "--ep-size", "--expert-parallel-size")


def expert_ranks(engine: Engine, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Words without ``--ep N``, and N as an option, where the engine has no flag of that name but a switch.

    Raises InputError for an N that is no number of ranks.
    """
    if "ep_size" in engine.flags.by_field or not any(word.partition("=")[0] in EXPERT_RANKS for word in words):
        return list(words), {}
    kept, found, rest = list[str](), dict[str, Any](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in EXPERT_RANKS:
            kept.append(word)
            continue
        value = value if equals else next(rest, "")
        if not (value.isascii() and value.isdecimal() and 0 < int(value[:9]) <= MOST_RANKS):
            raise InputError(f"{name} {quoted(value)} is no number of ranks", fix="write --ep 8")
        found["ep_size"] = int(value)
    return kept, found


def complete_model(incomplete: str) -> list[str]:
    """Preset names that start with what has been typed."""
    return [name for name in model_names() if name.startswith(incomplete.lower())]


def _option(panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **more)


def _count(panel: str, *names: str, most: int = MOST_RANKS, **more: Any) -> Any:
    return _option(panel, *names, **{"min": 1, "max": most, "metavar": "N"} | more)


MODEL_HELP = "Preset name, Hugging Face id, preset YAML, config.json or its folder; - reads a config from stdin."
Model = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete_model, help=MODEL_HELP)]
OptionalModel = Annotated[str | None, typer.Argument(metavar="[MODEL]", autocompletion=complete_model, help=MODEL_HELP)]
Length = Annotated[
    str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Tokens a request holds: prompt and answer.")
]
Lengths = Annotated[
    str | None, typer.Option("--lengths", metavar="L:N,...", help="Unequal requests: 8k:20,128k:2 (length:requests).")
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-C", metavar="N", min=1, max=MOST_SLOTS, help="Requests that should run."),
]
Emit = Annotated[
    str | None,
    typer.Option(
        "--emit", metavar="FORM", help="Print it as a deployment: cmd, compose, kubernetes, sglang-yaml or vllm-yaml."
    ),
]
Requests = Annotated[
    str | None, typer.Option("--workload", metavar="W", help="Requests as `reuse` takes them: chat:sessions=50.")
]
Tp = Annotated[int, _count(RANKS, "--tp-size", "--tp", "--tensor-parallel-size", help="Tensor-parallel ranks.")]
Pp = Annotated[
    int, _count(RANKS, "--pp-size", "--pp", "--pipeline-parallel-size", help="Pipeline stages; above 1 overlap is off.")
]
Dp = Annotated[int, _count(RANKS, "--dp-size", "--dp", "--data-parallel-size", help="Data-parallel workers.")]
DpAttention = Annotated[
    bool,
    _option(
        RANKS, "--enable-dp-attention", help="Share the tp ranks out among the dp workers; figures are per worker."
    ),
]
Dcp = Annotated[
    int,
    _count(RANKS, "--dcp-size", "--dcp", "--decode-context-parallel-size", help="Ranks that share one sequence's KV."),
]
KvDtype = Annotated[
    str,
    _option(CACHES, "--kv-cache-dtype", metavar="DTYPE", help="auto (the model's), bfloat16, fp8_e4m3, fp8_e5m2, ..."),
]
SsmDtype = Annotated[
    str | None,
    _option(
        CACHES, "--mamba-ssm-dtype", metavar="DTYPE", help="dtype of the temporal state: float32, bfloat16 or float16."
    ),
]
StrategyFlag = Annotated[
    str,
    _option(
        CACHES,
        "--mamba-radix-cache-strategy",
        "--strategy",
        "--mamba-scheduler-strategy",
        metavar="NAME",
        help="auto, no_buffer, extra_buffer or extra_buffer_lazy.",
    ),
]
NoOverlap = Annotated[bool, _option(CACHES, "--disable-overlap-schedule", help="Run without the overlap scheduler.")]
NoRadix = Annotated[
    bool, _option(CACHES, "--disable-radix-cache", help="Run without prefix caching: one slot a request.")
]
PageSize = Annotated[int | None, _count(CACHES, "--page-size", most=2**20, help="Tokens in one KV page.")]
FullMemoryRatio = Annotated[
    float | None,
    _option(CACHES, "--mamba-full-memory-ratio", metavar="R", help="The ratio in use today, state to KV memory."),
]
MambaCacheSize = Annotated[
    int | None,
    _count(
        CACHES, "--max-mamba-cache-size", most=MOST_SLOTS, help="K: state slots of the server, in place of a ratio."
    ),
]
RunningRequests = Annotated[
    int | None, _count(CACHES, "--max-running-requests", most=MOST_SLOTS, help="The server's request limit.")
]
TotalTokens = Annotated[
    str | None, _option(CACHES, "--max-total-tokens", metavar="TOKENS", help="The server's limit on KV tokens.")
]
SpecAlgorithm = Annotated[
    str | None,
    _option(
        DRAFTS,
        "--speculative-algorithm",
        metavar="NAME",
        help="EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DSPARK, DFLASH.",
    ),
]
DraftTokens = Annotated[
    int | None,
    _count(DRAFTS, "--speculative-num-draft-tokens", most=1024, help="D: draft tokens verified in one step."),
]
DraftLayers = Annotated[
    int | None,
    _count(
        DRAFTS, "--draft-layers", min=0, most=4096, help="Attention layers of the draft model (else: the checkpoint's)."
    ),
]
DraftKv = Annotated[
    int | None,
    _count(
        DRAFTS,
        "--draft-kv-bytes-per-token",
        min=0,
        most=2**40,
        help="KV bytes a draft model of its own geometry takes per token.",
    ),
]
MaxDraftTokens = Annotated[
    int | None, _count(DRAFTS, "--max-draft-tokens", most=1024, help="Most draft tokens, where they adapt.")
]
ReplaySpec = Annotated[
    bool,
    _option(DRAFTS, "--enable-linear-replayssm-spec", help="Verify drafts by replay: ring buffers, no draft states."),
]
CacheLen = Annotated[
    int, _count(DRAFTS, "--linear-replayssm-cache-len", most=2**20, help="Ring length of ReplaySSM, in steps.")
]
Environment = Annotated[
    list[str] | None,
    _option(ENGINE, "--env", metavar="NAME=VALUE", help="An environment switch of the engine; repeatable."),
]
EngineVersion = Annotated[
    str | None,
    _option(ENGINE, "--engine-version", metavar="VERSION", help="Version whose rules apply; else the newest known."),
]
FailOn = Annotated[
    str, typer.Option("--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error, never.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Add every step: formula, numbers, unit, source.")]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the whole answer: every figure, setting, table and log line.")
]


class Ranks(NamedTuple):
    """How many ranks share a model and its requests."""

    tp_size: Tp = 1
    dp_size: Dp = 1
    enable_dp_attention: DpAttention = False


class Prefixes(NamedTuple):
    """How states are kept for prefixes."""

    mamba_radix_cache_strategy: StrategyFlag = "auto"
    disable_overlap_schedule: NoOverlap = False
    disable_radix_cache: NoRadix = False
    page_size: PageSize = None


class Limits(NamedTuple):
    """What a server is started with today."""

    mamba_full_memory_ratio: FullMemoryRatio = None
    max_mamba_cache_size: MambaCacheSize = None
    max_running_requests: RunningRequests = None
    max_total_tokens: TotalTokens = None


class Drafts(NamedTuple):
    """How drafts are made and verified."""

    speculative_algorithm: SpecAlgorithm = None
    speculative_num_draft_tokens: DraftTokens = None
    draft_layers: DraftLayers = None
    draft_kv_bytes_per_token: DraftKv = None
    enable_linear_replayssm_spec: ReplaySpec = False
    linear_replayssm_cache_len: CacheLen = 16


class Rules(NamedTuple):
    """Switches and release of an engine."""

    env: Environment = None
    engine_version: EngineVersion = None


EngineName = Annotated[
    str | None, _option(ENGINE, "--engine", metavar="NAME", help="sglang (default) or vllm; a launch line says it.")
]


CardName = Annotated[
    str | None,
    _option(MEMORY, "--gpu", metavar="NAME|SIZE", help="GPU, several as 8xh200: weights and share are computed."),
]
RankWeights = Annotated[
    str | None, _option(MEMORY, "--weights", metavar="SIZE", help="Weights on one rank, as a boot log prints them.")
]


class CardGiven(NamedTuple):
    """The GPU whose memory is shared, and what else decides how much of it is left for both pools."""

    gpu: CardName = None
    weights: RankWeights = None
    mem_fraction_static: Annotated[
        float | None,
        _option(MEMORY, "--mem-fraction-static", metavar="F", help="Share of the GPU for weights and pools."),
    ] = None


def check_fraction(card: CardGiven) -> None:
    """Raise InputError for a share of no GPU."""
    if card.gpu is None and card.mem_fraction_static is not None:
        raise InputError("--mem-fraction-static says nothing without --gpu", fix="add --gpu NAME, or leave it out")


class MemoryGiven(NamedTuple):
    """How much memory there is for the caches of a server."""

    rest: Annotated[
        str | None, _option(MEMORY, "--rest", metavar="SIZE", help="SGLang: memory left for both pools on one rank.")
    ] = None
    available: Annotated[
        str | None, _option(MEMORY, "--available", metavar="SIZE", help="vLLM: memory free for the cache on one GPU.")
    ] = None
    gpu: CardName = None
    weights: RankWeights = None
    non_cache: Annotated[
        str | None,
        _option(
            MEMORY,
            "--non-cache",
            metavar="SIZE",
            help="vLLM: what the GPU holds beside weights and cache; else estimated.",
        ),
    ] = None
    avail_before: Annotated[
        str | None,
        _option(MEMORY, "--avail-before", metavar="GIB", help="`avail mem` a boot printed before the weights."),
    ] = None
    avail_after: Annotated[
        str | None,
        _option(MEMORY, "--avail-after", metavar="GIB", help="`avail mem` a boot printed after the weights."),
    ] = None


class ServerGiven(NamedTuple):
    """What else sizes a server, beside the engine's own flags."""

    draft_layers: DraftLayers = None
    draft_kv_bytes_per_token: DraftKv = None
    max_draft_tokens: MaxDraftTokens = None
    platform: Annotated[
        str | None,
        _option(ENGINE, "--platform", metavar="NAME", help="SGLang: cuda (default), hip, npu, xpu, musa or cpu."),
    ] = None
    gpu_capability: Annotated[
        str | None,
        _option(
            ENGINE, "--gpu-capability", metavar="M.N", help="vLLM: compute capability, else that of --gpu, or 9.0."
        ),
    ] = None
    engine_version: EngineVersion = None


def tokens(flag: str, text: str | None) -> int | None:
    """A token count given with ``flag``. Raises InputError naming the flag."""
    return None if text is None else _named(flag, parse_tokens, text)


def gib(flag: str, text: str | None) -> float | None:
    """A size given with ``flag``, in GiB as the engine holds it. Raises InputError naming the flag."""
    if text is None:
        return None
    gib: float = _named(flag, parse_gib, text)
    if gib < SMALLEST_MEMORY / GIB:
        raise InputError(
            f"{flag} {text}: {gib * GIB:,.0f} bytes are no memory to share",
            fix=f"write {in_gib(text)} if that is meant",
        )
    return gib


def boot_figure(flag: str, text: str) -> float:
    """A figure of a log: GiB as printed, with or without its unit."""
    match = re.fullmatch(r"(?ai)\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?:GB|GiB)?\s*", text)
    if match is None:
        raise InputError(f"{flag} {quoted(text, 20)} is not a figure in GiB", fix="write 22.93, as the log prints it")
    value = float(match[1])
    if not 0 < value < 2**20:
        raise InputError(f"{flag} {quoted(text, 20)} is not a usable size")
    return value


def engine_args(engine: Engine, **given: Any) -> Any:
    """An engine's arguments from the flags of a command, under the arguments' own names.

    Raises InputError for a value that cannot be, and for values that do not go together.
    """
    if given.get("mamba_ssm_dtype") is not None:
        given["mamba_ssm_dtype"] = ssm_dtype(given["mamba_ssm_dtype"])
    if "env" in given:
        given["env"] = environment(given["env"] or [])
    if "max_total_tokens" in given:
        given["max_total_tokens"] = tokens("--max-total-tokens", given["max_total_tokens"])
    strategy(given.get("mamba_radix_cache_strategy", "auto"))
    if given.get("disable_overlap_schedule") is False:
        given["disable_overlap_schedule"] = None  # not asked for: start-up may still turn overlap off
    args = engine.with_options(engine.arguments(), given)
    engine.check_together(args)
    return args


def strategy(text: str) -> str:
    """A strategy of --mamba-radix-cache-strategy. Raises InputError for any other."""
    if text == "auto":
        return text
    from hybridcalc.formulas import STRATEGIES

    if text not in STRATEGIES:
        raise InputError(f"--mamba-radix-cache-strategy {text[:40]} is not known", fix=f"write {', '.join(STRATEGIES)}")
    return text


def ssm_dtype(text: str | None) -> str | None:
    """The dtype of --mamba-ssm-dtype. Raises InputError naming the flag."""
    return None if text is None else str(_named("--mamba-ssm-dtype", _ssm_dtype, text))


def model(name: str) -> Architecture:
    """The model a command was given."""
    return load_model(name)


def severity(flag: str, text: str) -> str:
    """A severity, or "never". Raises InputError naming the flag."""
    if text not in (*SEVERITIES, "never"):
        raise InputError(f"{flag} {quoted(text)} is not a severity", fix=f"write {', '.join(SEVERITIES)} or never")
    return text


def environment(pairs: list[str], flag: str = "--env") -> dict[str, str]:
    """Switches given as NAME=VALUE. Raises InputError for anything else."""
    for pair in pairs:
        if "=" not in pair or pair.startswith("="):
            raise InputError(f"{flag} {quoted(pair)} is not NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def _ssm_dtype(text: str) -> str:
    name = parse_dtype(text)
    if name not in ("float32", "bfloat16", "float16"):
        raise InputError(f"{text!r} is not a state dtype", fix="write float32, bfloat16 or float16")
    return name


def _named(flag: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{flag}: {error.message}", fix=error.fix) from None
