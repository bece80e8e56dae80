"""The schema of a preset file, checked by pydantic: the shipped presets in a test, a user's own whenever it is read.

Only this module imports pydantic and yaml for presets; shipped presets are read from the compiled index instead
(presets.py), so that a command that names one loads neither.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hybridcalc.architecture.geometry import FAMILIES, LAYER_LETTERS
from hybridcalc.errors import InputError

LARGEST_PRESET_BYTES = 256 * 1024
MOST_PROBLEMS = 3
"""Wrong fields named in one error, which is to stay short."""

Size = Annotated[int, Field(strict=True, ge=1, le=2**31)]
SizeOrZero = Annotated[int, Field(strict=True, ge=0, le=2**31)]


def _one_line(text: str) -> str:
    """The text with each line end as a blank; one with other control characters is refused, since it is printed."""
    text = " ".join(text.split())
    if not text or not text.isprintable():
        raise ValueError("holds control characters" if text else "is blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_one_line)]
Dtype = Literal["float32", "bfloat16", "float16"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GatedDeltaNetFields(_Strict):
    """State of family gdn."""

    num_v_heads: Size
    num_k_heads: Size
    v_head_dim: Size
    k_head_dim: Size
    conv_kernel: Size


class KimiDeltaFields(_Strict):
    """State of family kda."""

    num_heads: Size
    head_dim: Size
    conv_kernel: Size


class Mamba2Fields(_Strict):
    """State of family mamba2."""

    num_heads: Size
    head_dim: Size
    state_size: Size
    n_groups: SizeOrZero
    inner_size: Size
    conv_kernel: Size


class Mamba1Fields(_Strict):
    """State of family mamba1."""

    inner_size: Size
    state_size: Size
    conv_kernel: Size


class LightningFields(_Strict):
    """State of family lightning."""

    num_heads: Size
    head_dim: Size


class StreamFields(_Strict):
    """One short convolution. kv_heads: 0 divides evenly, n follows n KV heads, null is whole on every rank."""

    width: Size
    rows: Size
    kv_heads: SizeOrZero | None = 0

    @model_validator(mode="after")
    def _heads_divide(self) -> StreamFields:
        if self.kv_heads and self.width % self.kv_heads:
            raise ValueError(f"width {self.width} is no multiple of its kv_heads {self.kv_heads}")
        return self


class ShortConvFields(_Strict):
    """State of family shortconv."""

    streams: Annotated[list[StreamFields], Field(min_length=1, max_length=16)]


STATE_FIELDS: dict[str, type[_Strict]] = {
    "gdn": GatedDeltaNetFields, "kda": KimiDeltaFields, "mamba2": Mamba2Fields, "mamba1": Mamba1Fields,
    "lightning": LightningFields, "shortconv": ShortConvFields,
}  # fmt: skip


class IndexFields(_Strict):
    """Keys of a sparse-attention indexer."""

    head_dim: Size
    kpool: Size = 1


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


class Preset(_Strict):
    """One model. ``layers`` has one letter a layer, blanks ignored (letters: architecture/geometry.py)."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=80)]
    name: Text
    hf_id: Text | None = None
    aliases: list[Text] = []
    architecture: Text
    family: Literal["gdn", "kda", "mamba2", "mamba1", "lightning", "shortconv", "attention"]
    layers: Annotated[str, Field(min_length=1, max_length=8192)]
    state: dict[str, Any] | None = None
    attention: Annotated[GroupedQueryFields | LatentFields, Field(discriminator="kind")] | None = None
    window: WindowFields | None = None
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
    source: Text
    confidence: Literal["verified", "second-hand"]
    evidence: Text
    notes: Text | None = None

    @model_validator(mode="after")
    def _geometry_fits_layers(self) -> Preset:
        letters = set("".join(self.layers.split()))
        if letters - set(LAYER_LETTERS):
            raise ValueError(f"layers may hold only the letters {' '.join(LAYER_LETTERS)}")
        if (self.family in FAMILIES) != bool(letters & set("sbv")) or (self.family in FAMILIES) != (
            self.state is not None
        ):
            raise ValueError("family, state and the recurrent layers (s, b, v) must all be there or all be absent")
        if self.state is not None:
            _check_state(self.family, self.state)
        if bool(letters & set("abwv")) != (self.attention is not None):
            raise ValueError("attention and the attention layers (a, b, w, v) must both be there or both be absent")
        if bool(letters & set("wv")) != (self.window is not None):
            raise ValueError("window and the window layers (w, v) must both be there or both be absent")
        return self


def _check_state(family: str, state: dict[str, Any]) -> None:
    """Raise ValueError naming the fields of a state that are not those of its family."""
    try:
        STATE_FIELDS[family].model_validate(state)
    except ValidationError as error:
        raise ValueError(f"state of family {family}: {_problems(error)}") from None


class GpuPreset(_Strict):
    """One accelerator: total memory as its driver reports it, in MiB, and peak memory bandwidth in GB/s."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$", max_length=40)]
    name: Text
    aliases: list[Text] = []
    memory_mib: Size
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]$")] | None = None
    bandwidth_gbs: Size | None = None
    source: Text
    confidence: Literal["verified", "second-hand"]
    note: Text | None = None


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
                    raise yaml.YAMLError(f"key {key.value[:40]!r} appears twice")
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
