#!/bin/bash
set -uo pipefail
IMG="${SGLANG_IMG:-lmsysorg/sglang:v0.5.23}"
V=/opt/venv
CTX="${SGLANG_CTX_LEN:-262144}"; MEM_FRAC="${SGLANG_MEM_FRACTION:-0.9}"; L3=""; [ -f "$L3" ] && { L3=1; CTX=1024; }
SPEC_ARGS=()
if [ "${SPEC_DISABLE:-0}" != "1" ]; then
  SPEC_ARGS+=(--speculative-algorithm DFLASH --speculative-num-draft-tokens 8)
fi
CPUS_ARGS=(); [ -n "${CPUSET:-}" ] && CPUS_ARGS+=(--cpuset-cpus "$CPUSET")
while [ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:1/health)" = "200" ]; do sleep 1; done
docker run -d --name qwen --gpus all ${CPUS_ARGS[@]+"${CPUS_ARGS[@]}"} \
  -e SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK="${SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK:-1}" \
  "$IMG" python3 -m sglang.launch_server \
    --model-path /model --served-model-name Qwen/Qwen3.8-27B \
    ${SPEC_ARGS[@]+"${SPEC_ARGS[@]}"} \
    --context-length "$CTX" --mem-fraction-static "$MEM_FRAC" \
    --max-running-requests 8 --max-mamba-cache-size 24 --mamba-ssm-dtype bfloat16
setsid nohup "$V/bin/python" -m sglang.launch_server \
  --model-path Qwen/Qwen3.5-4B --max-running-requests 1 --max-mamba-cache-size 8 > log 2>&1 &
echo "python3 -m sglang.launch_server --tp 8"
