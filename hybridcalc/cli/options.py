"""Every flag the commands share, each in its one place: spelling, help, bounds. And how they become ServerArgs.

Flags carry the engine's own long names with the usual short forms. Values that need parsing (sizes, token counts,
dtypes) arrive as text and are read here, so that a wrong one is reported in this tool's words.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model, model_names
from hybridcalc.errors import InputError, quoted
from hybridcalc.findings import SEVERITIES
from hybridcalc.formulas.slots import STRATEGIES
from hybridcalc.units import GIB, MOST_RANKS, MOST_SLOTS, parse_dtype, parse_gib, parse_tokens

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.config import ServerArgs

SMALLEST_MEMORY = 2**20
"""Below a MiB a unit was forgotten."""


def complete_model(incomplete: str) -> list[str]:
    """Preset names that start with what has been typed."""
    return [name for name in model_names() if name.startswith(incomplete.lower())]


def _ranks(*names: str, help: str) -> Any:
    return typer.Option(*names, min=1, max=MOST_RANKS, metavar="N", help=help)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_model,
        help="Preset name, Hugging Face id, preset YAML, config.json or its folder; - reads a config from stdin.",
    ),
]
OptionalModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        autocompletion=complete_model,
        help="Preset name, Hugging Face id, preset YAML, config.json or its folder; - reads a config from stdin.",
    ),
]
Tp = Annotated[int, _ranks("--tp-size", "--tp", "--tensor-parallel-size", help="Tensor-parallel ranks.")]
Pp = Annotated[
    int, _ranks("--pp-size", "--pp", "--pipeline-parallel-size", help="Pipeline stages; above 1 overlap is off.")
]
Dp = Annotated[int, _ranks("--dp-size", "--dp", "--data-parallel-size", help="Data-parallel workers.")]
DpAttention = Annotated[
    bool,
    typer.Option("--enable-dp-attention", help="Share the tp ranks out among the dp workers; figures are per worker."),
]
Dcp = Annotated[
    int, _ranks("--dcp-size", "--dcp", "--decode-context-parallel-size", help="Ranks that share one sequence's KV.")
]
KvDtype = Annotated[
    str, typer.Option("--kv-cache-dtype", metavar="DTYPE", help="auto (the model's), bfloat16, fp8_e4m3, fp8_e5m2, ...")
]
SsmDtype = Annotated[
    str | None,
    typer.Option(
        "--mamba-ssm-dtype", metavar="DTYPE", help="dtype of the temporal state: float32, bfloat16 or float16."
    ),
]
StrategyFlag = Annotated[
    str,
    typer.Option(
        "--mamba-radix-cache-strategy",
        "--strategy",
        "--mamba-scheduler-strategy",
        metavar="NAME",
        help="auto, no_buffer, extra_buffer or extra_buffer_lazy.",
    ),
]
NoOverlap = Annotated[bool, typer.Option("--disable-overlap-schedule", help="Run without the overlap scheduler.")]
NoRadix = Annotated[bool, typer.Option("--disable-radix-cache", help="Run without prefix caching: one slot a request.")]
PageSize = Annotated[
    int | None, typer.Option("--page-size", metavar="N", min=1, max=2**20, help="Tokens in one KV page.")
]
SpecAlgorithm = Annotated[
    str | None,
    typer.Option(
        "--speculative-algorithm", metavar="NAME", help="EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DSPARK, DFLASH."
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        "--speculative-num-draft-tokens", metavar="N", min=1, max=1024, help="D: draft tokens verified in one step."
    ),
]
DraftLayers = Annotated[
    int | None,
    typer.Option(
        "--draft-layers",
        metavar="N",
        min=0,
        max=4096,
        help="Attention layers of the draft model (else: the checkpoint's).",
    ),
]
DraftKv = Annotated[
    int | None,
    typer.Option(
        "--draft-kv-bytes-per-token",
        metavar="N",
        min=0,
        max=2**40,
        help="KV bytes a draft model of its own geometry takes per token.",
    ),
]
ReplaySpec = Annotated[
    bool, typer.Option("--enable-linear-replayssm-spec", help="Verify drafts by replay: ring buffers, no draft states.")
]
CacheLen = Annotated[
    int,
    typer.Option(
        "--linear-replayssm-cache-len", metavar="N", min=1, max=2**20, help="Ring length of ReplaySSM, in steps."
    ),
]
FullMemoryRatio = Annotated[
    float, typer.Option("--mamba-full-memory-ratio", metavar="R", help="The ratio in use today, state to KV memory.")
]
MambaCacheSize = Annotated[
    int | None,
    typer.Option(
        "--max-mamba-cache-size",
        metavar="N",
        min=1,
        max=MOST_SLOTS,
        help="K: state slots of the server, in place of a ratio.",
    ),
]
RunningRequests = Annotated[
    int | None,
    typer.Option("--max-running-requests", metavar="N", min=1, max=MOST_SLOTS, help="The server's request limit."),
]
TotalTokens = Annotated[
    str | None, typer.Option("--max-total-tokens", metavar="TOKENS", help="The server's limit on KV tokens.")
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="An environment switch of the engine; repeatable."),
]
EngineVersion = Annotated[
    str | None,
    typer.Option("--engine-version", metavar="VERSION", help="Version whose rules apply; else the newest known."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Explain = Annotated[bool, typer.Option("--explain", help="Add every step: formula, numbers, unit, source.")]


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
            fix=f"write {text.strip()}GiB if that is meant",
        )
    return gib


def server_args(**options: Any) -> "ServerArgs":
    """ServerArgs from the options of a command, under ServerArgs' own names; what cannot be is an InputError."""
    from hybridcalc.engines.sglang.config import SPECULATIVE_ALGORITHMS, ServerArgs, check_together

    if options.get("mamba_ssm_dtype") is not None:
        options["mamba_ssm_dtype"] = ssm_dtype(options["mamba_ssm_dtype"])
    if "env" in options:
        options["env"] = environment(options["env"] or [])
    if "max_total_tokens" in options:
        options["max_total_tokens"] = tokens("--max-total-tokens", options["max_total_tokens"])
    strategy(options.get("mamba_radix_cache_strategy", "auto"))
    if options.get("disable_overlap_schedule") is False:
        options["disable_overlap_schedule"] = None  # not asked for: start-up may still turn overlap off
    algorithm = options.get("speculative_algorithm")
    if algorithm is not None:
        options["speculative_algorithm"] = algorithm.strip().upper()
        if options["speculative_algorithm"] not in SPECULATIVE_ALGORITHMS:
            known = ", ".join(SPECULATIVE_ALGORITHMS)
            raise InputError(f"--speculative-algorithm {quoted(algorithm)} is not known", fix=f"write {known}")
    args = ServerArgs(**options)
    check_together(args)
    return args


def strategy(text: str) -> str:
    """A strategy of --mamba-radix-cache-strategy. Raises InputError for any other."""
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
