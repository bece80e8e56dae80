  exec ${venv}/bin/vllm serve cyankiwi/Qwen3.6-27B-AWQ-INT4 \
    --speculative-config '${specConfig}' \
    --tensor-parallel-size 2
  # Maximum concurrency for 262,144 tokens per request: 1.17x
