"""What is said of a deployment: the rules, their places, what is unknown, and what waits for a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from judged import K3, check, found

from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings


def test_eight_slots_for_four_requests_need_no_memory_figure(tmp_path: Path) -> None:
    """S = 5 with extra buffers: 8 // 5 = 1; 4 x 5 + 1 = 21, or 4 x 4 + 1 = 17 with the lazy strategy."""
    checked = check(tmp_path, K3 + "\\\n  --max-running-requests 4 \\\n  --max-mamba-cache-size 8\n")
    assert found(checked) == {
        "HC002": (
            3,
            26,
            "8 slots admit 1 request; 4 requests x 5 slots + 1 = 21 are needed",
            "write 21, or 17 with --mamba-radix-cache-strategy extra_buffer_lazy",
        )
    }
    edit = checked.findings[0].edit
    assert edit is not None
    assert (edit.before, edit.text, edit.line, edit.column) == ("8", "21", 3, 26)


S_CASES = {
    "lazy": ("--mamba-radix-cache-strategy extra_buffer_lazy", 4, 17),
    "no overlap": ("--disable-overlap-schedule --mamba-radix-cache-strategy extra_buffer", 4, 17),
    "no overlap, auto": ("--disable-overlap-schedule", 3, 13),
    "radix off": ("--disable-radix-cache", 1, None),
    "pipeline": ("--pp 2", 4, 17),
    "decode server": ("--disaggregation-mode decode", 1, None),
    "old name": ("--mamba-scheduler-strategy extra_buffer", 5, 21),
    "workers": ("--dp 2 --enable-dp-attention", 5, 22),
}


@pytest.mark.parametrize(("flags", "slots", "needed"), S_CASES.values(), ids=S_CASES)
def test_the_slots_of_a_request_follow_the_flags(tmp_path: Path, flags: str, slots: int, needed: int | None) -> None:
    checked = check(tmp_path, f"{K3} --max-running-requests 4 --max-mamba-cache-size 8 {flags}")
    if needed is None:
        assert "HC002" not in found(checked)
    else:
        message = found(checked)["HC002"][2]
        assert f"x {slots} slots" in message
        assert f"= {needed} are needed" in message


def test_the_environment_of_the_file_counts_and_that_of_the_host_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "1")
    monkeypatch.setenv("K", "21")
    command = f"{K3} --max-running-requests 4 --max-mamba-cache-size 8"
    assert "4 requests x 5 slots" in found(check(tmp_path, command))["HC002"][2]
    own = check(tmp_path, f"export SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1\n{command}")
    assert "4 requests x 4 slots" in found(own)["HC002"][2]
    (opened,) = check(tmp_path, f"{K3} --max-mamba-cache-size $K").opened
    assert (opened.text, opened.flag, opened.why) == ("$K", "--max-mamba-cache-size", "K comes from outside")


def test_what_rests_on_an_unknown_value_is_not_judged(tmp_path: Path) -> None:
    """An unknown tp leaves K against the requests certain; an unknown limit does not."""
    command = "python3 -m sglang.launch_server --model-path kimi-k3 --max-mamba-cache-size 8 --page-size 1 "
    certain = check(tmp_path, command + "--max-running-requests 4 --tp $TP")
    assert set(found(certain)) == {"HC002"}
    unsure = check(tmp_path, command + "--tp 8 --max-running-requests $N")
    assert found(unsure) == {}
    assert ("HC002", ("$N",)) in unsure.waiting
    given = check(tmp_path, command + "--tp 8 --max-running-requests $N", variables={"N": "4"})
    assert set(found(given)) == {"HC002"}
    assert given.opened == ()


def test_a_value_of_no_account_may_stay_unknown(tmp_path: Path) -> None:
    checked = check(tmp_path, f"{K3} --port $PORT --host=$HOST --trust-remote-code --node-rank $RANK")
    assert checked.opened == ()
    checked = check(tmp_path, f"{K3} --trust-remote-code $EXTRA")
    assert [(o.text, o.flag) for o in checked.opened] == [("$EXTRA", "")]


REFUSED = {
    "misspelt": ("--max-mamba-cach-size 8", "HC071", "--max-mamba-cach-size is not a flag of SGLang"),
    "no choice": ("--mamba-ssm-dtype int4", "HC071", "--mamba-ssm-dtype 'int4' is not one of"),
    "no number": ("--max-running-requests=many", "HC071", "--max-running-requests 'many' is not"),
    "empty": ("--mamba-full-memory-ratio=", "HC071", "--mamba-full-memory-ratio '' is not a number"),
    "tp": ("--tp 5", "HC009", "--tp 5 does not divide"),
    "page": ("--mamba-radix-cache-strategy no_buffer --page-size 16", "HC004", "no_buffer needs --page-size 1"),
    "lazy": ("--mamba-radix-cache-strategy extra_buffer_lazy --disable-overlap-schedule", "HC003", "lazy"),
}


@pytest.mark.parametrize(("flags", "rule", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_engine_refuses_is_found_without_memory(tmp_path: Path, flags: str, rule: str, message: str) -> None:
    checked = check(tmp_path, f"{K3} \\\n  {flags}")
    assert message in found(checked)[rule][2]
    assert found(checked)[rule][0] == 2


def test_a_misspelt_flag_is_mended_where_it_stands(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, f"{K3} --max-mamba-cach-size 41").findings
    assert finding.edit is not None
    assert (finding.edit.before, finding.edit.text) == ("--max-mamba-cach-size", "--max-mamba-cache-size")


def test_memory_makes_every_rule_judge(tmp_path: Path) -> None:
    """Kimi-K3 on TP8 with 28.55 GiB: the state pool binds (as plan says)."""
    checked = check(tmp_path, f"{K3} --kv-cache-dtype fp8_e4m3", rest="28.55GiB", length=9216, concurrency=40)
    assert {"HC010", "HC012"} <= set(found(checked))
    assert checked.waiting == ()
    alone = check(tmp_path, f"{K3} --kv-cache-dtype fp8_e4m3", gpu="h200", length=9216, concurrency=4)
    assert "weights alone take" in found(alone)["HC001"][2]
    large = check(tmp_path, f"{K3} --kv-cache-dtype fp8_e4m3", gpu="b300", length=9216, concurrency=40)
    assert large.waiting == () and "HC001" not in found(large)


def test_vllm_is_judged_by_its_own_rules(tmp_path: Path) -> None:
    command = "vllm serve nemotron-h-8b --max-model-len 8192 --max-num-seqs 512 "
    checked = check(tmp_path, command + "--block-size 1024")
    assert "HC057" in found(checked)
    assert ("HC044", ("the GPU",)) in checked.waiting
    sized = check(tmp_path, command + "--num-gpu-blocks-override 100")
    assert found(sized)["HC044"][:2] == (1, 62)
    known = check(tmp_path, command, available="4GiB")
    assert "HC044" in found(known)


MODELS = {
    "id": ("--model-path moonshotai/Kimi-K3", "kimi-k3", 0),
    "quantised": ("--model-path nvidia/Kimi-K3-NVFP4", "kimi-k3", 0),
    "path with a served name": ("--model-path /model --served-model-name moonshotai/Kimi-K3", "kimi-k3", 0),
    "path": ("--model-path /model", None, 1),
    "path that ends in a name": ("--model-path /data/models/Kimi-K3", "kimi-k3", 0),
    "path that ends in an id": ("--model-path /hub/moonshotai/Kimi-K3/", "kimi-k3", 0),
    "path of the host": ("--model-path ./examples/my-hybrid.yaml", None, 1),
    "unknown id": ("--model-path acme/Unheard-Of-7B", None, 0),
    "variable": ("--model-path $MODEL", None, 1),
}


@pytest.mark.parametrize(("flags", "preset", "opened"), MODELS.values(), ids=MODELS)
def test_the_model_is_what_the_file_says(tmp_path: Path, flags: str, preset: str | None, opened: int) -> None:
    checked = check(tmp_path, f"sglang serve {flags}")
    assert (checked.model_preset, len(checked.opened)) == (preset, opened)
    if preset is None:
        assert checked.waiting[0][0] == "all"


@pytest.mark.parametrize(
    ("line", "text", "column"),
    [
        ("sglang serve --model-path /data/unheard --tp 8", "/data/unheard", 27),
        ("sglang serve --tp 8", "the model", 1),
        ("vllm serve /data/unheard", "/data/unheard", 12),
    ],
)
def test_a_model_that_nobody_names_is_asked_for_where_it_would_stand(
    tmp_path: Path, line: str, text: str, column: int
) -> None:
    """At the value of its flag, else at the launch."""
    (asked,) = check(tmp_path, f"# a server\n{line}\n").opened
    assert (asked.text, asked.line, asked.column) == (text, 2, column)


@pytest.mark.parametrize("flag", ["--served-model-name", "--served_model_name", "--served-model-name other"])
def test_a_served_name_says_the_model_in_either_spelling(tmp_path: Path, flag: str) -> None:
    """vLLM reads flags with underscores as with hyphens, and any of several names may be a model's."""
    assert check(tmp_path, f"vllm serve /model {flag} nemotron-h-8b").model_preset == "nemotron-h-8b"


def test_a_path_is_given_a_model_by_the_settings(tmp_path: Path) -> None:
    assert check(tmp_path, "sglang serve --model-path /model", models={"/model": "kimi-k3"}).model_preset == "kimi-k3"
    assert check(tmp_path, "sglang serve --tp 8", models={"*": "kimi-k3"}).model_preset == "kimi-k3"


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct", []),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 3", ["HC050"]),
        ("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 9999999", ["HC051"]),
        ("sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --tp 3", ["HC009"]),
        ("sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --tp 8", []),
    ],
)
def test_a_model_without_state_is_judged_like_any_other(tmp_path: Path, line: str, rules: list[str]) -> None:
    checked = check(tmp_path, line)
    assert [item.finding.rule for item in checked.findings] == rules
    assert checked.notes == ()


def test_a_class_that_sglang_lacks_hides_no_fault_of_the_ranks(tmp_path: Path) -> None:
    """Vendors ship builds of SGLang with classes that no release has."""
    checked = check(tmp_path, "sglang serve --model-path inclusionAI/Ring-flash-linear-2.0 --tp 3")
    assert [item.finding.rule for item in checked.findings] == ["HC024", "HC009"]
    checked = check(tmp_path, "sglang serve --model-path inclusionAI/Ring-flash-linear-2.0 --tp 4")
    assert [item.finding.rule for item in checked.findings] == ["HC024"]


RECIPE = """\
model: {model_id: moonshotai/Kimi-K3, min_vllm_version: 0.29.0}
features:
  dcp:
    description: the ranks are those of the strategy
    args: [--decode-context-parallel-size, "8", --max-model-len, "262144"]
"""


def test_flags_that_name_no_ranks_are_not_of_one(tmp_path: Path) -> None:
    checked = check(tmp_path, RECIPE, "recipe.yaml")
    assert checked.findings == ()
    assert [(item.flag, item.why) for item in checked.opened] == [
        ("--tensor-parallel-size", "these flags are a part of a launch, and name no ranks")
    ]
    checked = check(tmp_path, RECIPE.replace("args: [", 'args: ["--tensor-parallel-size", "4", '), "recipe.yaml")
    assert [item.finding.rule for item in checked.findings] == ["HC050"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.yaml", "max-model-len: 8192\ntensor-parallel-size: 2\ngpu-memory-utilization: 0.9\n"),
        ("launch.sh", 'vllm serve "$MODEL_NAME" --max-model-len 8192 "$@"\n'),
        (
            "config.yaml",
            "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceServiceConfig\nmetadata: {name: x}\n"
            "spec:\n  template:\n    containers:\n      - name: main\n        image: vllm/vllm-openai:v0.20.0\n"
            "        command: [vllm, serve, /mnt/models]\n"
            "        args: [--served-model-name, '{{ .Spec.Model.Name }}', --max-model-len, '8192']\n",
        ),
    ],
)
def test_what_is_filled_in_elsewhere_is_a_template_where_a_walk_finds_it(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    walked, given = (check_file(str(path), Settings(), {}, named=named) for named in (False, True))
    assert walked is not None
    assert given is not None
    assert walked.checked == ()
    assert [(trouble.unreadable, trouble.line > 0, trouble.fix != "") for trouble in walked.troubles] == [
        (False, True, True)
    ]
    assert len(given.checked) == 1
    assert given.checked[0].opened != ()
    known = check_file(str(path), Settings(models={"*": "kimi-k3", "/mnt/models": "kimi-k3"}), {}, named=False)
    assert known is not None
    assert name == "launch.sh" or len(known.checked) == 1


def test_the_model_of_a_config_file_is_named_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        "workload:\n  model: {name: Qwen/Qwen3-Next-80B-A3B-Instruct}\n  configFile: args.yaml\n"
    )
    checked = check(tmp_path, "max-model-len: 8192\ntensor-parallel-size: 3\nmax-num-seqs: 64\n", "args.yaml")
    assert checked.model_preset == "qwen3-next-80b-a3b"
    assert [item.finding.rule for item in checked.findings] == ["HC050"]


def test_what_is_mounted_names_the_model_of_a_path_that_says_nothing(tmp_path: Path) -> None:
    line = "docker run -v ./out/DeepSeek-R1-Distill-Llama-8B_nvfp4:/data/model vllm/vllm-openai:v0.20.0 {} /data/model"
    checked = check(tmp_path, line.format("--model"))
    assert (checked.opened, checked.model) == ((), "DeepSeek-R1-Distill-Llama-8B_nvfp4")


def test_rules_are_selected_ignored_and_weighed(tmp_path: Path) -> None:
    command = f"{K3} --max-running-requests 4 --max-mamba-cache-size 8 --mamba-scheduler-strategy extra_buffer"
    assert set(found(check(tmp_path, command))) == {"HC002", "HC072"}
    assert set(found(check(tmp_path, command, select=("HC07",)))) == {"HC072"}
    assert set(found(check(tmp_path, command, ignore=("HC072",)))) == {"HC002"}
    weighed = check(tmp_path, command, severity={"HC002": "note"})
    assert [f.finding.severity for f in weighed.findings if f.finding.rule == "HC002"] == ["note"]


def test_every_rule_that_waits_says_for_what(tmp_path: Path) -> None:
    checked = check(tmp_path, K3)
    assert {rule for rule, _ in checked.waiting} == {
        "HC001",
        "HC002",
        "HC010",
        "HC011",
        "HC012",
        "HC016",
        "HC017",
        "HC022",
    }
    assert all(needs for _, needs in checked.waiting)


def test_the_tag_of_the_engine_s_own_image_is_its_version(tmp_path: Path) -> None:
    """SGLang 0.5.16 has no class for Kimi-K3; a runtime image of somebody else's counts its own versions."""
    pod = "kind: Pod\nspec:\n  containers:\n    - image: {image}\n      command: [sglang, serve, kimi-k3]\n"
    old = check(tmp_path, pod.format(image="lmsysorg/sglang:v0.5.16-cu126"), "pod.yaml")
    assert (old.version, set(found(old))) == ("0.5.16", {"HC024"})
    for image in ("lmsysorg/sglang:latest", "nvcr.io/nvidia/ai-dynamo/sglang-runtime:0.5.16", "lmsysorg/sglang:v0.1.0"):
        newest = check(tmp_path, pod.format(image=image), "pod.yaml")
        assert newest.version == "0.5.23"
        assert bool(newest.assumed_release) is image.startswith("lmsysorg/sglang")
    for tag in ("v0.5.14.post1", "v0.5.14-cu126", "v0.5.14rc1-rocm"):
        assert check(tmp_path, pod.format(image=f"lmsysorg/sglang:{tag}"), "pod.yaml").version == "0.5.14"
    build = "services: {{a: {{image: 'ghcr.io/ggml-org/llama.cpp:server-cuda-{tag}', command: [-m, x-Q8_0.gguf]}}}}"
    for tag, known in (("b11549", True), ("b4000", False)):
        made = check(tmp_path, build.format(tag=tag), "compose.yaml")
        assert (made.version, bool(made.assumed_release)) == ("b11549", not known)
    series = check(tmp_path, pod.format(image="vllm/vllm-openai:v0.29").replace("sglang", "vllm"), "pod.yaml")
    assert series.version == "0.29.0"
    run = check(tmp_path, "docker run lmsysorg/sglang:v0.5.16 python3 -m sglang.launch_server --model-path kimi-k3")
    assert run.version == "0.5.16"


def test_what_a_planner_does_not_model_is_no_finding(tmp_path: Path) -> None:
    checked = check(tmp_path, "vllm serve nemotron-h-8b --attention-backend XFORMERS")
    assert checked.findings == ()
    assert checked.waiting == (("all", ("rules for --attention-backend XFORMERS",)),)


def test_a_model_may_follow_its_flags(tmp_path: Path) -> None:
    checked = check(tmp_path, "vllm serve --enforce-eager --max-num-seqs 8 nemotron-h-8b --max-model-len 8k")
    assert (checked.model_preset, checked.findings) == ("nemotron-h-8b", ())


def test_a_name_that_another_release_may_have_is_a_warning(tmp_path: Path) -> None:
    checked = check(tmp_path, "vllm serve nemotron-h-8b --device cuda")
    assert [(f.finding.rule, f.finding.severity) for f in checked.findings] == [("HC071", "warning")]


def test_fields_of_a_json_flag_stand_side_by_side(tmp_path: Path) -> None:
    checked = check(
        tmp_path,
        "vllm serve Qwen/Qwen3.6-35B-A3B --speculative_config.num_speculative_tokens 3 --speculative_config.model X "
        "-sc.method=mtp",
    )
    assert [(value.flag, value.value) for value in checked.values] == [
        ("--speculative-config.num_speculative_tokens", "3"),
        ("--speculative-config.model", "X"),
        ("--speculative-config.method", "mtp"),
    ]


def test_a_line_of_flags_that_belongs_to_no_command_is_found(tmp_path: Path) -> None:
    lost = "vllm serve Qwen/Qwen3.6-35B-A3B \n    --tensor-parallel-size 8\n"
    assert found(check(tmp_path, lost))["HC080"] == (
        2,
        5,
        "--tensor-parallel-size belongs to no command: line 1 does not end in a backslash",
        "end line 1 in a backslash",
    )
    comment = "vllm serve Qwen/Qwen3.6-35B-A3B \\\n # ranks\n --tensor-parallel-size 8\n"
    assert found(check(tmp_path, comment))["HC080"][2:] == (
        "--tensor-parallel-size belongs to no command: the comment on line 2 ends the one before it",
        "move the comment above the command",
    )


def test_a_mount_says_which_model_a_path_holds(tmp_path: Path) -> None:
    checked = check(tmp_path, "docker run -v /data/Kimi-K3:/model lmsysorg/sglang sglang serve --model-path /model")
    assert (checked.model_preset, checked.opened) == ("kimi-k3", ())


@pytest.mark.parametrize(("slots", "needed"), [("1", 6), ("4", 6), ("5", None)])
def test_slots_that_admit_no_request_are_found_without_a_limit(tmp_path: Path, slots: str, needed: int | None) -> None:
    checked = check(tmp_path, f"{K3} --max-mamba-cache-size {slots}")
    if needed is None:
        assert "HC002" not in found(checked)
        return
    said = found(checked)
    assert set(said) == {"HC002"}
    assert said["HC002"][2:] == (
        f"{slots} slot{' admits' if slots == '1' else 's admit'} no request; 1 request x 5 slots + 1 = 6 are needed",
        "write 6, or 5 with --mamba-radix-cache-strategy extra_buffer_lazy",
    )


def test_slots_that_admit_no_request_are_found_once(tmp_path: Path) -> None:
    checked = check(tmp_path, f"{K3} --max-mamba-cache-size 4", rest="28.55GiB")
    assert [item.finding.rule for item in checked.findings] == ["HC002"]


def test_a_refusal_says_that_nothing_else_was_checked(tmp_path: Path) -> None:
    checked = check(tmp_path, "vllm serve Qwen/Qwen3.6-35B-A3B --block-size 24 --max-num-seqs 8")
    assert set(found(checked)) == {"HC047"}
    assert checked.waiting == (("all", ("HC047 stops the launch",)),)


def test_many_suppressions_take_time_in_proportion(
    tmp_path: Path, steps: Callable[[Callable[[], object]], int]
) -> None:
    path = tmp_path / "a.sh"
    taken = []
    for count in (200, 800):
        path.write_text("# hybridcalc: ignore=HC051 so\n" * count + "vllm serve org/m --max-num-seqs 4\n" * count)
        taken.append(steps(lambda: check_file(str(path), Settings(), {})))
    assert taken[1] < 5 * taken[0]


def test_a_misspelt_keyword_of_a_class_is_found_and_other_keywords_are_not(tmp_path: Path) -> None:
    call = 'from vllm import LLM\nLLM("qwen3-next-80b-a3b", gpu_memory_utilisation=0.9, runner="generate", seed=seed)\n'
    (place,) = found(check(tmp_path, call, "serve.py")).values()
    assert place[2] == "--gpu-memory-utilisation is not a flag of vLLM"
    assert place[3] == "write --gpu-memory-utilization"


def test_one_report_does_not_contradict_itself(tmp_path: Path) -> None:
    """Ranks that do not divide the model are not to be asked for; a K that is too small is not one to round down."""
    service = "services:\n  a:\n    image: vllm/vllm-openai:v0.30.0\n    command: --model qwen3-next-80b-a3b -tp 3\n"
    gpus = "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]}}}\n"
    assert set(found(check(tmp_path, service + gpus, "compose.yaml"))) == {"HC050"}
    small = "sglang serve qwen3-next-80b-a3b --tp 4 --max-mamba-cache-size 7"
    assert set(found(check(tmp_path, small, gpu="h100", length=8192))) == {"HC010"}


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3.5-397B-A17B-FP8", "/models/Qwen3.5-397B-A17B-FP8", "/models/Qwen/Qwen3.5-397B-A17B-FP8"]
)
def test_weights_are_those_of_the_checkpoint_that_is_named(tmp_path: Path, model: str) -> None:
    """A name or a path that says FP8 has FP8 weights, whatever the model is served as: half of the 16-bit ones."""
    line = f"python3 -m sglang.launch_server --model-path {model} --tp 4 --served-model-name qwen3.5-397b-a17b"
    told = found(check(tmp_path, line, gpu="h100", length=9216))
    assert told["HC001"][2].startswith("weights alone take 93.49 of 77.28 GiB")
