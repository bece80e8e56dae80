"""A plan of any engine: of a model, or of the launch line that starts it.

hybridcalc.plan("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 2", gpu="h100", weights="80GiB", length=8192)
hybridcalc.plan("kimi-k3", tp_size=8, rest="28.55GiB")        arguments under the engine's own names
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Memory, Rest, Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.answer import Answer
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import InputError, MemoryUnknown, Refusal, quoted
from hybridcalc.hardware import find_gpu
from hybridcalc.units import parse_gib, parse_tokens

if TYPE_CHECKING:
    from hybridcalc.engines.weights import Weights


def plan(
    model_or_launch: str | Architecture,
    *,
    engine: str | None = None,
    rest: str | float | Rest | None = None,
    available: str | float | Rest | None = None,
    gpu: str | None = None,
    weights: str | float | None = None,
    length: str | int | None = None,
    concurrency: int | None = None,
    workload: Workload | None = None,
    env: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Answer:
    """The plan of a server: a launch line, or a model with arguments under the engine's own names.

    ``engine`` is the one that the line starts, or the usual one. The memory is ``rest`` or ``available`` as the engine
    has it, or follows from the GPU, its ``weights`` on a rank and the arguments; sizes are texts, or numbers of GiB.
    ``length`` is what a request holds, prompt and answer, in tokens. Raises Refusal for what does not start, InputError
    for what cannot be read, and MemoryUnknown where figures of the memory are missing.
    """
    served, named, args, release = _asked(model_or_launch, engine, env or {})
    model = load_model(named) if isinstance(named, str) else named
    known = Memory(
        _gib("rest", rest),
        _gib("available", available),
        None if gpu is None else find_gpu(gpu),
        _gib("weights", weights),
    )
    served.check_options({name: value for name, value in known._asdict().items() if name != "weighed"})
    served.check_memory(known)
    unknown = sorted(set(arguments) - {field.name for field in fields(args)})
    if unknown:
        raise _no_argument(served, unknown[0], args)
    share = not _is_launch(model_or_launch) and served.renamed.get("tp_size", "tp_size") not in arguments
    options = {"gpu": known.gpu, "engine_version": release, "share": share}
    args = replace(args, **arguments)
    shared = served.shared_gpus(args, options)
    args = replace(served.with_options(args, options), **arguments)
    served.check_together(args)
    if workload is None:
        tokens = parse_tokens(length) if isinstance(length, str) else length
        workload = Workload(((tokens, 1),) if tokens else (), concurrency)
    given = next((value for value in (rest, available) if isinstance(value, Rest)), None)
    try:
        return served.plan(model, args, given or served.memory(model, args, known), workload)
    except MemoryUnknown as error:
        raise MemoryUnknown(_in_python(error.message), figures=error.figures, fix=_in_python(error.fix)) from None
    except Refusal as refusal:
        raise (served.not_shared(model, args, shared, refusal, known.gpu) or refusal) from None


def weights(
    model_or_launch: str | Architecture,
    *,
    engine: str | None = None,
    tp_size: int | None = None,
    pp_size: int | None = None,
    ep_size: int | None = None,
    quantization: str | None = None,
    env: Mapping[str, str] | None = None,
    **arguments: Any,
) -> "Weights":
    """What the weights of a model take, in its checkpoint and on the heaviest rank of a server of ``engine``.

    Of a launch line, or a model with ranks; other ``arguments`` under the engine's own names. ``quantization``: how a
    checkpoint of 16 bits is quantised. Raises ShardingError for ranks that do not divide the model, NotModelled where
    nothing is known of its weights, InputError for what cannot be read.
    """
    given = {"tp_size": tp_size, "pp_size": pp_size, "ep_size": ep_size, "quantization": quantization}
    served, model, args = arguments_of(model_or_launch, engine, {**given, **arguments}, env)
    return served.weights(model, args)


OPTIONS = (
    "tp_size",
    "pp_size",
    "ep_size",
    "dp_size",
    "quantization",
    "kv_cache_dtype",
    "mamba_ssm_dtype",
    "engine_version",
)
"""Arguments that any engine takes under these names."""


def arguments_of(
    model_or_launch: str | Architecture,
    engine: str | None,
    arguments: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
) -> tuple[Engine, Architecture, Any]:
    """The engine, the model and the arguments of a launch line, or of a model; ``arguments`` change them."""
    served, model, args, release = _asked(model_or_launch, engine, env or {})
    if not isinstance(model, Architecture):
        model = load_model(model)
    options = {name: value for name, value in arguments.items() if name in OPTIONS}
    own = {name: value for name, value in arguments.items() if name not in OPTIONS}
    unknown = sorted(set(own) - {field.name for field in fields(args)})
    if unknown:
        raise _no_argument(served, unknown[0], args)
    args = replace(served.with_options(args, {"engine_version": release, **options}), **own)
    served.check_together(args)
    return served, model, args


def _asked(
    model_or_launch: str | Architecture, engine: str | None, env: Mapping[str, str]
) -> tuple[Engine, str | Architecture, Any, str | None]:
    """The engine, the model, the arguments and the release of a launch line; a model alone has them by default."""
    named = None if engine is None else ENGINES.named(engine, flag="engine")
    if not _is_launch(model_or_launch):
        served = ENGINES[named or ENGINES.meant_by([str(getattr(model_or_launch, "asked", model_or_launch))])]
        return served, model_or_launch, served.read([], env)[1], None
    line = ENGINES.launch(model_or_launch)
    if line.engine and named is not None and line.engine != named:
        raise InputError(f"the launch line starts {line.engine}, not {named}", fix="leave out engine")
    served = ENGINES[line.engine or named or ENGINES.meant_by(line.words)]
    model, args = served.read(line.words, {**line.variables, **env})
    if model is None:
        raise InputError("the launch line names no model", fix=f"add {served.model_flag}")
    return served, model, args, ENGINES.release(line)


def _no_argument(served: Engine, name: str, args: Any) -> InputError:
    """That an engine has no such argument, and what to write: the one whose flag is called so, or which there are."""
    spelt = (f"{dashes}{name.replace('_', '-')}" for dashes in ("--", "-"))
    flag = next((found for each in spelt if (found := served.flags.by_spelling.get(each)) is not None), None)
    fix = f"write {flag.field}" if flag is not None else f"it takes the fields of {type(args).__name__}"
    return InputError(f"{name[:40]} is no argument of {served.title}", fix=fix)


def _in_python(text: str) -> str:
    """Options of a command in a text (``--gpu NAME``) as arguments: ``gpu="NAME"``."""
    return re.sub(r"--([a-z-]+) ([A-Z]+)\b", lambda found: f'{found[1].replace("-", "_")}="{found[2]}"', text)


def _is_launch(model_or_launch: str | Architecture) -> TypeGuard[str]:
    """Whether it is a launch line, and no model."""
    return isinstance(model_or_launch, str) and len(model_or_launch.split()) > 1


def read_command(engine: str, text: str) -> tuple[str | None, Any]:
    """MODEL (None where no word names it) and arguments of a launch command of an engine, or of its arguments alone.

    Raises InputError for what cannot be read, and for a command that starts another engine.
    """
    line, row = ENGINES.launch(text), ENGINES.rows[engine]
    if line.engine not in (engine, ""):
        commands = " or ".join(" ".join(program) for program in row.starter.programs[:2])
        raise InputError(
            f"{' '.join(line.program)} starts {line.engine}, not {row.title}", fix=f"give a command of {commands}"
        )
    return ENGINES[engine].read(line.words, line.variables)


def _gib(name: str, size: str | float | Rest | None) -> float | None:
    """A size in GiB. Raises InputError for what is none."""
    if size is None:
        return None
    if isinstance(size, Rest):
        return size.likely_gib
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise InputError(f"{name} {quoted(size)} is not a size", fix='write "80GiB", or a number of GiB')
    return parse_gib(size) if isinstance(size, str) else float(size)
