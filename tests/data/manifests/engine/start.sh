exec python3 -m sglang.launch_server --config sglang.yaml --max-mamba-cache-size 161
