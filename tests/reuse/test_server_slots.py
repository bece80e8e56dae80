"""llama-server's slots: against a model by the token on random workloads, and what they are asked."""

from __future__ import annotations

from typing import Any

import pytest
from brute_force_slots import BruteForceSlots
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_brute_force import WORKLOADS

from hybridcalc.errors import InputError
from hybridcalc.reuse.cache import NoRoom, Run
from hybridcalc.reuse.llamacpp import policy
from hybridcalc.reuse.requests import Request, Workload
from hybridcalc.reuse.server_slots import NO_LIMIT, SlotCache, SlotServer
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.simulation import simulate

SERVERS = st.builds(
    SlotServer,
    similarity=st.sampled_from((0.0, 0.1, 0.5, 0.9)),
    checkpoints=st.integers(0, 4),
    min_step=st.sampled_from((0, 3, 8192)),
    batch=st.sampled_from((6, 16, 2048)),
    ubatch=st.sampled_from((2, 5)),
    unified=st.booleans(),
    cache_bytes=st.sampled_from((0, 60, 150, 400, NO_LIMIT)),
    token_bytes=st.sampled_from((1, 3)),
    state_bytes=st.sampled_from((5, 20)),
    trained=st.none(),
)


@settings(max_examples=500)
@given(WORKLOADS, st.integers(1, 4), SERVERS)
def test_slots_agree_with_the_brute_force(workload: list[Request], slots: int, server: SlotServer) -> None:
    """What each request reuses, what each slot holds with its checkpoints, what is saved on the host, oldest first."""
    cache = SlotCache(policy(Settings("llama.cpp", slots, server=server)), slots, server)
    limit = server.cache_bytes
    brute = BruteForceSlots(
        slots,
        similarity=server.similarity,
        limit=server.checkpoints,
        step=server.min_step,
        batch=server.batch,
        ubatch=server.ubatch,
        unified=server.unified,
        cache=None if limit == 0 else max(limit, 0),
        token=server.token_bytes,
        state=server.state_bytes,
    )
    for request in workload:
        assert cache.serve(request) == brute.serve(request)
        for place, slot in enumerate(brute.slots):
            held = cache.prompts[place].state if place in cache.prompts else None
            assert (held.held if held else 0) == len(slot["tokens"])
            assert [each.tokens for each in held.checkpoints] == [at for at, _ in slot["marks"]] if held else True
        assert [each.state.held for each in cache.host.entries.values()] == [len(each[0]) for each in brute.saved]
        assert cache.host.bytes == sum(brute._size(*each) for each in brute.saved)
        assert cache.kv_held == sum(len(slot["tokens"]) for slot in brute.slots)


@settings(max_examples=150)
@given(WORKLOADS, st.integers(1, 4), st.integers(1, 4), SERVERS)
def test_slots_of_requests_at_once_add_up(
    workload: list[Request], slots: int, running: int, server: SlotServer
) -> None:
    """One at a time is as one after another; more at once leave every slot idle, and no slot beyond those there are."""
    asked = Workload("drawn", lambda: workload, len(workload), None, "drawn")
    own = Settings("llama.cpp", slots, server=server).setup
    alone, one = simulate(asked, own), simulate(asked, own._replace(running=1))
    assert alone._replace(held=()) == one._replace(held=())
    cache = own._replace(running=min(running, slots)).cache()
    assert isinstance(cache, SlotCache)
    runs: list[Run] = []
    for request in workload:
        if len(runs) == min(running, slots):
            cache.finish(runs.pop(0))
        runs.append(cache.start(request))
        assert cache.busy <= cache.kv_held == sum(each.state.held for each in cache.prompts.values())
    for run_of_it in runs:
        cache.finish(run_of_it)
    assert cache.busy == 0 and len(cache.prompts) <= slots and cache.prompts.keys() <= cache.idle.keys()


def reuse(*arguments: str) -> dict[str, Any]:
    ran = run("reuse", "--json", *arguments)
    assert (ran.code, ran.err) == (0, "")
    return dict(ran.document)


AGENTS = ("--workload", "agents:n=12,history=8k", "--no-what-if")


def test_what_lost_the_prefix_is_named() -> None:
    """Twelve agents: eight slots lose each before its turn, a host cache that holds some loses others."""
    few = reuse("--engine", "llama.cpp", "--slots", "8", *AGENTS)
    assert (few["policy"], few["knee_slots"], few["lost_to"]) == ("llama.cpp slots", 12, "slots")
    assert few["evictions"] > 0 and few["host_hits"] == 0
    assert reuse("--engine", "llama.cpp", "--slots", "12", *AGENTS)["lost_to"] is None
    cached = reuse("qwen3.5-27b", "--engine", "llama.cpp", "--slots", "8", "--cache-ram", "8192", *AGENTS)
    assert cached["lost_to"] == "host" and cached["host_needed"]["bytes"] > 8192 * 2**20
    enough = str(cached["host_needed"]["bytes"] // 2**20)
    held = reuse("qwen3.5-27b", "--engine", "llama.cpp", "--slots", "8", "--cache-ram", enough, *AGENTS)
    assert held["lost_to"] is None and held["token_hit_rate"] >= 0.95 * cached["knee"]["limit_token_hit_rate"]


def test_checkpoints_that_lack_are_named() -> None:
    """A shared prompt of which each leaves checkpoints near its end: without room for any, nothing is reused."""
    asked_for = ("--engine", "llama.cpp", "--slots", "1", "--workload", "shared:tokens=3000,private=300,rounds=20")
    one = reuse(*asked_for, "--ctx-checkpoints", "0", "--no-what-if")
    assert (one["lost_to"], one["hits"]) == ("checkpoints", 0)
    assert reuse(*asked_for, "--no-what-if")["hits"] > 0


def test_the_launch_line_is_asked() -> None:
    """-np, -c, -cram and -ctxcp of a line; prompts that no slot holds are refused."""
    line = ("--", "llama-server", "-m", "qwen3.5-27b.gguf", "-np", "4", "-c", "131072", "-cram", "0", "-ctxcp", "7")
    found = reuse("qwen3.5-27b", "--workload", "chat:sessions=4", "--no-what-if", *line)
    assert (found["slots"], found["kv_tokens"], found["engine"]) == (4, 131_072, "llama.cpp")
    ran = run("reuse", "qwen3.5-27b", "--workload", "cyclic:tokens=40000", *line)
    assert ran.code == 1
    assert ran.err.startswith("error: every request is longer than the context of 32,768 tokens\n")


def test_more_slots_are_proposed_with_the_context_that_they_divide() -> None:
    """-c is divided among the slots: what is proposed, pasted, keeps what it promises."""
    line = ("--", "llama-server", "-m", "qwen3.5-27b.gguf", "-cram", "0")
    asked = ("qwen3.5-27b", "--no-what-if", "--workload", "agents:n=8,turns=3", *line)
    ran = run("reuse", "-v", *asked, "-np", "3", "-c", "98304")
    assert "safe  --ctx-size 202752 --parallel 8" in ran.out
    once, most = reuse(*asked, "-np", "3", "-c", "98304"), reuse(*asked, "-np", "8", "-c", "202752")
    assert once["token_hit_rate"] < most["token_hit_rate"] == once["knee"]["limit_token_hit_rate"]
    assert most["refused"] == 0 and most["kv_tokens"] == 202_752
    plenty = run("reuse", "-v", *asked, "-np", "3", "-c", "262144")
    assert "safe  --parallel 8" in plenty.out


def test_the_kv_of_a_server_is_its_context() -> None:
    line = ("--", "llama-server", "-m", "qwen3.5-27b.gguf", "-np", "4", "-c", "131072")
    ran = run("reuse", "qwen3.5-27b", "--rest", "60GiB", "--workload", "chat:sessions=4", "--no-what-if", *line)
    assert "KV beside    131,072 tokens  as asked for" in ran.out


def test_a_host_cache_of_a_size_needs_a_model() -> None:
    ran = run("reuse", "--engine", "llama.cpp", "--slots", "2", "--cache-ram", "100", *AGENTS)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: --cache-ram holds as many prompts as they weigh\n       name a MODEL, or write -1: no limit\n"
    )


def test_requests_at_once_take_slots_of_their_own() -> None:
    """A slot that a request runs in is not picked; unified slots share the context, and idle ones are cleared."""
    server = SlotServer(unified=True)
    cache = SlotCache(policy(Settings("llama.cpp", 2, server=server)), 2, server, count_running=True, context=30)
    one, other = Request(("a",), (20,), 20), Request(("b",), (20,), 20)
    run_of_one = cache.start(one)
    with pytest.raises(NoRoom):
        cache.start(other)
    cache.finish(run_of_one)
    assert cache.start(other).hit == 0
    assert (cache.kv_held, cache.evictions, sorted(cache.prompts)) == (20, 1, [0])


def test_a_request_longer_than_the_context_is_refused() -> None:
    server = SlotServer()
    cache = SlotCache(policy(Settings("llama.cpp", 2, server=server)), 2, server, context=1000)
    with pytest.raises(InputError, match="a request of 600 tokens does not fit a slot, whose context is 512"):
        cache.serve(Request(("a",), (601,), 10))
