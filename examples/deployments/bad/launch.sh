#!/usr/bin/env bash
set -euo pipefail
SPEC=()
if [[ "$1" == spec ]]; then SPEC+=(--speculative-algorithm EAGLE); fi
exec python3 -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 "${SPEC[@]}"
