"""Releases side by side: one meaning for every column."""

from command_line import run


def test_kv_tokens_of_all_releases_mean_the_same() -> None:
    """vLLM 0.19 prints one group's share of the blocks, a quarter of what 0.20.2 prints of as many."""
    line = "vllm serve Qwen/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 128 --gpu-memory-utilization 0.9"
    said = run("compare", line, "--available", "40GiB", "-L", "16k", "--engine-version", "0.19.0,0.20.2", "-v")
    rows = [row.split() for row in said.out.splitlines() if row.strip().startswith(("0.19.0 ", "0.20.2 "))]
    tokens = {row[0]: int(row[3].replace(",", "")) for row in rows if len(row) > 3 and "," in row[3]}
    assert tokens.keys() == {"0.19.0", "0.20.2"}
    assert 0.9 < tokens["0.19.0"] / tokens["0.20.2"] < 1.1
