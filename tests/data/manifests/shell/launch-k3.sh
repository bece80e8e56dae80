#!/usr/bin/env bash
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-/models/kimi-k3}
export SGLANG_MAMBA_CONV_DTYPE=bfloat16

COMMON_ARGS=(
  --model-path "$MODEL_PATH"
  --served-model-name moonshotai/Kimi-K3   # what clients ask for
  --tp-size 8
  --kv-cache-dtype fp8_e4m3
)
SPEC_ARGS=()
if [[ "$ENABLE_SPEC" == "1" ]]; then
  SPEC_ARGS+=(--speculative-algorithm EAGLE --speculative-num-draft-tokens 4)
fi

cat > note.txt <<'EOF'
it's only a note: python3 -m sglang.launch_server --tp 99
EOF

numactl -N 0 python3 -m sglang.launch_server \
  "${COMMON_ARGS[@]}" \
  --max-running-requests 4 \
  --max-mamba-cache-size 8 \
  "${SPEC_ARGS[@]}" \
  --port "${PORT:-30000}" 2>&1 | tee boot.log
