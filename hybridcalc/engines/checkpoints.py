"""Which released weights are meant, and how are they quantised?

As a config.json or the hf_quant_config.json beside it says, as a preset lists its checkpoints, as a launch asks for
(--quantization), or as the name says, which tells a kind of number and not which modules have it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture, Config
from hybridcalc.architecture.presets import named_as_quantised, plain, shipped_checkpoints, shipped_presets
from hybridcalc.findings import Finding, Rule

if TYPE_CHECKING:
    from hybridcalc.architecture.quantization import Quantization


class Stored(NamedTuple):
    """What is known of a checkpoint: its name, how it is quantised, sizes as published or read, and from where.

    ``marked``: how it is quantised by its name alone, where nothing else says.
    """

    name: str
    quantization: "Quantization | None"
    source: str
    bytes: int | None = None
    parameters: int | None = None
    scale_bytes: int | None = None
    marked: str = ""
    findings: tuple[Finding, ...] = ()


RULES = (
    Rule("HC090", "warning", "a quantised checkpoint whose layout is not known",
         "Its name says FP8, NVFP4 or the like, and neither a config nor a preset says which modules are quantised: "
         "from every linear layer to the experts alone.", "quantization_config, hf_quant_config.json"),
    Rule("HC091", "warning", "--quantization is not what the checkpoint has",
         "A checkpoint that is quantised is loaded as it is stored; an engine refuses a flag that says another kind.",
         "vLLM config/model.py, SGLang configs/model_config.py: _verify_quantization"),
)  # fmt: skip
"""Rules about checkpoints, of any engine."""


_KINDS = "fp8|nvfp4|mxfp[48]|fp4|w4a16|w8a8|w8a16|int[48]|[48]bit|awq|gptq|gguf|autoround|bnb|quantized"


def quantized_by_name(name: str) -> str:
    """What a checkpoint's name says of its quantisation (``fp8``, ``Q4_K_M``, ...); empty where it says nothing."""
    if ":" in name or "gguf" in name:
        from hybridcalc.architecture.quantization_names import mix_of

        if (mix := mix_of(name)) is not None:
            return mix
    found = re.search(f"(?:^|[-_.])({_KINDS})(?:$|[-_.])", name.rpartition("/")[2].lower())
    return found[1] if found else ""


def checkpoint_of(model: Architecture, quantization: str | None) -> Stored:
    """The checkpoint that is meant: as its config says, as a preset lists it, or as its name says.

    ``quantization`` is what the launch asks for; a checkpoint that is quantised itself stays as it is, and a finding
    says where the two disagree. Raises InputError.
    """
    stored = _own(model, model.config) if model.config is not None else _released(model)
    if quantization and stored.quantization is not None:
        stored = stored._replace(findings=_disagreeing(stored.name, stored.quantization, quantization))
    if quantization and stored.quantization is None:
        from hybridcalc.architecture.quantization_names import named_quantization

        asked = named_quantization(quantization)
        source = f"{stored.source}; quantised as {quantization}"
        return stored._replace(quantization=asked, marked="", bytes=None, source=source)
    if stored.quantization is not None and stored.quantization.method == "fp8" and stored.scale_bytes is None:
        return stored._replace(scale_bytes=2 if model.architecture.startswith("Qwen") else None)
    return stored


def how_stored(model: Architecture, quantization: str | None) -> str:
    """The method by which the checkpoint that is meant is quantised; empty where nothing says. Raises InputError."""
    listed = _listed(model) if model.config is None and not quantization else None
    if listed is not None:
        return str(listed.get("method", ""))
    stored = checkpoint_of(model, quantization)
    return stored.quantization.method if stored.quantization is not None else stored.marked


def quantised_releases(model: Architecture) -> list[str]:
    """Other checkpoints of a preset that are known to be quantised, as listed; none for a model that is no preset's."""
    if model.config is not None:
        return []
    listed = [each["id"] for each in shipped_checkpoints(model.name) if each.get("quantization")]
    aliases = [name for name in shipped_presets()[model.name].get("aliases", ()) if "/" in name]
    return [name for name in dict.fromkeys([*listed, *filter(named_as_quantised, aliases)]) if name != model.asked]


def _disagreeing(name: str, found: "Quantization", asked: str) -> tuple[Finding, ...]:
    from hybridcalc.architecture.quantization_names import agrees

    if agrees(asked, found):
        return ()
    rule, said = RULES[1], f"{name} is quantised as {found.method}, not as --quantization {asked} says"
    return (Finding(rule.id, rule.severity, f"{said}: counted as it is stored", fix="leave out --quantization"),)


def name_to_load(model: Architecture) -> str:
    """What a launch line calls the model: the folder or checkpoint that was asked for, else that of its preset."""
    if model.config is not None:
        return model.asked.removesuffix("/config.json") or model.hf_id or model.name
    listed = _listed(model)
    name = listed["id"] if listed is not None else model.asked or model.hf_id or model.name
    if "/" in name or (listed is None and ":" not in name and _mark(model)):
        return name
    return model.hf_id or model.name


def cut_in_blocks(model: Architecture, quantization: str | None) -> bool:
    """Whether its weights may be quantised in blocks that no rank may cut: of 8-bit floats, or of who knows what."""
    if model.config is not None or quantization:
        return True
    listed = _listed(model)
    said = str(listed.get("quantization")) if listed is not None else ""
    return "fp8" in said or "'block'" in said if listed is not None else bool(_mark(model))


def kv_cache_said(model: Architecture, *, modelopt: bool = False) -> str | None:
    """The KV format that the checkpoint's own quantisation names, "" for none; None where it is not known.

    ``modelopt``: nothing but what ModelOpt wrote counts.
    """
    if model.config is not None:
        return kv_cache_format(model.config, modelopt=modelopt)
    if plain(model):
        return ""
    listed = next((each for each in shipped_checkpoints(model.name) if each["id"].lower() == model.asked.lower()), None)
    if listed is None:
        return None
    return kv_cache_format({"quantization_config": listed.get("quantization")}, modelopt=modelopt)


def mixed_precision(model: Architecture, quantization: str | None) -> bool:
    """Whether ModelOpt quantised the layers of a checkpoint each in its own way."""
    given = model.config.get("quantization_config") if model.config is not None else None
    if quantization == "modelopt_mixed" or not isinstance(given, Mapping):
        return quantization == "modelopt_mixed"
    inner = given.get("quantization", given)
    algorithm = str(inner.get("quant_algo") or "").upper() if isinstance(inner, Mapping) else ""
    return algorithm == "MIXED_PRECISION" and str(given.get("quant_method") or "").lower().startswith("modelopt")


def kv_cache_open(title: str, dtype: str) -> str:
    """That --kv-cache-dtype auto was taken for ``dtype`` although a checkpoint of a quantised name may say other KV."""
    taken = f"--kv-cache-dtype auto is taken for {dtype}"
    return f"{taken}: whether the checkpoint says FP8 KV, which {title} follows, is open"


def kv_cache_format(config: Mapping[str, Any], *, modelopt: bool = False) -> str:
    """What a checkpoint says of its KV cache: ``fp8``, ``nvfp4``, or nothing.

    ``kv_cache_scheme`` of static 8-bit floats (compressed-tensors, ModelOpt), or ModelOpt's ``kv_cache_quant_algo``.
    """
    given = config.get("quantization_config") or config.get("hf_quant_config")
    if not isinstance(given, Mapping):
        return ""
    inner, producer = given.get("quantization"), given.get("producer")
    written = str(given.get("quant_method") or "").startswith("modelopt") or isinstance(inner, Mapping)
    if modelopt and not written and (not isinstance(producer, Mapping) or producer.get("name") != "modelopt"):
        return ""
    for said in (given, *([inner] if isinstance(inner, Mapping) else [])):
        scheme, algorithm = said.get("kv_cache_scheme"), str(said.get("kv_cache_quant_algo") or "").lower()
        if isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float"):
            return "" if scheme.get("dynamic") else "fp8"
        if algorithm in ("fp8", "nvfp4"):
            return algorithm
    return ""


def _own(model: Architecture, config: Config) -> Stored:
    """The checkpoint that a config.json is of: with sizes as the folder it lies in tells them."""
    from hybridcalc.architecture.quantization_config import read_quantization
    from hybridcalc.architecture.safetensors import Sizes, read_folder

    found = read_quantization(config)
    path = Path(model.asked) if model.asked else None
    sizes = read_folder(path if path.is_dir() else path.parent) if path is not None else None
    fetched = config.get("checkpoint_sizes")
    if sizes is None and isinstance(fetched, dict):
        sizes = Sizes(fetched["bytes"], None, fetched["source"])
    marked = quantized_by_name(model.name.removesuffix("/config.json")) if found is None else ""
    source = "closed form of its config.json"
    if sizes is None:
        return Stored(model.name, found, source, marked=marked)
    if marked and sizes.parameters is not None and sizes.bytes == 2 * sizes.parameters:
        marked = ""  # its tensors are of 16 bits, whatever it is called
    return Stored(model.name, found, f"{source}, {sizes.source}", sizes.bytes, sizes.parameters, marked=marked)


def _listed(model: Architecture) -> dict[str, Any] | None:
    """The checkpoint that a preset lists of the name which was asked for, else the model's own; None for no such."""
    wanted = (model.hf_id or "").lower() if _is_own(model) else model.asked.lower()
    bare = None if "/" in wanted else wanted
    for each in shipped_checkpoints(model.name):
        name = each["id"].lower()
        if name == wanted or name.rpartition("/")[2] == bare:
            return each
    return None


def _is_own(model: Architecture) -> bool:
    """Whether a preset was asked for by its own name, or by none."""
    return model.asked.lower() in ("", model.name.lower())


def _mark(model: Architecture) -> str:
    """What the name that was asked for says of quantisation; of the model itself, its own id."""
    return quantized_by_name(((model.hf_id or "") if _is_own(model) else model.asked).lower())


def _released(model: Architecture) -> Stored:
    """A checkpoint of a preset: that of the name which was asked for, else the model's own."""
    listed, source = _listed(model), f"preset {model.name}, closed form"
    if listed is None:
        others = (each.get("parameters") for each in shipped_checkpoints(model.name) if "quantization" not in each)
        name = model.asked or model.hf_id or model.name
        return Stored(name, None, source, parameters=next(others, None), marked=_mark(model))
    found = None
    if listed.get("quantization"):
        from hybridcalc.architecture.quantization_config import read_quantization

        found = read_quantization({"quantization_config": listed["quantization"]})
    scale = 2 if listed.get("scale_dtype") == "bfloat16" else None
    return Stored(listed["id"], found, source, listed.get("bytes"), listed.get("parameters"), scale)
