"""``hybridcalc reuse``: how many state slots prefix caching wants, and what they spare."""

from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from hybridcalc import deployment
from hybridcalc.architecture import Architecture
from hybridcalc.cli import answers, options
from hybridcalc.cli import plan_inputs as inputs
from hybridcalc.cli.app import command
from hybridcalc.cli.plan import LAUNCH_WORDS, LaunchCommand
from hybridcalc.cli.reuse_inputs import check_flags, check_memory, check_model, check_typed, is_typed, workload_of
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import IllegalCombination, InputError, Refusal
from hybridcalc.reuse.answer import Priced, answer
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.settings import Room, Settings, room_of
from hybridcalc.units import MOST_SLOTS, format_bytes

MOST_SIMULATED_SLOTS = 10**7
QUICK_REQUESTS = 4_000
"""Up to so many requests, other settings are simulated without being asked for: some seconds."""
app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Server(NamedTuple):
    """The server whose cache it is: flags of the engines, under the names that their rooms in reuse/ take."""

    running: Annotated[
        int,
        typer.Option(
            "--running",
            metavar="N",
            min=0,
            max=10**6,
            help="Requests at once, their slots taken from --slots; 0: one, its slots beside.",
        ),
    ] = 0
    strategy: options.StrategyFlag = "auto"
    disable_overlap_schedule: options.NoOverlap = False
    page_size: options.PageSize = None
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
    ] = 8192
    mamba_track_interval: Annotated[
        int,
        typer.Option(
            "--mamba-track-interval", metavar="N", min=1, max=2**30, help="Tokens of decode between two states."
        ),
    ] = 256
    mamba_max_states_per_path: Annotated[
        int,
        typer.Option(
            "--mamba-max-states-per-path",
            metavar="N",
            min=-1,
            max=MOST_SLOTS,
            help="States kept on one path; -1: no cap.",
        ),
    ] = NO_CAP
    enable_int8_mamba_checkpoint: Annotated[
        bool, typer.Option("--enable-int8-mamba-checkpoint", help="Keep cached states in an int8 pool of their own.")
    ] = False
    int8_mamba_ckpt_size: Annotated[
        int | None,
        typer.Option(
            "--int8-mamba-ckpt-size",
            metavar="N",
            min=1,
            max=MOST_SIMULATED_SLOTS,
            help="Slots of the int8 pool; default twice --slots.",
        ),
    ] = None
    host_slots: Annotated[
        int,
        typer.Option(
            "--host-slots", metavar="N", min=0, max=MOST_SIMULATED_SLOTS, help="States that a host tier holds."
        ),
    ] = 0
    host_kv_tokens: Annotated[
        str | None, typer.Option("--host-kv-tokens", metavar="N", help="KV tokens that it holds; as many as there are.")
    ] = None
    enable_hierarchical_cache: Annotated[
        bool,
        typer.Option(
            "--enable-hierarchical-cache", "--enable-hicache", help="SGLang: a host tier twice as large as both pools."
        ),
    ] = False
    hicache_ratio: Annotated[
        float | None,
        typer.Option("--hicache-ratio", metavar="R", min=1e-6, max=1e6, help="SGLang: or so many times as large."),
    ] = None
    hicache_size: Annotated[
        int | None,
        typer.Option(
            "--hicache-size", metavar="GB", min=0, max=2**20, help="SGLang: or of so many GB, shared as both pools are."
        ),
    ] = None
    hicache_mamba_ratio: Annotated[
        float | None,
        typer.Option(
            "--hicache-mamba-ratio", metavar="R", min=1e-6, max=1e6, help="SGLang, proposed: a ratio for states alone."
        ),
    ] = None
    hicache_mamba_size_gb: Annotated[
        float | None,
        typer.Option(
            "--hicache-mamba-size-gb", metavar="GB", min=1e-3, max=2**20, help="SGLang, proposed: GB for states alone."
        ),
    ] = None
    kv_offloading_size: Annotated[
        float | None,
        typer.Option(
            "--kv-offloading-size", metavar="GIB", min=0, max=2**20, help="vLLM: GiB of host memory of all ranks."
        ),
    ] = None
    ctx_checkpoints: Annotated[
        int | None,
        typer.Option(
            "--ctx-checkpoints", metavar="N", min=0, max=2**20, help="llama.cpp: checkpoints of a slot; 32 by default."
        ),
    ] = None
    checkpoint_min_step: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-min-step", metavar="N", min=0, max=2**30, help="llama.cpp: tokens between checkpoints; 8192."
        ),
    ] = None
    cache_ram: Annotated[
        int | None,
        typer.Option(
            "--cache-ram", metavar="MIB", min=-1, max=2**30, help="llama.cpp: host memory for done prompts; -1: any."
        ),
    ] = None
    slot_prompt_similarity: Annotated[
        float | None,
        typer.Option(
            "--slot-prompt-similarity",
            metavar="S",
            min=0,
            max=1,
            help="llama.cpp: the share of a prompt that a slot must hold to be picked for it; 0.1.",
        ),
    ] = None
    max_total_tokens: options.TotalTokens = None
    block_size: Annotated[
        int | None,
        typer.Option(
            "--block-size",
            metavar="N",
            min=1,
            max=2**24,
            help="vLLM: tokens of a block; a MODEL makes them as many as its state weighs.",
        ),
    ] = None
    prefix_match_unit: Annotated[
        int | None, typer.Option("--prefix-match-unit", metavar="N", min=1, max=2**24, help="vLLM: tokens of a match.")
    ] = None
    prefix_cache_retention_interval: Annotated[
        str,
        typer.Option(
            "--prefix-cache-retention-interval",
            metavar="N",
            help="vLLM: tokens between states kept; 0: only where prompts end and part; dense: all.",
        ),
    ] = "0"
    mamba_cache_mode: Annotated[
        str, typer.Option("--mamba-cache-mode", metavar="MODE", help="vLLM: align, or all (0.22 to 0.31).")
    ] = "align"
    tp_size: options.Tp = 1
    kv_cache_dtype: options.KvDtype = "auto"
    mamba_ssm_dtype: options.SsmDtype = None
    engine_version: options.EngineVersion = None


@command(app, "reuse", cls=LaunchCommand, options_metavar="[MODEL] [OPTIONS] [-- LAUNCH LINE]")
def reuse(
    *,
    context: typer.Context,
    model: options.OptionalModel = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            "--max-mamba-cache-size",
            "--parallel",
            metavar="N",
            min=1,
            max=MOST_SIMULATED_SLOTS,
            help="State slots: for cached states, and with --running for running requests too (llama.cpp: -np).",
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="W",
            help="cyclic:prefixes=384,tokens=1000; agents:, chat:, rag:, fanout:, shared:, batch:; +; a trace file.",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, max=10**9, help="The first N requests alone.")
    ] = None,
    warmup_rounds: Annotated[
        int, typer.Option("--warmup-rounds", metavar="N", min=0, max=10**9, help="Rounds that are not counted.")
    ] = 0,
    server: Server,
    card: options.CardGiven,
    engine: options.EngineName = None,
    rest: Annotated[
        str | None,
        typer.Option("--rest", "--available", metavar="SIZE", help="Memory that slots and KV share on one rank."),
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
    form: answers.Forms,
) -> None:
    """How many slots and KV tokens prefix caching wants: hits, recomputed tokens and evictions of a workload, the knee.

    The knee is the smallest number of slots at which reuse reaches 95 % of what any number would give; without --slots
    it is the answer. With a MODEL slots are priced on one rank, and with its memory (--rest, --gpu, or those and a
    launch line after --) slots and KV share that as the engine splits it.
    """
    from hybridcalc.output.progress import bars

    asked_for = answers.wanted(form)
    if workload is None:
        raise InputError("reuse needs a workload", fix="add --workload cyclic:prefixes=384,tokens=1000")
    line = inputs.read_line(context.meta.get(LAUNCH_WORDS))
    served = ENGINES[inputs.engine_of(engine, line)]
    room = room_of(served.name)
    check_flags(served, context)
    typed = {
        **server._asdict(),
        "slots": slots,
        "strategy": options.strategy(server.strategy),
        "max_total_tokens": options.tokens("--max-total-tokens", server.max_total_tokens),
        "host_kv_tokens": options.tokens("--host-kv-tokens", server.host_kv_tokens),
        "mamba_ssm_dtype": options.ssm_dtype(server.mamba_ssm_dtype),
    }
    check_typed(typed)
    memory = inputs.memory_of(card._asdict())
    check_memory(served, card, memory, rest)
    version_note = served.note(server.engine_version) if server.engine_version else ""
    base, said, overruled = None, dict[str, Any](), list[str]()
    if line is not None:
        own = [name for option in context.command.params for name in option.opts]
        question = inputs.question([], context.meta.get(LAUNCH_WORDS), {}, own, served.name, {}, "reuse")
        asked = question.arguments()
        model, base = model or asked.model, asked.args
        said = {name: value for name, value in room.of_line(base).items() if value is not None}
        overruled = [name for name in said if is_typed(context, name) and said[name] != typed[name]]
        typed |= {name: value for name, value in said.items() if not is_typed(context, name)}
    elif memory.gpu is not None and memory.gpu.cards is not None and not is_typed(context, "tp_size"):
        typed["tp_size"] = memory.gpu.cards
    check_model(context, model)
    architecture = options.model(model) if model is not None else None
    settings, args = room.asked(typed, architecture, base)
    given = typed["slots"] is not None
    if given:
        _ = settings.setup  # what does not go together is said before anything is read
    rest_gib = options.gib("--rest", rest)
    if rest_gib is None and memory.gpu is not None and architecture is not None:
        args = served.with_options(args, {"gpu": memory.gpu, "mem_fraction_static": card.mem_fraction_static})
        rest_gib = served.memory(architecture, args, memory).likely_gib
    priced = _priced(architecture, args, room, rest_gib, memory.gpu is not None)
    if priced is not None and architecture is not None:
        if rest_gib is not None:
            priced = priced._replace(share=partial(_share, room, architecture, args, rest_gib))
        if memory.gpu is not None:
            priced = priced.timed(served, architecture, args, memory.gpu.source)
            if card.gpu is not None:
                priced = priced._replace(machines=partial(_machines, room, architecture, served.name, card.gpu))
    if not given and not knee and rest_gib is None:
        raise InputError("without --slots the slots that suffice are the answer", fix="drop --no-knee, or add --slots")
    if given:
        _check_room(settings, priced)
    elif architecture is not None and rest_gib is not None:
        try:
            settings = settings._replace(slots=room.split(architecture, args, settings, rest_gib))
        except Refusal as refusal:
            if rest is None:
                refusal.fix = _remedies(served, architecture, args, memory, refusal)
            raise
    workers = served.workers(args)
    traffic, notes = workload_of(workload, seed, warmup_rounds, server.running, sample, workers)
    notes += [version_note] if version_note else []
    notes += ["--rest counts, not what is left of the --gpu"] * (rest is not None and memory.gpu is not None)
    flags = {option.name: option.opts[0] for option in context.command.params}
    notes += [f"{flags[name]} before the -- counts, not the {said[name]} of the launch line" for name in overruled]
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
            given=given,
            workers=workers,
        )
    from hybridcalc.reuse.view import reuse_view

    answers.show("reuse", asked_for, partial(reuse_view, found), found.to_dict)


def _check_room(settings: Settings, priced: Priced | None) -> None:
    """Raise IllegalCombination for slots that leave no KV in the memory given."""
    weighs = priced.cost(settings) if priced is not None else None
    if weighs is not None and weighs.kv_tokens == 0:
        raise IllegalCombination(
            f"{settings.slots:,} slots weigh {format_bytes(weighs.gpu_bytes)}: --rest leaves no KV beside them",
            fix="give fewer --slots, or more --rest",
        )


def _priced(model: Architecture | None, args: Any, room: Room, rest_gib: float | None, gpu: bool) -> Priced | None:
    """What slots are priced with; nothing without a model."""
    if model is None:
        if rest_gib is not None or gpu:
            flag = "--rest" if rest_gib is not None else "--gpu"
            raise InputError(f"{flag} is shared between slots and KV of a model", fix="name a MODEL")
        return None
    return Priced(model.name, lambda settings: room.cost(model, args, settings, rest_gib), rest_gib is not None)


def _remedies(served: Engine, model: Architecture, args: Any, memory: deployment.Memory, refusal: Refusal) -> str:
    """What would start on the same GPUs, as ``plan`` says it."""
    from hybridcalc.engines.remedy import Remedied, remedies

    def left(other: Architecture, changed: Any) -> deployment.Rest:
        return served.memory(other, changed, memory)

    gpus = None if memory.gpu is None else memory.gpu.cards
    case = Remedied(served, model, args, left, deployment.Workload(), gpus)
    return remedies(case, refusal.rule) or refusal.fix


def _share(
    room: Room, model: Architecture, args: Any, rest_gib: float, settings: Settings
) -> tuple[str, int, int] | None:
    return room.share(model, args, settings, rest_gib)


def _machines(room: Room, model: Architecture, engine: str, gpu: str, slots: int, kv_tokens: int) -> Any:
    """GPUs of the kind that is named, however many, that hold so much."""
    from hybridcalc.hardware import kind_of
    from hybridcalc.reuse.machines import machines_for

    def held(plan: Any) -> tuple[int, int]:
        return room.held(plan, slots, kv_tokens)

    return machines_for(model, engine, kind_of(gpu), slots, kv_tokens, room.LEAST_SLOTS, held)
