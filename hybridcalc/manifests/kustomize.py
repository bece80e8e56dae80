"""Which values do kustomizations give a manifest? ``configMapGenerator`` -> the variables of a ConfigMap, by its name.

    configMapGenerator: [{name: runtime, literals: [TP=4], envs: [runtime.env]}]

Every kustomization of the checked folders that takes a manifest in, itself or through another, is asked: those that no
other takes in count. Where they disagree a value is not known, and why says how many there are. Nothing outside the
checked folder is read. A patch is read over the document that it changes. Left out: ``files`` and replacements.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from functools import lru_cache
from typing import NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.manifests import NEVER_WALKED, file_bytes
from hybridcalc.manifests.environment import declared, env_file
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Scalar, documents
from hybridcalc.shell import Setting, Source, allowance, spend

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MOST_FOLDERS, MOST_KUSTOMIZATIONS, LARGEST_BYTES = 50_000, 5_000, 2**18
MOST_FILES = 500
"""Files in which the document that a patch changes is looked for."""
MOST_STEPS = 10_000
"""Kustomizations that are looked at for one manifest, each as often as others take it in."""
_TAKEN = ("resources", "bases", "components", "patchesStrategicMerge")
_PATCHED = ("patches", "patchesJson6902")
Values = Mapping[str, Setting]


class Kustomization(NamedTuple):
    """One kustomization: files and folders it takes in, in order, ConfigMaps it generates, which of them replace."""

    path: str
    takes: Sequence[str]
    generates: Mapping[str, Values]
    replacing: frozenset[str]
    patches: frozenset[str] = frozenset()


class Kustomizations(NamedTuple):
    """Those of a folder and all below it: by their folders, and by what they take in."""

    by_folder: Mapping[str, Kustomization]
    by_taken: Mapping[str, Sequence[Kustomization]]

    def generated(self, path: str, name: str) -> Values:
        """The variables of a ConfigMap as the manifest at ``path`` gets them; none where nothing generates it."""
        each = [held for one in self._outermost(os.path.normpath(path)) if (held := self._values(one, name))]
        return {key: _agreed(key, name, each) for key in dict.fromkeys(key for held in each for key in held)}

    def _outermost(self, path: str) -> Iterator[Kustomization]:
        """Those that take a file in, through others too, and that none takes in."""
        waiting, seen = list(self.by_taken.get(path, ())), set[str]()
        while waiting:
            one = waiting.pop()
            if one.path in seen or len(seen) > MOST_STEPS:
                continue
            seen.add(one.path)
            above = self.by_taken.get(os.path.dirname(one.path), ())
            waiting += above
            if not above:
                yield one

    def patched(self, path: str, kind: str, name: str) -> Fields | None:
        """The document that a patch at ``path`` changes; None where there is none, or more than one."""
        path = os.path.normpath(path)
        patching = [one for one in self.by_taken.get(path, ()) if path in one.patches]
        for outer in (patching, list(self._outermost(path))) if patching else ():
            every = [one for each in outer for one in self._with_taken(each)]
            patches = frozenset[str]().union(*(one.patches for one in every))
            taken = dict.fromkeys(file for one in every for file in one.takes)
            files = [file for file in taken if file not in patches and file not in self.by_folder]
            spend(visits=len(taken))
            found = (
                [node for file in files for node in _documents(file, kind, name)] if len(files) <= MOST_FILES else []
            )
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def _with_taken(self, outermost: Kustomization) -> list[Kustomization]:
        """A kustomization and those that it takes in."""
        order: list[Kustomization] = []
        waiting, seen = [outermost], set[str]()
        while waiting:
            one = waiting.pop()
            if one.path not in seen and len(seen) <= MOST_STEPS:
                seen.add(one.path)
                order.append(one)
                waiting += [held for taken in one.takes if (held := self.by_folder.get(taken)) is not None]
        return order

    def _values(self, outermost: Kustomization, name: str) -> dict[str, Setting]:
        """The variables of a ConfigMap as one kustomization makes it of those it takes in and of its own."""
        values: dict[str, Setting] = {}
        for one in reversed(self._with_taken(outermost)):
            if name in one.replacing:
                values.clear()
            values |= one.generates.get(name, {})
        return values


def _agreed(key: str, name: str, each: Sequence[Values]) -> Setting:
    """One variable of a ConfigMap, as several kustomizations set it."""
    given = {held[key].text if key in held else None: held.get(key) for held in each}
    first = each[0].get(key)
    if len(given) == 1 and first is not None:
        return first
    return Setting((), f"{len(each)} kustomizations set {key[:40]} of ConfigMap {name[:40]} differently")


def generated(path: str, tree: str, name: str) -> Values:
    """The variables of a ConfigMap that kustomizations below ``tree`` generate for the manifest at ``path``."""
    if not name:
        return {}
    return Context().run(_index, os.path.normpath(tree)).generated(path, name)


def patched(path: str, tree: str, kind: str, name: str) -> Fields | None:
    """The document that the patch at ``path`` changes, as the kustomizations below ``tree`` say."""
    if not (kind and name):
        return None
    return Context().run(_index, os.path.normpath(tree)).patched(path, kind, name)


@lru_cache(maxsize=256)
def _documents(path: str, kind: str, name: str) -> tuple[Fields, ...]:
    """The documents of a kind and a name that a file holds; none of one that cannot be read."""
    source = _source(path)
    try:
        nodes = documents(source) if source is not None and name in source.text else []
    except (InputError, RecursionError):
        return ()
    fields = (node for node in nodes if isinstance(node, Fields))
    return tuple(one for one in fields if (one.string("kind"), one.string("metadata", "name")) == (kind, name))


@lru_cache(maxsize=8)
def _index(tree: str) -> Kustomizations:
    with allowance(MOST_KUSTOMIZATIONS * 1000):
        found = list(_found(tree))
    by_taken: dict[str, list[Kustomization]] = {}
    for one in found:
        for taken in one.takes:
            by_taken.setdefault(taken, []).append(one)
    return Kustomizations({os.path.dirname(one.path): one for one in found}, by_taken)


def _found(tree: str) -> Iterator[Kustomization]:
    count = 0
    for at, (here, folders, files) in enumerate(os.walk(tree)):
        if at >= MOST_FOLDERS or count >= MOST_KUSTOMIZATIONS:
            return
        folders[:] = sorted(name for name in folders if name not in NEVER_WALKED)
        name = next((name for name in NAMES if name in files), None)
        if name is None:
            continue
        path = os.path.normpath(os.path.join(here, name))
        source = _source(path)
        try:
            nodes = documents(source) if source is not None else []
        except (InputError, RecursionError):
            continue
        count += 1
        yield from (_read(node, path, tree) for node in nodes[:1] if isinstance(node, Fields))


def _source(path: str) -> Source | None:
    try:
        data = file_bytes(path, LARGEST_BYTES)
    except (OSError, InputError, ValueError):
        return None
    return None if b"\0" in data else Source.of_bytes(path, data)


def _read(node: Fields, path: str, tree: str) -> Kustomization:
    folder = os.path.dirname(path)
    names = [item.value for field in _TAKEN for item in node.items(field) if isinstance(item, Scalar)]
    named = [item.string("path") for field in _PATCHED for item in node.items(field) if isinstance(item, Fields)]
    merged = [item.value for item in node.items("patchesStrategicMerge") if isinstance(item, Scalar)]
    takes = [held for name in (*names, *named) if (held := _inside(folder, name, tree)) is not None and held != folder]
    patches = frozenset(filter(None, (_inside(folder, name, tree) for name in (*named, *merged))))
    generates: dict[str, Values] = {}
    replacing: set[str] = set()
    for item in node.items("configMapGenerator"):
        if isinstance(item, Fields) and item.string("name"):
            generates[item.string("name")] = dict(_variables(item, folder, tree))
            replacing |= {item.string("name")} if item.string("behavior") == "replace" else set()
    return Kustomization(path, takes, generates, frozenset(replacing), patches)


def _inside(folder: str, name: str, tree: str) -> str | None:
    """A relative path from a folder, where it stays below ``tree``, links followed."""
    if not name or "\0" in name or "://" in name or os.path.isabs(name):
        return None
    path = os.path.normpath(os.path.join(folder, name))
    try:
        real, top = os.path.realpath(path), os.path.realpath(tree)
        return path if os.path.commonpath([real, top]) == top else None
    except (OSError, ValueError):
        return None


def _variables(item: Fields, folder: str, tree: str) -> Iterator[tuple[str, Setting]]:
    """The variables of one generator: its files first, as its literals stand over them."""
    files: Iterable[str] = [held.value for held in item.items("envs") if isinstance(held, Scalar)]
    for name in (*files, item.string("env")):
        path = _inside(folder, name, tree)
        yield from env_file(_source(path) if path is not None else None, plain=True).items()
    for name, setting, _ in declared(item.get("literals")):
        if setting is not None:
            word = setting.words[0]
            bare = word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
            yield name, setting if bare is word else Setting((word.instead(bare),))
