"""What is asked of a deployment is shared out to its data-parallel workers, stated or named by the lines' ranks."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

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
