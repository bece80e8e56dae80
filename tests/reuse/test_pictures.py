"""What pictures of a prefix cache show is what was simulated."""

from __future__ import annotations

import pytest

from hybridcalc.engines.charts import Chart
from hybridcalc.errors import InputError
from hybridcalc.reuse.answer import Reuse, answer
from hybridcalc.reuse.pictures import hits_picture, lost_picture, pictures_of, pools_picture
from hybridcalc.reuse.requests import BlockPool
from hybridcalc.reuse.settings import Settings
from hybridcalc.reuse.simulation import simulate
from hybridcalc.reuse.workloads import parse_workload

WORKLOAD = parse_workload("cyclic:prefixes=60,tokens=1000,rounds=3")


def asked(kv_tokens: int | None = None) -> Reuse:
    return answer(WORKLOAD, Settings("sglang", 40, kv_tokens=kv_tokens), what_if=True)


def curves(chart: Chart) -> dict[str, tuple[tuple[float, float], ...]]:
    return {one.name: one.points for one in chart.series}


def test_hits_against_slots_are_those_of_the_simulation() -> None:
    """Every point of each curve, simulated again."""
    found = asked()
    drawn = curves(hits_picture(found))
    assert len(drawn) > 1
    for slots, percent in drawn["as asked"][1:-1]:
        outcome = simulate(WORKLOAD, found.setup.with_cached(int(slots)))
        assert percent == pytest.approx(100 * outcome.token_hit_rate)
    capped = drawn["mamba-max-states-per-path 2"] if "mamba-max-states-per-path 2" in drawn else drawn["as asked"]
    assert capped[-1][1] <= 100


def test_pools_are_shares_of_what_there_is() -> None:
    found = asked(kv_tokens=30_000)
    drawn = curves(pools_picture(found))
    last = found.outcome.held[-1]
    assert drawn["states"][-1] == pytest.approx((last.requests, 100 * last.cached / 40))
    assert drawn["KV"][-1] == pytest.approx((last.requests, 100 * last.kv_tokens / 30_000))
    assert max(y for _, y in drawn["KV"]) <= 100


def test_which_pool_lost_states_adds_up() -> None:
    """30 prompts' KV beside 40 slots: KV lacks, and takes all the states that go."""
    found = asked(kv_tokens=30_000)
    drawn = curves(lost_picture(found))
    assert drawn["KV lacked"][-1][1] == found.outcome.held[-1].lost_to_kv > 0
    slots_alone = curves(lost_picture(asked()))
    assert slots_alone["slots lacked"][-1][1] == asked().outcome.held[-1].lost_to_slots > 0
    assert slots_alone["KV lacked"][-1][1] == 0
    last = found.outcome.held[-1]
    assert last.lost_to_slots + last.lost_to_kv <= found.outcome.evictions


def test_one_pool_of_blocks_is_drawn_as_shares_of_it() -> None:
    settings = Settings("vllm", 10**4, block_size=64, pool=BlockPool(900, 3, 1))
    found = answer(WORKLOAD, settings, what_if=False)
    drawn = curves(pools_picture(found))
    for states, kv in zip(drawn["states"], drawn["KV"], strict=True):
        assert states[1] + kv[1] <= 100.0001


def test_what_cannot_be_drawn_says_what_is_missing() -> None:
    roomy = answer(WORKLOAD, Settings("sglang", 400), what_if=False, knee=False)
    assert {*pictures_of(roomy)} == {"slots", "hits", "pools", "lost"}
    for draw, message in (
        (hits_picture, "hits against slots need the knee"),
        (pools_picture, "both pools need a limit on KV"),
        (lost_picture, "no state was given up"),
    ):
        with pytest.raises(InputError, match=message):
            draw(roomy)
