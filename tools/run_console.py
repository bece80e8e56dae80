"""Run the ```console blocks of README and docs: each `$ command` and the output shown under it.

    python tools/run_console.py            exit 1 when a command fails or prints something else
    python tools/run_console.py --write    renew the shown output

Commands run in the repository's root, 80 columns wide, without colour: those of hybridcalc in this process, what
they are piped into by bash.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import warnings
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from command_line import run  # noqa: E402

PLAIN = {"COLUMNS": "80", "NO_COLOR": "1"}
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
    parts = command.split(" | ")
    ours = list(takewhile(lambda part: part.startswith("hybridcalc ") and ">" not in part, parts))
    code, out, err = 0, "", ""
    with contextlib.chdir(ROOT), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in ours:
            ran = run(*shlex.split(part)[1:], stdin=out.encode(), **PLAIN)
            code, out, err = ran.code or code, ran.out, err + ran.err
    if theirs := " | ".join(parts[len(ours) :]):
        piped = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {theirs}"],
            cwd=ROOT,
            env=os.environ | PLAIN | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            input=out,
            capture_output=True,
            text=True,
            check=False,
        )
        code, out, err = piped.returncode or code, piped.stdout, err + piped.stderr
    return out + err + (f"exit {code}\n" if code else "")


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
