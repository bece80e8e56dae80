"""SGLang arguments that came without a command line meet its bounds and choices."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model, sglang
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import BOUNDS, ServerArgs, check_arguments
from hybridcalc.engines.sglang.balance import balance_model
from hybridcalc.engines.sglang.crossover import compare
from hybridcalc.engines.sglang.flags import TABLE, from_words
from hybridcalc.errors import HybridcalcError, InputError

MODEL = load_model("kimi-k3")
ODD: tuple[Any, ...] = (
    0,
    -1,
    10**18,
    10**400,
    10**5000,
    "x",
    "",
    -0.5,
    1e300,
    float("nan"),
    float("inf"),
    True,
    None,
    [],
    {},
    ("a",),
)
COUNTS = sorted(name for name, flag in BOUNDS.flags.items() if flag.kind in ("int", "tokens") and flag in TABLE.flags)


def test_every_argument_has_its_bounds() -> None:
    """One that is added without a flag would be taken whatever it is."""
    assert set(BOUNDS.names) <= set(BOUNDS.flags)
    assert set(BOUNDS.names) | {"env", "engine_version", "uncounted", "names"} == {
        field.name for field in fields(ServerArgs)
    }
    check_arguments(ServerArgs())


@pytest.mark.parametrize("name", [field.name for field in fields(ServerArgs)])
def test_an_odd_value_is_an_answer_or_one_line(name: str) -> None:
    """Nothing but an answer or an error of this library comes of any value, and its line is short."""
    for value in ODD:
        try:
            sglang.plan(MODEL, ServerArgs(**dict[str, Any]({"tp_size": 8} | {name: value})), rest_gib=28.55)
        except HybridcalcError as error:
            said = error.message
        else:
            said = ""
        assert len(said) < 300


@given(name=st.sampled_from(COUNTS), value=st.integers(-(2**45), 2**45) | st.integers(-2, 5000))
def test_python_and_the_command_line_agree_on_numbers(name: str, value: int) -> None:
    """What the one takes the other takes."""
    try:
        TABLE.read([f"{BOUNDS.flags[name].spellings[0]}={value}"])
        taken = True
    except InputError:
        taken = False
    if taken:
        check_arguments(ServerArgs(**dict[str, Any]({name: value})))
        return
    with pytest.raises(InputError, match=f"^{name} {value} is not a whole number from "):
        check_arguments(ServerArgs(**dict[str, Any]({name: value})))


def test_what_the_command_line_reads_passes() -> None:
    """Whatever a launch command gives is within its own bounds."""
    words = ["--tp", "8", "--context-length", "128Ki", "--mamba-full-memory-ratio", "1.5", "--mem-fraction-static", "1"]
    check_arguments(from_words([*words, "--disable-overlap-schedule"], {"A": "b"})[1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda args: sglang.plan(MODEL, args, rest_gib=28.55),
        lambda args: balance_model(MODEL, args, Workload.at(9216)),
        lambda args: compare(MODEL, None, args),
    ],
    ids=["plan", "balance", "crossover"],
)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp_size": 0}, "tp_size 0 is not a whole number from 1 to 4,096"),
        ({"tp_size": 10**400}, "tp_size a number of hundreds of digits is not a whole number from 1 to 4,096"),
        ({"page_size": -1}, "page_size -1 is not a whole number from 1 to 1,048,576"),
        ({"context_length": 10**18}, "context_length 1000000000000000000 is not a whole number from 1 to "),
        ({"mamba_radix_cache_strategy": "x"}, "mamba_radix_cache_strategy 'x' is not one of "),
        ({"mamba_full_memory_ratio": 0}, "mamba_full_memory_ratio 0 is not a number above 0 and at most 1,000,000"),
        ({"enable_dp_attention": 1}, "enable_dp_attention 1 is not true or false"),
        ({"platform": "abacus"}, "platform 'abacus' is not one of cuda"),
        ({"env": {"A": 1}}, "env: 'A': 1 is not text"),
        ({"speculative_num_draft_tokens": 4}, "--speculative-num-draft-tokens has no effect alone"),
        ({"speculative_algorithm": "DFLASH"}, "--speculative-algorithm DFLASH needs a number of draft tokens"),
        ({"tp_size": 8, "dp_size": 3, "enable_dp_attention": True}, "--dp-size 3 does not divide --tp-size 8"),
    ],
)
def test_every_question_asks_the_same_of_its_arguments(
    ask: Callable[..., Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        ask(ServerArgs(**given))
    assert caught.value.message.startswith(said)


def test_kv_of_a_draft_that_its_layers_price_is_no_figure_of_a_plan() -> None:
    """SGLang model_executor/pool_configurator.py: DSPARK and DFLASH alone have a cell of their own."""
    drafts: dict[str, Any] = {"tp_size": 8, "speculative_num_draft_tokens": 4, "draft_kv_bytes_per_token": 4096}
    sglang.plan(MODEL, ServerArgs(speculative_algorithm="DFLASH", **drafts), rest_gib=28.55)
    with pytest.raises(InputError, match=r"(?m)^SGLang prices the KV of an EAGLE draft by its layers$") as caught:
        sglang.plan(MODEL, ServerArgs(speculative_algorithm="EAGLE", **drafts), rest_gib=28.55)
    assert caught.value.fix == "give --draft-layers N"
