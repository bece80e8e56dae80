"""MODEL -> Architecture: shipped presets, preset files, config.json files and folders, stdin, the Hugging Face cache.

Presets are YAML (presets/models/*.yaml, one a model). So that naming one costs neither a YAML parser nor pydantic, the
files are compiled into the package by tools/compile_presets.py; a test fails when the two part.
"""

import json
import os
import pkgutil
import re
import sys
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.architecture import RETRAINED, Architecture, AttentionKV, Config, GroupedQueryKV, IndexCache, LatentKV
from hybridcalc.architecture.families import PleConv, family_class
from hybridcalc.errors import HybridcalcError, InputError, ModelNotFound, printable, quoted

LARGEST_CONFIG_BYTES = 8 * 2**20
"""Released config.json files reach 70 KB; quantisation tables can make them larger, never this large."""
LONGEST_NAME = 200
"""Characters of a preset's name, alias or Hugging Face id; an id has 96 at most, and its quantisation a few more."""
LONGEST_SHOWN = 120
"""Characters of a path or name in a message."""
LONGEST_COMMIT = 64
"""Bytes of a commit in the Hugging Face cache: 40 hex digits and a line end."""

_QUANTISED = (
    r"-(fp8|nvfp4|mxfp[48]|bf16|w4a16|w8a8|int[48]|[48]bit|awq|gptq|gguf|bnb|autoround|dynamic|block|quantized)$"
)
_TRAINED = (
    r"-(instruct|base|chat|it|thinking|reasoning|preview|hf|vl|mtp|japanese|jp|[0-9]{2}-[0-9]{4}"
    r"|[0-9]{4}([0-9]{2}){0,2})$"
)
"""How names of quantised releases end, and those of another training; compiled for a name that is none of a preset."""
_TYPE_MIX = r"(?:ud-)?(?:i?q[0-9]\w*|bf16|f16|f32|mxfp4\w*)(?:-[0-9.]+bpw)?"
_GGUF = rf"(?:[-.]{_TYPE_MIX})?(?:-[0-9]{{5}}-of-[0-9]{{5}})?\.gguf$|:{_TYPE_MIX}$|-(?:ud-)?i?q[0-9]_\w+$"
"""How names of GGUF files end, and those of models in a mix of types: ``:Q4_K_M``, ``-UD-Q4_K_XL``."""
_VERSION = re.compile(r"([a-z]+(?:-[a-z]+)*-?[0-9]+)\.([0-9]+)(?=-)")
"""The version that a name begins with: people write 3.6 as 36, 3-6 and 3_6."""


def package_file(name: str) -> bytes:
    """A file that the package carries, by its path in it: ``presets/models.json``. Raises OSError without one.

    The package's own loader is asked, so that a checkout, an installed package and a wheel on sys.path, which is never
    unpacked, have it at the same name.
    """
    content = pkgutil.get_data("hybridcalc", name)
    if content is None:  # a loader that knows no files, which none that finds packages on sys.path is
        raise FileNotFoundError(name)
    return content


@cache
def shipped_presets() -> dict[str, dict[str, Any]]:
    """Every shipped model preset by id, as plain data."""
    loaded: dict[str, dict[str, Any]] = json.loads(package_file("presets/models.json"))
    return loaded


@cache
def _ids_by_alias() -> dict[str, str]:
    ids = {}
    for preset_id, preset in shipped_presets().items():
        for alias in (preset_id, preset["name"], preset.get("hf_id", ""), *preset.get("aliases", ())):
            ids[alias.lower()] = preset_id
    for alias, preset_id in list(ids.items()):
        ids.setdefault(re.sub(r"-a[0-9.]+b$", "", alias), preset_id)
    return ids


@cache
def _ids_by_stem() -> dict[str, str]:
    """The same, and without the dtype that a released id may itself name: ...-30B-A3B-BF16."""
    ids = dict(_ids_by_alias())
    for alias, preset_id in _ids_by_alias().items():
        ids.setdefault(re.sub(_QUANTISED, "", alias), preset_id)
    for alias, preset_id in list(ids.items()):
        if version := _VERSION.match(alias):
            for between in ("", "-"):
                ids.setdefault(f"{version[1]}{between}{version[2]}{alias[version.end() :]}", preset_id)
    return ids


@cache
def _shipped_weights() -> dict[str, dict[str, Any]]:
    """What parameters of shipped presets follow from, by id: ``config`` and ``checkpoints``."""
    loaded: dict[str, dict[str, Any]] = json.loads(package_file("presets/weights.json"))
    return loaded


def shipped_config(preset_id: str) -> dict[str, Any]:
    """Fields of a shipped preset's config.json beside its geometry; none where they are not known."""
    config: dict[str, Any] = _shipped_weights().get(preset_id, {}).get("config", {})
    return config


def shipped_checkpoints(preset_id: str) -> list[dict[str, Any]]:
    """The checkpoints of a shipped preset that are known, in the shape of preset_schema.Checkpoint."""
    listed: list[dict[str, Any]] = _shipped_weights().get(preset_id, {}).get("checkpoints", [])
    return listed


def model_names() -> list[str]:
    """Preset ids in alphabetical order, for listings and shell completion."""
    return sorted(shipped_presets())


def find_preset(name: str) -> tuple[str, str] | None:
    """(preset id, note) for a preset name, alias or Hugging Face id in any case; None when nothing matches.

    An id of a quantised release (``-FP8``, ``-NVFP4``, ``-AWQ`` ...) finds the model it was made from, since
    quantising weights leaves the caches alone; so does one of another training (``-Instruct``, ``-Base``, a date). The
    note says so.
    """
    wanted = name.strip().lower()
    if len(wanted) > LONGEST_NAME:
        return None
    if wanted in _ids_by_alias():
        return _ids_by_alias()[wanted], ""
    ids = _ids_by_stem()
    if wanted in ids:
        return ids[wanted], ""
    ending = re.search(_GGUF, wanted)
    if ending is not None:
        found = find_preset(wanted[: ending.start()])
        return None if found is None else (found[0], f"read as {found[0]}, which has the caches of its GGUF files")
    stripped, why = wanted, "quantised weights have"
    while (match := re.search(_QUANTISED, stripped) or re.search(_TRAINED, stripped)) is not None:
        if match.re.pattern == _TRAINED:
            why = RETRAINED
        stripped = stripped[: match.start()]
        for candidate in (stripped, stripped.rpartition("/")[2]):
            if candidate in ids:
                return ids[candidate], f"read as {ids[candidate]}: {why} the same caches"
    bare = wanted.rpartition("/")[2]
    if bare != wanted and bare in ids and wanted.count("/") == 1:
        return ids[bare], f"read as {ids[bare]}: {printable(name.strip(), LONGEST_SHOWN)} has the same model name"
    if (dashed := re.sub(r"[:_ ]", "-", wanted)) != wanted and (found := find_preset(dashed)) is not None:
        return found
    if wanted.count("/") != 1:
        return None
    listed = ((preset, each["id"]) for preset in _shipped_weights() for each in shipped_checkpoints(preset))
    return next(((preset, "") for preset, checkpoint in listed if checkpoint.lower() == wanted), None)


def preset_begun(name: str) -> str | None:
    """The preset whose name a longer name begins with, as of an own training or a packing: the longest there is."""
    wanted = re.sub(r"[:_ ]", "-", name.lower())
    begun = (alias for alias in _ids_by_stem() if wanted.startswith(f"{alias}-") and any(map(str.isdigit, alias)))
    longest = max(begun, key=len, default=None)
    return _ids_by_stem()[longest] if longest is not None else None


def names_gguf(name: str) -> bool:
    """Whether a name is one of GGUF files: ``NAME.gguf``, ``ORG/NAME-GGUF``, ``MODEL:Q4_K_M``."""
    return re.search(rf"{_GGUF}|-gguf$", name.strip().lower()) is not None


def named_as_quantised(name: str) -> bool:
    """Whether a name ends as those of quantised releases do."""
    return re.search(_QUANTISED, name.strip().lower()) is not None


def plain(model: Architecture) -> bool:
    """Whether a model is meant as its preset has it: by no config of its own, and by no name of a quantised release."""
    return model.config is None and not named_as_quantised(model.asked)


class AtEnd(NamedTuple):
    """A preset that a path names at its end: its id, a note that says so, and the part of the path that names it."""

    preset: str
    note: str
    name: str


def in_hub_cache(path: str) -> str:
    """The id of the model whose folder of the Hugging Face cache a path is, ``models--ORG--NAME``; else the path."""
    match = re.search(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/snapshots/[^/]*)?/?$", path)
    return f"{match[1]}/{match[2]}" if match is not None else path


def preset_at_end(path: str) -> AtEnd | None:
    """The preset that the last part of a path names, or the last two: ``/models/Kimi-K3``."""
    both = "/".join(in_hub_cache(path.replace("\\", "/")).rstrip("/").split("/")[-2:])
    found, last = find_preset(both), both.rpartition("/")[2]
    if found is None:
        return None
    note = f"{printable(path[:60])} is taken for {found[0]}, as its last part is named"
    return AtEnd(found[0], note, last if found[1] and find_preset(last) else both)


def is_path(text: str) -> bool:
    """Whether a model is named by where it lies."""
    if re.match(r"[A-Za-z]:?[^/]*\\|[A-Za-z]:/|\.{0,2}\\", text):  # of Windows
        return True
    return text.startswith(("/", "./", "../", "~", "$", "pvc://", "s3://", "gs://", "oci://", "file://"))


def load_model(name_or_path: str) -> Architecture:
    """Architecture of a preset name or alias, a preset YAML, a config.json, a folder holding one, or ``-`` (stdin).

    ``org/name`` that is no preset is looked up in the local Hugging Face cache, offline. Raises ModelNotFound with
    the nearest preset names, InputError or ConfigError when a file cannot be read or understood.
    """
    if name_or_path == "-":
        return _from_config(_read_bounded(sys.stdin.buffer, "stdin"), "stdin")
    if not name_or_path.strip() or "\0" in name_or_path:
        raise ModelNotFound("MODEL is empty", fix="name a preset (`hybridcalc models`) or a config.json")
    try:
        path = Path(name_or_path).expanduser()
    except RuntimeError:
        raise ModelNotFound(f"{printable(name_or_path, LONGEST_SHOWN)}: no such home") from None
    try:
        if (path.suffix.lower() == ".gguf" or path.name.startswith("sha256-")) and os.path.lexists(path):
            from hybridcalc.architecture.gguf_model import load_gguf

            return load_gguf(path)
        if path.suffix in (".json", ".yaml", ".yml") or name_or_path.startswith(("./", "../", "/", "~")):
            return _from_path(path)
        if os.sep in name_or_path and os.path.lexists(path / "config.json"):  # as the engines do: a local folder wins
            return _from_path(path)
        found = find_preset(name_or_path)
        if found is not None and not (found[1] and _may_fetch(name_or_path)):
            return from_preset(shipped_presets()[found[0]], reading=found[1], asked=name_or_path.strip())
        if os.path.lexists(path):
            return _from_path(path)
        cached = _in_hub_cache(name_or_path)
        if cached is not None:
            return _from_path(cached, name=name_or_path)
        if _may_fetch(name_or_path):
            return _fetched(name_or_path)
    except OSError as error:
        raise InputError(
            f"{printable(name_or_path, LONGEST_SHOWN)}: {(error.strerror or 'cannot be read').lower()}"
        ) from None
    raise _not_found(name_or_path)


@lru_cache(maxsize=64)
def model_if_known(path: str) -> Architecture | None:
    """The model of a path or a name that something else mentions, such as a draft; None where it is not known."""
    try:
        return None if path == "-" else load_model(path)
    except HybridcalcError:
        return None


def from_preset(preset: dict[str, Any], *, reading: str = "", asked: str = "") -> Architecture:
    """Architecture of a checked preset (plain data in the shape of preset_schema.Preset); ``asked``: by which name."""
    attention, state = _attention(preset.get("attention")), preset.get("state")
    window = preset.get("window")
    window_attention = None
    if window is not None and window.get("kv_heads"):
        window_attention = GroupedQueryKV(window["kv_heads"], window["head_dim"], window["head_dim"])
    return Architecture(
        name=preset["id"],
        architecture=preset["architecture"],
        layers="".join(preset["layers"].split()),
        state=family_class(preset["family"]).read(state) if state is not None else None,
        attention=attention,
        window=window["tokens"] if window else None,
        window_attention=window_attention,
        ple_conv=PleConv(**preset["ple_conv"]) if "ple_conv" in preset else None,
        num_attention_heads=preset.get("num_attention_heads"),
        hidden_size=preset.get("hidden_size"),
        max_context=preset.get("max_context"),
        model_dtype=preset.get("model_dtype", "bfloat16"),
        declared_ssm_dtype=preset.get("mamba_ssm_dtype"),
        declared_ssm_cache_dtype=preset.get("mamba_ssm_cache_dtype"),
        chunk_size=preset.get("chunk_size"),
        draft_layers=preset.get("draft_layers", 0),
        multimodal=preset.get("multimodal", False),
        hf_id=preset.get("hf_id"),
        source=preset["source"],
        confidence=preset["confidence"],
        notes=preset.get("notes", ""),
        reading=reading,
        asked=asked,
    )


def _attention(fields: dict[str, Any] | None) -> AttentionKV | None:
    if fields is None:
        return None
    if fields["kind"] == "mla":
        index = fields.get("indexer")
        cache_of_keys = IndexCache(index["head_dim"], index.get("kpool", 1)) if index else None
        return LatentKV(fields["kv_lora_rank"], fields["qk_rope_head_dim"], cache_of_keys)
    return GroupedQueryKV(fields["kv_heads"], fields["head_dim"], fields.get("v_head_dim") or fields["head_dim"])


def _from_adapter(path: Path) -> Architecture:
    """The model that a LoRA adapter is for: it has the caches, the adapter adds none."""
    where = printable(str(path), LONGEST_SHOWN)
    with path.open("rb") as stream:
        base = _parsed(_read_bounded(stream, where), where).get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip():
        raise InputError(f"{where}: an adapter that names no base model", fix="name the model that it is for")
    if (Path(base) / path.name).exists():
        raise InputError(f"{where}: its base {quoted(base)} is an adapter itself", fix="name the model that it is for")
    model = load_model(base)
    return model._replace(reading=f"an adapter of {printable(base, LONGEST_SHOWN)}, which has the caches")


def _from_path(path: Path, *, name: str | None = None) -> Architecture:
    if path.is_dir():
        adapter, path = path / "adapter_config.json", path / "config.json"
        if not path.exists() and adapter.is_file():
            return _from_adapter(adapter)
    where = printable(str(path), LONGEST_SHOWN)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{where}: no such file") from None
    if not path.is_file():
        raise InputError(f"{where}: not a regular file")
    with path.open("rb") as stream:
        data = _read_bounded(stream, where)
    if path.suffix in (".yaml", ".yml"):
        from hybridcalc.architecture.preset_schema import read_preset

        preset = read_preset(_decoded(data, where), where)
        return from_preset(preset)._replace(config=Config(preset.get("config", {})))
    config = _parsed(data, name or where)
    beside = path.parent / "hf_quant_config.json"
    if path.name == "config.json" and beside.is_file():
        with beside.open("rb") as stream:
            config["hf_quant_config"] = _parsed(_read_bounded(stream, str(beside)), str(beside))
    return Architecture.from_hf_config(config, name=name or where)._replace(asked=str(path))


def _read_bounded(stream: Any, where: str) -> bytes:
    data: bytes = stream.read(LARGEST_CONFIG_BYTES + 1)
    if len(data) > LARGEST_CONFIG_BYTES:
        raise InputError(f"{where}: larger than {LARGEST_CONFIG_BYTES // 2**20} MiB, not a model config")
    return data


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where}: not a text file (UTF-8)") from None


def _from_config(data: bytes, where: str) -> Architecture:
    return Architecture.from_hf_config(_parsed(data, where), name=where)


def _parsed(data: bytes, where: str) -> dict[str, Any]:
    """A config file as plain data. Raises InputError for what is none."""
    text = _decoded(data, where)
    try:
        config = json.loads(text, parse_constant=_constant, object_pairs_hook=partial(_object, where))
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not readable as JSON, line {error.lineno}: {error.msg.lower()}") from None
    except RecursionError:
        raise InputError(f"{where}: not readable as JSON, nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: not readable as JSON, {str(error)[:80].lower()}") from None
    if not isinstance(config, dict):
        raise InputError(f"{where}: a model config is a JSON object")
    return config


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, refused where it states a key twice: the reader of a file cannot know which one was meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"{where}: key {quoted(twice)} appears twice", fix="keep the one that is meant")
    return fields


def _constant(constant: str) -> None:
    """A number without an end, as released configs state the limit of a time step: no bound at all."""
    if constant == "NaN":
        raise ValueError(f"{constant} is not a number of a config")


def _in_hub_cache(name: str) -> Path | None:
    """config.json of ``org/name`` in the local Hugging Face cache: the snapshot of main, else the newest one.

    Raises ModelNotFound where refs/main is there and names no commit: it may hold anything, or be no file at all.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.\-]+/[A-Za-z0-9_.\-]+", name) or ".." in name:
        return None
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    model = hub / ("models--" + name.replace("/", "--"))
    main = model / "refs" / "main"
    if os.path.lexists(main):
        commit = _commit(main)
        if commit is None:
            raise ModelNotFound(
                f"{printable(str(main), LONGEST_SHOWN)}: no commit of a Hugging Face cache",
                fix=f"download {name} again, or give a config.json or its folder",
            )
        snapshots = [model / "snapshots" / commit]
    else:
        snapshots = sorted((model / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path / "config.json" for path in snapshots if (path / "config.json").is_file()), None)


def _commit(path: Path) -> str | None:
    """The commit a ref names; None for what is no regular file of at most LONGEST_COMMIT bytes of hex digits."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        text = stream.read(LONGEST_COMMIT + 1)
    commit = text.strip()
    return commit.decode() if len(text) <= LONGEST_COMMIT and re.fullmatch(rb"[0-9a-fA-F]+", commit) else None


def _may_fetch(name: str) -> bool:
    """Whether a name may be looked up on the Hub: an id, where downloads are allowed."""
    if not os.environ.get("HYBRIDCALC_DOWNLOAD") or "/" not in name:
        return False
    from hybridcalc.architecture.hub import ID, wanted

    return wanted() and ID.fullmatch(name) is not None and ".." not in name


def _fetched(name: str) -> Architecture:
    from hybridcalc.architecture.hub import fetch

    path, sizes = fetch(name)
    model = _from_path(path, name=name)
    return model._replace(config=Config({**(model.config or {}), "checkpoint_sizes": sizes})) if sizes else model


def _not_found(name: str) -> ModelNotFound:
    import difflib

    ids, typed = _ids_by_stem(), name.lower()[:80]
    begun = [alias for alias in ids if len(typed) > 2 and alias.startswith(typed)]
    near = dict.fromkeys(ids[alias] for alias in (*begun, *difflib.get_close_matches(typed, ids, n=6, cutoff=0.5)))
    nearest = f"nearest: {', '.join(list(near)[:3])}" if near else "`hybridcalc models` lists the presets"
    or_fetched = ", or add --download" if "/" in name else ""
    if name.lower().endswith(".gguf"):
        return ModelNotFound(f"{printable(name, LONGEST_SHOWN)}: no such file", fix="nor does its name tell a preset")
    return ModelNotFound(
        f"no model {quoted(name, LONGEST_SHOWN)}", fix=f"{nearest}; or give a config.json or its folder{or_fetched}"
    )
