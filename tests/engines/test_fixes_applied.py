"""What an answer says to write is of the flag that is the cause, can be pasted, and gives what is said."""

from __future__ import annotations

import re

import pytest
from command_line import run

from hybridcalc import load_model
from hybridcalc.deployment import Memory, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.errors import HybridcalcError, InputError, NotModelled
from hybridcalc.hardware import find_gpu

H200 = ("--gpu", "h200", "-L", "8k")
QWEN = "qwen3.6-35b-a3b"
SGLANG = ("sglang", "serve", "--model-path", "Qwen/Qwen3-Next-80B-A3B-Instruct", "--tp", "4")
SPEC = "--speculative-algorithm"


def fix_of(out: str) -> str:
    """The fix of a plan that does not start, on one line."""
    return " ".join(out.partition("\nfix: ")[2].split())


@pytest.mark.parametrize(
    ("flags", "lever"),
    [
        ("--engine vllm --kv-cache-memory-bytes 1", "--kv-cache-memory-bytes 5592842240 --max-num-seqs 251"),
        ("--engine vllm --num-gpu-blocks-override 3", "--num-gpu-blocks-override 251 --max-num-seqs 251"),
        ("--engine vllm --gpu-memory-utilization 0.01", "--gpu-memory-utilization 0.92"),
        ("--mem-fraction-static 0.1", "--mem-fraction-static 0.835063"),
        ("--max-mamba-cache-size 3", "--max-mamba-cache-size 6"),
        ("--page-size 3", "--page-size 64"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_flag_that_is_its_cause_and_a_value_that_starts(flags: str, lever: str) -> None:
    refused = run("plan", QWEN, *H200, *flags.split())
    assert refused.code == 1
    assert fix_of(refused.out).startswith(f"write {lever}")
    again = run("plan", QWEN, *H200, *flags.split(), *lever.split())
    assert not again.out.startswith("does not start"), again.out


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ("--max-total-tokens 1", "raise --max-total-tokens, or leave it out"),
        ("--mamba-full-memory-ratio 0.0001", "raise --mamba-full-memory-ratio, or leave it out"),
    ],
)
def test_a_flag_that_leaves_nothing_is_the_one_to_raise(flags: str, fix: str) -> None:
    assert fix_of(run("plan", QWEN, *H200, *flags.split()).out) == fix


def test_tokens_too_few_for_a_request_are_raised_to_one() -> None:
    assert "write --max-total-tokens 8192, or leave it out" in " ".join(
        run("plan", QWEN, *H200, "--max-total-tokens", "4000").out.split()
    )


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve Qwen/Qwen3.6-27B",
        "vllm serve Qwen/Qwen3.6-27B-FP8 --gpu-memory-utilization 0.3",
        "vllm serve Qwen/Qwen3.5-122B-A10B",
    ],
)
def test_what_is_written_for_a_launch_line_can_be_pasted_into_it(line: str) -> None:
    """Ranks as its command line spells them; what stops the start next is written beside."""
    gpu = ("plan", "--gpu", "h100" if "0.3" in line else "l40s", "-L", "8k", "--")
    refused = run(*gpu, *line.split())
    written = re.match(r"write ([^:;]*)", fix_of(refused.out))
    assert refused.code == 1 and written is not None
    again = run(*gpu, *line.split(), *written[1].split())
    assert again.code == 0 and not again.out.startswith("does not start")


@pytest.mark.parametrize(
    ("line", "rule", "flag"),
    [
        ("vllm serve Qwen/Qwen3.6-35B-A3B -tp 2 --max-num-seqs 64 --quantization fp8", "HC060", "--max-num-seqs"),
        ("vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 131072 --max-num-seqs 16 -tp 2", "HC060", "--max-num-seqs"),
        (" ".join((*SGLANG, "--max-mamba-cache-size 319 --max-running-requests 64")), "HC002",
         "--max-mamba-cache-size"),
    ],
)  # fmt: skip
def test_a_finding_and_the_suggestion_below_it_say_one_number(line: str, rule: str, flag: str) -> None:
    document = run("plan", "--gpu", "h100", "-L", "8k", "--json", "--", *line.split()).document
    (finding,) = [each for each in document["findings"] if each["rule"] == rule]
    number = next(each["flags"][1] for each in document["suggestions"] if each["flags"][0] == flag)
    assert finding["fix"].startswith((f"write {flag} {number}", f"write {number},"))


def test_slots_that_are_suggested_leave_one_to_spare() -> None:
    """320 = 64 x 5 would be complained of in turn."""
    ran = run(
        "plan",
        "--gpu",
        "h100",
        "-L",
        "8k",
        "--json",
        "--",
        *SGLANG,
        "--max-mamba-cache-size",
        "321",
        "--max-running-requests",
        "64",
    )
    assert ran.code == 0
    assert "HC013" not in {finding["rule"] for finding in ran.document["findings"]}


@pytest.mark.parametrize("seqs", ["1024", "300"])
def test_sequences_that_start_are_counted_with_the_memory_that_they_leave(seqs: str) -> None:
    """Sampling for 1,024 sequences takes memory that fewer do not."""
    line = f"vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 131072 --kv-cache-dtype fp8 -tp 2 --max-num-seqs {seqs}"
    document = run("plan", "--gpu", "l40s", "-L", "8k", "--json", "--", *line.split()).document
    fixes = {each["rule"]: each["fix"] for each in document["findings"] if each["rule"] in ("HC044", "HC060")}
    assert set(fixes.values()) <= {"write --max-num-seqs 87"}
    again = run("plan", "--gpu", "l40s", "-L", "8k", "--json", "--", *line.rpartition(" ")[0].split(), "87").document
    assert again["requests"] == 87 and again["suggestions"][0]["flags"][0] != "--max-num-seqs"


def test_requests_that_are_wanted_are_not_forgotten_where_a_default_stops_the_start() -> None:
    line = "vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 131072"
    ran = run("plan", "--gpu", "l40s", "-L", "128k", "-C", "8", "--", *line.split())
    assert fix_of(ran.out).startswith("write --max-num-seqs 1: 1 request of 131,072 tokens")
    assert "; 8 requests are wanted; for these add -tp 4 --max-num-seqs 15: 15 requests on 4 GPUs" in fix_of(ran.out)


@pytest.mark.parametrize(
    ("flags", "drafts"),
    [
        ("EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8", 4),
        ("EAGLE --speculative-num-steps 5 --speculative-eagle-topk 1", 6),
        ("NEXTN", 4), ("EAGLE3", 4), ("NGRAM", 12),
        ("EAGLE --speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8", 8),
        ("DFLASH --speculative-num-draft-tokens 8 --speculative-num-steps 3 --speculative-eagle-topk 1", 8),
    ],
)  # fmt: skip
def test_drafts_are_those_that_the_engine_settles(flags: str, drafts: int) -> None:
    """Steps and one with one branch a step; its defaults where nothing is given (speculative_hook.py)."""
    args = ServerArgs.from_command(f"sglang serve {SPEC} {flags}")
    assert args.draft_tokens == args.most_draft_tokens == drafts


def test_drafts_taken_for_others_and_drafts_without_steps_are_said() -> None:
    model = load_model("qwen3-next-80b-a3b")
    for text, said in (
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8", "is taken as 4"),
        ("--speculative-num-draft-tokens 4", "takes all of them or none"),
        (
            "--speculative-num-draft-tokens 4 --speculative-num-steps 3",
            "without --speculative-eagle-topk: SGLang takes",
        ),
        ("--speculative-num-draft-tokens 4 --speculative-adaptive", ""),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", ""),
        ("", ""),
    ):
        args = ServerArgs.from_command(f"sglang serve --tp 4 {SPEC} EAGLE {text}")
        found = [each.message for each in ENGINES["sglang"].decide(model, args, Workload()).findings]
        assert (
            any(said in each for each in found if "draft-tokens" in each)
            if said
            else not any("draft-tokens" in each for each in found)
        )


@pytest.mark.parametrize("asked", [(), ("-L", "8k"), ("-L", "32k", "-C", "4")])
def test_a_length_to_write_starts_on_the_least_memory(asked: tuple[str, ...]) -> None:
    """Fewer sequences leave more of it: pasted back, a fix leaves nothing undecided."""
    command = ("plan", "Qwen/Qwen3.6-35B-A3B", "--gpu", "h100", "--engine", "vllm", *asked)
    refused = run(*command)
    flags = re.findall(r"--max-[a-z-]+ [0-9]+", fix_of(refused.out))
    assert refused.code == 1
    assert [flag.split()[0] for flag in flags] == ["--max-model-len", "--max-num-seqs"]
    starts = run(*command, *" ".join(flags).split())
    assert "does not start" not in starts.out
    assert "HC041" not in starts.out


@pytest.mark.parametrize(
    ("wanted", "given", "flags"),
    [
        ("70", "", "--gpu-memory-utilization 0.94"),
        ("100", "", "--mamba-ssm-cache-dtype bfloat16 --no-enable-prefix-caching; check accuracy first"),
        ("100", "--no-enable-prefix-caching", "--mamba-ssm-cache-dtype bfloat16; check accuracy first"),
        ("160", "--no-enable-prefix-caching",
         "--mamba-ssm-cache-dtype bfloat16 --kv-cache-dtype fp8; check accuracy first"),
    ],
)  # fmt: skip
def test_what_lets_so_many_run_costs_no_more_accuracy_than_it_must(wanted: str, given: str, flags: str) -> None:
    """Among all sets of changes that suffice, the one with the fewest that are lossy; the same with one of them set."""
    mtp = '{"method":"mtp","num_speculative_tokens":2}'
    launch = ("vllm", "serve", "Qwen/Qwen3.6-35B-A3B-FP8", "--max-model-len", "8192", "--speculative-config", mtp)
    made = run("plan", "--gpu", "h100", "-L", "8k", "-C", wanted, "--json", "--", *launch, *given.split())
    assert made.code == 1
    (fix,) = [each["fix"] for each in made.document["findings"] if each["rule"] == "HC063"]
    assert fix.startswith(f"write {flags}")


@pytest.mark.parametrize(
    ("numbers", "fix"),
    [
        ("--speculative-num-draft-tokens 4", "--speculative-num-steps 3 --speculative-eagle-topk 1"),
        ("--speculative-num-draft-tokens 4 --speculative-num-steps 3", "--speculative-eagle-topk 1"),
        ("--speculative-num-draft-tokens 4 --speculative-eagle-topk 1", "--speculative-num-steps 3"),
        ("--speculative-num-steps 3", "--speculative-eagle-topk 1"),
        ("--speculative-eagle-topk 4", "--speculative-num-steps 3 --speculative-num-draft-tokens 4"),
        ("--speculative-num-steps 2 --speculative-eagle-topk 4", "--speculative-num-draft-tokens 3"),
    ],
)
def test_some_of_steps_branches_and_drafts_are_warned_of(numbers: str, fix: str) -> None:
    """They may stop a start (speculative_hook.py); without a number of drafts there is nothing to plan."""
    model, served, rest = load_model("qwen3-next-80b-a3b"), ENGINES["sglang"], exact_rest(40.0)
    args = ServerArgs.from_command(f"sglang serve --tp 4 {SPEC} EAGLE {numbers}")
    if args.draft_tokens:
        made = served.plan(model, args, rest, Workload())
        fixes = [str(found.fix) for found in made.findings if found.rule == "HC032"]
    else:
        with pytest.raises(InputError) as raised:
            served.plan(model, args, rest, Workload())
        fixes = [raised.value.fix or ""]
    assert f"add {fix}, or leave all of them out" in fixes
    mended = ServerArgs.from_command(f"sglang serve --tp 4 {SPEC} EAGLE {numbers} {fix}")
    assert served.plan(model, mended, rest, Workload()).requests


@pytest.mark.parametrize(
    ("engine", "flags", "error"),
    [
        ("sglang", f"{SPEC} EAGEL --speculative-num-draft-tokens 4", InputError),
        ("sglang", f"{SPEC} UNO", NotModelled),
        ("sglang", "--attention-backend foo", InputError),
        ("sglang", "--linear-attn-backend foo", InputError),
        ("vllm", '--speculative-config {"method":"bogus","num_speculative_tokens":4}', InputError),
    ],
)
def test_names_that_an_engine_does_not_have_are_not_planned(
    engine: str, flags: str, error: type[HybridcalcError]
) -> None:
    """A method of vLLM may be that of a model that is not known here, qwen9_mtp."""
    served, model = ENGINES[engine], load_model("qwen3-next-80b-a3b")
    with pytest.raises(error):
        served.prepare(model, served.read(flags.split(), {})[1])
    fine = '--speculative-config {"method":"qwen9_mtp","num_speculative_tokens":1}' if engine == "vllm" else ""
    served.prepare(model, served.read(fine.split(), {})[1])


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_requests_longer_than_the_context_are_not_served(engine: str) -> None:
    """None of them runs, whatever the pools hold, in a plan and in a sweep of it; the model's own end is said."""
    ran = run("plan", QWEN, "--engine", engine, "--gpu", "h200", "-L", "300k", "--json")
    assert ran.code == 1
    assert (ran.document["requests"], ran.document["binding"]) == (0, "context")
    (fix,) = [each["fix"] for each in ran.document["findings"] if each["rule"] in ("HC022", "HC062")]
    assert fix == "shorten the requests: the model itself ends at 262,144"
    swept = run("plan", QWEN, "--engine", engine, "--gpu", "h200", "-L", "300k", "--sweep", "tp=1,2", "--json")
    assert {point["requests"] for point in swept.document["sweep"]} == {0}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_weights_in_host_memory_do_not_stop_a_start(engine: str) -> None:
    """Tensors of decoder layers are moved until there are so many GiB; no floor of time is given for them."""
    served, model, gpu = ENGINES[engine], load_model(QWEN), find_gpu("h200")
    moved = served.with_options(served.read(["--cpu-offload-gb", "30"], {})[1], {"gpu": gpu})
    plain = served.with_options(served.read([], {})[1], {"gpu": gpu})
    whole, rest = (served.memory(model, args, Memory(gpu=gpu)) for args in (plain, moved))
    weights = dict(whole.others)["weights"]
    assert dict(rest.others)["weights"] == pytest.approx(weights - 30)
    part = next(part for part in rest.parts if part.name == "weights")
    assert part.low < part.likely == part.high and "in host memory" in part.why
    everything = served.memory(model, moved.changed(cpu_offload_gb=1000), Memory(gpu=gpu))
    assert 2 < dict(everything.others)["weights"] < 4  # embeddings, head and vision tower lie in no layer
    ran = run(
        "plan",
        QWEN,
        "--engine",
        engine,
        "--gpu",
        "l40s",
        "-L",
        "8k",
        "--cpu-offload-gb",
        "40",
        "-v",
        *(("--max-num-seqs", "8") if engine == "vllm" else ()),
    )
    assert "a step" in ran.out and "not known" in ran.out and " ms or more" not in ran.out


@pytest.mark.parametrize(
    ("engine", "flags", "rule"),
    [("sglang", "--enable-lora --lora-paths a=b", "HC030"), ("vllm", "--enable-lora --max-loras 16", "HC069")],
)
def test_memory_that_is_not_modelled_is_said(engine: str, flags: str, rule: str) -> None:
    """In a plan and without memory; it is no argument of a saved plan."""
    served = ENGINES[engine]
    args = served.read([*flags.split()], {})[1]
    assert "uncounted" not in args.given()
    decided = served.decide(load_model(QWEN), args, Workload())
    assert next(each.message for each in decided.findings if each.rule == rule).startswith("--enable-lora is not")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_weights_of_layers_that_are_moved_away_are_asked_for(engine: str) -> None:
    ran = run("plan", QWEN, "--engine", engine, "--gpu", "l40s", "-L", "8k", "--offload-group-size", "2")
    assert ran.code == 2
    assert "--offload-group-size keeps weights in host memory: how many is not modelled" in ran.err


def test_a_checkpoint_that_needs_several_flags_is_named_with_them() -> None:
    """An RTX 5090 has no room for FP8 weights of 28.3 GiB; NVFP4 starts where one request is as long as is asked."""
    refused = run("plan", "Qwen/Qwen3.6-27B-FP8", "--engine", "vllm", "--gpu", "rtx-5090", "-L", "8k")
    fix = fix_of(refused.out)
    assert "or load nvidia/Qwen3.6-27B-NVFP4 with --max-model-len 8192 --max-num-seqs 9: 9" in fix
    again = "--engine vllm --gpu rtx-5090 -L 8k --max-model-len 8192 --max-num-seqs 9"
    assert run("plan", "nvidia/Qwen3.6-27B-NVFP4", *again.split()).out.startswith("9 requests of 8,192 tokens")


def test_a_class_that_the_engine_lacks_is_said_before_its_weights() -> None:
    """No number of ranks helps a model that SGLang has no class for."""
    for name in ("minimax-m1-80k", "jamba-1.5-mini"):
        refused = run("plan", name, "--gpu", "h100", "-L", "4k")
        assert refused.code == 1 and "has no class for" in refused.out and "--tp" not in refused.out
