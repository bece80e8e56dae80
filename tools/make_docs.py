"""Write the pages that follow from code and data: docs/commands.md, json.md, rules.md, published-figures.md,
recipes.md, and the tables of releases in engines.md.

python tools/make_docs.py            write them
python tools/make_docs.py --check    exit 1 when one is not what code and data say
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import recipes
import throughput
from published_figures import SOURCES, figures, recomputed
from release_tables import release_table
from typer.core import TyperGroup
from typer.main import get_command

from hybridcalc.checks import FILE_RULES
from hybridcalc.cli.app import COMMANDS, app
from hybridcalc.diagnosis.answer import RULES as LOG_RULES
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import flags as sglang_flags
from hybridcalc.engines.vllm import flags as vllm_flags
from hybridcalc.findings import Rule
from hybridcalc.live.verdict import RULES as LIVE_RULES
from hybridcalc.manifests.native import schema_text
from hybridcalc.output.schema import HEAD, described, rows
from hybridcalc.shell.flags import Flag

DOCS = Path(__file__).resolve().parent.parent / "docs"
SCHEMA = Path(__file__).resolve().parent.parent / "hybridcalc" / "manifests" / "native.schema.json"
EXIT_CODES = (
    ("0", "answered"),
    (
        "1",
        "the answer is no: a finding at or above `--fail-on`, flags the engine refuses together, or a byte that "
        "`verify` finds different",
    ),
    ("2", "bad input or usage; one or two lines on stderr say what, where, why, and what to write instead"),
    ("3", "only `check`: nothing failed, but a value that sizing needs is unresolved ([check.md](check.md))"),
)


COMMANDS_INTRODUCTION = """# Commands

<!-- written by tools/make_docs.py; edit the help texts in hybridcalc/cli/ instead -->

MODEL is a preset name, an alias or a Hugging Face id in any case (`hybridcalc models` lists them), a preset YAML, a
`config.json` or a folder holding one; `-` reads a config from stdin. `org/name` that is no preset is looked up in the
local Hugging Face cache, offline. Sizes take `80GiB`, `80GB`, `143771MiB` or plain bytes; token counts `9216`, `8k`
(8,192) or `1M` (1,048,576). `--json` prints one document on stdout (keys: [json.md](json.md)); `--debug` shows a
traceback in place of the short error.

An answer takes twelve lines of 80 columns: the verdict, the figures behind it, the worst finding, the safest setting
that helps (of those that come within a tenth of the most, the fewest changes) and the boldest with its price. The last
line counts and names what `-v` adds; `--explain` adds the steps. Tables that were asked for are whole: `--sweep`,
`--compare`, `log --expect`, `weights --explain`, `models`, `rules`, and every finding of `check`. A log of several
boots has as many lines for each.

| exit code | meaning |
|---|---|"""
SGLANG_FLAGS = """### SGLang's flags

Taken as the engine takes them, in every spelling; `8k` tokens are 8,000 here and `8Ki` 8,192. Flags that leave memory
alone are passed over, a misspelt one is an error.

| flag | value |
|---|---|"""
VLLM_FLAGS = """### vLLM's flags

With `--engine vllm` or on a `vllm serve` line. Underscores may stand for dashes; `--no-x`, and `--disable-x` for
`--enable-x`, switch off; JSON values may be spelt out (`--speculative-config.method mtp`); `8k` tokens are 8,000 here
and `8K` 8,192.

| flag | value |
|---|---|"""
RULES_INTRODUCTION = """# Rules

<!-- written by tools/make_docs.py from the rules of hybridcalc/engines/ and hybridcalc/checks/ -->

What `hybridcalc plan` and `hybridcalc check` look for. The engine does not start with a
refusal (exit code 1); `--fail-on SEVERITY` makes the others count.
"""
FILES_INTRODUCTION = """## Deployment files

What `hybridcalc check` looks for beside the rules above.
"""
RULES_TABLE = """| rule | severity | what | why | source |
|---|---|---|---|---|"""
JSON_INTRODUCTION = """# JSON

<!-- written by tools/make_docs.py from hybridcalc/output/documents.yaml and hybridcalc/engines/*/documents.yaml -->

`--json` prints exactly one document on stdout: `schema` (`hybridcalc.<command>/2`) and the keys below; `hybridcalc
schema COMMAND` prints them as JSON Schema. Keys are only ever added. A refusal is a document of `plan` and
`replayssm`; the other commands say it on stderr alone.

A key with ? may be absent, a type with ? may be null. [T] is a list and {T} a mapping of T, T..T a pair [low, high]
and T..T..T [low, likely, high]; a|b is one of several types or words. bytes, tokens, slots, requests and integer are
whole numbers; gib, percent, share (0 to 1) and number need not be. An object + Name has the keys of Name as well, an
object & T others too. `a.b` is a key of the object a, `a[].b` of every entry of the list a. Where a document is one
of several objects, as `Planned`, it has the keys of one of them.
"""
FIGURES_INTRODUCTION = """# Published figures, recomputed

<!-- written by tools/make_docs.py from tests/data/published-figures.yaml -->

Write-ups on serving hybrid models state figures; several are wrong. Each is recomputed here from its own inputs by this
library's formulas (`tools/published_figures.py`). *agrees*: the same figure. *rounding*: right as far as it is rounded,
or off by a known step. *disagrees*: the inputs give another figure.
"""


def commands_page() -> str:
    """docs/commands.md: every command and flag, from the application itself."""
    lines = [COMMANDS_INTRODUCTION, *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES), ""]
    root = cast(TyperGroup, get_command(app))
    context = root.make_context("hybridcalc", [], resilient_parsing=True)
    for name in COMMANDS:
        lines += _command(f"hybridcalc {name}", root.get_command(context, name))
        if name == "plan":
            for introduction, flags in ((SGLANG_FLAGS, sglang_flags.FLAGS), (VLLM_FLAGS, vllm_flags.FLAGS)):
                lines += [introduction, *(f"| {_spellings(flag)} | {_kind(flag)} |" for flag in flags), ""]
    return "\n".join(lines).rstrip() + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    yield from (f"## {path}", "", *(_paragraphs(command.help or "")), "")
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    yield from ("| flag | default | meaning |", "|---|---|---|")
    for parameter in arguments:
        yield f"| `{_cell(parameter.metavar)}` | | {_cell(parameter.help)} |"
    for parameter in options:
        value = f" {_cell(parameter.metavar)}" if parameter.metavar else ""
        flags = ", ".join(f"`{flag}`" for flag in parameter.opts)
        default = "" if parameter.default in (None, False) or parameter.is_flag else f"`{parameter.default}`"
        yield f"| {flags}{value} | {default} | {_cell(parameter.help)} |"
    yield ""
    for name, inner in getattr(command, "commands", {}).items():
        yield from () if inner.hidden else _command(f"{path} {name}", inner)


def _cell(text: str) -> str:
    """Text for a cell of a table: a bar in it would begin the next."""
    return text.replace("|", "\\|")


def _spellings(flag: Flag) -> str:
    return ", ".join(f"`{spelling}`" for spelling in flag.spellings)


def _kind(flag: Flag) -> str:
    if flag.kind == "str":
        return ", ".join(f"`{choice}`" for choice in flag.choices) or "a name"
    if flag.kind in ("flag", "switch"):
        return "none"
    if flag.kind == "json":
        return "a JSON object"
    kind = {"int": "a whole number", "tokens": "tokens", "float": "a number"}[flag.kind]
    return f"{kind} {'above' if flag.kind == 'float' else 'from'} {flag.least:,} to {flag.most:,}"


def rules_page() -> str:
    """docs/rules.md: every refusal and trap."""
    lines = [RULES_INTRODUCTION]
    of_engines = [(row.title, ENGINES[name].rules()) for name, row in ENGINES.rows.items()]
    for title, rules in (*of_engines, ("Boot logs", LOG_RULES), ("Servers that run", LIVE_RULES)):
        lines += [f"## {title}", "", RULES_TABLE, *map(_rule, rules), ""]
    lines += [FILES_INTRODUCTION, RULES_TABLE, *map(_rule, FILE_RULES)]
    return "\n".join(lines).rstrip() + "\n"


def _rule(rule: Rule) -> str:
    severity = rule.severity if rule.check or rule in (*LOG_RULES, *LIVE_RULES, *FILE_RULES) else "refused"
    return f"| {rule.id} | {severity} | {rule.title} | {rule.reason} | {rule.source} |"


def json_page() -> str:
    """docs/json.md: every document, and the objects that several share."""
    known = described()
    shared = known.pop("shared")
    lines = [JSON_INTRODUCTION]
    for name, keys in known.items():
        lines += [f"## {name}", "", _linked(keys[HEAD].partition(" - ")[2]), "", *_keys(keys, shared)]
    lines += ["# Objects of several documents", ""]
    for name, keys in shared.items():
        meaning = keys[HEAD].partition(" - ")[2]
        lines += [f"## {name}", "", f"{meaning[:1].upper()}{meaning[1:]}.", "", *_keys(keys, shared)]
    return "\n".join(lines).rstrip() + "\n"


def _keys(keys: dict[str, Any], shared: dict[str, Any]) -> Iterator[str]:
    names = "|".join(shared)
    yield from ("| key | type | meaning |", "|---|---|---|")
    for key, kind, meaning in rows(keys):
        linked = re.sub(rf"\b({names})\b", lambda m: f"[{m[1]}](#{m[1].lower()})", _cell(kind))
        yield f"| `{key}` | {linked} | {_linked(_cell(meaning))} |"
    yield ""


def _linked(text: str) -> str:
    return re.sub(r"\bdocs/(\w+\.md)", r"[\1](\1)", text)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def figures_page() -> str:
    """docs/published-figures.md: every claim, recomputed."""
    lines = [FIGURES_INTRODUCTION]
    for letter, source in SOURCES.items():
        lines += [f"## {letter}: {source}", "", "| | claim | recomputed | verdict | why |", "|---|---|---|---|---|"]
        for entry in figures():
            if entry["source"] == letter:
                cells = (entry["id"], entry["claim"], _shown(recomputed(entry)), entry["verdict"], entry.get("why", ""))
                lines.append("| " + " | ".join(map(_cell, cells)) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "no figure"
    if isinstance(value, dict):
        return "; ".join(f"{name.replace('_', ' ')} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    return f"{value:,}"


def engines_page() -> str:
    """docs/engines.md: as it is written by hand, with the tables of releases between their marks."""

    def table(mark: re.Match[str]) -> str:
        return "\n".join([mark["begin"], "", *release_table(mark["engine"]), "", mark["end"]])

    return RELEASE_TABLE.sub(table, (DOCS / "engines.md").read_text(encoding="utf-8"))


def speed_page() -> str:
    """docs/speed.md: as it is written by hand, with the tables of measurements between their marks."""
    tables = {
        "floors": throughput.table,
        "prompts": throughput.prompt_table,
        "published floors": throughput.published_table,
    }

    def table(mark: re.Match[str]) -> str:
        return "\n".join([mark["begin"], "", *tables[mark["name"]](), "", mark["end"]])

    return FLOORS.sub(table, (DOCS / "speed.md").read_text(encoding="utf-8"))


FLOORS = re.compile(
    r"(?P<begin><!-- (?P<name>floors|prompts|published floors), .*? -->).*?(?P<end><!-- end -->)", re.DOTALL
)
RELEASE_TABLE = re.compile(r"(?P<begin><!-- releases of (?P<engine>\w+), .*? -->).*?(?P<end><!-- end -->)", re.DOTALL)
PAGES = {
    "engines.md": engines_page,
    "speed.md": speed_page,
    "commands.md": commands_page,
    "json.md": json_page,
    "rules.md": rules_page,
    "published-figures.md": figures_page,
    "recipes.md": recipes.page,
}


def main() -> int:
    """Write or check the pages, and the schema of hybridcalc.yaml."""
    stale = 0
    targets = {DOCS / name: page for name, page in PAGES.items()} | {SCHEMA: schema_text}
    for target, page in targets.items():
        if "--check" not in sys.argv:
            target.write_text(page(), encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != page():
            print(f"{target.name} is out of date: run python tools/make_docs.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
