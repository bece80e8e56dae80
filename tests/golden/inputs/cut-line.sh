#!/bin/sh
python3 -m sglang.launch_server --model-path moonshotai/Kimi-K3 --tp 8 \
  --max-running-requests 4
  --mem-fraction-static 0.85
