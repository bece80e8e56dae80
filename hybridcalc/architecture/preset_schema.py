"""The schema of a preset file, checked by pydantic: the shipped presets in a test, a user's own whenever it is read.

Only this module imports pydantic and yaml for presets; shipped presets are read from the compiled index instead
(presets.py), so that a command that names one loads neither.
"""

from __future__ import annotations

import re
from functools import cache
from inspect import signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from hybridcalc.architecture import FULL_ATTENTION_LETTERS, LAYER_LETTERS, STATE_LETTERS, WINDOW_LETTERS
from hybridcalc.architecture.families import FAMILIES, NO_FAMILY, OrZero, family_class
from hybridcalc.errors import InputError, quoted

LARGEST_PRESET_BYTES = 256 * 1024
MOST_PROBLEMS = 3
"""Wrong fields named in one error, which is to stay short."""

Size = Annotated[int, Field(strict=True, ge=1, le=2**31)]
Rate = Annotated[float, Field(gt=0, le=2**31)]
SizeOrZero = Annotated[int, Field(strict=True, ge=0, le=2**31)]


def _one_line(text: str) -> str:
    """The text with each line end as a blank; one with other control characters is refused, since it is printed."""
    text = " ".join(text.split())
    if not text or not text.isprintable():
        raise ValueError("holds control characters" if text else "is blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_one_line)]
Dtype = Literal["float32", "bfloat16", "float16"]


def _known_family(name: str) -> str:
    """The name, refused where no family has it."""
    if name not in (*FAMILIES, NO_FAMILY):
        raise ValueError(f"write one of {', '.join((*FAMILIES, NO_FAMILY))}")
    return name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


MOST_PARTS = 16
"""Parts of one kind in a state: Inkling has six convolutions."""


@cache
def _model_of(sizes: type) -> type[_Strict]:
    """The schema of a class's fields: see families/__init__.py for what they may be."""
    kinds = get_type_hints(sizes, include_extras=True)
    fields: Any = {
        size.name: (_checked_kind(kinds[size.name]), ... if size.default is size.empty else size.default)
        for size in signature(sizes).parameters.values()
    }

    def check(self: _Strict) -> _Strict:
        problem = sizes(**dict(self)).problem if hasattr(sizes, "problem") else ""
        if problem:
            raise ValueError(problem)
        return self

    validators: Any = {"check": model_validator(mode="after")(check)}
    return create_model(f"{sizes.__name__}Fields", __base__=_Strict, __validators__=validators, **fields)


def _checked_kind(kind: Any) -> Any:
    """The annotation of a size as pydantic is to check it: a bounded int, an optional one, or a list of parts."""
    if kind is int or kind == OrZero:
        return Size if kind is int else SizeOrZero
    if get_origin(kind) is tuple:
        return Annotated[list[_model_of(get_args(kind)[0])], Field(min_length=1, max_length=MOST_PARTS)]  # type: ignore[misc]
    kept, none = get_args(kind)
    assert none is NoneType, f"{kind} is no size"  # noqa: S101  (a family's own mistake)
    return _checked_kind(kept) | None


class IndexFields(_Strict):
    """Keys of a sparse-attention indexer."""

    head_dim: Size
    kpool: Size = 1


class PleConvFields(_Strict):
    """The short convolution of layers with n-gram embeddings: how many layers, its channels, the columns it keeps."""

    layers: Size
    channels: Size
    columns: Size


class GroupedQueryFields(_Strict):
    """Grouped-query (or multi-head) attention."""

    kind: Literal["gqa"]
    kv_heads: Size
    head_dim: Size
    v_head_dim: Size | None = None


class LatentFields(_Strict):
    """Multi-head latent attention."""

    kind: Literal["mla"]
    kv_lora_rank: Size
    qk_rope_head_dim: SizeOrZero
    indexer: IndexFields | None = None


class WindowFields(_Strict):
    """Sliding window; kv_heads and head_dim, together, where window layers differ from full ones."""

    tokens: Size
    kv_heads: Size | None = None
    head_dim: Size | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> WindowFields:
        if (self.kv_heads is None) != (self.head_dim is None):
            raise ValueError("kv_heads and head_dim of a window come together")
        return self


def _bounded(value: Any, depth: int = 0) -> Any:
    """Plain data of a config: numbers, words, lists and tables of them, few and small."""
    if isinstance(value, dict) and depth < 4 and len(value) <= MOST_FIELDS:
        return {str(key)[:200]: _bounded(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list) and len(value) <= 4096 and depth < 4:
        return [_bounded(each, depth + 1) for each in value]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= 2**31):
        return value
    if isinstance(value, str) and len(value) <= 4096 and value.isprintable():
        return value
    raise ValueError("holds what no config.json holds")


MOST_FIELDS = 64
ConfigFields = Annotated[dict[str, Any], AfterValidator(_bounded)]


class Checkpoint(_Strict):
    """Released weights of the model. ``quantization`` as its quantization_config or hf_quant_config.json has it, none
    for 16 bits; ``scale_dtype`` of block scales on disk; ``parameters`` and ``bytes`` (of tensors) as published.
    """

    id: Text
    quantization: ConfigFields | None = None
    scale_dtype: Dtype | None = None
    parameters: Annotated[int, Field(strict=True, ge=1, le=2**50)] | None = None
    bytes: Annotated[int, Field(strict=True, ge=1, le=2**50)] | None = None
    source: Text


class Preset(_Strict):
    """One model. ``layers`` has one letter a layer, blanks ignored (letters: architecture.py). ``config``: the
    fields of its config.json that its parameters follow from and that are not stated above (architecture/weights.py).
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=80)]
    name: Text
    hf_id: Text | None = None
    aliases: list[Text] = []
    architecture: Text
    family: Annotated[str, AfterValidator(_known_family)]
    layers: Annotated[str, Field(min_length=1, max_length=8192)]
    state: dict[str, Any] | None = None
    attention: Annotated[GroupedQueryFields | LatentFields, Field(discriminator="kind")] | None = None
    window: WindowFields | None = None
    ple_conv: PleConvFields | None = None
    num_attention_heads: Size | None = None
    hidden_size: Size | None = None
    max_context: Size | None = None
    model_dtype: Dtype = "bfloat16"
    mamba_ssm_dtype: Dtype | None = None
    mamba_ssm_cache_dtype: Dtype | None = None
    chunk_size: Size | None = None
    draft_layers: SizeOrZero = 0
    multimodal: bool = False
    parameters_b: Annotated[float, Field(gt=0, le=1e6)] | None = None
    config: ConfigFields = {}
    checkpoints: list[Checkpoint] = []
    source: Text
    confidence: Literal["verified", "second-hand"]
    evidence: Text
    notes: Text | None = None

    @model_validator(mode="after")
    def _geometry_fits_layers(self) -> Preset:
        letters = set("".join(self.layers.split()))
        if letters - set(LAYER_LETTERS):
            raise ValueError(f"layers may hold only the letters {' '.join(LAYER_LETTERS)}")
        recurrent = bool(letters & set(STATE_LETTERS))
        if not recurrent == (self.family != NO_FAMILY) == (self.state is not None):
            raise ValueError("family, state and the recurrent layers (s, b, v) must all be there or all be absent")
        if self.state is not None:
            _check_state(self.family, self.state)
        if bool(letters & set(FULL_ATTENTION_LETTERS + WINDOW_LETTERS)) != (self.attention is not None):
            raise ValueError("attention and the attention layers (a, b, w, v) must both be there or both be absent")
        if bool(letters & set(WINDOW_LETTERS)) != (self.window is not None):
            raise ValueError("window and the window layers (w, v) must both be there or both be absent")
        return self


def _check_state(family: str, state: dict[str, Any]) -> None:
    """Raise ValueError naming the fields of a state that are not those of its family."""
    try:
        _model_of(family_class(family)).model_validate(state)
    except ValidationError as error:
        raise ValueError(f"state of family {family}: {_problems(error)}") from None


class Evidence(_Strict):
    """Where a figure of a GPU is from, and how far to trust it: read in output (verified), in somebody's table
    (second-hand), concluded from a sister board (derived), or remembered from a data sheet (recalled).
    """

    source: Text
    confidence: Literal["verified", "second-hand", "derived", "recalled"]


class Peaks(_Strict):
    """Dense matrix rates in TFLOPS, without sparsity."""

    bf16: Rate | None = None
    fp8: Rate | None = None
    fp4: Rate | None = None
    fp32: Rate | None = None


class GpuPreset(_Strict):
    """One accelerator. Memory twice: the driver's total in MiB (nvidia-smi, amd-smi), and the total in GiB that the
    CUDA or HIP runtime gives to engines, which is less. Bandwidth in GB/s, a link's in GB/s a direction.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=40)]
    name: Text
    aliases: list[Text] = []
    labels: list[Text] = []
    instances: dict[Text, Annotated[int, Field(ge=1, le=16)]] = {}
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    gfx: Annotated[str, Field(pattern=r"^gfx[0-9a-f]{3,4}$")] | None = None
    driver_mib: Size | None = None
    runtime_gib: Rate | None = None
    unified: bool = False
    gpus_per_node: Annotated[int, Field(ge=1, le=16)] = 8
    bandwidth_gbs: Rate | None = None
    dense_tflops: Peaks | None = None
    nvlink_gbs: Rate | None = None
    pcie: Text | None = None
    sources: dict[Literal["driver_mib", "runtime_gib", "bandwidth_gbs", "dense_tflops"], Evidence]
    note: Text | None = None

    @model_validator(mode="after")
    def _figures_have_sources(self) -> GpuPreset:
        if self.driver_mib is None and self.runtime_gib is None:
            raise ValueError("driver_mib or runtime_gib must be there: without either the memory is not known")
        for figure in ("driver_mib", "runtime_gib", "bandwidth_gbs", "dense_tflops"):
            if (getattr(self, figure) is None) != (figure not in self.sources):
                raise ValueError(f"{figure} and sources.{figure} must both be there or both be absent")
        return self


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without anchors (a page of them unfolds into gigabytes) and without repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("anchors and aliases are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"key {quoted(key.value)} appears twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_preset(text: str, where: str) -> dict[str, Any]:
    """A preset file checked and as plain data. Raises InputError naming the first field that is wrong."""
    return _checked(Preset, text, where)


def read_gpu_preset(text: str, where: str) -> dict[str, Any]:
    """A GPU file checked and as plain data. Raises InputError naming the first field that is wrong."""
    return _checked(GpuPreset, text, where)


def _checked(model: type[BaseModel], text: str, where: str) -> dict[str, Any]:
    if len(text) > LARGEST_PRESET_BYTES:
        raise InputError(f"{where}: larger than {LARGEST_PRESET_BYTES // 1024} KiB, not a preset")
    if text.count("[") + text.count("{") > 4096:
        raise InputError(f"{where}: nested too deeply for a preset")
    try:
        data = yaml.load(text, Loader=_PlainLoader)  # noqa: S506  (a SafeLoader, stricter)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not readable as YAML, {_yaml_reason(error)}") from None
    except (RecursionError, ValueError, OverflowError, LookupError, TypeError, AttributeError):  # tags on nonsense
        raise InputError(f"{where}: not readable as YAML, nested too deeply or with unusable numbers") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: a preset is a mapping of fields")
    try:
        return model.model_validate(data).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    except ValidationError as error:
        raise InputError(f"{where}: {_problems(error)}", fix="the fields of a preset: docs/presets.md") from None


def _problems(error: ValidationError) -> str:
    """The first few fields that are wrong, each with its reason."""
    found = error.errors(include_url=False, include_input=False)
    texts = []
    for problem in found[:MOST_PROBLEMS]:
        field = ".".join(str(part) for part in problem["loc"])[:60]
        reason = re.sub(r"^Value error, ", "", problem["msg"])[:160]
        texts.append(f"{field}: {reason}" if field else reason)
    return "; ".join(texts) + (f"; and {len(found) - MOST_PROBLEMS} more" if len(found) > MOST_PROBLEMS else "")


def _yaml_reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0][:120]
    return f"line {mark.line + 1}: {problem}" if mark is not None else problem
