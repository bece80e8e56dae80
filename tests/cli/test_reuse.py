"""`hybridcalc reuse` end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run

CYCLIC = "cyclic:prefixes=384,tokens=1000,rounds=4"
SHORTER = CYCLIC.replace("384", "48")
PROMISED = {"slots", "requests", "hit_tokens", "hit_rate", "token_hit_rate", "recomputed_tokens", "evictions",
            "knee_slots"}  # fmt: skip


def reuse(*arguments: str, code: int = 0) -> dict[str, Any]:
    ran = run("reuse", *arguments, "--json")
    assert (ran.code, ran.err) == (code, "")
    return ran.document


@pytest.mark.parametrize(("slots", "rate"), [(256, 0.0), (384, 1.0), (512, 1.0)])
def test_the_interfaces_example_answers(slots: int, rate: float) -> None:
    answer = reuse("--slots", str(slots), "--workload", CYCLIC, "--warmup-rounds", "1")
    assert answer.keys() >= PROMISED
    assert answer["schema"] == "hybridcalc.reuse/2"
    assert (answer["slots"], answer["requests"], answer["hit_rate"], answer["knee_slots"]) == (slots, 1152, rate, 384)
    assert answer["hit_tokens"] == 1152 * 960 * rate
    assert answer["recomputed_tokens"] == 1_152_000 - answer["hit_tokens"]


def test_without_a_warm_up_the_first_round_counts() -> None:
    answer = reuse("--slots", "512", "--workload", CYCLIC)
    assert (answer["requests"], answer["hit_rate"]) == (1536, 0.75)


def test_int8_checkpoints_have_twice_the_slots() -> None:
    answer = reuse("--slots", "256", "--workload", CYCLIC, "--warmup-rounds", "1", "--enable-int8-mamba-checkpoint")
    assert (answer["checkpoint_slots"], answer["hit_rate"], answer["knee_slots"]) == (512, 1.0, 384)


@pytest.mark.parametrize(
    "workload",
    [
        "chat:",
        "chat:sessions=20,turns=3",
        "fanout:parents=2,rounds=2",
        "chat",
        "rag:documents=30",
        "shared:tokens=1500,private=700",
    ],
)
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--running", "2"),
        ("--engine", "vllm", "--block-size", "528"),
        ("--strategy", "no_buffer", "--disable-overlap-schedule"),
    ],
)
def test_every_kind_of_workload_under_every_policy(workload: str, flags: tuple[str, ...]) -> None:
    answer = reuse("--slots", "48", "--workload", workload, *flags, "--no-what-if")
    assert 0 <= answer["token_hit_rate"] <= answer["hit_rate"] <= 1
    assert answer["hit_tokens"] + answer["recomputed_tokens"] == answer["prompt_tokens"]
    assert all(point["cached"] + point["running"] <= 48 for point in answer["held"])


def test_a_model_prices_the_slots() -> None:
    answer = reuse(
        "qwen3.5-35b-a3b", "--tp", "4", "--rest", "40GiB", "--slots", "256", "--workload", "cyclic:prefixes=9"
    )
    assert answer["memory"]["state_bytes"] == 257 * 16_097_280
    assert answer["memory"]["kv_tokens"] > 0
    rows = {row["name"]: row["memory"] for row in answer["what_if"]}
    assert rows["int8 checkpoints"]["int8_bytes"] == 513 * 4_423_680
    host = rows["host tier"]
    assert (host["host_slots"], host["host_kv_tokens"]) == (513, 2 * answer["memory"]["kv_tokens"] + 1)
    assert host["host_bytes"] == 513 * 16_097_280 + host["host_kv_tokens"] * host["kv_bytes_per_token"]
    assert answer["policy"] == "SGLang extra_buffer"


def test_a_models_kernel_chunk_is_the_grid() -> None:
    """Nemotron 3 saves states every 128 tokens, where 64 is the default."""
    answer = reuse(
        "nemotron-3-nano-30b-a3b",
        "--slots",
        "9",
        "--workload",
        "cyclic:prefixes=9,tokens=1100",
        "--warmup-rounds",
        "1",
        "--no-what-if",
    )
    assert answer["hit_tokens"] == 27 * 1024


def test_a_trace_file_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 3 + turn % 2]} for turn in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    answer = reuse("--slots", "8", "--workload", str(path))
    assert (answer["requests"], answer["hit_rate"]) == (40, 0.95)
    assert answer["workload"]["name"] == "trace"
    assert not answer["what_if"]
    assert any("--what-if" in note for note in answer["notes"])
    assert reuse("--slots", "8", "--workload", str(path), "--what-if")["what_if"]
    drawn = run("reuse", "--slots", "8", "--workload", str(path), "--seed", "3")
    assert (drawn.code, drawn.err) == (2, "error: a trace has nothing to draw by --seed\n       drop --seed\n")
    bare = path.rename(tmp_path / "trace")
    monkeypatch.chdir(tmp_path)
    assert reuse("--slots", "8", "--workload", bare.name)["requests"] == 40


def test_the_text_says_what_is_wanted_and_what_to_set() -> None:
    out = run("reuse", "--slots", "256", "--workload", CYCLIC, "--warmup-rounds", "1").out
    assert out.splitlines()[:2] == ["0.0 % of prompt tokens reused   384 slots are wanted, 256 are given", ""]
    assert "safe  --max-mamba-cache-size 384" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_text_of_a_workload_without_reuse() -> None:
    out = run("reuse", "--slots", "9", "--workload", "cyclic:prefixes=5,tokens=60", "--no-what-if").out
    assert out.splitlines()[1] == "  this workload reuses nothing with any number of slots"


def test_explain_prints_the_steps() -> None:
    out = run("reuse", "--slots", "9", "--workload", "cyclic:prefixes=5", "--no-what-if", "--explain").out
    assert "recomputed = prompt tokens - hit tokens + replayed tokens" in out
    assert "knee = least slots with rates of at least 0.95 x their limit" in out


SLOTS = ("--slots", "100", "--workload", "cyclic")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        ((), 2, "reuse needs a workload"),
        (("--slots", "9"), 2, "reuse needs a workload"),
        (("--workload", "cyclic", "--enable-int8-mamba-checkpoint"), 2, "an int8 pool is a share of the slots"),
        (("--workload", "cyclic", "--gpu", "h200"), 2, "--gpu is shared between slots and KV of a model"),
        (("--slots", "9", "--workload", "cyclic:k=1"), 2, "--workload cyclic: 'k=1' is not one of its parameters"),
        (
            ("--slots", "9", "--workload", "cyclc:zipf=1.5"),
            2,
            "--workload 'cyclc:zipf=1.5' is neither a kind of workload nor a file",
        ),
        (("--slots", "9", "--workload", "\0"), 2, "--workload '\\x00' is neither a kind of workload nor a file"),
        (
            ("--slots", "9", "--workload", "x" * 9999),
            2,
            f"--workload {'x' * 37 + '...'!r} is neither a kind of workload nor a file",
        ),
        (("--slots", "9", "--workload", "no/such.jsonl"), 2, "'no/such.jsonl' is no trace: no such file"),
        ((*SLOTS, "--warmup-rounds", "4"), 2, "--warmup-rounds 4 leaves none of 4 rounds to count"),
        (
            (*SLOTS, "--running", "21"),
            2,
            "21 running requests need 105 slots, 5 each under SGLang extra_buffer; 100 admit 20",
        ),
        ((*SLOTS, "--engine", "trt"), 2, "--engine 'trt' is not planned"),
        ((*SLOTS, "--engine", "vllm", "--mamba-cache-mode", "none"), 2, "--mamba-cache-mode 'none' saves no states"),
        (
            (*SLOTS, "--engine", "vllm", "--mamba-cache-mode", "all"),
            1,
            "vLLM 0.33.0 has no Mamba cache mode all: the last version that had it is 0.31.0, later ones run align",
        ),
        (
            (*SLOTS, "--engine", "vllm", "--mamba-cache-mode", "all", "--engine-version", "0.33.0"),
            1,
            "vLLM 0.33.0 has no Mamba cache mode all: the last version that had it is 0.31.0, later ones run align",
        ),
        (
            ("kimi-k3", *SLOTS, "--engine", "vllm", "--mamba-cache-mode", "all", "--engine-version", "0.31.0"),
            1,
            "vLLM 0.31.0 runs kimi-k3 in mode align, not all",
        ),
        ((*SLOTS, "--engine-version", "0.1"), 2, "SGLang 0.1 is older than every version known here"),
        ((*SLOTS, "--engine", "vllm", "--engine-version", "0.1"), 2, "vLLM 0.1 is older than every version known here"),
        ((*SLOTS, "--engine", "vllm", "--engine-version", "x"), 2, "'x' is not a version"),
        ((*SLOTS, "--strategy", "no_buffer"), 1, "no_buffer does not run under the overlap scheduler"),
        (
            ("qwen3.5-35b-a3b", *SLOTS, "--strategy", "no_buffer"),
            1,
            "no_buffer does not run under the overlap scheduler",
        ),
        (
            ("qwen3.5-35b-a3b", "--slots", "400", "--workload", "cyclic", "--rest", "1GiB"),
            1,
            "400 slots weigh 24.05 GiB: --rest leaves no KV beside them",
        ),
        (
            ("nemotron-h-8b", "--slots", "4000", "--workload", "cyclic", "--rest", "1GiB", "--engine", "vllm"),
            1,
            "4,000 slots weigh 380.86 GiB: --rest leaves no KV beside them",
        ),
        ((*SLOTS, "--int8-mamba-ckpt-size", "9"), 2, "--int8-mamba-ckpt-size has no effect alone"),
        (
            (*SLOTS, "--enable-int8-mamba-checkpoint", "--host-slots", "9"),
            1,
            "int8 checkpoints do not run with a host tier",
        ),
        ((*SLOTS, "--mamba-max-states-per-path", "0"), 2, "--mamba-max-states-per-path 0 keeps no state at all"),
        (
            (*SLOTS, "--strategy", "extra_buffer_lazy", "--disable-overlap-schedule"),
            1,
            "extra_buffer_lazy needs the overlap scheduler",
        ),
        (
            (*SLOTS, "--engine", "vllm", "--prefix-cache-retention-interval", "x"),
            2,
            "--prefix-cache-retention-interval 'x' is no interval",
        ),
        ((*SLOTS, "--rest", "40GiB"), 2, "--rest is shared between slots and KV of a model"),
        (("kimi-k3", *SLOTS, "--mem-fraction-static", "1e400"), 2, "--mem-fraction-static says nothing without --gpu"),
        (("kimi-k3", *SLOTS, "--weights", "3GiB"), 2, "--weights says nothing without --gpu"),
        (
            ("kimi-k3", *SLOTS, "--gpu", "8xh200", "--rest", "20GiB", "--weights", "99GiB"),
            2,
            "--weights says nothing beside --rest",
        ),
        (
            ("kimi-k3", *SLOTS, "--gpu", "8xh200", "--rest", "20GiB", "--mem-fraction-static", "0.8"),
            2,
            "--mem-fraction-static says nothing beside --rest",
        ),
        ((*SLOTS, "--kv-cache-dtype", "fp8_e4m3"), 2, "--kv-cache-dtype says nothing without a MODEL"),
        ((*SLOTS, "--mamba-ssm-dtype", "bfloat16"), 2, "--mamba-ssm-dtype says nothing without a MODEL"),
        ((*SLOTS, "--tp", "8"), 2, "--tp-size says nothing without a MODEL"),
        (("llama-3-8b", *SLOTS), 2, "llama-3-8b has no recurrent layer: its prefix cache holds no states"),
        (("falcon-mamba-7b", *SLOTS), 1, "SGLang keeps no states of FalconMambaForCausalLM for prefix reuse"),
        ((*SLOTS, "--max-total-tokens", "500"), 2, "a prompt takes 1,000 tokens of KV, more than the 500 there are"),
        (
            ("--slots", "100", "--workload", "cyclic:output=500", "--max-total-tokens", "1200"),
            2,
            "a request takes 1,499 tokens of KV, more than the 1,200 there are",
        ),
        (
            (*SLOTS, "--chunked-prefill-size", "1", "--workload", "cyclic:tokens=1M"),
            2,
            "1,048,576 tokens in steps of 1 leave more than 16,384 states of one request",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(arguments: tuple[str, ...], code: int, error: str) -> None:
    ran = run("reuse", *arguments)
    assert (ran.code, ran.out, ran.err.splitlines()[0]) == (code, "", f"error: {error}")
    assert len(ran.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", ("--strategy", "no_buffer")),
        ("vllm", ("--mamba-radix-cache-strategy", "auto")),
        ("vllm", ("--disable-overlap-schedule",)),
        ("vllm", ("--page-size", "1")),
        ("vllm", ("--mamba-track-interval", "256")),
        ("vllm", ("--mamba-max-states-per-path", "-1")),
        ("vllm", ("--enable-int8-mamba-checkpoint",)),
        ("vllm", ("--int8-mamba-ckpt-size", "9")),
        ("sglang", ("--block-size", "64")),
        ("sglang", ("--prefix-match-unit", "4")),
        ("sglang", ("--prefix-cache-retention-interval", "0")),
        ("sglang", ("--mamba-cache-mode", "align")),
    ],
)
def test_a_flag_that_only_the_other_engine_has_is_refused(engine: str, flag: tuple[str, ...]) -> None:
    """Even with the value that it has by itself: what is typed is meant to say something."""
    ran = run("reuse", *SLOTS, "--engine", engine, *flag)
    title, other = ("vLLM", "sglang") if engine == "vllm" else ("SGLang", "vllm")
    assert (ran.code, ran.out) == (2, "")
    assert f" is no flag of {title}" in ran.err
    assert f"write --engine {other}" in ran.err


def test_what_the_slots_have_no_room_for_is_left_out_of_the_comparison() -> None:
    answer = reuse(
        "--slots", "40", "--running", "10", "--strategy", "extra_buffer_lazy", "--workload", "chat:sessions=30"
    )
    assert answer["running"] == 10
    assert "--strategy extra_buffer" not in [row["flags"] for row in answer["what_if"]]
    assert any(note.startswith("not tried: --strategy extra_buffer: 10 running") for note in answer["notes"])


def test_what_suffices_is_never_more_than_what_is_given() -> None:
    answer = reuse("--slots", "8", "--running", "4", "--engine", "vllm", "--workload", "shared:tokens=1600")
    assert (answer["knee_slots"], answer["cached_slots"]) == (8, 0)
    out = run("reuse", "--slots", "8", "--running", "4", "--engine", "vllm", "--workload", "shared:tokens=1600").out
    assert "8 slots suffice" in out


def test_the_int8_pool_is_named_where_it_is_what_suffices() -> None:
    out = run("reuse", "--slots", "256", "--workload", CYCLIC, "--enable-int8-mamba-checkpoint", "--no-what-if").out
    assert "384 int8 slots suffice, the int8 pool has 512" in out


def test_vllm_is_told_what_is_wanted_too() -> None:
    out = run("reuse", "--slots", "9", "--engine", "vllm", "--workload", "cyclic:prefixes=20,tokens=2000").out
    assert "want  20 blocks for each group of state layers" in out


def test_a_path_cap_that_spares_nothing_says_what_running_requests_would() -> None:
    answer = reuse("--slots", "100", "--workload", "rag:", "--mamba-max-states-per-path", "1", "--no-what-if")
    assert answer["knee_slots"] is None
    assert any("--running R" in note and "path cap" in note for note in answer["notes"])
    out = run("reuse", "--slots", "100", "--workload", "rag:", "--mamba-max-states-per-path", "1", "--no-what-if").out
    assert "reuses nothing with any number of slots, one request at a time" in out


def test_more_running_requests_than_the_workload_sends_at_once_are_remarked() -> None:
    answer = reuse("--slots", "64", "--running", "4", "--workload", "chat:sessions=2,turns=3", "--no-what-if")
    assert any(note.startswith("chat sends 2 requests at once") for note in answer["notes"])


def test_a_file_that_bears_the_name_of_a_workload_is_read_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat").write_text('{"hash_ids": [1]}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert any("write ./chat" in note for note in reuse("--slots", "8", "--workload", "chat")["notes"])
    assert reuse("--slots", "8", "--workload", "./chat")["requests"] == 1
    assert not any("./chat" in note for note in reuse("--slots", "8", "--workload", "chat:")["notes"])


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_flags_are_never_broken(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run("reuse", "-v", "--slots", "32", "--workload", SHORTER, "--warmup-rounds", "1").out
    words = {word.strip(";") for word in out.split() if word.startswith("--")}
    assert words >= {
        "--mamba-max-states-per-path",
        "--mamba-track-interval",
        "--enable-hierarchical-cache",
        "--enable-int8-mamba-checkpoint",
        "--disable-overlap-schedule",
    }


def test_plan_takes_the_requests_of_a_workload(tmp_path: Path) -> None:
    """Their lengths, as a mix; a trace as well. A word alone stays a kind of work."""
    flags = ("plan", "qwen3.5-35b-a3b", "--tp", "4", "--rest", "40GiB", "--json", "--workload")
    capacity = run(*flags, "shared:tokens=1500,private=700,output=100,rounds=9").document["workload"]
    assert (capacity["length_tokens"], capacity["mean_length_tokens"]) == (2300, 2300.0)
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 600, "hash_ids": [1, 2], "output_length": 400}\n', encoding="utf-8")
    assert run(*flags, str(path)).document["workload"]["length_tokens"] == 1000
    mixed = run(*flags, "chat:sessions=5,turns=3,user=100,output=50").document["workload"]
    assert (mixed["length_tokens"], mixed["mean_length_tokens"]) == (450, 300.0)
    assert run(*flags, "agent").document["workload"]["length_tokens"] is None


def test_plan_refuses_two_answers_to_how_long_requests_are() -> None:
    ran = run("plan", "kimi-k3", "--rest", "40GiB", "-L", "8k", "--workload", "chat:sessions=5")
    assert (ran.code, ran.err) == (
        2,
        "error: --workload says how long requests are\n       leave out -L and --lengths\n",
    )


TWO_POOLS = ("qwen3.5-397b-a17b", "--tp", "8", "--workload", "cyclic:prefixes=300,tokens=20000", "--no-what-if")


def test_slots_and_kv_share_the_memory() -> None:
    """300 prompts of 20,000 tokens go round in KV for 167: the oldest has always left, whatever its state does."""
    by_memory = reuse(*TWO_POOLS, "--slots", "900", "--rest", "68GiB")
    by_hand = reuse(*TWO_POOLS, "--slots", "900", "--max-total-tokens", "3345281")
    same = ("hit_tokens", "evictions", "evicted_kv_tokens", "knee_slots", "kv_tokens_needed", "lost_to", "kv_tokens")
    assert {key: by_memory[key] for key in same} == {key: by_hand[key] for key in same}
    assert (by_memory["hit_tokens"], by_memory["lost_to"], by_memory["kv_tokens"]) == (0, "kv", 3_345_281)
    assert by_memory["knee_slots"] == 898
    assert 300 * 19_968 < by_memory["kv_tokens_needed"] < 300 * 20_000


def test_without_slots_the_knee_is_the_answer() -> None:
    answer = reuse("--workload", CYCLIC, "--warmup-rounds", "1")
    assert (answer["slots"], answer["knee_slots"], answer["hit_rate"]) == (384, 384, 1.0)
    assert 384 * 960 < answer["kv_tokens_needed"] <= 384 * 1000
    assert all({"knee_slots", "kv_tokens_needed", "token_hit_rate"} <= row.keys() for row in answer["what_if"])
    assert "safe  --max-mamba-cache-size 384" in run("reuse", "--workload", CYCLIC, "--no-what-if").out


def test_the_pools_are_those_of_the_plan() -> None:
    """Without slots, K and T are the engine's own, of the memory that is left of a GPU."""
    flags = ("qwen3.5-35b-a3b", "--gpu", "h200")
    planned = run("plan", *flags, "--json", "-L", "8k").document["engine_figures"]
    answer = reuse(*flags, "--workload", "cyclic:prefixes=9", "--no-what-if")
    assert answer["slots"] == planned["max_mamba_cache_size"]
    assert answer["kv_tokens"] == planned["max_total_num_tokens"]
    line = (
        "--",
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "Qwen/Qwen3.5-35B-A3B",
        "--max-mamba-cache-size",
    )
    pasted = run("reuse", "--gpu", "h200", "--workload", "cyclic:prefixes=9", "--no-what-if", "--json", *line, "77")
    assert (pasted.document["slots"], pasted.document["model"]) == (77, "qwen3.5-35b-a3b")


def test_vllms_states_and_kv_share_the_blocks() -> None:
    flags = ("nemotron-h-8b", "--engine", "vllm", "--workload", "cyclic:prefixes=40,tokens=6000", "--no-what-if")
    small, large = (reuse(*flags, "--rest", size) for size in ("6GiB", "60GiB"))
    assert (small["lost_to"], large["lost_to"]) == ("blocks", None)
    assert small["hit_tokens"] < large["hit_tokens"]
    out = run("reuse", *flags, "--rest", "6GiB").out
    assert "the pool loses the rest" in out
    assert max(map(len, out.splitlines())) <= 80


def test_which_pool_lost_the_prefix_is_named() -> None:
    few_slots = reuse("--slots", "13", "--workload", SHORTER, "--no-what-if")
    both = reuse("--slots", "13", "--workload", SHORTER, "--max-total-tokens", "5000", "--no-what-if")
    neither = reuse("--slots", "50", "--workload", SHORTER, "--no-what-if")
    assert [answer["lost_to"] for answer in (few_slots, both, neither)] == ["state", "both", None]


def test_a_change_that_wants_fewer_slots_is_said_although_as_much_is_reused() -> None:
    """Each change has a knee and a need of KV of its own."""
    answer = reuse("--slots", "900", "--workload", "cyclic:prefixes=60,tokens=20000")
    rows = {row["name"]: row for row in answer["what_if"]}
    assert rows["path cap"]["token_hit_rate"] == answer["token_hit_rate"]
    assert rows["path cap"]["knee_slots"] < answer["knee_slots"]
    assert rows["path cap"]["kv_tokens_needed"] > 60 * 19_000
