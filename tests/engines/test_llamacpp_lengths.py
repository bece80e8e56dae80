"""Requests that no slot of llama.cpp holds, or fewer than are wanted: an error that says what does, as planned."""

from pathlib import Path

import pytest
from command_line import run

Q4, TRAINED = "qwen3.6-27b-Q4_K_M.gguf", 262_144
LINE = ("llama-server", "-m", Q4)


def plan(*words: str, line: tuple[str, ...] = LINE) -> dict:  # type: ignore[type-arg]
    """The document of a plan on an H200, or the card among the words, with its exit code."""
    gpu = () if "--gpu" in words else ("--gpu", "h200")
    split = words.index("|")
    done = run("plan", *gpu, *words[:split], "--json", "--", *line, *words[split + 1 :])
    return {"code": done.code, **done.document}


def rules(found: dict) -> dict[str, str]:  # type: ignore[type-arg]
    return {one["rule"]: one["severity"] for one in found["findings"]}


@pytest.mark.parametrize("context", [("-c", "600000", "-np", "1"), ("-c", "1200000", "-np", "2"), ("-c", "1200000")])
def test_a_slot_is_no_longer_than_the_trained_context(context: tuple[str, ...]) -> None:
    found = plan("-L", "300k", "|", *context)
    assert (found["code"], found["requests"], found["engine_figures"]["n_ctx_slot"]) == (1, 0, TRAINED)
    assert found["engine_figures"]["n_ctx_seq"] > TRAINED and rules(found)["HC223"] == "error"
    held = plan("-L", "200k", "|", *context)
    assert held["code"] == 0 and held["requests"] > 0 and "HC223" not in rules(held)


def test_cells_beyond_the_trained_context_are_memory_for_nothing() -> None:
    """337,920 cells of 64 KiB are 20.62 GiB, and the size that is advised has none of them."""
    found = plan("-L", "200k", "|", "-c", "600000", "-np", "1")
    [told] = [one for one in found["findings"] if one["rule"] == "HC214"]
    assert "337,920 of 600,064 cells are never used, 20.62 GiB" in told["message"]
    assert told["fix"] == f"write --ctx-size {TRAINED}"
    assert not plan("-L", "200k", "|", "-c", str(TRAINED), "-np", "1")["findings"]
    shared = plan("-L", "200k", "|", "-c", "600000", "--ctx-checkpoints", "1")
    assert "HC214" not in rules(shared), "four slots share 600,064 cells, each of which some slot may use"


def test_a_comparison_and_a_check_say_it_too(tmp_path: Path) -> None:
    line = f"llama-server -m {Q4} -c 600000 -np 1"
    sides = run("compare", "-L", "300k", "--gpu", "h200", line, f"llama-server -m {Q4} -c 65536 -np 1")
    assert sides.out.count("too long; HC223") == 2
    (script := tmp_path / "serve.sh").write_text(f"{line}\n", encoding="utf-8")
    done = run("check", str(script), "-L", "300k", "--json")
    assert done.code == 1 and "HC223" in {one["rule"] for one in done.document["findings"]}
    beyond = run("check", str(script), "--json").document["findings"]
    assert [one["rule"] for one in beyond] == ["HC214"]


@pytest.mark.parametrize("slot", ["slot   load_model: id  0 | task -1 | new slot, n_ctx = 262144\n", ""])
def test_a_log_says_that_no_slot_holds_it(slot: str, tmp_path: Path) -> None:
    """By the slot that is printed, else by the model."""
    (log := tmp_path / "boot.log").write_text(
        "llama_context: n_seq_max     = 1\nllama_context: n_ctx_seq     = 400128\n"
        "llama_kv_cache: size = 7815.00 MiB (400128 cells,  10 layers,  1/1 seqs), K (f16): 3907.50 MiB, V (f16): "
        f"3907.50 MiB\n{slot}",
        encoding="utf-8",
    )
    asked = ("log", str(log), "--model", "qwen3.6-35b-a3b", "-L")
    told = run(*asked, "300k").out
    assert "does not fit a slot of 262,144 tokens" in told and "137,984 cells are never used" in told
    assert "1 request of 204,800 tokens fits" in run(*asked, "200k").out


def test_reuse_refuses_a_prompt_beyond_the_trained_context() -> None:
    line = ("--no-what-if", "--", *LINE, "-c", "600000", "-np", "1")
    refused = run("reuse", "--workload", "cyclic:prefixes=2,tokens=300k", *line)
    assert refused.code and "262,144" in refused.err
    assert run("reuse", "--workload", "cyclic:prefixes=2,tokens=200k", *line).code == 0


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("-L", "40k", "|", "-c", "131072", "-np", "4"), "HC210"),
        (("-L", "40k", "|", "-c", "32768"), "HC223"),
        (("-L", "40k", "|", "-c", "32768", "-np", "1"), "HC223"),
        (("--gpu", "rtx3090", "-L", "200k", "|", "-np", "1"), "HC223"),
        (("-L", "30k", "-C", "4", "|", "-c", "32768"), "HC216"),
        (("-L", "8k", "-C", "9", "|", "-c", "65536", "-np", "4"), "HC216"),
        (("-L", "300k", "-C", "2", "|"), "HC223"),
    ],
)
def test_what_explains_the_verdict_is_an_error_and_is_said_first(words: tuple[str, ...], rule: str) -> None:
    split, gpu = words.index("|"), () if "--gpu" in words else ("--gpu", "h200")
    done = run("plan", *gpu, *words[:split], "--", *LINE, *words[split + 1 :])
    assert done.code == 1 and f"error: {rule} " in done.out
    assert [name for name, grave in rules(plan(*words)).items() if grave == "error"] == [rule]


@pytest.mark.parametrize(
    ("asked", "context"),
    [
        (("-L", "40k"), ("-c", "131072", "-np", "4")),
        (("-L", "30k", "-C", "4"), ("-c", "32768")),
        (("-L", "200k"), ("-np", "1")),
        (("-L", "200k"), ()),
    ],
)
def test_what_is_suggested_serves_as_many_whole_on_the_card(asked: tuple[str, ...], context: tuple[str, ...]) -> None:
    """Lossless first; one slot is never told to be fewer."""
    found = plan("--gpu", "rtx3090", *asked, "|", *context)
    assert found["suggestions"] and not any("fewer slots" in one["fix"] for one in found["findings"][:1])
    for one in found["suggestions"]:
        then = plan("--gpu", "rtx3090", *asked, "|", *context, *one["flags"])
        assert then["requests"] >= one["requests_after"] > found["requests"], one
        assert "HC219" not in rules(then)


def test_quantised_kv_is_the_bold_choice_where_nothing_else_helps() -> None:
    line = ("llama-server", "-m", "qwen3.6-27b-IQ4_XS.gguf")
    [one] = plan("--gpu", "rtx3090", "-L", "200k", "|", "-np", "1", line=line)["suggestions"]
    assert (" ".join(one["flags"]), one["risk"]) == ("--ctx-size 204800 -ctk q8_0 -ctv q8_0", "accuracy")
