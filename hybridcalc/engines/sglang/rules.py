"""What does SGLang refuse, and what does it start with although nobody wants it?

Every rule has an id, a severity, a title, the reason with its arithmetic, and a source. Refusals have no check here:
they are raised where the engine itself checks (strategy.py, pools.py, planner.py, allocation.py) and only described;
traps are looked for in a plan that starts, those that need no memory in a launch too. A rule is added here and
nowhere else.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

from hybridcalc.deployment import requests_text
from hybridcalc.engines.arguments import uncounted
from hybridcalc.engines.better import way_to
from hybridcalc.engines.sglang import BRANCHES, DEFAULT_RATIO, DRAFTS, STEPS, ServerArgs
from hybridcalc.engines.sglang.figures import Figures
from hybridcalc.engines.sglang.planner import prepare
from hybridcalc.engines.sglang.sizes import READS_DECLARED_SSM_DTYPE, draft_numbers, kv_not_known, longest_of
from hybridcalc.engines.sglang.strategy import with_defaults
from hybridcalc.errors import HybridcalcError, Write
from hybridcalc.findings import LENGTH, MEMORY, WANTED, Needs, Rule
from hybridcalc.formulas import pin
from hybridcalc.units import GIB, format_bytes, percent_text

IDLE_PERCENT = 25.0
SCRATCH_SHARE = 0.25
UNCHARGED_SHARE, HEADROOM_SHARE = 0.05, 0.2
"""What is not charged and goes unsaid: less of the memory left, and of the headroom where that is known."""
GAIN_SHARE = 1.2
KEPT_SHARE = 0.5
LAZY = "extra_buffer_lazy"
SPECULATION = "SGLang arg_groups/speculative_hook.py"


def _fewer_than_wanted(plan: Figures) -> Iterator[tuple[str, str]]:
    wanted, length = plan.workload.wanted, plan.workload.mean_length
    if plan.too_long:  # HC022 says so
        return
    if not plan.sized or (wanted is None and length is not None and any(_explicit_slots(plan))):
        yield from _explicit_slots(plan)
    elif wanted is not None:
        replicas = plan.workers // plan.args.attn_dp_size
        yield from _short_of(plan, wanted, f"{requests_text(wanted)} {'is' if wanted == 1 else 'are'} wanted", replicas)
    elif length is not None:
        yield from _short_of(plan, 1, f"a request holds {plan.workload.describe()}")


def _explicit_slots(plan: Figures) -> Iterator[tuple[str, str]]:
    """K given by hand against the requests it must admit, one at least: C x S slots, and one a worker to spare."""
    args, per_request, dp = plan.args, plan.slots_per_request, plan.args.attn_dp_size
    wanted = plan.workload.wanted or args.max_running_requests
    asked = args.max_mamba_cache_size
    if asked is None or not per_request:
        return
    admitted = plan.max_mamba_cache_size // per_request * dp
    if admitted >= (wanted or 1):
        return
    wanted = wanted or dp
    needed = pin(wanted, per_request, dp=dp)
    yield (
        f"{asked:,} slot{'s admit' if asked != 1 else ' admits'} "
        f"{requests_text(admitted) if admitted else 'no request'}{f' on {dp} workers' if dp > 1 else ''}; "
        f"{requests_text(wanted)} x {per_request} slots + {dp} = {needed:,} are needed",
        Write("", needed, _lazy(plan, wanted)),
    )


def _lazy(plan: Figures, wanted: int) -> str:
    """The strategy that takes fewer slots, where the engine takes it."""
    if plan.ready.choice.strategy != "extra_buffer" or not plan.ready.args.radix_cache:
        return ""
    try:
        lazy = prepare(plan.model, replace(plan.args, mamba_radix_cache_strategy=LAZY))
    except HybridcalcError:
        return ""
    needed = pin(wanted, lazy.slots.count, dp=plan.args.attn_dp_size)
    return (
        f", or {needed} with --mamba-radix-cache-strategy {LAZY}" if lazy.slots.count < plan.slots_per_request else ""
    )


def _slots_need(plan: Figures) -> Needs:
    """HC002 needs no memory where K is given and is too small, or is held against a number of requests."""
    given = plan.args.max_mamba_cache_size is not None
    decided = given and (plan.workload.wanted or plan.args.max_running_requests)
    return () if decided or any(_explicit_slots(plan)) else (MEMORY, WANTED)


def _pin_needs(plan: Figures) -> Needs | None:
    """HC013 has nothing to add to a K that HC002 finds too small."""
    return None if any(_explicit_slots(plan)) else ()


def _allowed_needs(plan: Figures) -> Needs | None:
    """HC023 has nothing to add to HC002."""
    return (MEMORY,) if _slots_need(plan) else None


def _fewer_than_allowed(plan: Figures) -> Iterator[tuple[str, str]]:
    allowed, asked = plan.args.max_running_requests, plan.workload
    told = asked.mean_length is not None and (not plan.requests or any(_explicit_slots(plan)))  # by HC002 or HC022
    if allowed is not None and asked.wanted is None and not told:
        yield from _short_of(plan, allowed, f"--max-running-requests is {allowed:,}")


def _short_of(plan: Figures, wanted: int, text: str, replicas: int = 1) -> Iterator[tuple[str, str]]:
    """Fewer run than are wanted, over all attention workers of so many replicas."""
    dp = plan.args.attn_dp_size
    running = plan.concurrency * dp * replicas
    if running >= wanted:
        return
    wanted = -(-wanted // replicas)
    held = {
        "state": f"{plan.max_mamba_cache_size:,} slots // {plan.slots_per_request} admit"
        f" {plan.capacity.state_requests:,}",
        "kv": f"{plan.logical_token_capacity:,} KV tokens hold {plan.capacity.kv_requests:,}",
        "limit": f"the request limit is {plan.sizing.asked:,}",
    }[plan.binding]
    if plan.workload.mean_length is not None:
        each = plan.fixed_bytes_per_request + plan.marginal_bytes_per_token * plan.workload.mean_length
        needs = (-(-wanted // dp) * each + plan.ready.stage_slot_bytes) / GIB
        takes = "takes" if wanted == 1 else "take"
        held += f"; {wanted:,} {takes} {float(needs):,.1f} of the {plan.rest.likely_gib:,.1f} GiB"
    held += f"; each of {replicas} replicas" if replicas > 1 else ""
    runs = "none runs" if not running else f"{running:,} run{'s' if running == 1 else ''}"
    yield f"{text}, {runs}: {held}", _way_to(plan, wanted, dp)


def _way_to(plan: Figures, wanted: int, dp: int) -> str:
    """The flag that lets ``wanted`` requests run; what to look at where no flag alone does."""
    if plan.binding == "limit" and _serves(plan, wanted, replace(plan.args, max_running_requests=wanted)):
        return Write("--max-running-requests", wanted)
    if plan.workload.mean_length is None and plan.slots_per_request:
        slots = pin(wanted, plan.slots_per_request, dp=dp)
        if _serves(plan, wanted, replace(plan.args, max_mamba_cache_size=slots)):
            return Write("--max-mamba-cache-size", slots)
        return f"{slots:,} slots do not fit this memory: use more GPUs, or --mamba-ssm-dtype bfloat16"
    tokens = wanted * ceil(plan.workload.mean_length or 2)
    if plan.args.max_total_tokens is not None and _serves(plan, wanted, replace(plan.args, max_total_tokens=tokens)):
        return Write("--max-total-tokens", tokens, ", or leave it out")
    if plan.args.enable_unified_memory and plan.args.max_total_tokens is not None:
        return "raise --max-total-tokens, see the suggestions, or shorten the requests"
    most = max(plan.concurrency, plan.balanced.running if plan.balanced is not None else 0) * dp
    split = "" if plan.ready.stateless else ", however the memory is split"
    held = f"these flags hold no more than {most:,}{split}"
    return way_to(plan, wanted * (plan.workers // dp), f"{held}: use more GPUs, or shorten the requests")


def _serves(plan: Figures, wanted: int, args: ServerArgs) -> bool:
    """Whether ``wanted`` requests run under ``args``: the engine may refuse them, draft states leave too little."""
    from hybridcalc.engines.sglang.settings import by_model

    evaluate = by_model(plan.model, plan.rest.likely_gib, plan.workload.mean_length or Fraction(2))
    try:
        return evaluate("", "", args).running * args.attn_dp_size >= wanted
    except HybridcalcError:
        return False


def _kv_idles(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.workload.mean_length is not None and plan.binding == "state" and plan.capacity.idle_percent >= IDLE_PERCENT:
        idle = f"{percent_text(plan.capacity.idle_percent)} % of the KV idles"
        yield (
            f"the state pool binds at {requests_text(plan.concurrency)} of {plan.workload.describe()}; {idle}",
            _first(plan),
        )


def _state_idles(plan: Figures) -> Iterator[tuple[str, str]]:
    length = plan.workload.mean_length
    if length is not None and plan.binding == "kv" and plan.capacity.idle_percent >= IDLE_PERCENT:
        idle = f"{percent_text(plan.capacity.idle_percent)} % of the state slots idle"
        binds, fix = "KV binds", _first(plan)
        if not plan.ready.cells[0].bytes:  # no layer has KV: its pool is as long as the context
            binds = "the token pool, which takes no memory, binds"
            fix = Write("--max-total-tokens", plan.capacity.state_requests * ceil(length))
        yield f"{binds} at {requests_text(plan.concurrency)} of {plan.workload.describe()}; {idle}", fix


def _default_ratio(plan: Figures) -> Iterator[tuple[str, str]]:
    args = plan.args
    if args.max_mamba_cache_size is not None or plan.ready.args.memory_ratio != DEFAULT_RATIO or not plan.suggestions:
        return
    best = next((s for s in plan.suggestions if s.flags.startswith("--mamba-full-memory-ratio")), None)
    if best is not None and best.after >= GAIN_SHARE * plan.requests:
        yield f"the default ratio {DEFAULT_RATIO} does not fit this workload: {best.effect}", Write.flags(best.flags)


def _not_a_pin(plan: Figures) -> Iterator[tuple[str, str]]:
    asked, per_request, dp = plan.args.max_mamba_cache_size, plan.slots_per_request, plan.args.attn_dp_size
    if asked is None or per_request <= 1 or plan.max_mamba_cache_size % per_request == 1:
        return
    requests = plan.max_mamba_cache_size // per_request
    left = plan.max_mamba_cache_size % per_request
    spare = "none is spare" if left == 0 else f"{left} are left over"
    yield (
        f"--max-mamba-cache-size {asked:,} is {requests_text(requests)} x {per_request} slots, and {spare}",
        Write("", pin(requests * dp, per_request, dp=dp)),
    )


def _two_sizes(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.args.max_mamba_cache_size is None or plan.ready.stateless:
        return
    default = with_defaults(plan.model, ServerArgs(), plan.ready.rules).memory_ratio
    if plan.ready.args.memory_ratio not in (DEFAULT_RATIO, default):
        yield "--max-mamba-cache-size wins over --mamba-full-memory-ratio", "drop the ratio"


def _unread_dtype(plan: Figures) -> Iterator[tuple[str, str]]:
    model, used = plan.model, plan.ready.slot.ssm_dtype
    if plan.args.mamba_ssm_dtype is not None or plan.ready.stateless:
        return
    declared, cached = model.declared_ssm_dtype, model.declared_ssm_cache_dtype
    if declared not in (None, used) and model.architecture not in READS_DECLARED_SSM_DTYPE:
        yield (
            f"the config's mamba_ssm_dtype {declared} is not read for {model.architecture}: the state is {used}",
            Write("--mamba-ssm-dtype", declared),
        )
    if cached not in (None, used):
        yield (
            f"SGLang does not read mamba_ssm_cache_dtype {cached}: the state is {used}",
            Write("--mamba-ssm-dtype", cached),
        )


def _uncharged(plan: Figures) -> Iterator[tuple[str, str]]:
    over_gib, headroom, args = plan.uncharged_bytes / GIB, plan.rest.headroom_gib, plan.args
    if over_gib < (UNCHARGED_SHARE * plan.rest.likely_gib if headroom is None else HEADROOM_SHARE * headroom):
        return
    worst = max(plan.budget, key=lambda line: line.allocated_bytes - line.charged_bytes)
    over = worst.allocated_bytes - worst.charged_bytes
    holder = "the headroom of --mem-fraction-static" if headroom is None else f"{headroom:.2f} GiB of headroom"
    verb = "must hold them" if headroom is None or over_gib < headroom else "cannot hold them"
    fits = headroom is not None and over_gib < headroom
    fix = "" if fits else "lower --mem-fraction-static by as much"
    fraction = args.mem_fraction_static or plan.rest.fraction
    if not fits and plan.rest.before_gib and fraction and fraction * plan.rest.before_gib > over_gib:
        fix = Write("--mem-fraction-static", f"{floor(1000 * (fraction - over_gib / plan.rest.before_gib)) / 1000:g}")
    yield (
        f"{format_bytes(plan.uncharged_bytes)} are allocated beyond what is charged, {format_bytes(over)} of them for "
        f"the {worst.name}: {holder} {verb}",
        fix,
    )


def _little_kept(plan: Figures) -> Iterator[tuple[str, str]]:
    """A fraction by hand that keeps less than half of what the engine's own keeps on this card."""
    args, before = plan.args, plan.rest.before_gib
    if args.mem_fraction_static is None or not args.gpu_memory_mib or not before:
        return  # nothing says what the engine itself would keep
    from hybridcalc.engines.sglang.fraction import settle_fraction

    usual = settle_fraction(plan.model, replace(args, mem_fraction_static=None), args.gpu_memory_mib).fraction
    kept, wanted = (before * (1 - fraction) for fraction in (args.mem_fraction_static, usual))
    if kept < KEPT_SHARE * wanted:
        yield (
            f"--mem-fraction-static {args.mem_fraction_static:g} keeps {kept:.2f} GiB for activations and graphs; "
            f"SGLang's own {usual:.3g} keeps {wanted:.2f}",
            "lower it where a boot runs out of memory",
        )


def _scratch(plan: Figures) -> Iterator[tuple[str, str]]:
    scratch = sum(line.allocated_bytes for line in plan.budget if line.name == "draft states")
    if scratch < SCRATCH_SHARE * plan.rest.likely_gib * GIB:
        return
    per_request = plan.ready.stage_slot_bytes * plan.args.most_draft_tokens
    yield (
        f"draft states take {format_bytes(scratch)}: {plan.max_running_requests:,} + 1 requests x "
        f"{plan.args.most_draft_tokens} states, {format_bytes(per_request)} a request",
        "lower --max-running-requests or the draft tokens, or add --enable-linear-replayssm-spec where it takes effect",
    )


def _speculative_limit(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.args.speculative and plan.args.max_running_requests is None:
        yield "speculation without --max-running-requests limits the server to 48", "write the limit that is meant"


def _dcp_ratio(plan: Figures) -> Iterator[tuple[str, str]]:
    args = plan.args
    split = args.max_mamba_cache_size is None and not plan.ready.stateless
    if args.dcp_size > 1 and split and plan.ready.args.memory_ratio == DEFAULT_RATIO:
        yield (
            f"dcp {args.dcp_size} divides a sequence's KV and not its state: the default ratio is too small by as much",
            _first(plan),
        )


def _inert_replay(plan: Figures) -> Iterator[tuple[str, str]]:
    if plan.args.enable_linear_replayssm_spec and plan.args.speculative and not plan.ready.replay_active:
        yield (
            f"--enable-linear-replayssm-spec has no effect on {plan.model.architecture}: draft states are kept as ever",
            "drop it",
        )
    if plan.ready.replay_active and not plan.args.speculative:
        rings = sum(line.allocated_bytes for line in plan.budget if line.name == "ReplaySSM rings")
        yield (
            f"--enable-linear-replayssm-spec without speculation verifies nothing: rings take {format_bytes(rings)}",
            "drop it",
        )


def _replay_needs(plan: Figures) -> Needs:
    """HC020 weighs rings that nothing verifies."""
    return (MEMORY,) if plan.ready.replay_active and not plan.args.speculative else ()


def _pipeline(plan: Figures) -> Iterator[tuple[str, str]]:
    keeps = plan.ready.args.radix_cache and plan.ready.choice.strategy.startswith("extra_buffer")
    if plan.args.pipeline_turns_overlap_off and keeps:
        yield f"pp {plan.args.pp_size} turns the overlap scheduler off: S = {plan.slots_per_request}", ""


def _too_long(plan: Figures) -> Iterator[tuple[str, str]]:
    longest, own = plan.workload.longest, longest_of(plan.model)
    if plan.too_long:
        short = f"shorten the requests: the model itself ends at {own:,}"
        yield (
            f"requests of {longest:,} tokens exceed the context of {plan.ready.context_length:,}",
            short if 0 < own < longest else Write("--context-length", longest),
        )


def _first(plan: Figures) -> str:
    """The balanced ratio or K as a fix, or the best suggestion where neither helps."""
    even = next((s for s in plan.suggestions if plan.balanced and s.flags == plan.balanced.flags), None)
    best = even or next((s for s in plan.suggestions if s.after > s.before), None)
    return Write.flags(best.flags) if best is not None else ""


SLOT_FLAGS = frozenset({
    "--max-mamba-cache-size", "--max-running-requests", "--mamba-radix-cache-strategy", "--pp-size",
    "--disable-overlap-schedule", "--disable-radix-cache", "--dp-size", "--enable-dp-attention",
    "--disaggregation-mode", "--model-path", "--page-size", "--linear-attn-backend",
})  # fmt: skip
KCC = "SGLang mem_cache/kv_cache_configurator.py"
RULES: tuple[Rule, ...] = (
    Rule("HC001", "error", "no memory for a pool",
         "K or T comes out at zero: the solver gives the state rest x r / (1 + r) and KV what the charges leave.", KCC,
         needs=(MEMORY,), place=("--mem-fraction-static", "--max-mamba-cache-size", "--mamba-full-memory-ratio")),
    Rule("HC002", "error", "slots admit no request, or fewer than wanted",
         "K slots admit K // S requests: C requests need C x S, and one more to spare.", KCC, _fewer_than_wanted,
         needs=(MEMORY, WANTED), asks=_slots_need, rests_on=SLOT_FLAGS,
         place=("--max-mamba-cache-size", "--max-running-requests", "--mamba-full-memory-ratio"),
         settles=("HC013", "HC023")),
    Rule("HC003", "error", "strategy refused",
         "no_buffer does not run under overlap; extra buffers need a class that supports them and the triton backend; "
         "lazy ones need overlap and no disaggregation.", "SGLang arg_groups/mamba_hook.py",
         place=("--mamba-radix-cache-strategy", "--disable-overlap-schedule", "--linear-attn-backend")),
    Rule("HC004", "error", "page size refused",
         "no_buffer needs pages of 1; extra buffers pages that divide the kernel's chunk or are divided by it; a "
         "sparse-attention index 64 pooled tokens.", "SGLang arg_groups/overrides.py", place=("--page-size",)),
    Rule("HC005", "error", "track interval refused",
         "It is at least the draft tokens of a step and a multiple of the page.", "SGLang arg_groups/mamba_hook.py",
         place=("--mamba-track-interval", "--speculative-num-draft-tokens", "--page-size")),
    Rule("HC006", "error", "ReplaySSM refused",
         "Rings are powers of two and at least 2 x D; verification needs a linear chain; decoding no extra buffers.",
         "SGLang arg_groups/attention_hook.py, mem_cache/memory_pool.py",
         place=("--linear-replayssm-cache-len", "--enable-linear-replayssm", "--enable-linear-replayssm-spec")),
    Rule("HC007", "error", "int8 checkpoints refused",
         "They are not kept with hierarchical cache, an external radix backend or LMCache.",
         "SGLang arg_groups/mamba_hook.py", place=("--enable-int8-mamba-checkpoint",)),
    Rule("HC008", "error", "unified memory refused",
         "It does not run disaggregated, with LMCache, two-batch overlap or fp4 KV; DCP needs MLA; speculation one of "
         "DSPARK, DFLASH, EAGLE, EAGLE3 with topk 1.", "SGLang mem_cache/unified_memory_pool.py",
         place=("--enable-unified-memory",)),
    Rule("HC009", "error", "ranks do not divide the model",
         "Heads, channels and widths are shared out exactly; up to 0.5.21 the vocabulary, in 64 rows, as well.",
         "SGLang configs/mamba_utils.py, layers/", place=("--tp-size",), settles=("HC073",)),
    Rule("HC010", "warning", "KV idles while the state pool binds",
         "Requests stop at K // S; the KV beyond K // S x L is never used.", KCC, _kv_idles, needs=(MEMORY, LENGTH),
         place=("--max-mamba-cache-size", "--mamba-full-memory-ratio"), settles=("HC013",)),
    Rule("HC011", "warning", "state slots idle while KV binds",
         "Requests stop at T // L; slots beyond that x S are never used.", KCC, _state_idles, needs=(MEMORY, LENGTH),
         place=("--max-mamba-cache-size", "--mamba-full-memory-ratio"), settles=("HC013",)),
    Rule("HC012", "warning", "default ratio on a workload that wants another",
         "r* = (S + D) x state / (L x kv) is rarely 0.9.", "docs/formulas.md, r*", _default_ratio,
         needs=(MEMORY, LENGTH), place=("--mamba-full-memory-ratio",)),
    Rule("HC013", "note", "explicit K is not a multiple of S plus one",
         "Slots beyond a multiple of S admit no request; without one to spare a full pool cannot turn over.",
         "docs/formulas.md, pin", _not_a_pin, asks=_pin_needs, place=("--max-mamba-cache-size",), choice=True,
         given="max_mamba_cache_size"),
    Rule("HC014", "note", "ratio and K both given", "An explicit K wins.", KCC, _two_sizes,
         place=("--mamba-full-memory-ratio",),
         rests_on=frozenset({"--max-mamba-cache-size", "--mamba-full-memory-ratio"}), given="max_mamba_cache_size"),
    Rule("HC015", "warning", "declared state dtype is not read",
         "Only some classes read mamba_ssm_dtype; none reads mamba_ssm_cache_dtype; the default is float32.",
         "SGLang configs/mamba_utils.py", _unread_dtype, place=("--mamba-ssm-dtype",)),
    Rule("HC016", "warning", "uncharged memory",
         "Buffers that the solver does not price come out of the headroom: a fifth of it, or a twentieth of the memory "
         "left where the headroom is not known.", "SGLang mem_cache/memory_pool.py", _uncharged, needs=(MEMORY,),
         place=("--mem-fraction-static",)),
    Rule("HC017", "warning", "draft states take much of the memory",
         "Every request that can run holds D states, used or not: (R + 1) x D x state.",
         "SGLang mem_cache/memory_pool.py", _scratch, needs=(MEMORY,)),
    Rule("HC018", "note", "speculation limits requests to 48", "The limit is set when none is given.",
         SPECULATION, _speculative_limit, place=("--speculative-algorithm",),
         rests_on=frozenset({"--speculative-algorithm", "--max-running-requests"}), given="speculative_algorithm"),
    Rule("HC019", "warning", "context parallelism with the default ratio",
         "r* scales with dcp: KV of a sequence is shared, its state is not.", "docs/formulas.md, r*", _dcp_ratio,
         place=("--dcp-size",), given="dcp_size"),
    Rule("HC020", "warning", "ReplaySSM flag without effect",
         "It serves speculation on KDA models and Qwen and Jet GDN models.",
         "SGLang mem_cache/kv_cache_configurator.py", _inert_replay, asks=_replay_needs,
         place=("--enable-linear-replayssm-spec",), given="enable_linear_replayssm_spec"),
    Rule("HC021", "note", "pipeline parallelism changes S",
         "Without overlap extra buffers track one slot, not two.", KCC, _pipeline, place=("--pp-size",),
         given="pp_size"),
    Rule("HC022", "error", "requests longer than the context", "Such a request is refused or cut.",
         "SGLang configs/model_config.py", _too_long, needs=(LENGTH,), place=("--context-length",)),
    Rule("HC023", "warning", "requests clamped below --max-running-requests",
         "The server runs what slots and tokens admit, whatever limit is asked for.", KCC, _fewer_than_allowed,
         needs=(MEMORY,), asks=_allowed_needs, place=("--max-running-requests",), given="max_running_requests"),
    Rule("HC024", "error", "class, flag or value unknown to the version",
         "Older releases have no newer model classes, flags and choices; some classes run no pipeline stages.",
         "SGLang models/, server_args.py"),
    Rule("HC025", "error", "attention without a kernel", "Not every backend has one for a GPU, a KV dtype, drafts.",
         "SGLang arg_groups/kv_cache_hook.py, attention_hook.py", place=("--kv-cache-dtype", "--attention-backend")),
    Rule("HC026", "error", "draft windows of two lengths",
         "Convolution windows of a linear draft chain share columns, which windows of two lengths cannot.",
         "SGLang mem_cache/memory_pool.py", place=("--speculative-algorithm",)),
    Rule("HC027", "error", "pooled index keys under context parallelism",
         "A key of a sparse-attention index that several tokens share cannot lie on ranks that part them.",
         "SGLang arg_groups/model_overrides/deepseek_v2.py", place=("--dcp-size",)),
    Rule("HC028", "error", "compressed index refused",
         "Kernels select 512 or 2,048 keys of one head, each of two tokens or more.",
         "SGLang layers/attention/qsa/config.py", place=("--qsa-indexer-dtype",)),
    Rule("HC029", "note", "little memory is kept beside the pools",
         "Activations and graphs come out of what the fraction leaves; the engine's own follows from the card.",
         "SGLang arg_groups/memory_hook.py", _little_kept, needs=(MEMORY,),
         place=("--mem-fraction-static",), given="mem_fraction_static"),
    Rule("HC030", "warning", "memory that is not modelled",
         "LoRA adapters take memory, offloaded layers and experts free some; a plan counts neither.",
         "docs/engines.md", uncounted, given="uncounted"),
    Rule("HC031", "warning", "KV that is not known",
         "auto follows the quantization_config of the checkpoint; a draft model keeps KV of its own.",
         "SGLang mem_cache/kv_cache_dtype.py, mem_cache/kv_cache_configurator.py",
         lambda plan: kv_not_known(plan.model, plan.args, draft_kv=plan.ready.cells[0].draft_bytes)),
    Rule("HC032", "warning", "draft tokens do not fit steps and branches",
         "With one branch a step they are the steps and 1, whatever is typed.", SPECULATION,
         lambda plan: draft_numbers(plan.args), place=(DRAFTS, STEPS, BRANCHES),
         rests_on=frozenset({STEPS, BRANCHES, DRAFTS}), given="speculative_algorithm"),
)  # fmt: skip
"""Every rule, refusals first."""
