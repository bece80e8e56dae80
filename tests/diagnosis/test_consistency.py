"""Figures of a boot that contradict each other, their flags or a plan: how much may differ, and what is said of it."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import MOST_OF_A_RULE, Launched, Question, diagnose
from hybridcalc.diagnosis.expectation import Compared, ExpectedPlan
from hybridcalc.diagnosis.sglang.settings import _idle
from hybridcalc.engines.sglang import ServerArgs

WEIGHTS = "Load weight begin. avail mem=90.00 GB\nLoad weight end. avail mem={left} GB, mem usage={used} GB.\n"
POOLS = (
    "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB\n"
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 15.03 GB\n"
)


def found(text: str, **question: Any) -> Any:
    """The answer for the first boot of a text."""
    return next(iter(diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question(**question))))


def rules(text: str, **question: Any) -> list[str]:
    return [one.rule for one in found(text, **question).findings]


@pytest.mark.parametrize(
    ("left", "used", "apart"),
    [("60.00", "30.00", False), ("60.05", "30.00", False), ("59.95", "30.00", False), ("60.06", "30.00", True),
     ("59.94", "30.00", True)],
)  # fmt: skip
def test_free_memory_moves_by_a_twentieth_of_a_gib_without_anything_being_wrong(
    left: str, used: str, apart: bool
) -> None:
    assert ("HC105" in rules(WEIGHTS.format(left=left, used=used))) is apart


@pytest.mark.parametrize(
    ("free", "left", "rule", "words"),
    [
        ("40.00", "11.47", "", ""),
        ("40.00", "11.22", "", ""),
        ("40.00", "11.21", "HC116", "11.21 GiB are free after the pools, 0.26 less than 40.00 - 28.53"),
        ("40.00", "11.72", "", ""),
        ("40.00", "11.73", "HC116", "11.73 GiB are free after the pools, 0.26 more than 40.00 - 28.53"),
        ("26.53", "0.00", "HC116", "0.00 GiB are free after the pools, 2.00 more than 26.53 - 28.53"),
        ("26.52", "0.00", "HC105", "the pools take 28.53 GiB, but 26.52 GiB were free"),
    ],
)
def test_pools_take_what_is_free_after_the_weights(free: str, left: str, rule: str, words: str) -> None:
    """To a quarter of a GiB a note, above two GiB a contradiction: 28.53 GiB of pools."""
    text = f"Load weight end. avail mem={free} GB, mem usage=28.47 GB.\n{POOLS}Memory pool end. avail mem={left} GB\n"
    told = [one for one in found(text).findings if one.rule in ("HC105", "HC116")]
    assert [one.rule for one in told][:1] == ([rule] if rule else [])
    assert all(words in one.message for one in told[:1])


def launched(**flags: Any) -> Launched:
    """A launch of SGLang whose words set these arguments."""
    return Launched("sglang", None, ServerArgs(**{"tp_size": 8, **flags}))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_mamba_cache_size": 257}, ""),
        ({"max_mamba_cache_size": 256}, "pins 256 slots, the log has 257"),
        ({"max_running_requests": 51}, ""),
        ({"max_running_requests": 50}, "allows 50 requests, the log runs 51"),
        ({"kv_cache_dtype": "fp8_e4m3"}, ""),
        ({"kv_cache_dtype": "bfloat16"}, "sets bfloat16 KV, the log has"),
        ({"kv_cache_dtype": "auto"}, ""),
        ({"max_total_tokens": 1_167_552}, ""),
        ({"max_total_tokens": 1_167_551}, "caps tokens at 1,167,551, the log has 1,167,552"),
        ({"mamba_full_memory_ratio": 0.9}, ""),
        ({"mamba_full_memory_ratio": 0.8}, "splits at 0.8, the pools at 0.90"),
        ({"mamba_full_memory_ratio": 1.0}, "splits at 1, the pools at 0.90"),
        ({"tp_size": 8}, ""),
        ({"tp_size": 4}, "sets --tp 4, the pools are of TP8"),
    ],
)
def test_flags_that_cannot_have_produced_the_log(flags: dict[str, Any], words: str) -> None:
    text = (
        POOLS + "max_total_num_tokens=1167552, max_running_requests=51, context_len=9216, available_gpu_mem=9.00 GB\n"
    )
    told = [one.message for one in found(text, launch=launched(**flags)).findings if one.rule == "HC108"]
    assert len(told) == bool(words)
    assert all(words in message for message in told)


def test_fewer_requests_than_were_asked_for_are_said_once() -> None:
    text = (
        POOLS + "max_total_num_tokens=1167552, max_running_requests=51, context_len=9216, available_gpu_mem=9.00 GB\n"
    )
    told = [one for one in found(text, launch=launched(max_running_requests=52)).findings if one.rule == "HC112"]
    assert [one.message for one in told][:1] == ["52 requests were asked for, 51 run"]
    assert "HC112" not in rules(text, launch=launched(max_running_requests=51))


@pytest.mark.parametrize("many", [MOST_OF_A_RULE - 1, MOST_OF_A_RULE, MOST_OF_A_RULE + 1, MOST_OF_A_RULE + 7])
def test_of_each_rule_the_first_five_are_told_and_the_others_counted(many: int) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 MiB.\n"
    text = "Load weight begin. avail mem=90.00 GB\n" + "".join(f"[TP{n}] {oom.format(100 + n)}" for n in range(many))
    told = [one.message for one in found(text).findings if one.rule == "HC124"]
    assert len(told) == min(many, 5)
    beyond = many - 5
    assert told[-1].endswith(f"({beyond} more of this kind)" if beyond > 0 else "free before it")


@pytest.mark.parametrize(
    ("name", "expected", "printed", "agrees"),
    [
        ("kv_tokens", 100_000, 100_100, True),
        ("kv_tokens", 100_000, 99_900, True),
        ("kv_tokens", 100_000, 100_101, False),
        ("max_total_num_tokens", 100_000, 99_899, False),
        ("gpu_kv_cache_tokens", 1000, 1001, True),
        ("draft_kv_tokens", 999, 1000, False),
        ("max_mamba_cache_size", 1000, 1001, False),
        ("max_mamba_cache_size", 1000, 1000, True),
        ("kv_tokens", 1000, None, None),
        ("kv_dtype", "bf16", "bf16", True),
    ],
)
def test_tokens_agree_to_a_thousandth_and_all_else_to_the_digit(
    name: str, expected: Any, printed: Any, agrees: bool | None
) -> None:
    row = Compared(name, expected, printed)
    assert row.agrees is agrees
    assert row.to_dict() == {"figure": name, "expected": expected, "printed": printed, "agrees": agrees}


@pytest.mark.parametrize(
    ("engine", "starts", "rows"),
    [
        ("sglang", True, []),
        ("sglang", None, []),
        (None, True, []),
        ("vllm", True, [("engine", "vllm", "sglang")]),
        ("sglang", False, [("starts", False, True)]),
        ("vllm", False, [("engine", "vllm", "sglang"), ("starts", False, True)]),
    ],
)
def test_a_plan_and_a_boot_part_in_engine_and_outcome_first(
    engine: str | None, starts: bool | None, rows: list[tuple[str, Any, Any]]
) -> None:
    text = (
        POOLS + "max_total_num_tokens=1167552, max_running_requests=51, context_len=9216, available_gpu_mem=9.00 GB\n"
    )
    compared = ExpectedPlan(engine, starts, {"max_mamba_cache_size": 257}).compare(found(text).boot)
    assert compared[:-1] == [Compared(*row) for row in rows]
    assert compared[-1] == Compared("max_mamba_cache_size", 257, 257)


@pytest.mark.parametrize(("graphs", "kept"), [("0.00", False), ("0.01", True), ("1.50", True)])
def test_memory_that_is_kept_for_graphs_is_said_where_there_is_some(graphs: str, kept: bool) -> None:
    text = (
        f"Estimated CUDA graph memory: {graphs} GiB total\nAvailable KV cache memory: -0.53 GiB\n"
        "ValueError: No available memory for the cache blocks.\n"
    )
    [error] = [one for one in found(text).findings if one.severity == "error"]
    assert error.rule == "HC125"
    assert (f", {graphs} GiB are kept for graphs" in error.message) is kept


@pytest.mark.parametrize(("percent", "speaks"), [(4.99, False), (5.0, True), (60.0, True)])
@pytest.mark.parametrize(
    ("binding", "rule", "pool"), [("state", "HC110", "KV"), ("kv", "HC111", "slots"), ("limit", "", "")]
)
def test_a_pool_that_idles_is_said_from_a_twentieth_on(
    percent: float, speaks: bool, binding: str, rule: str, pool: str
) -> None:
    """That which does not bind; none where the limit does, and the figure is kept in any case."""
    said: list[tuple[str, str]] = []
    answer = SimpleNamespace(binding=binding, find=lambda rule, message: said.append((rule, message)))
    case: Any = SimpleNamespace(
        answer=answer, derived=SimpleNamespace(idle_percent=None), workload=Workload(((9216, 1),))
    )
    _idle(case, percent)
    assert case.derived.idle_percent == percent
    told = (rule, f"{percent:.0f} % of the {pool} idle at {case.workload.describe()}")
    assert said == ([told] if speaks and rule else [])
