"""``hybridcalc rules``: what each rule looks for, with the arithmetic and the source."""

from typing import Annotated

import typer

from hybridcalc.cli import options
from hybridcalc.errors import InputError, quoted

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("rules")
def rules_command(
    rule: Annotated[str | None, typer.Argument(metavar="ID", help="One rule, for example HC002.")] = None,
    as_json: options.Json = False,
) -> None:
    """Every rule of plan, check and log; with an ID, that rule explained."""
    from hybridcalc.checks.findings import explained_rules
    from hybridcalc.output.document import print_json

    rules = explained_rules()
    if rule is not None:
        name = rule.strip().upper()
        if name not in rules:
            raise InputError(
                f"no rule {quoted(rule)}", fix=f"the rules are {next(iter(rules))} to {next(reversed(rules))}"
            )
        rules = {name: rules[name]}
    if as_json:
        print_json("rules", {"rules": [entry._asdict() for entry in rules.values()]})
        return
    from hybridcalc.output import terminal

    out = terminal.console()
    if rule is None:
        rows = [(entry.id, entry.severity, entry.engine or "files", entry.title) for entry in rules.values()]
        terminal.listing(out, ("rule", "severity", "of", "what"), rows)
        return
    (only,) = rules.values()
    terminal.verdict(out, only.id, only.title)
    facts = [("severity", only.severity), ("of", only.engine or "files"), ("why", only.reason), ("source", only.source)]
    terminal.pairs(out, facts)
