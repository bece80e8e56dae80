"""How many requests a second does one core simulate through a prefix cache, and does memory follow the trace?

    python benchmarks/reuse.py [--rounds 5] [--least 200000] [--beside FOLDER]

Short conversations of two or three turns, whole: the workload is made, looked up, saved and evicted. The least CPU
time of all rounds counts (a shared machine only ever adds time). Beside it, longer and branching workloads, and the
nodes the tree holds after three times the requests. ``--beside`` measures another checkout in the same run, each in
processes of its own that take turns, and prints how many times as many this one simulates. Exits with 1 when the
slower of the short conversations is below ``--least``, or when the tree has grown with the trace.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from hybridcalc.reuse.requests import Workload
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.workloads import parse_workload

try:
    from hybridcalc.reuse.sglang import sglang_policy
except ImportError:  # where an older checkout, measured beside, has it
    from hybridcalc.reuse.policy import sglang_policy  # type: ignore[attr-defined,no-redef]

SHORT = (
    ("chat:sessions=200,turns=3,user=120,output=60,rounds=300", 400),
    ("chat:sessions=1000,turns=2,user=200,output=50,rounds=100", 1_500),
)
OTHERS = (
    ("chat:sessions=1000,turns=3,user=120,output=60,rounds=60", 4_000),
    ("chat:sessions=1000,turns=4,system=512,rounds=40", 5_000),
    ("chat:sessions=1000,turns=3,think=30,rounds=30", 2_000),
    ("cyclic:prefixes=1000,rounds=100", 2_000),
    ("rag:documents=2000,rounds=25", 2_000),
)
GROWTH = 1.1
"""The tree may hold so much more after three times the requests."""


def rate(workload: Workload, slots: int, rounds: int) -> float:
    """Requests a second of CPU time, in the best round."""
    setup, best = Setup(sglang_policy(), slots), float("inf")
    for _ in range(rounds):
        start = time.process_time()
        outcome = simulate(workload, setup)
        best = min(best, time.process_time() - start)
    return outcome.requests / best


def beside(folder: str, rounds: int) -> list[float]:
    """For each workload, how many times as many requests a second as the checkout in ``folder``: medians of turns."""
    ratios: list[list[float]] = [[] for _ in (*SHORT, *OTHERS)]
    here = str(Path(__file__).resolve().parent.parent)
    for _ in range(rounds):
        mine, theirs = (_rates_of(tree) for tree in (here, folder))
        for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            ratios[place].append(one / other)
    return [median(each) for each in ratios]


def _rates_of(tree: str) -> list[float]:
    """Requests a second of each workload, by the package in ``tree``, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": tree}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--rates"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in ran.stdout.split()]


def nodes(text: str, slots: int) -> int:
    """Nodes in the tree after a workload."""
    cache = Setup(sglang_policy(), slots).cache()
    for request in parse_workload(text).stream():
        cache.serve(request)
    return sum(1 for _ in cache.tree.nodes())


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=int, default=200_000, help="requests a second")
    parser.add_argument("--beside", metavar="FOLDER", help="another checkout")
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rates:
        for text, slots in (*SHORT, *OTHERS):
            print(rate(parse_workload(text), slots, 1))
        return 0
    if options.beside:
        for ratio, (text, slots) in zip(beside(options.beside, options.rounds), (*SHORT, *OTHERS), strict=True):
            print(f"{ratio:6.2f} times as many   {slots:6,} slots   {text}")
        return 0
    rates = []
    for text, slots in (*SHORT, *OTHERS):
        rates.append(rate(parse_workload(text), slots, options.rounds))
        print(f"{rates[-1]:10,.0f} requests a second   {slots:6,} slots   {text}")
    short = min(rates[: len(SHORT)])
    few = nodes("chat:sessions=300,turns=3,rounds=100", 600)
    many = nodes("chat:sessions=300,turns=3,rounds=300", 600)
    print(f"{few:,} nodes in the tree after 90,000 requests, {many:,} after 270,000")
    print(f"{short:,.0f} short requests a second; at least {options.least:,} are wanted")
    return int(short < options.least or many > GROWTH * few)


if __name__ == "__main__":
    sys.exit(main())
