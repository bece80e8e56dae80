"""Reading fields of a config.json strictly: every getter checks type and range, and what is missing is collected.

A reader asks for all it needs; `Fields.finish` then refuses the config once, naming every field that is missing or
has an unusable value. Numbers are bounded, since a config is outside data and its sizes are multiplied.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.errors import ConfigError, printable, quoted

TEXT_TABLES = ("text_config", "llm_config", "language_config")
DRAFT_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
LARGEST_NUMBER = 2**31
"""No dimension, count or context of a model comes near it."""
MOST_LAYERS = 4096


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that is about text: the config itself, or the table of a multimodal one."""
    return next((config[table] for table in TEXT_TABLES if isinstance(config.get(table), Mapping)), config)


class Fields:
    """The fields of a config (or of a table inside it), with a second mapping to fall back on."""

    def __init__(self, values: Mapping[str, Any], where: str, *, fallback: Mapping[str, Any] | None = None) -> None:
        self._values = values
        self._fallback = fallback or {}
        self._prefix = ""
        self.where = where
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def raw(self, *names: str) -> Any:
        """The first of these fields that is set, whatever it is; None when none is."""
        for source in (self._values, self._fallback):
            for name in names:
                if source.get(name) is not None:
                    return source[name]
        return None

    def outer(self, name: str) -> Any:
        """A field that the fallback decides where it has it: of a multimodal config, the outermost table."""
        value = self._fallback.get(name)
        return self._values.get(name) if value is None else value

    def table(self, name: str) -> "Fields":
        """The fields of a nested table; problems found there count here too."""
        value = self.raw(name)
        if not isinstance(value, Mapping):
            if value is None:
                self.missing.append(self._prefix + name)
            else:
                self.wrong.append(f"{self._prefix}{name} = {quoted(value)}")
            value = {}
        inner = Fields(value, self.where)
        inner._prefix = f"{self._prefix}{name}."
        inner.missing, inner.wrong = self.missing, self.wrong
        return inner

    def number(self, *names: str, at_least: int = 1) -> int:
        """A required whole number, under the first of ``names`` that is set."""
        value = self.optional(*names, at_least=at_least)
        if value is None:
            self.missing.append(self._prefix + " or ".join(names))
            return at_least
        return value

    def optional(self, *names: str, at_least: int = 1) -> int | None:
        """A whole number, or None when no such field is set."""
        value = self.raw(*names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= LARGEST_NUMBER:
            self.wrong.append(f"{self._prefix}{names[0]} = {quoted(value)}")
            return at_least
        return value

    def real(self, name: str) -> float | None:
        """A finite positive number, or None when the field is not set."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
            self.wrong.append(f"{self._prefix}{name} = {quoted(value)}")
            return 1.0
        return float(value)

    def text(self, *names: str) -> str | None:
        """A string without control characters, or None when no such field is set."""
        value = self.raw(*names)
        if value is not None and not isinstance(value, str):
            self.wrong.append(f"{self._prefix}{names[0]} = {quoted(value)}")
            return None
        return printable(value) if value is not None else None

    def words(self, name: str) -> list[str] | None:
        """A list of strings, or None when the field is not set."""
        return self._list(name, str)

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers, or None when the field is not set."""
        return self._list(name, int)

    def _list(self, name: str, kind: type) -> list[Any] | None:
        value = self.raw(name)
        if value is None:
            return None
        good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= MOST_LAYERS
        if not good or any(isinstance(item, bool) or not isinstance(item, kind) for item in value):
            self.wrong.append(f"{self._prefix}{name} = {quoted(value)}")
            return []
        return list(value)

    def layer_count(self, *names: str) -> int:
        """Number of layers, bounded."""
        count = self.number(*(names or ("num_hidden_layers",)))
        if count > MOST_LAYERS:
            self.wrong.append(f"{self._prefix}num_hidden_layers = {count}")
            return 1
        return count

    def row(self, name: str, letters: Mapping[str, str], *, count: int | None = None) -> str | None:
        """A list of layer kinds as layer letters; unknown kinds, or another length than ``count``, are wrong."""
        kinds = self.words(name)
        if kinds is None:
            return None
        unknown = sorted({kind for kind in kinds if kind not in letters})
        if unknown:
            self.wrong.append(f"{self._prefix}{name} has unknown kinds {', '.join(map(quoted, unknown[:4]))}")
        elif count is not None and len(kinds) != count:
            self.wrong.append(f"{self._prefix}{name} has {len(kinds)} entries for {count} layers")
        return "".join(letters.get(kind, ".") for kind in kinds)

    def indices(self, name: str, count: int, *, base: int = 0) -> set[int] | None:
        """Layer indices from 0, read from a list that counts from ``base``; one outside the model is wrong."""
        listed = self.numbers(name)
        if listed is None:
            return None
        outside = [index for index in listed if not base <= index < count + base]
        if outside:
            self.wrong.append(f"{self._prefix}{name} names layer {outside[0]} of {count}")
        return {index - base for index in listed}

    def disagree(self, message: str) -> None:
        """Note a contradiction between fields."""
        self.wrong.append(message)

    def finish(self, kind: str) -> None:
        """Raise ConfigError, once, if anything asked for was missing or unusable."""
        if not self.missing and not self.wrong:
            return
        parts = []
        if self.missing:
            parts.append("missing " + ", ".join(dict.fromkeys(self.missing)))
        if self.wrong:
            parts.append("not understood: " + "; ".join(dict.fromkeys(self.wrong)))
        fix = "complete the file, or write the geometry as a preset YAML (docs/presets.md)"
        raise ConfigError(f"{self.where}: {kind} config, {'; '.join(parts)}", fix=fix)
