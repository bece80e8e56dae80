"""``fit`` for llama.cpp: files by type mix, slots that every card holds for certain, nothing that would hold more."""

from pathlib import Path
from typing import Any

import pytest
from command_line import run
from gguf_files import qwen35_27b

from hybridcalc import fit, load_model
from hybridcalc.deployment import Memory, Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.llamacpp.fit import FITTING, MIXES
from hybridcalc.engines.llamacpp.memory import compute_buffer, weighed
from hybridcalc.engines.llamacpp.placement import placed
from hybridcalc.engines.llamacpp.planner import prepare
from hybridcalc.errors import InputError, Refusal
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB

ENGINE = ENGINES["llama.cpp"]


def held(model: Any, args: Any, gpu: str) -> bool:
    """Whether every card holds its part, by the estimates' high ends."""
    ready, card = prepare(model, args), find_gpu(gpu)
    found, buffers = weighed(ready), compute_buffer(ready)
    assert found is not None and buffers is not None
    return all(
        each.weights * found.bytes_of[2] + each.kv + each.state + buffers.high <= (card.engine_gib - 1) * GIB
        for each in placed(ready, found.layers).cards
    )


@pytest.mark.parametrize("name", ["qwen3.5-9b:Q4_K_M", "granite-4.0-h-small:Q4_K_M", "lfm2-8b-a1b:Q8_0"])
@pytest.mark.parametrize("cards", [1, 2, 3])
@pytest.mark.parametrize("length", [1000, 32768])
def test_as_many_slots_as_cards_hold(name: str, cards: int, length: int) -> None:
    """One slot more is held by no card, or is beyond the 256 that there are."""
    model, card, work = load_model(name), find_gpu("rtx-4090"), Workload(((length, 1),))
    args = ENGINE.with_options(ENGINE.arguments(), {"gpu": card}).changed(cards=cards)
    args = FITTING.started(args, work)
    rest = ENGINE.memory(model, args, Memory(gpu=card))
    if not held(model, args.changed(n_ctx=-(-length // 256) * 256), "rtx-4090"):
        with pytest.raises(Refusal, match="are left for certain"):
            FITTING.tuned(model, args, rest, work, None)
        return
    tuned = FITTING.tuned(model, args, rest, work, None)
    assert held(model, tuned, "rtx-4090") and prepare(model, tuned).n_ctx_seq >= length
    more = tuned.changed(n_seq_max=tuned.n_seq_max + 1, n_ctx=tuned.n_ctx // tuned.n_seq_max * (tuned.n_seq_max + 1))
    assert tuned.n_seq_max == 256 or not held(model, more, "rtx-4090")
    plan = ENGINE.plan(model, tuned, ENGINE.memory(model, tuned, Memory(gpu=card)), work)
    assert plan.requests == tuned.n_seq_max


def test_the_cheapest_has_the_fewest_bits_that_it_needs() -> None:
    """One card with a small mix before two with whole weights; among as many cards the one that gives up less."""
    (best, *_) = fit("qwen3.5-9b", length=8192, concurrency=2, gpu="rtx-4090", engine="llama.cpp").deployments
    assert best.gpus == 1 and best.requests >= 2
    launch = " ".join(best.launch["argv"])
    assert launch.startswith("llama-server --model qwen3.5-9b-") and "--parallel" in launch
    named = fit("qwen3.5-9b:Q6_K", length=8192, concurrency=2, gpu="rtx-4090", engine="llama.cpp").deployments
    assert {made.model.asked for made in named} == {"qwen3.5-9b:Q6_K"}


def test_files_are_those_of_the_engine(tmp_path: Path) -> None:
    """Checkpoints that other tools quantised are none; a file is itself, and a model has one of every mix."""
    base, fp8 = load_model("qwen3.5-27b"), load_model("Qwen/Qwen3.5-27B-FP8")
    assert [each.asked for each in FITTING.checkpoints((base, fp8, base))] == [f"qwen3.5-27b:{mix}" for mix in MIXES]
    file = load_model(str(qwen35_27b(tmp_path / "q.gguf")))
    assert tuple(FITTING.checkpoints((file,))) == (file,)


def test_which_models_fit(tmp_path: Path) -> None:
    asked = ("fit", "--gpu", "rtx-4090", "--engine", "llama.cpp", "-L", "8k")
    answer = run(*asked)
    assert answer.code == 0 and "llama-server --model" in answer.out
    assert {row["engine"] for row in run(*asked, "--json").document["models"]} == {"llama.cpp"}
    too_long = run("fit", "qwen3.5-27b", "--engine", "llama.cpp", "--gpu", "h200", "-L", "1M", "-C", "1")
    assert too_long.code == 1 and "beyond the context" in " ".join(
        run(
            "fit", "qwen3.5-27b", "--engine", "llama.cpp", "--gpu", "h200", "-L", "1M", "-C", "1", "--explain"
        ).out.split()
    )


def test_it_is_searched_where_it_is_named() -> None:
    found = fit("qwen3.5-9b", length=8192, concurrency=2, gpu="rtx-4090")
    assert "llama.cpp" not in {made.engine.name for made in found.deployments}


def test_weights_by_the_mix() -> None:
    answer = run("weights", "qwen3.5-27b:Q4_K_M", "--engine", "llama.cpp")
    assert answer.code == 0 and "qwen3.5-27b:Q4_K_M" in answer.out
    assert "nothing says how its file is stored" in run("weights", "qwen3.5-27b", "--engine", "llama.cpp").err
    with pytest.raises(InputError):
        fit("qwen3.5-9b", length=8192, concurrency=2, engine="ollama")
