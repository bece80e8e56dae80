"""How much memory does a trace of ten million requests take, and does it grow with the trace?

    python benchmarks/trace_memory.py [--requests 10000000] [--most 100] [--slots 2000] [--knee]

Writes a trace in the form of Mooncake (conversations of a few turns, 512 tokens a hash), packed, to a temporary folder,
and reads it with `hybridcalc reuse` in a process of its own: what that process held at most, as the system counts it,
for a tenth of the requests and for all. With ``--knee`` the whole answer, which reads the trace several
times. Exits with 1 where ``--most`` MB (10^6 B) are passed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SESSIONS, TURNS = 5_000, 4


def write(path: Path, requests: int) -> None:
    """Conversations in turn: a turn has the hashes of the one before and two more."""
    with gzip.open(path, "wt", encoding="ascii", compresslevel=1) as stream:
        for number in range(requests):
            round, session = divmod(number, SESSIONS)
            talk, turn = round // TURNS * SESSIONS + session, round % TURNS
            hashes = ",".join(str(talk * 16 + part) for part in range(2 * turn + 2))
            tokens = 1024 * (turn + 1) - 100
            stream.write(f'{{"timestamp":{number},"input_length":{tokens},"output_length":90,"hash_ids":[{hashes}]}}\n')


def most_mb(path: Path, slots: int, knee: bool) -> tuple[float, float]:
    """What a process held at most to answer about a trace, MB, and its seconds."""
    flags = ["--slots", str(slots), "--json", *([] if knee else ["--no-knee", "--no-what-if"])]
    command = [sys.executable, "-m", "hybridcalc", "reuse", "--workload", str(path), *flags]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return used.ru_maxrss * 1024 / 1e6, time.perf_counter() - start


def main() -> int:
    """Write, read, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--most", type=float, default=100, help="MB")
    parser.add_argument("--slots", type=int, default=2_000)
    parser.add_argument("--knee", action="store_true", help="the whole answer")
    options = parser.parse_args()
    highest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for requests in (options.requests // 10, options.requests):
            path = Path(folder) / f"{requests}.jsonl.gz"
            write(path, requests)
            held, seconds = most_mb(path, options.slots, options.knee)
            highest = max(highest, held)
            rate = f"{requests / seconds:9,.0f} a second"
            print(f"{requests:12,} requests   {held:7.1f} MB at most   {seconds:7.1f} s   {rate}")
    print(f"{highest:.1f} MB at most; {options.most:g} are allowed")
    return int(highest > options.most)


if __name__ == "__main__":
    sys.exit(main())
