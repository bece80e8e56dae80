#!/usr/bin/env bash
# Every preset on a GPU: tensors of both engines at the scale that fits, torch's allocator against its predicted blocks
# and segments, with plain and with expandable segments. Writes one JSON document for each run. Needs the torch extra.
#
#   benchmarks/gpu_verify.sh [FOLDER]        default: gpu-verify
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-gpu-verify}
python=${PYTHON:-python3}

if ! "$python" -c 'import sys, warnings; warnings.simplefilter("ignore"); import torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  echo "skipped: torch finds no GPU here"
  exit 0
fi
mkdir -p "$folder"
"$python" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name(), *torch.cuda.mem_get_info())' | tee "$folder/gpu.txt"

failed=0
verify() {
  local name=$1 start=$SECONDS
  shift
  local code=0
  "$python" -m hybridcalc verify "$@" --device cuda --json > "$folder/$name.json" || code=$?
  if [ $code = 0 ]; then said=agrees
  elif [ $code = 2 ] && grep -q '^  "ok": true' "$folder/$name.json"; then said="agrees; the memory is too little for some"
  else said="DIFFERS (exit $code)"; failed=1; fi
  printf '%-32s %s, %d s\n' "$name" "$said" $((SECONDS - start))
}

# 8 GiB a model keep the whole run short; the last two fill the GPU.
for conf in "" expandable_segments:True; do
  export PYTORCH_ALLOC_CONF=$conf
  kind=${conf:+-expandable}
  verify "sglang$kind" --all --memory 8GiB
  verify "vllm$kind" --all --engine vllm --memory 8GiB
done
export PYTORCH_ALLOC_CONF=
verify kimi-k3-full-gpu kimi-k3 --tp 8 --kv-cache-dtype fp8_e4m3 --max-mamba-cache-size 257
verify qwen3.6-27b-drafts-full-gpu qwen3.6-27b --speculative-algorithm EAGLE --speculative-num-draft-tokens 4 \
  --speculative-eagle-topk 1
exit $failed
