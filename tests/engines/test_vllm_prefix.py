"""What vLLM reuses of a shared prefix: the published 3,840 of 4,000, whole units for any lengths, and finer units."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import load_model
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.pages import Prepared, Sizing
from hybridcalc.engines.vllm.planner import prepare, size
from hybridcalc.engines.vllm.suggest import PrefixReuse, finest_reuse, prefix_reuse
from hybridcalc.units import GIB

NEMOTRON, NEXT = "nemotron-h-8b", "qwen3-next-80b-a3b"
ALL: dict[str, Any] = {"engine_version": "0.22.1", "enable_prefix_caching": True}
MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}


def started(model: str = NEMOTRON, **flags: Any) -> tuple[Prepared, Sizing]:
    ready = prepare(load_model(model), EngineArgs(max_model_len=8192, **flags))
    return ready, size(ready, 60 * GIB)


def reuse(shared: int, private: int, *given: str, **flags: Any) -> PrefixReuse:
    return prefix_reuse(*started(*given, **flags), shared, private)


def test_4000_shared_and_200_private_tokens_reuse_3840() -> None:
    """0.22.1, mode all, blocks of 1,280: three of them; 360 tokens are computed. Of 900 shared ones nothing is."""
    found = reuse(4000, 200, **ALL)
    assert (found.reused, found.computed, found.unit, found.why) == (3840, 360, 1280, "3 x 1,280 tokens")
    short = reuse(900, 200, **ALL)
    assert (short.reused, short.computed, short.why) == (0, 1100, "a hit needs 1,280 shared tokens")


@pytest.mark.parametrize(
    ("flags", "shared", "private", "reused"),
    [
        ({}, 4000, 200, 3120),
        ({}, 1039, 200, 0),
        ({}, 1040, 1, 1040),
        ({}, 1040, 0, 0),
        ({}, 1041, 0, 1040),
        ({"prefix_match_unit": 16}, 4000, 200, 4000),
        ({"prefix_match_unit": 16}, 4000, 0, 3984),
        ({"prefix_match_unit": 16}, 900, 200, 896),
        ({"prefix_match_unit": 208}, 900, 200, 832),
        ({"enable_prefix_caching": False}, 4000, 200, 0),
        ({**MTP, "model": NEXT}, 4000, 200, 2304 + 576),
        ({**MTP, "model": NEXT}, 1000, 200, 0),
        ({"model": "llama-3-8b"}, 4000, 200, 4000),
        ({"model": "llama-3-8b"}, 4001, 200, 4000),
        ({**ALL, "mamba_cache_mode": "align"}, 4000, 200, 3120),
    ],
)
def test_hits_land_on_whole_units(flags: dict[str, Any], shared: int, private: int, reused: int) -> None:
    """The last token is always computed; drafts compute the block before it as well."""
    assert reuse(shared, private, **flags).reused == reused


def test_sparse_retention_serves_the_third_request() -> None:
    """The second one leaves the state at the junction; without a state, or with dense retention, the next does."""
    assert "from the third request on" in reuse(4000, 200).why
    assert "third" not in reuse(4000, 200, prefix_cache_retention_interval=None).why
    assert "third" not in reuse(4000, 200, "llama-3-8b").why


def test_a_hit_under_drafts_needs_two_units() -> None:
    assert reuse(1000, 200, NEXT, **MTP).why == "a hit needs 1,152 shared tokens"
    assert reuse(1152, 200, NEXT, **MTP).reused == 576


STARTED = {
    name: started(**flags)
    for name, flags in {
        "align": {},
        "unit": {"prefix_match_unit": 208},
        "all": ALL,
        "off": {"enable_prefix_caching": False},
        "drafts": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}, "model": NEXT},
        "attention": {"model": "llama-3-8b"},
    }.items()
}


@given(st.sampled_from(sorted(STARTED)), st.integers(1, 50_000), st.integers(0, 5_000))
def test_what_is_reused_is_whole_units_of_what_is_shared(name: str, shared: int, private: int) -> None:
    """Never more than is shared, never the last token; one more shared token never reuses less."""
    ready, sizing = STARTED[name]
    found = prefix_reuse(ready, sizing, shared, private)
    assert 0 <= found.reused <= shared and found.reused < shared + private
    assert found.reused % found.unit == 0
    assert found.reused + found.computed == shared + private
    assert prefix_reuse(ready, sizing, shared + 1, private).reused >= found.reused
    drops = found.unit if name == "drafts" else 0
    if ready.prefix_caching:
        assert found.reused > min(shared, shared + private - 1) - found.unit - drops


@given(st.integers(1, 20_000), st.integers(0, 500))
def test_the_finest_unit_is_the_best_of_all_that_the_engine_takes(shared: int, private: int) -> None:
    """Against every multiple of 16 that divides the block."""
    ready, sizing = STARTED["align"]
    best = finest_reuse(ready, sizing, shared, private)
    every = [reuse(shared, private, prefix_match_unit=unit).reused for unit in (16, 80, 208, 1040)]
    assert best.reused == max(every)
    if best.reused > prefix_reuse(ready, sizing, shared, private).reused:
        assert reuse(shared, private, prefix_match_unit=best.unit).reused == best.reused


def test_no_finer_unit_is_looked_for_where_there_is_none() -> None:
    """0.22.1 hits whole blocks alone."""
    assert finest_reuse(*started(**ALL), 900, 200).reused == 0
    assert finest_reuse(*started(enable_prefix_caching=False), 4000, 200).reused == 0


@pytest.mark.parametrize(
    ("method", "drops"),
    [
        ("mtp", True),
        ("qwen3_next_mtp", True),
        ("deepseek_mtp", True),
        ("eagle", True),
        ("eagle3", True),
        ("MTP", True),
        ("ngram", False),
        ("suffix", False),
        ("draft_model", False),
        ("medusa", False),
        ("eagle3x", False),
        (None, False),
    ],
)
def test_drafts_of_the_model_s_own_layers_compute_one_unit_more(method: str | None, drops: bool) -> None:
    """They need the hidden states of the block before."""
    ready, sizing = started("llama-3-8b")
    config = None if method is None else {"method": method, "num_speculative_tokens": 1}
    asked = ready._replace(args=ready.args.changed(speculative_config=config))
    assert prefix_reuse(asked, sizing, 160, 8).reused == (144 if drops else 160)
    short = prefix_reuse(asked, sizing, 16, 8)
    assert (short.reused, short.why) == ((0, "a hit needs 32 shared tokens") if drops else (16, "1 x 16 tokens"))
