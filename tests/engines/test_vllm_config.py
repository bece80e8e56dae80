"""vLLM's arguments and configuration stages: defaults, rule sets, cache mode, drafts, and what they refuse."""

from dataclasses import fields, replace
from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.architecture import Config
from hybridcalc.engines.vllm import BOUNDS, EngineArgs
from hybridcalc.engines.vllm.pages import Prepared
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.errors import InputError, Refusal, quoted
from hybridcalc.shell.flags import wanted

NEMOTRON, NEXT, KIMI = "nemotron-h-8b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b"


def prepared(model: str = NEMOTRON, **given: Any) -> Prepared:
    return prepare(load_model(model), EngineArgs(**given))


def refusal(model: str = NEMOTRON, **given: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        prepared(model, **given)
    return caught.value


@pytest.mark.parametrize(
    ("given", "mode", "caching"),
    [
        ({}, "align", True),
        ({"enable_prefix_caching": True}, "align", True),
        ({"enable_prefix_caching": False}, "none", False),
        ({"mamba_cache_mode": "align", "enable_prefix_caching": False}, "none", False),
        ({"mamba_cache_mode": "none"}, "align", True),
        ({"engine_version": "0.22.1"}, "none", False),
        ({"engine_version": "0.22.1", "mamba_cache_mode": "all"}, "none", False),
        ({"engine_version": "0.22.1", "enable_prefix_caching": True}, "all", True),
        ({"engine_version": "0.22.1", "enable_prefix_caching": True, "mamba_cache_mode": "none"}, "all", True),
        ({"engine_version": "0.22.1", "enable_prefix_caching": True, "mamba_cache_mode": "align"}, "align", True),
        ({"model": NEXT, "engine_version": "0.22.1", "enable_prefix_caching": True}, "align", True),
        (
            {"model": NEXT, "engine_version": "0.22.1", "enable_prefix_caching": True, "mamba_cache_mode": "all"},
            "align",
            True,
        ),
        ({"model": "codestral-mamba-7b"}, "none", False),
        ({"model": "codestral-mamba-7b", "enable_prefix_caching": True}, "align", True),
        ({"model": "llama-3-8b"}, "none", True),
        ({"model": "llama-3-8b", "engine_version": "0.22.1"}, "none", True),
    ],
)
def test_the_cache_mode_follows_prefix_caching(given: dict[str, Any], mode: str, caching: bool) -> None:
    """0.33.0: align with it, none without; 0.22.1: all where the class supports it and align is not asked for."""
    ready = prepared(**given)
    assert (ready.mode, ready.prefix_caching) == (mode, caching)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.9"])
def test_a_retired_mode_is_refused(version: str) -> None:
    """Its command line has no such choice."""
    found = refusal("granite-4.0-h-small", mamba_cache_mode="all", engine_version=version)
    assert (found.rule, found.stage, found.exit_code) == ("HC042", "create_engine_config", 1)
    assert found.message == (
        f"vLLM {version} has no Mamba cache mode all: the last version that had it is 0.31.0, later ones run align"
    )
    assert found.fix == "leave out --mamba-cache-mode, or use --engine-version 0.31.0"


@pytest.mark.parametrize("version", ["0.33.0", "0.34.1", None])
def test_the_newest_release_takes_the_mode_of_its_class_and_runs_another(version: str | None) -> None:
    """EngineArgs(mamba_cache_mode="all") starts, as recorded; its command line offers align and none alone."""
    assert prepared(mamba_cache_mode="all", engine_version=version).mode == "align"
    typed = EngineArgs.from_command("vllm serve nemotron-h-8b --mamba-cache-mode all")
    with pytest.raises(Refusal, match=r"^vLLM [0-9.]+ has no Mamba cache mode all: ") as caught:
        prepare(load_model("nemotron-h-8b"), replace(typed, engine_version=version))
    assert caught.value.rule == "HC042"
    for mode in ("align", "none"):
        typed = EngineArgs.from_command(f"vllm serve nemotron-h-8b --mamba-cache-mode {mode}")
        assert prepare(load_model("nemotron-h-8b"), replace(typed, engine_version=version)).mode == "align"


@pytest.mark.parametrize("version", ["0.31.0", "0.31.1", "0.22.1"])
def test_the_versions_that_have_the_mode_run_it(version: str) -> None:
    ready = prepared(engine_version=version, enable_prefix_caching=True, mamba_cache_mode="all")
    assert ready.mode == "all"


@pytest.mark.parametrize(
    ("gib", "capability", "seqs", "tokens"),
    [
        (None, "9.0", 256, 2048),
        (24.0, "8.9", 256, 2048),
        (69.9, "9.0", 256, 2048),
        (70.0, "9.0", 1024, 8192),
        (80.0, "8.0", 256, 2048),
        (128.0, "12.1", 256, 2048),
        (141.0, "9.0", 1024, 8192),
        (159.9, "10.0", 1024, 8192),
        (160.0, "10.0", 1024, 16384),
        (180.0, "10.0", 1024, 16384),
    ],
)
def test_defaults_follow_the_gpu(gib: float | None, capability: str, seqs: int, tokens: int) -> None:
    """1,024 sequences from 70 GiB on, but on A100 and GB10; a server's batch of 8,192 tokens there, 16,384 from 160."""
    args = EngineArgs(gpu_memory_gib=gib, gpu_capability=capability)
    assert (args.seqs, args.batched_tokens) == (seqs, tokens)
    given = replace(args, max_num_seqs=9, max_num_batched_tokens=77)
    assert (given.seqs, given.batched_tokens) == (9, 77)


@pytest.mark.parametrize(
    ("version", "share", "gib", "capability", "seqs", "tokens"),
    [
        ("0.19.0", 0.9, 180.0, "10.0", 1024, 8192),
        ("0.20.0", 0.92, 180.0, "10.0", 1024, 8192),
        ("0.27.1", 0.92, 192.0, "10.0", 1024, 8192),
        ("0.28.0", 0.92, 180.0, "10.0", 1024, 16384),
        ("0.32.0", 0.92, 128.0, "12.1", 1024, 8192),
        ("0.33.0", 0.92, 128.0, "12.1", 256, 2048),
        ("0.19.0", 0.9, 80.0, "8.0", 256, 2048),
    ],
)
def test_defaults_follow_the_release(
    version: str, share: float, gib: float, capability: str, seqs: int, tokens: int
) -> None:
    """0.9 of the GPU until 0.19; 16,384 tokens on 160 GiB from 0.28; GB10 as a small GPU from 0.33."""
    args = EngineArgs(engine_version=version, gpu_memory_gib=gib, gpu_capability=capability)
    assert (args.utilization, args.seqs, args.batched_tokens) == (share, seqs, tokens)
    assert EngineArgs(engine_version=version, gpu_memory_utilization=0.5).utilization == 0.5


@pytest.mark.parametrize("text", ["", "nine", "9.x", "9.0.0", "-9.0", "99999.0", "\u0669.0"])
def test_what_is_no_compute_capability_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"(?m)is no compute capability$|is not a name$"):
        prepared(gpu_capability=text)


@pytest.mark.parametrize(
    ("model", "config", "drafts", "layers"),
    [
        (NEXT, {"method": "mtp"}, 1, 13),
        (NEXT, {"method": "qwen3_next_mtp", "num_speculative_tokens": 3}, 3, 13),
        (NEXT, {"method": "ngram", "num_speculative_tokens": 3}, 3, 12),
        (NEXT, {"method": "suffix"}, 24, 12),
        (NEXT, {"model": "x/y", "num_speculative_tokens": 5}, 5, 12),
        ("nemotron-3-super-120b-a12b", {"method": "mtp", "num_speculative_tokens": 2}, 2, 9),
    ],
)
def test_drafts_widen_the_state_and_mtp_adds_its_layers(
    model: str, config: dict[str, Any], drafts: int, layers: int
) -> None:
    """MTP attention joins the target's bucket: 12 -> 13 for Qwen3-Next."""
    ready = prepared(model, speculative_config=config)
    assert ready.args.num_speculative_tokens == ready.held.drafts == drafts
    assert sum(group.layers for group in ready.groups if group.kind == "full attention") == layers
    assert ready.state[0].shape[0] == 3 + drafts


def test_layers_of_a_draft_model_are_counted_where_they_are_given() -> None:
    config = {"method": "eagle3", "num_speculative_tokens": 2}
    groups = prepared(NEXT, speculative_config=config, draft_layers=2).groups
    assert sum(group.layers for group in groups if group.kind == "full attention") == 14


REFUSED = {
    "ngram without a number": ({"speculative_config": {"method": "ngram"}}, "HC049",
                               "the speculative method ngram needs a number of draft tokens",
                               {"speculative_config": {"method": "ngram", "num_speculative_tokens": 1}}),
    "neither method nor model": ({"speculative_config": {"num_speculative_tokens": 2}}, "HC049",
                                 "speculation names neither a method nor a draft model",
                                 {"speculative_config": {"model": "x/y", "num_speculative_tokens": 2}}),
    "a draft model without a number": ({"speculative_config": {"model": "x/y"}}, "HC049",
                                       "the speculative method draft_model needs a number of draft tokens",
                                       {"speculative_config": {"model": "x/y", "num_speculative_tokens": 1}}),
    "longer than the model": ({"max_model_len": 8193}, "HC051",
                              "max_model_len 8,193 is beyond the model's own 8,192",
                              {"max_model_len": 8193, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}),
    "no MTP layers": ({"model": "falcon-h1-34b", "speculative_config": {"method": "mtp"}}, "HC049",
                      "falcon-h1-34b has no MTP layers to draft with",
                      {"model": "falcon-h1-34b", "speculative_config": {"method": "mtp"}, "draft_layers": 1}),
    "no multiple of the layers": ({"model": NEXT, "draft_layers": 2, "speculative_config": {
        "method": "mtp", "num_speculative_tokens": 3}}, "HC049",
        "3 speculative tokens are no multiple of the 2 MTP layers",
        {"model": NEXT, "draft_layers": 2, "speculative_config": {"method": "mtp", "num_speculative_tokens": 4}}),
    "heads": ({"tensor_parallel_size": 3}, "HC050", "tensor parallel size 3 does not divide the 32 attention heads",
              {"tensor_parallel_size": 4}),
    "KV dtype": ({"kv_cache_dtype": "float16"}, "HC049", "--kv-cache-dtype float16 is not the model's dtype bfloat16",
                 {"kv_cache_dtype": "float16", "dtype": "float16"}),
    "KV of 16 bits": ({"kv_cache_dtype": "bfloat16", "dtype": "float16"}, "HC049",
                      "--kv-cache-dtype bfloat16 is not the model's dtype float16", {"kv_cache_dtype": "bfloat16"}),
    "mamba block": ({"mamba_block_size": 2048, "enable_prefix_caching": False}, "HC049",
                    "--mamba-block-size needs prefix caching", {"mamba_block_size": 2048}),
    "chunked prefill": ({"enable_chunked_prefill": False}, "HC049",
                        "caching prefixes of recurrent layers needs chunked prefill",
                        {"enable_chunked_prefill": False, "enable_prefix_caching": False}),
    "dcp": ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, "HC050",
            "decode context parallel size 3 does not divide tensor parallel size 4",
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 1}),
    "replay on another class": ({"model": NEXT, "use_replayssm": True}, "HC049",
                                "Qwen3NextForCausalLM does not run ReplaySSM", {}),
    "replay on V2": ({"use_replayssm": True}, "HC049", "Triton ReplaySSM does not run on model runner V2",
                     {"use_replayssm": True, "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}),
    "replay and drafts": ({"use_replayssm": True, "enable_prefix_caching": False,
                           "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "HC049",
                          "Triton ReplaySSM does not run with speculation",
                          {"use_replayssm": True, "mamba_backend": "flashinfer", "enable_prefix_caching": False,
                           "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}),
    "replay, FlashInfer and prefixes": ({"use_replayssm": True, "mamba_backend": "flashinfer"}, "HC049",
                                        "FlashInfer ReplaySSM does not run with prefix caching",
                                        {"use_replayssm": True, "mamba_backend": "flashinfer",
                                         "enable_prefix_caching": False}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "rule", "reason", "instead"), REFUSED.values(), ids=REFUSED)
def test_the_configuration_refuses(given: dict[str, Any], rule: str, reason: str, instead: dict[str, Any]) -> None:
    """At create_engine_config, with the reason and what to write; one value on it goes through."""
    found = refusal(**given)
    assert (found.stage, found.rule, found.reason) == ("create_engine_config", rule, reason)
    assert found.fix
    assert prepared(**instead).bytes_per_block > 0


def test_a_kda_state_in_float16_is_refused_when_the_block_is_sized() -> None:
    """vLLM: "KDA recurrent state supports only auto, float32, and bfloat16" (recorded case)."""
    found = refusal(KIMI, mamba_ssm_cache_dtype="float16")
    assert (found.stage, found.rule) == ("update_block_size_for_backend", "HC049")
    assert (found.reason, found.fix) == ("vLLM keeps no KDA state in float16", "one of auto, float32, bfloat16")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size 0 is not a whole number from 1 to 4,096"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size True is not a whole number from 1 to 4,096"),
        ({"block_size": 1.5}, "block_size 1.5 is not a whole number from 1 to 1,048,576"),
        ({"num_speculative_tokens": 4096}, "num_speculative_tokens 4096 is not a whole number from 0 to 1,024"),
        ({"max_model_len": 0}, "max_model_len 0 is not a usable length"),
        ({"max_model_len": -2}, "max_model_len -2 is not a whole number from -1 to 1,099,511,627,776"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not one of auto, float32, bfloat16, float16"),
        ({"mamba_cache_mode": "lazy"}, "mamba_cache_mode 'lazy' is not one of all, align, none"),
        ({"kv_cache_dtype": "fp4"}, "--kv-cache-dtype fp4 is not modelled"),
    ],
)
def test_what_is_no_argument_or_not_modelled_is_an_input_error(given: dict[str, Any], text: str) -> None:
    """No refusal of the engine: nothing is said about whether it would start."""
    with pytest.raises(InputError) as caught:
        prepared(**given)
    assert caught.value.message == text


OTHER_KINDS = {
    "str": [7, 1.5, True, b"fp8", ["a"], {"a": 1}],
    "switch": [0, 1, "true", 0.0, [], {}],
    "int": ["1", 1.5, True, [], {}],
    "tokens": ["8k", 1.5, True, [], {}],
    "float": ["0.9", [0.9], {}, 1j, True],
    "json": ["{}", 1, [("a", 1)], True],
}


@pytest.mark.parametrize("name", BOUNDS.names)
def test_a_python_caller_s_value_of_another_kind_is_an_input_error(name: str) -> None:
    """Each argument, each kind of value: the message names both, and no other exception comes through."""
    flag = BOUNDS.flags[name]
    for value in OTHER_KINDS[flag.kind]:
        with pytest.raises(InputError) as caught:
            prepared(**dict[str, Any]({name: value}))
        assert caught.value.message == f"{name} {quoted(value)} is not {wanted(flag)}"


@pytest.mark.parametrize("name", [field.name for field in fields(EngineArgs)])
def test_what_may_be_left_open_may_be_none(name: str) -> None:
    """And nothing else may: a count is never left open."""
    optional = "None" in str(EngineArgs.__dataclass_fields__[name].type)
    if optional:
        BOUNDS.check(EngineArgs(**dict[str, Any]({name: None})))
        return
    with pytest.raises(InputError, match=rf"^{name} None is not "):
        BOUNDS.check(EngineArgs(**dict[str, Any]({name: None})))


def test_every_argument_has_a_check_of_its_kind() -> None:
    """Hand each a value of no kind at all: whatever is added to the arguments is checked as well."""
    for field in fields(EngineArgs):
        with pytest.raises(InputError, match=rf"^{field.name} .* is not "):
            prepared(**dict[str, Any]({field.name: object()}))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization nan is not a number above 0 and at most 1"),
        (
            {"prefix_cache_retention_interval": -1},
            "prefix_cache_retention_interval -1 is not a whole number from 0 to 1,099,511,627,776",
        ),
        ({"env": {"VLLM_USE_V2_MODEL_RUNNER": 0}}, "env: 'VLLM_USE_V2_MODEL_RUNNER': 0 is not text"),
        (
            {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": True}, "max_model_len": 9000},
            "env: 'VLLM_ALLOW_LONG_MAX_MODEL_LEN': True is not text",
        ),
    ],
)
def test_a_value_of_the_right_kind_may_still_be_none(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        prepared(**given)
    assert caught.value.message == text


def test_a_method_that_is_no_name_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"(?m)^the speculative method 3 is not a name$"):
        prepared(speculative_config={"method": 3, "num_speculative_tokens": 1})


def test_a_state_dtype_that_a_config_declares_and_no_kernel_has_is_an_input_error() -> None:
    """It would be a KeyError where bytes are counted; the flag wins over it."""
    model = load_model("qwen3.5-27b")
    odd = model._replace(declared_ssm_dtype="float128")
    with pytest.raises(InputError, match=r"(?m)declares a state dtype 'float128'$") as caught:
        prepare(odd, EngineArgs())
    assert caught.value.fix.startswith("one of ")
    assert prepare(odd, EngineArgs(mamba_ssm_cache_dtype="float32")).state[-1].dtype == "float32"


def test_a_billion_draft_layers_in_a_config_are_an_input_error() -> None:
    """Found before a list of them is made."""
    model = load_model(NEXT)._replace(draft_layers=10**9)
    with pytest.raises(InputError, match=r"(?m)has 1,000,000,000 draft layers, beyond any model$"):
        prepare(model, EngineArgs(speculative_config={"method": "mtp"}))


@pytest.mark.parametrize(("model", "factor", "longest"), [(NEMOTRON, 1.0, 8192), (NEMOTRON, 4.0, 32_768)])
def test_the_longest_length_is_that_of_the_config_times_its_rope_factor(
    model: str, factor: float, longest: int
) -> None:
    scaled = load_model(model)._replace(rope_scaling_factor=factor)
    assert prepare(scaled, EngineArgs()).length == longest
    assert prepare(scaled, EngineArgs(max_model_len=longest)).length == longest
    with pytest.raises(Refusal) as caught:
        prepare(scaled, EngineArgs(max_model_len=longest + 1))
    assert (caught.value.rule, caught.value.fix) == (
        "HC051",
        f"write --max-model-len {longest}, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
    )
    for value, starts in (("1", True), (" True ", True), ("0", False), ("", False)):
        args = EngineArgs(max_model_len=longest + 1, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": value})
        if starts:
            assert prepare(scaled, args).length == longest + 1
        else:
            with pytest.raises(Refusal):
                prepare(scaled, args)


def test_a_config_without_a_longest_sequence_is_served_at_2048_tokens() -> None:
    """vLLM config/model.py: what it assumes where no field of the config says."""
    assert load_model("codestral-mamba-7b").max_context is None
    assert prepared("codestral-mamba-7b").length == 2048
    assert prepared("codestral-mamba-7b", max_model_len=9000).length == 9000


@pytest.mark.parametrize(
    ("model", "given", "dtype"),
    [
        (NEMOTRON, {}, "float32"),
        (NEMOTRON, {"mamba_ssm_cache_dtype": "bfloat16"}, "bfloat16"),
        ("qwen3.5-27b", {}, "float32"),
        (NEXT, {}, "auto"),
        (KIMI, {}, "auto"),
    ],
)
def test_the_state_dtype_that_the_configuration_shows(model: str, given: dict[str, str], dtype: str) -> None:
    """Nemotron-H and Qwen3.5 have hooks that set it; Kimi's state is float32 although it shows auto."""
    assert prepared(model, **given).settled["mamba_ssm_cache_dtype"] == dtype


@pytest.mark.parametrize(
    ("model", "experts", "ranks", "starts"),
    [(NEXT, 8, 8, True), (NEXT, 7, 8, False), (NEXT, 1, 1, True), (NEXT, 0, 8, True), (KIMI, 4, 8, True)],
)
def test_some_classes_run_on_no_more_ranks_than_they_have_experts(
    model: str, experts: int, ranks: int, starts: bool
) -> None:
    """Qwen3-Next, as its config says how many there are; Kimi Linear runs on any."""
    own = load_model(model)._replace(config=Config({"num_experts": experts}))
    args = EngineArgs(tensor_parallel_size=ranks)
    if starts:
        assert prepare(own, args).args.tensor_parallel_size == ranks
    else:
        with pytest.raises(Refusal, match=f"tensor parallel size {ranks} is more than the {experts} experts") as caught:
            prepare(own, args)
        assert (caught.value.rule, caught.value.fix) == ("HC050", f"write -tp {experts} or less")


@pytest.mark.parametrize(
    ("version", "ranks", "starts"),
    [("0.26.0", 2, True), ("0.27.0", 2, False), ("0.27.0", 1, True), ("0.28.0", 2, True)],
)
def test_context_parallelism_of_kda_has_no_release_between_two(version: str, ranks: int, starts: bool) -> None:
    given: dict[str, Any] = {
        "engine_version": version,
        "decode_context_parallel_size": ranks,
        "tensor_parallel_size": 2,
    }
    if starts:
        assert prepared(KIMI, **given).args.decode_context_parallel_size == ranks
    else:
        assert "does not run context parallelism in this release" in refusal(KIMI, **given).reason


def test_another_training_of_a_model_may_have_another_longest_context() -> None:
    """Qwen3-235B-A22B has 40,960 tokens, the one of July 2025 has 262,144."""
    assert refusal("Qwen/Qwen3-235B-A22B-FP8", max_model_len=131072, tensor_parallel_size=4).rule == "HC051"
    ready = prepared("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", max_model_len=131072, tensor_parallel_size=4)
    assert ready.length == 131072


@pytest.mark.parametrize("model", ["qwen3.6-27b", "falcon-h1-34b", "zamba2-7b", "lfm2-1.2b", "olmo-hybrid-7b"])
def test_no_experts_are_shared_out_of_a_model_without(model: str) -> None:
    args = EngineArgs(enable_expert_parallel=True)
    with pytest.raises(Refusal, match=r"has no experts to share out") as caught:
        prepare(load_model(model), args)
    assert (caught.value.stage, caught.value.flag) == ("create_engine_config", "--enable-expert-parallel")
    assert prepare(load_model("qwen3.6-35b-a3b"), args).bytes_per_block > 0


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize("model", ["codestral-mamba-7b", "zamba2-7b"])
def test_some_classes_do_not_run_pipeline_stages(model: str, release: str) -> None:
    args = EngineArgs(pipeline_parallel_size=2, engine_version=release)
    with pytest.raises(Refusal, match="does not run pipeline stages") as caught:
        prepare(load_model(model), args)
    assert (caught.value.stage, caught.value.fix) == ("create_engine_config", "write -pp 1")


@pytest.mark.parametrize("model", ["qwen3-next-80b", "qwen3.6-27b"])
def test_mtp_of_some_classes_runs_pipeline_stages_from_a_release_on(model: str) -> None:
    """Until 0.29 drafts are cut into stages as their target is, which these classes are not made for."""
    drafts = {"method": "mtp", "num_speculative_tokens": 1}
    args = EngineArgs(pipeline_parallel_size=2, speculative_config=drafts, engine_version="0.29.0")
    with pytest.raises(Refusal, match=r"MTP of .* does not run pipeline stages in this release") as caught:
        prepare(load_model(model), args)
    assert (caught.value.stage, caught.value.rule) == ("create_engine_config", "HC050")
    assert "0.30.0" in caught.value.fix
    assert prepare(load_model(model), replace(args, engine_version="0.30.0")).stages
    assert prepare(load_model("nemotron-3-super-120b"), args).stages
