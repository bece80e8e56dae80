"""Several servers at once: ranks of one, replicas, engines and models beside each other, releases old and new, requests
that wait for adapters and grammars. Each worker is judged as it would be alone, and figures are sums.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verdict import MODULES, exported, metrics

from hybridcalc import sglang, vllm
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.live import scrape
from hybridcalc.live.replan import LiveQuestion, Planner
from hybridcalc.live.verdict import Live, judge
from hybridcalc.live.worker import BLOCKS, KV, LIMIT, OTHER, STATE, Worker

QWEN = load_model("qwen3.6-35b-a3b")
ARGS = sglang.ServerArgs(tp_size=2)
PLAN = sglang.plan(QWEN, ARGS, rest_gib=20.0, workload=Workload.at(8192))
S, K = PLAN.slots_per_request, PLAN.max_mamba_cache_size
BLOCK_PLAN = vllm.plan(
    QWEN, vllm.EngineArgs(max_model_len=32768), available_bytes=30 * 2**30, workload=Workload.at(8192)
)


def read(*texts: str) -> list[Worker]:
    scrapes = [scrape.of_text(f"http://host{n}", text.encode(), tuple(MODULES)) for n, text in enumerate(texts)]
    return [
        worker
        for one in scrapes
        for prefix, module in MODULES.items()
        if one.prefixed(prefix)
        for worker in module.workers(one)
    ]


def judged(*texts: str, asked: LiveQuestion | None = None) -> Live:
    return judge(read(*texts), Planner(asked or LiveQuestion()))


def labelled(text: str, labels: str) -> str:
    return text.replace("{", "{" + labels + ",")


one_state = st.tuples(st.integers(1, K // S), st.integers(0, 4), st.integers(1, 9000))


@settings(max_examples=50, deadline=None)
@given(st.lists(one_state, min_size=1, max_size=5), st.booleans())
def test_ranks_and_replicas_are_judged_each(states: list[tuple[int, int, int]], ranks: bool) -> None:
    texts = [exported(PLAN, running, queued, 4, tokens) for running, queued, tokens in states]
    if ranks:
        texts = ["".join(labelled(text, f'dp_rank="{rank}"') for rank, text in enumerate(texts))]
    found = judged(*texts, asked=LiveQuestion(QWEN, "sglang", ARGS))
    assert len(found.workers) == len(states)
    assert not found.others
    assert found.running == sum(running for running, _, _ in states)
    assert found.queued == sum(queued for _, queued, _ in states)
    assert found.total(STATE) == K * len(states)
    assert found.total(KV) == PLAN.max_total_num_tokens * len(states)
    alone = [
        judged(exported(PLAN, *state[:2], 4, state[2]), asked=LiveQuestion(QWEN, "sglang", ARGS)) for state in states
    ]
    assert found.verdicts == tuple(one.binding for one in alone)
    assert found.binding == found.verdicts[max(range(len(states)), key=lambda place: states[place][1])]
    assert found.plan is not None
    assert found.most == (K // S) * len(states)
    each = found.to_dict()["per_worker"]
    assert [one["binding"] for one in each] == list(found.verdicts)
    assert len({(one["source"], one["name"]) for one in each}) == len(states)


@settings(max_examples=50, deadline=None)
@given(one_state, st.integers(0, 9), st.floats(0, 1), st.sampled_from(("capacity", "deferred")), st.integers(0, 9))
def test_engines_beside_each_other_are_judged_apart(
    state: tuple[int, int, int], waiting: int, usage: float, reason: str, deferred: int
) -> None:
    own = exported(PLAN, *state[:2], 4, state[2])
    blocks = metrics("vllm:", {"cache_config_info": 1}, f'num_gpu_blocks="{BLOCK_PLAN.num_blocks}"')
    blocks += metrics(
        "vllm:", {"num_requests_running": 7, "num_requests_waiting": waiting, "kv_cache_usage_perc": usage}
    )
    blocks += metrics("vllm:", {"num_requests_waiting_by_reason": waiting}, f'reason="{reason}"')
    cells = metrics("llamacpp:", {"requests_processing": 2, "requests_deferred": deferred})
    found = judged(own, blocks, cells)
    kinds = {one.engine: one for one in (found, *found.others)}
    assert set(kinds) == {"sglang", "vllm", "llama.cpp"}
    assert found.queued == max(state[1], waiting, deferred)
    assert (kinds["sglang"].total(STATE), kinds["vllm"].total(STATE), kinds["llama.cpp"].total(KV)) == (K, None, None)
    assert kinds["vllm"].total(BLOCKS) == BLOCK_PLAN.num_blocks
    wanted = None if not waiting else OTHER if reason == "deferred" else BLOCKS if usage > 0.95 else LIMIT
    assert kinds["vllm"].binding == wanted
    assert kinds["llama.cpp"].binding == (LIMIT if deferred else None)
    assert [one["engine"] for one in found.to_dict().get("others", [])] == [one.engine for one in found.others]


ELSEWHERE = {
    "num_grammar_queue_reqs": "grammar", "num_prefill_bootstrap_queue_reqs": "transfer",
    "num_decode_prealloc_queue_reqs": "transfer", "num_decode_transfer_queue_reqs": "transfer",
}  # fmt: skip


@given(st.sampled_from(sorted(ELSEWHERE)), st.integers(1, 50), st.integers(0, 3))
def test_grammars_and_transfers_wait_for_no_pool(metric: str, count: int, queued: int) -> None:
    """Even with both pools full; requests in the queue beside them wait for the pool."""
    text = exported(PLAN, K // S, queued, S, 10**6) + metrics("sglang:", {metric: count})
    found = judged(text)
    assert found.queued == queued + count
    assert found.binding == (STATE if queued else OTHER)
    if not queued:
        assert f"{count} {ELSEWHERE[metric]}" in next(one.message for one in found.findings if one.rule == "HC303")


def test_adapters_that_are_all_taken_are_said() -> None:
    text = exported(PLAN, 2, 5, 4, 100) + metrics("sglang:", {"lora_pool_slots_used": 8, "lora_pool_slots_total": 8})
    (said,) = [one.message for one in judged(text).findings if one.rule == "HC303"]
    assert said == "5 requests wait, and no pool is full: all 8 places of adapters are taken"


OLD = {
    "0.5.9": {"token_usage": 0.4, "mamba_usage": 0.97, "max_total_num_tokens": 1000},
    "0.5.10": {"token_usage": 0.97, "full_token_usage": 0.4, "mamba_usage": 0.97},
    "0.5.11": {"token_usage": 0.98, "full_token_usage": 0.98, "mamba_usage": 0.5},
    "before mamba": {"token_usage": 0.98},
}


@pytest.mark.parametrize(
    ("release", "wanted"), [("0.5.9", STATE), ("0.5.10", STATE), ("0.5.11", KV), ("before mamba", KV)]
)
def test_old_releases_say_what_they_can(release: str, wanted: str) -> None:
    found = judged(metrics("sglang:", {"num_running_reqs": 8, "num_queue_reqs": 3, **OLD[release]}))
    assert found.binding == wanted
    assert found.total(STATE) is None
    assert found.to_dict()["slots_per_request_held"] is None
    assert "HC306" in {one.rule for one in found.findings}
    assert found.total(KV) == (1000 if release == "0.5.9" else None)


def test_priorities_are_not_counted_beside_their_sum() -> None:
    figures: dict[str, float] = {"num_running_reqs": 3, "num_queue_reqs": 2}
    text = metrics("sglang:", figures, 'priority=""')
    text += "".join(metrics("sglang:", dict.fromkeys(figures, 1), f'priority="{n}"') for n in range(2))
    assert (judged(text).running, judged(text).queued) == (3, 2)


def test_counters_are_sums_and_rates_are_of_them() -> None:
    def server(asked: int, hits: int) -> str:
        counts: dict[str, float] = {
            "num_requests_running": 1,
            "num_requests_waiting": 0,
            "prefix_cache_queries_total": asked,
            "prefix_cache_hits_total": hits,
            "spec_decode_num_draft_tokens_total": 100,
            "spec_decode_num_accepted_tokens_total": 40,
        }
        return metrics("vllm:", counts)

    found = judged(server(900, 0), server(100, 50))
    assert (found.hit_rate, found.accept_rate, found.counter("drafted")) == (0.05, 0.4, 200)
    tokens = {"input": 300.0, "device_hit": 80.0, "host_hit": 20.0}
    text = metrics(
        "sglang:", {"num_running_reqs": 1, "num_queue_reqs": 0, "cache_hit_rate": 0.9, "spec_accept_rate": 0.7}
    )
    text += "".join(
        metrics("sglang:", {"prefill_effective_tokens_total": n}, f'mode="{mode}"') for mode, n in tokens.items()
    )
    assert (judged(text).hit_rate, judged(text).accept_rate) == (0.25, 0.7)


def test_a_start_is_searched_once_while_pools_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridcalc.live import replan

    searched = []
    real = replan.memory_of

    def counted(*asked: Any) -> Any:
        searched.append(asked)
        return real(*asked)

    monkeypatch.setattr(replan, "memory_of", counted)
    planner = Planner(LiveQuestion(QWEN, "sglang", ARGS))
    found = [judge(read(exported(PLAN, n, 1, 4, 1000 * n)), planner) for n in range(1, 6)]
    assert len(searched) == 1
    lengths = [one.plan.workload.mean_length for one in found if one.plan is not None]
    assert lengths == [1000 * n for n in range(1, 6)]
    smaller = sglang.plan(QWEN, ARGS, rest_gib=10.0, workload=Workload.at(8192))
    judge(read(exported(smaller, 1, 1, 4, 1000)), planner)
    assert len(searched) == 2


def test_servers_are_named_in_a_table_and_each_is_held_to_the_plan(tmp_path: Path) -> None:
    files = []
    for number, text in enumerate(fleet()):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text)
    code, out, _ = run("live", *map(str, files), "-v")
    assert code == 0
    assert "Workers" in out or "worker" in out
    assert "vLLM: no request waits: 7 run" in " ".join(out.split())
    plan = tmp_path / "plan.json"
    words = [
        "--rest",
        "20GiB",
        "-L",
        "8192",
        "--",
        "sglang",
        "serve",
        "--model-path",
        "Qwen/Qwen3.6-35B-A3B",
        "--tp",
        "2",
    ]
    plan.write_text(run("plan", "--json", *words)[1])
    held = run("live", *map(str, files[:2]), "--expect", str(plan), "--json")
    assert (held.code, [one for one in held.document["findings"] if one["rule"] == "HC307"]) == (0, [])
    held = run("live", *map(str, files), "--expect", str(plan), "--json")
    assert (held.code, [one for one in held.document["findings"] if one["rule"] == "HC307"]) == (1, [])
    (other,) = held.document["others"]
    assert "the plan is of SGLang, this is vLLM" in {one["message"] for one in other["findings"]}
    wrong = run("plan", "--json", "--rest", "19GiB", *words[2:])[1]
    plan.write_text(wrong)
    held = run("live", *map(str, files), "--expect", str(plan), "--json")
    assert held.code == 1
    assert sum(one["rule"] == "HC307" for one in held.document["findings"]) >= 2


def fleet() -> Iterator[str]:
    yield labelled(exported(PLAN, 4, 2, 4, 4000), 'model_name="chat"')
    yield labelled(exported(PLAN, 9, 0, 4, 4000), 'model_name="chat"')
    yield metrics("vllm:", {"num_requests_running": 7, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.5})


def test_a_length_that_is_given_changes_what_to_set_and_not_what_runs() -> None:
    text = exported(PLAN, K // S, 3, 4, 500)
    for length in (None, 100_000):
        found = judged(text, asked=LiveQuestion(QWEN, "sglang", ARGS, length))
        assert (found.binding, found.most) == (STATE, K // S)
        assert found.plan is not None
        assert found.plan.workload.mean_length == (length or 500)


def test_a_launch_line_of_another_engine_is_said() -> None:
    found = judged(exported(PLAN, 3, 1, 4, 500), asked=LiveQuestion(QWEN, "vllm", vllm.EngineArgs()))
    assert found.plan is None
    assert found.how == "the launch line starts vLLM, this is SGLang"


def test_what_is_meant_is_said(tmp_path: Path) -> None:
    assert "a server is http://localhost:30000" in run("live", "localhost:30000").err
    assert "http://" not in run("live", str(tmp_path / "metrics.txt")).err
    both = run("live", "--rules", "prometheus", "--dashboard", "grafana")
    assert (both.code, both.out) == (2, "")
    assert "a file each" in both.err


def test_hostile_names_are_printed_as_text() -> None:
    evil = 'model_name="\x1b[2Jowned\x07' + "x" * 3000 + '"'
    found: Any = judged(labelled(exported(PLAN, 4, 2, 4, 4000), evil))
    from hybridcalc.live.view import view

    shown = view(found)
    assert "\x1b" not in shown.title + shown.meaning + shown.headline
    assert len(shown.title) < 300
