"""What does a GGUF header of 1,000 tensors cost, beside the import of the package `gguf` that would read it?

    python benchmarks/gguf_header.py [--rounds 9] [--most 0.01]

The header is written by hand and read in this process; the import is that of a fresh process, less what Python itself
takes. The least of all rounds counts on both sides, since a shared machine only ever adds time. Exits with 1 when the
header takes more than ``--most`` of the import; without the package (the extra ``llamacpp``) it says so and passes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from struct import pack

from hybridcalc.architecture.gguf import read_header

TENSORS = 1000


def write(path: Path) -> None:
    """A header of 1,000 tensors, and no data."""
    parts = [pack("<4sIQQ", b"GGUF", 3, TENSORS, 0)]
    for number in range(TENSORS):
        name = f"blk.{number // 10}.tensor_{number % 10}.weight".encode()
        parts.append(pack("<Q", len(name)) + name + pack("<IQQIQ", 2, 5120, 5120, 12, number * 2**24))
    path.write_bytes(b"".join(parts))


def process_seconds(code: str) -> float:
    """Time of a fresh interpreter that runs a piece of code."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> int:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=float, default=0.01)
    asked = parser.parse_args()
    if find_spec("gguf") is None:
        print("skipped: the package gguf is not installed (extra llamacpp)")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write(path)
        ours = []
        for _ in range(asked.rounds * 10):
            began = time.perf_counter()
            read_header(path)
            ours.append(time.perf_counter() - began)
    bare = min(process_seconds("pass") for _ in range(asked.rounds))
    theirs = min(process_seconds("import gguf") for _ in range(asked.rounds)) - bare
    share = min(ours) / theirs
    print(f"header of {TENSORS:,} tensors {1000 * min(ours):.2f} ms, import gguf {1000 * theirs:.0f} ms: {share:.4f}")
    return int(share > asked.most)


if __name__ == "__main__":
    sys.exit(main())
