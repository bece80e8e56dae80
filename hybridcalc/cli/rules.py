"""``hybridcalc rules``: what each rule looks for, with the arithmetic and the source."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hybridcalc.cli import options
from hybridcalc.cli.app import Json
from hybridcalc.errors import InputError, quoted
from hybridcalc.findings import SEVERITIES

if TYPE_CHECKING:
    from rich.console import Console

    from hybridcalc.checks import Explained

MOST = 10
"""Rules in a line each without -v."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("rules")
def rules_command(
    rule: Annotated[str | None, typer.Argument(metavar="ID", help="One rule, for example HC002.")] = None,
    as_json: Json = False,
    verbose: options.Verbose = False,
) -> None:
    """The rules of plan, check and log; with an ID, that rule explained, with a part of one those that begin so."""
    from hybridcalc.checks import explained_rules
    from hybridcalc.output.document import print_json

    rules = explained_rules()
    if rule is not None:
        name = rule.strip().upper()
        chosen = {id: entry for id, entry in rules.items() if id.startswith(name)}
        if not chosen:
            raise InputError(
                f"no rule {quoted(rule)}", fix=f"the rules are {next(iter(rules))} to {next(reversed(rules))}"
            )
        rules = chosen
    if as_json:
        print_json("rules", {"rules": [entry._asdict() for entry in rules.values()]})
        return
    from hybridcalc.output import terminal

    out = terminal.console()
    if len(rules) > MOST and not verbose:
        _kinds(out, list(rules.values()))
        return
    if len(rules) > 1:
        rows = [(entry.id, entry.severity, entry.engine or "files", entry.title) for entry in rules.values()]
        terminal.listing(out, ("rule", "severity", "of", "what"), rows)
        return
    (only,) = rules.values()
    terminal.verdict(out, only.id, only.title)
    told = f"{', '.join(only.flags)}: plan and check name the value" if only.flags else ""
    facts = [("severity", only.severity), ("of", only.engine or "files"), ("why", only.reason), ("source", only.source)]
    facts[3:3] = [("change", told)] if told else []
    terminal.pairs(out, facts)


def _kinds(out: "Console", rules: "Sequence[Explained]") -> None:
    """How many rules there are of each kind, and how severe they are."""
    from hybridcalc.output import terminal

    kinds: dict[str, list[Explained]] = {}
    for entry in rules:
        kinds.setdefault(entry.engine or "files", []).append(entry)
    rows = []
    for kind, own in kinds.items():
        counts = Counter(entry.severity for entry in own)
        severe = (
            f"{counts[name]} {name}{'' if counts[name] == 1 else 's'}" for name in reversed(SEVERITIES) if counts[name]
        )
        rows.append((f"  {kind}", f"{own[0].id} to {own[-1].id}", ", ".join(severe)))
    terminal.verdict(out, f"{len(rules)} rules", f"of {len(kinds)} kinds")
    terminal.listing(out, ("  of", "rules", "severity"), rows)
    told = "a line each; `hybridcalc rules HC04`: those; `hybridcalc rules HC002`: why"
    terminal.notes(out, [told], label="-v", style=terminal.QUIET, gap=False)
