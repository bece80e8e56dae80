"""How long does `hybridcalc ratio` take as a whole process, as a ratio to `python -c "import typer"`? And what do
computed weights add to the start of a plan: `plan --gpu` to `plan --rest`? And the help page, and
what a shell waits for?

    python benchmarks/startup.py [--rounds 30] [--limit 1.4]

Both commands run in turn, with bytecode caches on, and are told by their processor time, which a busy machine
stretches less than the clock's; the answer is the ratio of their medians and the median of the paired ratios. Exits
with 1 when the second is above the limit, that of the plans above 1.15, or `--help` and a completion above theirs
(1.3 and 1.2 are wanted; ``--room`` is what a busy machine may add).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

PLAN = [sys.executable, "-m", "hybridcalc", "plan", "Qwen/Qwen3.5-397B-A17B-FP8", "--tp", "8", "-L", "64k"]
MOST_FOR_WEIGHTS = 1.15
COMMANDS = {
    "import typer": [sys.executable, "-c", "import typer"],
    "ratio --json": [sys.executable, "-m", "hybridcalc", "ratio", "kimi-k3", "-L", "9216", "--json"],
    "ratio": [sys.executable, "-m", "hybridcalc", "ratio", "kimi-k3", "-L", "9216"],
    "plan --rest": [*PLAN, "--rest", "66.77GiB"],
    "plan --gpu": [*PLAN, "--gpu", "8xh200"],
    "--version": [sys.executable, "-m", "hybridcalc", "--version"],
    "--help": [sys.executable, "-m", "hybridcalc", "--help"],
    "a completion": [
        *("env", "_HYBRIDCALC_COMPLETE=complete_bash", "COMP_CWORD=3", "COMP_WORDS=hybridcalc\nplan\n--gpu\nh2"),
        *(sys.executable, "-m", "hybridcalc"),
    ],
}
MOST = {"--help": 1.3, "a completion": 1.2}
"""Wanted of these, as paired medians."""


def seconds_of(command: list[str], allowed: tuple[int, ...] = (0, 1)) -> float:
    """Processor time of one run of a whole process, which may answer no."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in allowed:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--limit", type=float, default=1.4)
    parser.add_argument("--room", type=float, default=0.0)
    options = parser.parse_args()
    for command in COMMANDS.values():
        seconds_of(command)  # writes the bytecode
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, command in COMMANDS.items():
            times[name].append(seconds_of(command))
    base = times["import typer"]
    for name, taken in times.items():
        paired = statistics.median(one / other for one, other in zip(taken, base, strict=True))
        ratio = statistics.median(taken) / statistics.median(base)
        print(
            f"{name:14} {1000 * statistics.median(taken):7.1f} ms   {ratio:.2f} of import typer   paired {paired:.2f}"
        )
    slow = statistics.median(one / other for one, other in zip(times["ratio --json"], base, strict=True))
    print(f"ratio --json is {slow:.2f} of import typer; the limit is {options.limit}")
    weighed = statistics.median(
        one / other for one, other in zip(times["plan --gpu"], times["plan --rest"], strict=True)
    )
    print(f"plan --gpu is {weighed:.2f} of plan --rest; the limit is {MOST_FOR_WEIGHTS}")
    late = []
    for name, most in MOST.items():
        median = statistics.median(one / other for one, other in zip(times[name], base, strict=True))
        print(f"{name} is {median:.2f} of import typer; the limit is {most} + {options.room}")
        late.append(median > most + options.room)
    return int(slow > options.limit or weighed > MOST_FOR_WEIGHTS + options.room or any(late))


if __name__ == "__main__":
    sys.exit(main())
