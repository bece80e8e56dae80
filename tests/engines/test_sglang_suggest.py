"""What a plan suggests: every effect is what the engine's own start-up makes of the flags suggested."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model, sglang
from hybridcalc.deployment import KINDS, Rest, Workload, exact_rest
from hybridcalc.engines.better import MOST
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.flags import from_words
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.engines.sglang.settings import unified_requests
from hybridcalc.errors import HybridcalcError
from hybridcalc.findings import Suggestion, safest_first

K3 = "--tp 8 --mamba-ssm-dtype float32 --kv-cache-dtype fp8_e4m3"
EAGLE = "--speculative-algorithm EAGLE --speculative-num-draft-tokens 4"
DSPARK = "--speculative-algorithm DSPARK --speculative-dspark-block-size 3"
WORKERS = "--tp 16 --dp 2 --enable-dp-attention"
EFFECT = re.compile(r"([0-9,]+) -> ([0-9,]+) requests? of [0-9,]+ tokens?")


def arguments(flags: str, draft_layers: int = 0) -> ServerArgs:
    """ServerArgs of a launch line's flags, with variables before them as a shell takes them."""
    words = flags.split()
    env = {word.partition("=")[0]: word.partition("=")[2] for word in words if word[0] != "-" and "=" in word}
    model, args = from_words([word for word in words if word.partition("=")[0] not in env], env)
    assert model is None
    return replace(args, draft_layers=draft_layers)


def planned(
    name: str,
    flags: str,
    rest: float | Rest = 28.55,
    length: int = 9216,
    kind: str | None = None,
    concurrency: None = None,
) -> Plan:
    """A plan of a model under a launch line's flags."""
    rest = rest if isinstance(rest, Rest) else exact_rest(rest)
    return sglang.plan(
        load_model(name), arguments(flags), rest=rest, workload=Workload(((length, 1),), concurrency, kind)
    )


def effect(suggestion: Suggestion) -> tuple[int, int] | None:
    """From and to of a suggestion; None where it promises no requests."""
    match = EFFECT.fullmatch(suggestion.effect)
    if match is None:
        return None
    before, after = (int(figure.replace(",", "")) for figure in match.groups())
    return before, after


def replanned(name: str, flags: str, suggestion: Suggestion, rest: float, length: int) -> int:
    """Requests that run once the suggested flags stand behind those there are."""
    variables: list[str] = []
    added: list[str] = []
    for word in suggestion.flags.split():
        (variables if word[0] != "-" and "=" in word else added).append(word)
    plan = planned(name, " ".join([*variables, flags, *added]), rest, length)
    return plan.requests


CASES = {
    "state binds": ("kimi-k3", K3, 28.55, 9216),
    "KV binds": ("kimi-k3", f"{K3} --mamba-full-memory-ratio 9", 28.55, 9216),
    "nearly balanced": ("kimi-k3", f"{K3} --mamba-full-memory-ratio 2.2", 28.55, 9216),
    "bf16 everywhere": ("kimi-k3", "--tp 8 --mamba-ssm-dtype bfloat16", 28.55, 9216),
    "dcp": ("kimi-k3", f"{K3} --dcp-size 8 --mamba-full-memory-ratio 9", 27.62, 9216),
    "K given": ("kimi-k3", f"{K3} --max-mamba-cache-size 200", 28.55, 9216),
    "K given, KV binds": ("kimi-k3", f"{K3} --max-mamba-cache-size 480", 28.55, 9216),
    "limit binds": ("kimi-k3", f"{K3} --max-running-requests 20", 28.55, 9216),
    "limit above": ("kimi-k3", f"{K3} --max-running-requests 60", 28.55, 9216),
    "the 48 of speculation": ("kimi-k3", f"{K3} {EAGLE}", 60.0, 9216),
    "speculation, state binds": ("kimi-k3", f"{K3} {EAGLE} --max-running-requests 400", 60.0, 9216),
    "draft chains": ("qwen3-next-80b-a3b", f"--tp 2 {EAGLE} --max-running-requests 400", 60.0, 9216),
    "replay": ("qwen3-next-80b-a3b", f"--tp 2 {EAGLE} --enable-linear-replayssm-spec", 60.0, 9216),
    "DSPARK": ("qwen3-next-80b-a3b", f"--tp 2 {DSPARK} --max-running-requests 400", 60.0, 9216),
    "radix off": ("kimi-k3", f"{K3} --disable-radix-cache", 28.55, 9216),
    "radix off, limit": ("kimi-k3", f"{K3} --disable-radix-cache --max-running-requests 40", 28.55, 9216),
    "two workers": ("kimi-k3", f"{K3} {WORKERS}", 28.55, 9216),
    "two workers, limit": ("kimi-k3", f"{K3} {WORKERS} --max-running-requests 20", 28.55, 9216),
    "stages": ("kimi-k3", f"{K3} --pp 2", 28.55, 9216),
    "the engine's own limit": ("lfm2-350m", "", 60.0, 256),
    "windows": ("inkling", "--tp 8", 60.0, 9216),
    "pages": ("glm-5.3-flash", "--tp 8", 28.55, 32_768),
    "decode server": ("kimi-k3", f"{K3} --disaggregation-mode decode --max-running-requests 24", 28.55, 9216),
    "no attention": ("falcon-mamba-7b", "", 0.34, 5),
    "unified": ("kimi-k3", f"{K3} --enable-unified-memory", 28.55, 9216),
    "one token": ("kimi-k3", "--tp 8", 1.0, 1),
}


@pytest.mark.parametrize(("name", "flags", "rest", "length"), CASES.values(), ids=CASES)
def test_every_effect_is_what_planning_its_flags_gives(name: str, flags: str, rest: float, length: int) -> None:
    """From: the plan as it is. To: the suggested flags behind those there are, parsed and planned again."""
    plan = planned(name, flags, rest, length)
    for suggestion in plan.suggestions:
        before, after = present(effect(suggestion))
        assert before == plan.requests < after
        assert replanned(name, flags, suggestion, rest, length) == after
        assert (suggestion.before, suggestion.after) == (before, after)


@pytest.mark.parametrize("case", ["state binds", "K given", "limit binds", "the 48 of speculation", "draft chains"])
def test_there_is_something_to_suggest(case: str) -> None:
    """The replanning above does not run over empty lists."""
    assert len(planned(*CASES[case]).suggestions) >= 4


@given(
    st.sampled_from(["kimi-k3", "qwen3-next-80b-a3b", "nemotron-h-8b", "lfm2-350m", "inkling", "ling-2.6-flash"]),
    st.floats(0.5, 500),
    st.integers(1, 1_000_000),
    st.sampled_from([None, *KINDS]),
    st.sampled_from(["", EAGLE, "--max-mamba-cache-size 90", "--max-running-requests 9", "--pp 2"]),
)
@settings(max_examples=60)
def test_suggestions_are_few_sorted_distinct_and_never_worse(
    name: str, rest: float, length: int, kind: str | None, flags: str
) -> None:
    """Whatever the model, the memory and the length: as many as can be read, the safest first, none refused."""
    flags = f"--tp 8 {flags}"
    try:
        plan = planned(name, flags, rest, length, kind)
    except HybridcalcError:
        return
    found = plan.suggestions
    assert len(found) <= MOST + 1 <= 9
    assert found == safest_first(found)
    assert len({s.flags for s in found}) == len(found)
    for suggestion in found:
        promised = effect(suggestion)
        if promised is None:
            assert suggestion.before == suggestion.after and arguments(f"{flags} {suggestion.flags}") != plan.args
        else:
            assert promised[0] == plan.requests < promised[1]
            assert replanned(name, flags, suggestion, rest, length) == promised[1]


def flags_for(kind: str | None, flags: str = K3, name: str = "kimi-k3") -> list[str]:
    """The flags suggested for a kind of work that would not be suggested without it."""
    plain = {suggestion.flags for suggestion in planned(name, flags).suggestions}
    return [s.flags for s in planned(name, flags, kind=kind).suggestions if s.flags not in plain]


@pytest.mark.parametrize(
    ("kind", "flags", "suggested"),
    [
        ("long", K3, "--mamba-track-interval 1024 --mamba-max-states-per-path 4"),
        (
            "long",
            f"{K3} --page-size 2048 --mamba-track-interval 2048",
            "--mamba-track-interval 2048 --mamba-max-states-per-path 4",
        ),
        ("agent", K3, "--mamba-track-interval 64"),
        ("agent", f"{K3} {EAGLE} --speculative-num-draft-tokens 100", "--mamba-track-interval 100"),
        ("batch", K3, "--disable-radix-cache --mamba-full-memory-ratio 0.441"),
        (
            "small",
            "--tp 8 --dcp-size 8",
            "--mamba-ssm-dtype bfloat16 --kv-cache-dtype fp8_e4m3 --mamba-full-memory-ratio 9.12",
        ),
    ],
)
def test_a_kind_of_work_brings_its_own(kind: str, flags: str, suggested: str) -> None:
    """Snapshots for long documents and short turns, one slot a request for batches, half of both caches for small."""
    assert flags_for(kind, flags) == [suggested]


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("long", f"{K3} --mamba-track-interval 1024 --mamba-max-states-per-path 4"),
        ("long", f"{K3} --disable-radix-cache"),
        ("agent", f"{K3} --mamba-track-interval 64"),
        ("agent", f"{K3} --mamba-track-interval 32"),
        ("agent", f"{K3} --page-size 256"),
        ("agent", f"{K3} --disable-radix-cache"),
        ("batch", f"{K3} --disable-radix-cache"),
        ("small", "--tp 8 --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16"),
        (None, K3),
    ],
)
def test_what_is_set_already_is_not_suggested(kind: str | None, flags: str) -> None:
    """Nor what makes a shorter interval longer, nor snapshots where no prefix is kept."""
    assert flags_for(kind, flags) == []


@pytest.mark.parametrize("kind", ["long", "agent"])
def test_the_intervals_suggested_start(kind: str) -> None:
    """The engine takes them: whole pages, no less than the draft tokens of a step."""
    flags = f"{K3} {EAGLE} --speculative-num-draft-tokens 100 --page-size 32 --mamba-track-interval 256"
    (suggested,) = flags_for(kind, flags)
    assert planned("kimi-k3", f"{flags} {suggested}").max_running_requests > 0


def test_without_a_length_there_is_nothing_to_serve_better() -> None:
    """Requests of unknown length cannot be weighed."""
    args = arguments(K3)
    assert sglang.plan(load_model("kimi-k3"), args, rest_gib=28.55).suggestions == ()


def test_a_larger_fraction_is_planned_with_the_memory_it_brings() -> None:
    """Two per cent of what was free before the weights, and no more than 0.95; only where that is known."""
    flags, before = f"{K3} --mem-fraction-static 0.85", 100.0
    plan = planned("kimi-k3", flags, Rest(28.55, 28.55, 28.55, "", before))
    (larger,) = [s for s in plan.suggestions if s.flags.startswith("--mem-fraction-static")]
    assert larger.flags.startswith("--mem-fraction-static 0.87 ")
    assert present(effect(larger))[1] == replanned("kimi-k3", flags, larger, 28.55 + 0.02 * before, 9216)
    assert larger.why == "13.00 GiB are left for activations and graphs, of 15.00"
    for fraction, known in ((0.94, before), (0.85, None)):
        plan = planned("kimi-k3", f"{K3} --mem-fraction-static {fraction}", Rest(28.55, 28.55, 28.55, "", known))
        assert not [s for s in plan.suggestions if "--mem-fraction-static" in s.flags]


def test_unified_memory_is_suggested_for_what_it_holds() -> None:
    """KV binds, slots idle: one pool holds more, as many as the unified plan runs."""
    flags = f"{K3} --mamba-full-memory-ratio 9"
    plan = planned("kimi-k3", flags)
    (unified,) = [s for s in plan.suggestions if s.flags == "--enable-unified-memory"]
    again = planned("kimi-k3", f"{flags} --enable-unified-memory")
    held = unified_requests(again.ready, again.sizing, present(again.workload.mean_length))
    assert effect(unified) == (plan.requests, min(held, again.max_running_requests))
    assert again.concurrency == present(effect(unified))[1]


def test_no_pin_is_suggested_that_the_flag_does_not_take() -> None:
    """10**9 slots at most, of memory that holds more: 3 slots a request, and one of a thousand million for each."""
    [found] = sglang.plan(load_model("lfm2-350m"), ServerArgs(), rest_gib=1e5, workload=Workload.at(4)).suggestions
    assert found.flags == "--max-mamba-cache-size 749999998 --max-running-requests 249999999"
