"""What should --mamba-full-memory-ratio be, and what does today's setting come to?

The closed forms (formulas.py) are put on an engine's constants: r*, the slots a request holds, the K that pins a
concurrency and, when the memory left for both pools is known, what the engine's own solver makes of each choice of
flags (settings.py). Constants come from the architecture, exactly, or from a boot log, as intervals (constants.py).
r* keeps the published form, which charges draft states to the slots; see formulas.py.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.sglang import ServerArgs, check_arguments, check_chain, check_together
from hybridcalc.engines.sglang.refusals import check_pools
from hybridcalc.engines.sglang.releases import RuleSet, rules_for
from hybridcalc.engines.sglang.sizes import (
    Constants,
    architecture_constants,
    draft_kv_bytes,
    draft_states,
    kv_not_known,
    model_notes,
    replayssm_active,
)
from hybridcalc.engines.sglang.strategy import Resolved, resolve_strategy, with_defaults
from hybridcalc.findings import Step
from hybridcalc.formulas import Slots, Strategy, balanced_ratio, pin, token_equiv

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridcalc.engines.sglang.settings import Evaluate, Setting

UNNAMED_MODEL = Architecture(
    name="", architecture="Qwen3NextForCausalLM", layers="", state=None, attention=None, chunk_size=1
)
"""Stands in where no model is named: a class that every version gives extra buffers, with a chunk any page fits."""


class Observed(NamedTuple):
    """Both pools as a boot printed them: K slots and the tokens of one rank; and S, where it printed that."""

    slots: int
    tokens: int
    slots_per_request: int | None = None

    def held(self, expected: Slots) -> Slots:
        """The slots that a request held: what is printed counts over what the flags give."""
        printed = self.slots_per_request
        return expected if printed in (None, expected.count) else Slots(printed or 1, "as the log prints it")


class Balance(NamedTuple):
    """The answer of ``hybridcalc ratio``. ``settings`` are the balanced ratio, the pin and today's flags."""

    model: str
    engine_version: str
    ratio: Fraction
    token_equiv: Fraction
    slots: Slots
    strategy: str
    draft_states: int
    draft_kv_bytes_per_token: int
    dcp_size: int
    workload: Workload
    rest_gib: float | None
    constants: Constants
    pin_concurrency: int
    pin_slots: int
    settings: "tuple[Setting, ...]"
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    def setting(self, label: str) -> "Setting | None":
        """The setting of that label: "set", "or", "today"; None without a budget, or where the engine would refuse."""
        return next((setting for setting in self.settings if setting.label == label), None)

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``ratio --json``."""
        constants, today = self.constants, self.setting("today")
        document: dict[str, Any] = {
            "model": self.model or None,
            "engine_version": self.engine_version,
            "ratio": float(self.ratio),
            "token_equiv": float(self.token_equiv),
            "slots_per_request": self.slots.count,
            "slots_reason": self.slots.reason,
            "strategy": self.strategy,
            "draft_states": self.draft_states,
            "draft_kv_bytes_per_token": self.draft_kv_bytes_per_token,
            "dcp_size": self.dcp_size,
            "length_tokens": self.workload.longest,
            "state_bytes_per_slot": round(constants.state_bytes),
            "conv_bytes_per_slot": round(constants.conv_bytes),
            "ssm_bytes_per_slot": round(constants.ssm_bytes),
            "kv_bytes_per_token": round(constants.kv_bytes_per_token) + self.draft_kv_bytes_per_token,
            "constants_from": constants.origin,
            "pin": {"concurrency": self.pin_concurrency, "max_mamba_cache_size": self.pin_slots},
        }
        for name, bounds, more in (
            ("state_bytes_per_slot", constants.state_range, 0),
            ("kv_bytes_per_token", constants.kv_range, self.draft_kv_bytes_per_token),
        ):
            if bounds is not None:
                document[f"{name}_range"] = [float(bound + more) for bound in bounds]
        if today is not None:
            document["clamp"] = {"rest_gib": self.rest_gib} | today.to_dict()
        document["settings"] = [{"label": s.label, "flags": s.flags} | s.to_dict() for s in self.settings]
        document["notes"] = list(self.notes)
        document["steps"] = [step.to_dict() for step in self.steps]
        return document


class _Question(NamedTuple):
    """Everything `_answer` needs, resolved: no flags left to interpret. ``over``: settings with what they come to over
    a memory that is an estimate.
    """

    model: str
    workload: Workload
    constants: Constants
    slots: Slots
    strategy: str
    draft_states: int
    draft_reason: str
    draft_kv: int
    args: ServerArgs
    rules: RuleSet
    rest_gib: float | None
    observed: Observed | None
    evaluate: "Evaluate | None"
    over: "Callable[[list[Setting]], list[Setting]] | None" = None

    @property
    def kv_bytes_per_token(self) -> int | Fraction:
        """Bytes of a token on one rank, draft included."""
        return self.constants.kv_bytes_per_token + self.draft_kv

    @property
    def length(self) -> Fraction:
        """Tokens a request holds, on average."""
        return self.workload.mean_length or Fraction(1)

    @property
    def ratio(self) -> Fraction:
        """r*, exactly."""
        return balanced_ratio(
            self.constants.state_bytes,
            self.constants.kv_bytes_per_token,
            slots_per_request=self.slots.count,
            length_tokens=self.length,
            draft_states=self.draft_states,
            dcp=self.args.dcp_size,
            draft_kv_bytes_per_token=self.draft_kv,
        )


def balance_model(
    model: Architecture,
    args: ServerArgs,
    workload: Workload,
    *,
    rest_gib: float | None = None,
    rest: Rest | None = None,
    observed: Observed | None = None,
    constants: Constants | None = None,
) -> Balance:
    """r* and its consequences for a model, with ``rest_gib`` of memory left for both pools on one rank, or ``rest``, an
    interval of it.

    ``observed`` is what a boot printed, shown as today's setting; ``constants`` replaces the architecture's (a log that
    disagrees with it). Raises InputError, ShardingError and Refusal for what the model or the engine does not do.
    """
    check_arguments(args)
    check_together(args)
    check_chain(args)
    rules, note = rules_for(args.engine_version)
    args = with_defaults(model, args, rules)
    measured = constants or architecture_constants(model, args, rules)
    resolved = resolve_strategy(model, args, rules)
    replay_active = replayssm_active(model, args, rules)
    check_pools(model, args, rules, replay_active=replay_active)
    drafts, reason = draft_states(args, active=replay_active)
    draft_kv = draft_kv_bytes(model, args, rules)
    slots = resolved.slots if observed is None else observed.held(resolved.slots)
    evaluate = None
    if rest is not None:
        rest_gib = rest.likely_gib
    if rest_gib is not None and constants is None and slots is resolved.slots:
        from hybridcalc.engines.sglang.settings import by_model

        evaluate = by_model(model, rest_gib, workload.mean_length or Fraction(1))
    elif rest_gib is not None:
        evaluate = _measured(measured, draft_kv, slots, args, rules, rest_gib, workload)
    question = _Question(
        model.name,
        workload,
        measured,
        slots,
        resolved.strategy,
        drafts,
        reason,
        draft_kv,
        args,
        rules,
        rest_gib,
        observed,
        evaluate,
        None if rest is None or rest.exact else partial(_over, model, args, rest, workload),
    )
    unknown = (f"{said}: {how}" for said, how in kv_not_known(model, args, draft_kv=draft_kv))
    return _answer(question, [note, *model_notes(model, args, workload), *unknown])


def balance_constants(
    constants: Constants,
    args: ServerArgs,
    workload: Workload,
    *,
    rest_gib: float | None = None,
    observed: Observed | None = None,
) -> Balance:
    """r* from measured constants alone, with no model named: auto is taken for extra_buffer, and a note says so.

    Raises Refusal for flags that the engine starts no model with.
    """
    check_arguments(args)
    check_together(args)
    rules, note = rules_for(args.engine_version)
    typed, notes = args.mamba_radix_cache_strategy, [note]
    if typed == "auto" and args.radix_cache:
        notes.append("no MODEL given: strategy auto is taken for extra_buffer; name the model to have it resolved")
    resolved = resolve_unnamed(args, rules)
    slots, strategy = resolved.slots, resolved.strategy if args.radix_cache else typed
    drafts, reason = draft_states(args, active=args.enable_linear_replayssm_spec and args.speculative)
    draft_kv, evaluate = args.draft_kv_bytes_per_token or 0, None
    if rest_gib is not None:
        evaluate = _measured(constants, draft_kv, slots, args, rules, rest_gib, workload)
    question = _Question(
        "", workload, constants, slots, strategy, drafts, reason, draft_kv, args, rules, rest_gib, observed, evaluate
    )
    return _answer(question, notes)


def resolve_unnamed(args: ServerArgs, rules: RuleSet) -> Resolved:
    """Strategy and S with no model named: auto is taken for extra_buffer. Raises Refusal for what no model does."""
    if args.mamba_radix_cache_strategy == "auto":
        args = replace(args, mamba_radix_cache_strategy=Strategy.EXTRA_BUFFER.value)
    return resolve_strategy(UNNAMED_MODEL, args, rules)


def _over(
    model: Architecture, args: ServerArgs, rest: Rest, workload: Workload, settings: "list[Setting]"
) -> "list[Setting]":
    """The settings with the least and the most that their flags admit in that memory; 0 where it does not start."""
    from hybridcalc.engines.sglang import ENGINE
    from hybridcalc.engines.sglang.server_plan import plan
    from hybridcalc.engines.sglang.settings import settle

    length = workload.mean_length or Fraction(1)

    def ends(setting: "Setting") -> tuple[int, int]:
        changed = args if setting.label == "today" else ENGINE.changed(args, setting.flags)
        found = plan(model, changed, rest=rest, workload=workload)
        least, most = (
            settle("", "", found.ready, end, length).requests if end.requests else 0 for end in (found.low, found.high)
        )
        return least, most

    return [each._replace(ends=ends(each)) for each in settings]


def _measured(
    constants: Constants,
    draft_kv: int,
    slots: Slots,
    args: ServerArgs,
    rules: RuleSet,
    rest_gib: float,
    workload: Workload,
) -> "Evaluate":
    """The solver on measured sizes."""
    from hybridcalc.engines.sglang.settings import by_sizes

    cell = round(constants.kv_bytes_per_token) + draft_kv * args.dcp_size
    length = workload.mean_length or Fraction(1)
    return by_sizes(round(constants.state_bytes), cell, slots.count, rest_gib, length, rules)


def _answer(question: _Question, notes: list[str]) -> Balance:
    dp = question.args.attn_dp_size
    settings, more_notes = _settings(question)
    balanced = next((setting for setting in settings if setting.label == "set"), None)
    pinned = _pinned(question, balanced)
    if question.draft_states:
        more_notes.append(
            f"r* charges D = {question.draft_states} draft states to every request (the published form); "
            "SGLang allocates (requests + 1) x D states beside the slots"
        )
    pin_slots = pin(pinned, question.slots.count, dp=dp)
    return Balance(
        model=question.model,
        engine_version=question.rules.version,
        ratio=question.ratio,
        token_equiv=token_equiv(question.constants.state_bytes, question.kv_bytes_per_token),
        slots=question.slots,
        strategy=question.strategy,
        draft_states=question.draft_states,
        draft_kv_bytes_per_token=question.draft_kv,
        dcp_size=question.args.dcp_size,
        workload=question.workload,
        rest_gib=question.rest_gib,
        constants=question.constants,
        pin_concurrency=pinned,
        pin_slots=pin_slots,
        settings=tuple(settings),
        steps=tuple(_steps(question, pinned, pin_slots)),
        notes=tuple(text for text in [*notes, *more_notes] if text),
    )


def _pinned(question: _Question, balanced: "Setting | None") -> int:
    """Requests to pin slots for: those wanted, else the server's limit, else what the balanced ratio admits, else 1."""
    admitted = question.args.attn_dp_size * balanced.requests if balanced is not None else 0
    return question.workload.wanted or question.args.max_running_requests or admitted or 1


def _settings(question: _Question) -> "tuple[list[Setting], list[str]]":
    """What to set, through the engine's solver, and the setting of a boot; nothing where r* is all that is asked."""
    if question.evaluate is None and question.observed is None:
        return [], []
    from hybridcalc.engines.sglang.settings import choices, weigh

    args, slots, booted = question.args, question.slots.count, question.observed
    settings: list[Setting] = []
    notes: list[str] = []
    if question.evaluate is not None:
        settings, notes = choices(
            question.evaluate, args, question.ratio, slots, partial(_pinned, question), booted=booted is not None
        )
        if question.over is not None:
            settings = question.over(settings)
    if booted is not None:
        tokens = booted.tokens * args.dcp_size
        settings.append(weigh("today", "as booted", booted.slots, tokens, slots, question.length, args))
    return settings, notes


def _steps(question: _Question, pinned: int, pin_slots: int) -> list[Step]:
    constants, slots, drafts = question.constants, question.slots.count, question.draft_states
    state, kv, dcp = constants.state_bytes, constants.kv_bytes_per_token, question.args.dcp_size
    engine, dp, exact = (
        f"SGLang {question.rules.version}",
        question.args.attn_dp_size,
        constants.origin == "architecture",
    )
    per_token = _plain(kv) if dcp == 1 and not question.draft_kv else f"({_plain(kv)} / {dcp} + {question.draft_kv:,})"
    numbers = f"({slots} + {drafts}) x {_plain(state)} / ({_plain(question.length)} x {per_token})"
    return [
        Step(
            "state",
            "layers x (conv + ssm)" if exact else "pool / (K + 1)",
            constants.state_numbers,
            state,
            "B per slot and rank",
            f"{engine} configs/mamba_utils.py" if exact else "boot log",
        ),
        Step(
            "kv",
            "attention layers x row" if exact else "pool / (tokens + page)",
            constants.kv_numbers,
            kv,
            "B per token and rank",
            f"{engine} model_executor/pool_configurator.py" if exact else "boot log",
        ),
        Step(
            "token_equiv",
            "state / (kv + draft kv)" if question.draft_kv else "state / kv",
            f"{_plain(state)} / " + (f"({_plain(kv)} + {question.draft_kv:,})" if question.draft_kv else _plain(kv)),
            token_equiv(state, question.kv_bytes_per_token),
            "tokens",
            "docs/formulas.md, token_equiv",
        ),
        Step(
            "S",
            "base + tracking",
            question.slots.reason,
            slots,
            "slots per request",
            f"{engine} mem_cache/kv_cache_configurator.py",
        ),
        Step(
            "D",
            "draft states charged to a request",
            question.draft_reason,
            drafts,
            "states per request",
            "published form; the engine allocates (requests + 1) x D states beside the slots",
        ),
        Step(
            "r*",
            "(S + D) x state / (L x (kv / dcp + draft kv))",
            numbers,
            question.ratio,
            "memory ratio, state to KV",
            "docs/formulas.md, r*",
        ),
        Step(
            "pin",
            "dp x (ceil(C / dp) x S + 1)",
            f"{dp} x (ceil({pinned} / {dp}) x {slots} + 1)",
            pin_slots,
            "slots",
            "docs/formulas.md, pin: one slot a worker stays free",
        ),
    ]


def _plain(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.1f}"
