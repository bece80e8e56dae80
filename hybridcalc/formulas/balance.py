"""At which ratio do the state pool and the KV pool run out together?

    token_equiv = state / kv                                tokens of KV that one state slot weighs
    r* = (S + D) * state / (L * (kv / dcp + draft_kv))      = (S + D) * token_equiv * dcp / L without a draft model
    state pool = rest * r / (1 + r)                         what --mamba-full-memory-ratio r gives the state

state: bytes per slot and rank; kv: bytes per token and rank before context parallelism divides it (dcp ranks share
the tokens); draft_kv: the draft model's bytes per token, which context parallelism does not divide; L: tokens a
request holds; S: slots per request; D: draft states charged per request, 0 without speculation and under ReplaySSM
verification. r* is a memory ratio, without unit.

r* is the published form: it charges D to the slots of every request. Today's SGLang allocates (requests + 1) * D
draft states beside the slot pool and takes them off the same memory; the two agree on which pool is short, and the
planner solves the second exactly. Source: SGLang's sizing note (B4) and kv_cache_configurator._handle_max_mamba_cache.
"""

from fractions import Fraction


def token_equiv(state_bytes: int | Fraction, kv_bytes_per_token: int | Fraction) -> Fraction:
    """Tokens of KV that weigh as much as one state slot. Unit: tokens. Both sizes must be positive."""
    return Fraction(state_bytes) / Fraction(kv_bytes_per_token)


def balanced_ratio(
    state_bytes: int | Fraction,
    kv_bytes_per_token: int | Fraction,
    *,
    slots_per_request: int,
    length_tokens: int | Fraction,
    draft_states: int = 0,
    dcp: int = 1,
    draft_kv_bytes_per_token: int = 0,
) -> Fraction:
    """r*: the ratio of state memory to KV memory one request of ``length_tokens`` needs. Exact."""
    state = (slots_per_request + draft_states) * Fraction(state_bytes)
    kv = Fraction(kv_bytes_per_token) / dcp + draft_kv_bytes_per_token
    return state / (length_tokens * kv)


def balanced_requests(
    rest_bytes: int,
    state_bytes: int | Fraction,
    kv_bytes_per_token: int | Fraction,
    *,
    slots_per_request: int,
    length_tokens: int,
    draft_states: int = 0,
    dcp: int = 1,
    draft_kv_bytes_per_token: int = 0,
) -> int:
    """Requests that ``rest_bytes`` serves when both pools run out together. Unit: requests.

    One slot pads the pool and never serves. Source: the same two charges, summed.
    """
    kv = Fraction(kv_bytes_per_token) / dcp + draft_kv_bytes_per_token
    per_request = (slots_per_request + draft_states) * Fraction(state_bytes) + length_tokens * kv
    return max(0, int((rest_bytes - Fraction(state_bytes)) // per_request))


def memory_of(requests: list[int], state_bytes: int, kv_bytes_per_token: int) -> int:
    """Bytes Q requests of unequal lengths hold: Q * state + sum(T_i) * kv. ``requests`` are their lengths in tokens."""
    return len(requests) * state_bytes + sum(requests) * kv_bytes_per_token


def split(rest_gib: float, ratio: float) -> tuple[float, float]:
    """(state, KV) share of ``rest_gib`` at ``ratio``, in GiB; floats in the engine's own order: rest * r / (1 + r)."""
    state = rest_gib * ratio / (1 + ratio)
    return state, rest_gib - state
