"""An engine as one object: what it says of itself, and that none is loaded for the sake of another."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Memory, Workload
from hybridcalc.engines import ENGINES, offered
from hybridcalc.engines.ranks import enough_ranks
from hybridcalc.errors import InputError, MemoryUnknown
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB


def test_listing_engines_loads_none_and_one_loads_no_other() -> None:
    code = (
        "import sys; from hybridcalc.engines import ENGINES; [row.title for row in ENGINES.rows.values()];"
        "assert not [m for m in sys.modules if m.startswith(('hybridcalc.engines.sglang', 'hybridcalc.engines.vllm'))];"
        "ENGINES['vllm'].read(['--max-num-seqs', '8'], {}); ENGINES['vllm'].rules(); ENGINES['vllm'].sweeping;"
        "assert not [m for m in sys.modules if m.startswith('hybridcalc.engines.sglang')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_says_what_it_is(name: str) -> None:
    engine = ENGINES[name]
    assert engine.name == name and engine.title == ENGINES.rows[name].title == engine.flags.engine
    assert engine.model_flag in engine.flags.by_spelling
    assert engine.newest == engine.releases[-1] and engine.knows(engine.newest) and not engine.knows("0.0.1")
    assert engine.memory_option in engine.options
    _, args = engine.read([], {})
    assert all(hasattr(args, field) for field in engine.renamed.values())
    assert engine.ranks(args) == 1


def test_only_vllm_takes_requests_as_long_as_it_serves_where_no_length_is_given() -> None:
    assert [name for name in ENGINES if ENGINES[name].own_length] == ["vllm"]


def test_an_option_of_another_engine_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="--available says nothing about SGLang"):
        ENGINES["sglang"].check_options({"available": "8GiB", "rest": None})
    with pytest.raises(InputError, match="--platform says nothing about vLLM"):
        ENGINES["vllm"].check_options({"platform": "hip"})


def test_options_set_the_arguments_of_their_names() -> None:
    engine = ENGINES["vllm"]
    args = engine.with_options(engine.read([], {})[1], {"tp_size": 4, "gpu": find_gpu("b200"), "available": 8.0})
    assert args.tensor_parallel_size == 4 and args.gpu_capability == "10.0" and args.gpu_memory_gib > 150


@pytest.mark.parametrize(
    ("name", "known", "figures"),
    [
        ("sglang", Memory(), ("the GPU",)),
        ("vllm", Memory(), ("the GPU",)),
        ("sglang", Memory(gpu=find_gpu("h100")), ("the weights on a rank",)),
        ("vllm", Memory(gpu=find_gpu("h100")), ("the weights on a rank",)),
    ],
)
def test_a_memory_that_follows_from_nothing_names_what_is_missing(
    name: str, known: Memory, figures: tuple[str, ...]
) -> None:
    engine = ENGINES[name]
    unlisted = load_model("qwen3-next-80b-a3b")._replace(
        name="of nobody", hf_id=None, asked=""
    )  # with no weights known
    with pytest.raises(MemoryUnknown) as unknown:
        engine.memory(unlisted, engine.read([], {})[1], known)
    assert unknown.value.figures == figures


def test_blocks_given_by_hand_need_no_memory() -> None:
    engine, model = ENGINES["vllm"], load_model("qwen3-next-80b-a3b")
    args = engine.read(["--num-gpu-blocks-override", "500", "--max-model-len", "8192"], {})[1]
    rest = engine.memory(model, args, Memory())
    assert engine.plan(model, args, rest, Workload()).to_dict()["num_blocks"] == 500


@pytest.mark.parametrize(("name", "known"), [("sglang", Memory(rest=40.0)), ("vllm", Memory(available=40.0))])
def test_a_plan_says_the_same_of_itself_whatever_the_engine(name: str, known: Memory) -> None:
    engine, model = ENGINES[name], load_model("qwen3-next-80b-a3b")
    args = engine.read(["--tp", "2"] if name == "sglang" else ["-tp", "2"], {})[1]
    plan = engine.plan(model, args, engine.memory(model, args, known), Workload.at(8192))
    assert plan.version == engine.newest and plan.requests > 0 and plan.tokens > 8192
    assert plan.idle_percent is not None and plan.to_dict()["engine"] == name


def test_what_an_engine_lacks_is_said_in_words() -> None:
    with pytest.raises(InputError, match="crossover is not for Toy"):
        offered(None, "crossover", "Toy")
    assert offered(ENGINES["vllm"].crossover, "crossover", "vLLM") is not None


@pytest.mark.parametrize("name", ENGINES)
def test_every_refusal_names_a_stage_of_the_start_up(name: str) -> None:
    """In the source, by name: a stage that nobody lists is a misspelt one."""
    folder = Path(ENGINES[name].part("planner").__file__).parent
    found = {stage for path in folder.glob("*.py") for stage in re.findall(r'stage="([^"]+)"', path.read_text())}
    assert found <= set(ENGINES[name].stages) and len(found) > 2


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_the_fewest_ranks_whose_weights_fit_are_more_than_today_s(name: str) -> None:
    """By the weights of a rank at each size that divides the model, which are below the budget; none where none are."""
    engine, model = ENGINES[name], load_model("qwen3.5-27b")
    args = [engine.with_options(engine.arguments(), {"tp_size": ranks}) for ranks in (1, 2, 4)]
    two, four = (engine.weights(model, one).likely for one in args[1:])
    assert enough_ranks(engine, model, args[0], (two + 1) / GIB).startswith(f"at least {engine.tp_flag} 2: ")
    assert enough_ranks(engine, model, args[0], two / GIB).startswith(f"at least {engine.tp_flag} 4: ")
    assert enough_ranks(engine, model, args[1], 1000.0).startswith(f"at least {engine.tp_flag} 4: ")
    assert enough_ranks(engine, model, args[2], (four + 1) / GIB).startswith(f"at least {engine.tp_flag} 8: ")
    assert enough_ranks(engine, model, args[0], 0.0) == ""
