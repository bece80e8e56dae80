"""What should --mamba-full-memory-ratio be, and what does today's setting come to?

`balance` puts the closed forms (formulas/) on an engine's constants: r*, the slots a request holds, the K that pins a
concurrency and, when the memory left for both pools is known, what the engine's own solver makes of each choice of
flags. Constants come from the architecture, exactly, or from a boot log, as intervals.
r* keeps the published form, which charges draft states to the slots; see formulas/balance.py.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.config import RuleSet, ServerArgs, check_model, rules_for, with_model_defaults
from hybridcalc.engines.sglang.kv import draft_layers, kv_cell
from hybridcalc.engines.sglang.pools import Rings
from hybridcalc.engines.sglang.replayssm import charged_rings, replayssm_active
from hybridcalc.engines.sglang.settings import Setting, Solver, weigh
from hybridcalc.engines.sglang.states import slot_parts, state_slot
from hybridcalc.engines.sglang.strategy import RADIX_ARCHITECTURES, resolve_strategy
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.formulas.balance import balanced_ratio, balanced_requests, token_equiv
from hybridcalc.formulas.slots import Slots, Strategy, pin, slots_per_request
from hybridcalc.plan import Step
from hybridcalc.units import GIB

ARCHITECTURES_WITHOUT_RADIX = frozenset({
    "Mamba2ForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM", "NemotronH_Nano_VL_V2",
    "NemotronH_Nano_Omni_Reasoning_V3", "Lfm2VlForConditionalGeneration", "KimiK3LinearForCausalLM",
    "MiniCPMSALAForCausalLM",
})  # fmt: skip
"""Classes SGLang runs without a radix cache for their states."""

Range = tuple[Fraction, Fraction]


class Constants(NamedTuple):
    """The two sizes everything rests on, in bytes per rank, and what they are made of.

    ``origin`` is "architecture" (exact) or "log"; then the ranges say what the printed figures allow, and the single
    values are their middles.
    """

    origin: str
    state_bytes: Fraction
    conv_bytes: Fraction
    ssm_bytes: Fraction
    kv_bytes_per_token: Fraction
    state_why: str
    kv_why: str
    state_numbers: str
    kv_numbers: str
    state_range: Range | None = None
    kv_range: Range | None = None


class Observed(NamedTuple):
    """Both pools as a boot printed them: K slots and the tokens of one rank."""

    slots: int
    tokens: int


class Workload(NamedTuple):
    """The question: tokens a request holds and, where known, the memory left for both pools and the concurrency."""

    length_tokens: int
    rest_gib: float | None = None
    concurrency: int | None = None
    observed: Observed | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """The answer of ``hybridcalc ratio``."""

    ratio: Fraction
    token_equiv: Fraction
    slots: Slots
    strategy: str
    draft_states: int
    draft_kv_bytes_per_token: int
    dcp_size: int
    workload: Workload
    constants: Constants
    pin_concurrency: int
    pin_slots: int
    settings: tuple[Setting, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    @property
    def today(self) -> Setting | None:
        """What the flags as given come to; None without a budget, or where the engine would not start."""
        return next((setting for setting in self.settings if setting.label == "today"), None)

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``ratio --json``."""
        constants, today = self.constants, self.today
        document: dict[str, Any] = {
            "ratio": float(self.ratio),
            "token_equiv": float(self.token_equiv),
            "slots_per_request": self.slots.count,
            "slots_reason": self.slots.reason,
            "strategy": self.strategy,
            "draft_states": self.draft_states,
            "draft_kv_bytes_per_token": self.draft_kv_bytes_per_token,
            "dcp_size": self.dcp_size,
            "length_tokens": self.workload.length_tokens,
            "state_bytes_per_slot": round(constants.state_bytes),
            "conv_bytes_per_slot": round(constants.conv_bytes),
            "ssm_bytes_per_slot": round(constants.ssm_bytes),
            "kv_bytes_per_token": round(constants.kv_bytes_per_token),
            "constants_from": constants.origin,
            "pin": {"concurrency": self.pin_concurrency, "max_mamba_cache_size": self.pin_slots},
        }
        for name, bounds in (
            ("state_bytes_per_slot", constants.state_range),
            ("kv_bytes_per_token", constants.kv_range),
        ):
            if bounds is not None:
                document[f"{name}_range"] = [float(bounds[0]), float(bounds[1])]
        if today is not None:
            document["clamp"] = {"rest_gib": self.workload.rest_gib} | today.to_dict()
        document["settings"] = [{"label": s.label, "flags": s.flags} | s.to_dict() for s in self.settings]
        document["notes"] = list(self.notes)
        document["steps"] = [step.to_dict() for step in self.steps]
        return document


class _Question(NamedTuple):
    """Everything `_answer` needs, resolved: no model, no flags left to interpret."""

    workload: Workload
    constants: Constants
    slots: Slots
    strategy: str
    draft_states: int
    draft_reason: str
    draft_kv_bytes_per_token: int
    args: ServerArgs
    rules: RuleSet
    rings: Rings
    replay_active: bool

    @property
    def weights(self) -> dict[str, int]:
        """The closed forms' keyword arguments."""
        return {
            "slots_per_request": self.slots.count,
            "length_tokens": self.workload.length_tokens,
            "draft_states": self.draft_states,
            "dcp": self.args.dcp_size,
            "draft_kv_bytes_per_token": self.draft_kv_bytes_per_token,
        }


def architecture_constants(model: Architecture, args: ServerArgs, rules: RuleSet) -> Constants:
    """Both constants of a model, exact, without a draft model's KV.

    Raises InputError for a model that has only one of the two caches, ShardingError for a tp that does not divide.
    """
    check_model(rules, model.architecture)
    if model.state is None:
        raise InputError(f"{model.name} has no recurrent layer: there is no state pool to size")
    slot, cell = state_slot(model, args), kv_cell(model, replace(args, speculative_algorithm=None), rules)
    if not cell.layers:
        raise InputError(
            f"{model.name} has no attention layer: there is no KV to balance the state against",
            fix="its concurrency is K // S: see `hybridcalc slots`",
        )
    layer = f"{slot.conv_bytes_per_layer:,} + {slot.ssm_bytes_per_layer:,}"
    return Constants(
        origin="architecture",
        state_bytes=Fraction(slot.bytes),
        conv_bytes=Fraction(slot.conv_bytes),
        ssm_bytes=Fraction(slot.ssm_bytes),
        kv_bytes_per_token=Fraction(cell.target_bytes),
        state_why=f"{model.describe_layers.split(' + ')[0]} layers: {slot_parts(slot)}",
        kv_why=f"{cell.layers} attention layers: {cell.row}",
        state_numbers=f"{slot.layers} x ({layer}); {slot.ssm_dtype}: {slot.ssm_dtype_reason}",
        kv_numbers=f"{cell.layers} x {Fraction(cell.target_bytes, cell.layers)}; {cell.row}",
    )


def balance_model(
    model: Architecture, args: ServerArgs, workload: Workload, *, constants: Constants | None = None
) -> Balance:
    """r* and its consequences for a model. ``constants`` replaces the architecture's (a log that disagrees with it).

    Raises InputError, ShardingError and IllegalCombination for what the model or the engine does not do.
    """
    rules, note = rules_for(args.engine_version)
    args = with_model_defaults(model.architecture, args)
    measured = constants or architecture_constants(model, args, rules)
    resolved = resolve_strategy(model, args, rules)
    active = replayssm_active(model, args, rules)
    draft_states, draft_reason = _draft_states(args, active=active)
    question = _Question(
        workload, measured, resolved.slots, resolved.strategy, draft_states, draft_reason,
        _draft_kv(model, args, rules), args, rules, charged_rings(model, args, rules), active,
    )  # fmt: skip
    return _answer(question, [note, model.reading, *_model_notes(model, args, workload.length_tokens)])


def balance_constants(constants: Constants, args: ServerArgs, workload: Workload) -> Balance:
    """r* from measured constants alone, with no model named: auto is taken for extra_buffer, and a note says so."""
    rules, note = rules_for(args.engine_version)
    typed, notes = args.mamba_radix_cache_strategy, [note]
    if typed == "auto" and not args.disable_radix_cache:
        typed = Strategy.EXTRA_BUFFER.value
        notes.append("no MODEL given: strategy auto is taken for extra_buffer; name the model to have it resolved")
    slots = slots_per_request(
        Strategy.NO_BUFFER if typed == "auto" else Strategy(typed), overlap=args.overlap,
        skip_decode_lock=args.skip_decode_lock, radix_cache=not args.disable_radix_cache,
    )  # fmt: skip
    if args.pp_size > 1:
        slots = Slots(slots.count, f"{slots.reason}; pp {args.pp_size} turns overlap off")
    active = args.enable_linear_replayssm_spec and args.speculative
    draft_states, draft_reason = _draft_states(args, active=active)
    question = _Question(
        workload, constants, slots, typed, draft_states, draft_reason, args.draft_kv_bytes_per_token or 0, args, rules,
        Rings(), active,
    )  # fmt: skip
    return _answer(question, notes)


def ratio_text(ratio: Fraction) -> str:
    """r* as a flag value: two decimals, or three significant digits below one."""
    value = float(ratio)
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _answer(question: _Question, notes: list[str]) -> Balance:
    workload, constants = question.workload, question.constants
    sizes = (constants.state_bytes, constants.kv_bytes_per_token)
    ratio = balanced_ratio(*sizes, **question.weights)
    fitting = None
    if workload.rest_gib is not None:
        fitting = balanced_requests(int(workload.rest_gib * GIB), *sizes, **question.weights)
    pinned = workload.concurrency or question.args.max_running_requests or fitting or 1
    pin_slots = pin(pinned, question.slots.count, dp=question.args.attn_dp_size)
    settings, refusals = _settings(question, ratio, pin_slots)
    if question.draft_states:
        refusals.append(
            f"r* charges D = {question.draft_states} draft states to every request (the published form); "
            "SGLang allocates (requests + 1) x D states beside the slots"
        )
    return Balance(
        ratio=ratio,
        token_equiv=token_equiv(*sizes),
        slots=question.slots,
        strategy=question.strategy,
        draft_states=question.draft_states,
        draft_kv_bytes_per_token=question.draft_kv_bytes_per_token,
        dcp_size=question.args.dcp_size,
        workload=workload,
        constants=constants,
        pin_concurrency=pinned,
        pin_slots=pin_slots,
        settings=tuple(settings),
        steps=tuple(_steps(question, ratio, pinned, pin_slots)),
        notes=tuple(text for text in [*notes, *refusals] if text),
    )


def _settings(question: _Question, ratio: Fraction, pin_slots: int) -> tuple[list[Setting], list[str]]:
    """The balanced ratio, the pin and today's flags through the engine's solver, and what it would refuse."""
    workload, args, constants = question.workload, question.args, question.constants
    if workload.rest_gib is None:
        return [], []
    flag = ratio_text(ratio)
    choices = [
        ("set", f"--mamba-full-memory-ratio {flag}",
         replace(args, mamba_full_memory_ratio=float(flag), max_mamba_cache_size=None)),
        ("or", f"--max-mamba-cache-size {pin_slots}", replace(args, max_mamba_cache_size=pin_slots)),
    ]  # fmt: skip
    if workload.observed is None:
        choices.append(("today", _today_flags(args), args))
    solver = Solver(
        workload.rest_gib, round(constants.state_bytes),
        round(constants.kv_bytes_per_token) + question.draft_kv_bytes_per_token * args.dcp_size,
        question.slots.count, workload.length_tokens, question.rules, question.rings, question.replay_active,
    )  # fmt: skip
    settings, refusals = [], []
    for label, flags, changed in choices:
        try:
            settings.append(solver.setting(label, flags, changed))
        except IllegalCombination as refusal:
            refusals.append(f"{flags}: the engine would refuse, {refusal.message}")
    if workload.observed is not None:
        tokens = workload.observed.tokens * args.dcp_size
        settings.append(
            weigh(
                "today",
                "as booted",
                workload.observed.slots,
                tokens,
                question.slots.count,
                workload.length_tokens,
                args,
            )
        )
    return settings, refusals


def _today_flags(args: ServerArgs) -> str:
    if args.max_mamba_cache_size is not None:
        return f"--max-mamba-cache-size {args.max_mamba_cache_size}"
    return f"--mamba-full-memory-ratio {args.mamba_full_memory_ratio:g}"


def _draft_states(args: ServerArgs, *, active: bool) -> tuple[int, str]:
    """D, and where it comes from."""
    if not args.speculative:
        return 0, "no speculation"
    if active:
        return 0, "ReplaySSM verification keeps rings, not draft states"
    reason = f"{args.speculative_algorithm}: {args.draft_tokens} draft tokens"
    if args.enable_linear_replayssm_spec:
        reason += "; --enable-linear-replayssm-spec has no effect on this model"
    return args.draft_tokens, reason


def _draft_kv(model: Architecture, args: ServerArgs, rules: RuleSet) -> int:
    """The draft model's bytes per token and rank: as given, or the target's row for each of its layers."""
    if not args.speculative:
        return 0
    if args.draft_kv_bytes_per_token is not None:
        return args.draft_kv_bytes_per_token
    cell = kv_cell(model, replace(args, speculative_algorithm=None), rules)
    return cell.target_bytes * draft_layers(model, args) // cell.layers if cell.layers else 0


def _model_notes(model: Architecture, args: ServerArgs, length: int) -> list[str]:
    notes = []
    if model.architecture not in RADIX_ARCHITECTURES | ARCHITECTURES_WITHOUT_RADIX:
        notes.append(f"SGLang has no class for {model.architecture}: these figures follow from its geometry alone")
    if model.confidence == "second-hand":
        notes.append(f"geometry is second-hand: {model.source}")
    longest = int((model.max_context or 0) * model.rope_scaling_factor)
    if longest and length > longest:
        notes.append(f"{length:,} tokens exceed the model's own limit of {longest:,}")
    if args.pp_size > 1:
        notes.append(f"pp {args.pp_size}: layers are taken to be spread evenly over the stages")
    if args.attn_dp_size > 1:
        notes.append(f"slots, tokens and requests are those of one of {args.attn_dp_size} attention workers")
    return notes


def _steps(question: _Question, ratio: Fraction, pinned: int, pin_slots: int) -> list[Step]:
    constants, slots, drafts = question.constants, question.slots.count, question.draft_states
    state, kv, dcp = constants.state_bytes, constants.kv_bytes_per_token, question.args.dcp_size
    engine, dp, exact = (
        f"SGLang {question.rules.version}",
        question.args.attn_dp_size,
        constants.origin == "architecture",
    )
    draft_kv, length = question.draft_kv_bytes_per_token, question.workload.length_tokens
    per_token = _plain(kv) if dcp == 1 and not draft_kv else f"({_plain(kv)} / {dcp} + {draft_kv:,})"
    numbers = f"({slots} + {drafts}) x {_plain(state)} / ({length:,} x {per_token})"
    return [
        Step("state", "layers x (conv + ssm)", constants.state_numbers, state, "B per slot and rank",
             f"{engine} configs/mamba_utils.py" if exact else "boot log: pool / (K + 1)"),
        Step("kv", "attention layers x row", constants.kv_numbers, kv, "B per token and rank",
             f"{engine} model_executor/pool_configurator.py" if exact else "boot log: pool / (tokens + page)"),
        Step("token_equiv", "state / kv", f"{_plain(state)} / {_plain(kv)}", token_equiv(state, kv), "tokens",
             "docs/formulas.md, token_equiv"),
        Step("S", "base + tracking", question.slots.reason, slots, "slots per request",
             f"{engine} mem_cache/kv_cache_configurator.py"),
        Step("D", "draft states charged to a request", question.draft_reason, drafts, "states per request",
             "published form; the engine allocates (requests + 1) x D states beside the slots"),
        Step("r*", "(S + D) x state / (L x (kv / dcp + draft kv))", numbers, ratio, "memory ratio, state to KV",
             "docs/formulas.md, r*"),
        Step("pin", "dp x (ceil(C / dp) x S + 1)", f"{dp} x (ceil({pinned} / {dp}) x {slots} + 1)", pin_slots, "slots",
             "docs/formulas.md, pin: one slot a worker stays free"),
    ]  # fmt: skip


def _plain(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.1f}"
