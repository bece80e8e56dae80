"""``hybridcalc mcp``: the commands as tools of the Model Context Protocol, over stdin and stdout.

A tool takes what its command takes and answers with the document of its `--json` (docs/json.md). Each call runs the
command in a process of its own: its memory and time are bounded, and nothing it prints meets the protocol's stream.
Launch lines and files are read, never run; no tool writes a file.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import typer

import hybridcalc
from hybridcalc.errors import InputError, quoted

LIMIT_S = 60
INSTRUCTIONS = """Capacity of hybrid language models (attention and recurrent layers) on SGLang, vLLM and llama.cpp.
plan: what a launch line holds. fit: which GPUs serve a workload. compare: which launch line is better. log: what a boot
log says. live: what binds on a running server. check: deployment files. ratio: SGLang's balanced memory ratio.
weights: memory of weights. `length` is the tokens of a request, prompt and answer. Bytes are whole numbers; a pair
[low, high] is an estimate; null is unknown. Ask the user for the GPU and the length: never guess them."""

Number = str | float
"""A figure as a command line has it, 8k or 28.55GiB, or as JSON has it."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("mcp")
def mcp_command() -> None:
    """The commands plan, fit, compare, log, live, check, ratio and weights as tools of an agent, over stdin and stdout.

    Register `hybridcalc mcp` with an MCP client; `pip install 'hybridcalc[mcp]'` brings the protocol. A tool answers
    with the document that its command prints with --json.
    """
    try:
        from mcp.server import MCPServer
    except ImportError:
        raise InputError("mcp needs the library mcp", fix="pip install 'hybridcalc[mcp]'") from None
    tools = {tool.__name__: tool for tool in (plan, fit, compare, log, live, check, ratio, weights)}

    class Server(MCPServer):
        """The protocol's server, whose tools take no argument that they do not name."""

        async def list_tools(self) -> Any:
            """The tools, whose schemas say so."""
            listed = await super().list_tools()
            for tool in listed:
                tool.input_schema["additionalProperties"] = False
            return listed

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            """What a tool answers. Raises ToolError."""
            if name in tools:
                _check_names(name, arguments, list(signature(tools[name]).parameters))
            try:
                return await super().call_tool(name, arguments, context)
            except Exception as error:
                faults = getattr(error.__cause__, "errors", None)  # of arguments that are not what the schema says
                if faults is None:
                    raise
                wrong = {str(each["loc"][0]): each["msg"] for each in faults()}
                said = "; ".join(f"{field}: {why[:1].lower()}{why[1:]}" for field, why in wrong.items())
                raise _refused(f"{name}: {said}") from None

    server = Server("hybridcalc", version=hybridcalc.__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in tools.values():
        server.add_tool(tool)
    server.run("stdio")


def plan(
    launch: str = "",
    model: str = "",
    gpu: str = "",
    length: Number = "",
    concurrency: int | None = None,
    engine: str = "",
    engine_version: str = "",
    weights: Number = "",
    rest: Number = "",
    available: Number = "",
) -> dict[str, Any]:
    """What a server allocates and how many requests it runs at once, with settings that serve better.

    `launch` is a whole line (`sglang serve ...`, `vllm serve ...`, `llama-server ...`), or name a `model` and an
    `engine`; `engine_version` is its release, the newest by itself. `gpu` is a name, several as 8xh200. `length`:
    tokens of a request, as 9216 or 8k. Memory that is known: `weights` on a rank, `rest` (SGLang) or `available`
    (vLLM) for the pools, as 28.55GiB.
    """
    given = _options(gpu=gpu, length=length, concurrency=concurrency, engine=engine, engine_version=engine_version)
    sizes = _options(weights=weights, rest=rest, available=available)
    return _answer("plan", [*_named(model), *given, *sizes], launch=launch)


def fit(
    model: str = "",
    length: Number = "",
    concurrency: int | None = None,
    gpu: str = "",
    engine: str = "",
    price: str = "",
    pace: float | None = None,
    allow: str = "",
    headroom: Number = "",
) -> dict[str, Any]:
    """The cheapest GPUs, engine and flags that serve `concurrency` requests of `length` tokens of a model at once.

    Without a model: which models fit `gpu`. `gpu` lists those to choose from, as h100,8xh200. `price`: h200=3.5,b200=5.
    `pace`: tokens a second that each request may get. `allow`: accuracy (fewer bits), reuse (no prefix cache).
    `headroom`: requests to spare, as 10%. Combinations that only cost more than those shown are left out.
    """
    of = _options(length=length, concurrency=concurrency, gpu=gpu, engine=engine)
    found = _answer("fit", [*_named(model), *of, *_options(price=price, pace=pace, allow=allow, headroom=headroom)])
    refused = found.get("refused", [])
    return found | {"refused": [lost for lost in refused if lost.get("kind") != "dearer"]}


def compare(launches: list[str], gpu: str = "", length: Number = "") -> dict[str, Any]:
    """Launch lines of any engines side by side, the one with the most requests on a GPU first."""
    return _answer("compare", [*_named(*launches), *_options(gpu=gpu, length=length)])


def log(text: str = "", path: str = "", length: Number = "", model: str = "") -> dict[str, Any]:
    """What a boot log of an engine says happened, and what to set; its text, or the path of the file."""
    return _answer("log", [_source(text, path), *_options(length=length, model=model)], stdin=text)


def live(urls: list[str], length: Number = "", model: str = "") -> dict[str, Any]:
    """Which pool binds on running servers: http://host:port of each replica, or files of metrics."""
    return _answer("live", [*_named(*urls), *_options(length=length, model=model)])


def check(text: str = "", path: str = "", gpu: str = "", length: Number = "") -> dict[str, Any]:
    """Sizing traps in deployment files, with file, line and what to write: the text of one, or a file or folder."""
    return _answer("check", [_source(text, path), *_options(gpu=gpu, length=length)], stdin=text)


def ratio(
    model: str, length: Number, tp_size: int | None = None, gpu: str = "", rest: Number = "", kv_cache_dtype: str = ""
) -> dict[str, Any]:
    """SGLang's balanced --mamba-full-memory-ratio for requests of `length` tokens."""
    given = _options(length=length, tp_size=tp_size, gpu=gpu, rest=rest, kv_cache_dtype=kv_cache_dtype)
    return _answer("ratio", [*_named(model), *given])


def weights(model: str, tp_size: int | None = None, quantization: str = "", engine: str = "") -> dict[str, Any]:
    """What a model's weights take, in its checkpoint and on one rank."""
    return _answer("weights", [*_named(model), *_options(tp_size=tp_size, quantization=quantization, engine=engine)])


def _check_names(tool: str, given: Iterable[str], known: list[str]) -> None:
    """Raise ToolError for an argument that a tool does not take, naming one that may be meant."""
    for name in given:
        if name not in known:
            near = [each for each in known if len(name) > 1 and each.startswith(name)]
            near = near or get_close_matches(name[:80], known, n=1)
            meant = f"write {near[0]}" if near else f"it takes {', '.join(known)}"
            raise _refused(f"{quoted(name)} is not an argument of {tool}: {meant}")


def _named(*values: str) -> list[str]:
    """Values that stand alone. Raises ToolError for one that would be read as an option."""
    for value in values:
        if value.startswith("-"):
            raise _refused(f"{quoted(value)} is an option, no name")
    return [value for value in values if value]


def _options(**values: Number | None) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value not in ("", None)]


def _source(text: str, path: str) -> str:
    """Where a command reads: stdin where there is text. Raises ToolError where both or none are given."""
    if bool(text) == bool(path):
        raise _refused("give either text or path")
    return "-" if text else _named(path)[0]


def _answer(command: str, words: Iterable[str], *, stdin: str = "", launch: str = "") -> dict[str, Any]:
    """The document of a command. Raises ToolError with what it says on stderr where it has none."""
    line = [sys.executable, "-m", "hybridcalc", command, "--json", *words]
    if launch:
        try:
            line += ["--", *shlex.split(launch)]
        except ValueError as error:
            raise _refused(f"the launch line: {error}") from None
    home = str(Path(hybridcalc.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    try:
        ran = subprocess.run(  # noqa: S603  # this program, with words that are options of its own or names
            line,
            input=stdin,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"{command} took more than {LIMIT_S} s") from None
    except (OSError, ValueError) as error:  # a zero byte, half a surrogate pair, a word of more than 128 KiB
        why = getattr(error, "strerror", None) or str(error)
        raise _refused(f"no command takes an argument like that: {why[:80].lower()}") from None
    if not ran.stdout.startswith("{"):
        raise _refused(ran.stderr.strip() or f"{command} ended with {ran.returncode}")
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


def _refused(message: str) -> Exception:
    """An error of a tool, as the protocol has it."""
    from mcp.server.mcpserver.exceptions import ToolError

    error: Exception = ToolError(message)
    return error
