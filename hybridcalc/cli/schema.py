"""``hybridcalc schema``: the JSON Schema of a command's document."""

from typing import Annotated

import typer

from hybridcalc.errors import InputError, quoted

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("schema")
def schema_command(
    command: Annotated[
        str | None, typer.Argument(metavar="COMMAND", help="A command that takes --json; without one, all are listed.")
    ] = None,
) -> None:
    """The JSON Schema (draft 2020-12) of what a command prints with --json: every key, its type, unit and meaning.

    docs/json.md says the same for people. `hybridcalc check --schema` prints that of hybridcalc.yaml.
    """
    import json
    from textwrap import fill

    from hybridcalc.output.schema import commands, schema_of

    if command is None:
        typer.echo(fill(", ".join(commands()), 80))
        return
    if command not in commands():
        raise InputError(f"{quoted(command)} has no document", fix="`hybridcalc schema` lists those that have one")
    typer.echo(json.dumps(schema_of(command), indent=2))
