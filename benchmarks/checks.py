"""How long does ``hybridcalc check`` take on a thousand manifests, and how much memory?

    python benchmarks/checks.py [--files 1000] [--lines 200] [--most 10]

Writes Kubernetes manifests of that many lines (an SGLang server, a vLLM server, their services, comments) into a
temporary folder, checks them as a whole process, and prints seconds and the largest resident memory of it and its
children. Exits with 1 when it takes longer than ``--most`` seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: server-{number}
  labels: {{app: server-{number}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: server-{number}}}}}
  template:
    metadata: {{labels: {{app: server-{number}}}}}
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H200}}
      containers:
        - name: server
          image: lmsysorg/sglang:v0.5.23
          env:
            - {{name: REQUESTS, value: "{requests}"}}
          command: [bash, -c]
          args:
            - |
              exec python3 -m sglang.launch_server \\
                --model-path moonshotai/Kimi-K3 \\
                --tp 8 --kv-cache-dtype fp8_e4m3 \\
                --max-running-requests $(REQUESTS) \\
                --max-mamba-cache-size {slots} --port 30000
          resources: {{limits: {{nvidia.com/gpu: "8"}}}}
"""
FILLER = '            - {{name: SETTING_{index}, value: "{index}"}}\n'


def manifest(number: int, lines: int) -> str:
    """A manifest of at least that many lines."""
    text = MANIFEST.format(number=number, requests=4 + number % 60, slots=21 + number % 300)
    filler = "".join(FILLER.format(index=index) for index in range(max(0, lines - text.count("\n"))))
    return text.replace("          command:", f"{filler}          command:", 1)


def main() -> int:
    """Write, check, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--most", type=float, default=10, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.files):
            Path(folder, f"server-{number:05}.yaml").write_text(manifest(number, options.lines), encoding="utf-8")
        start = time.perf_counter()
        command = [sys.executable, "-m", "hybridcalc", "check", "--json", folder]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=os.environ | {"NO_COLOR": "1"})
        taken = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{options.files} files of {options.lines} lines, exit {ran.returncode}: {taken:.2f} s")
    print(f"{busy:.2f} s of processor time, {len(ran.stdout):,} B of JSON, at most {peak:.0f} MiB in one process")
    return int(taken > options.most)


if __name__ == "__main__":
    sys.exit(main())
