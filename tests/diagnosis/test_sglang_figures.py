"""What the figures of an SGLang boot come to where no known model fits its pools: rows, split, what binds."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from types import SimpleNamespace
from typing import Any

import pytest
from diagnosed import diagnosed

from hybridcalc.deployment import Workload
from hybridcalc.diagnosis.answer import whole_range
from hybridcalc.diagnosis.sglang.candidates import releases_of, stages_of, version_of
from hybridcalc.diagnosis.sglang.settings import _limit, _ratios
from hybridcalc.diagnosis.view import _shown
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import RELEASES

STATES = "Mamba Cache is allocated. max_mamba_cache_size: {}, conv_state size: 0.10GB, ssm_state size: 5.63GB{}\n"
KV = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: {}, K size: {} GB, V size: {} GB\n"
SUMMARY = (
    "max_total_num_tokens={tokens}, max_running_requests={requests}, context_len=9216, available_gpu_mem=9.00 GB\n"
)
POOLS = STATES.format(97, "") + KV.format(484_032, "2.77", "2.77")
CAPPED = (
    "max_running_requests is capped to {} by the mamba state cache (max_mamba_cache_size=97, {} state slots per "
    "request)\n"
)


def boot(requests: int | None = None, length: int | None = None, before: str = "", pools: str = POOLS) -> Any:
    """The answer for pools that no preset has, with so many requests in the summary."""
    summary = SUMMARY.format(tokens=484_032, requests=requests) if requests is not None else ""
    workload = Workload.at(length) if length is not None else Workload()
    return diagnosed(before + pools + summary, workload=workload)


def test_sizes_that_no_model_has_are_intervals() -> None:
    """5.73 GiB, each to half a cent, over 97 + 1 slots; 5.54 over 484,032 tokens and a page of 1 to 64."""
    found = boot()
    slot = [ceil(5.72 * 2**30 / 98), floor(5.74 * 2**30 / 98)]
    token = [ceil(5.53 * 2**30 / (484_032 + 64)), floor(5.55 * 2**30 / (484_032 + 1))]
    assert [tuple(row) for row in found.rows] == [
        ("line 1", "K = 97 slots", f"{slot[0]:,} to {slot[1]:,} B a slot (printed 0.10 + 5.63 over 98)"),
        ("line 2", "484,032 tokens", f"{token[0]:,} to {token[1]:,} B a token (printed 2.77 + 2.77)"),
        ("split", "ratio 1.03 to 1.06 of 11.25 GiB", ""),
    ]
    assert found.derived.rest_gib == (11.249, 11.291)
    assert found.meaning == "97 slots; 484,032 KV tokens"
    assert [(one.rule, one.message) for one in found.findings] == [
        ("HC107", "none of the known models fits these pools at TP 1 to 32")
    ]


@pytest.mark.parametrize(
    ("requests", "each"),
    [(97, 1), (96, None), (48, 2), (49, None), (32, 3), (24, 4), (23, None), (19, 5), (20, None), (16, None)],
)
def test_s_is_the_one_that_makes_the_limit_of_the_slots(requests: int, each: int | None) -> None:
    """1 to 5 slots a request; then the state pool is what binds, and else nothing is known to."""
    found = boot(requests)
    assert (found.derived.slots_per_request, found.binding) == (each, "state" if each else None)
    assert (
        found.meaning == f"the state pool binds at {requests} requests"
        if each
        else (f"97 slots; 484,032 KV tokens; {requests} requests at most")
    )


@pytest.mark.parametrize(
    ("requests", "length", "binding", "runs", "idle"),
    [
        (6, 8192, "limit", 6, None),
        (18, 8192, "limit", 18, None),
        (19, 8192, "state", 19, 67.84),
        (24, 8192, "state", 24, 59.38),
        (19, 25_475, "state", 19, 0.0),
        (19, 25_476, "kv", 18, 7.22),
    ],
)
def test_what_binds_at_a_length_by_the_printed_sizes(
    requests: int, length: int, binding: str, runs: int, idle: float | None
) -> None:
    """19 x 25,475 tokens are 484,025 of 484,032; of one more a request 18 fit, and 18 x 5 slots of 97 are in use."""
    found = boot(requests, length)
    assert (found.binding, found.derived.requests, found.derived.idle_percent) == (binding, runs, idle)
    assert bool(found.suggestions) is bool(idle)
    for one in found.suggestions:
        assert one.before == runs < one.after and one.why.startswith("by the sizes the log prints")


@pytest.mark.parametrize(("length", "balance"), [(8192, ", which balance at 3.11 to 3.13"), (200_000, "")])
def test_ratios_that_balance_the_ends_of_both_sizes_are_said_where_they_differ(length: int, balance: str) -> None:
    """5 slots of 5.72 to 5.74 GiB over 98, over L tokens of 5.53 to 5.55 over 484,033 or more: both 0.13 of 200,000."""
    set_ratio, pin = boot(19, length).suggestions
    assert (set_ratio.why, pin.why) == (f"by the sizes the log prints{balance}", "by the sizes the log prints")


@pytest.mark.parametrize(
    ("tokens", "size", "pinned"),
    [
        (131_072, "0.05", True),
        (131_000, "0.05", True),
        (1024, "0.05", True),
        (132_096, "0.05", False),
        (131_073, "0.05", False),
        (130_000, "0.70", True),
        (130_000, "0.75", False),
    ],
)
def test_a_small_round_count_beside_many_states_looks_pinned(tokens: int, size: str, pinned: bool) -> None:
    """Up to 2**17 whole thousands or binary ones, where states take more than four times the KV's memory."""
    found = boot(pools=STATES.format(97, "") + KV.format(tokens, size, size))
    said = f"{tokens:,} tokens beside 5.72 GiB of states: --max-total-tokens looks pinned"
    assert found.derived.tokens_pinned == (tokens if pinned else None)
    assert [one.message.partition(", and")[0] for one in found.findings if one.rule == "HC109"] == [said] * pinned
    assert (found.derived.mamba_full_memory_ratio is None) is pinned


@pytest.mark.parametrize(
    ("ssm", "drafts", "times"),
    [("1.61", 4, None), ("0.40", 1, None), ("0.35", None, None), ("5.70", None, None), ("5.80", None, "1.0"),
     ("11.49", None, "2.0")],
)  # fmt: skip
def test_draft_states_are_a_row_for_every_request_and_one_more(ssm: str, drafts: int | None, times: str | None) -> None:
    """7 rows of D states of 57 to 59 MiB: D where one alone fits; a warning where they outgrow the slots."""
    scratch = f" intermediate_ssm_state_cache size: {ssm}GB intermediate_conv_window_cache size: 0.03GB"
    found = boot(6, 8192, pools=STATES.format(97, scratch) + KV.format(484_032, "2.77", "2.77"))
    assert found.derived.draft_tokens == drafts
    told = [one.message for one in found.findings if one.rule == "HC113" and "times" in one.message]
    assert [message.rpartition(", ")[2] for message in told] == ([f"{times} times the slots"] if times else [])
    [row] = [row for row in found.rows if row.what == "draft states"]
    assert f"printed {ssm} + 0.03 GiB" in row.arithmetic
    assert ("draft tokens a request" in row.arithmetic) is (drafts is not None)


@pytest.mark.parametrize(
    ("requests", "each", "said", "least"),
    [
        (9, 5, "97 slots for 9 requests at 5: 45 would do, the others only keep prefixes", 46),
        (10, 5, "", 0),
        (12, 4, "", 0),
        (11, 4, "97 slots for 11 requests at 4: 44 would do, the others only keep prefixes", 45),
        (8, None, "97 slots for 8 requests at 5 each at most: 40 would do", 41),
        (9, None, "", 0),
    ],
)
def test_slots_that_no_request_can_use_are_said(requests: int, each: int | None, said: str, least: int) -> None:
    """More than twice what they need and one, or than 12 a request where S is not known."""
    found = boot(requests, before=CAPPED.format(97 // each, each) if each else "")
    told = [(one.message, one.fix) for one in found.findings if one.rule == "HC111"]
    assert told == ([(said, f"--max-mamba-cache-size {least} leaves the rest to KV")] if said else [])


@pytest.mark.parametrize(("workers", "said"), [(1, "one is in the log"), (2, "2 of them are in the log")])
def test_the_workers_in_a_log_are_counted(workers: int, said: str) -> None:
    line = "[2026-10-02 00:39:31 DP{0} TP0] max_total_num_tokens=1000, max_running_requests=32\n"
    found = diagnosed("".join(line.format(rank) for rank in range(workers)))
    assert [one.message for one in found.findings if one.rule == "HC115"] == [
        f"limits and tokens are per data-parallel worker; {said}"
    ]
    assert found.derived.workers == (workers if workers > 1 else None)


@pytest.mark.parametrize(
    ("asked", "workers", "requests", "slots", "capped", "each", "limit"),
    [
        (64, 1, 51, 257, None, 5, 64),
        (64, 4, 51, 257, None, 5, 16),
        (2, 4, 51, 257, None, 5, 1),
        (None, 1, None, 257, None, 5, None),
        (None, 1, 51, 257, 51, 5, None),
        (None, 1, 50, 257, 51, 5, 50),
        (None, 1, 51, 257, None, 5, None),
        (None, 1, 50, 257, None, 5, 50),
        (None, 1, 257, 257, None, 1, 257),
        (None, 1, 257, 257, None, 5, None),
        (None, 1, 256, 257, None, 1, 256),
        (None, 1, 258, 257, None, 1, None),
    ],
)
def test_a_worker_is_limited_by_its_flag_or_by_less_than_its_slots_admit(
    asked: int | None, workers: int, requests: int | None, slots: int, capped: int | None, each: int, limit: int | None
) -> None:
    args = SimpleNamespace(max_running_requests=asked, attn_dp_size=workers)
    case: Any = SimpleNamespace(
        flags=SimpleNamespace(args=args),
        pools=SimpleNamespace(requests=requests, slots=slots),
        boot=SimpleNamespace(count=lambda kind, figure: capped),
    )
    assert _limit(case, each) == limit


@pytest.mark.parametrize(
    ("seen", "tried"),
    [(None, [1.5, 0.9]), ((1.0, 2.0), [1.5, 0.9]), ((1.2341, 1.2344), [1.5, 0.9, 1.23, 1.2342]),
     ((0.9, 0.9), [1.5, 0.9])],
)  # fmt: skip
def test_the_ratio_asked_for_is_tried_first_and_then_the_middle_of_those_seen(
    seen: tuple[float, float] | None, tried: list[float]
) -> None:
    case: Any = SimpleNamespace(derived=SimpleNamespace(mamba_full_memory_ratio=seen))
    assert _ratios(case, ServerArgs(mamba_full_memory_ratio=1.5)) == tried


def test_releases_are_told_as_a_range() -> None:
    known = list(RELEASES.versions)
    assert version_of([]) is None is version_of(known)
    assert version_of(known[1:]) == f"{known[1]} or later" and version_of(known[-1:]) == f"{known[-1]} or later"
    assert version_of(known[:1]) == f"before {known[1]}" and version_of(known[:-1]) == f"before {known[-1]}"
    assert version_of(known[1:3]) == f"{known[1]} to {known[2]}"


def test_the_form_of_the_lines_leaves_the_releases_that_print_them_so() -> None:
    """The dtype in the KV line and the line of the cap came with releases; no line rules none out."""
    without = POOLS.replace("dtype: torch.bfloat16, ", "")
    for text, dtype, capped in (
        ("", None, False),
        (CAPPED.format(19, 5), None, True),
        (POOLS, True, False),
        (without.replace("K size: ", "K "), None, False),
        (without, False, False),
    ):
        left = releases_of(diagnosed(text + "max_total_num_tokens=1000, max_running_requests=19\n").boot)
        assert left == [
            rules.version
            for rules in RELEASES.rule_sets
            if (rules.cap_line or not capped) and (dtype is None or rules.kv_dtype_line is dtype)
        ]


@pytest.mark.parametrize(
    ("bounds", "whole"),
    [
        (None, None),
        ((Fraction(5, 2), Fraction(4)), [3, 4]),
        ((Fraction(5, 2), Fraction(3)), [3, 3]),
        ((Fraction(3), Fraction(3)), [3, 3]),
        ((Fraction(9, 4), Fraction(11, 4)), [2, 3]),
    ],
)
def test_whole_bytes_of_a_range_are_those_in_it_or_those_around(bounds: Any, whole: list[int] | None) -> None:
    assert whole_range(bounds) == whole


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "yes"), ([1, 2], "1, 2"), (10**23, "1" + 23 * "0"), (10**24, "1" + 20 * "0" + "...")],
    ids=["a truth", "a list", "24 digits", "25 digits"],
)
def test_a_cell_shows_24_characters_at_most(value: Any, shown: str) -> None:
    assert _shown(value) == shown


@pytest.mark.parametrize(
    ("ranks", "stages"),
    [
        ([], (1,)),
        (["TP0"], (1,)),
        (["PP0 TP0", "PP1 TP0"], (2,)),
        (["PP0"], (2, 3, 4, 6, 8, 12, 16)),
        (["PP1"], (2, 3, 4, 6, 8, 12, 16)),
        (["PP4 TP1", "PP4 TP0"], (5, 6, 8, 12, 16)),
    ],
)
def test_a_log_is_of_the_stages_it_shows_or_of_more(ranks: list[str], stages: tuple[int, ...]) -> None:
    boot: Any = SimpleNamespace(ranks=ranks)
    assert stages_of(boot) == stages
