"""Which deployments does a YAML or JSON file hold? Each document is hybridcalc's own, a compose file, an engine's
``--config`` file, or one of Kubernetes and its kind, the last for whatever else has commands, arguments or flags.
"""

import os
import re
from collections.abc import Iterator
from collections.abc import Mapping as Map
from functools import lru_cache
from typing import Protocol

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment, Values, file_bytes, filled
from hybridcalc.manifests.compose import is_compose, read_compose
from hybridcalc.manifests.controllers import model_near
from hybridcalc.manifests.fields import engine_of_fields, field_words, model_field, with_config
from hybridcalc.manifests.kubernetes import read_documents, shared
from hybridcalc.manifests.llamaswap import is_llama_swap, read_llama_swap
from hybridcalc.manifests.yamltree import Mapping, Node, Scalar, Sequence, documents
from hybridcalc.shell import Setting, Source, Text, Word, spend
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside

Variables = Map[str, Setting]
MOST_BESIDE = 500
"""Files of a folder that are looked through for a ConfigMap."""
_SHARED = re.compile(rb"ConfigMap|ServingRuntime|runtime:")


class Beside(Protocol):
    """Files in the folder of a manifest."""

    told: bool

    def __call__(self, name: str) -> Source | None:
        """The file at a relative path; None where it is none, or not small."""

    def config_map(self, name: str) -> Mapping | None:
        """The data of a ConfigMap in another file of the folder."""

    def generated(self, name: str) -> Variables:
        """The variables of a ConfigMap that kustomizations of the checked folder generate."""

    def patched(self, kind: str, name: str) -> Mapping | None:
        """The document that the file is a patch of, as kustomizations of the checked folder say."""

    def model_of(self, name: str) -> Word | None:
        """The model that another file of the folder names beside the name of a ``--config`` file."""


def read_yaml(text: Text, outside: Outside, beside: Beside) -> Iterator[Deployment]:
    """Every deployment of the documents of a file."""
    nodes = documents(text.source, None if text.text is text.source.text else text)
    defaults = defaults_of(nodes)
    for deployment in _of_nodes(text.source, nodes, outside, beside):
        yield filled(deployment, outside, defaults, variables=deployment.kind != "compose")


def _of_nodes(source: Source, nodes: list[Node], outside: Outside, beside: Beside) -> Iterator[Deployment]:
    others: list[Node] = []
    for node in nodes:
        if isinstance(node, Sequence):
            others.append(node)
        if not isinstance(node, Mapping) or _is_schema(node):
            continue
        if _is_native(node, source.path):
            from hybridcalc.manifests.native import read_native  # pydantic: only where it is needed

            yield from read_native(node, outside)
        elif is_compose(node):
            yield from read_compose(node, outside, beside)
        elif is_llama_swap(node):
            yield from read_llama_swap(node, outside)
        elif node.get("kind") is None and (engine := _engine_file(node)) is not None:
            words = tuple(field_words(node, engine))
            model = model_field(node) or beside.model_of(source.path.rpartition("/")[2])
            launch = Launch(engine, words, {}, source.place(node.begin), model=model)
            yield Deployment(source, f"{engine} --config", "", launch)
        else:
            others.append(node)
    yield from read_documents(others, outside, beside, _base(source, beside))


def _base(source: Source, beside: Beside) -> Mapping | None:
    """The values of a chart that a file beside them changes, as its name says: ``values-prod.yaml``."""
    name = source.path.rpartition("/")[2]
    held = beside("values.yaml") if "values" in name and name != "values.yaml" else None
    nodes = documents(held) if held is not None else []
    return nodes[0] if nodes and isinstance(nodes[0], Mapping) else None


def _is_schema(node: Mapping) -> bool:
    """Whether a document says which fields others may have: a definition of a resource, a JSON Schema."""
    kind, about = node.get("kind"), node.get("type")
    if isinstance(kind, Scalar) and kind.value == "CustomResourceDefinition":
        return True
    return isinstance(node.get("properties"), Mapping) and isinstance(about, Scalar) and about.value == "object"


def _is_native(node: Node, path: str) -> bool:
    """Whether a document is hybridcalc's own: by its file's name, or by its keys."""
    if not isinstance(node, Mapping):
        return False
    name = path.rpartition("/")[2]
    if name in ("hybridcalc.yaml", "hybridcalc.yml") or name.endswith((".hybridcalc.yaml", ".hybridcalc.yml")):
        return True
    first = next((item for item in node.items("deployments")), None)
    return isinstance(first, Mapping) and any(first.get(key) for key in ("expect", "hardware", "workload", "flags"))


def _engine_file(node: Mapping) -> str | None:
    """The engine whose ``--config`` file a document is: most of its keys are flags, and one names a model."""
    engine = engine_of_fields(node)
    if (
        engine is None
        or not ENGINES[engine].flags.files
        or any(isinstance(value, Mapping) and key.value in ("spec", "metadata") for key, value in node.entries())
    ):
        return None
    return engine


def defaults_of(nodes: list[Node]) -> Values:
    """The ``defaults`` of a file's documents, which a recipe fills its command from, and the ``vars`` of a play."""
    plays = [item for node in nodes for item in (node.items if isinstance(node, Sequence) else [node])]
    return {
        key.value: word
        for node in plays
        for name in ("defaults", "vars")
        if isinstance(node, Mapping) and (held := node.mapping(name)) is not None
        for key, value in held.entries()
        if isinstance(value, Scalar) and (word := value.known()) is not None
    }


def configured(launch: Launch, beside: Beside) -> Launch:
    """A launch with the fields of its ``--config`` file, where that lies beside it."""

    def config_file(name: str) -> Mapping | None:
        held = beside(name) or beside(name.rpartition("/")[2])
        nodes = documents(held) if held is not None else []
        return nodes[0] if nodes and isinstance(nodes[0], Mapping) else None

    return with_config(launch, config_file)


@lru_cache(maxsize=16)
def config_maps(folder: str) -> tuple[tuple[str, Mapping], ...]:
    """What manifests in the YAML files of a folder share."""
    return tuple(pair for node in _documents_in(folder, _SHARED) for pair in shared(node))


@lru_cache(maxsize=64)
def model_beside(folder: str, name: str) -> Word | None:
    """The model that a YAML file of a folder names where it names a ``--config`` file: ``configFile: args.yaml``."""
    for node in _documents_in(folder, re.compile(re.escape(name.encode(errors="surrogateescape")))):
        for mapping in _mappings(node):
            named = any(isinstance(value, Scalar) and value.value == name for _, value in mapping.entries())
            if named and (model := model_near(mapping)) is not None:
                return model
    return None


def _mappings(node: Node) -> Iterator[Mapping]:
    """Every mapping of a document."""
    if isinstance(node, Mapping):
        spend(visits=1)
        yield node
        for _, value in node.entries():
            yield from _mappings(value)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _mappings(item)


def _documents_in(folder: str, holding: re.Pattern[bytes]) -> Iterator[Mapping]:
    """Documents of the YAML files of a folder in which something is found."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith((".yaml", ".yml")))[:MOST_BESIDE]
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            data = file_bytes(path, 2**20)
            nodes = documents(Source.of_bytes(path, data)) if holding.search(data) else []
        except (OSError, InputError, ValueError):
            continue
        yield from (node for node in nodes if isinstance(node, Mapping))
