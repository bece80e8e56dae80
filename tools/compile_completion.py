"""Write hybridcalc/cli/completion.json: what shells offer for each command, from the commands and engines themselves.

python tools/compile_completion.py            write it
python tools/compile_completion.py --check    exit 1 when it is not what the code says
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from typer.main import get_command

from hybridcalc.architecture.presets import model_names, shipped_presets
from hybridcalc.checks import explained_rules
from hybridcalc.cli.app import COMMANDS, app
from hybridcalc.cli.plan import LaunchCommand
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import SPECULATIVE_ALGORITHMS
from hybridcalc.engines.sglang.kv import KV_CACHE_DTYPES
from hybridcalc.findings import SEVERITIES
from hybridcalc.fitting.models import ORDERS
from hybridcalc.fitting.question import ALLOWED, JOINED
from hybridcalc.hardware import shipped_gpus
from hybridcalc.manifests.emit import forms
from hybridcalc.output.schema import commands

TARGET = Path(__file__).resolve().parent.parent / "hybridcalc" / "cli" / "completion.json"
VALUES: dict[str, Any] = {
    "--gpu": "gpus",
    "--model": "models",
    "--baseline": "models",
    "--model-path": "models",
    "--engine": list(ENGINES),
    "--emit": list(forms()),
    "--fail-on": [*SEVERITIES, "never"],
    "--allow": list(ALLOWED),
    "--interconnect": list(JOINED),
    "--sort": list(ORDERS),
    "--kv-cache-dtype": list(KV_CACHE_DTYPES),
    "--speculative-algorithm": list(SPECULATIVE_ALGORITHMS),
}
"""What may stand behind an option, where no flag of an engine says it: a list, or the name of one."""

WORDS: dict[str | None, Any] = {
    "model": "models",
    "name": "models",
    "rule": list(explained_rules()),
    "command": commands(),
}
"""What may stand for an argument, by its name: a list, or the name of one."""


def compiled() -> str:
    """The document: commands with their options, flags of engines, words that start one, lists of names."""
    root = get_command(app)
    nodes = {name: _command(root.get_command(None, name)) for name in COMMANDS}  # type: ignore[attr-defined]
    started = [(program, name) for name, row in ENGINES.rows.items() for program in row.starter.programs]
    programs = {program[-1 if program[0] == "python" else 0]: name for program, name in started}
    document = {
        "usual": ENGINES.usual,
        "programs": programs,
        "lists": {
            "models": model_names(),
            "ids": sorted(preset["hf_id"] for preset in shipped_presets().values()),
            "gpus": sorted(shipped_gpus()),
        },
        "root": {"options": _options(root), "commands": nodes},
        "engines": {name: _flags(name) for name in ENGINES},
    }
    return json.dumps(document, separators=(",", ":")).replace('},"', '},\n"') + "\n"


def _command(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"options": _options(command)}
    if getattr(command, "commands", None):
        found["commands"] = {name: _command(each) for name, each in command.commands.items()}
    if isinstance(command, LaunchCommand):
        found["engine"] = True
    named = [param.name for param in command.params if param.param_type_name == "argument"]
    words = next((WORDS[name] for name in named if name in WORDS), None)
    if isinstance(command, LaunchCommand) or words:
        found["words"] = words or "models"
    return found


def _options(command: Any) -> dict[str, Any]:
    """Each spelling with its values; false where it takes none, null where any may be written."""
    found: dict[str, Any] = {"--help": False}
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            for name in (*param.opts, *param.secondary_opts):
                found[name] = False if param.is_flag or param.count else VALUES.get(name) or _of_engines(param.opts)
    return found


def _of_engines(spellings: list[str]) -> list[str] | None:
    flags = (ENGINES[name].flags.by_spelling.get(each) for name in ENGINES for each in spellings)
    return next((list(flag.choices) for flag in flags if flag is not None and flag.choices), None)


def _flags(engine: str) -> dict[str, Any]:
    table = ENGINES[engine].flags

    def values(name: str) -> Any:
        flag = table.by_spelling.get(name)
        if name in table.switched_off or (flag is not None and flag.kind in ("flag", "switch")):
            return False
        return list(flag.choices) if flag is not None and flag.choices else VALUES.get(name)

    return {name: values(name) for name in table.names if name.startswith("-")}


def main() -> int:
    """Write or check the file."""
    if "--check" not in sys.argv:
        TARGET.write_text(compiled(), encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != compiled():
        print(f"{TARGET.name} is not what the commands say: run python tools/compile_completion.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
