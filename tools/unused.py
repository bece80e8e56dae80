"""Code that nothing in the package, the tools or the benchmarks uses; exits 1 where there is any.

Tests do not count: what only a test calls is unused. Fields are left out, since documents are made of whole records.
ALLOWED holds the names that somebody else asks for, with who; a name there that is used, or is gone, is told as well.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOKED_AT = ("hybridcalc", "tools", "benchmarks")
DECORATORS = ("@app.command", "@command", "@app.callback", "@field_validator", "@model_validator")
LINE = re.compile(r"(?P<place>[^:]+:\d+): (?:unused (?P<kind>\w+) '(?P<name>[^']+)'|(?P<other>.+)) \(\d+% confidence\)")
FORMATS = ROOT / "hybridcalc" / "manifests" / "find.py"
"""Loads the readers of files by their names."""
ALLOWED = {
    "__notes__": "Python shows them below an error",
    "_repr_html_": "notebooks ask an answer how it looks",
    "__getattr__": "Python asks a module for names it does not hold",
    "__dir__": "dir() asks",
    "__init_subclass__": "Python calls it for each engine",
    "Connection": "an annotation in quotes",
    "HTTPResponse": "an annotation in quotes",
    "Traffic": "an annotation in quotes",
    "list_commands": "click asks",
    "format_commands": "click asks",
    "format_options": "click asks",
    "collect_usage_pieces": "click asks",
    "get_filename": "importlib asks",
    "prefill_snapshots": "docs/formulas.md works with it",
    "decode_snapshots": "docs/formulas.md works with it",
    "handover_bytes": "docs/formulas.md works with it",
    "bytes_per_slot": "public: of a plan",
    "from_command": "public: ServerArgs.from_command and EngineArgs.from_command",
}


def unused() -> list[tuple[str, str, str]]:
    """(place, kind, name) of everything unused, a field of a record apart."""
    by_name = set(re.findall(r"""_lazy\("\w+", "(\w+)"\)""", FORMATS.read_text(encoding="utf-8")))
    command = [sys.executable, "-m", "vulture", *LOOKED_AT, "--ignore-decorators", ",".join(DECORATORS)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 3):  # 3: something was found
        sys.exit(ran.stderr or f"vulture: exit {ran.returncode}")
    found = []
    for line in ran.stdout.splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            sys.exit(f"not understood: {line}")
        name, kind = match["name"] or "", match["kind"] or match["other"]
        if kind == "attribute" or (kind == "variable" and not name.isupper()):
            continue
        if name in by_name:
            continue
        found.append((match["place"], kind, name))
    return found


def main() -> int:
    """Tell what is unused, and what is allowed for no reason."""
    found = unused()
    told = [f"{place}: {kind} {name}: unused" for place, kind, name in found if name not in ALLOWED]
    told += [f"ALLOWED: {name} is used, or gone" for name in ALLOWED.keys() - {name for _, _, name in found}]
    print(*told, sep="\n", end="\n" if told else "")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
