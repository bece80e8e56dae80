"""config.json -> the fields of an Architecture: every naming and nesting variant lives in this package alone.

The class name in ``architectures`` (or ``model_type`` where a file has none) picks a reader. Fields may sit in
``text_config``, ``llm_config`` or ``language_config``; ``vision_config`` has fields of the same names and is never
looked into. An unknown class is refused: guessing that it is plain attention would be a half-read.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from hybridcalc.architecture.config_json.classes import BY_MODEL_TYPE, DRAFT_CLASSES, READERS
from hybridcalc.architecture.fields import DRAFT_FIELDS, Fields, text_of
from hybridcalc.errors import ConfigError, InputError, quoted
from hybridcalc.units import parse_dtype

CONTEXT_FIELDS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


def read_config(config: Mapping[str, Any], *, name: str, architecture: str | None) -> dict[str, Any]:
    """Fields of the Architecture of a parsed config.json: see Architecture.from_hf_config, which makes it."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"{name}: a config is a JSON object, this is a {type(config).__name__}")
    text = text_of(config)
    found = architecture or _architecture_of(config, text, name)
    if found not in READERS:
        raise _unknown(found, name)
    fields = Fields(text, name, fallback=config if text is not config else None)
    parts = READERS[found](fields)
    if parts.state is not None and not set(parts.layers) & set("sbv") and not fields.missing and not fields.wrong:
        fields.disagree("no layer of the list is recurrent")
    rope = fields.raw("rope_scaling", "rope_parameters")
    result = parts._asdict() | {
        "name": name,
        "architecture": found,
        "num_attention_heads": fields.optional("num_attention_heads") if parts.attention else None,
        "hidden_size": fields.optional("hidden_size"),
        "max_context": fields.optional(*CONTEXT_FIELDS),
        "rope_scaling_factor": _rope_factor(Fields(rope, name)) if isinstance(rope, Mapping) else 1.0,
        "model_dtype": _model_dtype(fields),
        "declared_ssm_dtype": fields.text("mamba_ssm_dtype"),
        "declared_ssm_cache_dtype": fields.text("mamba_ssm_cache_dtype"),
        "chunk_size": fields.optional("mamba_chunk_size", "chunk_size"),
        "draft_layers": _draft_layers(fields),
        "draft_bands": tuple(sorted(fields.indices("mtp_local_layer_ids", MOST_BANDS) or ())),
        "multimodal": isinstance(config.get("vision_config"), Mapping),
        "source": name,
    }
    fields.finish(found)
    return result


def context_of(overrides: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of an Architecture that overrides of its config change of the context, in tokens; none for others.

    YaRN stretches the length that it names itself; what is no size changes nothing.
    Source: vLLM config/model.py, _get_and_verify_max_len.
    """
    fields = Fields(text_of(overrides), name, fallback=overrides)
    rope = fields.raw("rope_parameters", "rope_scaling")
    stretched = Fields(rope, name) if isinstance(rope, Mapping) else None
    found: dict[str, Any] = {}
    longest = fields.optional(*CONTEXT_FIELDS)
    if stretched is not None:
        found["rope_scaling_factor"] = _rope_factor(stretched)
        original, factor = stretched.optional("original_max_position_embeddings"), stretched.raw("factor")
        if stretched.raw("rope_type", "type") == "yarn" and original and isinstance(factor, int | float):
            longest = int(original * factor)
    found |= {"max_context": longest} if longest else {}
    return {} if fields.wrong or (stretched is not None and stretched.wrong) else found


def _architecture_of(config: Mapping[str, Any], text: Mapping[str, Any], name: str) -> str:
    classes = _classes(config, name) or _classes(text, name)
    for known in classes:
        if known in READERS or known in DRAFT_CLASSES:
            return DRAFT_CLASSES.get(known, known)
    types = [value for value in (config.get("model_type"), text.get("model_type")) if isinstance(value, str)]
    if not classes:
        for model_type in types:
            if model_type == "bailing_hybrid":  # two generations share it; only one has a convolution
                has_conv = "short_conv_kernel_size" in text
                return "BailingMoeV3ForCausalLM" if has_conv else "BailingMoeV2_5ForCausalLM"
            if model_type in BY_MODEL_TYPE:
                return BY_MODEL_TYPE[model_type]
    stated = config.get("model_type", text.get("model_type"))
    if not classes and not types and stated is not None:
        raise ConfigError(f"{name}: model_type = {quoted(stated)} is no text", fix="give a model's own config.json")
    if not classes and not types:
        raise ConfigError(
            f"{name}: not a model config, missing architectures and model_type", fix="give a model's own config.json"
        )
    raise _unknown((classes or types)[0], name)


def _classes(config: Mapping[str, Any], name: str) -> list[str]:
    """The class names in ``architectures``; none where the field is not set."""
    listed = config.get("architectures")
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise ConfigError(
            f"{name}: architectures = {quoted(listed)} is no list of class names",
            fix='write it in brackets: "architectures": ["..."]',
        )
    return [item for item in listed if isinstance(item, str)]


def _unknown(architecture: str, name: str) -> ConfigError:
    near = difflib.get_close_matches(architecture[:60], [*READERS, *BY_MODEL_TYPE], n=2, cutoff=0.6)
    nearest = f"; nearest known: {', '.join(near)}" if near else ""
    return ConfigError(
        f"{name}: unknown architecture {architecture[:60]}{nearest}",
        fix="write its geometry as a preset YAML (docs/presets.md)",
    )


MODEL_DTYPES = ("float32", "bfloat16", "float16")


def _model_dtype(fields: Fields) -> str:
    stated = fields.text("torch_dtype", "dtype")
    if stated is None or stated == "auto":
        return "bfloat16"
    try:
        name = parse_dtype(stated.removeprefix("torch."))
    except InputError:
        return "bfloat16"
    return name if name in MODEL_DTYPES else "bfloat16"


def _rope_factor(rope: Fields) -> float:
    """The factor by which a config stretches its context; 1 where the stated length already includes it."""
    kind = rope.raw("rope_type", "type")
    if kind == "llama3" or rope.raw("original_max_position_embeddings") is not None:
        return 1.0
    factor = rope.raw("factor")
    return float(factor) if isinstance(factor, int | float) and 0 < factor <= 1e6 else 1.0


MOST_BANDS = 4096


def _draft_layers(fields: Fields) -> int:
    """Multi-token-prediction layers the checkpoint carries, each one attention layer with KV when it is in use."""
    return fields.optional(*DRAFT_FIELDS, at_least=0) or 0
