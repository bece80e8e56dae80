"""``hybridcalc reuse``: how many state slots prefix caching wants, and what they spare."""

from pathlib import Path
from typing import Annotated

import typer

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options, pictures
from hybridcalc.cli.plan_inputs import traffic
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.strategy import chunk_size, resolve_strategy, uses_radix_cache
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.configuration import check_cache_mode
from hybridcalc.engines.vllm.releases import rules_for as vllm_rules_for
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.formulas.slots import Strategy
from hybridcalc.output.document import print_json
from hybridcalc.reuse.answer import Priced, answer
from hybridcalc.reuse.memory import sglang_cost, vllm_cost, vllm_settings
from hybridcalc.reuse.policy import DEFAULT_CHUNK, NO_CAP
from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.settings import ENGINES, INT8_FACTOR, VLLM_BLOCK, Settings
from hybridcalc.units import GIB, MOST_SLOTS, format_bytes

MOST_SIMULATED_SLOTS = 10**7
QUICK_REQUESTS = 10_000
"""Up to so many requests, other settings are simulated without being asked for: some seconds."""
DENSE = "dense"
TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
ONLY = {
    "sglang": ("strategy", "disable_overlap_schedule", "page_size", "mamba_track_interval", "mamba_max_states_per_path",
               "enable_int8_mamba_checkpoint", "int8_mamba_ckpt_size"),
    "vllm": ("block_size", "prefix_match_unit", "prefix_cache_retention_interval", "mamba_cache_mode"),
}  # fmt: skip
"""Parameters that one engine alone has."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def reuse(
    context: typer.Context,
    model: options.OptionalModel = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="N",
            min=1,
            max=MOST_SIMULATED_SLOTS,
            help="State slots: for cached states, and with --running for running requests too.",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="W",
            help="cyclic:prefixes=384,tokens=1000,rounds=4; chat:, fanout:, rag:, shared:; or a trace file.",
        ),
    ] = None,
    warmup_rounds: Annotated[
        int, typer.Option("--warmup-rounds", metavar="N", min=0, max=10**9, help="Rounds that are not counted.")
    ] = 0,
    running: Annotated[
        int,
        typer.Option(
            "--running",
            metavar="N",
            min=0,
            max=10**6,
            help="Requests at once, their slots taken from --slots; 0: one, its slots beside.",
        ),
    ] = 0,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="sglang or vllm.")] = "sglang",
    strategy: options.StrategyFlag = "auto",
    disable_overlap_schedule: options.NoOverlap = False,
    page_size: options.PageSize = None,
    chunked_prefill_size: Annotated[
        int,
        typer.Option(
            "--chunked-prefill-size",
            "--max-num-batched-tokens",
            metavar="N",
            min=-1,
            max=2**30,
            help="Tokens of one prefill chunk; -1: no chunks.",
        ),
    ] = 8192,
    mamba_track_interval: Annotated[
        int,
        typer.Option(
            "--mamba-track-interval", metavar="N", min=1, max=2**30, help="Tokens of decode between two states."
        ),
    ] = 256,
    mamba_max_states_per_path: Annotated[
        int,
        typer.Option(
            "--mamba-max-states-per-path",
            metavar="N",
            min=-1,
            max=MOST_SLOTS,
            help="States kept on one path; -1: no cap.",
        ),
    ] = NO_CAP,
    enable_int8_mamba_checkpoint: Annotated[
        bool, typer.Option("--enable-int8-mamba-checkpoint", help="Keep cached states in an int8 pool of their own.")
    ] = False,
    int8_mamba_ckpt_size: Annotated[
        int | None,
        typer.Option(
            "--int8-mamba-ckpt-size",
            metavar="N",
            min=1,
            max=MOST_SIMULATED_SLOTS,
            help="Slots of the int8 pool; default twice --slots.",
        ),
    ] = None,
    host_slots: Annotated[
        int,
        typer.Option(
            "--host-slots", metavar="N", min=0, max=MOST_SIMULATED_SLOTS, help="States that a host tier holds."
        ),
    ] = 0,
    max_total_tokens: options.TotalTokens = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size",
            metavar="N",
            min=1,
            max=2**24,
            help="vLLM: tokens of a block; a MODEL makes them as many as its state weighs.",
        ),
    ] = None,
    prefix_match_unit: Annotated[
        int | None, typer.Option("--prefix-match-unit", metavar="N", min=1, max=2**24, help="vLLM: tokens of a match.")
    ] = None,
    prefix_cache_retention_interval: Annotated[
        str,
        typer.Option(
            "--prefix-cache-retention-interval",
            metavar="N",
            help="vLLM: tokens between states kept; 0: only where prompts end and part; dense: all.",
        ),
    ] = "0",
    mamba_cache_mode: Annotated[
        str, typer.Option("--mamba-cache-mode", metavar="MODE", help="vLLM: align, or all (0.22 to 0.31).")
    ] = "align",
    tp_size: options.Tp = 1,
    kv_cache_dtype: options.KvDtype = "auto",
    mamba_ssm_dtype: options.SsmDtype = None,
    rest: Annotated[
        str | None,
        typer.Option(
            "--rest", "--available", metavar="SIZE", help="Memory of slots and KV on one rank: tells the KV left."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the synthetic workloads.")] = 0,
    decode_step_tokens: Annotated[
        int,
        typer.Option(
            "--decode-step-tokens",
            metavar="N",
            min=1,
            max=10**6,
            help="Prompt tokens computed in the time of one decode step; for the split.",
        ),
    ] = 256,
    knee: Annotated[bool, typer.Option("--knee/--no-knee", help="Find the slots that suffice.")] = True,
    what_if: Annotated[
        bool | None, typer.Option("--what-if/--no-what-if", help="Simulate other settings and splits too.")
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(
            "--engine-version", metavar="VERSION", help="Version whose rules apply; the newest known of the engine."
        ),
    ] = None,
    save: pictures.Save = None,
    figure: pictures.Figure = None,
    theme: pictures.Theme = "auto",
    force: pictures.Force = False,
    as_json: options.Json = False,
    explain: options.Explain = False,
) -> None:
    """How many slots prefix caching wants: hits, recomputed tokens and evictions of a workload, and the knee.

    The knee is the smallest number of slots at which reuse reaches 95 % of what any number would give. With a MODEL
    slots are priced on one rank.
    """
    from hybridcalc.output.progress import bars

    asked_for = pictures.wanted(save, figure, theme, force=force, document=as_json, explain=explain)
    if slots is None or workload is None:
        raise InputError(
            "reuse needs the slots and a workload", fix="add --slots 256 --workload cyclic:prefixes=384,tokens=1000"
        )
    if engine not in ENGINES:
        raise InputError(f"--engine {engine[:40]!r} is not known", fix=f"write {' or '.join(ENGINES)}")
    _check_engine(engine, context)
    if mamba_cache_mode not in ("align", "all"):
        raise InputError(f"--mamba-cache-mode {mamba_cache_mode[:40]!r} saves no states", fix="write align or all")
    if int8_mamba_ckpt_size is not None and not enable_int8_mamba_checkpoint:
        raise InputError("--int8-mamba-ckpt-size has no effect alone", fix="add --enable-int8-mamba-checkpoint")
    known = EngineArgs(engine_version=engine_version if engine == "vllm" else None, mamba_cache_mode=mamba_cache_mode)
    version_note = (vllm_rules_for if engine == "vllm" else rules_for)(engine_version)[1] if engine_version else ""
    check_cache_mode(known, vllm_rules_for(known.engine_version)[0])
    if enable_int8_mamba_checkpoint and host_slots:
        raise IllegalCombination("int8 checkpoints do not run with a host tier", fix="drop one of them")
    if mamba_max_states_per_path == 0:
        raise InputError("--mamba-max-states-per-path 0 keeps no state at all", fix="write -1 (no cap), 1 or more")
    args = options.server_args(
        mamba_radix_cache_strategy=strategy,
        disable_overlap_schedule=disable_overlap_schedule,
        page_size=page_size,
        tp_size=tp_size,
        kv_cache_dtype=kv_cache_dtype,
        mamba_ssm_dtype=mamba_ssm_dtype,
        mamba_track_interval=mamba_track_interval,
        max_total_tokens=max_total_tokens,
        engine_version=engine_version if engine == "sglang" else None,
        mamba_max_states_per_path=mamba_max_states_per_path,
    )
    architecture = options.model(model) if model is not None else None
    settings = Settings(
        engine,
        slots,
        running,
        page_size=page_size or 1,
        track_interval=mamba_track_interval,
        prefill_chunk=chunked_prefill_size,
        max_states_per_path=mamba_max_states_per_path,
        int8_slots=(int8_mamba_ckpt_size or INT8_FACTOR * slots) if enable_int8_mamba_checkpoint else None,
        host_slots=host_slots,
        kv_tokens=args.max_total_tokens,
        block_size=block_size or VLLM_BLOCK,
        match_unit=prefix_match_unit,
        retention=_retention(prefix_cache_retention_interval),
        every_block=mamba_cache_mode == "all",
    )
    served = None
    if engine == "sglang":
        settings = _resolved(settings, architecture, args)
    elif architecture is not None:
        served = EngineArgs(
            tensor_parallel_size=tp_size,
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            mamba_ssm_cache_dtype=args.mamba_ssm_dtype or "auto",
            prefix_match_unit=prefix_match_unit,
            prefix_cache_retention_interval=settings.retention,
            engine_version=engine_version,
            mamba_cache_mode=mamba_cache_mode,
            enable_prefix_caching=True,
        )
        settings = vllm_settings(architecture, served, settings)
    _ = settings.setup  # what does not go together is said before anything is read
    priced = _priced(architecture, served or args, options.gib("--rest", rest))
    _check_room(settings, priced)
    traffic, notes = _workload(workload, seed, warmup_rounds)
    notes += [version_note] if version_note else []
    if traffic.at_once is not None and running > traffic.at_once:
        notes.append(
            f"{traffic.name} sends {traffic.at_once:,} requests at once: with {running:,} running some start "
            "before the answer that they follow on is made"
        )
    size = traffic.requests
    if what_if is None:
        what_if = size is not None and size <= QUICK_REQUESTS
        if not what_if:
            notes.append("--what-if simulates other settings and splits as well: a pass over the workload each")
    with bars(size) as bar:
        found = answer(
            traffic,
            settings,
            warmup_rounds=warmup_rounds,
            knee=knee,
            what_if=what_if,
            bar=bar,
            notes=notes,
            step_tokens=decode_step_tokens,
            priced=priced,
        )
    if asked_for.any:
        from hybridcalc.output.pictures.reuse import reuse_page, slots_picture

        draw = {"slots": lambda: slots_picture(found)}
        pictures.deliver(asked_for, draw, lambda: reuse_page(found), quiet=as_json)
    if as_json:
        print_json("reuse", found.to_dict())
    if as_json or asked_for.any:
        return
    from hybridcalc.output.reuse_text import print_reuse

    print_reuse(found, explain=explain)


def _resolved(settings: Settings, model: Architecture | None, args: ServerArgs) -> Settings:
    """The strategy that auto becomes, and the kernel's chunk. Raises Refusal for what the engine does not start."""
    overlap = not args.disable_overlap_schedule
    if model is None:
        typed = args.mamba_radix_cache_strategy
        fallback = Strategy.EXTRA_BUFFER if overlap or settings.page_size > 1 else Strategy.NO_BUFFER
        chosen = fallback if typed == "auto" else Strategy(typed)
        if chosen is Strategy.NO_BUFFER and overlap:
            raise IllegalCombination(
                "no_buffer does not run under the overlap scheduler", fix="add --disable-overlap-schedule"
            )
        return settings._replace(
            strategy=chosen, overlap=overlap and chosen is not Strategy.NO_BUFFER, chunk=DEFAULT_CHUNK
        )
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: its prefix cache holds no states")
    if not uses_radix_cache(model):
        raise IllegalCombination(f"SGLang keeps no states of {model.architecture} for prefix reuse")
    resolved = resolve_strategy(model, args, rules_for(args.engine_version)[0])
    chosen = Strategy(resolved.strategy)
    return settings._replace(strategy=chosen, overlap=resolved.overlap, chunk=chunk_size(model))


def _check_engine(engine: str, context: typer.Context) -> None:
    """Raise InputError for a flag that only the other engine has."""
    for command_option in context.command.params:
        name = command_option.name or ""
        owner = next((owner for owner, names in ONLY.items() if name in names), engine)
        source = context.get_parameter_source(name)
        if owner != engine and source is not None and source.name == "COMMANDLINE":
            flag = command_option.opts[0]
            raise InputError(f"{flag} is no flag of {TITLES[engine]}", fix=f"leave it out, or write --engine {owner}")


def _check_room(settings: Settings, priced: Priced | None) -> None:
    """Raise IllegalCombination for slots that leave no KV in the memory given."""
    weighs = priced.cost(settings) if priced is not None else None
    if weighs is not None and weighs.kv_tokens == 0:
        raise IllegalCombination(
            f"{settings.slots:,} slots weigh {format_bytes(weighs.gpu_bytes)}: --rest leaves no KV beside them",
            fix="give fewer --slots, or more --rest",
        )


def _workload(text: str, seed: int, warmup_rounds: int) -> tuple[Workload, list[str]]:
    """The workload, and what there is to say of it."""
    found = traffic(text, seed=seed)
    kind = text.partition(":")[0]
    shadowed = kind == text and found.rounds is not None and Path(text).is_file()
    notes = [f"{text} is taken for the kind of workload; for the file write ./{text}"] if shadowed else []
    if found.rounds is None and warmup_rounds:
        raise InputError("a trace has no rounds to leave out", fix="drop --warmup-rounds")
    if found.rounds is not None and warmup_rounds >= found.rounds:
        raise InputError(
            f"--warmup-rounds {warmup_rounds} leaves none of {found.rounds} rounds to count",
            fix=f"write {found.rounds - 1} or less, or more rounds",
        )
    return found, notes


def _retention(text: str) -> int | None:
    if text == DENSE:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise InputError(
            f"--prefix-cache-retention-interval {text[:20]!r} is no interval",
            fix="write a multiple of the block, 0, or dense",
        )
    return int(text)


def _priced(model: Architecture | None, args: ServerArgs | EngineArgs, rest_gib: float | None) -> Priced | None:
    """What slots are priced with; nothing without a model."""
    if model is None:
        if rest_gib is not None:
            raise InputError("--rest is shared between slots and KV of a model", fix="name a MODEL")
        return None
    if isinstance(args, EngineArgs):
        available = None if rest_gib is None else int(rest_gib * GIB)
        return Priced(model.name, lambda settings: vllm_cost(model, args, settings, available))
    return Priced(model.name, lambda settings: sglang_cost(model, args, settings, rest_gib))
