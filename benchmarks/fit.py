"""How long do four questions to `hybridcalc fit` take as whole processes, in times of `hybridcalc ratio`?

    python benchmarks/fit.py [--rounds 3] [--limit 20]

All run in turn and are told by their processor time, which a busy machine stretches less than the clock's; the answer
is the median of the paired ratios. Exits with 1 when one is above the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from startup import seconds_of  # type: ignore[import-not-found]  # beside this file

BASE = "ratio kimi-k3 -L 8k"
QUESTIONS = (
    "fit qwen3.5-397b-a17b -L 64k -C 200 --gpu h200,b200",
    "fit nemotron-3-super-120b-a12b -L 16k -C 200",
    "fit --gpu 2xrtx-4090 -L 128k",
    "fit kimi-k3 -L 64k -C 100 --gpu 8xb200,16xh100",
)


def command(line: str) -> list[str]:
    """A command line as a process."""
    return [sys.executable, "-m", "hybridcalc", *line.split()]


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20.0)
    options = parser.parse_args()
    times: dict[str, list[float]] = {line: [] for line in (BASE, *QUESTIONS)}
    for line in times:
        seconds_of(command(line))  # writes the bytecode
    for _ in range(options.rounds):
        for line, taken in times.items():
            taken.append(seconds_of(command(line)))
    slowest = 0.0
    for line, taken in times.items():
        paired = statistics.median(one / base for one, base in zip(taken, times[BASE], strict=True))
        slowest = max(slowest, paired)
        print(f"{line:58} {1000 * statistics.median(taken):8.1f} ms   {paired:5.1f} times {BASE.partition(' ')[0]}")
    print(f"the slowest takes {slowest:.1f} times as long as {BASE}; the limit is {options.limit:g}")
    return int(slowest > options.limit)


if __name__ == "__main__":
    sys.exit(main())
