"""What does llama.cpp refuse, and what does it start with although nobody wants it?

Refusals have no check here: planner.py and server_plan.py raise them where the engine itself checks; traps are looked
for in the figures of a launch.
"""

from collections.abc import Iterator

from hybridcalc.deployment import requests_text
from hybridcalc.engines.llamacpp import MOST_SEQUENCES, padded
from hybridcalc.engines.llamacpp.figures import Figures, bounded
from hybridcalc.engines.llamacpp.flags import UNCOUNTED
from hybridcalc.engines.llamacpp.placement import caches_on_cards
from hybridcalc.engines.llamacpp.planner import prepare
from hybridcalc.errors import Write, printable
from hybridcalc.findings import LENGTH, MEMORY, WANTED, Rule
from hybridcalc.units import GIB, format_bytes

SOURCE_CONTEXT = "llama.cpp src/llama-context.cpp"
SERVER = "llama.cpp tools/server/server-context.cpp"
OLLAMA = "Ollama server/sched.go load"
ITSELF = "start llama-server itself with -np, or a server for each request"
MUCH_HOST = 8 * GIB
LONG = 131072


def _room(plan: Figures, **changed: int) -> str:
    """What a context with other arguments takes that the cards do not hold; nothing where they do, or none is named."""
    if plan.rest is None or not bounded(plan.rest):
        return ""
    need = caches_on_cards(prepare(plan.model, plan.args.changed(**changed))) / GIB
    if need <= plan.rest.likely_gib:
        return ""
    left = max(plan.rest.likely_gib, 0)
    return f" (KV and states of {need:.2f} GiB, {left:.2f} are left: layers go to the host)"


def _enough(plan: Figures) -> str:
    """What to write so that a slot holds the longest request: what is planned to do, else what layers make room for."""
    for found in plan.suggestions:
        if found.risk == "none":
            return Write.flags(found.flags)
    tokens = padded(plan.workload.longest) * plan.ready.streams
    return Write("--ctx-size", tokens, _room(plan, n_ctx=tokens))


def _divided(plan: Figures) -> Iterator[tuple[str, str]]:
    ready, longest = plan.ready, plan.workload.longest
    if ready.streams < 2 or not plan.asked.args.n_ctx or ready.front is not None or _beyond(plan):
        return
    if longest <= ready.n_ctx_seq:
        return
    shared = ", or -kvu: slots that share all of it" if longest <= ready.n_ctx else ""
    yield (
        f"-c {plan.args.n_ctx:,} is shared out: {ready.sequences} slots of {ready.n_ctx_seq:,} tokens, and requests "
        f"hold {longest:,}",
        _enough(plan) + shared,
    )


def _beyond(plan: Figures) -> bool:
    """Whether requests are longer than the model was trained for."""
    trained = plan.model.max_context
    return trained is not None and plan.workload.longest > trained


def _too_long(plan: Figures) -> Iterator[tuple[str, str]]:
    ready, asked, longest = plan.ready, plan.asked, plan.workload.longest
    if ready.front is not None or longest <= ready.slot_tokens:
        return
    if _beyond(plan):
        yield (
            f"requests hold {longest:,} tokens, and a slot of {plan.model.name} has {plan.model.max_context:,} at "
            "most, as trained, whatever -c says",
            "shorten the requests",
        )
    elif not asked.args.n_ctx and asked.n_ctx_seq > ready.n_ctx_seq:
        yield (
            f"no -c: --fit shortens the trained context of {asked.n_ctx:,} tokens, a slot has {ready.n_ctx_seq:,}, and "
            f"requests hold {longest:,}",
            _enough(plan),
        )
    elif ready.streams == 1 or not asked.args.n_ctx:  # else HC210 says so
        yield f"a slot has {ready.slot_tokens:,} tokens, and requests hold {longest:,}", _enough(plan)


def _copied(plan: Figures) -> Iterator[tuple[str, str]]:
    ready = plan.ready
    if ready.copies and ready.state_layers:
        one = ready.state_bytes // (1 + ready.copies)
        yield (
            f"drafts of {ready.copies} tokens keep every state {1 + ready.copies} times: "
            f"{format_bytes(ready.state_bytes)} instead of {format_bytes(one)}",
            "--spec-draft-n-max N keeps N + 1; fewer slots (-np) keep fewer",
        )


def _not_rolled_back(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.args.copies_asked and not plan.ready.copies and plan.ready.state_layers:
        yield (
            f"{plan.model.name} cannot roll a state back: a rejected draft is computed again from a checkpoint",
            "leave --spec-type out unless it is measured to help",
        )


def _checkpoints(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.checkpoints_bytes >= MUCH_HOST:
        ready, most = plan.ready, plan.args.ctx_checkpoints
        few = min(max(1, most // 4), (MUCH_HOST - 1) // (ready.sequences * ready.checkpoint_bytes))
        yield (
            f"context checkpoints take up to {format_bytes(plan.checkpoints_bytes)} of host memory: {ready.sequences} "
            f"slots x {most} x {format_bytes(ready.checkpoint_bytes)}",
            Write("--ctx-checkpoints", few, ", or fewer slots") if few else "write fewer slots",
        )


def _starved(plan: Figures) -> Iterator[tuple[str, str]]:
    wanted = plan.workload.wanted
    if plan.binding == "kv" and (wanted is None or wanted <= plan.requests):
        ready = plan.ready
        need = int(plan.workload.mean_length or 0) * ready.sequences
        yield (
            f"{ready.sequences} slots share {ready.n_ctx:,} cells: {requests_text(plan.concurrency)} of "
            f"{plan.workload.describe()} fill them, and a long one starves the others",
            Write("--ctx-size", need, _room(plan, n_ctx=need)),
        )


def _trained(plan: Figures) -> Iterator[tuple[str, str]]:
    ready, asked = plan.ready, plan.asked
    over = ready.n_ctx - (ready.streams if ready.streams > 1 else ready.sequences) * ready.slot_tokens
    if asked.args.n_ctx and over > 0 and asked.caches and ready.front is None:
        most = ready.n_ctx - over
        yield (
            f"a slot has {ready.slot_tokens:,} tokens, as trained: {over:,} of {ready.n_ctx:,} cells are never used, "
            f"{format_bytes(ready.kv_bytes - prepare(plan.model, plan.args.changed(n_ctx=most)).kv_bytes)}",
            Write("--ctx-size", most),
        )
    if asked.args.n_ctx or asked.n_ctx < LONG or not asked.caches or plan.binding == "context":
        return
    if plan.rest is None or not bounded(plan.rest):
        yield (
            f"no -c: the context is the trained one, {ready.n_ctx:,} tokens and {format_bytes(ready.kv_bytes)} of KV, "
            "unless --fit shrinks it",
            "write -c TOKENS for what requests hold",
        )


def _rounded(plan: Figures) -> Iterator[tuple[str, str]]:
    ready, asked = plan.ready, plan.args.n_ctx
    if asked and ready.n_ctx > asked and ready.streams > 1 and ready.front is None:
        yield (
            f"-c {asked:,} becomes {ready.n_ctx:,}: each of {ready.sequences} streams is a multiple of 256",
            Write("--ctx-size", ready.n_ctx),
        )


def _wanted(plan: Figures) -> Iterator[tuple[str, str]]:
    wanted, ready = plan.workload.wanted, plan.ready
    if wanted is not None and plan.requests < wanted <= ready.sequences and plan.binding == "kv":
        tokens = wanted * plan.workload.longest
        runs = "1 runs" if plan.requests == 1 else f"{plan.requests:,} run"
        yield (
            f"{requests_text(wanted)} are wanted, {runs}: {ready.sequences} slots share {ready.n_ctx:,} cells",
            Write("--ctx-size", tokens, _room(plan, n_ctx=tokens)),
        )
    if wanted is not None and wanted > ready.sequences and not _beyond(plan):
        each = format_bytes(ready.sequence_state_bytes * (1 + ready.copies))
        if ready.front is not None:
            single = (
                ready.front.slots < ready.front.asked_slots or plan.model.architecture in ready.front.rules.one_slot
            )
            yield (
                f"{wanted} requests are wanted, and Ollama gives the model {ready.sequences} slot"
                f"{'' if ready.sequences == 1 else 's'}",
                ITSELF
                if single
                else f"write OLLAMA_NUM_PARALLEL={wanted}: {each} of state each{_room(plan, n_seq_max=wanted)}",
            )
            return
        slots, longest, more = min(wanted, MOST_SEQUENCES), plan.workload.longest, ""
        tokens = max(ready.n_ctx, slots * longest)
        if tokens > ready.n_ctx:
            more = f" --ctx-size {tokens}"
        room = _room(plan, n_seq_max=slots, n_ctx=tokens, kv_unified=False)
        yield (
            f"{wanted} requests are wanted, and the server has {ready.sequences} slots",
            Write("--parallel", slots, f"{more}: {each} of state each{room}"),
        )


def spilled(plan: Figures) -> Iterator[tuple[str, str]]:
    """What --fit leaves to the host."""
    rest, args = plan.rest, plan.args
    if rest is None or not bounded(rest) or not args.offload_kqv:
        return
    caches = caches_on_cards(plan.ready)
    moved = plan.offloaded is not None or plan.experts_on_host
    if not moved and (plan.by_card or caches <= rest.likely_gib * GIB):
        return
    if plan.offloaded is not None:
        does = "--fit leaves layers, with their caches, to the host, which computes them slowly"
    elif plan.experts_on_host:
        does = "--fit leaves experts to the host, which computes them slowly"
    else:
        does = "what is set by -ngl, -ts, -sm or -ot stays, and a start may run out of memory"
    yield (
        f"KV and states take {format_bytes(caches)}, {max(rest.likely_gib, 0.0):.2f} GiB are left beside the weights: "
        f"{does}",
        "use a larger GPU, a smaller quantisation, or a shorter -c",
    )


def _overridden(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.unmoved:
        yield (
            "-ot moves tensors between devices whose sizes no name tells: which device holds what is not known",
            "the sums over all devices hold; --cpu-moe and --n-cpu-moe are modelled",
        )
    for pattern in plan.unfound:
        yield f"-ot {printable(pattern[:40])} is found in no tensor's name: it moves nothing", "leave it out"


def _one_slot(plan: Figures) -> Iterator[tuple[str, str]]:
    front = plan.ready.front
    if front is not None and front.slots < front.asked_slots:
        yield (
            f"OLLAMA_NUM_PARALLEL={front.asked_slots} is ignored: Ollama {front.rules.version} gives {plan.model.name} "
            "one slot, and the other requests wait",
            ITSELF,
        )


def _dropped_type(plan: Figures) -> Iterator[tuple[str, str]]:
    front = plan.ready.front
    if front is not None and front.dropped_type:
        quantised = front.dropped_type in ("q8_0", "q4_0")
        yield (
            f"OLLAMA_KV_CACHE_TYPE={printable(front.dropped_type[:20])} is ignored by Ollama {front.rules.version}: KV "
            "stays in f16",
            "write OLLAMA_FLASH_ATTENTION=1" if quantised else "write q8_0 or q4_0, and OLLAMA_FLASH_ATTENTION=1",
        )


def _short(plan: Figures) -> Iterator[tuple[str, str]]:
    front, longest = plan.ready.front, plan.workload.longest
    if front is not None and longest > plan.ready.n_ctx_seq:
        trained = plan.model.max_context
        fix = f"write OLLAMA_CONTEXT_LENGTH={longest}, or PARAMETER num_ctx {longest}"
        if trained and longest > trained:
            fix = f"the model was trained for {trained:,} tokens: Ollama gives no slot more"
        else:
            fix += _room(plan, n_ctx=longest)
        yield (
            f"a slot has {front.num_ctx:,} tokens, by {front.context_from}, and requests hold {longest:,}: Ollama cuts "
            "a prompt to what fits",
            fix,
        )


def _uncounted(plan: Figures) -> Iterator[tuple[str, str]]:
    for flag in plan.args.uncounted:
        yield f"{flag}: {UNCOUNTED.get(flag, 'its memory is not counted')}", ""


_TYPES = ("--cache-type-v", "--cache-type-k")
RULES = (
    Rule("HC200", "error", "K and V of a latent cache in two types", "MLA keeps one row a token, of which V is a part: "
         "llama_init_from_model refuses a type of V that is not K's.", SOURCE_CONTEXT, place=_TYPES),
    Rule("HC201", "error", "flash attention is off and needed", "A quantised V is read by the flash attention kernel "
         "alone, and so is a model split by tensors.", SOURCE_CONTEXT, place=("--flash-attn", *_TYPES)),
    Rule("HC202", "error", "more than 256 sequences", "A context has room for 256 sequences.", SOURCE_CONTEXT,
         place=("--parallel",)),
    Rule("HC203", "error", "blocks that do not divide a head", "A quantised type is in blocks of 32 values, and a head "
         "of K or V must be a whole number of them.", SOURCE_CONTEXT, place=_TYPES),
    Rule("HC204", "error", "the context does not fit the device", "KV, states, weights and compute buffers are more "
         "than the devices have, and --fit may not change them.", "llama.cpp common/fit.cpp", needs=(MEMORY,),
         place=("--ctx-size", "--parallel")),
    Rule("HC219", "warning", "layers are left to the host", "Weights, KV, states and compute buffers are more than the "
         "devices have: --fit moves layers to the host until the rest fits.", "llama.cpp common/fit.cpp", spilled,
         needs=(MEMORY,), place=("--ctx-size", "--parallel")),
    Rule("HC210", "error", "slots divide the context", "-c is the context of all slots together: -c 32768 -np 8 "
         "gives each 4,096.", SOURCE_CONTEXT, _divided, needs=(LENGTH,), place=("--ctx-size", "--parallel")),
    Rule("HC223", "error", "requests longer than a slot", "A slot has the cells of its stream, and never more tokens "
         "than the model was trained for.", SERVER, _too_long, needs=(LENGTH,), place=("--ctx-size",)),
    Rule("HC211", "note", "drafts multiply the states", "To roll a rejected draft back, a state is kept once for every "
         "token of it: MTP with 3 quadruples it.", "llama.cpp common/common.h need_n_rs_seq", _copied,
         place=("--spec-type", "--spec-draft-n-max")),
    Rule("HC212", "warning", "checkpoints fill host memory", "A server keeps up to --ctx-checkpoints states a slot in "
         "host memory, each as large as a sequence's state.", SERVER, _checkpoints,
         place=("--ctx-checkpoints", "--parallel")),
    Rule("HC213", "warning", "slots starve each other", "Slots of a unified cache share its cells: as many requests "
         "run as fit together.", SOURCE_CONTEXT, _starved, needs=(LENGTH,), place=("--ctx-size", "--kv-unified")),
    Rule("HC214", "warning", "the trained context", "Without -c the context is as long as the model was trained for, "
         "whatever the requests hold; cells of a slot beyond that are never used.", SERVER, _trained,
         place=("--ctx-size",)),
    Rule("HC215", "note", "streams are rounded up", "Each stream is a multiple of 256 cells.", SOURCE_CONTEXT, _rounded,
         place=("--ctx-size", "--parallel")),
    Rule("HC216", "error", "fewer requests run than wanted", "A request waits until a slot and its cells are free.",
         SERVER, _wanted, needs=(WANTED,), place=("--parallel",)),
    Rule("HC217", "note", "states that are not rolled back", "Only some kinds of model keep copies of a state for "
         "drafts; others restore a checkpoint.", "llama.cpp src/llama-arch.cpp llm_arch_supports_rs_rollback",
         _not_rolled_back, place=("--spec-type",)),
    Rule("HC220", "warning", "one slot for models with states", "Ollama serves kinds of model that it takes for unsafe "
         "in parallel, hybrids among them, one request at a time, whatever OLLAMA_NUM_PARALLEL says.", OLLAMA,
         _one_slot, place=("OLLAMA_NUM_PARALLEL",)),
    Rule("HC221", "warning", "a type of KV that is not used", "Before 0.30 Ollama takes a quantised "
         "OLLAMA_KV_CACHE_TYPE only beside OLLAMA_FLASH_ATTENTION, and no type but f16, q8_0 and q4_0.",
         "Ollama llm/server.go NewLlamaServer", _dropped_type, place=("OLLAMA_KV_CACHE_TYPE",)),
    Rule("HC222", "error", "prompts are cut", "Where nothing sets num_ctx, Ollama takes 4,096, 32,768 or 262,144 "
         "tokens by the memory of all GPUs, and cuts what is longer.", "Ollama server/routes.go", _short,
         needs=(LENGTH,), place=("OLLAMA_CONTEXT_LENGTH", "--num-ctx")),
    Rule("HC218", "note", "placement by hand", "Of a file each tensor is followed, of a preset experts and layers.",
         "llama.cpp common/arg.cpp", _overridden, place=("--override-tensor",)),
    Rule("HC224", "warning", "memory that is not modelled", "Adapters, draft models and vision towers take memory; a "
         "plan counts none of them.", "docs/engines.md", _uncounted),
)  # fmt: skip
