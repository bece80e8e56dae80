"""Which values does Ansible give the tasks and templates of a role? Those of its ``defaults`` and ``vars``.

    roles/vllm/defaults/main.yml: {vllm_tp: 2}   ->   {{ vllm_tp }} in roles/vllm/{tasks,templates,handlers} is 2

A value that ``group_vars`` or ``host_vars`` beside the roles set stands over the default, where all of them set the
same; where they do not it is left open. ``vars`` of the role stand over both. Nothing outside the checked folder is
read.
"""

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache

from hybridcalc.errors import InputError
from hybridcalc.manifests import Values, file_bytes
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Scalar, documents
from hybridcalc.shell import Source, Word

PARTS = frozenset({"tasks", "templates", "handlers"})
"""Folders of a role whose files see its variables."""
LARGEST_BYTES, MOST_FILES = 2**18, 200


def role_values(path: str, tree: str) -> Values:
    """The variables that a file of a role sees, as files below ``tree`` set them; none for any other file."""
    parts = os.path.normpath(path).split(os.sep)
    at = next((at for at in range(len(parts) - 2, 0, -1) if parts[at] in PARTS), None)
    if at is None:
        return {}
    role, top = os.path.abspath(os.sep.join(parts[:at])), os.path.join(os.path.abspath(tree), "")
    playbooks = os.path.dirname(os.path.dirname(role))
    if not f"{role}{os.sep}".startswith(top):
        return {}
    return _of_role(role, playbooks if f"{playbooks}{os.sep}".startswith(top) else "")


@lru_cache(maxsize=64)
def _of_role(role: str, playbooks: str) -> Mapping[str, Word]:
    values = dict(_set_in(os.path.join(role, "defaults")))
    if not values:
        return {}
    over: dict[str, list[Word]] = {}
    for name in ("group_vars", "host_vars") if playbooks else ():
        for key, word in _set_in(os.path.join(playbooks, name)):
            over.setdefault(key, []).append(word)
    for key, words in over.items():
        if len(set(map(str, words))) == 1:
            values[key] = words[0]
        else:
            values.pop(key, None)
    return values | dict(_set_in(os.path.join(role, "vars")))


def _set_in(folder: str) -> Iterator[tuple[str, Word]]:
    """The variables that the YAML files of a folder set."""
    count = 0
    for here, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            count += 1
            if count > MOST_FILES:
                return
            if os.path.splitext(name)[1] in (".yml", ".yaml", ""):
                yield from _of_file(os.path.join(here, name))


def _of_file(path: str) -> Iterator[tuple[str, Word]]:
    try:
        data = file_bytes(path, LARGEST_BYTES)
        nodes = documents(Source.of_bytes(path, data)) if b"\0" not in data else []
    except (InputError, OSError, ValueError, RecursionError):
        return
    for node in nodes:
        for key, value in node.entries() if isinstance(node, Fields) else ():
            word = value.known() if isinstance(value, Scalar) else None
            if word is not None:
                yield key.value, word
