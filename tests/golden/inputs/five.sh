#!/bin/bash
python -m sglang.launch_server --model-path Qwen/Qwen3.5-397B-A17B-FP8 --tp 8 &
python -m sglang.launch_server --model-path Qwen/Qwen3.5-397B-A17B-FP8 --tp 8 --mamba-full-memory-ratio 0.12 &
python -m sglang.launch_server --model-path Qwen/Qwen3.5-397B-A17B-FP8 --tp 4 &
vllm serve Qwen/Qwen3.5-397B-A17B-FP8 --tensor-parallel-size 8 --max-model-len 131072 &
vllm serve Qwen/Qwen3.5-397B-A17B-FP8 --tensor-parallel-size 4 --max-model-len 131072 --max-num-seqs 64
