"""What do controllers start that a manifest only describes? Typed fields, KServe, KAITO, llm-d.

    vllmConfig: {maxModelLen: 8192}            ->   vllm  --max-model-len 8192
    engine: vllm, extra_args: [--max-model-len, "8192"]     ->   the same
    spec.model.uri: hf://org/name, parallelism.tensor: 2   ->   vllm  --tensor-parallel-size 2, model org/name

A mapping counts as an engine's by its name, or by the flags that its fields are. What a controller adds at run time is
not known.
"""

import re
from collections.abc import Iterator, Mapping

from hybridcalc.architecture.presets import find_preset
from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.environment import declared
from hybridcalc.manifests.fields import (
    engine_of_fields,
    extra_words,
    field_words,
    kebab,
    model_field,
    names_of,
    sizing_fields,
    split_words,
)
from hybridcalc.manifests.placement import hardware
from hybridcalc.manifests.way import Reading, Way, image_of
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Scalar, Sequence, documents
from hybridcalc.shell import TEMPLATE, Setting, Word
from hybridcalc.shell.launch import Launch

_SUFFIX = re.compile(r"-?(config|args|engine-args|server-args|settings|spec|options)$")
"""What follows an engine's name where a field holds its flags."""
GENERIC_FIELDS = frozenset({"engine-kwargs", "engine-args", "engine-config", "server-args"})
MAPS = frozenset(
    {"args", "flags", "arguments", "serve-args", "server-command-options", "parameters", "engine-settings"}
)
"""Fields that hold an engine's flags where they are its flags, or the engine is named beside them."""
MODEL_SECTIONS = frozenset({"model", "model-spec", "model-loading-config", "model-config", "parameters"})
NAMING = frozenset({
    "engine", "backend", "framework", "inference-engine", "inference-backend", "engine-type", "command-type", "runtime",
    "server-type", "serving-engine",
})  # fmt: skip
"""Fields that name an engine."""
KSERVE_OWN = frozenset(
    {"--model-name", "--model-dir", "--backend", "--task", "--model-revision", "--tokenizer-revision"}
)
"""Flags of KServe's Hugging Face server that no engine sees."""
LLM_SERVICE = "LLMInferenceService"
_STORES = ("oci://", "pvc://", "s3://", "gs://")
"""Stores whose paths need not say which model they hold; its name beside them may."""


_OF_VALUES = re.compile(r"\{\{-?\s*\.Values\.([\w.-]+?)\s*-?\}\}")


def engine_near(way: Way, key: str = "") -> str | None:
    """The engine that the nearest mapping names: by a field for it, or by the name of a key."""
    if (own := ENGINES.launchers.named.search(key.lower())) is not None:
        return own[0]
    for name, mapping in zip(reversed(("", *way.keys)), reversed(way.mappings), strict=False):
        said = next((value for entry, value in mapping.entries() if kebab(entry.value) in NAMING), None)
        text = said.value if isinstance(said, Scalar) else ""
        found = ENGINES.launchers.named.search(text.lower()) or ENGINES.launchers.named.search(name.lower())
        if found is not None:
            return found[0]
    sections = (section for mapping in way.mappings if (section := mapping.mapping("model")) is not None)
    keys = (entry.value.lower() for section in sections for entry, _ in section.entries())
    found = next(filter(None, map(ENGINES.launchers.named.search, keys)), None)
    return found[0] if found is not None else None


def own_fields(node: Fields, way: Way) -> Deployment | None:
    """A mapping that names its engine, or the image of one and a model: ``backend: vllm, max_model_len: 8192``."""
    said = next((value for entry, value in node.entries() if kebab(entry.value) in NAMING), None)
    named = said.value.lower() if isinstance(said, Scalar) else ""
    sized = named in ENGINES and sizing_fields(node, named) > 0
    engine: str | None = named
    if not sized:
        engine = ENGINES.launchers.image_engine(image_of(node))
        said = next((value for entry, value in node.entries() if kebab(entry.value) in ("model-url", "model")), None)
    if said is None or engine is None or not (sized or isinstance(said, Scalar)):
        return None
    words = tuple(field_words(node, engine)) if sized else ()
    model = model_field(node) or model_near(node, way)
    if model is None and sizing_fields(node, engine) < 2:
        return None  # a record of something
    return way.deployment(Launch(engine, words, {}, said.source.place(said.begin, said.end), model=model), "values")


def flag_list(key: Scalar, items: Sequence, way: Way) -> Deployment | None:
    """A list of flags in a field of its own, behind those that all share: ``base_args``, ``extra_args`` above it."""
    if not all(isinstance(item, Scalar) for item in items.items):
        return None
    words = list(extra_words(items, ""))
    names = {word.partition("=")[0] for word in words if word.startswith("--")}
    if not names or not words[0].startswith("--"):
        return None
    engine = engine_near(way, key.value) or ENGINES.launchers.engine_of_flags(names)
    if engine is None or not names & ENGINES[engine].flags.by_spelling.keys():
        return None
    shared = [word for held in _shared_lists(items, way) for word in extra_words(held, engine)]
    env = {
        name: setting
        for mapping in way.mappings
        for name, setting, _ in declared(mapping.get("env"))
        if setting is not None
    }
    launch = Launch(engine, (*shared, *words), env, words[0].place, model=model_near(way.mappings[-1], way))
    return way.deployment(launch, "flags")


def _shared_lists(items: Sequence, way: Way) -> Iterator[Sequence]:
    for mapping in way.mappings:
        section = mapping.mapping("model") or mapping
        for field in (section.get("base_args"), mapping.get("extra_args")):
            if isinstance(field, Sequence) and field is not items:
                yield field


def typed(key: Scalar, fields: Fields, way: Way) -> Deployment | None:
    """A deployment whose flags are fields: ``vllmConfig: {...}``, ``sglang: {...}``, ``engine_kwargs: {...}``."""
    name, holder = kebab(key.value), way.mappings[-1]
    engine: str | None = _SUFFIX.sub("", name)
    above = _SUFFIX.sub("", kebab(way.keys[-1])) if way.keys else ""
    if engine not in ENGINES and above in ENGINES and sizing_fields(fields, above):
        engine = above  # sglang_config: {prefill: {...}, decode: {...}}
    elif engine not in ENGINES:
        engine = engine_of_fields(fields, least=1) if name in GENERIC_FIELDS else None
        if name in MAPS:
            engine = engine_of_fields(fields) or engine_near(way)
            engine = engine if engine is not None and sizing_fields(fields, engine) else None
    if engine is None or fields.get("command") is not None:
        return None
    if not any(
        kebab(entry.value) in names_of(engine) or kebab(entry.value) == "extra-args" for entry, _ in fields.entries()
    ):
        return None
    words = list(field_words(fields, engine))
    for entry, value in holder.entries():
        if kebab(entry.value) in ("extra-args", "extra-engine-args", "additional-args"):
            words += extra_words(value, engine)
    model = model_field(fields) or model_near(holder, way)
    if model is None and name in ENGINES and not sizing_fields(fields, engine):
        return None  # a section that is about the engine: how it is traced, where its image is
    env = {
        name: setting
        for mapping in way.mappings
        for name, setting, _ in declared(mapping.get(f"{key.value}_environment"))  # of a role, as srt-slurm has them
        if setting is not None
    }
    return way.deployment(
        Launch(engine, tuple(words), env, key.source.place(key.begin, key.end), model=model), "values"
    )


def model_near(holder: Fields, way: Way | None = None) -> Word | None:
    """The model beside typed fields, or in a model section on the way to them."""
    for mapping in (holder, *(reversed(way.mappings) if way is not None else ())):
        model = model_field(mapping) or _uri(mapping)
        if model is not None:
            return model
        for key, value in mapping.entries():
            if kebab(key.value) in MODEL_SECTIONS and isinstance(value, Fields):
                model = model_field(value) or _uri(value)
                if model is not None:
                    return model
                path = next((v for k, v in value.entries() if kebab(k.value) in ("path", "name", "repo")), None)
                if isinstance(path, Scalar) and (word := path.known()) is not None:
                    return word
    return next(filter(None, map(model_field, way.below())), None) if way is not None else None


def kserve(node: Fields, way: Way, arguments: list[Word], env: Mapping[str, Setting]) -> Launch | None:
    """What KServe starts where the manifest gives arguments alone, or none at all."""
    unnamed = way.kind.startswith(LLM_SERVICE) and "router" not in way.keys
    engine = _controlled(LLM_SERVICE if unnamed else node.string("modelCommand"))
    if engine is not None:
        words = list(_parallelism(way, ENGINES.rows[engine].starter.parallelism))
        place = words[0].place if words else node.source.place(node.begin)
        return Launch(engine, (*words, *arguments), env, arguments[0].place if arguments else place)
    if way.kind in ("InferenceService", "ServingRuntime", "ClusterServingRuntime") and arguments:
        form = f"{node.string('runtime')} {node.string('modelFormat', 'name')}".lower()
        named = ENGINES.launchers.named.search(form)
        engine = named[0] if named is not None else _controlled(*re.findall(r"[a-z]+", form))
        if engine is not None:
            return Launch(engine, tuple(_server_words(arguments)), env, arguments[0].place)
    return None


def _controlled(*names: str) -> str | None:
    """The engine that a controller starts for a kind of document or a format of models; None where there is none."""
    return next((name for name, row in ENGINES.rows.items() if not row.starter.controllers.isdisjoint(names)), None)


def _server_words(arguments: list[Word]) -> Iterator[Word]:
    """Arguments of KServe's own server as its engine's: ``--model_id`` is the model, others it keeps to itself."""
    for word in arguments:
        name, equals, value = word.partition("=")
        plain = name.replace("_", "-")
        if plain == "--model-id" and equals and not word.why:
            yield word.instead(f"--model={value}")
        elif not (equals and plain in KSERVE_OWN):
            yield word


def is_kserve_worker(node: Fields, way: Way) -> bool:
    """Whether a container without command and arguments is one that KServe starts vLLM in."""
    worker = way.keys[-1:] == ("containers",) and node.string("name") in ("main", "kserve-container", *ENGINES)
    return way.kind == LLM_SERVICE and worker and "router" not in way.keys


def _parallelism(way: Way, flags: Mapping[str, str]) -> Iterator[Word]:
    """Flags that KServe makes of ``spec.parallelism``."""
    for mapping in reversed(way.mappings):
        sizes = mapping.mapping("parallelism")
        for key, value in sizes.entries() if sizes is not None else ():
            flag = flags.get(key.value)
            if flag is not None and isinstance(value, Scalar):
                yield Word(flag, key.source, key.begin, key.end)
                yield value.word()
        if sizes is not None:
            return


def _uri(model: Fields, values: Fields | None = None) -> Word | None:
    """The model of ``uri: hf://org/name``, where a chart's ``{{ .Values.x.y }}`` stands for one of its ``values``."""
    for name in ("uri", "storageUri", "modelURL", "url"):
        scalar = model.scalar(name)
        word = None if scalar is None or scalar.empty else scalar.word()
        if word is not None and word.why and values is not None and (match := _OF_VALUES.search(word)) is not None:
            held = values.string(*match[1].split("."))
            filled = re.sub(r"""["']""", "", f"{word[: match.start()]}{held}{word[match.end() :]}")
            word = word.instead(filled) if held and TEMPLATE.search(filled) is None else word
        if word is not None and not word.why and (name != "url" or word.startswith("hf://")):
            return word
    return None


def served(way: Way) -> Word | None:
    """The model that the document itself names: KServe's ``spec.model.uri``, ``storageUri``."""
    for mapping in reversed(way.mappings):
        model = mapping.mapping("model") or mapping.mapping("modelArtifacts")
        found = _uri(model if model is not None else mapping, way.mappings[0])
        if found is not None:
            name = model.scalar("name") if model is not None and found.startswith(_STORES) else None
            word = name.known() if name is not None and find_preset(name.value) is not None else None
            return word or found
    return None


def kaito(node: Fields, reading: Reading) -> Iterator[Deployment]:
    """What KAITO starts for a preset: its controller makes most of the arguments, which stay unknown."""
    engine = _controlled(node.string("kind"))
    if engine is None or node.mapping("inference", "preset") is None:
        return
    preset = node.scalar("inference", "preset", "name")
    data = reading.config_maps(node.string("inference", "config"))
    words: list[Word] = []
    for _, value in data.entries() if data is not None else ():
        for inner in documents(value.source, value.text()) if isinstance(value, Scalar) else ():
            fields = inner.mapping(engine) if isinstance(inner, Fields) else None
            words += field_words(fields, engine) if fields is not None else ()
    at = preset or node
    words.append(Word("the arguments", node.source, at.begin, at.end, why="KAITO's controller makes them"))
    model = preset.known() if preset is not None else None
    where = (node, node.mapping("resource") or node)
    launch = Launch(engine, tuple(words), {}, node.source.place(at.begin, at.end), model=model)
    yield Deployment(node.source, "Workspace", node.string("metadata", "name"), launch, hardware(where))


def additional(env: Mapping[str, Setting]) -> Iterator[Word]:
    """Words of the variables that images append to the engine's own."""
    appended = {name for row in ENGINES.rows.values() for name in row.starter.appended}
    for name, setting in env.items():
        for word in setting.words if name in appended else ():
            yield from split_words(word.chars) if not word.why and word.chars is not None else (word,)
