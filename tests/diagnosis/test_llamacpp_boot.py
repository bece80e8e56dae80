"""A llama.cpp load: its caches to the token and the sequence, its buffers summed, the model that stores just that."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.architecture.families import PleConv
from hybridcalc.bootlog.boots import merged
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Question, diagnose
from hybridcalc.diagnosis.llamacpp_models import caches, fitting, state_bytes, states
from hybridcalc.diagnosis.view import printed_picture

RECORDED = json.loads((Path(__file__).resolve().parent.parent / "data" / "vectors" / "llamacpp.json").read_text())
KV = "llama_kv_cache: size = {0} MiB ({1:>6} cells, {2:>3} layers, {3:>2}/{4} seqs), K ({5}): {6} MiB, V ({7}): {8} MiB"
RS = (
    "llama_memory_recurrent: size = {0} MiB ({1:>6} cells, {2:>3} layers, {3:>2} seqs {4:>2} rs_seq), "
    "R ({5}): {6} MiB, S ({7}): {8} MiB"
)


def answers(text: str, **question: Any) -> list[Any]:
    return list(diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question(**question)))


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"{case['model']}-{case['args']}")
def test_the_model_of_every_recorded_load_is_found(case: dict[str, Any]) -> None:
    """What the engine printed for 64 settings of eight models: the model is among those that fit, its state exact."""
    lines = [KV.format(*case["kv"][0]), RS.format(*case["rs"][0])]
    [found] = answers("\n".join(lines))
    sizes = RECORDED["models"][case["model"]]
    state = 4 * sizes["state_layers"] * (sizes["r"] + sizes["s"])
    assert case["model"] in [candidate.model for candidate in found.candidates]
    assert {candidate.state_bytes for candidate in found.candidates} == {state}
    assert found.derived.state_copies == 1 + int(case["rs"][0][4])
    assert found.constants.state_bytes_per_slot[0] <= state <= found.constants.state_bytes_per_slot[1]


def test_cells_are_those_of_one_stream() -> None:
    """4/4 seqs: 1,280 MiB over 4 x 16,384 cells are 20 KiB a token; 4/1 seqs share all cells."""
    line = "llama_kv_cache: size = 1280.00 MiB ( 16384 cells,  10 layers,  4/{} seqs), K (f16): 640.00 MiB\n"
    assert answers(line.format(4))[0].derived.kv_bytes_per_cell == 20 * 1024
    assert answers(line.format(1))[0].derived.kv_bytes_per_cell == 80 * 1024


def test_equal_buffers_of_two_devices_are_two() -> None:
    line = "llama_kv_cache:      CUDA{} KV buffer size =  4096.00 MiB\n"
    [found] = answers(line.format(0) + line.format(1) + line.format(1))
    assert found.derived.buffers_bytes == {"KV": 8 * 2**30}


def test_the_zeros_of_a_rehearsal_are_no_load() -> None:
    rehearsal = (
        "load_tensors: CUDA0 model buffer size = 0.00 MiB\nllama_kv_cache: CUDA0 KV buffer size = 0.00 MiB\n"
        "llama_memory_recurrent: CUDA0 RS buffer size = 149.62 MiB\n"
        "sched_reserve: CUDA0 compute buffer size = 999.00 MiB\n"
    )
    load = rehearsal.replace(" 0.00", " 2048.00").replace("999.00", "498.00")
    assert answers(rehearsal) == []
    boots = assemble(scan(io.BytesIO((rehearsal + load).encode()))).boots
    assert merged(boots) == {
        "weights_buffer_mib": 2048.0,
        "kv_buffer_mib": 2048.0,
        "rs_buffer_mib": 149.62,
        "compute_buffer_mib": 498.0,
    }


def test_a_retry_that_goes_through_is_a_start() -> None:
    failed = (
        "llama_kv_cache: CUDA0 KV buffer size = 2048.00 MiB\n"
        "ggml_cuda_alloc_buffer: allocating 421.00 MiB on device 1: cudaMalloc failed: out of memory\n"
        "graph_reserve: failed to allocate compute buffers\n"
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
    )
    assert "does not start" in answers(failed)[0].headline
    [found] = answers(failed + "sched_reserve:      CUDA0 compute buffer size =   498.00 MiB\n")
    assert "does not start" not in found.headline
    assert [finding.rule for finding in found.findings] == ["HC154"]
    loaded_again = failed + "load_tensors: CUDA0 model buffer size = 512.00 MiB\n" + failed.replace("421", "420")
    assert ["does not start" in found.headline for found in answers(loaded_again)] == [True, True]


def test_context_checkpoints_are_host_memory() -> None:
    """Two checkpoints of different lengths part the state from what each token adds."""
    line = "created context checkpoint {} of 32 (pos_min = 1, pos_max = 9, n_tokens = {}, size = {} MiB)\n"
    [found] = answers(line.format(1, 8192, 181.782) + line.format(2, 16384, 213.783))
    assert found.derived.checkpoint_bytes_per_token == 4096
    assert found.derived.checkpoint_state_bytes / 2**20 == pytest.approx(149.78, abs=0.01)
    assert [finding.rule for finding in found.findings] == ["HC153"]


@pytest.mark.parametrize("sizes", [(1.782, 213.783), (213.783, 181.782)])
def test_checkpoints_that_no_state_makes_have_none(sizes: tuple[float, float]) -> None:
    """A damaged figure: neither a state nor a token below zero is told of it."""
    line = "created context checkpoint {} of 32 (pos_min = 1, pos_max = 9, n_tokens = {}, size = {} MiB)\n"
    [found] = answers(line.format(1, 8192, sizes[0]) + line.format(2, 16384, sizes[1]))
    assert found.derived.checkpoint_bytes_per_token is found.derived.checkpoint_state_bytes is None
    assert "no state" in found.findings[0].message


def test_a_named_model_decides_and_one_that_does_not_fit_is_said() -> None:
    caches = "\n".join(
        (
            KV.format("256.00", 4096, 16, 1, 1, "f16", "128.00", "f16", "128.00"),
            RS.format("149.62", 1, 64, 1, 0, "f32", "5.62", "f32", "144.00"),
        )
    )
    said = "llama_model_loader: loaded meta data with 40 key-value pairs and 851 tensors from /models/{} (version 3)\n"
    [found] = answers(said.format("Qwen3.6-27B-UD-Q4_K_XL.gguf") + caches)
    assert found.model_guess == "qwen3.6-27b"
    [found] = answers(said.format("Unknown-27B-Q8_0.gguf") + caches)
    assert found.model_guess == "Unknown-27B" and found.candidates
    [found] = answers(caches, model=load_model("qwen3.5-9b"))
    assert [finding.rule for finding in found.findings][-1:] != [] and "HC101" in {one.rule for one in found.findings}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("qwen3.6-27b", []),
        ("qwen3.5-9b", ["16 layers with KV are printed, the model has 8"]),
        ("qwen3-next-80b-a3b", ["16 layers with KV are printed, the model has 12"]),
    ],
)
def test_layers_of_the_caches_are_held_against_those_of_the_model(model: str, said: list[str]) -> None:
    caches = KV.format("256.00", 4096, 16, 1, 1, "f16", "128.00", "f16", "128.00")
    [found] = answers(caches, model=load_model(model))
    messages = [one.message.partition(": ")[2] for one in found.findings]
    assert [part for message in messages for part in message.split("; ") if "layers with KV" in part] == said
    assert ("HC101" in {one.rule for one in found.findings}) == bool(said)


def test_what_is_wanted_is_held_against_slots_and_cells() -> None:
    caches = "\n".join(
        (
            KV.format("256.00", 4096, 16, 2, 2, "f16", "128.00", "f16", "128.00"),
            RS.format("299.25", 2, 64, 2, 0, "f32", "11.25", "f32", "288.00"),
        )
    )
    [found] = answers(caches, workload=Workload(((2048, 1),), 8))
    [short] = [finding for finding in found.findings if finding.rule == "HC155"]
    assert "8 requests are wanted, 2 run" in short.message and "-np 8" in short.fix
    [found] = answers(caches, workload=Workload(((2048, 1),), 2))
    assert "HC155" not in [finding.rule for finding in found.findings]


def checkpoint(number: int, tokens: int, size: float, most: int = 32) -> str:
    """The line of a context checkpoint."""
    return (
        f"created context checkpoint {number} of {most} (pos_min = 1, pos_max = 9, n_tokens = {tokens}, "
        f"size = {size:.3f} MiB)\n"
    )


def test_one_checkpoint_is_all_state_and_every_slot_keeps_its_own() -> None:
    """By the size of the longest, for as many as are kept of each of the slots."""
    [found] = answers(checkpoint(1, 8192, 150.0))
    assert found.derived.checkpoint_state_bytes == 150 * 2**20
    assert found.derived.checkpoint_bytes_per_token == 0
    assert found.derived.checkpoints_bytes == 32 * 150 * 2**20
    [told] = found.findings
    assert " a token" not in told.message and "up to 32 a slot are kept" in told.message
    level = checkpoint(1, 100, 8.0) + checkpoint(2, 1100, 8.0)
    [found] = answers(level)
    assert (found.derived.checkpoint_state_bytes, found.derived.checkpoint_bytes_per_token) == (8 * 2**20, 0)
    [found] = answers(checkpoint(1, 1000, 8.0) + checkpoint(2, 2000, 16.0))
    assert (found.derived.checkpoint_state_bytes, found.derived.checkpoint_bytes_per_token) == (0, 8389)
    slots = "srv    load_model: initializing slots, n_slots = 4\n"
    [found] = answers(slots + checkpoint(1, 8192, 150.0, most=3))
    assert found.derived.checkpoints_bytes in (4 * 3 * 150 * 2**20, 3 * 150 * 2**20)


@pytest.mark.parametrize(
    ("streams", "length", "wanted", "runs", "rule"),
    [
        (2, 4096, 2, 2, ""),
        (2, 4097, 2, 0, "HC151"),
        (1, 2048, 2, 2, ""),
        (1, 2049, 2, 1, "HC155"),
        (1, 4096, 1, 1, ""),
        (1, 4097, 1, 0, "HC151"),
        (2, 4096, 3, 2, "HC155"),
    ],
)
def test_requests_fit_the_cells_of_a_stream_or_share_those_of_all(
    streams: int, length: int, wanted: int, runs: int, rule: str
) -> None:
    """4,096 cells: of each of two sequences, or of both together."""
    caches = "\n".join(
        (
            KV.format("256.00", 4096, 16, 2, streams, "f16", "128.00", "f16", "128.00"),
            RS.format("299.25", 2, 64, 2, 0, "f32", "11.25", "f32", "288.00"),
        )
    )
    [found] = answers(caches, workload=Workload(((length, 1),), wanted))
    assert found.derived.requests == runs
    told = [one for one in found.findings if one.rule in ("HC151", "HC155")]
    assert [one.rule for one in told] == ([rule] if rule else [])
    if rule == "HC151":
        assert told[0].fix == f"-c {length * streams} at least" + ("" if streams > 1 else " for each sequence")
        assert told[0].message.endswith("4,096 cells of a stream" if streams > 1 else "4,096 cells")
    if rule == "HC155":
        assert told[0].fix.startswith(f"-np {wanted} -c {length * wanted}: the states then take ")
        assert told[0].message == f"{wanted} requests are wanted, {runs} run at once"


@pytest.mark.parametrize(("batch", "fix"), [(1024, "-ub 512"), (2, "-ub 1"), (1, "a smaller -ub")])
def test_a_compute_buffer_that_does_not_fit_wants_half_the_batch(batch: int, fix: str) -> None:
    text = (
        f"llama_context: n_ubatch      = {batch}\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 1401.75 MiB "
        "on device 0: cudaMalloc failed: out of memory\ngraph_reserve: failed to allocate compute buffers\n"
    )
    [found] = answers(text)
    [error] = [one for one in found.findings if one.severity == "error"]
    assert error.fix.startswith(f"{fix}: the buffer grows with the batch")


def test_buffers_on_the_host_are_told_apart() -> None:
    lines = (
        "load_tensors: CUDA0 model buffer size = 2048.00 MiB\n"
        "load_tensors: CPU_Mapped model buffer size = 512.00 MiB\n"
        "llama_kv_cache: CUDA0 KV buffer size = 256.00 MiB\n"
        "sched_reserve: CUDA0 compute buffer size = 100.00 MiB\n"
        "sched_reserve: CUDA_Host compute buffer size = 20.00 MiB\n"
        "sched_reserve: CUDA0 compute buffer size = 120.00 MiB\n"
    )
    [found] = answers(lines)
    mib = 2**20
    assert found.derived.buffers_bytes == {"weights": 2560 * mib, "KV": 256 * mib, "compute": 140 * mib}
    assert found.derived.host_buffers_bytes == 532 * mib
    [whole] = [row for row in found.rows if row.place == "in all"]
    assert (whole.what, whole.arithmetic) == ("2.89 GiB", "532.00 MiB of it on the host")


def test_a_picture_of_a_load_has_its_weights_caches_and_buffers() -> None:
    sizes = {"model": 2048, "KV": 256, "RS": 128, "compute": 64}
    [found] = answers("".join(f"x: CUDA0 {name} buffer size = {size}.00 MiB\n" for name, size in sizes.items()))
    parts = {part.name: part.bytes >> 20 for part in printed_picture(found).bars[0].parts}
    assert parts == {"weights": 2048, "KV pool": 256, "state pool": 128, "activations": 64}


@pytest.mark.parametrize(("kinds", "totals"), [(["KV"], []), (["KV", "compute"], ["512.00 MiB"])])
def test_buffers_of_several_kinds_are_summed(kinds: list[str], totals: list[str]) -> None:
    """One kind alone is its own sum."""
    [found] = answers("".join(f"llama_kv_cache: CUDA0 {kind} buffer size = 256.00 MiB\n" for kind in kinds))
    assert [row.what for row in found.rows if row.place == "in all"] == totals


DRAFT = {
    "none": ("", 1, True),
    "announced": ("srv load_model: creating draft context\n", 1, False),
    "estimated": ("srv load_model: estimated memory usage of draft context is 512.00 MiB\n", 1, False),
    "two caches": ("", 2, False),
}


@pytest.mark.parametrize(("line", "totals", "known"), DRAFT.values(), ids=DRAFT)
def test_copies_of_a_state_are_not_known_where_a_draft_may_ask_for_some(line: str, totals: int, known: bool) -> None:
    """A load that drafts keeps copies to go back to; a line without rs_seq does not say how many."""
    cache = "llama_kv_cache: size = {0}.00 MiB (262144 cells, {1} layers)\n"
    text = "".join(cache.format(size, layers) for size, layers in [(16384, 16), (1024, 1)][:totals])
    text += f"llama_memory_recurrent: size = 149.62 MiB (1 cells, 64 layers)\n{line}"
    [boot] = assemble(scan(io.BytesIO(text.encode()))).boots
    held = states(boot)
    assert held is not None and held.copies == (1 if known else None)


@pytest.mark.parametrize(
    ("line", "sizes"), [("", {"1.2b"}), ("srv load_model: creating draft context\n", {"1.2b", "350m"})]
)
def test_a_model_that_needs_copies_is_meant_where_some_may_be_kept(line: str, sizes: set[str]) -> None:
    """0.16 MiB are the 163,840 B of LFM2-1.2B once, or the 81,920 B of LFM2-350M twice."""
    text = f"llama_memory_recurrent: size = 0.16 MiB (1 cells, 16 layers)\n{line}"
    [boot] = assemble(scan(io.BytesIO(text.encode()))).boots
    found = [one.candidate.model for one in fitting(None, states(boot), None)]
    assert {name.partition("-")[2] for name in found if name.startswith("lfm2")} == sizes


def test_the_cache_of_a_draft_model_is_not_the_model_s() -> None:
    """However many layers a draft model has."""
    own = KV.format("256.00", 4096, 16, 1, 1, "f16", "128.00", "f16", "128.00")
    draft = KV.format("448.00", 4096, 28, 1, 1, "f16", "224.00", "f16", "224.00")
    text = f"{own}\nsrv load_model: creating draft context\n{draft}\n"
    [boot] = assemble(scan(io.BytesIO(text.encode()))).boots
    assert [cache.layers for cache in caches(boot)] == [16]


CONTEXT = "llama_init_from_model: n_ctx         = {}\n"
SELF = "llama_init_from_model: KV self size  = {0:7.2f} MiB, K ({1}): {2:7.2f} MiB, V ({1}): {2:7.2f} MiB\n"
BUFFER = "llama_kv_cache_init:      CUDA{} KV buffer size = {:8.2f} MiB\n"


def test_a_total_without_cells_has_those_of_the_context() -> None:
    """ "KV self size" names no cells: 448 MiB over n_ctx = 4,096 are 112 KiB a token; without n_ctx none is told."""
    lines = BUFFER.format(0, 448) + SELF.format(448, "f16", 224)
    [found] = answers(CONTEXT.format(4096) + lines, workload=Workload(((2048, 1),)))
    assert (found.derived.kv_bytes_per_cell, found.derived.requests) == (112 * 1024, 2)
    [found] = answers(lines)
    assert found.derived.kv_bytes_per_cell is None
    assert found.derived.buffers_bytes == {"KV": 448 * 2**20}


@pytest.mark.parametrize("sequences", [1, 4])
def test_buffers_beyond_the_kv_are_states(sequences: int) -> None:
    """ik_llama.cpp keeps a state of 65,863,680 B a sequence in the KV buffers, and totals the KV alone."""
    state = load_model("qwen3.6-35b-a3b")
    held = sequences * 65_863_680 / 2**20
    slots = f'INFO [ init] initializing slots | tid="1" timestamp=17 n_slots={sequences}\n'
    text = CONTEXT.format(65536) + BUFFER.format(0, 400) + BUFFER.format(1, 280 + held) + SELF.format(680, "q8_0", 340)
    [found] = answers(text + slots, model=state)
    assert found.derived.state_bytes_per_sequence == pytest.approx(65_863_680, rel=1e-3)
    assert (found.derived.sequences, found.derived.kv_bytes_per_cell) == (None, 10_880)
    assert [(one.model, one.state_bytes) for one in found.candidates] == [("qwen3.6-35b-a3b", 65_863_680)]
    assert [one.tp for one in found.candidates] == [0]  # no ranks
    assert set(found.derived.buffers_bytes) == {"KV_and_states"}


def test_padding_of_buffers_is_no_state() -> None:
    """A model without states, whose 16 buffers are padded: what they hold beyond the KV is said to be nothing."""
    lines = "".join(BUFFER.format(device, 64.02) for device in range(16)) + SELF.format(1024, "f16", 512)
    [found] = answers(CONTEXT.format(8192) + lines)
    assert found.derived.state_bytes_per_sequence is None
    assert "state" not in found.meaning


def test_a_second_total_is_another_start_unless_it_is_small() -> None:
    first = CONTEXT.format(2048) + BUFFER.format(0, 256) + SELF.format(256, "f16", 128)
    other = CONTEXT.format(4096) + BUFFER.format(0, 512) + SELF.format(512, "f16", 256)
    assert [one.derived.kv_bytes_per_cell for one in answers(first + other + other)] == [128 * 1024, 128 * 1024]
    draft = CONTEXT.format(2048) + BUFFER.format(0, 16) + SELF.format(16, "f16", 8)
    [found] = answers(first + draft)
    assert found.derived.buffers_bytes == {"KV": 256 * 2**20, "draft_KV": 16 * 2**20}


def test_latent_kv_is_read_as_such() -> None:
    """MLA of ik_llama.cpp: c^KV, and kv^T or none."""
    line = "llama_new_context_with_model: KV self size  = {0}.00 MiB, c^KV (q8_0): {0}.00 MiB, kv^T: not used\n"
    boots = assemble(scan(io.BytesIO(line.format(1166).encode()))).boots
    assert merged(boots) == {"kv_mib": 1166.0, "kv_k_mib": 1166.0}


def test_weights_of_older_loads_are_summed_by_device() -> None:
    line = "llm_load_tensors: {} buffer size = {:8.2f} MiB\n"
    [found] = answers(line.format("CUDA_Host", 252.84) + line.format("CUDA0", 12698.93))
    assert found.derived.buffers_bytes == {"weights": int((252.84 + 12698.93) * 2**20)}
    assert found.derived.host_buffers_bytes == int(252.84 * 2**20)


TOTALS_ALONE = """\
load_tensors:  ROCm0 model buffer size = 1024.00 MiB
llama_kv_cache: size = 16384.00 MiB (262144 cells, 16 layers)
llama_kv_cache: size = 1024.00 MiB (262144 cells,  1 layers)
llama_memory_recurrent: size = 1047.38 MiB (1 cells, 64 layers)
"""


def test_caches_whose_buffers_are_not_printed_count_by_their_totals() -> None:
    """1,024 + 16,384 + 1,024 + 1,047.38 MiB; the cache of one layer is a draft's."""
    [found] = answers(TOTALS_ALONE, workload=Workload.at(8192))
    assert found.derived.buffers_bytes == {
        "weights": 1024 << 20,
        "KV": 16_384 << 20,
        "draft_KV": 1024 << 20,
        "states": int(1047.38 * 2**20),
    }
    rows = {row.what: row.arithmetic for row in found.rows}
    assert rows["draft KV 1.00 GiB"] == "1024.00 MiB" and rows["19.02 GiB"] == ""


def test_a_total_counts_where_some_buffers_alone_are_printed() -> None:
    [found] = answers(f"load_tensors: CUDA1 KV buffer size = 512.00 MiB\n{TOTALS_ALONE}")
    assert found.derived.buffers_bytes["KV"] == 16_384 << 20


@pytest.mark.parametrize(
    ("shown", "counts"),
    [(["511.99"], True), (["511.98"], False), (["255.99", "256.00"], True), (["255.99", "255.99"], False)],
)
def test_buffers_are_all_of_a_total_to_half_a_digit_each(shown: list[str], counts: bool) -> None:
    """And half a digit of the total, 512.00 MiB: else they are those of some devices alone."""
    sizes = [f"llama_kv_cache: CUDA{at} KV buffer size = {size} MiB\n" for at, size in enumerate(shown)]
    [found] = answers("".join(sizes) + "llama_kv_cache: size = 512.00 MiB (8192 cells, 16 layers)\n")
    total = sum(Decimal(size) for size in shown) if counts else 512
    assert found.derived.buffers_bytes["KV"] == int(total * 2**20)


def test_no_more_run_than_there_are_states() -> None:
    """Cells of 262,144 tokens hold 32 requests of 8,192, and one sequence has a state."""
    [found] = answers(TOTALS_ALONE, workload=Workload.at(8192))
    assert found.derived.requests == 1 and "1 request of 8,192 tokens fit" in found.meaning


def test_cells_that_no_line_prints_are_said_to_lack() -> None:
    [found] = answers("llama_kv_cache: CUDA0 KV buffer size = 512.00 MiB\n", workload=Workload.at(4096))
    assert "how many requests of 4,096 tokens fit is not known: no line prints the KV cells" in found.meaning


@pytest.mark.parametrize(("ple", "more"), [(None, 0), (PleConv(2, 768, 3), 4 * 2 * 768 * 3)])
def test_a_state_has_the_columns_of_embeddings_beside_it(ple: PleConv | None, more: int) -> None:
    """149.62 MiB of Qwen3.5-27B, and fp32 columns of 2 layers."""
    assert state_bytes(load_model("qwen3.5-27b")._replace(ple_conv=ple)) == 156_893_184 + more
