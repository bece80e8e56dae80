"""On which GPUs does a Kubernetes workload run, on how many nodes, and how often?

From the nearest mapping on the way from the document to the container that says so: resource limits, node selectors and
affinities, ``multinode.nodeCount``, the size of a LeaderWorkerSet. A pod's ``memory`` is the host's and says nothing.
"""

import re
from collections.abc import Iterator

from hybridcalc.hardware import gpu_of_label, names_gpu
from hybridcalc.manifests import Hardware
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Scalar
from hybridcalc.shell import Place


def hardware(mappings: tuple[Fields, ...]) -> Hardware:
    """GPU kind, GPUs a node, and nodes, from the nearest mapping that says so."""
    label, gpus, place = None, None, None
    for mapping in reversed(mappings):
        if gpus is None:
            gpus, place = _gpu_count(mapping)
        if gpus is None:
            gpus, place = next((found for found in map(_group_gpus, _workers(mapping)) if found[0]), (None, None))
        if label is None or gpu_of_label(label) is None:
            texts = list(_labels(mapping))
            known = next((text for text in texts if gpu_of_label(text) is not None), None)
            label = known or label or next(filter(names_gpu, texts), None)
    return Hardware(label, gpus, place, _nodes(mappings))


COUNTS = ("requestGPU", "acceleratorCount", "gpuCount", "gpu_count", "accelerator_count")
"""Fields that say how many GPUs a node has."""


def _gpu_count(mapping: Fields) -> tuple[int | None, Place | None]:
    for side in ("limits", "requests"):
        holder = mapping.mapping("resources", side)
        for key, value in holder.entries() if holder is not None else ():
            named = re.fullmatch(r"(nvidia\.com|amd\.com)/gpu|gpu", key.value) is not None
            if named and isinstance(value, Scalar) and value.value.isdecimal() and len(value.value) < 5:
                return int(value.value), value.source.place(value.begin, value.end)
    for holder, name in (
        (mapping, "accelerators"),
        (mapping.mapping("resources"), "accelerators"),
        (mapping.mapping("resources"), "gpu"),
    ):
        asked = holder.get(name) if holder is not None else None
        inner = _only(asked)
        match = re.fullmatch(r"[\w-]+:([0-9]{1,4})", inner.value) if isinstance(inner, Scalar) else None
        if match is not None and inner is not None:
            return int(match[1]), mapping.source.place(inner.begin, inner.end)
    count = next(filter(None, map(mapping.scalar, COUNTS)), None)
    if count is not None and _is_count(count.value):  # 0: what runs on the host's processors
        return int(count.value), count.source.place(count.begin, count.end)
    return None, None


def _only(asked: Node | None) -> Node | None:
    """What is asked for, where it is one thing and not a choice of several."""
    keys = [key for key, _ in asked.entries()] if isinstance(asked, Fields) else []
    return asked if not isinstance(asked, Fields) else keys[0] if len(keys) == 1 else None


def _labels(mapping: Fields) -> Iterator[str]:
    """Texts of a pod or a resource that may name a GPU."""
    selector, resources = (
        mapping.mapping("nodeSelector"),
        mapping.mapping("resources", "limits") or mapping.mapping("resources"),
    )
    for _, value in selector.entries() if selector is not None else ():
        if isinstance(value, Scalar):
            yield value.value
    asked = mapping.get("accelerators") or (resources.get("accelerators") if resources is not None else None)
    inner = _only(asked)
    if isinstance(inner, Scalar):
        kind = inner.value.partition(":")[0]
        yield "A100-40GB" if kind == "A100" else kind  # as SkyPilot names the smaller one
    for holder in (mapping, mapping.mapping("resources")):  # the latter of recipes for Slurm
        for name in ("accelerator_type", "acceleratorType", "acceleratorModel", "gpuType", "gpu_type", "instanceType"):
            if holder is not None and holder.get(name) is not None:
                yield holder.string(name)
    required = mapping.mapping("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in required.items("nodeSelectorTerms") if required is not None else ():
        for expression in term.items("matchExpressions") if isinstance(term, Fields) else ():
            if isinstance(expression, Fields) and expression.string("operator") == "In":
                values = [item.value for item in expression.items("values") if isinstance(item, Scalar)]
                if len({gpu_of_label(value) for value in values}) == 1:
                    yield values[0]


def _nodes(mappings: tuple[Fields, ...]) -> int:
    for mapping in reversed(mappings):
        sizes = mapping.mapping("parallelism")
        if sizes is not None:
            return _kserve_nodes(sizes, several=mapping.get("worker") is not None)
        head, workers = mapping.mapping("raySpec", "headNode"), mapping.string("replicaCount")
        if head is not None and _is_count(workers):  # the head of a Ray cluster, and its workers
            return int(workers) + (0 if head.string("requestGPU") in ("", "0") else 1)
        head = mapping.mapping("headGroupSpec")
        if head is not None and (groups := _workers(mapping)):  # of KubeRay
            counts = [group.string("replicas") or group.string("minReplicas") or "1" for group in groups]
            return max(1, sum(map(int, filter(_is_count, counts))) + (_group_gpus(head)[0] is not None))
        for path in (("multinode", "nodeCount"), ("leaderWorkerTemplate", "size")):
            count = mapping.string(*path)
            if count.isdecimal() and len(count) < 5:
                return max(1, int(count))
    return 1


def _workers(mapping: Fields) -> list[Fields]:
    """The groups of workers of a Ray cluster."""
    return [group for group in mapping.items("workerGroupSpecs") if isinstance(group, Fields)]


def _group_gpus(group: Fields) -> tuple[int | None, Place | None]:
    """The GPUs that a pod of a group asks for, none where it asks for 0."""
    containers = (item for item in group.items("template", "spec", "containers") if isinstance(item, Fields))
    return next((found for found in map(_gpu_count, containers) if found[0]), (None, None))


def _kserve_nodes(sizes: Fields, *, several: bool) -> int:
    """Nodes that KServe spreads a server over: the data-parallel workers, ``dataLocal`` of them each, else stages."""
    data, local, stages = (sizes.string(name) for name in ("data", "dataLocal", "pipeline"))
    if _is_count(data) and _is_count(local):
        return max(1, -(-int(data) // int(local)))
    return int(stages) if several and _is_count(stages) else 1


_COPIES = (
    ("replicas",), ("replicaCount",), ("spec", "replicas"), ("deploy", "replicas"), ("scale",), ("num_replicas",),
    ("deployment_config", "num_replicas"),
)  # fmt: skip
_FEWEST = (("minReplicas",), ("min_replicas",), ("deployment_config", "autoscaling_config", "min_replicas"))
"""Where the number of copies stands, and where the least of those that a load starts does."""


def _is_count(text: str) -> bool:
    return text.isdecimal() and 0 < len(text) < 5 and int(text) > 0


def replicas(mappings: tuple[Fields, ...]) -> int | None:
    """Copies of a deployment that run, the fewest where their number follows the load; None where nothing says it."""
    for mapping in reversed(mappings):
        counts = (mapping.string(*path) for path in _COPIES)
        count = next((count for count in counts if count.isdecimal() and len(count) < 6), None)
        fewest = (mapping.string(*path) for path in _FEWEST)
        count = count or next(filter(_is_count, fewest), None)
        if count is not None:
            return int(count)
    return None
