"""Which engines do Kubernetes documents start? Deployments, sets, jobs, RayService, Dynamo, KServe, custom resources.

Every mapping with a command or arguments is a container, whatever the kind, so that kinds nobody has named yet are read
as well; its environment comes from ``env``, ``envFrom`` and the ConfigMaps of the set. Custom resources that carry
flags in typed fields (``vllmConfig.maxModelLen``) are read by their names. GPUs come from resource limits and the
labels that select nodes. Left out: what an operator adds at run time.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hybridcalc.manifests.containers import KUBERNETES, launches, resolved_words
from hybridcalc.manifests.fields import (
    engine_of_fields,
    extra_words,
    field_words,
    kebab,
    model_field,
    names_of,
    split_words,
)
from hybridcalc.manifests.launches import Found
from hybridcalc.manifests.placement import hardware, replicas
from hybridcalc.manifests.records import Deployment
from hybridcalc.manifests.script import read_script
from hybridcalc.manifests.source import AnyWord, Setting, Unknown, Word
from hybridcalc.manifests.variables import Outside
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Scalar, Sequence, documents

ConfigMaps = Callable[[str], Fields | None]
"""The ``data`` of a ConfigMap of the same set, by name."""
PASSED_OVER = frozenset({
    "exec", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "initContainers", "status",
    "ephemeralContainers",
})  # fmt: skip
UNNAMED = frozenset({
    "spec", "template", "containers", "services", "extraPodSpec", "mainContainer", "components", "podTemplate",
    "leaderWorkerTemplate", "predictor", "model", "jobTemplate", "args", "applications",
})  # fmt: skip
"""Keys that say nothing in a deployment's name."""
LAUNCHER = re.compile(
    r"\bsglang\.launch_server\b|\bsglang\s+serve\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b|\bdynamo\.(sglang|vllm)\b"
)
"""A text that may start an engine."""
PROSE = frozenset({"description", "annotations", "message", "notes", "summary", "title", "name", "doc", "comment"})
NO_WORKER = re.compile(
    r"front-?end|router|planner|epp|gateway|scheduler|ingress|operator|proxy|benchmark", re.IGNORECASE
)
"""Components beside the workers, by type or name; only arguments without a launcher are judged by it."""
ENGINE_FIELDS = re.compile(r"(sglang|vllm)(-?(config|args|engine-args|server-args|settings|spec|options))?$")
GENERIC_FIELDS = frozenset({"engine-kwargs", "engine-args", "engine-config", "server-args"})
ADDITIONAL = {"VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "SGLANG_EXTRA_ARGS"}


class Way(NamedTuple):
    """The way from a document to a node: keys and mappings, the document first."""

    keys: tuple[str, ...]
    mappings: tuple[Fields, ...]

    def down(self, key: str, mapping: Fields) -> "Way":
        """One step on."""
        return Way((*self.keys, key), (*self.mappings, mapping))


class Reading(NamedTuple):
    """What all documents of a file share."""

    outside: Outside
    config_maps: ConfigMaps
    seen: set[int]
    used_scripts: set[str]


def read_documents(nodes: list[Node], outside: Outside, config_maps: ConfigMaps) -> Iterator[Deployment]:
    """Every deployment of the documents of a file."""
    own = {name: data for node in nodes if isinstance(node, Fields) for name, data in config_map(node)}

    def lookup(name: str) -> Fields | None:
        if name.startswith("key:"):
            return next((data for data in own.values() if data.get(name[4:]) is not None), None) or config_maps(name)
        return own.get(name) or config_maps(name)

    reading = Reading(outside, lookup, set(), set())
    for node in _flattened(nodes):
        if node.string("kind") == "Workspace" and node.mapping("inference", "preset") is not None:
            yield _kaito(node, reading)
    for node in _flattened(nodes):
        if node.string("kind") not in ("ConfigMap", "Secret"):
            yield from _walk(node, Way((), (node,)), reading)
    for node in _flattened(nodes):
        for name, data in config_map(node):
            yield from _scripts(name, data, reading)


def config_map(node: Fields) -> Iterator[tuple[str, Fields]]:
    """Name and data of a ConfigMap document."""
    data = node.get("data")
    if node.string("kind") == "ConfigMap" and isinstance(data, Fields):
        yield node.string("metadata", "name"), data


def _flattened(nodes: list[Node]) -> Iterator[Fields]:
    """Documents, those of a ``kind: List`` one by one."""
    for node in nodes:
        if isinstance(node, Fields):
            if node.string("kind") == "List":
                yield from (item for item in node.items("items") if isinstance(item, Fields))
            else:
                yield node


def _walk(node: Fields, way: Way, reading: Reading) -> Iterator[Deployment]:
    if id(node) in reading.seen:
        return
    reading.seen.add(id(node))
    taken: set[str] = set()
    if _is_container(node) or _is_kserve_worker(node, way):
        yield from _container(node, way, reading)
        taken = {"command", "args", "env"}
    for key, value in node.entries():
        if key.value in PASSED_OVER or key.value in taken:
            continue
        if isinstance(value, Scalar) and key.value == "serveConfigV2":
            for inner in documents(value.source, value.text()):
                if isinstance(inner, Fields):
                    yield from _walk(inner, way.down(key.value, inner), reading)
            continue
        for child in value.items if isinstance(value, Sequence) else [value]:
            if isinstance(child, Scalar) and key.value not in PROSE and LAUNCHER.search(child.value):
                yield from _loose_script(child, node, way, reading)
            if isinstance(child, Fields):
                typed = _typed(key, child, node, way)
                if typed is not None:
                    yield typed
                yield from _walk(child, way.down(key.value, child), reading)


def _loose_script(script: Scalar, node: Fields, way: Way, reading: Reading) -> Iterator[Deployment]:
    """Launches of a script in a field of its own: ``run: |`` of a task or a workflow."""
    env = {name: setting for mapping in way.mappings for name, setting in _plain_env(mapping)}
    for launch in read_script(script.text(), env, reading.outside):
        yield Deployment(
            node.source, way.mappings[0].string("kind") or "script", _name(way, node), launch.engine, launch.words,
            launch.env, launch.place, hardware((*way.mappings, node)), None, None, replicas(way.mappings),
        )  # fmt: skip


def _plain_env(mapping: Fields) -> Iterator[tuple[str, Setting]]:
    for name in ("envs", "env"):
        held = mapping.mapping(name)
        for key, value in held.entries() if held is not None else ():
            if isinstance(value, Scalar) and not value.empty:
                yield key.value, Setting((value.word(),))


def _is_container(node: Fields) -> bool:
    return any(isinstance(node.get(name), Sequence | Scalar) for name in ("command", "args"))


def _container(node: Fields, way: Way, reading: Reading) -> Iterator[Deployment]:
    env = environment(node, reading)
    if "leaderWorkerTemplate" in way.keys and "LWS_GROUP_SIZE" not in env:
        size = next(
            (m.scalar("leaderWorkerTemplate", "size") for m in way.mappings if m.get("leaderWorkerTemplate")), None
        )
        word = size.word() if size is not None else None
        if isinstance(word, Word):
            env["LWS_GROUP_SIZE"] = Setting((word,))
    lookup = env.get
    command = resolved_words(node.get("command"), KUBERNETES, lookup)
    arguments = resolved_words(node.get("args"), KUBERNETES, lookup, command)
    image = node.string("image")
    bare = not any(
        NO_WORKER.search(text)
        for text in (_component(way), node.string("name"), way.mappings[0].string("metadata", "name"))
    )
    found = launches(command, arguments, env, reading.outside, image=image, bare=bare)
    kserve = _kserve(node, way, arguments, env) if not command and (not found or not found[0].program) else None
    if kserve is not None:
        found = [kserve]
    if not found:
        found = _mounted_script([*command, *arguments], env, reading)
    for launch in found:
        words = (*_with_config_files(launch.words, launch.engine, reading), *_additional(env))
        yield Deployment(
            node.source, way.mappings[0].string("kind") or "container", _name(way, node), launch.engine, words,
            launch.env, launch.place, hardware(way.mappings), _served(way), None, replicas(way.mappings),
        )  # fmt: skip


def environment(node: Fields, reading: Reading) -> dict[str, Setting]:
    """The variables a container gets: ``envFrom`` first, then ``env``, which may refer to those before it."""
    env: dict[str, Setting] = {}
    for source in node.items("envFrom"):
        reference = source.mapping("configMapRef") if isinstance(source, Fields) else None
        data = reading.config_maps(reference.string("name")) if reference is not None else None
        prefix = source.string("prefix") if isinstance(source, Fields) else ""
        for key, value in data.entries() if data is not None else ():
            if isinstance(value, Scalar):
                word = value.word()
                env[prefix + key.value] = Setting((word,))
    plain = node.mapping("env")
    for key, value in plain.entries() if plain is not None else ():
        if isinstance(value, Scalar):
            word = value.word()
            env[key.value] = Setting((word,))
    for entry in node.items("env"):
        if isinstance(entry, Fields):
            env[entry.string("name")] = _variable(entry, env, reading)
    return env


def _variable(entry: Fields, env: Mapping[str, Setting], reading: Reading) -> Setting:
    value = entry.get("value")
    if not isinstance(value, Scalar):
        value = None
    if value is not None and "$" not in value.value:
        word = value.word()
        return Setting((word,))
    if value is not None:
        holder = Sequence(value.source, value.begin, value.end, None)
        holder.items.append(value)
        words = resolved_words(holder, KUBERNETES, env.get)
        return Setting(tuple(words), "", words[0].place if words else None)
    place = entry.source.place(entry.begin, entry.end)
    reference = entry.mapping("valueFrom", "configMapKeyRef")
    if reference is not None:
        data = reading.config_maps(reference.string("name"))
        found = data.scalar(reference.string("key")) if data is not None else None
        if found is not None:
            word = found.word()
            return Setting((word,))
        return Setting((), f"ConfigMap {reference.string('name')[:40]} is not among the files", place)
    if entry.get("valueFrom") is not None:
        return Setting((), "the cluster decides it", place)
    return Setting((Word("", entry.source, entry.begin, entry.begin),), "", place)


def _typed(key: Scalar, fields: Fields, holder: Fields, way: Way) -> Deployment | None:
    """A deployment whose flags are fields: ``vllmConfig: {...}``, ``sglang: {...}``, ``engine_kwargs: {...}``."""
    name = kebab(key.value)
    named = ENGINE_FIELDS.fullmatch(name)
    engine = named[1] if named is not None else engine_of_fields(fields) if name in GENERIC_FIELDS else None
    if engine is None or (_is_container(fields) and fields.get("command") is not None):
        return None
    if not any(
        kebab(entry.value) in names_of(engine) or kebab(entry.value) == "extra-args" for entry, _ in fields.entries()
    ):
        return None
    words = list(field_words(fields, engine))
    for entry, value in holder.entries():
        if kebab(entry.value) in ("extra-args", "extra-engine-args", "additional-args"):
            words += extra_words(value, engine)
    model = model_field(fields) or _model_near(holder, way)
    return Deployment(
        key.source, way.mappings[0].string("kind") or "values", _name(way, holder), engine, tuple(words), {},
        key.source.place(key.begin, key.end), hardware(way.mappings), model, None, replicas(way.mappings),
    )  # fmt: skip


def _model_near(holder: Fields, way: Way) -> Word | None:
    """The model beside typed fields, or in a model section on the way to them."""
    for mapping in (holder, *reversed(way.mappings)):
        model = model_field(mapping)
        if model is not None:
            return model
        for key, value in mapping.entries():
            if kebab(key.value) in ("model", "model-spec", "model-loading-config", "model-config") and isinstance(
                value, Fields
            ):
                model = model_field(value) or _uri(value)
                if model is not None:
                    return model
                path = next((v for k, v in value.entries() if kebab(k.value) in ("path", "name", "repo")), None)
                word = path.word() if isinstance(path, Scalar) else None
                if isinstance(word, Word):
                    return word
    return None


def _kserve(node: Fields, way: Way, arguments: list[AnyWord], env: Mapping[str, Setting]) -> Found | None:
    """What KServe starts where the manifest gives arguments alone, or none at all."""
    kind = way.mappings[0].string("kind")
    if (kind.startswith("LLMInferenceService") and "router" not in way.keys) or node.string(
        "modelCommand"
    ) == "vllmServe":
        words = list(_parallelism(way))
        place = words[0].place if words else node.source.place(node.begin)
        return Found("vllm", (*words, *arguments), dict(env), arguments[0].place if arguments else place)
    if kind in ("InferenceService", "ServingRuntime", "ClusterServingRuntime") and arguments:
        said = f"{node.string('runtime')} {node.string('modelFormat', 'name')}".lower()
        engine = next((name for name in ("sglang", "vllm") if name in said), "vllm" if "huggingface" in said else None)
        return Found(engine, tuple(arguments), dict(env), arguments[0].place) if engine is not None else None
    return None


def _is_kserve_worker(node: Fields, way: Way) -> bool:
    """Whether a container without command and arguments is one that KServe starts vLLM in."""
    kind = way.mappings[0].string("kind")
    worker = way.keys[-1:] == ("containers",) and node.string("name") in ("main", "vllm", "kserve-container")
    return kind == "LLMInferenceService" and worker and "router" not in way.keys


def _parallelism(way: Way) -> Iterator[AnyWord]:
    """Flags that KServe makes of ``spec.parallelism``."""
    for mapping in reversed(way.mappings):
        sizes = mapping.mapping("parallelism")
        for key, value in sizes.entries() if sizes is not None else ():
            flag = {
                "tensor": "--tensor-parallel-size",
                "data": "--data-parallel-size",
                "pipeline": "--pipeline-parallel-size",
            }.get(key.value)
            if flag is not None and isinstance(value, Scalar):
                yield Word(flag, key.source, key.begin, key.end)
                yield value.word()
        if sizes is not None:
            return


def _uri(model: Fields) -> Word | None:
    """The model of ``uri: hf://org/name``."""
    for name in ("uri", "storageUri", "modelURL"):
        scalar = model.scalar(name)
        if scalar is not None:
            word = scalar.word()
            if isinstance(word, Word):
                return word
    return None


def _served(way: Way) -> Word | None:
    """The model that the document itself names: KServe's ``spec.model.uri``, ``storageUri``."""
    for mapping in reversed(way.mappings):
        model = mapping.mapping("model") or mapping.mapping("modelArtifacts")
        found = _uri(model) if model is not None else _uri(mapping)
        if found is not None:
            return found
    return None


def _mounted_script(words: list[AnyWord], env: Mapping[str, Setting], reading: Reading) -> list[Found]:
    """What ``bash /scripts/start.sh`` launches, where a ConfigMap of the set holds the script."""
    for word in words:
        base = word.rpartition("/")[2]
        script = reading.config_maps(f"key:{base}") if base.endswith(".sh") else None
        found = script.scalar(base) if script is not None else None
        if found is not None:
            reading.used_scripts.add(base)
            return read_script(found.text(), env, reading.outside)
    return []


def _scripts(name: str, data: Fields, reading: Reading) -> Iterator[Deployment]:
    """Launches of the scripts in a ConfigMap that no container of the file was seen to start."""
    for key, value in data.entries():
        if not isinstance(value, Scalar) or key.value in reading.used_scripts or "\n" not in value.value:
            continue
        if not re.search(r"sglang|vllm", value.value) or not re.search(
            r"\.sh$|^#!", key.value + "\n" + value.value[:2]
        ):
            continue
        for launch in read_script(value.text(), {}, reading.outside):
            yield Deployment(
                key.source, "ConfigMap", f"{name}/{key.value}", launch.engine, launch.words, launch.env, launch.place
            )


def _with_config_files(words: tuple[AnyWord, ...], engine: str, reading: Reading) -> Iterator[AnyWord]:
    """Words with the fields of a ``--config`` file that a ConfigMap of the set holds, in front."""
    own = list(words)
    for at, word in enumerate(own):
        name, equals, value = word.partition("=")
        if name != "--config" or (not equals and at + 1 == len(own)):
            continue
        base = (value if equals else str(own[at + 1])).rpartition("/")[2]
        data = reading.config_maps(f"key:{base}")
        scalar = data.scalar(base) if data is not None else None
        if scalar is None:
            continue
        nodes = documents(scalar.source, scalar.text())
        if nodes and isinstance(nodes[0], Fields):
            yield from field_words(nodes[0], engine)
            del own[at : at + (1 if equals else 2)]
        break
    yield from own


def _kaito(node: Fields, reading: Reading) -> Deployment:
    """What KAITO starts for a preset: its controller makes most of the arguments, which stay unknown."""
    preset = node.scalar("inference", "preset", "name")
    data = reading.config_maps(node.string("inference", "config"))
    words: list[AnyWord] = []
    for _, value in data.entries() if data is not None else ():
        for inner in documents(value.source, value.text()) if isinstance(value, Scalar) else ():
            fields = inner.mapping("vllm") if isinstance(inner, Fields) else None
            words += field_words(fields, "vllm") if fields is not None else ()
    at = preset or node
    words.append(Unknown("the arguments", node.source, at.begin, at.end, "KAITO's controller makes them"))
    model = preset.word() if preset is not None else None
    return Deployment(
        node.source, "Workspace", node.string("metadata", "name"), "vllm", tuple(words), {},
        node.source.place(at.begin, at.end), hardware((node, node.mapping("resource") or node)), model if isinstance(model, Word) else None,
    )  # fmt: skip


def _additional(env: Mapping[str, Setting]) -> Iterator[AnyWord]:
    """Words of the variables that images append to the engine's own."""
    for name in ADDITIONAL & env.keys():
        for word in env[name].words:
            yield from split_words(word.chars) if isinstance(word, Word) and word.chars is not None else (word,)


def _component(way: Way) -> str:
    return " ".join(
        mapping.string("componentType") or mapping.string("type")
        for mapping in way.mappings
        if mapping.get("componentType") or mapping.get("type")
    )


def _name(way: Way, node: Fields) -> str:
    """A name for people: the document's, the service's, the container's."""
    names = [way.mappings[0].string("metadata", "name")]
    names += [key for key in way.keys if key not in UNNAMED]
    names += [mapping.string("name") for mapping in way.mappings[1:] if mapping.get("name")]
    names.append(node.string("name"))
    return "/".join(dict.fromkeys(name for name in names if name))[:120]
