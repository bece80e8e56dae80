"""The application: finds a command, runs it, and turns every failure into one or two lines and an exit code.

Commands live in modules of their own and are imported only when they are asked for, so that `hybridcalc ratio` does
not pay for the others. Exit codes: 0 answered, 1 the answer is no, 2 bad input or usage (docs/commands.md).
"""

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hybridcalc.errors import HybridcalcError, InputError, quoted

COMMANDS = {
    "plan": "what SGLang or vLLM will allocate, clamp and refuse, and which flags serve better",
    "fit": "which GPUs, engine and flags serve a workload most cheaply; which models fit GPUs",
    "compare": "launch lines of any engines and GPUs, the most requests on a GPU first",
    "log": "what a boot log says happened, and what to change",
    "live": "which pool binds on a server that is running, and what to set",
    "ratio": "the state to KV memory ratio that serves a workload, and what to set",
    "slots": "state slots a request holds, for every strategy",
    "crossover": "the length from which KV outweighs the state, and a hybrid beats a baseline",
    "replayssm": "ReplaySSM ring buffers: shapes, bytes, and whether a ring length is legal",
    "verify": "the formulas against tensors really allocated, to the byte",
    "weights": "what a model's weights take, in its checkpoint and on one rank",
    "reuse": "state slots that prefix caching wants, and what they spare",
    "check": "a gate for deployment files: findings with file, line and what to write instead",
    "init": "a hybridcalc.yaml for a folder, from flags or by asking",
    "rules": "every rule, with its arithmetic and its source",
    "report": "one page about a model, a boot log or a launch line, to read, to play with, to print",
    "models": "the presets, and where each figure comes from",
    "mcp": "the commands as tools of an agent, over stdin and stdout",
    "schema": "the JSON Schema of what a command prints with --json",
}
"""Commands in the order of the help page, each with its one line there. A new command is added here."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
"""The option of nearly every command."""
USAGE_ERROR = 2
INTERRUPTED = 130
UNDETECTED = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""With it typer's options of completion take a shell, one of those it knows."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are looked up."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command ``cmd_name``, or None."""
        if cmd_name not in COMMANDS:
            return None
        command = get_command(import_module(f"hybridcalc.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names. Raises InputError with the nearest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0][:40], COMMANDS, n=1)
            fix = f"did you mean `hybridcalc {near[0]}`?" if near else "see `hybridcalc --help`"
            raise InputError(f"no command {quoted(args[0])}", fix=fix)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The help page's list of commands, without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and the engine versions it mirrors."),
) -> None:
    """How an LLM server splits GPU memory between recurrent state and KV cache, to the byte.

    Sizes take 80GiB, 80GB, 143771MiB or plain bytes; token counts 9216, 8k (8,192) or 1M. --debug shows tracebacks,
    --download fetches the config of a model that is only on the Hugging Face Hub.
    """
    if version:
        from hybridcalc import __version__
        from hybridcalc.engines import ENGINES

        engines = ", ".join(f"{engine.title} {engine.newest}" for engine in ENGINES.values())
        typer.echo(f"hybridcalc {__version__}, mirrors {engines}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


class PanelledCommand(TyperCommand):
    """A command whose help page shows its options by panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, the command's own options, and the panels in the order of their first option."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if param.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(param, "rich_help_panel", None) or own, []).append(record)
        for panel, records in panels.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


def command(group: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
    """Make a function a command of ``group``; a parameter that is a group (options.py) becomes its flags."""

    def register(function: Any) -> Any:
        group.command(name, **{"cls": PanelledCommand, **settings})(_flat(function))
        return function

    return register


def _flat(function: Any) -> Any:
    """The function with the flags of its groups as parameters of its own."""
    flat: list[Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature(function).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, tuple):
            groups[parameter.name] = kind
            defaults = kind._field_defaults  # type: ignore[attr-defined]
            flat += [
                Parameter(flag, Parameter.KEYWORD_ONLY, default=defaults[flag], annotation=annotation)
                for flag, annotation in kind.__annotations__.items()
            ]
        else:
            flat.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(function)
    def call(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{flag: given.pop(flag) for flag in kind._fields})
        return function(**given)

    call.__signature__ = signature(function).replace(parameters=flat)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


class _Answer(io.FileIO):
    """Standard output. Where its reader is gone, as `head` is, the command ends there and quietly, as other tools do;
    a pipe to a process of its own that breaks is no reason to. Any other failure is raised once.
    """

    failed = False

    def write(self, data: Any) -> int:
        """As to any file; nothing more is written behind a failure."""
        if self.failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as failure:
            self.failed = True
            if isinstance(failure, BrokenPipeError) and hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                signal.raise_signal(signal.SIGPIPE)
            raise


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:  # closed by the caller: there is nobody to answer
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Answer(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
            line_buffering=sys.stdout.line_buffering or sys.stdout.write_through,
        )
    _leave(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run one command line and report what goes wrong; the exit code. ``--debug`` lets the exception through,
    ``--download`` (before a launch line) lets models be fetched.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--download" in own:
        os.environ["HYBRIDCALC_DOWNLOAD"] = "1"
        arguments = [*(word for word in own if word != "--download"), *arguments[len(own) :]]
    try:
        return run([argument for argument in arguments if argument != "--debug"])
    except Exception as failure:
        if "--debug" in arguments:
            raise
        named = next((word for word in arguments if word in COMMANDS), "")
        return _report(failure, f"hybridcalc {named}".rstrip())


def run(arguments: list[str]) -> int:
    """Run one command line. Raises what the command raises."""
    with _shell_asked_for(arguments):
        command = get_command(app)
    result = command.main(args=arguments, prog_name="hybridcalc", standalone_mode=False)
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def _shell_asked_for(arguments: list[str]) -> Iterator[None]:
    """Let the options of completion take the name of a shell where one stands behind them: typer has them take none
    where it can find out which shell is running, and drops the name.
    """
    named = arguments[:1] in (["--install-completion"], ["--show-completion"]) and len(arguments) > 1
    if named and not arguments[1].startswith("-"):
        os.environ[UNDETECTED] = "1"
    try:
        yield
    finally:
        os.environ.pop(UNDETECTED, None)


def _report(failure: Exception, command: str) -> int:
    """One or two lines on stderr for whatever went wrong, in ``command`` where the failure names none."""
    if isinstance(failure, HybridcalcError):
        _complain(failure.message, failure.fix)
        return failure.exit_code
    if isinstance(failure, typer.TyperException) and hasattr(failure, "format_message"):
        message = str(failure.format_message()).strip()
        context = getattr(failure, "ctx", None)
        command = context.command_path if context is not None else command
        if hasattr(failure, "possibilities"):  # typer's error of an option that does not exist
            message = f"{getattr(failure, 'option_name', '')} is not an option of {command.rpartition(' ')[2]}"
            if near := list(failure.possibilities or ()):
                _complain(message, f"did you mean {near[0]}?")
                return USAGE_ERROR
        message = message[:1].lower() + message[1:] if message[:2].istitle() else message
        _complain(" ".join(message.split()), f"see `{command} --help`")
        return USAGE_ERROR
    if isinstance(failure, typer.Abort | KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(failure, OSError):
        _complain((failure.strerror or str(failure)).lower(), str(failure.filename or ""))
        return USAGE_ERROR
    _complain(
        f"hybridcalc failed: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}",
        "this is a defect; run again with --debug for the traceback",
    )
    return USAGE_ERROR


def _complain(message: str, fix: str) -> None:
    if sys.stderr is None:
        return
    lines = _within(_columns(), f"error: {message}") + (_within(_columns(), f"       {fix}") if fix else [])
    with contextlib.suppress(OSError):  # nobody can read it then; the exit code still says it
        print("\n".join(line.encode("utf-8", "replace").decode() for line in lines), file=sys.stderr, flush=True)


def _columns() -> int:
    """Columns of the terminal that errors go to, COLUMNS before it; 0 for a pipe or file, where lines stay whole."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdecimal() and len(said) < 6:
        return int(said)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else 0
    return 0


def _within(columns: int, line: str) -> list[str]:
    """A line of an error in as many as it takes, continued under its text."""
    if len(line) <= columns or not columns:
        return [line]
    from textwrap import wrap

    lead = " " * len("error: ")
    return wrap(line, max(columns, 3 * len(lead)), subsequent_indent=lead, break_on_hyphens=False)


def _leave(code: int) -> NoReturn:
    """Flush what was printed; an answer that could not be written is an error.

    Python looks once more for circles of garbage as it ends, through all that was loaded: a fifth of a short command.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as failure:
        _complain((failure.strerror or "the answer could not be written").lower(), "")
        code = USAGE_ERROR
    gc.freeze()
    sys.exit(code)
