"""An SGLang boot: which model, S, ratio and memory, what binds, what contradicts, what to set."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Launched, Question, diagnose, diagnose_log
from hybridcalc.diagnosis.answer import Candidate, Diagnosis
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.server_plan import plan
from hybridcalc.errors import HybridcalcError

LOGS = Path(__file__).resolve().parent.parent / "data" / "bootlogs"


def published(name: str, length: int | None = None, **question: Any) -> Any:
    work = Workload.at(length) if length else Workload()
    return diagnose_log(LOGS / name, Question(workload=work, **question)).boots[0]


def answer(text: str, length: int | None = None, **question: Any) -> Any:
    work = Workload.at(length) if length else Workload()
    boots = assemble(scan(io.BytesIO(text.encode()))).boots
    return next(iter(diagnose(boots, Question(workload=work, **question))))


def rules(found: Diagnosis) -> list[str]:
    return [finding.rule for finding in found.findings]


def test_the_published_kimi_boot_is_explained_to_the_byte() -> None:
    """257 slots + 1 of 56,171,520 B, 1,167,552 tokens of 13,824 B, ratio 0.9: the state binds at 51 requests."""
    found = published("sgl-015.log", 9216)
    assert found.model_guess == "kimi-k3 on TP8, fp32 state, fp8 KV"
    assert found.constants is not None
    assert found.constants.exact == ("kimi-k3", 56_171_520, 13_824, True)
    assert (found.binding, found.derived.requests, found.derived.slots_per_request) == ("state", 51, 5)
    assert found.derived.ratio_used == 0.9
    low, high = found.derived.mamba_full_memory_ratio
    assert low <= 0.9 <= high
    assert "--mamba-radix-cache-strategy extra_buffer_lazy --mamba-full-memory-ratio 1.76" in [
        suggestion.flags for suggestion in found.suggestions
    ]


MODELS = {
    "sgl-002.log": "granite-4.0-h-micro on TP1", "sgl-004.log": "ling-3.0-flash on TP1",
    "sgl-012.log": "qwen3.5-397b-a17b on TP2", "sgl-016.log": "qwen3.5-27b on TP1",
    "sgl-030.log": "glm-5.3-flash on TP4", "sgl-020.log": "qwen3.5-27b on TP1",
}  # fmt: skip


@pytest.mark.parametrize(("name", "model"), MODELS.items())
def test_published_boots_name_their_model(name: str, model: str) -> None:
    """By the pools, by the class of the weights line, or by the size of a slot that a refusal prints."""
    assert (published(name).model_guess or "").startswith(model)


def test_constants_hold_the_exact_sizes() -> None:
    """The printed intervals of a boot contain the sizes of the model that made it."""
    constants = published("sgl-016.log").constants
    assert constants is not None
    for name in ("state_bytes_per_slot", "kv_bytes_per_token"):
        low, high = getattr(constants, name)
        assert low <= getattr(constants.exact, name) <= high


@given(
    st.sampled_from(["kimi-k3", "qwen3.5-27b", "qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b", "ling-3.0-flash"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["auto", "fp8_e4m3"]),
    st.floats(20, 90),
    st.floats(0.3, 3.0),
)
def test_what_a_plan_prints_is_diagnosed_back(model: str, tp: int, dtype: str, rest: float, ratio: float) -> None:
    """Plan, print, read, diagnose: the model is among the candidates, K and the ratio come out, nothing contradicts."""
    args = ServerArgs(tp_size=tp, kv_cache_dtype=dtype, mamba_full_memory_ratio=round(ratio, 2))
    try:
        made = plan(load_model(model), args, rest_gib=rest)
    except HybridcalcError:
        return
    found = answer("".join(f"[2026-10-02 00:39:31 TP0] {line}\n" for line in made.log_lines))
    assert model in [candidate.model for candidate in found.candidates]
    assert not [finding for finding in found.findings if finding.severity == "error"]
    low, high = found.derived.mamba_full_memory_ratio
    assert low - 0.03 <= args.mamba_full_memory_ratio <= high + 0.03
    assert found.derived.rest_gib[0] - 0.1 <= rest <= found.derived.rest_gib[1] + 0.1 + 2 * made.bytes_per_slot / 2**30


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_a_boot_on_any_usual_number_of_ranks_is_known_without_flags(tp: int) -> None:
    made = plan(load_model("kimi-k3"), ServerArgs(tp_size=tp), rest_gib=40.0 if tp > 2 else 120.0)
    found = answer("\n".join(made.log_lines))
    assert ("kimi-k3", tp) in [(candidate.model, candidate.tp) for candidate in found.candidates]


def test_a_size_that_is_printed_of_a_half_fits() -> None:
    """104 slots of 150,994,944 B are 14.625 GiB, and "%.2f" makes 14.62 of it."""
    made = plan(load_model("qwen3.5-27b"), ServerArgs(mamba_full_memory_ratio=3.0), rest_gib=20.0)
    assert 104 * 150_994_944 == 14.625 * 2**30 and "14.62GB" in "".join(made.log_lines)
    assert "qwen3.5-27b" in [candidate.model for candidate in answer("\n".join(made.log_lines)).candidates]


@pytest.mark.parametrize("name", ["falcon-mamba-7b", "codestral-mamba-7b", "mamba-2.8b"])
def test_models_of_states_alone_are_found_by_their_states(name: str) -> None:
    """No token takes KV: 0.00 GB of it is what such a model prints, and no complaint."""
    model = load_model(name)
    made = plan(model, ServerArgs(tp_size=2), rest_gib=20.0)
    for named in (None, model):
        found = answer("\n".join(made.log_lines), model=named)
        assert name in [candidate.model for candidate in found.candidates]
        assert not [finding for finding in found.findings if finding.rule in ("HC101",)]
        assert all(candidate.kv_bytes == 0 for candidate in found.candidates)


POOLS = (
    "Mamba Cache is allocated. max_mamba_cache_size: {slots}, conv_state size: 0.46GB, ssm_state size: 13.04GB\n"
    "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {tokens}, KV size: 15.03 GB\n"
)
SUMMARY = (
    "max_total_num_tokens={tokens}, max_running_requests={requests}, context_len=9216, available_gpu_mem=9.00 GB\n"
)


def test_s_is_the_only_one_that_gives_the_printed_limit() -> None:
    """257 // 4 is 64 and nothing else is: extra_buffer_lazy."""
    found = answer(POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167552, requests=64), 9216)
    assert (found.derived.slots_per_request, found.derived.requests) == (4, 64)


def test_a_limit_below_the_slots_is_what_binds() -> None:
    found = answer(POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167552, requests=8), 9216)
    assert found.binding == "limit" and "HC111" in rules(found)


CONTRADICTIONS = {
    "tokens": (POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167000, requests=51),
               "the KV pool holds 1,167,552 tokens (line 2), but the summary says 1,167,000"),
    "slots": (POOLS.format(slots=257, tokens=1167552) + "max_running_requests is capped to 40 by the mamba state cache "
              "(max_mamba_cache_size=200, 5 state slots per request).\n", "has 257 slots, but the clamp says 200"),
    "clamp": ("max_running_requests is capped to 50 by the mamba state cache (max_mamba_cache_size=200, 5 state slots "
              "per request).\n", "200 // 5 is 40, but the clamp says 50"),
    "requests": (POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167552, requests=400),
                 "400 requests run, but there are 257 slots"),
    "weights": ("Load weight begin. avail mem=90.00 GB\nLoad weight end. avail mem=50.00 GB, mem usage=28.47 GB.\n",
                "90.00 - 50.00 GiB are free less, but the weights took 28.47 GiB"),
    "pools": ("Load weight end. avail mem=20.00 GB, mem usage=28.47 GB.\n" + POOLS.format(slots=257, tokens=1167552),
              "the pools take 28.53 GiB, but 20.00 GiB were free"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_figures_that_cannot_be_of_one_boot_are_named(text: str, said: str) -> None:
    found = answer(text)
    assert "HC105" in rules(found)
    assert any(said in finding.message for finding in found.findings)


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("sgl-*.log")))
def test_no_published_boot_is_called_inconsistent(name: str) -> None:
    for boot in diagnose_log(LOGS / name, Question()).boots:
        assert not {"HC101", "HC105"} & set(rules(boot))


def test_flags_that_cannot_have_produced_the_log_are_named() -> None:
    """The command of the published Ling boot pins 64 slots and a fraction of 0.8; the log has 117 and needs 0.89."""
    command = ServerArgs(mem_fraction_static=0.8, max_mamba_cache_size=64, max_running_requests=1, page_size=64)
    found = published("sgl-004.log", launch=Launched("sglang", None, command))
    said = " ".join(finding.message for finding in found.findings if finding.rule == "HC108")
    assert "pins 64 slots, the log has 117" in said
    assert "--mem-fraction-static 0.8, the pools need about 0.89" in said


def test_the_arguments_a_server_echoes_are_used() -> None:
    echo = (
        "server_args=ServerArgs(model_path='moonshotai/Kimi-K3', tp_size=8, mem_fraction_static=None, "
        "max_running_requests=200, max_mamba_cache_size=300, kv_cache_dtype='fp8_e4m3')\n"
    )
    found = answer(echo + POOLS.format(slots=257, tokens=1167552))
    assert [finding.message for finding in found.findings if finding.rule == "HC108"] == [
        "the echoed command pins 300 slots, the log has 257"
    ]
    assert {candidate.model for candidate in found.candidates} == {"kimi-k3"}


def test_a_model_that_is_named_is_held_against_the_log() -> None:
    assert "HC101" in rules(published("sgl-015.log", model=load_model("qwen3.5-27b")))
    assert "HC101" not in rules(published("sgl-015.log", model=load_model("kimi-k3")))


def test_uneven_ranks_and_impossible_pools_are_said_to_be_so() -> None:
    assert "HC103" in rules(published("sgl-026.log"))
    impossible = published("sgl-060.log")
    assert rules(impossible) == ["HC106"] and impossible.candidates == ()


def test_drafts_are_counted_from_their_scratch() -> None:
    """(R + 1) x D states: 64 requests, 16 draft tokens, 48.75 GiB."""
    text = (LOGS / "sgl-042.log").read_text()
    kept = "".join(line for line in text.splitlines(keepends=True) if "exception" not in line and "OutOf" not in line)
    found = answer(kept + "[2026-10-02 00:40:10] max_total_num_tokens=295950, max_running_requests=64\n")
    assert found.derived.draft_tokens == 16
    assert {"HC113", "HC114"} <= set(rules(found))


def test_serving_says_what_a_request_holds_and_that_requests_queue() -> None:
    found = published("sgl-052.log")
    assert {"HC130", "HC131"} <= set(rules(found))
    assert present(found.derived.serving).most_queued == 6 and found.derived.slots_from_usage == 20
    assert "HC130" not in rules(published("sgl-053.log"))


@pytest.mark.parametrize("digits", ["1" + "0" * 11, "1" + ",000" * 30, "1" + ",000" * 900])
@pytest.mark.parametrize("figure", ["257", "1167552", "51", "9216"])
def test_a_count_that_no_machine_can_have_is_said_and_not_used(digits: str, figure: str) -> None:
    """Whoever edits a log, or a disk that flips its bits, may leave any figure: never an overflow."""
    text = POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167552, requests=51)
    found = answer(text.replace(figure, digits), 9216)
    assert found.to_dict()["figures"]
    assert "HC106" in rules(found) or len(digits) < 14


def test_data_parallel_workers_are_added_up() -> None:
    """Limits and tokens are per worker: two of them serve twice as much."""
    line = "[2026-10-02 00:39:31 DP{0} TP{0} EP{0}] max_total_num_tokens=2812672, max_running_requests=32\n"
    found = answer(line.format(0) + line.format(1))
    assert "HC115" in rules(found)
    assert (found.derived.workers, found.derived.total_tokens, found.derived.total_requests) == (2, 5625344, 64)


@pytest.mark.parametrize("value", ["'fp4_e2m1'", "'x'", "None", "'auto'"])
def test_an_echo_of_any_kind_is_taken_as_far_as_it_goes(value: str) -> None:
    """What the echo holds is outside data: an unknown dtype or no workers at all are passed over."""
    echo = f"server_args=ServerArgs(model_path='a/b', dp_size=0, enable_dp_attention=True, kv_cache_dtype={value})\n"
    found = answer(echo + POOLS.format(slots=257, tokens=1167552) + SUMMARY.format(tokens=1167552, requests=51), 9216)
    assert found.to_dict()["figures"]["kv_tokens"] == 1_167_552


def test_the_printed_limit_binds_where_no_model_fits() -> None:
    text = (
        "Mamba Cache is allocated. max_mamba_cache_size: 97, conv_state size: 0.10GB, ssm_state size: 5.63GB\n"
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 484032, K size: 2.77 GB, V size: 2.77 GB\n"
        "max_total_num_tokens=484032, max_running_requests=6, context_len=262144, available_gpu_mem=19.86 GB\n"
    )
    found = answer(text, 8192)
    assert (found.binding, found.derived.requests, found.suggestions) == ("limit", 6, [])
    capped = (
        "max_running_requests is capped to {} by the mamba state cache "
        "(max_mamba_cache_size=97, 16 state slots per request)\n"
    )
    assert [answer(capped.format(many) + text, 8192).binding for many in (6, 7)] == ["state", "limit"]


PINNED = (
    "Mamba Cache is allocated. max_mamba_cache_size: 32, conv_state size: 0.05GB, ssm_state size: 1.93GB\n"
    "KV Cache is allocated. #tokens: 4096, K size: 0.04 GB, V size: 0.04 GB\n"
)


@pytest.mark.parametrize("command", ["", "python -m sglang.launch_server --model-path x --max-total-tokens 4096\n"])
def test_pinned_tokens_are_not_promised_away(command: str) -> None:
    """Said by the launch line in the log, or by a round count that no ratio gives."""
    found = answer(command + PINNED, 2048)
    assert not found.suggestions and found.derived.mamba_full_memory_ratio is None
    assert ("HC109" in rules(found)) == (not command)


REFUSED = (
    "[2026-09-14 13:08:01] server_args=ServerArgs(model_path='/models/Some-7B', tp_size=1, mem_fraction_static={})\n"
    "[2026-09-14 13:09:29] RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
    "Computed max_mamba_cache_size={} (total_rest_memory={} GB, mamba_cache_per_req=140.78 MB).\n"
)


def test_refusals_of_one_host_are_solved_against_each_other(tmp_path: Path) -> None:
    """rest = after - before x (1 - fraction), twice; where after is large, the fraction that helps is named."""

    def answers_of(text: str) -> list[Any]:
        log = tmp_path / "boot.log"
        log.write_text(text)
        return list(diagnose_log(log, Question()).boots)

    hopeless = answers_of(REFUSED.format(0.9, -31, -8.63) + REFUSED.format(0.86, -46, -13.05))
    for found in hopeless:
        [error] = [one for one in found.findings if one.rule == "HC120"]
        assert "110.5 GiB free before the weights and 2.42 after" in error.fix
        assert "no --mem-fraction-static helps" in error.fix
    hopeful = answers_of(REFUSED.format(0.8, -31, -8.0) + REFUSED.format(0.7, -46, -18.0))
    assert all("--mem-fraction-static 0.8" in found.findings[0].fix for found in hopeful)
    assert "together" not in answers_of(REFUSED.format(0.9, -31, -8.63))[0].findings[0].fix


def test_a_kv_pool_of_zero_says_nothing_of_a_token() -> None:
    pools = (
        "[2026-01-01 00:00:00 TP0] Mamba Cache is allocated. max_mamba_cache_size: 459, conv_state size: 0.53GB, "
        "ssm_state size: 35.94GB\n[2026-01-01 00:00:00 TP0] KV Cache is allocated. dtype: torch.bfloat16, "
        "#tokens: 896, K size: 0.00 GB, V size: 0.00 GB\n"
    )
    found = answer(pools, 100)
    assert found.constants.exact.kv_bytes_per_token is None and found.derived.mamba_full_memory_ratio is None
    assert found.constants.kv_bytes_per_token == [0, 11_970]


def test_what_is_stated_rules_out_what_figures_leave_open() -> None:
    """5 slots in 0.01 + 0.35 GB are TP1 with bf16 states and TP2 with fp32: the arguments say which."""
    arguments = "[2026-09-04 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3.8-27B', tp_size={}, page_size=1)\n"
    pool = (
        "[2026-09-04 10:00:30] Mamba Cache is allocated. max_mamba_cache_size: 4, conv_state size: 0.01GB, "
        "ssm_state size: 0.35GB\n"
    )
    for tp in (1, 2):
        found = answer(arguments.format(tp) + pool)
        assert {candidate.tp for candidate in found.candidates} == {tp}


def test_the_clamp_makes_the_limit_the_slots() -> None:
    text = (
        "[2026-01-01 00:00:00 TP0] max_running_requests is capped to 4 by the mamba state cache "
        "(max_mamba_cache_size=24, 5 state slots per request)\n"
    )
    found = next(iter(diagnose(assemble(scan(io.BytesIO(text.encode()))).boots, Question(workload=Workload((), 8)))))
    [short] = [one for one in found.findings if one.rule == "HC155"]
    assert "40 slots (8 x 5) of 24: 4 run" in short.message and "--max-mamba-cache-size 41" in short.fix


@pytest.mark.parametrize(
    ("wanted", "length", "runs", "fixes"),
    [
        (4, 1000, 4, ""),
        (5, 1000, 4, "--max-mamba-cache-size 26, more memory for KV"),
        (4, 1001, 3, "more memory for KV"),
        (4, 999, 4, ""),
        (5, 800, 4, "--max-mamba-cache-size 26"),
        (3, 1334, 2, "more memory for KV"),
        (3, 1333, 3, ""),
        (4, None, 4, ""),
        (5, None, 4, "--max-mamba-cache-size 26"),
    ],
)
def test_requests_that_are_wanted_take_slots_and_tokens_of_the_pools(
    wanted: int, length: int | None, runs: int, fixes: str
) -> None:
    """20 slots at 5 a request, and 4,000 tokens: each pool is named that is too small, and no other."""
    text = (
        "[2026-01-01 00:00:00 TP0] Mamba Cache is allocated. max_mamba_cache_size: 20, conv_state size: 0.05GB, "
        "ssm_state size: 1.06GB\n"
        "[2026-01-01 00:00:01 TP0] max_running_requests is capped to 4 by the mamba state cache "
        "(max_mamba_cache_size=20, 5 state slots per request)\n"
        "[2026-01-01 00:00:02 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4000, K size: 0.12 GB, "
        "V size: 0.12 GB\n"
    )
    boots = assemble(scan(io.BytesIO(text.encode()))).boots
    work = Workload(((length, 1),) if length is not None else (), wanted)
    found = next(iter(diagnose(boots, Question(workload=work))))
    [told] = [one for one in found.findings if one.rule == "HC155"]
    assert (told.severity, told.fix) == ("warning" if fixes else "note", fixes)
    assert told.message.endswith(": they run" if runs == wanted else f": {runs} run")
    assert f"{wanted * 5} slots ({wanted} x 5) of 20" in told.message
    assert (f"{wanted * (length or 0):,} tokens of 4,000" in told.message) is (length is not None)


@pytest.mark.parametrize(
    ("count", "named"),
    [(0, ""), (1, "a"), (4, "a, b, c, d"), (5, "a, b, c, d and 1 more"), (7, "a, b, c, d and 3 more")],
)
def test_four_models_are_named_and_the_others_counted(count: int, named: str) -> None:
    made = plan(load_model("kimi-k3"), ServerArgs(tp_size=8), rest_gib=28.55)
    found = answer("\n".join(made.log_lines))
    found.candidates = [Candidate(name, tp, "float32", "bfloat16", 1, 1) for name in "abcdefg"[:count] for tp in (1, 2)]
    assert found.names == named


POOL = "[2026-06-01 10:01:01 TP{}] Mamba Cache is allocated. max_mamba_cache_size: 82, conv_state size: 0.13GB"


@pytest.mark.parametrize(
    ("rest", "parted"), [("", False), (", ssm_state size: 7.", False), (", ssm_state size: 7.30GB", True)]
)
def test_ranks_differ_only_in_what_both_print(rest: str, parted: bool) -> None:
    """A line that the end of the log cuts off is no other pool."""
    found = answer(f"{POOL.format(0)}, ssm_state size: 7.29GB\n{POOL.format(1)}{rest}")
    assert ("HC103" in rules(found)) == parted


def test_a_stated_model_that_does_not_fit_is_named_with_what_is_off() -> None:
    """Qwen3.5-27B on TP2 has 0.35 GB of windows in 258 slots; 0.36 are none of its pools."""
    arguments = "server_args=ServerArgs(model_path='Qwen/Qwen3.5-27B', tp_size=2)\n"
    pool = "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.36GB, ssm_state size: 18.14GB\n"
    found = answer(arguments + pool)
    (said,) = [one.message for one in found.findings if one.rule == "HC107"]
    assert said.startswith("the log names qwen3.5-27b, and its pools are not of its sizes: conv state per slot is ")
    assert "SSM" not in said
    assert "HC107" not in rules(answer(arguments + pool.replace("0.36", "0.35")))


def test_pools_of_sliding_windows_are_no_drafts() -> None:
    """Two pools of one model: the tokens are those of its full layers, and both are charged."""
    lines = (
        "[2026-06-10 01:53:50 TP0] Load weight end. type=X, avail mem=17.50 GB, mem usage=5.42 GB.\n"
        "[2026-06-10 01:53:50 TP0] Use sliding window memory pool. full_layer_tokens=262528, swa_layer_tokens={0}\n"
        "[2026-06-10 01:53:50 TP0] KV Cache is allocated. #tokens: {0}, K size: {1} GB, V size: {1} GB\n"
        "[2026-06-10 01:53:50 TP0] KV Cache is allocated. #tokens: 262528, K size: 2.00 GB, V size: 2.00 GB\n"
        "[2026-06-10 01:53:50 TP0] Memory pool end. avail mem=3.43 GB\n"
        "[2026-06-10 01:53:52 TP0] max_total_num_tokens=262528, max_running_requests=1, context_len=262144\n"
    )
    for tokens, size in ((65632, "5.01"), (21204, "1.62")):
        found = answer(lines.format(tokens, size))
        assert "262,528 KV tokens" in found.meaning
        assert [row.what for row in found.rows] == ["262,528 tokens", f"{tokens:,} tokens of windows"]
        assert not any(one.rule in ("HC105", "HC114") for one in found.findings)
    assert not any(one.rule == "HC116" for one in answer(lines.format(65632, "5.01")).findings)
