"""What is there to go by in a boot of SGLang, and does it fit exact sizes?

    state slot = (conv + ssm printed) / (K + 1)          SGLang's pool holds one slot more than it prints
    KV token   = (K + V printed) / (tokens + page)       and one page more

A printed figure is an interval ("13.04" GiB is 13.035 to 13.045), so both sizes are intervals; a model fits when its
exact sizes lie in all of them. What a log says of S, and what S may be where it does not, stands here too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.sglang import target_pools
from hybridcalc.deployment import Workload, requests_text
from hybridcalc.diagnosis import Launched, Question, echoed
from hybridcalc.diagnosis.answer import Candidate, Derived, Diagnosis, Range
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import stage_cell
from hybridcalc.engines.sglang.releases import RELEASES, RuleSet
from hybridcalc.engines.sglang.sizes import Constants, architecture_constants, slot_and_cell
from hybridcalc.engines.sglang.stages import pipeline_stages
from hybridcalc.errors import InputError
from hybridcalc.formulas import Strategy, admitted_requests
from hybridcalc.formulas import slots_per_request as slots_of
from hybridcalc.units import GIB

PAGES = (256, 128, 64, 32, 16, 1)
"""Tokens of the padding page when --page-size is not given: those that kernels ask for. The tokens are whole pages."""
LARGEST_POOL_GIB = 1024
STAGE_NUMBER = re.compile(r"PP([0-9]{1,3})")
CLAMP_VALUES = (5, 4, 3, 2, 1)
"""Slots that a request may hold."""
STATE_SIZES, SCRATCH_SIZES, KV_SIZES = ("conv", "ssm"), ("intermediate_ssm", "intermediate_conv"), ("kv", "k", "v")


@dataclass(slots=True)
class SglangDerived(Derived):
    """What follows from an SGLang boot's figures; None where it does not. Ranges are [lowest, highest]."""

    rules_of_version: str = ""
    slots_per_request: int | None = None
    slots_reason: str | None = None
    slots_from_usage: int | None = None
    draft_tokens: int | None = None
    rest_gib: tuple[float, float] | None = None
    mamba_full_memory_ratio: tuple[float, float] | None = None
    ratio_is_default: bool | None = None
    ratio_used: float | None = None
    tokens_pinned: int | None = None
    mem_fraction_static: tuple[float, float] | None = None
    workers: int | None = None
    total_tokens: int | None = None
    total_requests: int | None = None
    planned_rest_gib: float | None = None
    charged_bytes: int | None = None
    allocated_bytes: int | None = None
    state_requests: int | None = None
    kv_requests: int | None = None


class Flags(NamedTuple):
    """The flags a boot was started with, as far as they are known, where from, and the model they name; ``given`` are
    those that are stated, the engine's own defaults too.
    """

    args: ServerArgs
    source: str = ""
    model: str | None = None
    given: frozenset[str] = frozenset()
    handed_over: bool = False


def flags_of(boot: Boot, question: Question) -> Flags:
    """The flags of a boot: of the launch line that was handed over, or those the log echoes."""
    launch = question.launch
    if launch is not None and isinstance(launch.args, ServerArgs):
        unset = ServerArgs()
        names = (name for name in ServerArgs.__dataclass_fields__ if getattr(launch.args, name) != getattr(unset, name))
        return Flags(launch.args, "the launch line", launch.model, frozenset((*names, "tp_size")), True)
    said = echoed(boot.of("arguments"))
    if not said:
        return Flags(ServerArgs())
    path = said.pop("model_path", None)
    fields = {name: value for name, value in said.items() if isinstance(value, bool | float | str) or value >= 1}
    args = replace(ServerArgs(), **fields)  # type: ignore[arg-type]  # the grammar reads each as its kind
    return Flags(args, "the echoed command", path if isinstance(path, str) else None, frozenset(fields))


def launched(boot: Boot) -> Launched | None:
    """The launch that a boot's printed arguments are of; None where it prints none, or none that names a model."""
    found = flags_of(boot, Question())
    return None if found.model is None else Launched(boot.engine, found.model, found.args)


class Pools:
    """The pools of a boot that answers rest on: the state pool, the target's KV pool, and what they are priced at."""

    def __init__(self, boot: Boot, args: ServerArgs) -> None:
        self.args = args
        states = [s for s in boot.of("state_pool") if s.count("slots") is not None and s.sizes(*STATE_SIZES)]
        self.state = min(states or boot.of("state_pool"), key=stage_of, default=None)
        kvs = sorted((kv for kv in target_pools(boot) if kv.count("tokens")), key=self._beside_state)
        self.kv = next((kv for kv in kvs if kv_sizes(kv)), next(iter(kvs), None))
        printed = self.state.count("slots") if self.state else None
        self.slots = printed if printed is not None else boot.count("capped", "max_mamba_cache_size")
        self.flag: Record | None = None
        self.tokens = self.kv.count("tokens") if self.kv else boot.count("summary", "max_total_num_tokens")
        self.requests = (
            boot.count("summary", "max_running_requests")
            or boot.count("capped", "max_running_requests")
            or (self.state.count("limit") if self.state else None)
        )
        if self.slots is None and self.requests:
            self.flag = next((one for one in boot.of("flag") if self._admits(one)), None)
            self.slots = self.flag.count("max_mamba_cache_size") if self.flag is not None else None

    def _beside_state(self, kv: Record) -> tuple[bool, int]:
        """KV pools of the state pool's own pipeline stage come first."""
        return self.state is not None and stage_of(kv) != stage_of(self.state), stage_of(kv)

    def _admits(self, flag: Record) -> bool:
        """Whether the slots that somebody says were asked for make the request limit that was printed."""
        slots = flag.count("max_mamba_cache_size") or 0
        return any(slots // each == self.requests for each in CLAMP_VALUES)

    @cached_property
    def conv(self) -> Range | None:
        """Bytes of a slot's convolution part."""
        return slot_range(self.state, "conv")

    @cached_property
    def ssm(self) -> Range | None:
        """Bytes of a slot's recurrent part."""
        return slot_range(self.state, "ssm")

    @cached_property
    def slot(self) -> Range | None:
        """Bytes of a slot."""
        conv, ssm = self.conv, self.ssm
        return (conv[0] + ssm[0], conv[1] + ssm[1]) if conv is not None and ssm is not None else None

    @cached_property
    def cell(self) -> Range | None:
        """Bytes of a token."""
        return token_range(self.kv, self.args)

    @property
    def tokens_sized(self) -> bool:
        """Whether the KV pool's size is printed, and is not 0.00 GB, which says nothing of a token."""
        return self.cell is not None and self.cell[0] > 0

    @cached_property
    def scratch(self) -> Range:
        """Bytes of the draft states; nothing where none are printed."""
        return _sum(self.state.sizes(*SCRATCH_SIZES) if self.state else [])

    @property
    def impossible(self) -> bool:
        """Whether the state pool is larger than any rank's memory."""
        return self.state is not None and impossible(self.state)


def stage_of(record: Record | None) -> int:
    """The pipeline stage of the rank that printed a line; 0 where none is named."""
    found = STAGE_NUMBER.search(record.rank) if record is not None else None
    return int(found[1]) if found is not None else 0


def impossible(state: Record) -> bool:
    """Whether a pool is larger than any rank's memory."""
    return any(part.value > LARGEST_POOL_GIB * GIB for part in state.sizes(*STATE_SIZES))


def kv_sizes(kv: Record) -> list[Printed]:
    """The sizes of a whole KV pool: of both in one, or of K and V; none where one of the two is missing."""
    return kv.sizes("kv") or (kv.sizes("k", "v") if kv.size("k") and kv.size("v") else [])


def slot_range(state: Record | None, part: str) -> Range | None:
    """Bytes of one slot's "conv" or "ssm" part: the printed interval over K + 1 slots."""
    printed, slots = (state.size(part), state.count("slots")) if state is not None else (None, None)
    if printed is None or slots is None:
        return None
    low, high = printed.interval
    return low / (slots + 1), high / (slots + 1)


def token_range(kv: Record | None, args: ServerArgs) -> Range | None:
    """Bytes of one token's KV: the printed interval over the tokens and the padding page."""
    sizes, tokens = (kv_sizes(kv), kv.count("tokens")) if kv is not None else ([], None)
    if not sizes or tokens is None:
        return None
    low, high = _sum(sizes)
    return low / (tokens + largest_page(tokens, args)), high / (tokens + (_stated_page(tokens, args) or PAGES[-1]))


def largest_page(tokens: int, args: ServerArgs) -> int:
    """Tokens that the padding page has at most."""
    return _stated_page(tokens, args) or next(page for page in PAGES if tokens % page == 0)


def _stated_page(tokens: int, args: ServerArgs) -> int | None:
    """The page that the arguments ask for; None where the tokens are no whole number of it: it is another start's."""
    return args.page_size if args.page_size and tokens % args.page_size == 0 else None


def _sum(sizes: list[Printed]) -> Range:
    intervals = [size.interval for size in sizes]
    return sum((one[0] for one in intervals), Fraction(0)), sum((one[1] for one in intervals), Fraction(0))


def sizes_text(record: Record, *names: str) -> str:
    """``0.46 + 13.04``: the named sizes as they are printed."""
    return " + ".join(str(size) for size in record.sizes(*names))


@dataclass(slots=True)
class Case:
    """A boot under diagnosis: what is known of it, and the answer so far. ``derived`` is the answer's own, ``unknown``
    the name of a model that has no preset.
    """

    answer: Diagnosis
    derived: SglangDerived
    flags: Flags
    args: ServerArgs
    pools: Pools
    model: Architecture | None
    workload: Workload
    slots_per_request: int | None = None
    best: Candidate | None = None
    unknown: str = ""

    @property
    def boot(self) -> Boot:
        """The boot itself."""
        return self.answer.boot


class Bounds(NamedTuple):
    """What printed pools say of a slot's two parts and of a token: [low, high) in whole bytes of a rank.

    A size right at the upper end fits: an engine's "%.2f" rounds a half to the even digit, 14.625 to 14.62.
    """

    conv: tuple[int, int] | None
    ssm: tuple[int, int] | None
    token: tuple[int, int] | None


def bounds_of(state: Record | None, kv: Record | None, args: ServerArgs) -> Bounds:
    """The bounds that a boot's pools set, worked out once for however many models are held against them."""
    ranges = slot_range(state, "conv"), slot_range(state, "ssm"), token_range(kv, args)
    return Bounds(*(one and (ceil(one[0]), floor(one[1]) + 1) for one in ranges))


class ExactSizes(NamedTuple):
    """A model's own sizes on a rank: whole bytes of a slot, of its two parts, and of a token."""

    state: int
    conv: int
    ssm: int
    token: int


def exact_sizes(constants: Constants) -> ExactSizes:
    """The sizes of an architecture, which are whole."""
    both, conv, ssm, token = constants[1:5]
    return ExactSizes(int(both), int(conv), int(ssm), int(token))


def model_sizes(model: Architecture, args: ServerArgs, rules: RuleSet, of_stage: int = 0) -> ExactSizes:
    """The sizes of a model, of one stage of a pipeline; 0 for a token where all its layers keep states. Raises
    what `architecture_constants` raises.
    """
    if model.window_layers:
        return exact_sizes(architecture_constants(model, args, rules))
    slot, cell = slot_and_cell(model, args, rules)
    if args.pp_size > 1:
        stage, alone = pipeline_stages(model, args)[of_stage], replace(args, speculative_algorithm=None)
        conv, ssm = (stage.state_layers * each for each in (slot.conv_bytes_per_layer, slot.ssm_bytes_per_layer))
        cell = stage_cell(model, alone, rules, stage.kv_layers, stage.window_layers)
        return ExactSizes(conv + ssm, conv, ssm, cell.target_bytes)
    return ExactSizes(slot.bytes, slot.conv_bytes, slot.ssm_bytes, cell.target_bytes)


def fits(exact: ExactSizes, bounds: Bounds) -> bool:
    """Whether pools of these exact sizes would have been printed as they were."""
    conv, ssm, token = bounds
    return (
        (conv is None or conv[0] <= exact.conv < conv[1])
        and (ssm is None or ssm[0] <= exact.ssm < ssm[1])
        and (token is None or token[0] <= exact.token < token[1])
    )


def mismatches(exact: ExactSizes, state: Record, kv: Record | None, args: ServerArgs) -> list[str]:
    """What the log prints that the exact sizes cannot have printed, in words; empty when all of it fits."""
    checks = [
        ("conv state per slot", exact.conv, slot_range(state, "conv")),
        ("SSM state per slot", exact.ssm, slot_range(state, "ssm")),
        ("KV per token", exact.token, token_range(kv, args)),
    ]
    return [
        f"{name} is {size:,} B by the model, {between(bounds)} by the log"
        for name, size, bounds in checks
        if bounds is not None and not bounds[0] <= size <= bounds[1]
    ]


def log_constants(state: Record, kv: Record, args: ServerArgs) -> Constants:
    """Both constants as intervals, their middles as values. Units: bytes per rank. Raises InputError without sizes."""
    conv, ssm = slot_range(state, "conv"), slot_range(state, "ssm")
    cell, slots = token_range(kv, args), state.count("slots")
    if conv is None or ssm is None or cell is None or slots is None:
        raise InputError("the log does not print the sizes of both pools")
    both = (conv[0] + ssm[0], conv[1] + ssm[1])
    sizes, kv_text, tokens = sizes_text(state, *STATE_SIZES), sizes_text(kv, *KV_SIZES), kv.count("tokens") or 0
    return Constants(
        origin="log",
        state_bytes=middle(both),
        conv_bytes=middle(conv),
        ssm_bytes=middle(ssm),
        kv_bytes_per_token=middle(cell),
        state_why=f"line {state.line}: ({sizes}) GiB / {slots + 1:,} slots, {between(both)}",
        kv_why=f"line {kv.line}: {kv_text} GiB / {tokens:,} tokens, {between(cell)}",
        state_numbers=f"({sizes}) GiB / ({slots:,} + 1)",
        kv_numbers=f"{kv_text} GiB / ({tokens:,} + page)",
        state_range=both,
        kv_range=cell,
    )


def middle(bounds: Range) -> Fraction:
    """The middle of a range."""
    return (bounds[0] + bounds[1]) / 2


def between(bounds: Range) -> str:
    """``1,907,000 to 1,928,000 B``."""
    return f"{int(bounds[0]):,} to {int(bounds[1]):,} B"


def slots_per_request(case: Case) -> tuple[int | None, str]:
    """S, and where it is from: the clamp line, or the only S with K // S = R. Unit: slots."""
    printed, slots, requests = case.boot.count("capped", "slots_per_request"), case.pools.slots, case.pools.requests
    if printed is not None:
        return printed, "printed"
    if slots and requests:
        fitting = [s for s in CLAMP_VALUES if slots // s == requests]
        if len(fitting) == 1:
            return fitting[0], f"the only S with {slots:,} // S = {requests:,}"
    return None, ""


def possible_slots(case: Case) -> None:
    """Say what S may be, and the requests it admits, where K alone is printed and no flags are known."""
    slots, pools, derived = case.pools.slots, case.pools, case.derived
    told = pools.requests or pools.tokens or case.slots_per_request or derived.slots_per_request or derived.requests
    if not slots or told or case.flags.given:
        return
    first = next(rules.version for rules in RELEASES.rule_sets if rules.automatic_strategy)
    ways = (
        (slots_of(Strategy.EXTRA_BUFFER).count, f"extra_buffer, what auto mostly takes from {first} on"),
        (slots_of(Strategy.EXTRA_BUFFER_LAZY).count, "extra_buffer_lazy, or without the overlap scheduler"),
        (slots_of(Strategy.NO_BUFFER).count, f"no_buffer, what auto takes before {first}"),
        (slots_of(Strategy.NO_BUFFER, radix_cache=False).count, "without a prefix cache"),
    )
    said = "; ".join(f"{each} ({why}): {requests_text(admitted_requests(slots, each))}" for each, why in ways)
    case.answer.find("HC131", f"S is not printed, and may be {said}", "--command says which")
