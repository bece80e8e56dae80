"""`hybridcalc plan` end to end: where memory comes from, launch lines, comparisons, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
from command_line import pasted, plan, run

import hybridcalc

K3 = ("kimi-k3", "--tp", "8", "--kv-cache-dtype", "fp8_e4m3")
LAZY = (*K3, "--strategy", "extra_buffer_lazy")
REST = ("--rest", "28.55GiB")
LAUNCH = (
    "--", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1", "python", "-m", "sglang.launch_server", "--model-path",
    "moonshotai/Kimi-K3", "--tp", "8", "--mamba-radix-cache-strategy", "extra_buffer_lazy", "--port", "30000",
)  # fmt: skip


def test_the_published_boot_of_kimi_k3_is_planned_to_the_slot() -> None:
    """K = 257 and R = 64 of 28.55 GiB at ratio 0.9, with the sizes the boot printed (figure B1)."""
    answer = plan(*LAZY, *REST, "-L", "9216")
    assert (answer["max_mamba_cache_size"], answer["max_running_requests"]) == (257, 64)
    assert (answer["bytes_per_slot"], answer["kv_bytes_per_token"]) == (56_171_520, 13_824)
    assert any("conv_state size: 0.46GB, ssm_state size: 13.04GB" in line for line in answer["log_lines"])


def test_json_holds_every_promised_key_and_nothing_but_one_document() -> None:
    """INTERFACE of `plan`: names and types that scripts rely on."""
    ran = run("plan", *LAZY, *REST, "-L", "9216", "--json")
    answer = ran.document
    assert answer["schema"] == "hybridcalc.plan/2"
    assert "\x1b" not in ran.out and ran.err == ""
    whole = (
        "max_mamba_cache_size",
        "max_total_num_tokens",
        "logical_token_capacity",
        "max_running_requests",
        "slots_per_request",
        "bytes_per_slot",
        "kv_bytes_per_token",
    )
    assert all(type(answer[name]) is int for name in whole)
    assert (answer["starts"], answer["refusal"]) == (True, None)
    assert answer["binding"] in ("state", "kv", "limit")
    assert all(set(line) >= {"name", "charged_bytes", "allocated_bytes", "why"} for line in answer["budget"])
    assert all(type(line[name]) is int for line in answer["budget"] for name in ("charged_bytes", "allocated_bytes"))
    assert answer["suggestions"] and all(set(s) >= {"flags", "effect", "why"} for s in answer["suggestions"])
    assert all(set(f) >= {"rule", "severity", "message", "fix"} for f in answer["findings"])
    assert answer["log_lines"] and answer["steps"]


def test_the_budget_never_charges_more_than_there_is() -> None:
    """Charges fill the memory to less than one token and one slot."""
    answer = plan(*LAZY, *REST)
    left = int(answer["memory"]["rest_gib"] * 2**30) - sum(line["charged_bytes"] for line in answer["budget"])
    assert 0 <= left < answer["kv_bytes_per_token"]


def test_a_gpu_with_weights_leaves_what_the_formula_says() -> None:
    """H200, 139.80 GiB: less 1.9 of context, 80 of weights, (1 - F) of the free memory, 0.10 of images."""
    answer = plan(*K3, "--gpu", "h200", "--weights", "80GiB", "--mem-fraction-static", "0.85")
    low, likely, high = (free - 80 - free * 0.15 - 100 / 1024 for free in (139.8 - 2.6, 139.8 - 1.9, 139.8 - 1.5))
    assert answer["memory"]["rest_gib"] == pytest.approx([low, likely, high])
    assert [part["name"] for part in answer["memory"]["parts"]] == ["context", "weights", "headroom", "images"]


def test_a_gpu_alone_is_enough() -> None:
    """Weights, context and SGLang's default fraction; eight cards are eight tensor-parallel ranks."""
    answer = plan("Qwen/Qwen3.5-397B-A17B-FP8", "--gpu", "8xh200", "-L", "64k")
    memory = answer["memory"]
    assert (answer["gpus"], memory["total_gib"], memory["fraction_from"]) == (8, 139.8, "SGLang's default")
    assert 46 < memory["weights_gib"] < 48
    assert memory["rest_gib"][0] < memory["rest_gib"][1] < memory["rest_gib"][2]
    given = plan("Qwen/Qwen3.5-397B-A17B-FP8", "--gpu", "8xh200", "--tp", "4", "-L", "64k")
    assert given["gpus"] == 4 and given["memory"]["weights_gib"] > 90


def test_weights_that_do_not_fit_say_how_many_ranks_would_do() -> None:
    """Before any pool is spoken of."""
    answer = run("plan", "qwen3.8-27b", "--gpu", "rtx-5090", "-L", "8k")
    assert answer.code == 1
    assert "weights alone take 51.12 of 30.76 GiB" in answer.out
    fix = " ".join(answer.out.partition("fix: ")[2].split())
    assert fix == "write --tp 4: 21 requests (21 to 22) on 4 GPUs; or load nvidia/Qwen3.8-27B-NVFP4: 1"
    ranks = run("plan", "qwen3.6-27b", "--gpu", "3xh100", "-L", "8k")
    assert ranks.code == 1 and "3 GPUs do not share qwen3.6-27b" in ranks.out and "fix: write --tp 2: " in ranks.out
    for gpus, said in (("8xh200", "8 GPUs"), ("1xh200", "1 GPU")):
        assert f"16 ranks on {said}\n" in run("plan", "kimi-k3", "--gpu", gpus, "--tp", "16").err


@pytest.mark.parametrize("line", ["vllm serve lfm2.5-1.2b", "python -m sglang.launch_server --model-path lfm2.5-1.2b"])
def test_a_launch_line_that_names_no_ranks_has_the_engines_one(line: str) -> None:
    """Several GPUs are shared out for a model alone; beside a launch the others idle."""
    answer = plan("--gpu", "8xh200", "-L", "8k", "--", *line.split())
    assert answer["gpus"] == hybridcalc.plan(line, gpu="8xh200").to_dict()["gpus"] == 1
    assert "1 rank on 8 GPUs: the others idle" in answer["notes"]
    assert hybridcalc.plan("lfm2.5-1.2b", gpu="8xh200").to_dict()["gpus"] == 8


def test_two_figures_of_a_boot_give_an_interval() -> None:
    """Printed to two decimals: the pools lie between the plans of both ends."""
    answer = plan(
        "qwen3.5-9b",
        "--tp",
        "2",
        "--avail-before",
        "22.93",
        "--avail-after",
        "14.08 GB",
        "--mem-fraction-static",
        "0.8",
        "--engine-version",
        "0.5.16",
    )
    low, high = answer["intervals"]["rest_gib"]
    assert (low, answer["memory"]["rest_gib"][1], high) == pytest.approx((9.488, 9.494, 9.5))
    low, high = answer["intervals"]["max_total_num_tokens"]
    assert low < answer["max_total_num_tokens"] < high
    assert plan(*K3, *REST)["intervals"] == {}


def test_a_launch_line_is_read_with_its_variables() -> None:
    """Lazy tracking with the decode lock skipped: S = 3; flags that leave memory alone are passed over."""
    answer = plan(*REST, *LAUNCH)
    assert (answer["model"], answer["slots_per_request"], answer["bytes_per_slot"]) == ("kimi-k3", 3, 56_171_520)


@pytest.mark.parametrize(
    ("outside", "key", "value"),
    [
        (("--tp", "4"), "bytes_per_slot", 2 * 56_171_520),
        (("--strategy", "extra_buffer"), "slots_per_request", 4),
        (("--env", "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=0"), "slots_per_request", 4),
        (("kimi-linear-48b-a3b",), "model", "kimi-linear-48b-a3b"),
    ],
    ids=["tp", "strategy", "variable", "MODEL"],
)
def test_what_stands_outside_the_launch_line_wins(outside: tuple[str, ...], key: str, value: int | str) -> None:
    assert plan(*outside, *REST, *LAUNCH)[key] == value


def test_unequal_requests_weigh_by_their_mean() -> None:
    """8k:3,16k:1 admits as 10k each would: memory adds up."""
    mixed, even = plan(*LAZY, *REST, "--lengths", "8k:3,16k:1"), plan(*LAZY, *REST, "-L", "10k")
    for key in ("kv_requests", "state_requests", "requests", "binding"):
        assert mixed[key] == even[key]
    assert mixed["workload"]["length_tokens"] == 16_384


def test_a_concurrency_out_of_reach_is_a_finding_whose_fix_reaches_it() -> None:
    """80 requests are wanted and 64 run; 64 wanted are no finding."""
    arguments = (*LAZY, *REST, "-L", "9216")
    findings = plan(*arguments, "-C", "80", code=1)["findings"]
    short = next(finding for finding in findings if finding["rule"] == "HC002")
    assert "80 requests are wanted, 64 run" in short["message"]
    mended = plan(*arguments, *short["fix"].removeprefix("write ").split())
    assert mended["requests"] >= 80
    assert "HC002" not in [f["rule"] for f in plan(*arguments, "-C", "64")["findings"]]


def test_a_kind_of_work_adds_a_suggestion_of_its_own() -> None:
    flags = [s["flags"] for s in plan(*LAZY, *REST, "-L", "9216")["suggestions"]]
    batch = [s["flags"] for s in plan(*LAZY, *REST, "-L", "9216", "--workload", "batch")["suggestions"]]
    assert any("--disable-radix-cache" in line for line in batch)
    assert not any("--disable-radix-cache" in line for line in flags)


def test_a_comparison_gives_each_side_its_own_memory() -> None:
    """A larger fraction leaves more: both documents equal the plans of their flags alone."""
    memory = ("--gpu", "h200", "--weights", "80GiB")
    answer = plan(*K3, *memory, "--mem-fraction-static", "0.8", "--compare", "--mem-fraction-static 0.9")
    alone = [plan(*K3, *memory, "--mem-fraction-static", fraction) for fraction in ("0.8", "0.9")]
    added = ("schema", "flags", "notes")
    plain = [[{k: v for k, v in d.items() if k not in added} for d in some] for some in (answer["compare"], alone)]
    assert plain[0] == plain[1]
    assert [document["flags"] for document in answer["compare"]] == ["as given", "--mem-fraction-static 0.9"]
    assert alone[0]["max_mamba_cache_size"] < alone[1]["max_mamba_cache_size"]


@pytest.mark.parametrize("compared", ["kimi-linear-48b-a3b --tp 1", "--model-path kimi-linear-48b-a3b --tp 1"])
def test_a_comparison_may_name_another_model(compared: str) -> None:
    documents = plan(*K3, *REST, "--compare", compared)["compare"]
    assert [document["model"] for document in documents] == ["kimi-k3", "kimi-linear-48b-a3b"]
    alone = plan("kimi-linear-48b-a3b", "--kv-cache-dtype", "fp8_e4m3", *REST)
    assert documents[1]["max_mamba_cache_size"] == alone["max_mamba_cache_size"]


def test_every_suggestion_can_be_pasted_into_a_comparison_and_keeps_its_promise() -> None:
    """Variables included: the requests it predicts are those the compared plan runs."""
    for suggestion in plan(*LAZY, *REST, "-L", "9216")["suggestions"]:
        if "->" not in suggestion["effect"] or "--enable-unified-memory" in suggestion["flags"]:
            continue
        after = plan(*LAZY, *REST, "-L", "9216", "--compare", pasted(suggestion))["compare"][1]
        promised = suggestion["effect"].split("-> ")[1].split()[0].replace(",", "")
        assert after["requests"] == int(promised)


def test_a_comparison_in_text_says_why_a_side_does_not_start() -> None:
    ran = run("plan", *LAZY, *REST, "-L", "9216", "--compare", "--strategy no_buffer")
    assert "note: with: HC003 no_buffer does not run" in ran.out
    assert "64" in ran.out
    assert ran.code == 1


def test_several_comparisons_stand_side_by_side() -> None:
    """None is dropped for another."""
    out = run("plan", *LAZY, *REST, "-L", "9216", "--compare", "--dcp-size 8", "--compare", "--dcp-size 4", "-v").out
    assert "as given; with 1: --dcp-size 8; with 2: --dcp-size 4" in " ".join(out.split())
    assert len(next(line for line in out.splitlines() if "state slots K" in line).split()) == 6


def test_a_judgement_is_passed_on_one_plan_only() -> None:
    """A gate that would look at nothing is refused."""
    for more in (("--compare", "--dcp-size 8"), ("--sweep", "rest=20,30")):
        ran = run("plan", *LAZY, *REST, *more, "--fail-on", "error")
        assert (ran.code, ran.err.splitlines()[0]) == (2, "error: --fail-on judges one plan")


def test_a_sweep_that_starts_nowhere_is_a_no() -> None:
    assert run("plan", *LAZY, *REST, "--sweep", "max-mamba-cache-size=1,2").code == 1


def test_a_refused_side_of_a_comparison_names_its_own_version() -> None:
    flags = ("qwen3.5-9b", "--engine-version", "0.5.16", *REST, "--compare", "--strategy no_buffer")
    assert [document["engine_version"] for document in plan(*flags, code=1)["compare"]] == ["0.5.16", "0.5.16"]


def test_the_map_shows_the_whole_gpu_where_it_is_known() -> None:
    """Weights, headroom and context beside the pools: the legend adds up to the card."""
    memory = ("--gpu", "h200", "--weights", "80GiB", "--mem-fraction-static", "0.85")
    legend = " ".join(run("plan", "-v", *K3, *memory).out.split("]\n")[1].split("log lines")[0].split())
    assert "W weights 80.00 GiB" in legend and "C context 1.90 GiB" in legend
    sizes = re.findall(r" ([0-9.]+) (GiB|MiB|KiB|B)(?= )", legend.split(" of this are not charged")[0])
    units = {"GiB": 1, "MiB": 2**10, "KiB": 2**20, "B": 2**30}
    total = sum(float(size) / units[unit] for size, unit in sizes)  # the uncharged figure ends the text
    assert total == pytest.approx(139.8, abs=0.05)


def test_more_than_the_headroom_holds_is_a_finding_with_the_fraction_that_does() -> None:
    flags = (
        "qwen3.5-9b",
        "--tp",
        "2",
        "--avail-before",
        "22.93",
        "--avail-after",
        "14.08",
        "--enable-int8-mamba-checkpoint",
    )
    found = {f["rule"]: f for f in plan(*flags, "--mem-fraction-static", "0.995")["findings"]}
    assert "0.11 GiB of headroom cannot hold them" in found["HC016"]["message"]
    assert found["HC016"]["fix"] == "write --mem-fraction-static 0.835"
    mended = {f["rule"]: f for f in plan(*flags, "--mem-fraction-static", "0.835")["findings"]}
    assert "cannot" not in mended.get("HC016", {"message": ""})["message"]


@pytest.mark.parametrize(
    ("model", "gpu", "warned"), [("gpt-oss-120b", "h100", False), ("qwen3.5-0.8b", "8xh200", True)]
)
def test_what_is_not_charged_is_held_against_the_headroom(model: str, gpu: str, warned: bool) -> None:
    """1 GiB of 13.4 is no matter, however little is left for the pools; 4 GiB of 15.8 are."""
    done = run("plan", model, "--engine", "sglang", "--gpu", gpu, "-L", "8k", "--json", "--fail-on", "never").document
    assert ("HC016" in {each["rule"] for each in done["findings"]}) == warned


REFUSED = {
    "strategy": ((*K3, "--strategy", "no_buffer", *REST), "HC003", "strategy"),
    "memory below zero": ((*K3, "--rest", "-7.96GiB"), "HC001", "solve"),
    "memory of less than a slot": ((*K3, "--rest", "0.01GiB"), "HC001", "solve"),
    "slots of less than a request": ((*K3, *REST, "--max-mamba-cache-size", "4"), "HC002", "max_running_requests"),
    "ranks": (("kimi-k3", "--tp", "5", *REST), "HC009", "shapes"),
    "ring": ((*K3, *REST, "--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "4",
              "--draft-layers", "0", "--enable-linear-replayssm-spec", "--linear-replayssm-cache-len", "12"),
             "HC006", "alloc"),
    "weights above the card": ((*K3, "--gpu", "h200", "--weights", "200GiB", "--mem-fraction-static", "0.85"),
                               "HC001", "load"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "rule", "stage"), REFUSED.values(), ids=REFUSED)
def test_what_the_engine_refuses_is_exit_1_with_a_reason_and_a_fix(
    arguments: tuple[str, ...], rule: str, stage: str
) -> None:
    """The question is clear and the answer is no: as text and as a document."""
    text, document = run("plan", *arguments), run("plan", *arguments, "--json")
    assert (text.code, text.err, document.code, document.err) == (1, "", 1, "")
    answer = document.document
    assert answer["schema"] == "hybridcalc.plan/2" and answer["starts"] is False
    refusal = answer["refusal"]
    assert (refusal["rule"], refusal["stage"]) == (rule, stage)
    assert refusal["reason"] and refusal["fix"]
    assert text.out.startswith("does not start")
    flat = " ".join(text.out.split())
    assert refusal["reason"] in flat and f"fix: {refusal['fix']}" in flat


BAD = {
    "no memory": ((),
                  "error: plan needs the memory left for the pools: add --gpu NAME\n"
                  "       or --rest SIZE, or the two --avail figures with --mem-fraction-static\n"),
    "memory twice": ((*REST, "--gpu", "h200", "--weights", "9GiB"),
                     "error: the memory is given in more than one way\n"
                     "       keep --rest or --weights\n"),
    "one figure of a boot": (("--avail-before", "22"),
                             "error: --avail-before and --avail-after go together\n"
                             "       give both figures of the boot log\n"),
    "weights without a GPU": ((*REST, "--weights", "3GiB"),
                              "error: --weights says nothing without --gpu\n"
                              "       add --gpu NAME, or leave it out\n"),
    "no fraction": (("--avail-before", "70", "--avail-after", "20"),
                    "error: the memory for the pools depends on --mem-fraction-static\n"
                    "       add --mem-fraction-static F, e.g. 0.85\n"),
    "unknown GPU": (("--gpu", "h202", "--weights", "80GiB"),
                    "error: no GPU 'h202'\n       nearest: h20-96gb, h200, gaudi2, gh200-96gb; or a size\n"),
    "no unit": (("--rest", "28"),
                "error: --rest 28: 28 bytes are no memory to share\n       write 28GiB if that is meant\n"),
    "another unit": (("--rest", "1KiB"),
                     "error: --rest 1KiB: 1,024 bytes are no memory to share\n       write 1GiB if that is meant\n"),
    "K of 0": ((*REST, "--max-mamba-cache-size", "0"),
               "error: --max-mamba-cache-size '0' is not a whole number from 1 to 1,000,000,000\n"),
    "misspelt flag of the engine": ((*REST, "--max-mamba-cache-sise", "5"),
                                    "error: --max-mamba-cache-sise is not a flag of SGLang\n"
                                    "       write --max-mamba-cache-size\n"),
    "misspelt option of plan": ((*REST, "--lenghts", "8k:2"),
                                "error: --lenghts is not an option of plan\n       write --lengths\n"),
    "two lengths": ((*REST, "-L", "8k", "--lengths", "8k:2"),
                    "error: -L and --lengths exclude each other\n       give one of them\n"),
    "no requests of a length": ((*REST, "--lengths", "8k:0"),
                                "error: '8k:0': the requests of a length are a whole number\n"
                                "       write 8k:20,128k:2\n"),
    "workers that do not share the ranks": ((*REST, "--dp", "3", "--enable-dp-attention"),
                                            "error: --dp-size 3 does not divide --tp-size 8\n"
                                            "       under --enable-dp-attention the tp ranks are shared out among "
                                            "the dp workers\n"),
    "draft tokens alone": ((*REST, "--speculative-num-draft-tokens", "4"),
                           "error: --speculative-num-draft-tokens has no effect alone\n"
                           "       add --speculative-algorithm NAME\n"),
    "two ways to say dp": ((*REST, "--dp", "2", "--attn-dp-size", "2"),
                           "error: --dp-size 2 beside --attn-dp-size 2: SGLang takes one of them\n"
                           "       leave out --dp-size\n"),
    "unknown kind of work": ((*REST, "--workload", "chat"),
                             "error: --workload 'chat' is not a kind of work\n"
                             "       write long, agent, batch, small\n"),
    "unknown severity": ((*REST, "--fail-on", "all"),
                         "error: --fail-on 'all' is not a severity\n       write note, warning, error or never\n"),
    "unknown platform": ((*REST, "--platform", "gpu"),
                         "error: --platform 'gpu' is not known\n       write cuda, hip, npu, xpu, musa, cpu\n"),
    "CSV of no sweep": ((*REST, "--csv"),
                        "error: --csv prints a sweep, and there is none\n"
                        "       add --sweep NAME=values, or write --json\n"),
    "CSV and JSON": ((*REST, "--csv", "--json", "--sweep", "page-size=1"),
                     "error: --csv and --json exclude each other\n       give one of them\n"),
    "sweep and comparison": ((*REST, "--sweep", "page-size=1", "--compare", "--tp 4"),
                             "error: --sweep and --compare exclude each other\n       give one of them\n"),
    "launch of an engine nobody knows": ((*REST, "--", "tgi", "serve", "x"),
                                         "error: 'tgi serve x' starts no engine known here\n"
                                         "       begin with python -m sglang.launch_server, sglang serve, python -m "
                                         "dynamo.sglang, vllm serve, python -m vllm.entrypoints.openai.api_server, "
                                         "python -m dynamo.vllm, llama-server, llama-cli, ollama serve, ollama run, "
                                         "ollama start\n"),
    "SGLang's memory for a vLLM line": ((*REST, "--", "vllm", "serve", "x"),
                                        "error: --rest says nothing about vLLM\n       leave it out\n"),
    "vLLM's options": ((*REST, "--available", "4GiB"),
                       "error: --available says nothing about SGLang\n       leave it out\n"),
    "a shared prefix": ((*REST, "--shared-prefix", "4000"),
                        "error: --shared-prefix says nothing about SGLang\n       leave it out\n"),
    "a compute capability": ((*REST, "--gpu-capability", "9.0"),
                             "error: --gpu-capability says nothing about SGLang\n       leave it out\n"),
    "an engine nobody knows": ((*REST, "--engine", "tgi"),
                               "error: --engine 'tgi' is not planned\n       write sglang or vllm or llama.cpp\n"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_or_two_lines_and_exit_2(arguments: tuple[str, ...], text: str) -> None:
    """What, where, why, and what to write instead: word by word."""
    ran = run("plan", *K3, *arguments)
    assert (ran.err, ran.out, ran.code) == (text, "", 2)


def test_a_plan_of_no_model_asks_for_one() -> None:
    ran = run("plan", *REST)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: plan needs a MODEL\n")


def test_figures_of_a_boot_that_contradict_each_other_are_refused() -> None:
    ran = run("plan", *K3, "--avail-before", "22", "--avail-after", "23", "--mem-fraction-static", "0.8")
    assert (ran.code, ran.out) == (2, "")
    assert "23.0 GiB after the weights is more than 22.0 GiB before them" in ran.err


def test_a_memory_that_may_not_do_is_said_to_be_so() -> None:
    """At the low end of 40.21 +- 0.005 GiB the 500 slots do not fit."""
    boot = ("--mem-fraction-static", "0.9", "--avail-before", "139.00", "--avail-after", "40.21")
    answer = plan(*K3, *boot, "--max-mamba-cache-size", "500", code=1)
    assert answer["intervals"]["max_total_num_tokens"][0] == 0 < answer["max_total_num_tokens"]
    assert "undecided by the estimate of memory" in answer["findings"][0]["message"]


def test_weights_that_were_given_are_not_kept_for_other_ranks() -> None:
    """A figure of tp 8 says what tp 16 holds by what both are computed to be; in a sweep as well."""
    words = ("plan", "kimi-k3", "--tp", "8", "--gpu", "h200", "--weights", "90GiB", "--mem-fraction-static", "0.9")
    sides: Any = run(*words, "-L", "64k", "--compare", "--tp 16", "--compare", "--page-size 64", "--json").document
    eight, sixteen, paged = (side["memory"] for side in sides["compare"])
    weighed = [hybridcalc.weights("kimi-k3", tp_size=ranks).likely for ranks in (8, 16)]
    assert eight["weights_gib"] == paged["weights_gib"] == 90
    assert sixteen["weights_gib"] == pytest.approx(90 * weighed[1] / weighed[0])
    assert sixteen["weights_from"].startswith("--weights x ")
    said = run(*words, "-L", "64k", "--compare", "--tp 16").out
    assert "with: weights 47.67 GiB = --weights x " in " ".join(said.split())
    swept: Any = run(*words, "-L", "64k", "--sweep", "tp=8,16", "--json").document
    assert [point["requests"] for point in swept["sweep"]] == [side["requests"] for side in sides["compare"]][:2]


def test_an_estimated_memory_leaves_an_interval_of_requests() -> None:
    """[low, likely, high], as the plan at each end has them; null where the memory is given."""
    words = ("plan", "qwen3.6-35b-a3b", "-L", "8k", "--json")
    for engine, option, more in (("sglang", "--rest", ()), ("vllm", "--available", ("--max-num-seqs", "300"))):
        found: Any = run(*words, "--engine", engine, "--gpu", "h200", *more).document
        low, likely, high = found["requests_range"]
        assert low <= likely == found["requests"] <= high
        assert low < high
        for gib in found["memory"]["rest_gib"]:
            at_end: Any = run(*words, "--engine", engine, option, f"{gib}GiB", *more).document
            assert at_end["requests_range"] is None
            assert low <= at_end["requests"] <= high


def test_a_memory_that_is_given_stands_beside_a_gpu() -> None:
    """The GPU says how many ranks there are and what kernels they run; its memory is not counted."""
    words = ("plan", "Qwen/Qwen3.6-27B-FP8", "--rest", "83.4GiB", "-L", "32k", "--json")
    alone, beside = run(*words).document, run(*words, "--gpu", "h200").document
    assert beside["requests"] == alone["requests"] == 21
    assert beside["memory"]["rest_gib"] == 83.4
    assert (alone["memory"]["gpu"], beside["memory"]["gpu"]) == (None, "NVIDIA H200")
    assert run(*words, "--gpu", "2xh200").document["arguments"]["tp_size"] == 2


def test_settings_side_by_side_open_with_the_one_that_runs_the_most() -> None:
    """fp8 KV changes nothing where states bind: 98 slots // 5 either way; what does not start says what to write."""
    granite = ("plan", "granite-4.0-h-small", "--rest", "30GiB", "-L", "8k", "--compare")
    assert run(*granite, "--kv-cache-dtype fp8_e4m3").out.startswith("19 requests of 8,192 tokens either way")
    best = run(*granite, "--mamba-ssm-dtype bfloat16", "--compare", "--tp 5")
    assert best.out.startswith("with 1: 39 requests of 8,192 tokens, the most on a GPU")
    assert "with 2: HC009 --tp 5 does not divide" in best.out and "8, 16 or 32\n" in best.out
