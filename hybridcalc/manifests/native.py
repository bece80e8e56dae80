"""What does a hybridcalc.yaml hold? Deployments with their memory, their workload, and what is expected of them.

    deployments:
      - {name: k3, model: kimi-k3, engine: sglang, flags: {tp-size: 8},
         hardware: {rest: 28.55GiB}, workload: {length: 9216}, expect: {min_requests: 60}}

The only place that says everything a plan needs. Checked by pydantic; its JSON Schema is native.schema.json.
"""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hybridcalc.deployment import Workload, parse_lengths
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment, Hardware
from hybridcalc.manifests.environment import declared
from hybridcalc.manifests.fields import field_words, plain
from hybridcalc.manifests.scripts import run_script
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Sequence
from hybridcalc.shell import FileError, Place, Setting, Word
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside
from hybridcalc.units import MOST_RANKS, MOST_SLOTS, parse_bytes, parse_tokens

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def _size(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("a size: 80GiB, 80GB, 143771MiB or plain bytes")
    try:
        parse_bytes(str(value))
    except InputError as error:
        raise ValueError(error.message) from None
    return str(value)


def _tokens(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("tokens: 9216, 8k or 1M")
    try:
        return parse_tokens(str(value))
    except InputError as error:
        raise ValueError(error.message) from None


Size = Annotated[
    str, BeforeValidator(_size), Field(description="80GiB (2**30), 80GB (10**9), 143771MiB or plain bytes")
]
Tokens = Annotated[int, BeforeValidator(_tokens), Field(ge=1, description="9216, 8k (8,192) or 1M")]
Flag = str | int | float | bool | list[str | int | float] | dict[str, Any] | None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HardwareSettings(_Strict):
    """The GPUs of a rank, and the memory known of them."""

    gpu: str | None = Field(default=None, description="a GPU preset, its name or its size")
    gpus: int | None = Field(default=None, ge=1, le=MOST_RANKS, description="GPUs of a node")
    nodes: int = Field(default=1, ge=1, le=MOST_RANKS)
    weights: Size | None = Field(default=None, description="weights on one rank")
    rest: Size | None = Field(default=None, description="memory left for both pools on one rank; SGLang")
    available: Size | None = Field(default=None, description="memory free for the cache on one rank; vLLM")


class WorkloadSettings(_Strict):
    """The requests the deployment is for."""

    length: Tokens | None = None
    lengths: str | None = Field(default=None, description="8k:20,128k:2 (length:requests)")
    concurrency: int | None = Field(default=None, ge=1, le=MOST_SLOTS, description="requests that should run at once")
    kind: Literal["long", "agent", "batch", "small"] | None = None

    @model_validator(mode="after")
    def _one_length(self) -> "WorkloadSettings":
        if self.length is not None and self.lengths is not None:
            raise ValueError("length and lengths exclude each other")
        if self.lengths is not None:
            try:
                parse_lengths(self.lengths)
            except InputError as error:
                raise ValueError(error.message) from None
        return self

    @property
    def workload(self) -> Workload:
        """As the planners take it."""
        if self.lengths is not None:
            return Workload(parse_lengths(self.lengths), self.concurrency, self.kind)
        return Workload(((self.length, 1),) if self.length else (), self.concurrency, self.kind)


class Expectations(_Strict):
    """What must hold; each becomes a check."""

    fits: bool | None = Field(default=None, description="whether the server starts")
    min_requests: int | None = Field(
        default=None, ge=1, le=MOST_SLOTS, description="requests that run at once at least"
    )
    min_tokens: Tokens | None = Field(default=None, description="KV tokens at least")
    max_idle_percent: float | None = Field(default=None, ge=0, le=100, description="of the pool that does not bind")


class NativeDeployment(_Strict):
    """One deployment: a model and flags, or a whole command."""

    name: str | None = Field(default=None, max_length=200)
    model: str | None = Field(default=None, max_length=200, description="a preset, its alias or Hugging Face id")
    engine: Literal[*ENGINES] | None = None  # type: ignore[valid-type]
    engine_version: str | None = Field(default=None, max_length=40)
    flags: dict[str, Flag] = Field(default_factory=dict, description="the engine's long flags, without dashes")
    command: str | None = Field(default=None, description="a launch command, in place of engine and flags")
    env: dict[str, str | int | float | bool] = Field(default_factory=dict)
    hardware: HardwareSettings = HardwareSettings()
    workload: WorkloadSettings = WorkloadSettings()
    expect: Expectations = Expectations()


class NativeFile(_Strict):
    """A hybridcalc.yaml."""

    version: Literal[1] = 1
    deployments: list[NativeDeployment] = Field(min_length=1, max_length=1000)


_SECTIONS: dict[str, type[BaseModel]] = {
    "deployments": NativeDeployment, "hardware": HardwareSettings, "workload": WorkloadSettings, "expect": Expectations,
}  # fmt: skip
_KINDS = {
    "missing": "is missing", "int_type": "not a whole number", "int_parsing": "not a whole number",
    "int_from_float": "not a whole number", "float_type": "not a number", "float_parsing": "not a number",
    "string_type": "not a text", "bool_type": "not true or false", "bool_parsing": "not true or false",
    "list_type": "not a list", "dict_type": "not a mapping", "model_type": "not a mapping",
    "model_attributes_type": "not a mapping", "too_short": "empty", "string_too_long": "too long",
    "too_long": "too long",
}  # fmt: skip
"""Kinds of errors of the schema, in a few words."""


def read_native(node: Fields, outside: Outside) -> Iterator[Deployment]:
    """Every deployment of a native file. Raises InputError with file and line for what the schema refuses."""
    try:
        settings = NativeFile.model_validate(plain(node))
    except ValidationError as error:
        raise _refusal(node, error) from None
    for fields, native in zip(node.items("deployments"), settings.deployments, strict=True):
        assert isinstance(fields, Fields)  # noqa: S101
        yield _deployment(fields, native, outside)


def _deployment(fields: Fields, native: NativeDeployment, outside: Outside) -> Deployment:
    empty = Setting((Word("", fields.source, fields.begin, fields.begin),))
    env = {name: setting or empty for name, setting, _ in declared(fields.get("env"))}
    model = fields.scalar("model")
    named = model.known() if model is not None else None
    hardware = Hardware(native.hardware.gpu, native.hardware.gpus, None, native.hardware.nodes)
    launch = Launch(native.engine or "", (), env, fields.source.place(fields.begin))
    command, flags = fields.scalar("command"), fields.mapping("flags")
    if command is not None:
        found = run_script(command.text(), env, outside).launches
        if len(found) != 1:
            raise command.source.error(command.begin, "command starts no engine known here")
        launch = found[0]._replace(place=launch.place)
    if not launch.engine:
        fix = f"write engine: {' or '.join(ENGINES)}"
        raise fields.source.error(fields.begin, "a deployment needs an engine", fix)
    if flags is not None:
        launch = launch._replace(words=(*launch.words, *field_words(flags, launch.engine, known_only=False)))
    launch = launch._replace(model=named or launch.model)
    name = native.name or native.model or ""
    return Deployment(fields.source, "hybridcalc", name, launch, hardware, native=native, marks=_marks(fields))


def _marks(fields: Fields) -> dict[str, Place]:
    """Where each expectation stands."""
    expect = fields.mapping("expect")
    pairs = expect.entries() if expect is not None else ()
    return {key.value: value.source.place(value.begin, value.end) for key, value in pairs}


def _refusal(node: Fields, error: ValidationError) -> FileError:
    """The first thing that is wrong, with its line."""
    first = error.errors(include_url=False)[0]
    at: Node = node
    for step in first["loc"]:
        inner: Node | None = None
        if isinstance(at, Fields) and isinstance(step, str):
            inner = at.get(step) or next((key for key, _ in at.entries() if key.value == step), None)
        elif isinstance(at, Sequence) and isinstance(step, int) and step < len(at.items):
            inner = at.items[step]
        if inner is None:
            break
        at = inner
    where = ".".join(str(step) for step in first["loc"])
    message, fix = _said(first)
    return node.source.error(at.begin, f"{where[:120]}: {message}", fix or "see `hybridcalc check --schema`")


def _said(error: Any) -> tuple[str, str]:
    """What is wrong, in words of this library, and what to write instead where that is known."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        names = [str(step) for step in error["loc"] if isinstance(step, str)]
        model = _SECTIONS.get(names[-2] if len(names) > 1 else "", NativeFile)
        near = get_close_matches(names[-1][:60], list(model.model_fields), n=1)
        keys = ", ".join(model.model_fields)
        return "no such key", f"write {near[0]}" if near else f"one of {keys}"
    if kind in _KINDS:
        return _KINDS[kind], ""
    if kind == "literal_error":
        return "not one of its values", "write " + str(context.get("expected", "")).replace("'", "")[:80]
    if kind in ("greater_than_equal", "less_than_equal"):
        limit = context.get("ge", context.get("le"))
        return f"{'below' if 'ge' in context else 'above'} {limit}", ""
    return error["msg"][:160].removeprefix("Value error, "), ""


def schema_text() -> str:
    """The JSON Schema of a native file."""
    schema = {"$schema": SCHEMA_ID, "$id": "hybridcalc.native/1"} | NativeFile.model_json_schema()
    return json.dumps(schema, indent=2) + "\n"
