"""Floors of time: never above a public measurement, equal to their formula, monotone in what they follow from."""

import re
from math import ceil, floor
from typing import Any

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from throughput import as_published, floor_of, points, prompt_of, prompts, speculates, why_no_floor

import hybridcalc
from hybridcalc.engines.ask import arguments_of
from hybridcalc.errors import InputError
from hybridcalc.hardware import rates_of
from hybridcalc.speed import EXPERTS, KV, STATE, USUAL_SHARES, boundaries, decode_step, move, prefill, recompute
from hybridcalc.speed.plans import MEASUREMENTS, PROMPTS

KNOWN = [row for row in points() if not why_no_floor(row)]
PLAIN = [row for row in KNOWN if not speculates(row)]
EAGLE = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}, "draft_layers": 1}

REPLAY = {
    "use_replayssm": True, "mamba_backend": "flashinfer", "replayssm_buffer_len": 16, "enable_prefix_caching": False,
}  # fmt: skip


def name(row: dict[str, str]) -> str:
    return f"{row['model']}-{row['gpu']}-{row['setting']}"


@pytest.mark.parametrize("row", PLAIN, ids=name)
def test_no_floor_is_above_a_measurement(row: dict[str, str]) -> None:
    assert 0.05 * float(row["measured_tpot_ms"]) < floor_of(row).floor_ms < float(row["measured_tpot_ms"])


@pytest.mark.parametrize("row", [row for row in KNOWN if row["bound_ms"]], ids=name)
def test_floors_are_those_published(row: dict[str, str]) -> None:
    """Within 3 %, but for those that count something otherwise; counted as there, all of them within 1 %."""
    floor, published = floor_of(row).floor_ms, float(row["bound_ms"])
    there, otherwise = as_published(row)
    assert there == pytest.approx(published, rel=0.01, abs=0.005)
    assert otherwise or floor == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(("batch", "expected"), [(1, 2.18), (16, 8.10), (64, 20.0)])
def test_kimi_k3_on_eight_b300(batch: int, expected: float) -> None:
    floor = decode_step("kimi-k3", gpu="8xb300", tp_size=8, batch=batch, context=8704, quantization="mxfp4")
    assert floor.floor_ms == pytest.approx(expected, rel=0.03)


def test_nemotron_3_super_on_two_h100() -> None:
    floor = decode_step(
        "nemotron-3-super-120b-a12b", gpu="2xh100", tp_size=2, batch=32, context=8704, quantization="fp8"
    )
    assert floor.floor_ms == pytest.approx(15.6, rel=0.03)


def test_the_state_is_read_and_written() -> None:
    own = hybridcalc.plan("qwen3.5-35b-a3b", tp_size=1, rest="40GiB").to_dict()["state_bytes_per_slot"]
    floor = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=256, context=1024)
    assert floor.parts[STATE] == 2 * 256 * own
    drafted = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=256, context=1024, drafts=3)
    assert drafted.parts[STATE] == (1 + 4) * 256 * own


def test_the_traffic_of_state_and_kv_meets_at_twice_token_equiv() -> None:
    plan = hybridcalc.plan("qwen3.5-35b-a3b", tp_size=2, rest="40GiB").to_dict()
    meeting = round(2 * plan["token_equiv"])
    parts = [
        decode_step("qwen3.5-35b-a3b", gpu="h200", tp_size=2, batch=8, context=meeting + more).parts for more in (-1, 1)
    ]
    assert parts[0][KV] < parts[0][STATE]
    assert parts[1][KV] > parts[1][STATE]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@given(st.sampled_from((1, 2, 4)), st.integers(1, 64))
def test_crossover_says_where_the_traffic_meets(engine: str, tp: int, batch: int) -> None:
    served, model, args = arguments_of("qwen3.5-35b-a3b", engine, {"tp_size": tp})
    assert served.crossover is not None
    meeting = served.crossover(model, None, args).traffic_tokens
    assert meeting is not None
    asked: dict[str, Any] = {"gpu": "h200", "batch": batch, "tp_size": tp, "engine": engine}
    below = decode_step("qwen3.5-35b-a3b", context=ceil(meeting) - 1, **asked).parts
    above = decode_step("qwen3.5-35b-a3b", context=floor(meeting) + 1, **asked).parts
    assert below[KV] < below[STATE]
    assert above[KV] > above[STATE]


def test_experts_are_touched_as_evenly_routed() -> None:
    whole = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=100_000, context=0).parts[EXPERTS]
    for batch in (1, 2, 7, 64):
        touched = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=batch, context=0).parts[EXPERTS]
        assert touched == pytest.approx(whole * (1 - (1 - 8 / 256) ** batch), rel=1e-6)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("model", ["qwen3.5-35b-a3b", "granite-4.0-h-small", "falcon-h1-34b-instruct", "llama-3.1-8b"])
def test_both_engines_move_the_same_of_a_model(model: str, engine: str) -> None:
    asked: dict[str, Any] = {"gpu": "h100", "batch": 8, "context": 4096, "mamba_ssm_dtype": "float32"}
    one, other = (decode_step(model, engine=each, **asked).parts for each in (engine, "sglang"))
    assert one == other


@given(st.integers(1, 512), st.integers(0, 65_536), st.sampled_from((1, 2, 4, 8)))
def test_a_step_takes_longer_with_more_to_do(batch: int, context: int, tp: int) -> None:
    def ms(batch: int, context: int, tp: int) -> float:
        return decode_step("nemotron-3-nano-30b-a3b", gpu="h100", tp_size=tp, batch=batch, context=context).floor_ms

    here = ms(batch, context, tp)
    assert here <= ms(batch + 1, context, tp)
    assert here <= ms(batch, context + 1, tp)
    assert here >= ms(batch, context, 2 * tp) * 0.999 or tp == 8


def test_attention_workers_move_their_own_requests() -> None:
    spread = decode_step(
        "kimi-k3",
        gpu="b300",
        tp_size=8,
        dp_size=8,
        enable_dp_attention=True,
        batch=64,
        context=8704,
        quantization="mxfp4",
    )
    shared = decode_step("kimi-k3", gpu="b300", tp_size=8, batch=64, context=8704, quantization="mxfp4")
    assert spread.parts[KV] * 8 == shared.parts[KV]  # latent rows are whole on every rank without it
    assert spread.parts[EXPERTS] == shared.parts[EXPERTS]
    assert spread.parts[STATE] == shared.parts[STATE]
    assert spread.parts["weights"] > 4 * shared.parts["weights"]


def test_a_short_prefill_reads_the_weights_and_a_long_one_computes() -> None:
    short, long = (prefill("qwen3.6-27b", gpu="h200", tokens=tokens) for tokens in (1, 8192))
    assert short.binding == "projections"
    assert short.floor_ms == pytest.approx(
        decode_step("qwen3.6-27b", gpu="h200", batch=1, context=0).floor_ms, rel=0.05
    )
    assert long.binding == "compute"
    assert long.floor_ms == pytest.approx(2 * 25.6e9 * 8192 / 989e9, rel=0.1)


@given(st.integers(1, 40_000), st.integers(0, 40_000), st.sampled_from((1, 2, 4)), st.sampled_from(("sglang", "vllm")))
def test_a_prompt_in_two_parts_computes_what_it_does_in_one(tokens: int, cached: int, tp: int, engine: str) -> None:
    """Attention of a part sees what is cached before it; only the logits of a last token are there twice."""
    asked: dict[str, Any] = {"gpu": "h200", "tp_size": tp, "engine": engine}
    for model in ("qwen3.6-27b", "qwen3.5-35b-a3b", "gpt-oss-120b"):
        first, rest = (
            prefill(model, tokens=max(1, cached), **asked),
            prefill(model, tokens=tokens, cached=cached, **asked),
        )
        whole = prefill(model, tokens=cached + tokens, **asked)
        logits = next(part.flops for part in whole.cost if part.name == "lm_head")
        flops = [sum(part.flops for part in floor.cost) - logits for floor in (first, rest, whole)]
        assert flops[0] * bool(cached) + flops[1] == pytest.approx(flops[2], rel=1e-9)
        lost = recompute(model, tokens=tokens, cached=cached, **asked)
        assert lost.gpu_seconds == pytest.approx(tp * flops[1] / rest.tflops / 1e12, rel=1e-6)
        assert lost.seconds * tp == pytest.approx(lost.gpu_seconds)


@given(st.integers(2, 100_000), st.integers(2, 50))
def test_tokens_of_many_requests_cost_what_their_parts_do(tokens: int, requests: int) -> None:
    asked: dict[str, Any] = {"gpu": "h200", "tp_size": 2, "cached": 512}
    together = recompute("qwen3.5-35b-a3b", tokens=tokens * requests, requests=requests, **asked)
    assert together.gpu_seconds == pytest.approx(
        requests * recompute("qwen3.5-35b-a3b", tokens=tokens, **asked).gpu_seconds
    )
    assert together.gpu_seconds <= recompute("qwen3.5-35b-a3b", tokens=tokens * requests, **asked).gpu_seconds
    assert together.band_seconds[0] > together.gpu_seconds


def test_tokens_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="-1 tokens after 0"):
        recompute("qwen3.5-4b", gpu="h200", tokens=-1)
    with pytest.raises(InputError, match="tokens of 0 requests"):
        recompute("qwen3.5-4b", gpu="h200", tokens=1, requests=0)
    with pytest.raises(InputError, match="8 tokens after -8"):
        prefill("qwen3.5-4b", gpu="h200", tokens=8, cached=-8)


@given(st.integers(1, 256), st.integers(0, 65_536), st.sampled_from((1, 2, 4)), st.sampled_from(("sglang", "vllm")))
def test_a_stage_has_a_batch_of_its_own(batch: int, context: int, pp: int, engine: str) -> None:
    """A token waits for every stage in turn, each with its share of the requests: no step of all at once."""
    asked: dict[str, Any] = {"gpu": "h100", "context": context, "engine": engine, "tp_size": 2}
    staged = decode_step("nemotron-3-nano-30b-a3b", batch=batch, pp_size=pp, **asked)
    alone = decode_step("nemotron-3-nano-30b-a3b", batch=-(-batch // pp), **asked)
    assert staged.parts == alone.parts
    assert staged.batch == batch


@given(st.integers(1, 128), st.integers(0, 65_536))
def test_context_parallel_ranks_part_the_kv_and_keep_every_state(batch: int, context: int) -> None:
    asked: dict[str, Any] = {"gpu": "b300", "batch": batch, "context": context, "tp_size": 8, "quantization": "mxfp4"}
    whole, parted = (decode_step("kimi-k3", dcp_size=dcp, **asked).parts for dcp in (1, 8))
    assert parted.get(KV, 0) == whole.get(KV, 0) // 8
    assert {name: size for name, size in parted.items() if name != KV} == {
        name: size for name, size in whole.items() if name != KV
    }


@pytest.mark.parametrize(
    ("engine", "spread"),
    [
        ("sglang", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "ep_size": 8}),
        ("vllm", {"tp_size": 1, "dp_size": 8, "enable_expert_parallel": True}),
    ],
)
@given(requests=st.integers(1, 40))
def test_spread_experts_are_read_for_all_workers(engine: str, spread: dict[str, Any], requests: int) -> None:
    """Experts on 8 ranks: each holds an eighth, and takes the tokens of all workers."""
    asked: dict[str, Any] = {"gpu": "b200", "context": 4096, "engine": engine, "quantization": "fp8"}
    spread_out = decode_step("qwen3.5-397b-a17b", batch=8 * requests, **asked, **spread)
    cut = decode_step("qwen3.5-397b-a17b", batch=8 * requests, tp_size=8, **asked)
    one = decode_step("qwen3.5-397b-a17b", batch=requests, tp_size=1, **asked)
    assert spread_out.parts[EXPERTS] == cut.parts[EXPERTS]
    assert (spread_out.parts[KV], spread_out.parts[STATE]) == (one.parts[KV], one.parts[STATE])


@given(st.integers(1, 65_536), st.sampled_from((2, 4)))
def test_a_prefill_over_stages_takes_no_more_and_no_less_than_its_share(tokens: int, pp: int) -> None:
    one, staged = (prefill("qwen3.6-27b", gpu="h100", tokens=tokens, pp_size=stages) for stages in (1, pp))
    assert staged.memory_ms == one.memory_ms
    for of_stage, of_all in zip(staged.cost, one.cost, strict=True):  # logits are of the last stage alone
        assert of_stage.flops == pytest.approx(of_all.flops / (1 if of_all.name == "lm_head" else pp), abs=1)


@pytest.mark.parametrize(
    ("model", "engine", "arguments", "positions", "writes"),
    [
        ("qwen3-next-80b-a3b", "sglang", {}, 1, 1),
        ("qwen3-next-80b-a3b", "sglang", EAGLE, 4, 4),
        ("qwen3-next-80b-a3b", "sglang", EAGLE | {"enable_linear_replayssm_spec": True}, 4, 0),
        ("qwen3-next-80b-a3b", "vllm", MTP, 4, 4),
        ("nemotron-3-nano-30b-a3b", "vllm", REPLAY, 1, 0),
        ("nemotron-3-nano-30b-a3b", "vllm", MTP | REPLAY, 4, 0),
    ],
)
def test_a_step_writes_the_states_of_its_drafts_unless_it_replays(
    model: str, engine: str, arguments: dict[str, Any], positions: int, writes: int
) -> None:
    asked: dict[str, Any] = {"gpu": "h100", "tp_size": 2, "batch": 8, "context": 4096, "engine": engine}
    plain = decode_step(model, **asked)
    drafted = decode_step(model, **asked, **arguments)
    assert drafted.positions == positions
    assert drafted.parts[STATE] * 2 == plain.parts[STATE] * (1 + writes)
    assert drafted.parts[KV] == plain.parts[KV]
    assert drafted.token_ms(positions) == pytest.approx(drafted.floor_ms / positions)
    assert drafted.tokens_per_second(1) == pytest.approx(1000 / drafted.floor_ms)
    with pytest.raises(InputError, match=f"of which it verifies {positions}"):
        drafted.token_ms(positions + 0.5)


@given(st.integers(0, 65_536), st.sampled_from((1, 2)), st.sampled_from(("nvlink", "pcie", 50.0)))
def test_a_request_moves_with_what_a_step_reads_of_it(context: int, pp: int, link: str | float) -> None:
    asked: dict[str, Any] = {"gpu": "h200", "context": context, "tp_size": 2}
    moved = move("qwen3.5-35b-a3b", link=link, pp_size=pp, **asked)
    parts = decode_step("qwen3.5-35b-a3b", batch=1, **asked).parts
    assert (2 * moved.state_bytes * pp, moved.kv_bytes * pp) == (parts[STATE], parts.get(KV, 0))
    gbs = {"nvlink": 450, "pcie": 63.0, 50.0: 50}[link]
    assert moved.floor_ms == pytest.approx((moved.state_bytes + moved.kv_bytes) / gbs / 1e6, rel=1e-3)


def test_a_link_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="has no link 'infiniband' here"):
        move("qwen3.5-35b-a3b", gpu="h200", context=8192, link="infiniband")
    with pytest.raises(InputError, match="has no link 'nvlink' here"):
        move("qwen3.5-4b", gpu="a10", context=8192)
    with pytest.raises(InputError, match="a link of 0 GB/s"):
        move("qwen3.5-4b", gpu="h200", context=8192, link=0.0)


def test_the_band_is_of_as_many_measurements_as_it_says() -> None:
    batches = [row for row in PLAIN if int(row["batch"]) >= 16]
    assert len(batches) == MEASUREMENTS
    shares = [floor_of(row).floor_ms / float(row["measured_tpot_ms"]) for row in batches]
    assert all(USUAL_SHARES[0] - 0.02 < share < USUAL_SHARES[1] for share in shares)


def test_prompts_take_longer_than_their_floor_and_lie_in_the_band() -> None:
    assert len(prompts()) == PROMPTS
    for point in prompts():
        floor, measured = prompt_of(point), float(point["measured_ttft_ms"])
        assert floor.floor_ms < measured
        least, most = floor.prompt_band_ms
        assert floor.floor_ms <= least <= measured <= most


@pytest.mark.parametrize(
    ("model", "flops"),
    [
        ("qwen3.5-35b-a3b", 2 * 64 * 32 * (128 + 128) * 30),
        ("nemotron-3-nano-30b-a3b", 2 * 128 * 64 * (64 + 128) * 23),
        ("lfm2-1.2b", None),
        ("llama-3.1-8b", None),
    ],
)
def test_chunks_of_a_scan_stand_beside_the_floor(model: str, flops: int | None) -> None:
    for tp in (1, 2):
        prompt = prefill(model, gpu="h200", tokens=1000, tp_size=tp)
        assert [part.flops for part in prompt.beyond] == ([] if flops is None else [1000 * flops // tp])
        assert prompt.compute_ms * prompt.tflops * 1e9 == pytest.approx(sum(part.flops for part in prompt.cost))


@given(st.integers(1, 4096), st.integers(0, 20_000), st.sampled_from((1, 2, 4)))
def test_what_lies_beyond_the_last_state_is_computed_again(every: int, shared: int, tp: int) -> None:
    served, model, args = arguments_of("qwen3.5-35b-a3b", None, {"tp_size": tp})
    (found,) = boundaries(served, model, args, rates_of("h200"), every=every, shared=(shared,))
    assert found.cost.tokens == shared % every
    (twice,) = boundaries(served, model, args, rates_of("h200"), every=2 * every, shared=(shared,))
    assert twice.cost.tokens - found.cost.tokens in (0, every)
    assert twice.cost.gpu_seconds >= found.cost.gpu_seconds


@pytest.mark.parametrize(
    ("words", "every", "again"),
    [
        ("sglang serve --model-path Qwen/Qwen3.5-35B-A3B", 64, [4, 20, 32]),
        ("sglang serve --model-path Qwen/Qwen3.5-35B-A3B --page-size 256", 256, [132, 20, 160]),
        ("vllm serve Qwen/Qwen3.5-35B-A3B --enable-prefix-caching", 1088, [900, 212, 736]),
        ("sglang serve --model-path Qwen/Qwen3.5-35B-A3B --disable-radix-cache", None, []),
        ("vllm serve Qwen/Qwen3.5-35B-A3B --no-enable-prefix-caching", None, []),
    ],
)
def test_a_plan_prices_the_boundaries_of_states(words: str, every: int | None, again: list[int]) -> None:
    found = run("plan", "--json", "--gpu", "h200", "-L", "8k", "--", *words.split()).document["speed"][
        "shared_prefixes"
    ]
    now = [each for each in found if each["saved_every_tokens"] == every]
    assert [each["shared_tokens"] for each in now] == [900, 1300, 4000][: len(now)]
    assert [each["recomputed_tokens"] for each in now] == again
    assert all(each["floor_ms"] > 0 for each in now)
    assert len(found) == 2 * len(again)


def test_a_plan_has_its_pace_where_the_gpu_has_a_name() -> None:
    asked = ("plan", "qwen3.5-35b-a3b", "-L", "8192", "--json")
    speed = run(*asked, "--gpu", "h200").document["speed"]
    floor = decode_step("qwen3.5-35b-a3b", gpu="h200", batch=speed["batch"], context=8192)
    assert speed["floor_ms"] == pytest.approx(floor.floor_ms, abs=1e-4)
    assert speed["prefill"]["floor_ms"] == pytest.approx(
        prefill("qwen3.5-35b-a3b", gpu="h200", tokens=8192).floor_ms, abs=1e-4
    )
    assert "speed" not in run(*asked, "--gpu", "140GiB").document
    assert "speed" not in run(*asked, "--rest", "40GiB").document


def test_the_peak_is_that_of_the_narrowest_weights() -> None:
    rates = rates_of("b200")
    assert [rates.peak(bits) for bits in (16, 8, 4)] == [2250, 4500, 9000]
    assert rates_of("a100-80gb").peak(4) >= rates_of("a100-80gb").peak(16)


def test_what_has_no_rates_is_refused() -> None:
    with pytest.raises(InputError, match="a size has no bandwidth"):
        rates_of("80GiB")
    with pytest.raises(InputError, match="no GPU"):
        rates_of("h9000")
    with pytest.raises(InputError, match="0 requests"):
        decode_step("kimi-k3", gpu="b300", batch=0)


@pytest.mark.parametrize(
    "line",
    [
        "sglang serve --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --speculative-algorithm NEXTN",
        "sglang serve --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 --speculative-algorithm NGRAM",
        "sglang serve --model-path nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8 --tp 4 --max-running-requests 8",
        "vllm serve Qwen/Qwen3.6-35B-A3B -tp 4 --max-num-seqs 8 --max-model-len 32768",
        "vllm serve Qwen/Qwen3.6-35B-A3B -tp 4 --max-num-seqs 200 --kv-cache-memory-bytes 30G",
    ],
)
def test_the_line_of_a_step_stands_in_every_short_answer(line: str) -> None:
    """Whatever else the twelve lines have to leave out; a GPU beside a given memory tells it as well."""
    ran = run("plan", "--gpu", "h100", "-L", "8k", "--", *line.split())
    assert ran.out.count("\n") <= 12
    assert re.search(r"^  a step +[0-9.,]+ ms or more", ran.out, re.M), ran.out
