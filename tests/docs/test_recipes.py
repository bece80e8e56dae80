"""Recipes that engines publish, planned as they stand, beside what their authors measured."""

from __future__ import annotations

import pytest
import recipes

from hybridcalc.errors import Refusal

COOKBOOK = recipes.cells("sglang")
VLLM = recipes.cells("vllm")
HELD = {
    ("h200", "Qwen3.6-35B-A3B"): 72, ("h200", "Qwen3.6-35B-A3B-FP8"): 122,
    ("h200", "Qwen3.6-27B"): 39, ("h200", "Qwen3.6-27B-FP8"): 54,
    ("b200", "Qwen3.6-35B-A3B"): 121, ("b200", "Qwen3.6-35B-A3B-FP8"): 171,
    ("b200", "Qwen3.6-27B"): 60, ("b200", "Qwen3.6-27B-FP8"): 75,
    ("b300", "Qwen3.6-35B-A3B"): 235, ("b300", "Qwen3.6-35B-A3B-FP8"): 284,
    ("b300", "Qwen3.6-27B"): 107, ("b300", "Qwen3.6-27B-FP8"): 122,
}  # fmt: skip
"""Requests by exact weights and 0.6 GiB of context, as recomputed by hand for the 12 cells of BF16 and FP8."""


def test_every_cell_of_the_cookbook_is_there_once() -> None:
    named = [(each.recipe["gpu"], each.recipe["line"]) for each in COOKBOOK]
    assert len(named) == len(set(named)) == 16
    assert set(HELD) <= {(gpu, line.split("/")[1].split()[0]) for gpu, line in named}


@pytest.mark.parametrize("each", COOKBOOK, ids=lambda each: each.recipe["gpu"] + " " + each.recipe["line"][27:50])
def test_fewer_decode_than_a_server_holds_and_the_balanced_ratio_holds_more(each: recipes.Cell) -> None:
    """Some requests are in prefill: what decodes is less than what is held, and not by an order."""
    name = each.recipe["line"].split("/")[1].split()[0]
    assert each.decoding is not None
    assert each.plan.binding == "state"
    assert 0.55 < each.decoding / each.plan.requests < 0.82
    assert 1.15 < each.plan.balanced.state_requests / each.plan.requests < 1.52
    held = HELD.get((each.recipe["gpu"], name))
    assert held is None or abs(held - each.plan.requests) <= 0.01 * held


@pytest.mark.parametrize(
    "each", [each for each in VLLM if each.recipe["pool_tokens"]], ids=lambda each: each.recipe["line"]
)
def test_pools_of_a_recipe_lie_in_what_is_planned(each: recipes.Cell) -> None:
    """With the weights that it states and the rules of its build: what caching and KV dtype it was follows from the
    fraction of the length that its token figure is.
    """
    tokens = int(each.recipe["pool_tokens"])
    ready, length = each.plan.ready, each.plan.max_model_len
    assert each.plan.low.tokens <= tokens <= each.plan.high.tokens
    blocks = -(-tokens * each.plan.blocks_per_request // length)
    assert int(blocks / each.plan.blocks_per_request * length) == tokens  # no other number of blocks a request does
    assert ready.mode == "align"


def test_a_line_of_a_guide_is_refused_and_the_same_recipe_limited_to_512_starts() -> None:
    """Qwen3.6-27B-FP8 on one H100: the default of 1,024 sequences exceeds the blocks of state."""
    bare, limited = (each.plan for each in VLLM if "Qwen3.6-27B-FP8" in each.recipe["line"])
    assert isinstance(bare, Refusal)
    assert "exceeds the 831 blocks" in bare.message
    assert limited.requests > 0
