"""What flags decide without memory holds with it: each rule says itself which figures it needs."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.answer import decide
from hybridcalc.errors import InputError, Refusal
from hybridcalc.findings import LENGTH, MEMORY, PREFIX, WANTED, Finding, Rule, settled

MODELS = ("kimi-k3", "qwen3-next-80b-a3b", "nemotron-h-8b", "lfm2-1.2b", "glm-5.3-flash", "falcon-h1-34b")
WORDS = {
    "sglang": (
        "--tp 8", "--pp 2", "--max-mamba-cache-size 8", "--max-mamba-cache-size 255", "--max-running-requests 4",
        "--mamba-radix-cache-strategy extra_buffer_lazy", "--mamba-full-memory-ratio 2", "--disable-radix-cache",
        "--speculative-algorithm EAGLE --speculative-num-draft-tokens 4", "--enable-linear-replayssm-spec",
        "--context-length 4096", "--page-size 64", "--dcp-size 2", "--mamba-ssm-dtype bfloat16",
        "--linear-replayssm-cache-len 3", "--tp 8 --dp-size 4 --enable-dp-attention",
    ),
    "vllm": (
        "-tp 2", "--max-model-len 4096", "--max-model-len auto", "--max-num-seqs 8", "--block-size 1024",
        "--kv-cache-dtype fp8", "--mamba-cache-mode all", "--mamba-cache-mode none", "--no-enable-prefix-caching",
        "--mamba-ssm-cache-dtype bfloat16", "--num-gpu-blocks-override 400", "--prefix-match-unit 16",
        '--speculative-config {"method":"ngram","num_speculative_tokens":3}',
    ),
}  # fmt: skip
WORKLOADS = (Workload(), Workload.at(9216), Workload(((9216, 1),), 40), Workload(((9216, 1),), 40, None, 4000, 500))


def asked(engine: Any, words: Any) -> Any:
    """The arguments of a few flags."""
    return ENGINES[engine].read([word for part in words for word in part.split()], {})[1]


def attempted(engine: Any, model: Any, args: Any, work: Any) -> Any:
    """A plan on much memory, or the rule of what refuses it."""
    try:
        return engine.plan(model, args, exact_rest(500.0), work), ""
    except Refusal as refusal:
        return None, refusal.rule


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_decided_without_memory_is_found_with_it(data: Any) -> None:
    """A trap that needs no memory is told in the same words by the plan, and a refusal stops it with any memory."""
    name = data.draw(st.sampled_from(sorted(WORDS)))
    words = data.draw(st.lists(st.sampled_from(WORDS[name]), unique=True, max_size=5))
    model, work = load_model(data.draw(st.sampled_from(MODELS))), data.draw(st.sampled_from(WORKLOADS))
    engine = ENGINES[name]
    try:
        args = asked(name, words)
        decided = engine.decide(model, args, work)
    except InputError:
        return
    found, waiting = {finding.rule: finding for finding in decided.findings}, dict(decided.waiting)
    assert not set(found) & set(waiting)
    if decided.refused:
        assert (len(found), waiting) == (1, {})
        assert attempted(engine, model, args, work)[0] is None
        return
    planned, later = attempted(engine, model, args, work)
    if planned is None:
        assert later in waiting or later in found
        return
    told = {finding.rule: finding.message for finding in planned.findings}
    spared = settled({rule.id: rule for rule in engine.rules()}, found)
    for rule in engine.rules():
        if rule.check is None or rule.id in waiting or rule.id in spared or rule.asks is not None:
            continue
        assert told.get(rule.id) == (found[rule.id].message if rule.id in found else None), rule.id


@pytest.mark.parametrize("name", sorted(WORDS))
def test_what_needs_nothing_but_memory_is_judged_with_it(name: Any) -> None:
    """Nothing but memory is missing where the workload is told: the rules that need more are those that say so."""
    engine, model = ENGINES[name], load_model("kimi-k3")
    args = asked(name, ["--tp 8" if name == "sglang" else "-tp 8"])
    nothing = dict(engine.decide(model, args, Workload()).waiting)
    told = dict(engine.decide(model, args, WORKLOADS[-1]).waiting)
    assert {need for needs in told.values() for need in needs} == {str(MEMORY)}
    for rule in engine.rules():
        if rule.asks is None:
            judged = not rule.given or rule.given in vars(args)
            assert nothing.get(rule.id, ()) == (tuple(map(str, rule.needs)) if judged else ())
            assert (rule.id in told) == (judged and MEMORY in rule.needs)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_a_finding_points_at_flags_that_the_engine_has(name: Any) -> None:
    """The place of a rule, and the flags it rests on, by the first spelling of each."""
    engine = ENGINES[name]
    spellings = {flag.spellings[0] for flag in engine.flags.flags}
    for rule in engine.rules():
        assert set(rule.place) <= spellings, rule.id
        assert rule.rests_on is None or rule.rests_on <= spellings, rule.id
        assert set(rule.needs) <= {MEMORY, LENGTH, WANTED, PREFIX}


class Plan:
    """A launch of a toy."""

    def __init__(self, limit: Any) -> None:
        self.limit = limit


def _seen(plan: Any) -> Iterator[Any]:
    yield f"limit {plan.limit}", "raise it"


TOY = (
    Rule("T1", "error", "refused", "", "", needs=(MEMORY,)),
    Rule("T2", "note", "always judged", "", "", _seen),
    Rule("T3", "note", "needs a length", "", "", _seen, needs=(LENGTH,)),
    Rule("T4", "note", "needs memory where there is a limit", "", "", _seen, needs=(MEMORY,),
         asks=lambda plan: (MEMORY,) if plan.limit else None),
)  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "work", "found", "waiting"),
    [
        (0, Workload(), ["T2"], {"T1": (str(MEMORY),), "T3": (str(LENGTH),)}),
        (0, Workload.at(8), ["T2", "T3"], {"T1": (str(MEMORY),)}),
        (4, Workload.at(8), ["T2", "T3"], {"T1": (str(MEMORY),), "T4": (str(MEMORY),)}),
    ],
)
def test_rules_are_judged_as_far_as_their_figures_are_known(limit: Any, work: Any, found: Any, waiting: Any) -> None:
    decided = decide(TOY, lambda: Plan(limit), work)
    assert [finding.rule for finding in decided.findings] == found
    assert dict(decided.waiting) == waiting
    assert all(type(need) is str for _, needs in decided.waiting for need in needs)


def test_a_launch_that_does_not_start_is_refused_and_nothing_else_is_asked() -> None:
    def unsized() -> None:
        raise Refusal("no such pool", stage="strategy", rule="T1", fix="leave it out")

    assert decide(TOY, unsized, Workload()) == ((Finding("T1", "error", "no such pool", "leave it out"),), (), True)
