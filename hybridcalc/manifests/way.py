"""Where in a Kubernetes document is a mapping, and what do all documents of a file share?"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from hybridcalc.manifests import Deployment, Hardware
from hybridcalc.manifests.placement import hardware, replicas
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Scalar
from hybridcalc.shell import Setting
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside

ConfigMaps = Callable[[str], Fields | None]
"""The ``data`` of a ConfigMap of the same set, by name."""
Generated = Callable[[str], Mapping[str, Setting]]
"""The variables of a ConfigMap that kustomizations generate for a manifest, by its name."""
Patched = Callable[[str, str], Fields | None]
"""The document of a kind and a name that the file changes, which is a patch of it."""
IMAGES = ("image", "imageName", "docker_image", "dockerImage", "container_image", "containerImage", "image_name")
"""Fields that name a container's image."""
UNNAMED = frozenset({
    "spec", "template", "containers", "services", "extraPodSpec", "mainContainer", "components", "podTemplate",
    "leaderWorkerTemplate", "predictor", "model", "jobTemplate", "args", "applications",
})  # fmt: skip
"""Keys that say nothing in a deployment's name."""


class Way(NamedTuple):
    """The way from a document to a mapping: keys and mappings, the document first, the mapping itself last; ``base``
    is the document whose values this one changes.
    """

    keys: tuple[str, ...]
    mappings: tuple[Fields, ...]
    base: Fields | None = None

    def down(self, key: str, mapping: Fields) -> "Way":
        """One step on."""
        return Way((*self.keys, key), (*self.mappings, mapping), self.base)

    def below(self) -> Iterator[Fields]:
        """The mappings of the base at the same place, the nearest first."""
        for length in range(len(self.keys), -1, -1):
            held = self.base.mapping(*self.keys[:length]) if self.base is not None and length else self.base
            if held is not None:
                yield held

    @property
    def kind(self) -> str:
        """The kind of the document; empty where it has none."""
        return self.mappings[0].string("kind")

    def name(self) -> str:
        """A name for people: the document's, the service's, the container's."""
        names = [self.mappings[0].string("metadata", "name")]
        names += [key for key in self.keys if key not in UNNAMED]
        names += [mapping.string("name") for mapping in self.mappings[1:] if mapping.get("name")]
        names.append(self.mappings[-1].string("name"))
        return "/".join(dict.fromkeys(name for name in names if name))[:120]

    def deployment(self, launch: Launch, kind: str, gpus: Hardware | None = None) -> Deployment:
        """A launch in the mapping, and what the mappings on the way say; ``kind`` where the document names none."""
        source = self.mappings[-1].source
        lines = (mapping.source.place(mapping.begin).line for mapping in self.mappings)
        return Deployment(
            source,
            self.kind or kind,
            self.name(),
            launch._replace(image=launch.image or self._image()),
            hardware(self.mappings) if gpus is None else gpus,
            replicas(self.mappings),
            tuple(dict.fromkeys(lines)),
        )

    def _image(self) -> str:
        """The image that the nearest mapping names: a text, or a repository and its tag as charts write them."""
        return next(filter(None, map(image_of, reversed(self.mappings))), "")


def image_of(mapping: Fields) -> str:
    """The image that a mapping names: a text (with its place), or a repository and its tag as charts write them;
    of a recipe for Slurm (srt-slurm), the container of its model; of one of vLLM's, the image of its model.
    """
    recipe = (
        mapping.scalar("identity", "container", "image"),
        mapping.scalar("model", "container"),
        mapping.scalar("model", "docker_image"),
        mapping.scalar("model", "docker_image", "nvidia"),
    )
    image = next(
        (value for name in IMAGES if (value := mapping.get(name)) is not None), next(filter(None, recipe), None)
    )
    if isinstance(image, Scalar):
        return image.word()
    holder = image if isinstance(image, Fields) else mapping
    repository, tag = holder.string("repository"), holder.string("tag")
    return f"{repository}:{tag}" if repository and tag else repository


class Others(Protocol):
    """What other files of the set say; ``told``: what the file itself holds is read where they use it."""

    told: bool

    def config_map(self, name: str) -> Fields | None:
        """The data of a ConfigMap."""

    def generated(self, name: str) -> Mapping[str, Setting]:
        """The variables of a ConfigMap that is generated."""

    def patched(self, kind: str, name: str) -> Fields | None:
        """The document that the file is a patch of."""


class Reading(NamedTuple):
    """What all documents of a file share."""

    outside: Outside
    config_maps: ConfigMaps
    generated: Generated
    patched: Patched
    seen: set[int]
    used_scripts: set[str]
