"""`hybridcalc ratio` end to end: presets, configs, logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).resolve().parent.parent.parent
LOG = str(ROOT / "examples" / "kimi-k3-boot.log")
K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3", "-L", "9216")
TWO_LINES = (
    b"max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB\n"
    b"#tokens: 1167552, KV size: 15.03 GB\n"
)


def test_kimi_k3_lazy_has_the_published_constants_and_ratio() -> None:
    """SGLang's sizing note: token_equiv 4063, S = 4, r* = 1.76 (figures B3, B4)."""
    answer = run("ratio", *K3, "--mamba-ssm-dtype", "float32", "--strategy", "extra_buffer_lazy", "--json").document
    assert answer["state_bytes_per_slot"] == 56_171_520
    assert (answer["ssm_bytes_per_slot"], answer["conv_bytes_per_slot"]) == (54_263_808, 1_907_712)
    assert answer["kv_bytes_per_token"] == 13_824
    assert answer["token_equiv"] == pytest.approx(4063.333, abs=5e-4)
    assert answer["slots_per_request"] == 4
    assert answer["ratio"] == pytest.approx(1.7636, abs=5e-5)
    assert answer["constants_from"] == "architecture"


def test_context_parallelism_multiplies_the_ratio() -> None:
    """KV of a sequence is shared by dcp ranks, its state is not (figure B4: x8)."""
    answer = run("ratio", *K3, "--strategy", "extra_buffer_lazy", "--dcp", "8", "--json").document
    assert answer["ratio"] == pytest.approx(14.1088, abs=5e-5)


@pytest.mark.parametrize(
    ("flags", "slots", "reason"),
    [
        ((), 5, "extra_buffer: 3 + 2"),
        (("--pp", "2"), 4, "pp 2 turns overlap off"),
        (("--disable-radix-cache",), 1, "radix cache off"),
        (("--env", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1"), 4, "decode lock skipped"),
        (("--strategy", "no_buffer", "--disable-overlap-schedule"), 3, "no_buffer"),
    ],
)
def test_slots_follow_the_flags_and_say_why(flags: tuple[str, ...], slots: int, reason: str) -> None:
    answer = run("ratio", *K3, *flags, "--json").document
    assert answer["slots_per_request"] == slots
    assert reason in answer["slots_reason"]


def test_a_budget_shows_what_today_comes_to() -> None:
    """K = 257 at ratio 0.9 of 28.55 GiB, as the published boot printed it."""
    answer = run("ratio", *K3, "--strategy", "extra_buffer_lazy", "--rest", "28.55GiB", "--json").document
    clamp = answer["clamp"]
    assert (clamp["max_mamba_cache_size"], clamp["state_requests"], clamp["kv_requests"]) == (257, 64, 126)
    assert (clamp["binding"], clamp["rest_gib"]) == ("state", pytest.approx(28.55))
    balanced = answer["settings"][0]
    assert abs(balanced["state_requests"] - balanced["kv_requests"]) <= 1


def test_concurrency_is_pinned_with_one_slot_to_spare() -> None:
    answer = run("ratio", *K3, "-C", "64", "--json").document
    assert answer["pin"] == {"concurrency": 64, "max_mamba_cache_size": 321}


def test_draft_states_are_charged_and_the_published_form_is_named() -> None:
    """r* is linear in S + D; the note says where the engine puts the draft states."""
    plain = run("ratio", *K3, "--json").document
    flags = ("--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "5", "--draft-layers", "0")
    drafting = run("ratio", *K3, *flags, "--json").document
    assert drafting["draft_states"] == 5
    assert drafting["ratio"] == pytest.approx(2 * plain["ratio"])
    assert any("published form" in note for note in drafting["notes"])


def test_replayssm_verification_charges_no_draft_states() -> None:
    flags = (
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-num-draft-tokens",
        "5",
        "--draft-layers",
        "0",
        "--enable-linear-replayssm-spec",
    )
    assert run("ratio", *K3, *flags, "--json").document["draft_states"] == 0


@pytest.mark.parametrize("source", [LOG, "-"], ids=["file", "stdin"])
def test_a_log_gives_intervals_that_hold_the_exact_constants(source: str) -> None:
    """258 slots share the printed pools: the exact 56,171,520 B and 13,824 B lie in the intervals (figure B1)."""
    answer = run("ratio", "--log", source, "-L", "9216", "--json", stdin=TWO_LINES).document
    low, high = answer["state_bytes_per_slot_range"]
    assert low <= 56_171_520 < high
    low, high = answer["kv_bytes_per_token_range"]
    assert low <= 13_824 < high
    assert answer["constants_from"] == "log"
    assert answer["clamp"]["max_mamba_cache_size"] == 257
    assert answer["clamp"]["kv_tokens"] == 1_167_552


def test_a_model_that_made_the_log_matches_it() -> None:
    ran = run("ratio", "--log", LOG, *K3, "--json")
    assert ran.code == 0
    assert ran.document["constants_from"] == "architecture"
    assert [finding["rule"] for finding in ran.document["findings"]] == ["HC100"]


def test_a_model_that_did_not_is_a_finding_with_the_flags_that_fit() -> None:
    """Wrong tp and KV dtype: both constants are off, the flags that explain the log are named, exit 1."""
    ran = run("ratio", "kimi-k3", "--log", LOG, "--tp", "4", "-L", "9216", "--json")
    assert ran.code == 1
    finding = ran.document["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("HC101", "error")
    assert finding["fix"] == "with --tp 8 --kv-cache-dtype fp8_e4m3 it fits"
    assert ran.document["constants_from"] == "log"


def test_fail_on_never_lets_a_mismatch_pass() -> None:
    assert run("ratio", "kimi-k3", "--log", LOG, "--tp", "4", "-L", "9216", "--fail-on", "never").code == 0


def test_a_log_without_pool_lines_says_what_is_wanted() -> None:
    ran = run("ratio", "--log", "-", "-L", "9216", stdin=b"nothing here\n")
    assert ran.code == 2
    assert ran.err == (
        "error: stdin: no SGLang pool allocation in it\n"
        "       wanted: the lines `Mamba Cache is allocated. ...` and `KV Cache is allocated. ...`\n"
    )


def test_a_config_json_and_its_preset_agree() -> None:
    """The released Qwen3.5-27B config, from a folder, against the shipped preset."""
    config = run("ratio", str(ROOT / "examples" / "qwen3.5-27b"), "-L", "32k", "--tp", "2", "--json").document
    preset = run("ratio", "Qwen/Qwen3.5-27B", "-L", "32k", "--tp", "2", "--json").document
    for key in ("ratio", "state_bytes_per_slot", "kv_bytes_per_token", "slots_per_request"):
        assert config[key] == preset[key]


def test_a_config_is_read_from_stdin() -> None:
    config = (ROOT / "examples" / "qwen3.5-27b" / "config.json").read_bytes()
    assert run("ratio", "-", "-L", "32k", "--json", stdin=config).document["length_tokens"] == 32_768


def test_steps_carry_formula_numbers_unit_and_source() -> None:
    steps = run("ratio", *K3, "--json").document["steps"]
    assert [step["symbol"] for step in steps] == ["state", "kv", "token_equiv", "S", "D", "r*", "pin"]
    assert all(step["formula"] and step["with_numbers"] and step["unit"] and step["source"] for step in steps)
    assert json.dumps(steps[0]["value"]) == "56171520"


def test_explain_prints_every_step() -> None:
    out = run("ratio", *K3, "--explain").out
    assert "r* = (S + D) x state / (L x (kv / dcp + draft kv))" in out
    assert "published form" in out


RINGS = ("--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "9", "--enable-linear-replayssm-spec",
         "--linear-replayssm-cache-len")  # fmt: skip


@pytest.mark.parametrize("rest", [(), ("--rest", "28.55GiB")])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--log", LOG, "--strategy", "no_buffer"), "no_buffer does not run under the overlap scheduler"),
        (
            ("--log", LOG, "--strategy", "no_buffer", "--disable-overlap-schedule", "--page-size", "64"),
            "no_buffer needs --page-size 1, not 64",
        ),
        (
            ("--log", LOG, "--strategy", "extra_buffer_lazy", "--pp", "2"),
            "extra_buffer_lazy needs the overlap scheduler",
        ),
        (("kimi-k3", "--tp", "8", *RINGS, "12"), "the ring length must be a power of two, 12 is not"),
        (
            ("kimi-k3", "--tp", "8", *RINGS, "16"),
            "the ring length must be at least 2 x D = 18 for 9 draft tokens, 16 is not",
        ),
        (
            ("glm-5.3-flash", "--disable-overlap-schedule", "--tp", "4", "--page-size", "1"),
            "the sparse-attention index needs pages of 64 pooled tokens, 4 to one, not pages of 1",
        ),
    ],
)
def test_flags_the_engine_refuses_are_exit_1_with_a_budget_and_without(
    arguments: tuple[str, ...], error: str, rest: tuple[str, ...]
) -> None:
    """A ratio of a server that does not start is no answer."""
    ran = run("ratio", *arguments, "-L", "9216", *rest)
    assert (ran.code, ran.out, ran.err.splitlines()[0]) == (1, "", f"error: {error}")


@pytest.mark.parametrize("arguments", [K3[:5], ("--log", LOG)])
def test_a_budget_in_which_no_ratio_starts_is_said_not_to_fit(arguments: tuple[str, ...]) -> None:
    """Neither what a ratio would admit, nor the advice to give the budget that was given."""
    out = run("ratio", *arguments, "-L", "9216", "--rest", "1MiB").out
    assert "does not fit: no ratio starts in 1.00 MiB" in out.splitlines()[0]
    assert "does not fit in 1.00 MiB" in out
    assert "--rest SIZE" not in out
    assert ("as booted" in out) == ("--log" in arguments)


@pytest.mark.parametrize("arguments", [("no-such-model",), ("--log", "no-such-file"), ("kimi-k3", "--tp", "5"), ()])
def test_fail_on_is_checked_before_anything_is_read(arguments: tuple[str, ...]) -> None:
    """A severity that is none is the first thing said."""
    ran = run("ratio", *arguments, "-L", "9216", "--fail-on", "bogus")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --fail-on 'bogus' is not a severity\n       write note, warning, error or never\n"


FP8 = "Qwen/Qwen3.5-397B-A17B-FP8"


def test_a_gpu_says_the_memory_as_it_does_to_a_plan() -> None:
    """Ranks, weights and fraction follow from it; today's flags come to what `plan` makes of them."""
    words = (FP8, "--gpu", "8xh200", "-L", "64k", "--json")
    found, plan = run("ratio", *words).document, run("plan", *words).document
    assert found["memory"] == plan["memory"]
    assert found["gpus"] == plan["gpus"] == 8
    assert found["clamp"]["max_mamba_cache_size"] == plan["max_mamba_cache_size"]
    assert found["clamp"]["requests_range"] == plan["requests_range"]
    low, likely, high = found["settings"][0]["requests_range"]
    assert low < likely <= high
    balanced = run("plan", *words, *found["settings"][0]["flags"].split()).document
    assert balanced["requests_range"] == [low, likely, high]
    said = run("ratio", *words[:-1]).out
    assert f"{likely} requests ({low} to {high}) of 65,536 tokens; today " in said
    assert "tp 8 on 8 x H200" in said


def test_weights_that_a_name_leaves_open_are_a_finding() -> None:
    """An interval of weights is one of requests."""
    answer = run("ratio", "Qwen/Qwen3.6-35B-A3B-NVFP4", "--gpu", "l40s", "-L", "8k", "--json").document
    assert [finding["rule"] for finding in answer["findings"]] == ["HC090"]
    low, likely, high = answer["memory"]["weights_gib"]
    assert low < likely < high


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("kimi-k3", "--gpu", "8xh200"), "weights alone take 191.71 of 137.90 GiB"),
        (("qwen3.6-27b", "--gpu", "3xh100"), "3 GPUs do not share qwen3.6-27b"),
        (("qwen3.6-27b", "--gpu", "2xh100", "--tp", "4"), "4 ranks on 2 GPUs"),
        (("qwen3.6-27b", "--gpu", "h100", "--weights", "9GiB", "--rest", "3GiB"), "given in more than one way"),
        (("qwen3.6-27b", "--weights", "3GiB"), "--weights says nothing without --gpu"),
        (("qwen3.6-27b", "--mem-fraction-static", "0.8"), "--mem-fraction-static says nothing without --gpu"),
        (("qwen3.6-27b", "--gpu", "h100", "--log", LOG), "--log says how much memory there was"),
    ],
)
def test_a_gpu_that_does_not_do_is_refused(words: tuple[str, ...], message: str) -> None:
    answer = run("ratio", *words, "-L", "8k")
    assert answer.code in (1, 2)
    assert message in answer.err


@pytest.mark.parametrize("memory", [("--gpu", "h100"), ("--rest", "9GiB")])
def test_a_request_that_no_split_holds_is_an_error_and_nothing_is_advised(memory: tuple[str, str]) -> None:
    """64 GiB of KV for 2**20 tokens of 65,536 B: as `plan`, which says HC002 and exits with 1."""
    asked = ("Qwen/Qwen3.5-27B", "-L", "1M", *memory)
    ran = run("ratio", *asked)
    assert ran.code == run("plan", *asked).code == 1
    said = " ".join(ran.out.split())
    assert "error: HC002 none runs, whatever the ratio: a request of 1,048,576 tokens takes 64.72 GiB of 9.00 GiB" in (
        said.replace("9.10 GiB", "9.00 GiB")
    )
    assert "shorten the requests: the model's own limit is 262,144 tokens" in said
    assert "set --mamba" not in said


def test_a_length_beyond_the_model_s_own_limit_is_said_in_the_headline() -> None:
    said = " ".join(run("ratio", "Qwen/Qwen3.5-27B", "-L", "1M", "--rest", "100GiB").out.split())
    assert "longer than the model's own limit of 262,144" in said
    assert "HC002" not in said


def test_the_slots_of_a_request_are_those_that_a_boot_printed(tmp_path: Path) -> None:
    """MiniCPM-SALA has no radix cache by default, and this boot had: 3 x 50,331,648 / (8,192 x 8,192) = 2.25."""
    log = tmp_path / "boot.log"
    log.write_text(
        "max_running_requests is capped to 7 by the mamba state cache (max_mamba_cache_size=23, 3 state slots per "
        "request). To raise it: increase --mamba-full-memory-ratio\n"
        "Mamba Cache is allocated. max_mamba_cache_size: 23, conv_state size: 0.00GB, ssm_state size: 1.12GB \n"
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1163264, K size: 4.44 GB, V size: 4.44 GB\n"
    )
    found = run("ratio", "minicpm-sala", "--log", str(log), "-L", "8192", "--json").document
    assert (found["slots_per_request"], found["ratio"]) == (3, 2.25)
