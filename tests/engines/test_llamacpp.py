"""llama.cpp's command line, refusals, traps and memory; the issue's own example, from a GGUF header alone."""

from pathlib import Path
from typing import Any

import pytest
from command_line import run
from gguf_files import qwen35_27b

from hybridcalc import llamacpp, load_model
from hybridcalc.architecture.quantization_names import TYPE_MIXES, mix_of
from hybridcalc.deployment import Memory, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.llamacpp.memory import weights_of
from hybridcalc.errors import InputError, NotModelled
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB, MIB

QWEN = "qwen3.5-27b"


def read(*words: str, **env: str) -> Any:
    return ENGINES["llama.cpp"].read(words, env)[1]


def test_a_header_says_what_a_launch_keeps(tmp_path: Path) -> None:
    """KV 2,048.00 MiB in 4 streams of 8,192, states 598.50 MiB, with drafts 2,394.00; checkpoints up to 18.7 GiB."""
    model = load_model(str(qwen35_27b(tmp_path / "q.gguf")))
    plan = llamacpp.plan(model, read("-c", "32768", "-np", "4"))
    ready = plan.ready
    assert (ready.kv_bytes / MIB, ready.streams, ready.n_ctx_seq, ready.state_bytes / MIB) == (2048, 4, 8192, 598.5)
    assert (f"{ready.checkpoint_bytes / MIB:.3f}", f"{plan.checkpoints_bytes / GIB:.1f}") == ("149.626", "18.7")
    drafted = llamacpp.plan(model, read("-c", "32768", "-np", "4", "--spec-type", "draft-mtp"))
    assert (drafted.ready.state_bytes / MIB, drafted.ready.draft_bytes / MIB) == (2394, 128)
    weights = weights_of(plan.ready)
    assert weights is not None and weights.likely * GIB == 5120 * 248320 // 256 * 144 + 5120 * 4


def test_the_command_prints_it(tmp_path: Path) -> None:
    path = qwen35_27b(tmp_path / "q.gguf")
    answer = run("plan", "--", "llama-server", "-m", str(path), "-c", "32768", "-np", "4")
    for said in ("598.50 MiB", "2.00 GiB", "4 streams of 8,192 cells"):
        assert said in answer.out


@pytest.mark.parametrize(
    ("words", "env", "fields"),
    [
        ((), {}, {"n_seq_max": 4, "kv_unified": True}),
        (("-np", "8"), {}, {"n_seq_max": 8, "kv_unified": False}),
        (("-np", "8", "-kvu"), {}, {"n_seq_max": 8, "kv_unified": True}),
        (("-np", "2", "--kv-unified-per-slot", "4096", "-kvu"), {}, {"n_ctx": 8192}),
        (("-fa", "off"), {}, {"flash_attn_type": 0}),
        (
            ("-fa", "auto", "-nkvo", "-ngl", "all"),
            {},
            {"flash_attn_type": -1, "offload_kqv": False, "n_gpu_layers": -2},
        ),
        ((), {"LLAMA_ARG_CTX_SIZE": "4096", "LLAMA_ARG_N_PARALLEL": "2"}, {"n_ctx": 4096, "n_seq_max": 2}),
        (("-c", "512"), {"LLAMA_ARG_CTX_SIZE": "4096"}, {"n_ctx": 512}),
        (("-ngl", "100,100"), {}, {"n_gpu_layers": 100}),
    ],
)
def test_a_line_is_read_as_the_server_reads_it(
    words: tuple[str, ...], env: dict[str, str], fields: dict[str, Any]
) -> None:
    found = read(*words, **env)
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-np", "0"), "--parallel 0"),
        (("-ngl", "many"), "--n-gpu-layers 'many' is not a number of layers"),
        (("-ctk", "q9"), "-ctk 'q9' is not one of"),
        (("--ctx-sise", "5"), "--ctx-sise is not a flag of llama.cpp"),
    ],
)
def test_what_is_no_line(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(*words)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("model", "fields", "rule"),
    [
        ("kimi-k3", {"type_k": "q8_0"}, "HC200"),
        (QWEN, {"type_v": "q8_0", "flash_attn_type": 0}, "HC201"),
        (QWEN, {"n_seq_max": 257}, "HC202"),
        ("nemotron-nano-9b-v2", {"split_mode": "tensor", "flash_attn_type": 0}, "HC201"),
    ],
)
def test_what_llama_cpp_refuses(model: str, fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(llamacpp.Refusal) as caught:
        llamacpp.plan(load_model(model), llamacpp.ContextParams(n_ctx=4096, **fields))
    assert caught.value.rule == rule and caught.value.fix


@pytest.mark.parametrize(
    ("words", "work", "rule"),
    [
        (("-c", "32768", "-np", "8"), Workload.at(8192), "HC210"),
        (("-c", "32768", "--spec-type", "draft-mtp"), Workload(), "HC211"),
        (("-c", "32768"), Workload(), "HC212"),
        (("-c", "32768"), Workload.at(16384), "HC213"),
        ((), Workload(), "HC214"),
        (("-c", "10000", "-np", "3"), Workload(), "HC215"),
        (("-c", "32768", "-np", "2"), Workload.at(512, concurrency=5), "HC216"),
        (("-c", "32768", "-ot", "exps=CPU"), Workload(), "HC218"),
    ],
)
def test_traps_are_found_and_not_without_a_cause(words: tuple[str, ...], work: Workload, rule: str) -> None:
    model = load_model(QWEN)
    assert rule in {finding.rule for finding in llamacpp.plan(model, read(*words), workload=work).findings}
    calm = llamacpp.plan(model, read("-c", "1024", "-np", "1", "--ctx-checkpoints", "4"))
    assert not calm.findings


@pytest.mark.parametrize(("drafts", "each"), [(0, "149.62 MiB"), (1, "299.25 MiB"), (3, "598.50 MiB")])
def test_a_slot_more_costs_a_state_and_its_copies(drafts: int, each: str) -> None:
    """A recorded load: 149.62 MiB for one sequence of Qwen3.5-27B, 299.25 MiB for two or with one copy."""
    args = llamacpp.ContextParams(n_ctx=32768, n_seq_max=2, n_rs_seq=drafts)
    plan = llamacpp.plan(load_model(QWEN), args, workload=Workload.at(512, concurrency=5))
    [found] = [one for one in plan.findings if one.rule == "HC216"]
    assert found.fix == f"write --parallel 5: {each} of state each"
    lines = {line.name: line.allocated_bytes for line in plan.budget}
    assert lines.get("copies of states", 0) == drafts * lines["states"]
    assert lines["states"] == pytest.approx(2 * 149.625 * MIB, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "copies", "slots", "reason"),
    [
        (QWEN, 0, 1, "one state a slot"),
        (QWEN, 2, 3, "the state and 2 copies to roll 2 draft tokens back"),
        ("llama-3-8b", 2, 0, "no recurrent layer"),
    ],
)
def test_a_sequence_has_its_state_and_the_copies(model: str, copies: int, slots: int, reason: str) -> None:
    plan = llamacpp.plan(load_model(model), llamacpp.ContextParams(n_ctx=4096, n_rs_seq=copies))
    assert (plan.slots_per_request, plan.slots_reason) == (slots, reason)


def test_a_card_that_is_too_small_is_a_warning_and_one_with_room_is_none() -> None:
    """--fit starts the server all the same, with layers on the host; without a card nothing is said."""
    model, args = load_model("qwen3.6-27b:Q4_K_M"), read("-c", "65536", "-np", "4", "--ctx-checkpoints", "1")
    engine = ENGINES["llama.cpp"]

    def found(memory: Memory) -> list[str]:
        return [one.rule for one in engine.plan(model, args, engine.memory(model, args, memory), Workload()).findings]

    assert found(Memory(gpu=find_gpu("8GiB"))) == found(Memory(gpu=find_gpu("16GiB"))) == ["HC219"]
    assert found(Memory(gpu=find_gpu("48GiB"))) == found(Memory()) == []
    assert found(Memory(available=4.0)) == ["HC219"] and found(Memory(available=5.0)) == []


def test_only_some_kinds_roll_states_back() -> None:
    """Falcon-H1 keeps no copies for drafts, and the plan says so."""
    plan = llamacpp.plan(load_model("falcon-h1-34b"), llamacpp.ContextParams(n_ctx=4096, n_rs_seq=3))
    assert plan.ready.copies == 0 and "HC217" in {finding.rule for finding in plan.findings}


def test_fit_shrinks_a_context_that_nobody_set() -> None:
    """In steps of 256 cells a stream; one that was set is refused where --fit is off."""
    model, rest = load_model(QWEN), exact_rest(4.0)
    plan = llamacpp.plan(model, read(), rest=rest)
    ready = plan.ready
    assert ready.n_ctx % 256 == 0 and plan.caches_bytes <= 4 * GIB < plan.caches_bytes + 256 * ready.kv_bytes_per_token
    with pytest.raises(llamacpp.Refusal) as caught:
        llamacpp.plan(model, read("-c", "262144", "--fit", "off"), rest=rest)
    assert caught.value.rule == "HC204" and caught.value.fix == f"write --ctx-size {ready.n_ctx}"


@pytest.mark.parametrize(
    ("name", "mix"),
    [("qwen3.5-27b-Q4_K_M.gguf", "Q4_K_M"), ("a/b-GGUF:UD-Q2_K_XL", "Q2_K_XL"), ("m:q8_0", "Q8_0"), ("m.gguf", None)],
)
def test_the_mix_of_a_name(name: str, mix: str | None) -> None:
    assert mix_of(name) == mix


def test_weights_by_the_mix_are_an_interval() -> None:
    found = weights_of(llamacpp.plan(load_model("qwen3.6-35b-a3b:Q4_K_M"), llamacpp.ContextParams(n_ctx=256)).ready)
    assert found is not None and found.low < found.likely < found.high
    assert all(low <= likely <= high for low, likely, high in TYPE_MIXES.values())


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("qwen3.5-27b:Q4_K_M", "qwen3.5-27b-Q4_K_M.gguf"),
        ("Qwen3.5-27B-Q4_K_M.gguf", "Qwen3.5-27B-Q4_K_M.gguf"),
        ("Qwen3.5-27B-Q4_K_M.GGUF", "Qwen3.5-27B-Q4_K_M.GGUF"),
    ],
)
def test_a_launch_loads_the_file_that_was_named_or_one_of_the_mix(name: str, file: str) -> None:
    assert ENGINES["llama.cpp"].file_of(load_model(name)) == file


@pytest.mark.parametrize("name", ["qwen3.5-27b:Q4_K_M", "qwen3.5-27b-Q4_K_M.gguf"])
def test_a_plan_says_the_mix_of_its_model(name: str) -> None:
    answer = run("plan", "--", "llama-server", "-m", name, "-c", "4096")
    assert "(Q4_K_M)" in answer.out and "bf16" not in answer.out and "(gguf)" not in answer.out


def test_what_llama_cpp_does_not_know_is_said() -> None:
    with pytest.raises(NotModelled, match=r"no model of llama\.cpp"):
        llamacpp.plan(load_model("zamba2-7b"), llamacpp.ContextParams(n_ctx=4096))
    with pytest.raises(NotModelled, match="nothing says how its file is stored"):
        ENGINES["llama.cpp"].weights(load_model("qwen3.5-27b"), llamacpp.ContextParams())


@pytest.mark.parametrize(("gpu", "fits"), [("2xrtx-3090", "fits"), ("rtx-4090", "does not fit")])
def test_a_plan_says_what_all_of_it_takes_of_the_cards(gpu: str, fits: str) -> None:
    """Weights, caches and compute buffers, whose bounds add up."""
    import hybridcalc
    from hybridcalc.engines.llamacpp.view import figures

    line = "llama-server -m Qwen3.6-35B-A3B-Q6_K.gguf -c 1048576 -np 1 -ctk q8_0 -ctv q8_0"
    plan: Any = hybridcalc.plan(line, gpu=gpu)
    whole = figures(plan)[0]
    likely = plan.caches_bytes / 2**30 + sum(part.likely for part in plan.rest.parts)
    assert whole.label == "all of it" and whole.value == f"{likely:.2f}"
    assert whole.why.endswith(f": {fits}")


@pytest.mark.parametrize(
    ("name", "why"), [("qwen3.5-9b", "batches of 512 (-ub)"), ("unheard-of", "the model's sizes are not known")]
)
def test_compute_buffers_are_counted_where_the_vocabulary_is_known(name: str, why: str) -> None:
    """Else they are bounds alone."""
    model = load_model("qwen3.5-9b")._replace(name=name)
    known = Memory(gpu=find_gpu("rtx-4090"), weights=10.0)
    rest = ENGINES["llama.cpp"].memory(model, llamacpp.ContextParams(n_ctx=8192), known)
    [scratch] = [part for part in rest.parts if part.name == "compute"]
    assert scratch.why == why


@pytest.mark.parametrize("n_ctx", [0, 8192])
def test_weights_are_the_same_at_any_context(n_ctx: int) -> None:
    """Of a model without a trained length too."""
    named = load_model("qwen3.5-9b-Q4_K_M.gguf")
    known = ENGINES["llama.cpp"].weights(named, llamacpp.ContextParams(n_ctx=4096))
    found = ENGINES["llama.cpp"].weights(named._replace(max_context=None), llamacpp.ContextParams(n_ctx=n_ctx))
    assert (found.low, found.high) == (known.low, known.high)


@pytest.mark.parametrize(("sequences", "streams"), [(1, ""), (2, " x 2 streams")])
def test_cells_are_said_by_stream_where_there_are_several(sequences: int, streams: str) -> None:
    """Llama-3-8B: 32 layers of 8 x 128 values in fp16."""
    args = llamacpp.ContextParams(n_ctx=4096, n_seq_max=sequences)
    kv = llamacpp.plan(load_model("llama-3-8b"), args).budget[0]
    assert kv.why == f"32 layers x {4096 // sequences:,} cells{streams} x (2,048 + 2,048) B"
