"""What is asked of a deployment is shared out to its data-parallel workers, stated or named by the lines' ranks."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload

SGLANG = (
    "[2026-05-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3.5-397B-A17B-FP8', tp_size=8, dp_size=8, "
    "enable_dp_attention=True)\n"
    "[2026-05-01 10:00:00 DP0 TP0] Mamba Cache is allocated. max_mamba_cache_size: 80, conv_state size: 0.30GB, "
    "ssm_state size: 14.00GB\n"
    "[2026-05-01 10:00:02 DP0 TP0] max_total_num_tokens=600000, max_running_requests=16, context_len=65536\n"
)
VLLM = (
    "(EngineCore_DP{0} pid=80{0}) INFO 12-16 02:10:29 [kv_cache_utils.py:1286] GPU KV cache size: 1,577,779 tokens\n"
    "(EngineCore_DP{0} pid=80{0}) INFO 12-16 02:10:29 [kv_cache_utils.py:1291] Maximum concurrency for 32,768 tokens "
    "per request: 48.15x\n"
)


@pytest.mark.parametrize(("wanted", "severity", "said"), [(100, "note", "they run"), (200, "warning", "128 run")])
def test_attention_workers_share_the_requests(wanted: int, severity: str, said: str) -> None:
    """13 of 100 come to each of 8 workers, which admit 16; of 200 there are 25, and 8 x 16 run."""
    found = diagnosed(SGLANG, workload=Workload(concurrency=wanted))
    [one] = [f for f in found.findings if f.rule == "HC155"]
    assert (one.severity, one.message.rpartition(": ")[2]) == (severity, said)
    assert f"{-(-wanted // 8)} on each of 8 workers" in one.message
    if severity == "warning":
        assert "--max-mamba-cache-size 1008" in one.fix and "--max-running-requests 200" in one.fix


@pytest.mark.parametrize(("wanted", "severity"), [(96, "note"), (97, "warning")])
def test_engines_that_name_themselves_are_workers(wanted: int, severity: str) -> None:
    found = diagnosed(VLLM.format(0) + VLLM.format(1), workload=Workload(concurrency=wanted))
    [one] = [f for f in found.findings if f.rule == "HC155"]
    assert one.severity == severity and "96 run at once" in one.message
    [alone] = [f for f in diagnosed(VLLM.format(0), workload=Workload(concurrency=96)).findings if f.rule == "HC155"]
    assert alone.severity == "warning" and "workers" not in alone.message


def test_tokens_alone_say_how_many_requests_kv_holds() -> None:
    """What a request holds of the slots is not known then: KV alone is answered."""
    found = diagnosed("max_total_num_tokens=349377, chunked_prefill_size=8192\n", workload=Workload.at(8192))
    assert found.meaning == "349,377 KV tokens; KV holds 42 requests of 8,192 tokens"


STAGE = (
    "[2026-02-01 00:05:02 {rank}] Mamba Cache is allocated. max_mamba_cache_size: 507, conv_state size: {conv}GB, "
    "ssm_state size: {ssm}GB \n"
    "[2026-02-01 00:05:02 {rank}] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 2153752, "
    "KV size: {kv} GB\n"
)


@pytest.mark.parametrize(
    ("rank", "conv", "ssm", "kv", "state", "cell"),
    [
        ("PP0 TP7", "0.46", "13.02", "12.71", 28_492_800, 6_336),  # 35 KDA layers and 11 of MLA
        ("PP1 TP7", "0.44", "12.65", "15.02", 27_678_720, 7_488),  # 34 and 13
    ],
)
def test_one_pipeline_stage_alone_is_sized_by_its_own_layers(
    rank: str, conv: str, ssm: str, kv: str, state: int, cell: int
) -> None:
    """Kimi K3 on TP8 x PP2, as its plan prints it for each stage."""
    found = diagnosed(STAGE.format(rank=rank, conv=conv, ssm=ssm, kv=kv))
    assert "kimi-k3 on TP8 x PP2" in found.headline
    exact = found.constants.exact
    assert (exact.state_bytes_per_slot, exact.kv_bytes_per_token) == (state, cell)
    assert any(f"{rank[:3]} of the pipeline stages alone is in the log" in one.message for one in found.findings)
    assert not [row for row in found.rows if row.place == "split"]  # what a stage's pools come to is no ratio


def test_stages_in_any_order_are_sized_by_the_first_of_them() -> None:
    first = STAGE.format(rank="PP0 TP7", conv="0.46", ssm="13.02", kv="12.71")
    second = STAGE.format(rank="PP1 TP7", conv="0.44", ssm="12.65", kv="15.02")
    found = diagnosed(second + first)
    assert found.constants.exact.state_bytes_per_slot == 28_492_800
    assert not any("alone" in one.message for one in found.findings)


@pytest.mark.parametrize(("rank", "fewest", "several"), [("TP3", 4, False), ("TP1", 2, True)])
def test_one_rank_alone_says_how_many_there_are_at_least(rank: str, fewest: int, several: bool) -> None:
    """fp32 states of TP4 are as large as bf16 states of TP2: rank 3 leaves the former, rank 1 both."""
    pools = (
        "[2026-03-01 10:00:01 {0}] Mamba Cache is allocated. max_mamba_cache_size: 7, conv_state size: 0.01GB, "
        "ssm_state size: 0.28GB \n"
        "[2026-03-01 10:00:01 {0}] KV Cache is allocated. #tokens: 2153752, K size: 16.43 GB, V size: 16.43 GB\n"
    )
    found = diagnosed(pools.format(rank), model=load_model("qwen3.6-27b"))
    assert min(one.tp for one in found.candidates) == fewest
    assert (len({one.tp for one in found.candidates}) > 1) is several
