#!/bin/bash
NS=default
kubectl apply -n $NS -f - <<EOF
apiVersion: v1
kind: Pod
metadata: {name: x}
spec:
  containers:
    - image: lmsysorg/sglang
      command: [python3, -m, sglang.launch_server]
      args: [--model-path, moonshotai/Kimi-K3, --tp, "${TP:-8}", --max-running-requests, "4", --max-mamba-cache-size, "8"]
EOF
