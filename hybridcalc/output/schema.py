"""JSON Schema of a command's document, from the one description of all of them (documents.yaml).

What engines add stands in a file of that name in their folders: figures under their own names (`Figures`, which a plan
may repeat at its top level: `Promised`), and what their logs tell (`Derived`).
"""

from collections.abc import Iterator
from typing import Any

from hybridcalc.architecture.presets import package_file
from hybridcalc.engines import ENGINES
from hybridcalc.output.document import SCHEMA_VERSION

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS: dict[str, dict[str, Any]] = {
    "any": {}, "null": {"type": "null"}, "text": {"type": "string"}, "flag": {"type": "boolean"},
    "number": {"type": "number"}, "gib": {"type": "number"}, "percent": {"type": "number"}, "share": {"type": "number"},
    "integer": {"type": "integer"}, "bytes": {"type": "integer"}, "tokens": {"type": "integer"},
    "slots": {"type": "integer"}, "requests": {"type": "integer"},
}  # fmt: skip
UNITS = {
    "bytes": "bytes", "tokens": "tokens", "slots": "state slots", "requests": "requests", "gib": "GiB",
    "percent": "percent", "share": "a share, 0 to 1",
}  # fmt: skip
HEAD = "_"
Described = dict[str, Any]


def described() -> Described:
    """Every command's document by its name, and under ``shared`` the objects that they name."""
    found = _read("output/documents.yaml")
    shared = found["shared"]
    figures: Described = {HEAD: "object - an engine's figures; which of them there are depends on the launch"}
    shared["Figures"], shared["Promised"] = figures, {HEAD: "object - figures of an engine"}
    for name in ENGINES:
        try:
            own = _read(f"engines/{ENGINES.rows[name].home.rpartition('.')[2]}/documents.yaml")
        except FileNotFoundError:
            figures[HEAD] = figures[HEAD].replace("object -", "object & any -")
            continue
        for part, keys in own.items():
            shared[part] |= {
                f"{key.removesuffix('?')}?": _of(ENGINES.rows[name].title, value) for key, value in keys.items()
            }
        promised = (f"{key}?" for key in ENGINES[name].part("server_plan").Plan.promised)
        shared["Promised"] |= {key: figures[key] for key in promised}
    return found


def _read(name: str) -> Described:
    from yaml import safe_load

    found: Described = safe_load(package_file(name))
    return found


def _of(title: str, value: Any) -> Any:
    """A key of an engine, which its meaning names."""
    if isinstance(value, dict):
        return value | {HEAD: _of(title, value[HEAD])}
    kind, _, meaning = value.partition(" - ")
    return f"{kind} - {title}: {meaning}"


def commands() -> list[str]:
    """Commands that have a document."""
    return [name for name in _read("output/documents.yaml") if name != "shared"]


def schema_of(command: str) -> dict[str, Any]:
    """The JSON Schema of a command's ``--json``; an object takes no key that is not described, but where it says so."""
    known = described()
    top, writer = known[command], _Writer(known["shared"])
    head, _, about = top[HEAD].partition(" - ")
    own = {"schema": {"const": f"hybridcalc.{command}/{SCHEMA_VERSION}"}}
    schema: dict[str, Any] = {"$schema": DIALECT, "title": f"hybridcalc {command} --json", "description": about}
    if "|" not in head:
        return schema | writer.object(head, top, own) | writer.definitions()
    variants = []
    for name in head.split("|"):
        value = top.get(name) or known["shared"][name]
        value = {HEAD: value} if isinstance(value, str) else value
        variants.append(writer.object(value[HEAD].partition(" - ")[0], value, own))
    return schema | {"oneOf": variants} | writer.definitions()


class _Writer:
    """Writes types, and notes which shared objects they name."""

    def __init__(self, shared: Described) -> None:
        self._shared = shared
        self._used: dict[str, dict[str, Any]] = {}

    def definitions(self) -> dict[str, Any]:
        """The shared objects that were named."""
        return {"$defs": dict(sorted(self._used.items()))} if self._used else {}

    def value(self, value: Any) -> dict[str, Any]:
        """The schema of a key, from its text or its object."""
        kind, _, meaning = (value[HEAD] if isinstance(value, dict) else value).partition(" - ")
        if not isinstance(value, dict):
            unit = next((text for name, text in UNITS.items() if name in kind), "")
            meaning += f"; unit: {unit}" if unit else ""
            return self._kind(kind) | {"description": meaning}
        listed, optional = kind.startswith("["), kind.endswith("?")
        found = self.object(kind.removesuffix("?").strip("[]"), value)
        if listed:
            found = {"type": "array", "items": found}
        if optional:
            found["type"] = [found["type"], "null"]
        return found | {"description": meaning}

    def object(self, head: str, keys: Described, own: Described | None = None) -> dict[str, Any]:
        """An object: its keys, those of the shared objects that its head adds, and ``own``, which are said already."""
        head, _, others = head.partition(" & ")
        parts = [self._shared[name] for name in head.split(" + ")[1:]]
        described = {key: value for part in (*parts, keys) for key, value in part.items() if key != HEAD}
        return {
            "type": "object",
            "properties": (own or {}) | {key.removesuffix("?"): self.value(v) for key, v in described.items()},
            "required": [*(own or ()), *(key for key in described if not key.endswith("?"))],
            "additionalProperties": self._kind(others) if others else False,
        }

    def _kind(self, text: str) -> dict[str, Any]:
        if text.endswith("?"):
            return {"anyOf": [self._kind(text[:-1]), KINDS["null"]]}
        if text[0] == "[" and text[-1] == "]":
            return {"type": "array", "items": self._kind(text[1:-1])}
        if text[0] == "{" and text[-1] == "}":
            return {"type": "object", "additionalProperties": self._kind(text[1:-1])}
        parts = text.split("|") if "[" not in text or "|" in text.partition("[")[0] else [text]
        if len(parts) > 1:
            words = [part for part in parts if not self._is_kind(part)]
            kinds = [self._kind(part) for part in parts if self._is_kind(part)]
            kinds += [{"enum": words}] if words else []
            return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        if ".." in text:
            ends = [self._kind(end) for end in text.split("..")]
            return {"type": "array", "prefixItems": ends, "items": False, "minItems": len(ends)}
        if text in KINDS:
            return dict(KINDS[text])
        if text not in self._used:
            self._used[text] = {}  # taken, where it names itself
            keys = self._shared[text]
            self._used[text] = self.object(keys[HEAD].partition(" - ")[0], keys)
        return {"$ref": f"#/$defs/{text}"}

    def _is_kind(self, text: str) -> bool:
        return text in KINDS or text in self._shared or text[0] in "[{" or ".." in text


def rows(keys: Described, within: str = "") -> Iterator[tuple[str, str, str]]:
    """The keys of a described object and of those within it, for people: key, type, meaning."""
    for key, value in keys.items():
        if key == HEAD:
            continue
        kind, _, meaning = (value[HEAD] if isinstance(value, dict) else value).partition(" - ")
        yield within + key, kind, meaning
        if isinstance(value, dict):
            yield from rows(value, f"{within}{key.removesuffix('?')}{'[]' if kind.startswith('[') else ''}.")
