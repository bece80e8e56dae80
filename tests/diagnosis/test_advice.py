"""What a failed boot is told, word by word, on both sides of every bound that its figures are held against."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosed import diagnosed

from hybridcalc.diagnosis import Question, diagnose_log

WEIGHTS = "Load weight begin. avail mem={} GB\nLoad weight end. avail mem={} GB, mem usage={} GB.\n"
ECHO = "server_args=ServerArgs(model_path='a/b', tp_size={}, mem_fraction_static={})\n"
HYBRID = (
    "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-1 "
    "(total_rest_memory={} GB, mamba_cache_per_req={} MB)\n"
)
TOKENS = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
PROFILE = (
    "Memory profiling: available_gpu_memory={} GB, total_gpu_memory=80.00 GB,\n"
    "mem_fraction_static=0.81, rest_memory=-3.51 GB\n"
)
CAPPED = (
    "max_running_requests is capped to 4 by the mamba state cache "
    "(max_mamba_cache_size=24, 5 state slots per request)\n"
)
RAISE, SHARE = "raise --mem-fraction-static", "the state's share: --mamba-full-memory-ratio or --max-mamba-cache-size"
MORE, LESS = f"{RAISE}, or use more GPUs or smaller weights", "use smaller weights or more GPUs"
NONE = "no --mem-fraction-static helps"
AVAILABLE = (
    "Free memory on device (44.00/47.50 GiB) on startup. Desired GPU memory utilization is ({asked}, 33.25 GiB).\n"
    "Available KV cache memory: {left} GiB\nThe current --gpu-memory-utilization={asked} is equivalent to "
    "--gpu-memory-utilization=0.6868 without\nValueError: No available memory for the cache blocks.\n"
)
START = (
    "ValueError: Free memory on device cuda:0 ({}/{} GiB) on startup is less\nthan desired GPU memory utilization "
    "(0.5, 101.61 GiB).\n"
)
FREE = "or free the GPU"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (WEIGHTS.format("90.00", "61.53", "28.47") + HYBRID.format("0.00", "1.00"), MORE),
        (HYBRID.format("-9.00", "1.00"), f"9.00 GiB and more are missing: {MORE}"),
        (WEIGHTS.format("90.00", "61.53", "28.47") + HYBRID.format("-9.00", "1.00"),
         f"{RAISE} by more than 0.10, or use more GPUs"),
        (ECHO.format(1, 0.87) + WEIGHTS.format("90.00", "61.53", "28.47") + HYBRID.format("-9.00", "1.00"),
         f"{RAISE} by more than 0.10, or use more GPUs"),
        (ECHO.format(1, 0.88) + WEIGHTS.format("90.00", "61.53", "28.47") + HYBRID.format("-9.00", "1.00"),
         f"{NONE}: 0.88 + 0.10 would leave the engine nothing; {LESS}"),
        (WEIGHTS.format("100.00", "2.01", "97.99") + HYBRID.format("-9.00", "1.00"),
         f"{RAISE} by more than 0.09, or use more GPUs"),
        (WEIGHTS.format("100.00", "2.00", "98.00") + HYBRID.format("-9.00", "1.00"),
         f"{NONE}: 2.00 GiB are free after the weights; {LESS}"),
        (TOKENS, MORE),
        (TOKENS + PROFILE.format("0.00"), MORE),
        (TOKENS + PROFILE.format("80.00"), MORE),
        (TOKENS + PROFILE.format("79.20"), f"{RAISE} above 0.01, or use more GPUs or smaller weights"),
        (TOKENS + PROFILE.format("0.80"), "no --mem-fraction-static helps; use smaller weights or more GPUs"),
        (CAPPED + TOKENS, f"{RAISE}, or lower {SHARE}"),
        (AVAILABLE.format(asked=0.9, left="-4.70"), "--gpu-memory-utilization above 1.00"),
        (AVAILABLE.format(asked=0.9, left="-4.75"), "the weights do not fit: use more GPUs"),
        (AVAILABLE.format(asked=0.5, left="-0.95"), "--gpu-memory-utilization above 0.52"),
        (START.format("0.00", "100.00"), f"lower --gpu-memory-utilization, {FREE}"),
        (START.format("0.10", "100.00"), f"--gpu-memory-utilization 0.001 at most, {FREE} of what else runs on it"),
        (START.format("99.99", "100.00"), f"--gpu-memory-utilization 0.999 at most, {FREE} of what else runs on it"),
        (START.format("100.00", "100.00"), f"lower --gpu-memory-utilization, {FREE}"),
    ],
)  # fmt: skip
def test_advice_is_that_of_the_figures(text: str, fix: str) -> None:
    """A share is named where it exists: below what the engine needs for itself, and inside of 0 to 1."""
    [error] = [one for one in diagnosed(text).findings if one.severity == "error"]
    assert error.fix == fix


@pytest.mark.parametrize(("left", "cause"), [("-0.01", "HC125"), ("0.00", "HC125"), ("0.01", "HC128")])
def test_an_engine_that_ended_without_memory_for_its_cache_ended_of_that(left: str, cause: str) -> None:
    [error] = diagnosed(f"Available KV cache memory: {left} GiB\nERROR EngineCore failed to start.\n").findings
    assert error.rule == cause


@pytest.mark.parametrize(
    ("first", "second", "fix"),
    [
        # (TP, fraction, rest, MiB a slot): 100 GiB are free before the weights, 12 after them; 8 slots are needed
        ((1, 0.8, -8, "128.00"), (1, 0.7, -18, "128.00"), "100.0 GiB free before the weights and 12.00 after them: "
         "--mem-fraction-static 0.906 at least (0.878 to 0.906 by the printed digits)"),
        ((1, 0.8, -8, "130.56"), (1, 0.7, -18, "130.56"), "100.0 GiB free before the weights and 12.00 after them: "
         "--mem-fraction-static 0.906 at least (0.878 to 0.906 by the printed digits)"),
        ((1, 0.8, -8, "1280.00"), (1, 0.7, -18, "1280.00"), "100.0 GiB free before the weights and 12.00 after them: "
         f"{NONE}, none leaves more than that; {LESS}"),
        ((1, 0.8, -8, "1279.00"), (1, 0.7, -18, "1279.00"), "100.0 GiB free before the weights and 12.00 after them: "
         "--mem-fraction-static 0.98 at least (0.960 to 1.006 by the printed digits)"),
        ((1, 0.8, -8, "128.00"), (2, 0.7, -18, "128.00"), None),
        ((1, 0.8, -8, "128.00"), (1, 0.7, -8, "128.00"), None),
        ((1, 0.8, -8, "128.00"), (1, 0.7, -7, "128.00"), None),
        ((1, 0.8, -20, "128.00"), (1, 0.7, -30, "128.00"), None),
        ((1, 0.8, -19, "128.00"), (1, 0.7, -29, "12.80"), "100.0 GiB free before the weights and 1.00 after them: "),
        ((1, 0.8, 80, "128.00"), (1, 0.7, 70, "128.00"), None),
        ((1, 0.8, "-0.08", "0.00"), (1, 0.7, "-0.18", "0.00"), "1.0 GiB free before the weights and 0.12 after them: "
         "--mem-fraction-static 0.895 at least (0.869 to 0.895 by the printed digits)"),
    ],
)  # fmt: skip
def test_two_refusals_of_one_host_are_two_equations(
    tmp_path: Path, first: tuple[object, ...], second: tuple[object, ...], fix: str | None
) -> None:
    """rest = after - before x (1 - fraction): solved where host and launch are the same and 0 < after < before."""
    log = tmp_path / "boot.log"
    log.write_text("".join(ECHO.format(*case[:2]) + HYBRID.format(*case[2:]) for case in (first, second)))
    told = [one.fix for boot in diagnose_log(log, Question()).boots for one in boot.findings if one.rule == "HC120"]
    assert len(told) == 2
    if fix is None:
        assert not any("two refusals" in one for one in told)
    else:
        assert all(one.startswith("two refusals together say ") for one in told) and fix in told[0]
