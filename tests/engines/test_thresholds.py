"""From which figure on a rule speaks: each threshold from both sides, on a plan that has nothing but its figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang import plan as sglang_plan
from hybridcalc.engines.sglang import rules as sglang
from hybridcalc.engines.vllm import rules as vllm
from hybridcalc.findings import Suggestion
from hybridcalc.units import GIB


def told(check: Any, plan: Any) -> list[tuple[str, str]]:
    """What a rule says of a plan."""
    return [(message, str(fix)) for message, fix in check(plan)]


@pytest.mark.parametrize(("idle", "speaks"), [(24.9, False), (25.0, True), (100.0, True)])
@pytest.mark.parametrize("binding", ["state", "kv", "limit"])
def test_a_pool_that_idles_from_a_quarter_on(idle: float, speaks: bool, binding: str) -> None:
    """KV where states bind, slots where KV does; never quite all of a pool."""
    plan = SimpleNamespace(
        workload=Workload(((1000, 1),)),
        binding=binding,
        capacity=SimpleNamespace(idle_percent=idle, state_requests=7),
        concurrency=3,
        suggestions=(),
        balanced=None,
        ready=SimpleNamespace(cells=[SimpleNamespace(bytes=1)]),
    )
    assert bool(told(sglang._kv_idles, plan)) is (speaks and binding == "state")
    assert bool(told(sglang._state_idles, plan)) is (speaks and binding == "kv")
    for check in (sglang._kv_idles, sglang._state_idles):
        assert all(f"{min(idle, 99.9):.0f} %" in message for message, _ in told(check, plan))
    plan.ready.cells[0].bytes = 0
    for _, fix in told(sglang._state_idles, plan):
        assert fix == "write --max-total-tokens 7000"


@pytest.mark.parametrize(("after", "speaks"), [(119, False), (120, True)])
def test_the_default_ratio_is_wrong_from_a_fifth_more_on(after: int, speaks: bool) -> None:
    suggestion = Suggestion("--mamba-full-memory-ratio 2", 100, after, "more", "")
    plan = SimpleNamespace(
        args=SimpleNamespace(max_mamba_cache_size=None),
        ready=SimpleNamespace(args=SimpleNamespace(memory_ratio=0.9)),
        suggestions=(suggestion,),
        requests=100,
    )
    assert bool(told(sglang._default_ratio, plan)) is speaks
    plan.ready.args.memory_ratio = 0.91
    assert told(sglang._default_ratio, plan) == []


@pytest.mark.parametrize(("share", "speaks"), [(0.249, False), (0.25, True)])
def test_draft_states_from_a_quarter_of_the_memory_on(share: float, speaks: bool) -> None:
    lines = [
        SimpleNamespace(name="draft states", allocated_bytes=int(share * 8 * GIB)),
        SimpleNamespace(name="KV pool", allocated_bytes=8 * GIB),
    ]
    plan = SimpleNamespace(
        budget=lines,
        rest=SimpleNamespace(likely_gib=8.0),
        ready=SimpleNamespace(stage_slot_bytes=2**20),
        args=SimpleNamespace(most_draft_tokens=4),
        max_running_requests=9,
    )
    found = told(sglang._scratch, plan)
    assert bool(found) is speaks
    assert all("9 + 1 requests x 4 states, 4.00 MiB a request" in message for message, _ in found)


@pytest.mark.parametrize(
    ("over", "headroom", "speaks", "words", "fix"),
    [
        (0.399, None, False, "", ""),
        (
            0.4,
            None,
            True,
            "the headroom of --mem-fraction-static must hold them",
            "lower --mem-fraction-static by as much",
        ),
        (0.4, 0.5, True, "0.50 GiB of headroom must hold them", ""),
        (0.11, 0.5, True, "0.50 GiB of headroom must hold them", ""),
        (0.099, 0.5, False, "", ""),
        (0.399, 0.3, True, "0.30 GiB of headroom cannot hold them", "write --mem-fraction-static 0.76"),
        (0.5, 0.5, True, "0.50 GiB of headroom cannot hold them", "write --mem-fraction-static 0.75"),
    ],
)
def test_what_is_not_charged_from_a_twentieth_of_the_memory_or_a_fifth_of_the_headroom_on(
    over: float, headroom: float | None, speaks: bool, words: str, fix: str
) -> None:
    line = SimpleNamespace(name="rings", allocated_bytes=int(over * GIB), charged_bytes=0)
    plan = SimpleNamespace(
        uncharged_bytes=round(over * GIB),
        rest=SimpleNamespace(
            likely_gib=8.0, headroom_gib=headroom, before_gib=10.0 if headroom is not None else None, fraction=None
        ),
        args=SimpleNamespace(mem_fraction_static=0.8),
        budget=[line],
    )
    if over == 0.4:
        plan.uncharged_bytes += 1
    found = told(sglang._uncharged, plan)
    assert bool(found) is speaks
    for message, written in found:
        assert message.endswith(words)
        assert written == fix


@pytest.mark.parametrize(
    ("slots", "each", "left"),
    [(21, 5, None), (20, 5, "none is spare"), (22, 5, "2 are left over"), (24, 5, "4 are left over"), (7, 1, None)],
)
def test_a_pinned_pool_has_one_slot_to_spare(slots: int, each: int, left: str | None) -> None:
    plan = SimpleNamespace(
        args=SimpleNamespace(max_mamba_cache_size=slots, attn_dp_size=1),
        slots_per_request=each,
        max_mamba_cache_size=slots,
    )
    found = told(sglang._not_a_pin, plan)
    assert bool(found) is (left is not None)
    assert all(message.endswith(f"and {left}") and fix == "write 21" for message, fix in found)


@pytest.mark.parametrize(("percent", "speaks"), [(20.0, False), (20.1, True)])
def test_padding_of_more_than_a_fifth(percent: float, speaks: bool) -> None:
    plan = SimpleNamespace(
        padding_pct=percent,
        padded_page_bytes=1200,
        args=SimpleNamespace(block_size=None),
        ready=SimpleNamespace(state_bytes=1000),
    )
    assert bool(told(vllm._padding, plan)) is speaks
    plan.padded_page_bytes = None
    assert told(vllm._padding, plan) == []


@pytest.mark.parametrize(
    ("sizes", "speaks"), [([10, 10], False), ([10, 8], False), ([100, 79], True), ([10, 10, 7], False), ([10, 6], True)]
)
def test_layer_slots_that_stay_empty_from_more_than_a_tenth_on(sizes: list[int], speaks: bool) -> None:
    found = told(vllm._empty_slots, SimpleNamespace(group_sizes=sizes))
    assert bool(found) is speaks
    empty = 100 * (1 - sum(sizes) / (max(sizes) * len(sizes)))
    assert all(f"{empty:.0f} % of the layer slots" in message for message, _ in found)


def seqs(asked: int | None, fits: int, **more: Any) -> SimpleNamespace:
    """A plan whose max_num_seqs is held against what fits."""
    return SimpleNamespace(
        args=SimpleNamespace(
            max_num_seqs=asked,
            gpu_memory_gib=more.get("gib"),
            changed=lambda **_: None,
            seqs_flags=lambda seqs: f"--max-num-seqs {seqs}",
        ),
        running=SimpleNamespace(fits=fits),
        workload=Workload(((1000, 1),)),
        most_seqs=more.get("most", 1),
        num_blocks=more.get("blocks", 0),
    )


@pytest.mark.parametrize(
    ("asked", "fits", "words"),
    [
        (39, 10, None),
        (40, 10, "--max-num-seqs 40, but 10 requests of 1,000 tokens fit"),
        (10, 39, None),
        (10, 40, "--max-num-seqs 10, and 40 requests of 1,000 tokens fit"),
        (10, 0, None),
        (None, 10, None),
    ],
)
def test_max_num_seqs_is_far_off_from_four_times_on(
    asked: int | None, fits: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "serves", lambda plan, args: None)  # it stands alone
    found = told(vllm._seqs_far_off, seqs(asked, fits))
    assert bool(found) is (words is not None)
    assert all(message.startswith(words or "") and fix == f"write --max-num-seqs {fits}" for message, fix in found)


@pytest.mark.parametrize(
    ("plan", "fix"),
    [
        (seqs(None, 5, blocks=1023), "write --max-num-seqs 5"),
        (seqs(None, 0, blocks=1023), "write --max-num-seqs 1"),
        (seqs(None, 5000, blocks=1023), "write --max-num-seqs 1023"),
        (seqs(None, 5, blocks=1024), None),
        (seqs(8, 5, blocks=1023), None),
        (seqs(None, 5, blocks=1023, gib=141.0), None),
        (seqs(None, 5, blocks=1023, most=0), None),
    ],
)
def test_a_large_gpu_would_refuse_its_default_of_1024_sequences(plan: SimpleNamespace, fix: str | None) -> None:
    assert [written for _, written in told(vllm._default_seqs_refused, plan)] == ([fix] if fix else [])


@pytest.mark.parametrize(
    ("length", "fixed", "real", "speaks"),
    [(4096, 3, 8, True), (4097, 3, 8, False), (4096, 0, 8, False), (4096, 3, 9, False), (4096, 3, 0, False)],
)
def test_the_printed_concurrency_misleads_about_short_requests(
    length: int, fixed: int, real: int, speaks: bool
) -> None:
    """At half of max_model_len and below, where it says half as many again as run."""
    plan = SimpleNamespace(
        workload=Workload(((length, 1),)),
        fixed_blocks=fixed,
        max_model_len=8192,
        max_concurrency=6.0,
        running=SimpleNamespace(fits=real),
    )
    assert bool(told(vllm._misleading_concurrency, plan)) is speaks


@pytest.mark.parametrize(
    ("longest", "served", "own", "fits", "fix", "thousands"),
    [
        (8192, 8192, 8192, 8192, None, False),
        (8193, 8192, None, 9000, "write --max-model-len 8193", False),
        (8193, 8192, 8193, 9000, "write --max-model-len 8193", False),
        (8193, 8192, 8192, 9000, "shorten the requests: the model itself ends at 8,192", False),
        (8193, 8192, None, 8192, "shorten the requests, or use more memory: up to 8,192 start on this", False),
        (8192, 8000, None, 8192, "write --max-model-len 8192", True),
        (8193, 8000, None, 9000, "write --max-model-len 8193", False),
        (8192, 8001, None, 9000, "write --max-model-len 8192", False),
    ],
)
def test_requests_longer_than_what_is_served(
    longest: int,
    served: int,
    own: int | None,
    fits: int,
    fix: str | None,
    thousands: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8k is 8,000 to vLLM: said where just that is the difference."""
    monkeypatch.setattr(vllm, "longest_of", lambda model: own)
    plan = SimpleNamespace(workload=Workload(((longest, 1),)), max_model_len=served, model=None, longest_model_len=fits)
    found = told(vllm._too_long, plan)
    assert [written for _, written in found] == ([fix] if fix else [])
    assert all(("(8k is 8,000 to vLLM, 8K is 8,192)" in message) is thousands for message, _ in found)


def test_a_request_as_long_as_the_context_is_served() -> None:
    """Judged by the figures (Figures.too_long)."""
    for context, requests in ((9216, 4), (9215, 0)):
        args = ServerArgs(context_length=context, max_mamba_cache_size=21, tp_size=8)
        plan = sglang_plan(load_model("kimi-k3"), args, rest_gib=28.0, workload=Workload.at(9216))
        assert (plan.requests, len(told(sglang._too_long, plan))) == (requests, requests == 0)
