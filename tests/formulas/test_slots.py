"""Slots per request, chunk-boundary slots, admitted requests, and the pin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.errors import IllegalCombination
from hybridcalc.formulas import Strategy, admitted_requests, pin, prefill_slots, slots_per_request
from hybridcalc.units import gib_text

NO_BUFFER, EXTRA, LAZY = Strategy
S_TABLE = {  # (strategy, overlap, decode lock skipped): S
    (NO_BUFFER, True, False): 3, (NO_BUFFER, False, False): 3, (NO_BUFFER, True, True): 3, (NO_BUFFER, False, True): 3,
    (EXTRA, True, False): 5, (EXTRA, False, False): 4, (EXTRA, True, True): 4, (EXTRA, False, True): 3,
    (LAZY, True, False): 4, (LAZY, True, True): 3,
}  # fmt: skip


@pytest.mark.parametrize(("row", "slots"), S_TABLE.items(), ids=[" ".join(map(str, row)) for row in S_TABLE])
def test_slots_per_request(row: tuple[Strategy, bool, bool], slots: int) -> None:
    """SGLang kv_cache_configurator._calculate_mamba_ratio (0.5.23), whole table with the radix cache on."""
    strategy, overlap, skip = row
    assert slots_per_request(strategy, overlap=overlap, skip_decode_lock=skip).count == slots


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("strategy", Strategy)
def test_without_the_radix_cache_a_request_holds_its_live_state_alone(strategy: Strategy, overlap: bool) -> None:
    """S = 1 whatever the strategy, lazy without overlap included."""
    slots = slots_per_request(strategy, overlap=overlap, radix_cache=False)
    assert (slots.count, slots.reason) == (1, "radix cache off: one live state")


@pytest.mark.parametrize("skip", [True, False])
def test_lazy_without_the_overlap_scheduler_is_refused(skip: bool) -> None:
    """SGLang asserts it; the refusal says what to drop or use instead."""
    with pytest.raises(IllegalCombination) as refusal:
        slots_per_request(LAZY, overlap=False, skip_decode_lock=skip)
    assert refusal.value.message == "extra_buffer_lazy needs the overlap scheduler"
    assert refusal.value.fix == "drop --disable-overlap-schedule, or use --mamba-radix-cache-strategy extra_buffer"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((NO_BUFFER, True, False), "no_buffer: live state, radix retention, copy-on-write"),
        ((EXTRA, True, False), "extra_buffer: 3 + 2"),
        ((EXTRA, False, False), "extra_buffer without the overlap scheduler: 3 + 1"),
        ((LAZY, True, False), "extra_buffer_lazy: 3 + 1"),
        ((EXTRA, True, True), "extra_buffer: 2 + 2 (decode lock skipped)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_reason_shows_base_and_tracking(row: tuple[Strategy, bool, bool], reason: str) -> None:
    """S = base + tracking, in the words an answer prints."""
    strategy, overlap, skip = row
    assert slots_per_request(strategy, overlap=overlap, skip_decode_lock=skip).reason == reason


def test_a_prompt_of_13600_tokens_in_chunks_of_6144_touches_5_slots() -> None:
    """Hybrid KV-cache engineering write-up (A5): ceil(13600 / 6144) + 2."""
    assert prefill_slots(13_600, 6144) == 5


def test_80_slots_at_5_a_request_cap_decode_at_16() -> None:
    """Hybrid KV-cache engineering write-up (A6)."""
    assert admitted_requests(80, 5) == 16


def test_256_slots_of_nemotron_h_8b_reserve_about_24_gib() -> None:
    """Hybrid SSM chapter (C4): 256 x 102,137,856 B = 24.35 GiB."""
    assert gib_text(256 * 102_137_856) == "24.35"


def test_a_request_limit_of_4_at_5_slots_needs_21() -> None:
    """One slot stays free: 4 x 5 + 1; 17 under the lazy strategy; 8 slots admit one request."""
    assert (pin(4, 5), pin(4, 4), admitted_requests(8, 5)) == (21, 17, 1)


counts = st.integers(1, 10_000)


@given(counts, st.integers(2, 8))
def test_a_pin_admits_exactly_the_requests_asked_for(concurrency: int, slots: int) -> None:
    """K // S = C, with one slot left over that no request can hold."""
    pinned = pin(concurrency, slots)
    assert admitted_requests(pinned, slots) == concurrency
    assert pinned - concurrency * slots == 1


@given(counts, st.integers(2, 8), st.integers(1, 16))
def test_a_pin_under_attention_data_parallelism_gives_each_worker_its_share(
    concurrency: int, slots: int, dp: int
) -> None:
    """The engine divides the flag by dp: each worker then admits ceil(C / dp), together at least C."""
    share = pin(concurrency, slots, dp=dp) // dp
    assert admitted_requests(share, slots) == -(-concurrency // dp)
    assert pin(concurrency, slots, dp=dp) % dp == 0


@given(st.integers(-3, 10_000), st.integers(1, 8))
def test_admitted_requests_hold_their_slots_and_one_more_does_not_fit(slots: int, per_request: int) -> None:
    """Whole requests only, and never a negative number of them."""
    admitted = admitted_requests(slots, per_request)
    assert admitted >= 0
    assert admitted * per_request <= max(0, slots) < (admitted + 1) * per_request


@given(counts, counts)
def test_prefill_slots_count_every_chunk_even_a_short_one(tokens: int, chunk: int) -> None:
    """Brute force: walk the prompt chunk by chunk, then add the live state and the one being written."""
    assert prefill_slots(tokens, chunk) == len(range(0, tokens, chunk)) + 2
