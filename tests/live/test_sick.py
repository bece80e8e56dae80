"""Servers that are sick: impossible figures are refused by name, a server that is not read or waits is never left
unsaid, and what is advised leads somewhere.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from command_line import run
from test_fleets import labelled
from test_verdict import EXAMPLE, live, metrics

from hybridcalc import llamacpp, vllm
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.errors import InputError
from hybridcalc.live.replan import LiveQuestion
from hybridcalc.live.scrape import NotRead
from hybridcalc.live.verdict import Live
from hybridcalc.live.view import headline, view
from hybridcalc.live.watch import Moment, watch
from hybridcalc.live.worker import KV, LIMIT

GOOD: dict[str, dict[str, float]] = {
    "sglang:": {"num_running_reqs": 4, "num_queue_reqs": 1, "full_token_usage": 0.5, "mamba_usage": 0.5},
    "vllm:": {"num_requests_running": 4, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.5},
    "llamacpp:": {"requests_processing": 4, "requests_deferred": 1, "prompt_tokens_cached_total": 7},
}
COUNTS = {f"{pool}_{part}_tokens": 10.0 for pool in ("kv", "mamba") for part in ("used", "available")}
QWEN = load_model("qwen3.6-35b-a3b")


@pytest.mark.parametrize("value", ["-5", "1e308", "+Inf", "-Inf", "-0.001"])
@pytest.mark.parametrize(("prefix", "name"), [(prefix, name) for prefix, own in GOOD.items() for name in own])
def test_impossible_figures_are_refused_by_name(prefix: str, name: str, value: str) -> None:
    figures: dict[str, Any] = {**GOOD[prefix], name: value}
    with pytest.raises(InputError, match=f"text: {prefix}{name} is .*which no (count|share) can be"):
        live(metrics(prefix, figures))


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("vllm:", "kv_cache_usage_perc"),
        ("vllm:", "gpu_prefix_cache_hit_rate"),
        *[("sglang:", f"{pool}_usage") for pool in ("mamba", "token", "full_token", "swa_token")],
        *[("sglang:", name) for name in ("cache_hit_rate", "spec_accept_rate")],
    ],
)
def test_no_share_is_more_than_the_whole(prefix: str, name: str) -> None:
    """Read for the answer or not: beside counts of slots and tokens nothing is told of the shares."""
    with pytest.raises(InputError, match=f"{name} is 99, which no share can be"):
        live(metrics(prefix, GOOD[prefix] | COUNTS | {name: 99}))
    assert live(metrics(prefix, {**GOOD[prefix], name: 1.0})).queued == 1


@pytest.mark.parametrize("label", ["model_name", "instance"])
def test_figures_of_several_servers_are_not_mixed(label: str) -> None:
    text = metrics("vllm:", GOOD["vllm:"])
    with pytest.raises(InputError, match=f"is of several servers, told apart by {label}"):
        live(labelled(text, f'{label}="a"') + labelled(text, f'{label}="b"'))


def test_a_slot_holds_no_more_than_its_cells_and_no_limit_is_negative() -> None:
    text = metrics("llamacpp:", GOOD["llamacpp:"])
    found = live(text, slots=[{"n_ctx": 100, "is_processing": True, "n_prompt_tokens": 10**6}])
    assert (found.total(KV, "used"), found.share(KV)) == (100, 1.0)
    info = {"max_running_requests": -5}
    assert live(metrics("sglang:", GOOD["sglang:"]), server_info=info).workers[0].limit is None


def test_what_llama_cpp_defers_waits_for_a_slot() -> None:
    """With or without /slots and a launch line, and with its cells full: the verdict is that of the alert."""
    text = metrics("llamacpp:", {"requests_processing": 4, "requests_deferred": 7})
    alone = live(text)
    assert headline(alone) == "the limit of requests binds: 7 requests wait, 4 run"
    assert [one.rule for one in alone.findings] == ["HC302", "HC306"]
    args = llamacpp.ContextParams(n_ctx=131_072, n_seq_max=4)
    told = live(text, LiveQuestion(QWEN, "llama.cpp", args))
    assert (told.binding, told.workers[0].limit) == (LIMIT, 4)
    assert "7 requests wait and 4 of 4 run, each waits for a slot" in {one.message for one in told.findings}
    assert told.suggestions[0].flags.startswith("--parallel 11")
    full = live(text, slots=[{"n_ctx": 100, "is_processing": True, "n_prompt_tokens": 100}] * 4)
    assert full.binding == LIMIT


def test_no_pool_binds_where_none_is_full_and_an_unknown_limit_is_said() -> None:
    found = live(metrics("sglang:", GOOD["sglang:"]))
    assert headline(found).startswith("no pool binds: 1 request waits, 4 run")
    (said,) = [one.message for one in found.findings if one.rule == "HC303"]
    assert said == "1 request waits, and no pool is full: the limit of requests is not known here"


ARGS = vllm.EngineArgs(max_model_len=32768)
PLAN = vllm.plan(QWEN, ARGS, available_bytes=30 * 2**30, workload=Workload.at(8192))


def blocks(tokens: int, length: int | None = None, asked: LiveQuestion | None = None) -> Live:
    labels = f'num_gpu_blocks="{PLAN.num_blocks}",block_size="{tokens}"'
    text = metrics("vllm:", {"cache_config_info": 1}, labels) + metrics("vllm:", GOOD["vllm:"])
    return live(text, asked or LiveQuestion(QWEN, "vllm", ARGS, length))


def unknown(found: Live) -> list[str]:
    return [f"{one.message}; {one.fix}" for one in found.findings if one.rule == "HC306"]


def test_advice_about_vllm_leads_to_settings() -> None:
    """Without a length it is asked for; with it there are settings, and the length that they are for is said."""
    (why,) = unknown(blocks(PLAN.attn_block_size))
    assert "add -L LENGTH" in why
    found = blocks(PLAN.attn_block_size, 8192)
    assert (unknown(found), bool(found.suggestions)) == ([], True)
    assert "at 8,192 tokens a request" in view(found).meaning
    (model,) = unknown(blocks(PLAN.attn_block_size, asked=LiveQuestion()))
    assert model.endswith("name --model and the launch line, --command LINE")
    (line,) = unknown(blocks(PLAN.attn_block_size, asked=LiveQuestion(QWEN)))
    assert line.endswith("name another --model, or the launch line, --command LINE")


def test_blocks_of_another_size_than_planned_are_said() -> None:
    (differ,) = unknown(blocks(PLAN.attn_block_size - 32, 8192))
    assert f"a block has {PLAN.attn_block_size - 32:,} tokens here, planned {PLAN.attn_block_size:,}" in differ
    assert unknown(blocks(16, 8192)) == []  # what the front process shows before workers settle it


def test_what_binds_of_the_others_is_in_the_short_answer(tmp_path: Path) -> None:
    texts = {
        "v": metrics(
            "vllm:",
            {
                **GOOD["vllm:"],
                "num_requests_waiting": 12,
                "num_preemptions_total": 3,
                "prefix_cache_queries_total": 9,
                "prefix_cache_hits_total": 0,
            },
        ),
        "l": metrics("llamacpp:", {"requests_processing": 4, "requests_deferred": 7}),
        "s": metrics("sglang:", {"num_running_reqs": 20, "num_queue_reqs": 5, "full_token_usage": 0.99}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    code, out, _ = run("live", *(str(tmp_path / name) for name in texts))
    plain = " ".join(out.split())
    assert code == 0
    assert len(out.splitlines()) <= 12
    assert "SGLang 5 wait, 20 run KV binds" in plain
    assert "llama.cpp 7 wait, 4 run the limit of requests binds" in plain


class Sick(BaseHTTPRequestHandler):
    """A server that is well at /well, has impossible figures at /mad, and fails anywhere else."""

    def do_GET(self) -> None:
        text = EXAMPLE.read_text()
        bodies = {"/well/metrics": text, "/mad/metrics": text.replace("} 51.0", "} -5")}
        self.send_response(200 if self.path in bodies else 500)
        self.end_headers()
        self.wfile.write(bodies.get(self.path, "").encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Sick)
    Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


@pytest.mark.parametrize(("path", "why"), [("dead", "HTTP 500"), ("mad", "num_running_reqs is -5")])
def test_a_dead_replica_does_not_hide_the_healthy_one(server: str, path: str, why: str) -> None:
    code, out, err = run("live", f"{server}/well", f"{server}/{path}", "--json")
    found = json.loads(out)
    assert (code, err) == (1, "")
    assert (found["requests_running"], found["binding"]) == (51, "state")
    (said,) = [one["message"] for one in found["findings"] if one["rule"] == "HC308"]
    assert why in said
    assert "1 server not read" in " ".join(run("live", f"{server}/well", f"{server}/{path}").out.split())
    code, out, err = run("live", f"{server}/{path}", f"{server}/dead")
    assert (code, out) == (2, "")
    assert "error: http" in err


def test_a_watch_outlives_a_first_scrape_that_fails(server: str) -> None:
    code, out, err = run("live", f"{server}/dead", "--watch", "100ms", "--scrapes", "2")
    assert code == 2
    assert out.count("not read: http") == 2
    assert "HTTP 500" in err
    assert run("live", "absent.txt", "--watch", "100ms", "--scrapes", "2").out == ""
    answers: list[Any] = [NotRead("starts"), NotRead("starts"), live(EXAMPLE.read_text())]

    def look() -> Live:
        found: Any = answers.pop(0)
        if isinstance(found, NotRead):
            raise found
        return found  # type: ignore[no-any-return]

    taken = list(watch(look, 1.0, most=3, sleep=lambda _: None))
    assert [isinstance(one, Moment) for one in taken] == [False, False, True]


def preempting(*counts: int) -> list[Live]:
    """A watch of a server whose counter is at each of ``counts``."""

    def text(count: int) -> str:
        return metrics("vllm:", {**GOOD["vllm:"], "num_preemptions_total": count})

    looks = iter(live(text(count)) for count in counts)
    taken = watch(lambda: next(looks), 1.0, most=len(counts), sleep=lambda _: None)
    return [one.live for one in taken if isinstance(one, Moment)]


def test_findings_of_a_watch_are_of_what_grew() -> None:
    told = [[one.message for one in each.findings if one.rule == "HC304"] for each in preempting(3, 3, 5, 6)]
    assert told == [
        ["3 times since the start a request lost its place"],
        [],
        ["2 times since the last scrape a request lost its place"],
        ["once since the last scrape a request lost its place"],
    ]


def test_counters_of_a_server_that_was_not_read_before_are_no_growth() -> None:
    one, two = (live(metrics("vllm:", {**GOOD["vllm:"], "num_preemptions_total": 9})).workers[0] for _ in range(2))
    first = live(metrics("vllm:", GOOD["vllm:"]))
    alone = replace(first, workers=(one._replace(source="a"),), verdicts=(None,))
    both = replace(first, workers=(one._replace(source="a"), two._replace(source="b")), verdicts=(None, None))
    looks = iter((alone, both))
    *_, last = watch(lambda: next(looks), 1.0, most=2, sleep=lambda _: None)
    assert isinstance(last, Moment)
    assert last.live.counter("preempted") == 0
