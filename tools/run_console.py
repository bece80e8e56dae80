"""Run the ```console blocks of README and docs: each `$ command` and the output shown under it.

    python tools/run_console.py            exit 1 when a command fails or prints something else
    python tools/run_console.py --write    renew the shown output

Commands run by bash in the repository's root, 80 columns wide, without colour.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n\$ (?P<command>.+)\n(?P<shown>(?:(?!```).*\n)*?)```", re.MULTILINE)


class Example(NamedTuple):
    """A command in a page, and the output the page shows for it."""

    page: Path
    command: str
    shown: str


def examples() -> list[Example]:
    """Every console block of README.md and docs/."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    blocks = ((page, block) for page in pages for block in BLOCK.finditer(page.read_text(encoding="utf-8")))
    return [Example(page, block["command"], block["shown"]) for page, block in blocks]


def output(command: str) -> str:
    """What a command prints; a failing one says so in the last line."""
    environment = os.environ | {
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    quiet_pipe = ran.returncode == 141  # the left side of `| head`
    return ran.stdout + ran.stderr + ("" if ran.returncode == 0 or quiet_pipe else f"exit {ran.returncode}\n")


def main() -> int:
    """Check or renew every block."""
    stale = 0
    for example in examples():
        printed = output(example.command)
        if printed == example.shown:
            continue
        if "--write" in sys.argv:
            text = example.page.read_text(encoding="utf-8")
            before = f"```console\n$ {example.command}\n{example.shown}```"
            example.page.write_text(
                text.replace(before, f"```console\n$ {example.command}\n{printed}```"), encoding="utf-8"
            )
        else:
            print(f"{example.page.name}: $ {example.command}\nprints now:\n{printed}")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
