"""Which engines do Kubernetes documents start? Deployments, sets, jobs, RayService, Dynamo, KServe, custom resources.

Every mapping with a command or arguments is a container, whatever the kind, so that kinds nobody has named yet are read
as well; its environment comes from ``env``, ``envFrom`` and the ConfigMaps of the set. Custom resources that carry
flags in typed fields (``vllmConfig.maxModelLen``) are read by their names. GPUs come from resource limits and the
labels that select nodes. Left out: what an operator adds at run time.
"""

import re
from collections.abc import Iterator, Mapping

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.containers import KUBERNETES, launches, resolved_word, resolved_words
from hybridcalc.manifests.controllers import (
    additional,
    flag_list,
    is_kserve_worker,
    kaito,
    kserve,
    own_fields,
    served,
    typed,
)
from hybridcalc.manifests.environment import declared
from hybridcalc.manifests.fields import with_config
from hybridcalc.manifests.placement import hardware
from hybridcalc.manifests.scripts import run_script
from hybridcalc.manifests.way import Others, Reading, Way, image_of
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Scalar, Sequence, documents
from hybridcalc.shell import Setting, Text, Word, spend
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside, Variables

COMMANDS = ("command", "dockerEntrypoint", "docker_entrypoint", "cmd")
ARGUMENTS = ("args", "dockerStartCmd", "docker_start_cmd", "dockerArgs", "docker_args", "container_args")
"""Fields of a container, in Kubernetes' own words first."""
PASSED_OVER = frozenset({
    "exec", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "status", "ephemeralContainers",
})  # fmt: skip
GPU_COUNTS = ("SKYPILOT_NUM_GPUS_PER_NODE", "DSTACK_GPUS_NUM", "DSTACK_GPUS_PER_NODE")
"""Variables in which a scheduler tells what it runs how many GPUs it has."""
PROSE = frozenset({"description", "annotations", "message", "notes", "summary", "title", "name", "doc", "comment"})
RUNTIMES = frozenset({"ServingRuntime", "ClusterServingRuntime"})
NO_WORKER = re.compile(
    r"front-?end|router|planner|epp|gateway|scheduler|ingress|operator|proxy|benchmark", re.IGNORECASE
)
"""Components beside the workers, by type or name; only arguments without a launcher are judged by it."""


def read_documents(
    nodes: list[Node], outside: Outside, beside: Others, base: Fields | None = None
) -> Iterator[Deployment]:
    """Every deployment of the documents of a file, which changes values of a ``base``."""
    own = {name: data for node in nodes if isinstance(node, Fields) for name, data in shared(node)}

    def lookup(name: str) -> Fields | None:
        held = own.get(name)
        if name.startswith("key:"):
            held = next((data for data in own.values() if data.get(name[4:]) is not None), None)
        return held or beside.config_map(name)

    reading = Reading(outside, lookup, beside.generated, beside.patched, set(), set())
    for node in _flattened(nodes):
        yield from kaito(node, reading)
    for node in _flattened(nodes):
        if node.string("kind") in RUNTIMES and lookup(f"uses:{node.string('metadata', 'name')}") is not None:
            beside.told = True  # where a service names it
            continue
        if node.string("kind") not in ("ConfigMap", "Secret"):
            yield from _walk(node, Way((), (node,), base), reading)
    for node in _flattened(nodes):
        for name, data in config_map(node):
            yield from _scripts(name, data, reading)


def shared(node: Fields) -> Iterator[tuple[str, Fields]]:
    """What other documents of a set may refer to: ConfigMaps, KServe's runtimes, and which runtimes are used."""
    yield from config_map(node)
    kind, spec = node.string("kind"), node.mapping("spec")
    runtime = node.string("spec", "predictor", "model", "runtime")
    if kind in RUNTIMES and spec is not None:
        yield f"runtime:{node.string('metadata', 'name')}", spec
    elif kind == "InferenceService" and runtime:
        yield f"uses:{runtime}", node


def config_map(node: Fields) -> Iterator[tuple[str, Fields]]:
    """Name and data of a ConfigMap document."""
    data = node.get("data")
    if node.string("kind") == "ConfigMap" and isinstance(data, Fields):
        yield node.string("metadata", "name"), data


def _flattened(nodes: list[Node]) -> Iterator[Fields]:
    """Documents, those of a ``kind: List`` one by one."""
    for node in nodes:
        if isinstance(node, Sequence):
            yield from (item for item in node.items if isinstance(item, Fields))
        elif isinstance(node, Fields):
            if node.string("kind") == "List":
                yield from (item for item in node.items("items") if isinstance(item, Fields))
            else:
                yield node


def _walk(node: Fields, way: Way, reading: Reading) -> Iterator[Deployment]:
    if id(node) in reading.seen:
        return
    reading.seen.add(id(node))
    taken: set[str] = set()
    runtime = _runtime(node, way, reading)
    if _is_container(node) or runtime is not None or is_kserve_worker(node, way):
        found = list(_container(node, way, reading))
        yield from found
        taken = {*COMMANDS, *ARGUMENTS, "env"} if found or not _is_flags(node) else {"env"}
    fields = False
    for key, value in node.entries():
        if isinstance(value, Fields) and (found_typed := typed(key, value, way)) is not None:
            reading.seen.update(id(held) for holder in (node, value) for _, held in holder.entries())
            reading.seen.discard(id(value))
            fields = True
            yield found_typed
    inner = [
        deployment
        for key, value in node.entries()
        if key.value not in PASSED_OVER and key.value not in taken and not _ends_first(key, value)
        for deployment in _entry(key, value, way, reading)
    ]
    if not taken and not fields and not inner and (own := own_fields(node, way)) is not None:
        yield own
    yield from inner


def _ends_first(key: Scalar, value: Node) -> bool:
    """Whether a field is of containers that end before others start; those that always restart run beside them."""
    items = value.items if isinstance(value, Sequence) else []
    beside = any(isinstance(item, Fields) and item.string("restartPolicy") == "Always" for item in items)
    return key.value == "initContainers" and not beside


def _entry(key: Scalar, value: Node, way: Way, reading: Reading) -> Iterator[Deployment]:
    """What stands in one field."""
    if isinstance(value, Scalar) and key.value == "serveConfigV2":
        for inner in documents(value.source, value.text()):
            if isinstance(inner, Fields):
                yield from _walk(inner, way.down(key.value, inner), reading)
        return
    if isinstance(value, Sequence) and id(value) not in reading.seen:
        listed = flag_list(key, value, way) if not NO_WORKER.search(way.name()) else None
        if listed is not None:
            yield listed
            return
    for child in value.items if isinstance(value, Sequence) else [value]:
        if isinstance(child, Scalar) and key.value not in PROSE and _is_script(child.value):
            yield from _loose_script(child, way, reading)
        if isinstance(child, Fields):
            yield from _walk(child, way.down(key.value, child), reading)


def _is_script(text: str) -> bool:
    """Whether a text starts an engine with anything behind it: ``app: llama-server`` is a label."""
    return ENGINES.launchers.telling.search(text) is not None and any(map(str.isspace, text.strip()))


def _is_flags(node: Fields) -> bool:
    """Whether the arguments of a mapping are flags alone."""
    first = next((item for name in ARGUMENTS for item in node.items(name)), None)
    return isinstance(first, Scalar) and first.value.startswith("--") and node.get("command") is None


def _loose_script(script: Scalar, way: Way, reading: Reading) -> Iterator[Deployment]:
    """Launches of a script in a field of its own: ``run: |`` of a task or a workflow."""
    env = {
        name: setting
        for mapping in way.mappings
        for field in ("envs", "env")
        for name, setting, _ in declared(mapping.get(field))
        if setting is not None
    }
    gpus = hardware(way.mappings)
    if gpus.gpus is not None and gpus.gpus_place is not None and gpus.nodes == 1:
        held = Setting((Word(str(gpus.gpus), script.source, gpus.gpus_place.begin, gpus.gpus_place.end),))
        env = dict.fromkeys(GPU_COUNTS, held) | env
    for launch in prose_launches(script.text(), env, reading.outside):
        yield way.deployment(launch, "script", gpus)


def prose_launches(text: Text, env: Mapping[str, Setting], outside: Outside) -> list[Launch]:
    """Launches of a text that is a script, or a guide with scripts in it."""
    if "`" not in text.text:
        return run_script(text, env, outside).launches
    from hybridcalc.manifests import guides

    starting = ENGINES.launchers.telling
    if not guides.is_guide(text.text):
        text = guides.without_code_in_prose(text, starting)
        return run_script(text, env, outside).launches if starting.search(text.text) else []
    found: list[Launch] = []
    known: Mapping[str, Setting] = env
    for block in guides.blocks(text):
        if block.kind in ("", "script"):
            shell = run_script(guides.script(block.text), known, outside)
            found, known = [*found, *shell.launches], shell.variables.visible()
    return found


def _is_container(node: Fields) -> bool:
    given = any(isinstance(node.get(name), Sequence | Scalar) for name in (*COMMANDS, *ARGUMENTS))
    image = image_of(node)
    if isinstance(image, Word) and ENGINES.launchers.serving(image) is not None:
        return True
    return given or (node.get("env") is not None and any(ENGINES.launchers.configured(image)))


def _container(node: Fields, way: Way, reading: Reading) -> Iterator[Deployment]:
    runtime = _runtime(node, way, reading)
    under = runtime or _patched(node, way, reading)
    env = (environment(under, reading) if under is not None else {}) | environment(node, reading)
    if "leaderWorkerTemplate" in way.keys and "LWS_GROUP_SIZE" not in env:
        size = next(
            (m.scalar("leaderWorkerTemplate", "size") for m in way.mappings if m.get("leaderWorkerTemplate")), None
        )
        word = size.known() if size is not None else None
        if word is not None:
            env["LWS_GROUP_SIZE"] = Setting((word,))

    known = Variables(Text(node.source, node.source.text, node.begin), env, reading.outside, ())
    base = under or node
    command = resolved_words(_first(node, COMMANDS) or _first(base, COMMANDS), KUBERNETES, known)
    own = _first(node, ARGUMENTS) if runtime is None else None
    arguments = resolved_words(own or _first(base, ARGUMENTS), KUBERNETES, known, command)
    if runtime is not None:  # what the service adds stands behind the runtime's own
        arguments += resolved_words(node.get("args"), KUBERNETES, known, [*command, *arguments])
    image = image_of(node) or image_of(base)
    bare = not any(
        NO_WORKER.search(text)
        for text in (_component(way), node.string("name"), way.mappings[0].string("metadata", "name"))
    )
    found = launches(command, arguments, env, reading.outside, image=image, bare=bare)
    controlled = kserve(node, way, arguments, env) if not command and (not found or not found[0].program) else None
    if controlled is not None:
        found = [controlled]
    if not found:
        found = _mounted_script([*command, *arguments], env, reading)
    for launch in found:
        launch = with_config(launch, lambda name: _config_file(name, reading))
        launch = launch._replace(words=(*launch.words, *additional(env)), model=served(way) or launch.model)
        if launch.place.path != node.source.path:  # its command is another file's
            launch = launch._replace(place=node.source.place(node.begin))
        yield way.deployment(launch, "container")


def _first(node: Fields, names: tuple[str, ...]) -> Node | None:
    return next((value for name in names if (value := node.get(name)) is not None), None)


def _runtime(node: Fields, way: Way, reading: Reading) -> Fields | None:
    """The container of the KServe runtime that a service's model names, where it is among the files."""
    if way.keys[-2:] != ("predictor", "model") or not node.string("runtime"):
        return None
    spec = reading.config_maps(f"runtime:{node.string('runtime')}")
    containers = [item for item in spec.items("containers") if isinstance(item, Fields)] if spec is not None else []
    return next(
        (item for item in containers if item.string("name") == "kserve-container"), next(iter(containers), None)
    )


def _patched(node: Fields, way: Way, reading: Reading) -> Fields | None:
    """The container that one of a patch is merged over, in the document that the patch changes."""
    document, name = way.mappings[0], node.string("name")
    if way.keys[-1:] != ("containers",) or not name:
        return None
    below = reading.patched(document.string("kind"), document.string("metadata", "name"))
    for key in way.keys[:-1]:
        below = below.mapping(key) if below is not None else None
    held = below.items("containers") if below is not None else ()
    return next((item for item in held if isinstance(item, Fields) and item.string("name") == name), None)


def environment(node: Fields, reading: Reading) -> dict[str, Setting]:
    """The variables a container gets: ``envFrom`` first, then ``env``, which may refer to those before it."""
    known = Variables(Text(node.source, node.source.text), {}, {}, ())
    env = known.env
    for source in node.items("envFrom"):
        reference = source.mapping("configMapRef") if isinstance(source, Fields) else None
        prefix = source.string("prefix") if isinstance(source, Fields) else ""
        held = _values(reference.string("name"), reading) if reference is not None else {}
        env.update({prefix + key: setting for key, setting in held.items()})
    for name, setting, entry in declared(node.get("env"), lambda item: resolved_word(item, KUBERNETES, known)):
        env[name] = setting or _from_elsewhere(entry, reading)
    return env


def _values(name: str, reading: Reading) -> dict[str, Setting]:
    """The variables of a ConfigMap: its document's, with what kustomizations generate over them."""
    data = reading.config_maps(name)
    entries = list(data.entries()) if data is not None else []
    spend(words=len(entries))
    own = {key.value: Setting((value.word(),)) for key, value in entries if isinstance(value, Scalar)}
    return own | dict(reading.generated(name))


def _from_elsewhere(entry: Node, reading: Reading) -> Setting:
    """The value of a variable that stands in a ConfigMap, or that the cluster knows; one without any is empty."""
    if not isinstance(entry, Fields):
        return Setting((Word("", entry.source, entry.begin, entry.begin),))
    place = entry.source.place(entry.begin, entry.end)
    reference = entry.mapping("valueFrom", "configMapKeyRef")
    if reference is not None:
        held = _values(reference.string("name"), reading).get(reference.string("key"))
        return (
            held
            if held is not None
            else Setting((), f"ConfigMap {reference.string('name')[:40]} is not among the files", place)
        )
    if entry.get("valueFrom") is not None:
        return Setting((), "the cluster decides it", place)
    return Setting((Word("", entry.source, entry.begin, entry.begin),), "", place)


def _mounted_script(words: list[Word], env: Mapping[str, Setting], reading: Reading) -> list[Launch]:
    """What ``bash /scripts/start.sh`` launches, where a ConfigMap of the set holds the script."""
    for word in words:
        base = word.rpartition("/")[2]
        script = reading.config_maps(f"key:{base}") if base.endswith(".sh") else None
        found = script.scalar(base) if script is not None else None
        if found is not None:
            reading.used_scripts.add(base)
            return run_script(found.text(), env, reading.outside).launches
    return []


def _scripts(name: str, data: Fields, reading: Reading) -> Iterator[Deployment]:
    """Launches of the scripts in a ConfigMap that no container of the file was seen to start."""
    for key, value in data.entries():
        if not isinstance(value, Scalar) or key.value in reading.used_scripts or "\n" not in value.value:
            continue
        if not ENGINES.launchers.spoken.search(value.value) or not re.search(
            r"\.sh$|^#!", key.value + "\n" + value.value[:2]
        ):
            continue
        for launch in run_script(value.text(), {}, reading.outside).launches:
            yield Deployment(key.source, "ConfigMap", f"{name}/{key.value}", launch)


def _config_file(name: str, reading: Reading) -> Fields | None:
    """A ``--config`` file that a ConfigMap of the set holds."""
    base = name.rpartition("/")[2]
    data = reading.config_maps(f"key:{base}")
    scalar = data.scalar(base) if data is not None else None
    nodes = documents(scalar.source, scalar.text()) if scalar is not None else []
    return nodes[0] if nodes and isinstance(nodes[0], Fields) else None


def _component(way: Way) -> str:
    return " ".join(
        mapping.string("componentType") or mapping.string("type")
        for mapping in way.mappings
        if mapping.get("componentType") or mapping.get("type")
    )
