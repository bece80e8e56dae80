"""`compare`: each side is the plan of its launch line, and the order is by requests that certainly run on a GPU."""

from __future__ import annotations

from pathlib import Path

from command_line import run

SCRIPT = Path("tests/golden/inputs/five.sh")
LINES = [line.rstrip(" &").split() for line in SCRIPT.read_text(encoding="utf-8").splitlines()[1:]]


def test_sides_are_the_plans_of_their_lines() -> None:
    """Three lines of SGLang and two of vLLM: requests as `plan` says of each alone, in the order of the script."""
    document = run("compare", str(SCRIPT), "--gpu", "h200", "-L", "64k", "--json").document
    alone = [
        run("plan", "--json", "--gpu", "h200", "-L", "64k", "--fail-on", "never", "--", *line).document
        for line in LINES
    ]
    assert [side["requests"] for side in document["sides"]] == [plan["requests"] for plan in alone]
    assert [side["engine"] for side in document["sides"]] == ["sglang"] * 3 + ["vllm"] * 2
    certain = [plan["requests_range"][0] / plan["gpus"] for plan in alone]
    assert document["ranking"] == sorted(range(5), key=lambda number: -certain[number])


def test_differences_are_from_the_best_of_the_same_engine() -> None:
    document = run("compare", str(SCRIPT), "--gpu", "h200", "-L", "64k", "--json").document
    best = {document["sides"][number]["engine"]: number for number in reversed(document["ranking"])}
    assert best == {"vllm": 3, "sglang": 1}
    assert document["sides"][3]["difference"] == document["sides"][1]["difference"] == []
    assert document["sides"][0]["difference"] == ["- --mamba-full-memory-ratio 0.12"]
    assert set(document["sides"][4]["difference"]) == {
        "- --tensor-parallel-size 8",
        "+ --tensor-parallel-size 4",
        "+ --max-num-seqs 64",
    }


def test_variables_of_a_script_are_given_or_named(tmp_path: Path) -> None:
    """A size that no file decides leaves the launch out, and says how to give it."""
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3.6-27B-FP8 -tp $RANKS --max-model-len 32768\n", encoding="utf-8")
    given = run("compare", str(script), "--gpu", "h100", "-L", "8k", "--set", "RANKS=2", "--json")
    assert given.document["sides"][0]["gpus"] == 2
    left_open = run("compare", str(script), "--gpu", "h100", "-L", "8k")
    assert left_open.code == 2
    assert "RANKS" in left_open.err


def test_lines_of_one_engine_show_what_differs() -> None:
    """The block that a smaller KV makes longer, on the same memory; of two engines there are no common terms."""
    line = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 -tp 2 --max-model-len 32768"
    ran = run("compare", line, f"{line} --kv-cache-dtype fp8", "--available", "40GiB", "-L", "32k")
    assert [word in ran.out for word in ("576", "1,088", " 91 ", " 160 ")] == [True] * 4
    other = run(
        "compare", line, "sglang serve Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 --tp 2", "--gpu", "h100", "-L", "32k"
    )
    assert "block, tokens" not in other.out
    assert all(name in other.out for name in ("a step, at best", "tokens/s each", "a request takes"))


def test_what_a_line_lacks_is_said_where_its_gpu_is_named() -> None:
    lines = [f"llama-server -hf unsloth/Qwen3.6-35B-A3B-GGUF{mix} -c 65536 -np 8" for mix in (":Q4_K_M", "")]
    out = " ".join(run("compare", *lines, "--gpu", "h100", "-L", "8k").out.split())
    assert "line 2 is left out: --gpu needs the weights" in out and "names its GPU" not in out


def test_lines_that_run_as_much_are_a_tie() -> None:
    line = "vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --max-model-len 65536"
    out = run("compare", line, f"{line} --port 9000", "--gpu", "h100", "-L", "8k").out
    assert out.startswith("line 1 and 1 alike run the most on a GPU")


def test_a_verdict_of_two_lines_is_set_off_by_one_blank_line() -> None:
    lines = (
        "vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --max-model-len 65536",
        "sglang serve --model-path Qwen/Qwen3.6-27B-FP8",
    )
    out = run("compare", *lines, "--workload", "chat:sessions=50", "--gpu", "h100").out
    assert "average\n\n  launch" in out


def test_prices_rank_lines_by_what_a_request_costs() -> None:
    """122 and 163 requests on an H200 of 3.50, 228 on a B200 of 5.50: 3.5 / 163 = 0.0215, 5.5 / 228 = 0.0241."""
    line = "sglang serve Qwen/Qwen3.6-35B-A3B-FP8"
    tuned = f"{line} --mamba-full-memory-ratio 1.71"
    given = ("--rest", "77.6GiB,77.6GiB,108.6GiB", "--gpu", "h200,h200,b200", "-L", "9216")
    priced = run("compare", line, tuned, tuned, *given, "--price", "h200=3.5,b200=5.5", "--json").document
    assert priced["ranking"] == [1, 2, 0]
    assert [side["requests"] for side in priced["sides"]] == [122, 163, 228]
    assert [round(side["price_per_request"], 4) for side in priced["sides"]] == [0.0287, 0.0215, 0.0241]
    plain = run("compare", line, tuned, tuned, *given, "--json").document
    assert plain["ranking"] == [2, 1, 0] and "price_per_hour" not in plain["sides"][0]


def test_sizes_are_for_all_lines_or_for_each() -> None:
    line = "sglang serve Qwen/Qwen3.6-35B-A3B-FP8"
    ran = run("compare", line, line, "--rest", "1GiB,2GiB,3GiB", "-L", "8k")
    assert (ran.code, ran.err) == (2, "error: 3 --rest for 2 launches\n       give one for all, or one for each\n")
    ran = run("compare", line, line, "--gpu", "h200,b200", "--price", "b200=5", "-L", "8k")
    assert ran.code == 1 and "line 1, h200 is left out: no price of h200" in ran.out


def test_where_none_starts_it_is_said_what_the_fixes_come_to() -> None:
    """Each line is planned with what its refusal says to write, as `plan` does, and the best of them is named."""
    line = "vllm serve Qwen/Qwen3.6-35B-A3B -tp 2 --max-num-seqs"
    answer = run("compare", "-v", "--gpu", "2xl40s", "-L", "32k", f"{line} 4096", f"{line} 2048 --kv-cache-dtype fp8")
    mended = run("plan", "--gpu", "2xl40s", "-L", "32k", "--", *f"{line} 30 --kv-cache-dtype fp8".split())
    runs = mended.out.partition("   ")[0].strip()
    assert answer.code == 1
    assert answer.out.startswith(f"none of these starts\n  line 2 with --max-num-seqs 30: {runs}\n")
    assert f"write --max-num-seqs 30: {runs}" in " ".join(answer.out.split())


def test_a_refusal_is_mended_as_plan_mends_it() -> None:
    words = ("--gpu", "l40s", "-L", "32k", "--json")
    line = "vllm serve Qwen/Qwen3.6-35B-A3B"
    of_plan = run("plan", *words, "--", *line.split()).document["refusal"]
    assert of_plan["fix"].startswith("write -tp 2: ")
    assert run("compare", line, *words).document["sides"][0]["refusal"] == of_plan


def test_one_line_is_compared_with_itself_over_releases_gpus_and_sizes() -> None:
    """SGLang 0.5.12 holds 3 slots a request, 0.5.23 5: 66 // 3 = 22, of which KV holds 21, and 65 // 5 = 13."""
    line = "sglang serve Qwen/Qwen3.6-27B-FP8"
    ran = run("compare", line, "--engine-version", "0.5.12,0.5.23", "--rest", "20GiB", "-L", "8k", "--json").document
    assert [(side["label"], side["requests"]) for side in ran["sides"]] == [("0.5.12", 21), ("0.5.23", 13)]
    ran = run("compare", line, "--rest", "20GiB,40GiB", "-L", "8k", "--json").document
    assert [(side["label"], side["requests"]) for side in ran["sides"]] == [("20GiB", 13), ("40GiB", 26)]
    cards = run(
        "compare", line, "--gpu", "h100,h200", "--engine-version", "0.5.12,0.5.23", "-L", "8k", "--json"
    ).document
    assert [side["label"] for side in cards["sides"]] == ["h100, 0.5.12", "h200, 0.5.23"]
    refused = run("compare", line, line, "--engine-version", "0.5.12,0.5.20,0.5.23", "--rest", "20GiB", "-L", "8k")
    assert refused.err == "error: 3 --engine-version for 2 launches\n       give one for all, or one for each\n"


def test_a_model_is_no_launch_line() -> None:
    refused = run("compare", "kimi-k3", "sglang serve Qwen/Qwen3.6-27B-FP8", "--rest", "20GiB", "-L", "8k")
    assert (refused.code, refused.err) == (2, "error: kimi-k3 is a model\n       give its launch line, in quotes\n")


def test_every_refused_line_says_what_to_write() -> None:
    line = "vllm serve nvidia/Qwen3.6-27B-NVFP4"
    ran = run("compare", line, f"{line} --kv-cache-dtype fp8", "--gpu", "rtx-5090", "-L", "8k", COLUMNS="80")
    assert all(f"note: line {number}: write --max-model-len 8192 --max-num-seqs " in ran.out for number in (1, 2))
    assert len(ran.out.splitlines()) <= 12


def test_a_size_that_no_line_takes_or_that_is_empty_is_an_error() -> None:
    line = "sglang serve Qwen/Qwen3.6-27B-FP8"
    ran = run("compare", line, "--available", "20GiB", "-L", "8k")
    assert (ran.code, ran.err) == (2, "error: --available says nothing about SGLang\n       leave it out\n")
    ran = run("compare", line, "--rest", ",", "-L", "8k")
    assert (ran.code, ran.err.split("\n")[0]) == (2, "error: --rest has no value")


REFUSED = (
    "sglang serve Qwen/Qwen3.6-35B-A3B",
    "vllm serve Qwen/Qwen3.6-35B-A3B --max-model-len 32768",
    "sglang serve Qwen/Qwen3.6-35B-A3B --tp 3",
)


def test_each_line_that_does_not_start_says_so_in_words() -> None:
    """Of several the reason stands in the table, in the words of the rule; beside one that starts too."""
    ran = run("compare", *REFUSED, "--gpu", "h100", "-L", "32k", "-C", "40")
    for said in (
        "no memory for a pool (HC001)",
        "max_num_seqs exceeds the blocks (HC044)",
        "ranks do not divide the model (HC009)",
        "40 are wanted: none serves as many",
    ):
        assert said in " ".join(ran.out.split())
    ran = run("compare", *REFUSED[:2], f"{REFUSED[0]}-FP8", "--gpu", "h100", "-L", "32k", "-C", "20")
    assert "does not start: no memory for a pool (HC001)" in " ".join(ran.out.split())
    assert "1 of 3 start; 20 are wanted: 1 of 3 serve as many" in " ".join(ran.out.split())
    ran = run("compare", REFUSED[0], f"{REFUSED[0]}-FP8", "--gpu", "h100", "-L", "32k")
    assert "does not start: HC001\n" in ran.out and "note: line 1: no room for a state slot" in ran.out


def test_no_line_that_serves_no_request_runs_the_most() -> None:
    line = "vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --max-model-len 16384"
    ran = run("compare", line, "--gpu", "h100", "-L", "32k")
    assert ran.out.startswith("line 1 serves no request of 32,768 tokens\n")
    ran = run("compare", line, line.replace("16384", "8192"), "--gpu", "h100", "-L", "32k")
    assert ran.out.startswith("none of these serves a request of 32,768 tokens\n")
