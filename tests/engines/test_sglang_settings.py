"""What a choice of flags comes to, and how the one that serves most is found: on a solver of two lines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.settings import (
    LARGEST_RATIO,
    Evaluate,
    Setting,
    balance_ratio,
    binding_limit,
    choices,
    most_served,
    weigh,
)
from hybridcalc.errors import Refusal

ARGS = ServerArgs(max_running_requests=1000)
MEMORY, SLOT, CELL, EACH, LENGTH = 10_000, 10, 1, 5, Fraction(100)


def solver(least_tokens: int = 0, tried: list[float] | None = None) -> Evaluate:
    """10,000 bytes: a slot takes 10, a token 1; 5 slots and 100 tokens a request."""

    def evaluate(label: str, flags: str, args: ServerArgs) -> Setting:
        ratio, pinned = args.memory_ratio, args.max_mamba_cache_size
        slots = int(MEMORY * ratio / (1 + ratio)) // SLOT if pinned is None else pinned
        tokens = (MEMORY - slots * SLOT) // CELL
        if slots < 1 or tokens < least_tokens:
            refusal = Refusal(f"{slots} slots leave {tokens}", stage="solve", rule="HC001")
            refusal.outputs |= {"max_mamba_cache_size": slots, "S": EACH}
            raise refusal
        if tried is not None:
            tried.append(ratio)
        return weigh(label, flags, slots, tokens, EACH, LENGTH, args)

    return evaluate


@pytest.mark.parametrize(
    ("slots", "tokens", "length", "limit", "given", "expected"),
    [
        # (slots, tokens, length, limit, flag) -> (by state, by KV, binding, idle %, runs)
        (50, 1000, 100, None, None, (10, 10, "state", 0.0, 10)),
        (54, 1000, 100, None, None, (10, 10, "state", 0.0, 10)),
        (49, 1000, 100, None, None, (9, 10, "state", 10.0, 9)),
        (100, 1000, 100, None, None, (20, 10, "kv", 50.0, 10)),
        (50, 1000, 100, 10, None, (10, 10, "state", 0.0, 10)),
        (50, 1000, 100, 9, None, (10, 10, "limit", 10.0, 9)),
        (50, 1000, 100, None, 9, (10, 10, "limit", 10.0, 9)),
        (50, 1000, 100, 8, 9, (10, 10, "limit", 20.0, 8)),
        (50, 1000, Fraction(3, 2), None, None, (10, 500, "state", 98.5, 10)),
        (5000, 1000, Fraction(3, 2), None, None, (1000, 500, "kv", 50.0, 500)),
        (4, 1000, 100, None, None, (0, 10, "state", 100.0, 0)),
        (0, 0, 100, None, None, (0, 0, "state", 0.0, 0)),
        (5, 99, 100, None, None, (1, 0, "kv", 100.0, 0)),
    ],
)
def test_the_pool_that_admits_fewer_binds_and_the_limit_below_both(
    slots: int, tokens: int, length: Any, limit: int | None, given: int | None, expected: tuple[Any, ...]
) -> None:
    """Two tokens a request at the least, whatever its length; a limit that both pools reach does not bind."""
    args = ServerArgs(max_running_requests=given)
    found = weigh("set", "", slots, tokens, EACH, Fraction(length), args, limit=limit)
    shown = (found.state_requests, found.kv_requests, found.binding, round(found.idle_percent, 6), found.running)
    assert shown == expected
    assert found.requests == min(found.state_requests, found.kv_requests)


def test_a_model_without_states_is_bound_by_its_tokens_and_no_slot_idles() -> None:
    found = weigh("set", "", 0, 1000, 0, LENGTH, ServerArgs())
    assert (found.state_requests, found.kv_requests, found.binding, found.idle_percent) == (10, 10, "kv", 0.0)


@pytest.mark.parametrize(("workers", "limit"), [(1, 9), (4, 2), (16, 1)])
def test_a_limit_is_shared_by_the_attention_workers(workers: int, limit: int) -> None:
    """9 requests over 4 workers are 2 each; one worker runs one at the least."""
    args = ServerArgs(max_running_requests=9, tp_size=workers, dp_size=workers, enable_dp_attention=workers > 1)
    assert weigh("set", "", 500, 10_000, EACH, LENGTH, args).limit == limit


@pytest.mark.parametrize(
    ("slots", "tokens", "each", "requests", "binding"),
    [(54, 1000, 5, 10, "state"), (54, 1000, 5, 11, "limit"), (54, 19, 5, 9, "kv"), (54, 18, 0, 9, "kv"),
     (54, 1000, 0, 54, "limit")],
)  # fmt: skip
def test_without_a_length_the_engines_own_limit_says_what_made_it(
    slots: int, tokens: int, each: int, requests: int, binding: str
) -> None:
    assert binding_limit(slots, tokens, each, requests) == binding


@pytest.mark.parametrize("guess", [Fraction(1, 100), Fraction(1, 2), Fraction(1), Fraction(100), Fraction(10**9)])
def test_the_balanced_ratio_is_found_from_any_guess(guess: Fraction) -> None:
    """150 bytes a request: 66 of them, which 330 slots and 6,600 tokens hold; one more has no room."""
    found = balance_ratio(solver(), ARGS, guess)
    assert found.running == 66 and abs(found.state_requests - found.kv_requests) <= 1
    ratio = float(found.flags.removeprefix("--mamba-full-memory-ratio "))
    assert 0.4925 < ratio < 0.5152  # 330 slots at the least, 6,600 tokens at the least
    with pytest.raises(Refusal, match=r"^\d+ slots leave"):
        balance_ratio(solver(least_tokens=MEMORY), ARGS, guess)


def test_a_guess_that_is_balanced_to_a_request_stands() -> None:
    """66 and 66 requests are balanced: nothing but the guess and what may lie a little beyond it is tried."""
    tried: list[float] = []
    assert balance_ratio(solver(tried=tried), ARGS, Fraction(496, 1000)).flags == "--mamba-full-memory-ratio 0.496"
    assert tried[0] == 0.496 and len(tried) < 15
    balance_ratio(solver(tried=tried), ARGS, Fraction(10**9))
    assert float(LARGEST_RATIO) in tried and max(tried) <= LARGEST_RATIO


@pytest.mark.parametrize("most", [0, 1, 2, 7, 63, 64, 998, 999])
def test_the_most_that_is_served_is_found_by_halving(most: int) -> None:
    """Above the lower bound and below the upper one; what is refused, and what falls short, ends it alike."""
    for refuse in (True, False):

        def serve(requests: int, refuse: bool = refuse) -> Setting:
            if refuse and requests > most:
                raise Refusal("no room", stage="solve", rule="HC001")
            runs = min(requests, most)
            return Setting("set", "", 5 * requests, requests, 100, runs, "kv", 0.0)

        found = most_served(serve, 0, 1000)
        assert (found.running if found is not None else 0) == most
        bounded = most_served(serve, 7, 64)
        assert (bounded.running if bounded is not None else 7) == min(max(most, 7), 63)


@pytest.mark.parametrize(
    ("flags", "booted", "least", "labels", "notes"),
    [
        ({}, False, 0, ["set --mamba-full-memory-ratio", "or --max-mamba-cache-size 331",
                        "today --mamba-full-memory-ratio 0.9"], []),
        ({}, True, 0, ["set --mamba-full-memory-ratio", "or --max-mamba-cache-size 331"], []),
        ({"max_mamba_cache_size": 400}, False, 0,
         ["set --mamba-full-memory-ratio", "or --max-mamba-cache-size 331", "today --max-mamba-cache-size 400"], []),
        ({"max_mamba_cache_size": 400}, False, 6500,
         ["set --mamba-full-memory-ratio", "or --max-mamba-cache-size 331"],
         ["--max-mamba-cache-size 400: the engine would refuse, 400 slots leave 6000"]),
        ({}, False, MEMORY, [], ["no ratio starts:", "--max-mamba-cache-size 331: the engine would refuse,"]),
        ({"max_mamba_cache_size": 400}, False, MEMORY, [],
         ["no ratio starts:", "--max-mamba-cache-size 331: the engine would refuse,",
          "--max-mamba-cache-size 400: the engine would refuse,"]),
    ],
)  # fmt: skip
def test_what_to_set_is_a_ratio_or_a_pin_beside_what_is_set_today(
    flags: dict[str, Any], booted: bool, least: int, labels: list[str], notes: list[str]
) -> None:
    """Today's flags are tried unless a boot has shown them; where no ratio starts, today's is not shown either."""
    args = ServerArgs(max_running_requests=1000, **flags)
    found, said = choices(solver(least), args, Fraction(1, 2), EACH, lambda best: 66, booted=booted)
    assert [f"{one.label} {one.flags}"[: len(label)] for one, label in zip(found, labels, strict=True)] == labels
    said = [note for note in said if not note.startswith("the set ratio is not r*")]
    assert [note[: len(start)] for note, start in zip(said, notes, strict=True)] == notes


def test_no_pin_is_tried_for_one_request_where_no_ratio_starts() -> None:
    """Two are; and without prefix caching K is the limit, so that a pin is all there is to set."""
    nothing, notes = choices(solver(MEMORY), ARGS, Fraction(1, 2), EACH, lambda best: 1, booted=True)
    assert nothing == [] and len(notes) == 1
    assert len(choices(solver(MEMORY), ARGS, Fraction(1, 2), EACH, lambda best: 2, booted=True)[1]) == 2
    args = ServerArgs(disable_radix_cache=True, max_running_requests=60)
    found, notes = choices(solver(), args, Fraction(1, 2), EACH, lambda best: 60, booted=False)
    assert notes == ["without prefix caching K is the request limit: no ratio has an effect"]
    assert [(one.label, one.flags) for one in found] == [
        ("set", "--max-mamba-cache-size 301"),
        ("today", "--max-running-requests 60"),
    ]
    assert found[0].running == 60
