#!/usr/bin/env bash
set -euo pipefail
SPEC=()
SPEC+=(--speculative-algorithm NGRAM --speculative-num-draft-tokens 4 --max-running-requests 64)
exec python3 -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 "${SPEC[@]}"
