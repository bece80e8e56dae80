"""What does one choice of flags come to: slots, tokens, and the requests each pool admits?

A `Setting` is one line of the answer's "what to set". Slots and requests are those of one attention worker, tokens
those of all its context-parallel ranks together.

Under unified memory slots and KV share one pool (mem_cache/unified_memory_pool.py, 0.5.23). K, T and R are solved as
without it, and R still limits the requests; but KV may take what idle slots leave:

    pool    = KV bytes in whole blocks of 4,096 + K * slot        under a token limit T: T * entry + K * slot
    request = S * slot + L * entry / dcp                          entry: KV bytes of a token, rounded up to 32
"""

from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import ENTRY
from hybridcalc.engines.sglang.planner import Prepared, Sizing, prepare, start
from hybridcalc.engines.sglang.pools import limit_is_slots, request_limit, solve_pools
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import HybridcalcError, Refusal
from hybridcalc.formulas import admitted_requests, pin
from hybridcalc.units import ratio_text, rounded_up

BLOCK = 4096
"""Bytes that the pool of unified memory is rounded to."""
LARGEST_RATIO = 10**6
RATIO_DIGITS = (3, 4, 5, 6)
TINY = 2.0**-60
MOST_PINNED = 10**6
"""Requests of one worker beyond any deployment."""
HALVINGS = 30
"""Steps in which a balanced ratio is closed in on: finer than its printed digits."""


class Setting(NamedTuple):
    """One choice of flags. ``binding`` is the pool (or the request limit) that caps concurrency; the other pool
    idles by ``idle_percent`` when the binding one is full. ``limit``: requests a worker may run, as given or estimated.
    ``ends``: the least and the most requests over a memory that is an estimate.
    """

    label: str
    flags: str
    slots: int
    state_requests: int
    kv_tokens: int
    kv_requests: int
    binding: str
    idle_percent: float
    limit: int | None = None
    ends: tuple[int, int] | None = None

    @property
    def requests(self) -> int:
        """Requests of the asked length that both pools hold at once, before any request limit."""
        return min(self.state_requests, self.kv_requests)

    @property
    def running(self) -> int:
        """Requests of the asked length that run at once."""
        return self.requests if self.limit is None else min(self.requests, self.limit)

    def to_dict(self) -> dict[str, Any]:
        """The figures, under the names of ``clamp`` in ``ratio --json``."""
        return {
            "max_mamba_cache_size": self.slots,
            "state_requests": self.state_requests,
            "kv_tokens": self.kv_tokens,
            "kv_requests": self.kv_requests,
            "binding": self.binding,
            "idle_percent": round(self.idle_percent, 2),
            **({} if self.ends is None else {"requests_range": [self.ends[0], self.requests, self.ends[1]]}),
        }


Evaluate = Callable[[str, str, ServerArgs], Setting]
"""(label, flags, arguments) -> what they come to; raises Refusal where the engine would not start."""


def by_model(model: Architecture, rest_gib: "float | Callable[[ServerArgs], float]", length: Fraction) -> Evaluate:
    """The engine's start-up for a model: pipeline stages, draft states and rings included. ``rest_gib``: the memory, or
    what arguments leave of it, which neither a ratio nor a number of slots changes.
    """
    left = dict[int | None, float]()

    def rest_of(args: ServerArgs) -> float:
        if not callable(rest_gib):
            return rest_gib
        if args.max_running_requests not in left:
            left[args.max_running_requests] = rest_gib(args)
        return left[args.max_running_requests]

    def evaluate(label: str, flags: str, args: ServerArgs) -> Setting:
        ready = prepare(model, args)
        try:
            sizing = start(ready, rest_of(args))
        except Refusal as refusal:
            refusal.outputs.setdefault("S", ready.slots.count)
            raise
        return settle(label, flags, ready, sizing, length)

    return evaluate


def settle(label: str, flags: str, ready: Prepared, sizing: Sizing, length: Fraction) -> Setting:
    """What a sizing of a model comes to for requests of ``length`` tokens; unified memory lets the split float."""
    slots, tokens = sizing.state.slots, sizing.tokens * ready.args.dcp_size
    limit = min(sizing.asked, sizing.tokens // 2)
    setting = weigh(label, flags, slots, tokens, ready.slots.count, length, ready.args, limit=limit)
    if ready.unified:
        held = unified_requests(ready, sizing, length)
        binding = "state" if setting.state_requests <= held else "kv"
        if limit < min(setting.state_requests, held):
            binding = "limit"
        return setting._replace(kv_requests=held, binding=binding, idle_percent=0.0)
    if setting.binding == "state" and sizing.state.branch.endswith("from_max_running_requests"):
        return setting._replace(binding="limit")  # the request limit itself is K
    return setting


def by_sizes(
    slot_bytes: int, cell_bytes: int, slots_per_request: int, rest_gib: float, length: Fraction, rules: RuleSet
) -> Evaluate:
    """The engine's pool solver on sizes that were measured, with no model named."""

    def evaluate(label: str, flags: str, args: ServerArgs) -> Setting:
        pools = solve_pools(rest_gib, slot_bytes, slots_per_request, cell_bytes, int(length), args, rules)
        tokens = pools.tokens * args.dcp_size
        return weigh(label, flags, pools.state.slots, tokens, slots_per_request, length, args)

    return evaluate


def choices(
    evaluate: Evaluate,
    args: ServerArgs,
    ratio: Fraction,
    slots_per_request: int,
    pinned: Callable[[Setting | None], int],
    *,
    booted: bool,
) -> tuple[list[Setting], list[str]]:
    """The balanced ratio (or the best pin), the pin and today's flags through the solver, and what it would refuse.

    ``ratio`` is r*; ``pinned`` says how many requests to pin slots for beside a balanced setting; ``booted``: today's
    flags are known from a boot.
    """
    settings: list[Setting] = []
    notes: list[str] = []
    none_starts = ""
    if limit_is_slots(args):
        notes.append("without prefix caching K is the request limit: no ratio has an effect")
        best = _best_pin(evaluate, args, slots_per_request)
        settings += [] if best is None else [best]
    else:
        try:
            settings.append(balance_ratio(evaluate, args, ratio))
        except Refusal as refusal:
            none_starts = refusal.reason
            notes.append(f"no ratio starts: {none_starts}")
    if settings and not limit_is_slots(args) and not settings[0].flags.endswith(f" {ratio_text(ratio)}"):
        notes.append("the set ratio is not r*: the solver counts stages, rings or draft states that r* leaves out")
    others: list[tuple[str, str, ServerArgs]] = []
    requests = pinned(settings[0] if settings else None)
    if (settings or requests > 1) and not limit_is_slots(args):
        slots = pin(requests, slots_per_request, dp=args.attn_dp_size)
        others.append(("or", f"--max-mamba-cache-size {slots}", args.changed(max_mamba_cache_size=slots)))
    if not booted and not (none_starts and args.max_mamba_cache_size is None):
        others.append(("today", _today_flags(args), args))
    for label, flags, changed in others:
        try:
            settings.append(evaluate(label, flags, changed))
        except Refusal as refusal:
            notes.append(f"{flags}: the engine would refuse, {refusal.reason}")
    return settings, notes


def _best_pin(evaluate: Evaluate, args: ServerArgs, per_request: int) -> Setting | None:
    """The pin that serves the most requests; None where none starts."""

    def serve(requests: int) -> Setting:
        slots = pin(requests, per_request, dp=args.attn_dp_size)
        return evaluate("set", f"--max-mamba-cache-size {slots}", args.changed(max_mamba_cache_size=slots))

    return most_served(serve, 0, MOST_PINNED)


def _today_flags(args: ServerArgs) -> str:
    if args.max_mamba_cache_size is not None:
        return f"--max-mamba-cache-size {args.max_mamba_cache_size}"
    if limit_is_slots(args):
        return f"--max-running-requests {request_limit(args)}"
    return f"--mamba-full-memory-ratio {args.memory_ratio:g}"


def balance_ratio(evaluate: Evaluate, args: ServerArgs, guess: Fraction) -> Setting:
    """The ratio at which the engine's own solver admits the most requests, from ``guess``.

    ``guess`` stands when it is balanced to within a request, else where both pools meet is halved in on: a larger ratio
    never admits fewer requests by state nor more by KV. Slots come in groups of S, so one request more may fit a little
    beyond: that is tried last. Raises Refusal when no ratio starts.
    """
    best, refused = _try_ratio(evaluate, args, ratio_text(min(guess, Fraction(LARGEST_RATIO))))
    if best is None or abs(best.state_requests - best.kv_requests) > 1:
        best = _meeting_point(evaluate, args, best)
    if best is None:
        raise refused or Refusal("no ratio starts", stage="solve", rule="HC001")
    while more := _reach(evaluate, args, best.requests + 1):
        best = more
    return best


def _try_ratio(evaluate: Evaluate, args: ServerArgs, text: str) -> tuple[Setting | None, Refusal | None]:
    """What the printed ratio comes to, or why the engine would not start."""
    changed = args.changed(mamba_full_memory_ratio=float(text), max_mamba_cache_size=None)
    try:
        return evaluate("set", f"--mamba-full-memory-ratio {text}", changed), None
    except Refusal as refusal:
        return None, refusal


def _meeting_point(evaluate: Evaluate, args: ServerArgs, best: Setting | None) -> Setting | None:
    """The best of the ratios on the way to where both pools admit the same requests."""
    low, high = 0.0, 1.0  # shares of the memory for the state pool
    for _ in range(HALVINGS):
        share = (low + high) / 2
        tried, refused = _try_ratio(evaluate, args, ratio_text(min(share / (1 - share), LARGEST_RATIO)))
        if tried is None:  # too small for a slot, or nothing left for KV
            low, high = (low, share) if _slots_admit(refused, 1) else (share, high)
            continue
        if best is None or tried.requests > best.requests:
            best = tried
        low, high = (share, high) if tried.state_requests < tried.kv_requests else (low, share)
    return best


def _reach(evaluate: Evaluate, args: ServerArgs, requests: int) -> Setting | None:
    """The least ratio whose slots admit ``requests``, in as few digits as do; None where KV does not admit them too."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (low + high) / 2
        tried, refused = _try_ratio(evaluate, args, repr(min(share / (1 - share), LARGEST_RATIO)))
        enough = _slots_admit(refused, requests) if tried is None else tried.state_requests >= requests
        if not enough and tried is not None and tried.kv_requests < requests:
            return None  # the slots that are missing would leave less KV still
        low, high = (low, share) if enough else (share, high)
    for digits in RATIO_DIGITS:
        found, _ = _try_ratio(evaluate, args, _rounded_up(min(high / (1 - high + TINY), LARGEST_RATIO), digits))
        if found is not None and found.requests >= requests:
            return found
    return None


def _slots_admit(refused: Refusal | None, requests: int) -> bool:
    """Whether a start that was refused had slots for ``requests``: then it was KV that lacked memory."""
    outputs = refused.outputs if refused is not None else {}
    return int(outputs.get("max_mamba_cache_size") or 0) // int(outputs.get("S") or 1) >= requests


def _rounded_up(ratio: float, digits: int) -> str:
    """A ratio of that many significant digits, not below the one given."""
    exact = Decimal(ratio)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=ROUND_CEILING)
    return f"{rounded:f}"


def most_served(serve: Callable[[int], Setting], low: int, high: int) -> Setting | None:
    """The setting that serves the most requests, of those that ``serve`` makes for a number of them, by halving.

    More than ``low`` and fewer than ``high`` are tried; where some number cannot be served no larger one can, since
    more slots never leave more KV. None where no more than ``low`` can.
    """
    best = None
    while low + 1 < high:
        tried = (low + high) // 2
        try:
            setting = serve(tried)
        except HybridcalcError:
            high = tried
            continue
        if setting.running >= tried:
            best, low = setting, tried
        else:
            high = tried
    return best


def weigh(
    label: str,
    flags: str,
    slots: int,
    tokens: int,
    slots_per_request: int,
    length: Fraction,
    args: ServerArgs,
    *,
    limit: int | None = None,
) -> Setting:
    """Which pool binds at ``length`` tokens a request, and how much of the other idles then; of the one that idles
    more where the limit binds.

    ``limit``: requests a worker runs at most, where more than the flag is known of it.
    """
    by_kv = min(tokens * length.denominator // length.numerator, tokens // args.dcp_size // 2)
    by_state = admitted_requests(slots, slots_per_request) if slots_per_request else by_kv
    given = request_limit(args)
    if limit is None and given is not None:
        limit = max(1, given // args.attn_dp_size)
    running = min(by_state, by_kv)
    binding = "state" if by_state <= by_kv and slots_per_request else "kv"
    if limit is not None and limit < running:
        binding, running = "limit", limit
    kv = 100 * (1 - running * length.numerator / (tokens * length.denominator)) if tokens else 0.0
    state = 100 * (1 - running * slots_per_request / slots) if slots else 0.0
    idle = {"state": kv, "kv": state, "limit": max(kv, state)}[binding]
    return Setting(label, flags, slots, by_state, tokens, by_kv, binding, idle, limit)


def binding_limit(slots: int, tokens: int, slots_per_request: int, requests: int) -> str:
    """What sets the engine's own request limit where no length is asked about: "state", "kv" or "limit"."""
    if slots_per_request and requests == slots // slots_per_request:
        return "state"
    return "kv" if requests == tokens // 2 else "limit"


def unified_bytes(ready: Prepared, sizing: Sizing) -> int:
    """The pool of one rank."""
    states = sizing.state.slots * ready.stage_slot_bytes
    limited = ready.args.max_total_tokens is not None and sizing.tokens == ready.args.max_total_tokens
    kv = sizing.tokens * rounded_up(ready.cells[0].bytes, ENTRY) if limited else sizing.state.kv_bytes // BLOCK * BLOCK
    return kv + states


def unified_requests(ready: Prepared, sizing: Sizing, length: Fraction) -> int:
    """Requests of ``length`` tokens that the pool holds at once; the request limit is not applied."""
    token = Fraction(rounded_up(ready.cells[0].bytes, ENTRY), ready.args.dcp_size)
    request = ready.slots.count * ready.stage_slot_bytes + token * length
    return int(unified_bytes(ready, sizing) // request)
