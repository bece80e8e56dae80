"""``hybridcalc check``: a gate for deployment files. Finds what they launch, runs every rule, says where it went wrong.

Exit codes: 0 nothing counts, 1 a finding at or above --fail-on, 2 a file that cannot be read, 3 a value that stays
unknown.
"""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hybridcalc.cli.app import Json, command
from hybridcalc.errors import InputError, quoted

FORMATS = ("text", "json", "sarif", "junit", "github", "markdown")
LARGEST_ENV_BYTES = 2**20

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class CheckGiven(NamedTuple):
    """Options that take the place of settings in a file."""

    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="ID,...", help="Only these rules; HC01 selects HC010-HC019.")
    ] = None
    ignore: Annotated[list[str] | None, typer.Option("--ignore", metavar="ID,...", help="Not these rules.")] = None
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 on findings from: note, warning, error (default), never."
        ),
    ] = None
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME|SIZE", help="GPU, where no file says it.")] = None
    weights: Annotated[str | None, typer.Option("--weights", metavar="SIZE", help="Weights on one rank.")] = None
    rest: Annotated[
        str | None, typer.Option("--rest", metavar="SIZE", help="Memory left for both pools on one rank (SGLang).")
    ] = None
    available: Annotated[
        str | None, typer.Option("--available", metavar="SIZE", help="Memory free for the cache on one rank (vLLM).")
    ] = None
    length: Annotated[str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Tokens a request holds.")] = (
        None
    )
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-C", metavar="N", min=1, help="Requests that should run at once.")
    ] = None
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="FILE", help="Findings in it are old and do not count.")
    ] = None


@command(app, "check", options_metavar="[PATH]... [OPTIONS]")
def check_command(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files, folders, globs; - is stdin. Default: this folder."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--format", "-f", metavar="NAME", help="text, json, sarif, junit, github or markdown.")
    ] = None,
    as_json: Json = False,
    into: Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report there.")] = None,
    given: CheckGiven,
    allow_unresolved: Annotated[
        bool, typer.Option("--allow-unresolved", help="Exit 0, not 3, where a value stays unknown.")
    ] = False,
    variables: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable from outside; repeatable.")
    ] = None,
    env_files: Annotated[
        list[str] | None, typer.Option("--env-file", metavar="FILE", help="Variables from outside; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="[PATH=]NAME", help="The model a path stands for, or of those that name none."),
    ] = None,
    write_baseline: Annotated[
        str | None, typer.Option("--write-baseline", metavar="FILE", help="Write what is found as a baseline; exit 0.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Show the fixes that are one value as a diff, and apply them.")
    ] = False,
    show_diff: Annotated[bool, typer.Option("--diff", help="Print that diff, a patch, and change nothing.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every finding in folders, what was read, what waits.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of hybridcalc.yaml.")] = False,
) -> None:
    """Findings on deployment files: what the engine refuses, and what it starts with although nobody wants it.

    Reads shell scripts, Dockerfiles, systemd units, compose files, Kubernetes and custom resources, Makefiles and task
    files, Terraform and Nomad, SGLang and vLLM configuration files and hybridcalc.yaml; Python and guides (.md, .rst,
    .txt) only where they are named. Nothing is run. A value that no file decides is said to be unresolved.
    Of folders the worst is told, of files that are named everything.
    """
    if schema:
        from hybridcalc.architecture.presets import package_file

        sys.stdout.write(package_file("manifests/native.schema.json").decode())
        return
    from hybridcalc.checks.run import check_paths
    from hybridcalc.checks.settings import load_settings, settings_from

    if fix and show_diff:
        raise InputError("--fix and --diff exclude each other", fix="give one of them")
    if write_baseline is not None and (fix or show_diff):
        raise InputError(
            f"--write-baseline and {'--fix' if fix else '--diff'} exclude each other", fix="give one of them; fix first"
        )
    settings = load_settings(Path.cwd())
    stated = {name: value for name, value in given._asdict().items() if value is not None}
    own = settings_from(stated, "check")
    settings = settings._replace(**{name: getattr(own, name) for name in stated})
    if models:
        named = settings_from({"models": _models(models)}, "check").models
        settings = settings._replace(models={**settings.models, **named})
    if given.length is not None:
        settings = settings._replace(lengths=None)
    _check_rules((*settings.select, *settings.ignore, *settings.severity))
    form = _form(output, as_json=as_json, into=into)
    if into is not None and form == "text":
        raise InputError("--output takes a form for machines", fix=f"add --format {', '.join(FORMATS[1:])}")
    outside = dict(settings.variables) | _env_files(env_files or []) | _set(variables or [])
    known = None
    if settings.baseline is not None and write_baseline is None:
        from hybridcalc.checks.baseline import read_baseline

        known = read_baseline(settings.baseline)
    report = check_paths(paths or ["."], settings, outside, known)
    if write_baseline is not None:
        from hybridcalc.checks.baseline import baseline_text

        Path(write_baseline).write_text(baseline_text(report.findings), encoding="utf-8")
        count = len(report.counting)
        typer.echo(f"{count} finding{' is' if count == 1 else 's are'} in {write_baseline}", err=True)
        raise typer.Exit(2 if any(trouble.unreadable for trouble in report.troubles) else 0)
    if fix or show_diff:
        patch = sys.stdout if show_diff and form == "text" and into is None else sys.stderr
        from hybridcalc.output.check_report import fixed

        report = fixed(report, lambda: check_paths(paths or ["."], settings, outside, known), apply=fix, patch=patch)
    code = report.exit_code(settings.fail_on, allow_unresolved=allow_unresolved or settings.allow_unresolved)
    with redirect_stdout(sys.stderr) if show_diff and form == "text" else nullcontext():  # stdout is the patch
        singly = any(path == "-" or Path(path).is_file() for path in paths or ())
        if form == "text":
            from hybridcalc.output import no_commands
            from hybridcalc.output.check_text import print_report

            with no_commands():
                print_report(report, exit_code=code, verbose=verbose, whole=singly)
        else:
            from hybridcalc.output.check_report import write_report

            write_report(report, form, into, settings, code, verbose=verbose)
    if code:
        raise typer.Exit(code)


def _form(output: str | None, *, as_json: bool, into: str | None) -> str:
    """The report's form; GitHub's where its workflow runs this and nobody asked for another."""
    from hybridcalc.output import in_workflow

    if as_json:
        if output not in (None, "json"):
            raise InputError(f"--json and --format {output} exclude each other", fix="give one of them")
        return "json"
    if output is None:
        return "github" if in_workflow() and into is None else "text"
    if output not in FORMATS:
        raise InputError(f"--format {quoted(output)} is not known", fix=f"write {', '.join(FORMATS)}")
    return output


def _models(pairs: list[str]) -> dict[str, str]:
    """PATH=NAME pairs; a NAME alone is for deployments that name no model."""
    table = {}
    for pair in pairs:
        path, equals, name = pair.rpartition("=")
        table[path if equals else "*"] = name
    return table


def _set(pairs: list[str]) -> dict[str, str]:
    if not pairs:
        return {}
    from hybridcalc.cli.options import environment

    return environment(pairs, "--set")


def _env_files(paths: list[str]) -> dict[str, str]:
    if not paths:
        return {}
    from hybridcalc.manifests import file_bytes
    from hybridcalc.manifests.environment import env_file
    from hybridcalc.shell import Source

    values: dict[str, str] = {}
    for path in paths:
        try:
            data = file_bytes(path, LARGEST_ENV_BYTES)
        except InputError as error:
            raise InputError(f"--env-file {path[:60]}: {error.message}") from None
        if b"\0" in data:
            raise InputError(f"--env-file {path[:60]} is no file of variables")
        values |= {name: s.text or "" for name, s in env_file(Source.of_bytes(path, data)).items()}
    return values


def _check_rules(names: tuple[str, ...]) -> None:
    from hybridcalc.checks import all_rules

    for name in names:
        if not any(rule.startswith(name) for rule in all_rules()):
            raise InputError(f"{quoted(name)} is no rule", fix="see `hybridcalc rules`")
