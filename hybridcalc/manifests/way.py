"""Where in a Kubernetes document is a mapping, and what do all documents of a file share?"""

from collections.abc import Callable
from typing import NamedTuple

from hybridcalc.manifests.variables import Outside
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Scalar

ConfigMaps = Callable[[str], Fields | None]
"""The ``data`` of a ConfigMap of the same set, by name."""
UNNAMED = frozenset({
    "spec", "template", "containers", "services", "extraPodSpec", "mainContainer", "components", "podTemplate",
    "leaderWorkerTemplate", "predictor", "model", "jobTemplate", "args", "applications",
})  # fmt: skip
"""Keys that say nothing in a deployment's name."""


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


def name_of(way: Way, node: Fields) -> str:
    """A name for people: the document's, the service's, the container's."""
    names = [way.mappings[0].string("metadata", "name")]
    names += [key for key in way.keys if key not in UNNAMED]
    names += [mapping.string("name") for mapping in way.mappings[1:] if mapping.get("name")]
    names.append(node.string("name"))
    return "/".join(dict.fromkeys(name for name in names if name))[:120]


def heads(mappings: tuple[Fields, ...]) -> tuple[int, ...]:
    """The lines where mappings begin: a document's first key, a container's ``- name:``."""
    return tuple(dict.fromkeys(mapping.source.place(mapping.begin).line for mapping in mappings))


def image_near(mappings: tuple[Fields, ...]) -> str:
    """The image that the nearest mapping names: a text, or a repository and its tag as charts write them."""
    for mapping in reversed(mappings):
        image = mapping.get("image")
        holder = image if isinstance(image, Fields) else mapping
        if isinstance(image, Scalar):
            return image.value
        repository, tag = holder.string("repository"), holder.string("tag")
        if repository:
            return f"{repository}:{tag}" if tag else repository
    return ""
