"""Synthetic workloads: what they send, that they can be replayed, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest
from present import present

from hybridcalc.errors import InputError
from hybridcalc.reuse import requests
from hybridcalc.reuse.policy import Policy
from hybridcalc.reuse.requests import MOST_LENGTHS, Request, planned_workload
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.vllm import vllm_policy
from hybridcalc.reuse.workloads import KINDS, MOST_TURNS, parse_workload

SMALL = {
    "cyclic": "cyclic:prefixes=5,rounds=3,tail=10,system=7",
    "chat": "chat:sessions=4,turns=3,growth=5,system=9,rounds=2",
    "fanout": "fanout:parents=2,agents=3,steps=2,rounds=2", "rag": "rag:documents=6,rounds=3",
    "shared": "shared:prompts=2,rounds=5",
    "agents": "agents:n=4,turns=3,history=50,tool=20,think=9s,rounds=2,rate=2/s",
    "batch": "batch:n=9,prompts=2,rounds=2",
}  # fmt: skip


def first(request: Request) -> int:
    """The number by which a synthetic workload names the first run."""
    name = request.ids[0]
    assert isinstance(name, int)
    return name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", ["", ",preempt=0.5"])
def test_a_workload_says_how_many_requests_and_rounds_it_has_and_replays_them(kind: str, more: str) -> None:
    workload = parse_workload(SMALL[kind] + more, seed=5)
    requests = list(workload.stream())
    assert len(requests) == workload.requests
    assert {request.round for request in requests} == set(range(present(workload.rounds)))
    assert requests == list(workload.stream())
    for request in requests:
        assert len(request.ids) == len(request.ends)
        assert all(low < high for low, high in pairwise((0, *request.ends)))
        assert 0 < request.prompt <= request.ends[-1]
        assert 0 <= request.preempted < max(request.ends[-1] - request.prompt, 1)


def test_the_seed_decides_what_is_drawn() -> None:
    texts = [parse_workload("rag:documents=50,rounds=1", seed=seed) for seed in (1, 1, 2)]
    first, same, other = (list(workload.stream()) for workload in texts)
    assert first == same != other


def test_private_runs_are_never_shared() -> None:
    """Only what a generator says is shared has a name that comes twice in different places."""
    requests = list(parse_workload("shared:tokens=100,private=50,rounds=30").stream())
    names = [name for request in requests for name in request.ids[1:]]
    assert len(names) == len(set(names))


def test_a_turn_starts_with_all_that_was_said_before() -> None:
    requests = list(parse_workload("chat:sessions=3,turns=4,growth=10,system=20,think=5").stream())
    for request in requests:
        if request.round:
            before = [other for other in requests if other.round == request.round - 1]
            assert any(request.ids[: len(other.ids)] == other.ids for other in before)


def test_popular_documents_come_more_often() -> None:
    requests = list(parse_workload("rag:documents=100,rounds=20,zipf=1.2,system=0").stream())
    first = sum(request.ids[0] == 1 for request in requests)
    assert first > 5 * sum(request.ids[0] == 50 for request in requests) > 0


def test_agents_take_a_long_history_along() -> None:
    """The first prompt is the history, each later one all before it and the result of a tool."""
    requests = list(parse_workload("agents:n=1,history=20k,turns=3,tool=2k,output=100").stream())
    assert [request.prompt for request in requests] == [20480, 20480 + 100 + 2048, 20480 + 2 * (100 + 2048)]
    assert requests[2].ids[: len(requests[1].ids)] == requests[1].ids


@pytest.mark.parametrize(("text", "seconds"), [("60", 60), ("60s", 60), ("1.5min", 90), ("2h", 7200), ("250ms", 0.25)])
def test_pauses_have_units_of_time(text: str, seconds: float) -> None:
    assert f"think {seconds:,}" in parse_workload(f"chat:think={text}").description


def test_sessions_that_begin_by_and_by_are_open_together_only_as_far_as_they_overlap() -> None:
    """One a second, three turns of some seconds: few are between their first and last turn at a time."""
    starts, open_now, most = set[int](), dict[int, int](), 0
    for request in parse_workload("chat:sessions=400,turns=3,think=2s,rate=1/s").stream():
        name = first(request)
        starts.add(name)
        open_now[name] = open_now.get(name, 0) + 1
        if open_now[name] == 3:
            del open_now[name]
        most = max(most, len(open_now))
    assert len(starts) == 400
    assert not open_now
    assert 3 < most < 40


def test_a_batch_is_sorted_by_what_is_in_front() -> None:
    fronts = [first(request) for request in parse_workload("batch:n=10,prompts=3").stream()]
    assert fronts == sorted(fronts)
    assert len(set(fronts)) == 3


def test_workloads_at_once_are_spread_over_each_other_and_share_nothing() -> None:
    """A quarter of the requests are of the one, wherever one looks; each is as it was alone, under other names."""
    parts = ["chat:sessions=10,turns=3,system=50", "cyclic:prefixes=30,rounds=3"]
    workload = parse_workload("+".join(parts))
    requests = list(workload.stream())
    assert workload.requests == len(requests) == 120
    chats = [request for request in requests if first(request) % 2 == 0]
    assert len(chats) == 30
    assert all(4 <= sum(first(one) % 2 == 0 for one in requests[at : at + 20]) <= 6 for at in range(0, 120, 20))
    alone = [request.ends for request in parse_workload(parts[0]).stream()]
    assert [request.ends for request in chats] == alone
    assert not {name for one in chats for name in one.ids} & {
        name for one in requests if first(one) % 2 for name in one.ids
    }
    assert requests == list(workload.stream())


def test_a_million_requests_are_streamed() -> None:
    """The first of them come at once."""
    workload = parse_workload("chat:sessions=1000,turns=10,rounds=100")
    assert workload.requests == 1_000_000
    assert len(list(islice(workload.stream(), 5))) == 5


NO_PARAMETER = " is not one of its parameters"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            "cyclc:prefixes=3",
            "--workload 'cyclc:prefixes=3' is neither a kind of workload nor a file",
            "write cyclic:...",
        ),
        ("cyclic:prefix=3", "--workload cyclic: 'prefix=3'" + NO_PARAMETER, "write cyclic:prefixes=3; it takes pref"),
        ("chat:users=40", "--workload chat: 'users=40'" + NO_PARAMETER, "write chat:sessions=40; it takes sessions, "),
        ("agents:agents=9", "--workload agents: 'agents=9'" + NO_PARAMETER, "write agents:n=9; it takes n, history, "),
        ("rag:users=9", "--workload rag: 'users=9'" + NO_PARAMETER, "it takes documents, tokens, "),
        ("cyclic:prefixes", "--workload cyclic: prefixes has no value", "write prefixes=384"),
        ("cyclic:prefixes=9,rounds=2,prefixes=9", "--workload cyclic: prefixes is given twice", "leave one of them"),
        ("cyclic:prefixes=0", "--workload cyclic: prefixes=0: not a whole number from 1 to 1,000,000", ""),
        ("cyclic:tokens=1G", "--workload cyclic: tokens=1G: '1G' is not a token count", "write 9216"),
        ("cyclic:tokens=129M", "--workload cyclic: tokens=129M: not a whole number from 1 to 134,217,728", ""),
        ("cyclic:prefixes=1.5", "--workload cyclic: prefixes=1.5: not a whole number from 1 to 1,000,000", ""),
        ("chat:preempt=\u0660.\u0665", "--workload chat: preempt=\u0660.\u0665 is not a number", "write one like 1.0"),
        ("chat:turns=1001", "--workload chat: turns=1001: not a whole number from 1 to 1,000", ""),
        ("fanout:steps=1001", "--workload fanout: steps=1001: not a whole number from 1 to 1,000", ""),
        ("chat:sessions=1000000,turns=11", "--workload chat: sessions x turns is 11,000,000", "at most 10,000,000"),
        ("fanout:agents=1000000", "--workload fanout: parents x agents x steps is 48,000,000", "at most 10,000,000"),
        (
            "rag:rounds=1000000",
            "--workload rag: that is 200,000,000 requests; at most 100,000,000 are simulated",
            "write fewer rounds",
        ),
        ("cyclic:prefixes=x", "--workload cyclic: prefixes=x: not a whole number from 1 to 1,000,000", ""),
        ("chat:think=5x", "--workload chat: think=5x is not a number", "write one like 60s or 1.5min"),
        ("agents:rate=2s", "--workload agents: rate=2s is not a number", "write one like 2/s or 90/min"),
        ("agents:n=0", "--workload agents: n=0: not a whole number from 1 to 1,000,000", ""),
        ("chat+", "--workload '' is neither a kind of workload nor a file", "write cyclic:..."),
        ("+".join(["rag"] * 17), "--workload: 17 workloads at once; at most 16 are simulated", "leave some out"),
        ("cyclic:zipf=x", "--workload cyclic: zipf=x is not a number", "write one like 1.0"),
        ("cyclic:zipf=nan", "--workload cyclic: zipf=nan: not a number from 0 to 10", ""),
        ("chat:preempt=2", "--workload chat: preempt=2: not a number from 0 to 1", ""),
        ("chat:sessions=10M", "--workload chat: sessions=10M: not a whole number from 1 to 1,000,000", ""),
    ],
)
def test_what_is_wrong_with_a_workload_is_named(text: str, message: str, fix: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_workload(text)
    assert refused.value.message == message
    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize("text", ["chat:sessions=1000000,turns=5", "cyclic:rounds=200000"])
def test_a_plan_counts_only_so_many_requests(text: str) -> None:
    with pytest.raises(InputError, match="sends more than 4,194,304 requests,"):
        planned_workload(parse_workload(text))


def test_a_plan_counts_only_so_many_requests_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_PLANNED", 9)
    recorded = parse_workload("cyclic:prefixes=5,rounds=2")._replace(requests=None)
    with pytest.raises(InputError, match="sends more than 9 requests"):
        planned_workload(recorded)


def test_the_longest_conversation_allowed_is_simulated_in_few_steps_for_each_turn_before_a_turn(
    steps: Callable[..., Any],
) -> None:
    def simulated(turns: int) -> Callable[..., Any]:
        return lambda: simulate(parse_workload(f"chat:sessions=2,turns={turns}"), Setup(sglang_policy(), 64))

    outcome = simulated(MOST_TURNS)()
    assert outcome.hits == outcome.requests - 2
    assert steps(simulated(MOST_TURNS // 4)) < 10 * (MOST_TURNS // 4) ** 2


@pytest.mark.parametrize(
    "policy",
    [
        sglang_policy(prefill_chunk=64),
        vllm_policy(16, prefill_chunk=64),
        vllm_policy(16, retention=None),
        vllm_policy(16, every_block=True),
    ],
)
@pytest.mark.parametrize("text", ["cyclic:prefixes=1,tokens=128M", "cyclic:prefixes=1,tokens=1,output=128M"])
def test_a_request_that_would_leave_states_without_end_is_refused_at_once(
    policy: Policy, text: str, steps: Callable[..., Any]
) -> None:
    if text.endswith("output=128M") and policy.retention == 0:  # of an answer the last state alone is kept, or none
        assert simulate(parse_workload(text), Setup(policy, 4)).most_cached <= 4
        return
    if policy.retention is None and not policy.every_block and policy.prefill_chunk > 64 and "output" not in text:
        assert simulate(parse_workload(text), Setup(policy, 4)).evictions > 4  # chunks of 8,192 tokens are few
        return

    def refuse() -> Any:
        with pytest.raises(InputError, match="leave more than 16,384 states of one request") as refused:
            simulate(parse_workload(text), Setup(policy, 4))
        return refused

    refused = refuse()
    assert steps(refuse) < 10_000
    assert refused.value.fix.startswith("write a larger --")


def test_lengths_of_a_workload_are_handed_to_the_planners() -> None:
    """Prompt and answer of each request; the total never shrinks when neighbours are taken together."""
    planned = planned_workload(parse_workload("shared:tokens=1500,private=700,output=100,rounds=7"), concurrency=3)
    assert (planned.lengths, planned.concurrency, planned.wanted) == (((2300, 7),), 3, 3)
    workload = parse_workload("chat:sessions=2,turns=800,user=10,output=5")
    planned = planned_workload(workload)
    assert planned.wanted is None
    assert len(planned.lengths) <= MOST_LENGTHS
    assert sum(count for _, count in planned.lengths) == 1600
    held = sum(request.ends[-1] for request in workload.stream())
    assert held <= sum(tokens * count for tokens, count in planned.lengths) <= held * 1.01
