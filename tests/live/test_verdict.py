"""The verdict about a running server: what the planner says of the same pools, for SGLang, vLLM and llama.cpp."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcalc import sglang, vllm
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.live import llamacpp, scrape
from hybridcalc.live import sglang as sglang_names
from hybridcalc.live import vllm as vllm_names
from hybridcalc.live.replan import LiveQuestion, Planner
from hybridcalc.live.verdict import Live, binding, judge
from hybridcalc.live.worker import BLOCKS, KV, LIMIT, OTHER, STATE, Pool, Worker

MODULES = {"sglang:": sglang_names, "vllm:": vllm_names, "llamacpp:": llamacpp}
KIMI = load_model("kimi-k3")
EXAMPLE = Path(__file__).parents[2] / "examples" / "kimi-k3-metrics.txt"


def live(text: str, asked: LiveQuestion | None = None, **documents: Any) -> Live:
    read = scrape.of_text("text", text.encode(), tuple(MODULES))._replace(documents=documents)
    workers = [worker for prefix, module in MODULES.items() if read.prefixed(prefix) for worker in module.workers(read)]
    return judge(workers, Planner(asked or LiveQuestion()))


def metrics(prefix: str, figures: dict[str, float], labels: str = "") -> str:
    return "".join(f"{prefix}{name}{{{labels}}} {value}\n" for name, value in figures.items())


def exported(plan: Any, running: int, queued: int, held: float, tokens: int) -> str:
    """What SGLang exports of a plan's pools, with requests in them."""
    slots, kv = plan.max_mamba_cache_size, plan.max_total_num_tokens
    used, full = min(slots, round(running * held)), min(kv, running * tokens)
    return metrics(
        "sglang:",
        {
            "num_running_reqs": running,
            "num_queue_reqs": queued,
            "mamba_used_tokens": used,
            "mamba_available_tokens": slots - used,
            "mamba_evictable_tokens": 0,
            "kv_used_tokens": full,
            "kv_available_tokens": kv - full,
            "kv_evictable_tokens": 0,
            "max_total_num_tokens": kv,
        },
    )


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(("kimi-k3", "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "qwen3.6-35b-a3b")),
    st.sampled_from((1, 2, 4, 8)),
    st.floats(4.0, 60.0),
    st.floats(0.2, 4.0),
    st.integers(1, 40_000),
    st.data(),
)
def test_sglangs_pools_give_the_planners_verdict(
    name: str, tp: int, rest: float, ratio: float, tokens: int, data: st.DataObject
) -> None:
    model = load_model(name)
    args = sglang.ServerArgs(tp_size=tp, mamba_full_memory_ratio=ratio)
    try:
        plan = sglang.plan(model, args, rest_gib=rest, workload=Workload.at(tokens))
    except sglang.Refusal:
        return
    slots, reserved = plan.max_mamba_cache_size, plan.slots_per_request
    most = slots // reserved
    running = data.draw(st.integers(1, max(1, most)))
    queued = data.draw(st.integers(0, 5))
    found = live(
        exported(plan, running, queued, min(4.0, reserved), tokens),
        LiveQuestion(model=model, engine="sglang", args=args),
    )
    assert (found.total(STATE), found.total(KV)) == (slots, plan.max_total_num_tokens)
    full = min(1.0, running * tokens / plan.max_total_num_tokens)
    if not queued:
        assert found.binding is None
    elif running >= most:
        assert found.binding == STATE
    elif full > 0.95:
        assert found.binding == KV
    else:
        assert found.binding == OTHER
    assert found.plan is not None
    assert found.planned["slots_per_request"] == reserved
    length = round(found.each(KV) or 0)
    again = sglang.plan(model, args, rest_gib=rest, workload=Workload.at(max(1, length)))
    assert found.planned["ratio"] == pytest.approx(again.to_dict()["ratio"])
    assert found.plan.requests == again.requests


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(("qwen3-next-80b-a3b", "qwen3.6-35b-a3b", "granite-4.0-h-small")),
    st.floats(3.0, 60.0),
    st.floats(0.0, 1.0),
    st.integers(1, 200),
    st.integers(0, 3),
    st.booleans(),
)
def test_vllms_blocks_give_the_planners_verdict(
    name: str, available: float, usage: float, running: int, queued: int, capacity: bool
) -> None:
    model = load_model(name)
    args = vllm.EngineArgs(max_model_len=32768, max_num_seqs=16)
    try:
        plan = vllm.plan(model, args, available_bytes=int(available * 2**30), workload=Workload.at(8192))
    except vllm.Refusal:
        return
    labels = f'num_gpu_blocks="{plan.num_blocks}",cache_dtype="auto",mamba_cache_mode="None"'
    text = metrics("vllm:", {"cache_config_info": 1}, labels) + metrics(
        "vllm:", {"num_requests_running": running, "num_requests_waiting": queued, "kv_cache_usage_perc": usage}
    )
    reason = "capacity" if capacity else "deferred"
    text += metrics("vllm:", {"num_requests_waiting_by_reason": queued}, f'reason="{reason}"')
    found = live(text, LiveQuestion(model=model, engine="vllm", args=args, length=8192))
    assert found.total(BLOCKS) == plan.num_blocks
    assert found.plan is not None
    assert found.plan.requests == plan.requests
    wanted = None if not queued else OTHER if not capacity else BLOCKS if usage > 0.95 else LIMIT
    assert found.binding == wanted


def worker(**changed: Any) -> Worker:
    return replace_worker(Worker("sglang", "", None, 51, 12, {STATE: Pool(204, 257), KV: Pool(100, 1000)}), **changed)


def replace_worker(one: Worker, **changed: Any) -> Worker:
    return one._replace(**changed)


def test_four_of_five_slots_in_use_is_a_full_pool() -> None:
    assert binding(worker(), 5) == STATE
    assert binding(worker(), None) == STATE  # 257 // 5 = 51, and no other count of slots gives 51
    assert binding(worker(running=50), 5) == OTHER
    assert binding(worker(running=50), None) == OTHER
    assert binding(worker(queued=0), 5) is None


def test_a_pool_is_full_from_above_95_percent_on() -> None:
    assert binding(worker(running=10, pools={KV: Pool(951, 1000)}), None) == KV
    assert binding(worker(running=10, pools={KV: Pool(950, 1000)}), None) == OTHER
    assert binding(worker(running=10, pools={STATE: Pool(None, None, 0, 0.96)}), None) == STATE  # shares alone
    assert binding(worker(running=10, pools={}), None) == OTHER


def test_a_limit_binds_where_as_many_run() -> None:
    assert binding(worker(running=10, limit=10), 5) == LIMIT
    assert binding(worker(running=10, limit=11), 5) == OTHER


def test_the_example_says_what_to_set() -> None:
    found = live(EXAMPLE.read_text(), LiveQuestion(model=KIMI))
    document = found.to_dict()
    assert (document["K"], document["T"], document["binding"]) == (257, 1_169_204, "state")
    assert document["slots_per_request_held"] == 4.0
    assert round(document["tokens_per_request"]) == 8039
    assert document["ratio"] == pytest.approx(5 * 4063.33 / 8039, abs=0.01)
    gains = {tuple(each["flags"]): each["requests_after"] for each in document["suggestions"]}
    assert gains["--mamba-full-memory-ratio", "2.53"] == 78
    assert not any("--kv-cache-dtype" in flags for flags in gains)  # the starts that fit do not agree on it


def test_releases_without_counts_say_what_they_can() -> None:
    text = metrics("sglang:", {"num_running_reqs": 8, "num_queue_reqs": 3, "token_usage": 0.4, "mamba_usage": 0.97})
    found = live(text)
    assert found.binding == STATE
    assert (found.total(STATE), found.total(KV)) == (None, None)
    assert "HC306" in {one.rule for one in found.findings}
    only = live(metrics("sglang:", {"num_running_reqs": 8, "num_queue_reqs": 3, "token_usage": 0.4}))
    assert only.binding == OTHER


@pytest.mark.parametrize("gib", [9.3, 14.01, 26.085])
def test_a_launch_line_is_planned_where_the_release_exports_no_count_of_slots(gib: float) -> None:
    """The tokens and the launch line give the memory, and with it the slots: those of the plan, or one more or less."""
    args = sglang.ServerArgs(tp_size=2)
    plan = sglang.plan(load_model("qwen3.6-35b-a3b"), args, rest_gib=gib)
    figures = {"num_running_reqs": 43, "num_queue_reqs": 9, "mamba_usage": 0.5, "token_usage": 0.97}
    text = metrics("sglang:", {**figures, "max_total_num_tokens": plan.max_total_num_tokens})
    found = live(text, LiveQuestion(load_model("qwen3.6-35b-a3b"), "sglang", args, 16384))
    assert found.how == "the launch line" and found.suggestions
    planned = found.planned["engine_figures"]
    assert planned["max_total_num_tokens"] == plan.max_total_num_tokens
    assert abs(planned["max_mamba_cache_size"] - plan.max_mamba_cache_size) <= 1
    assert "no start" not in " ".join(one.message for one in found.findings)


def test_a_launch_line_is_of_the_release_of_its_image(tmp_path: Path) -> None:
    """Blocks that 0.30.0 makes of a memory and 0.33.0 does not: of the line's own image they are planned."""
    model = load_model("granite-4.0-h-small")
    line = "docker run --gpus all vllm/vllm-openai:v{} --model ibm-granite/granite-4.0-h-small --max-model-len 16384"
    told = {}
    for release in ("0.30.0", "0.33.0"):
        args = vllm.EngineArgs(max_model_len=16384, engine_version=release)
        plan = vllm.plan(model, args, available_bytes=2**34)
        text = metrics("vllm:", {"num_requests_running": 40, "num_requests_waiting": 22, "kv_cache_usage_perc": 0.98})
        text += metrics("vllm:", {"cache_config_info": 1}, f'num_gpu_blocks="{plan.num_blocks}"')
        saved = tmp_path / f"{release}.txt"
        saved.write_text(text)
        _, out, _ = run("live", str(saved), "-L", "8k", "--command", line.format(release), "--json")
        told[release] = json.loads(out)["suggestions"], [each.to_dict() for each in plan.suggestions]
    assert told["0.30.0"][0] and told["0.30.0"][0] != told["0.33.0"][0]


def test_workers_are_told_apart_by_their_rank() -> None:
    text = "".join(
        metrics("sglang:", {"num_running_reqs": 2 + rank, "num_queue_reqs": rank}, f'dp_rank="{rank}",tp_rank="{tp}"')
        for rank in (0, 1)
        for tp in (0, 1)
    )
    found = live(text)
    assert [(one.name, one.running, one.queued) for one in found.workers] == [("rank 0", 2, 0), ("rank 1", 3, 1)]
    assert (found.running, found.queued) == (5, 1)


def test_server_info_gives_the_launch_the_limit_and_the_release() -> None:
    args = "python -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
    info = {
        "version": "0.5.23",
        "launch_command": args,
        "internal_states": [{"effective_max_running_requests_per_dp": 51}],
    }
    found = live(EXAMPLE.read_text(), LiveQuestion(model=KIMI), server_info=info)
    assert found.how == "its own launch command"
    assert found.workers[0].limit == 51
    assert found.to_dict()["engine_version"] == "0.5.23"


def test_llama_cpps_slots_and_props() -> None:
    text = metrics(
        "llamacpp:",
        {
            "requests_processing": 2,
            "requests_deferred": 1,
            "prompt_tokens_total": 50,
            "prompt_tokens_cached_total": 150,
        },
    )
    slots = [{"n_ctx": 8192, "is_processing": busy, "n_prompt_tokens": 1000} for busy in (True, True)]
    found = live(text, slots=slots, props={"total_slots": 2, "model_path": "q.gguf"})
    assert (found.binding, found.total(KV), found.each(KV)) == (LIMIT, None, 1000)
    assert found.hit_rate == 0.75


def test_pools_that_are_not_as_planned_end_in_1(tmp_path: Path) -> None:
    line = "-L 8k --rest {} -- sglang serve --model-path moonshotai/Kimi-K3 --tp 8 --kv-cache-dtype fp8_e4m3"
    for rest, code in (("28.55GiB", 0), ("28GiB", 1)):
        plan = tmp_path / f"{rest}.json"
        plan.write_text(run("plan", "--json", *line.format(rest).split())[1])
        ended, out, _ = run("live", str(EXAMPLE), "--model", "kimi-k3", "--expect", str(plan), "--json")
        document = json.loads(out)
        assert ("HC307" in {one["rule"] for one in document["findings"]}) == bool(code)
        assert ended == code


def test_retractions_and_lost_prefixes_are_said() -> None:
    text = metrics(
        "vllm:",
        {
            "num_requests_running": 3,
            "num_requests_waiting": 0,
            "num_preemptions_total": 7,
            "prefix_cache_queries_total": 900,
            "prefix_cache_hits_total": 0,
        },
    )
    assert {"HC304", "HC305"} <= {one.rule for one in live(text).findings}


def test_retracted_requests_wait_for_kv() -> None:
    figures = {"num_running_reqs": 9, "num_queue_reqs": 2, "full_token_usage": 0.6}
    assert live(metrics("sglang:", figures)).binding == OTHER
    found = live(metrics("sglang:", figures | {"num_retracted_reqs": 1}))
    assert found.binding == KV
    assert "1 request lost its place" in {one.message for one in found.findings}


@pytest.mark.parametrize(
    "settings",
    [{"tp_size": "8"}, {"tp_size": 8, "page_size": [1]}, {"tp_size": -1}, {"kv_cache_dtype": 7}, {"tp_size": 10**30}],
)
def test_what_a_server_says_of_itself_is_not_believed_unread(settings: dict[str, Any]) -> None:
    assert live(EXAMPLE.read_text(), LiveQuestion(model=KIMI), server_info=settings).plan is None


def test_a_servers_own_arguments_are_its_start() -> None:
    settings = {"tp_size": 8, "kv_cache_dtype": "fp8_e4m3", "model_path": "moonshotai/Kimi-K3"}
    found = live(EXAMPLE.read_text(), LiveQuestion(model=KIMI), server_info=settings)
    assert found.how == "what the server says of its arguments"
    assert found.plan is not None
    assert found.plan.args.tp_size == 8


def test_a_live_answer_has_no_plan_without_a_model() -> None:
    found = live(EXAMPLE.read_text().replace("moonshotai/Kimi-K3", "chat"))
    assert found.plan is None
    assert found.binding == STATE
