"""How many of the package's own files does a command load?

Each command runs in a process of its own. Every module of the package counts, a package's ``__init__.py`` too. Of an
engine that the command is not about it may load none. Exits 1 where a limit is exceeded.

python benchmarks/files_touched.py            the table
python benchmarks/files_touched.py --files    also the files of each command
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST_LOADED = """
import sys
from hybridcalc.cli.app import execute
code = execute(sys.argv[1:])
sys.stdout.flush()
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "hybridcalc"), file=sys.stderr)
sys.exit(code)
"""


class Limit(NamedTuple):
    """A command line, the most modules it may load, and packages of which it may load none."""

    name: str
    command: str
    most: int
    wanted: int
    none_of: tuple[str, ...] = ()


LIMITS = (
    Limit("ratio MODEL -L N", "ratio kimi-k3 -L 9216", 31, 25, ("hybridcalc.engines.vllm",)),
    Limit(
        "plan -- sglang serve",
        "plan -L 9216 --rest 28.55GiB -- sglang serve --model-path moonshotai/Kimi-K3 --tp 8",
        49,
        28,
        ("hybridcalc.engines.vllm",),
    ),
    Limit(
        "plan -- vllm serve",
        "plan -L 9216 --available 28.55GiB -- vllm serve moonshotai/Kimi-K3 -tp 8",
        46,
        28,
        ("hybridcalc.engines.sglang",),
    ),
    Limit("log FILE", "log examples/kimi-k3-boot.log", 64, 32),
    Limit("check FILE", "check examples/deployments/good/launch.sh", 58, 45),
)


def loaded(command: str) -> list[str]:
    """The package's modules that are loaded when the command has ended."""
    ran = subprocess.run(
        [sys.executable, "-c", LIST_LOADED, *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        sys.exit(f"hybridcalc {command}: exit {ran.returncode}\n{ran.stderr}")
    return ran.stderr.split("\n")[-2].split()


def main() -> int:
    """Print the table; 1 where a command loads more than it may."""
    exceeded = 0
    for limit in LIMITS:
        modules = loaded(limit.command)
        foreign = [module for module in modules if module.startswith(limit.none_of)] if limit.none_of else []
        over = len(modules) > limit.most or bool(foreign)
        exceeded |= over
        remark = f", {len(foreign)} of another engine" if foreign else ""
        remark += "  TOO MANY" if over else ""
        print(f"{limit.name:22} {len(modules):3} of {limit.most:3}, {limit.wanted} wanted{remark}")
        if "--files" in sys.argv:
            print(*(f"    {module}" for module in modules), sep="\n")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
