"""Every rule of SGLang's trap list: one configuration that it catches, one close by that it leaves alone."""

import re
from dataclasses import replace
from typing import Any

import pytest
from present import present

import hybridcalc
from hybridcalc import load_model, sglang
from hybridcalc.deployment import Workload
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.rules import RULES
from hybridcalc.engines.sglang.server_plan import Plan
from hybridcalc.errors import Refusal
from hybridcalc.findings import SEVERITIES, Finding, find

K3_FLAGS = {"tp_size": 8, "mamba_ssm_dtype": "float32", "kv_cache_dtype": "fp8_e4m3"}
NO_BUFFER: dict[str, Any] = {"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}
SPEC: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4, "draft_layers": 1}
BALANCED: dict[str, Any] = {"mamba_full_memory_ratio": 2.2}
NEXT, NEMOTRON = "qwen3-next-80b-a3b", "nemotron-h-8b"


def planned(
    model: str = "kimi-k3",
    *,
    rest: float = 28.55,
    length: int | None = 9216,
    concurrency: int | None = None,
    **flags: Any,
) -> Plan:
    """A plan of Kimi-K3 on 8 ranks with fp8 KV, or of a model under nothing but ``flags``."""
    args = ServerArgs(**(K3_FLAGS | flags if model == "kimi-k3" else flags))
    workload = Workload(((length, 1),) if length else (), concurrency)
    return sglang.plan(load_model(model), args, rest_gib=rest, workload=workload)


def found(rule: str, *arguments: Any, **flags: Any) -> Finding | None:
    """The finding of one rule, or None."""
    return next((finding for finding in planned(*arguments, **flags).findings if finding.rule == rule), None)


def fixed(finding: Finding) -> dict[str, int | float]:
    """The flags that a finding's fix writes, as fields."""
    pairs = re.findall(r"--([a-z-]+) ([0-9.]+)", finding.fix)
    return {name.replace("-", "_"): float(value) if "." in value else int(value) for name, value in pairs}


def test_every_rule_has_an_id_of_its_own_and_says_why() -> None:
    """HC001 to HC032 in order, each with severity, title, reason and source."""
    assert [rule.id for rule in RULES] == [f"HC{number:03d}" for number in range(1, 33)]
    assert all(rule.severity in SEVERITIES and rule.title and rule.reason and rule.source for rule in RULES)
    assert [rule.id for rule in RULES if rule.check is None] == [
        f"HC0{n:02d}" for n in (1, 3, 4, 5, 6, 7, 8, 9, 24, 25, 26, 27, 28)
    ]


@pytest.mark.parametrize(
    ("rule", "stage", "flags", "reason", "instead"),
    [
        ("HC001", "solve", {"rest": 0.1}, "0.10 GiB give", {"rest": 1.0}),
        (
            "HC001",
            "solve",
            {"max_mamba_cache_size": 600},
            "600 state slots take 33,759,083,520 B of 28.55 GiB",
            {"max_mamba_cache_size": 500},
        ),
        (
            "HC001",
            "tokens",
            {"max_total_tokens": 63, "page_size": 64},
            "no page of 64 tokens",
            {"max_total_tokens": 64, "page_size": 64},
        ),
        (
            "HC001",
            "tokens",
            {"model": "inkling", "rest": 2.0, "tp_size": 8, "max_total_tokens": 5120},
            "pool of 512 tokens does not hold a window of 512",
            {"model": "inkling", "rest": 2.0, "tp_size": 8, "max_total_tokens": 5140},
        ),
        (
            "HC002",
            "max_running_requests",
            {"max_mamba_cache_size": 4},
            "4 slots at 5 a request",
            {"max_mamba_cache_size": 5},
        ),
        (
            "HC003",
            "strategy",
            {"mamba_radix_cache_strategy": "no_buffer"},
            "no_buffer does not run under the overlap",
            {"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True},
        ),
        (
            "HC003",
            "ratio",
            {"mamba_radix_cache_strategy": "extra_buffer_lazy", "pp_size": 2},
            "needs the overlap",
            {"mamba_radix_cache_strategy": "extra_buffer", "pp_size": 2},
        ),
        (
            "HC003",
            "strategy",
            {"model": "lfm2-350m", "mamba_radix_cache_strategy": "extra_buffer"},
            "not supported for",
            {"model": "lfm2-350m"},
        ),
        (
            "HC004",
            "strategy",
            {"page_size": 48, "mamba_track_interval": 192},
            "--page-size 48 neither divides",
            {"page_size": 32, "mamba_track_interval": 192},
        ),
        (
            "HC004",
            "alloc",
            {"model": "glm-5.3-flash", "tp_size": 8, "page_size": 1},
            "64 pooled tokens, 4 to one, not pages of 1",
            {"model": "glm-5.3-flash", "tp_size": 8, "page_size": 256},
        ),
        (
            "HC005",
            "strategy",
            {"mamba_track_interval": 3, **SPEC},
            "3 is below the 4 draft tokens",
            {"mamba_track_interval": 4, **SPEC},
        ),
        (
            "HC005",
            "strategy",
            {"mamba_track_interval": 100, "page_size": 64},
            "100 is no multiple of --page-size 64",
            {"mamba_track_interval": 128, "page_size": 64},
        ),
        (
            "HC006",
            "strategy",
            {"enable_linear_replayssm": True},
            "does not run with extra buffers",
            {"enable_linear_replayssm": True, **NO_BUFFER},
        ),
        (
            "HC006",
            "alloc",
            {**SPEC, "enable_linear_replayssm_spec": True, "linear_replayssm_cache_len": 4},
            "8",
            {**SPEC, "enable_linear_replayssm_spec": True, "linear_replayssm_cache_len": 8},
        ),
        (
            "HC006",
            "alloc",
            {
                "model": NEXT,
                "tp_size": 2,
                **SPEC,
                "speculative_algorithm": "DSPARK",
                "enable_linear_replayssm_spec": True,
            },
            "under DSPARK needs a KDA model",
            {"model": NEXT, "tp_size": 2, **SPEC, "enable_linear_replayssm_spec": True},
        ),
        (
            "HC007",
            "strategy",
            {"enable_int8_mamba_checkpoint": True, "enable_lmcache": True},
            "with --enable-lmcache",
            {"enable_int8_mamba_checkpoint": True},
        ),
        (
            "HC008",
            "strategy",
            {"enable_unified_memory": True, "enable_two_batch_overlap": True},
            "two-batch-overlap",
            {"enable_unified_memory": True},
        ),
        (
            "HC008",
            "strategy",
            {"model": NEXT, "tp_size": 2, "dcp_size": 2, "enable_unified_memory": True},
            "context parallelism without MLA",
            {"dcp_size": 2, "enable_unified_memory": True},
        ),
        ("HC009", "shapes", {"tp_size": 5}, "--tp 5 does not divide 96 KDA heads", {"tp_size": 6}),
    ],
)
def test_a_refusal_carries_its_rule_its_stage_and_its_numbers(
    rule: str, stage: str, flags: dict[str, Any], reason: str, instead: dict[str, Any]
) -> None:
    """What the engine does not start with is raised where it checks; one value on, it starts."""
    with pytest.raises(Refusal) as refusal:
        planned(**flags)
    assert (refusal.value.rule, refusal.value.stage) == (rule, stage)
    assert reason.replace(",", "") in refusal.value.reason.replace(",", "")
    assert refusal.value.fix
    assert planned(**instead).max_running_requests > 0


@pytest.mark.parametrize(
    ("rule", "severity", "caught", "left", "words"),
    [
        ("HC002", "error", {"concurrency": 52}, {"concurrency": 51}, "52 requests are wanted, 51 run: 257 slots // 5"),
        (
            "HC002",
            "error",
            {**BALANCED, "concurrency": 75},
            {**BALANCED, "concurrency": 74},
            "75 requests are wanted, 74 run: ",
        ),
        (
            "HC002",
            "error",
            {"max_running_requests": 48, "concurrency": 50, "rest": 60.0},
            {"max_running_requests": 50, "concurrency": 50, "rest": 60.0},
            "50 requests are wanted, 48 run: the request limit is 48",
        ),
        ("HC010", "warning", {}, BALANCED, "binds at 51 requests of 9,216 tokens; 60 % of the KV idles"),
        ("HC011", "warning", {"mamba_full_memory_ratio": 9.0}, BALANCED, "% of the state slots idle"),
        ("HC012", "warning", {}, BALANCED, "the default ratio 0.9 does not fit this workload: 51 -> 74 requests"),
        ("HC012", "warning", {}, {"length": 22_000}, "51 -> 74"),
        (
            "HC013",
            "note",
            {"max_mamba_cache_size": 255, "length": None},
            {"max_mamba_cache_size": 255},
            "255 is 51 requests x 5 slots, and none is spare",
        ),
        (
            "HC013",
            "note",
            {"max_mamba_cache_size": 258, "length": None},
            {"max_mamba_cache_size": 256, "length": None},
            "3 are left over",
        ),
        (
            "HC014",
            "note",
            {"max_mamba_cache_size": 256, "mamba_full_memory_ratio": 2.0},
            {"max_mamba_cache_size": 256},
            "--max-mamba-cache-size wins",
        ),
        (
            "HC014",
            "note",
            {"max_mamba_cache_size": 256, "mamba_full_memory_ratio": 2.0},
            {"model": "inkling", "tp_size": 8, "max_mamba_cache_size": 256},
            "wins over",
        ),
        ("HC016", "warning", {"enable_linear_replayssm": True, **NO_BUFFER}, {}, "for the ReplaySSM rings"),
        (
            "HC016",
            "warning",
            {"enable_int8_mamba_checkpoint": True},
            {"enable_int8_mamba_checkpoint": True, "int8_mamba_ckpt_size": 20},
            "for the int8 checkpoints",
        ),
        (
            "HC017",
            "warning",
            {**SPEC, "max_running_requests": 120, "max_mamba_cache_size": 201},
            {**SPEC, "max_running_requests": 16, "max_mamba_cache_size": 201},
            "40 + 1 requests x 4 states",
        ),
        ("HC018", "note", SPEC, {**SPEC, "max_running_requests": 48}, "limits the server to 48"),
        ("HC019", "warning", {"dcp_size": 8}, {"dcp_size": 8, "mamba_full_memory_ratio": 17.64}, "dcp 8 divides"),
        ("HC019", "warning", {"dcp_size": 8}, {"dcp_size": 8, "max_mamba_cache_size": 496}, "dcp 8 divides"),
        (
            "HC020",
            "warning",
            {"model": NEMOTRON, **SPEC, "enable_linear_replayssm_spec": True},
            {"model": NEXT, "tp_size": 2, **SPEC, "enable_linear_replayssm_spec": True},
            "NemotronHForCausalLM",
        ),
        (
            "HC020",
            "warning",
            {"enable_linear_replayssm_spec": True},
            {**SPEC, "enable_linear_replayssm_spec": True},
            "without speculation verifies nothing",
        ),
        (
            "HC021",
            "note",
            {"pp_size": 2},
            {"pp_size": 2, "disable_radix_cache": True, "mamba_radix_cache_strategy": "extra_buffer"},
            "S = 4",
        ),
        ("HC021", "note", {"pp_size": 2}, {}, "pp 2 turns the overlap scheduler off"),
        ("HC023", "warning", {"max_running_requests": 90}, {"max_running_requests": 51}, "is 90, 51 run"),
        ("HC022", "error", {"context_length": 9215}, {"context_length": 9216}, "9,216 tokens exceed the context"),
    ],
)
def test_a_trap_is_found_and_its_neighbour_is_not(
    rule: str, severity: str, caught: dict[str, Any], left: dict[str, Any], words: str
) -> None:
    """The finding names the numbers that make it one; a configuration next to it has none."""
    finding = found(rule, **caught)
    assert finding is not None and finding.severity == severity
    assert words in finding.message
    assert found(rule, **left) is None


@pytest.mark.parametrize("field", ["declared_ssm_dtype", "declared_ssm_cache_dtype"])
def test_a_declared_state_dtype_that_nobody_reads(field: str) -> None:
    """HC015: Kimi does not read mamba_ssm_dtype, no class mamba_ssm_cache_dtype; a flag settles it."""
    model = load_model("kimi-k3")._replace(**dict[str, Any]({field: "bfloat16"}))
    args = ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")
    finding = next(f for f in find(RULES, sglang.plan(model, args, rest_gib=28.55)) if f.rule == "HC015")
    assert (finding.severity, finding.fix) == ("warning", "write --mamba-ssm-dtype bfloat16")
    assert "bfloat16" in finding.message and finding.message.endswith("the state is float32")
    for chosen in ("bfloat16", "float32"):
        plan = sglang.plan(model, replace(args, mamba_ssm_dtype=chosen), rest_gib=28.55)
        assert not [f for f in find(RULES, plan) if f.rule == "HC015"]


def test_a_dtype_that_its_class_reads_is_no_trap() -> None:
    """Qwen3-Next reads mamba_ssm_dtype: a declared bfloat16 is what the state has."""
    model = load_model(NEXT)._replace(declared_ssm_dtype="bfloat16")
    plan = sglang.plan(model, ServerArgs(tp_size=2), rest_gib=28.55)
    assert plan.ready.slot.ssm_dtype == "bfloat16"
    assert not [f for f in find(RULES, plan) if f.rule == "HC015"]


@pytest.mark.parametrize(
    "flags",
    [
        {"concurrency": 60},
        {"concurrency": 60, "max_mamba_cache_size": 200},
        {"concurrency": 100, "max_running_requests": 48, "rest": 60.0},
        {"concurrency": 60, "rest": 60.0, **SPEC},
        {"concurrency": 300, "rest": 60.0, "tp_size": 16, "dp_size": 2, "enable_dp_attention": True},
        {"concurrency": 60, "max_running_requests": 40, "disable_radix_cache": True},
        {"concurrency": 60, "length": None},
    ],
    ids=["state", "K given", "limit", "limit under speculation", "two workers", "radix off", "no length"],
)
def test_the_fix_for_too_few_requests_reaches_the_number_wanted(flags: dict[str, Any]) -> None:
    """HC002: planned again under the flags it writes, the requests wanted run."""
    finding = found("HC002", **flags)
    assert finding is not None and fixed(finding)
    again = planned(**flags | fixed(finding))
    assert again.concurrency * again.args.attn_dp_size >= flags["concurrency"]


@pytest.mark.parametrize("length", [9216, None])
def test_no_fix_is_written_that_does_not_fit(length: int | None) -> None:
    """HC002: 10,000 requests fit no split of 28.55 GiB, and no flag is said to reach them."""
    finding = found("HC002", concurrency=10_000, length=length)
    assert finding is not None and not finding.fix.startswith("write")


def test_the_fix_of_a_pin_leaves_one_slot_over() -> None:
    """HC013: 51 requests x 5 + 1, twice for two workers; HC010 says more where a length is known."""
    assert present(found("HC013", max_mamba_cache_size=255, length=None)).fix == "write 256"
    workers = {"tp_size": 16, "dp_size": 2, "enable_dp_attention": True}
    assert present(found("HC013", max_mamba_cache_size=510, length=None, **workers)).fix == "write 512"


def test_errors_come_first() -> None:
    """error, warning, note."""
    order = [finding.severity for finding in planned(concurrency=60, pp_size=2, dcp_size=8, **SPEC).findings]
    assert order == sorted(order, key=("error", "warning", "note").index) and len(set(order)) == 3


def test_a_configuration_that_fits_its_workload_has_no_findings() -> None:
    """The balanced ratio of Kimi-K3 at 9,216 tokens."""
    assert planned(**BALANCED).findings == ()


@pytest.mark.parametrize(("fraction", "found"), [(None, False), (0.8, False), (0.97, True)])
def test_a_fraction_that_keeps_less_than_half_of_the_usual_is_remarked(fraction: float | None, found: bool) -> None:
    """On an H100 the engine itself keeps some 18 GiB; 3 % of the card are 2.4."""
    asked: dict[str, Any] = {} if fraction is None else {"mem_fraction_static": fraction}
    made = hybridcalc.plan("Qwen/Qwen3.6-27B-FP8", gpu="h100", length="8k", **asked)
    said = [finding.message for finding in made.findings if finding.rule == "HC029"]
    assert bool(said) == found
    if found:
        assert "keeps 2.36 GiB for activations and graphs; SGLang's own" in said[0]


def test_findings_of_pools_point_at_each_flag_that_sizes_them() -> None:
    """The first of these flags that a launch gives is where the finding stands."""
    places = {rule.id: rule.place for rule in RULES if len(rule.place) > 1}
    assert places == {
        "HC001": ("--mem-fraction-static", "--max-mamba-cache-size", "--mamba-full-memory-ratio"),
        "HC002": ("--max-mamba-cache-size", "--max-running-requests", "--mamba-full-memory-ratio"),
        "HC003": ("--mamba-radix-cache-strategy", "--disable-overlap-schedule", "--linear-attn-backend"),
        "HC005": ("--mamba-track-interval", "--speculative-num-draft-tokens", "--page-size"),
        "HC006": ("--linear-replayssm-cache-len", "--enable-linear-replayssm", "--enable-linear-replayssm-spec"),
        "HC010": ("--max-mamba-cache-size", "--mamba-full-memory-ratio"),
        "HC011": ("--max-mamba-cache-size", "--mamba-full-memory-ratio"),
        "HC025": ("--kv-cache-dtype", "--attention-backend"),
        "HC032": ("--speculative-num-draft-tokens", "--speculative-num-steps", "--speculative-eagle-topk"),
    }
