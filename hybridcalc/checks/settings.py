"""What a project configures for ``check``: ``[tool.hybridcalc]`` of pyproject.toml, or ``.hybridcalc.yaml``.

Found upwards from the working directory to the repository's root; command-line options win. Names are those of the
options, with dashes or underscores.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.architecture.presets import find_preset, load_model
from hybridcalc.deployment import Workload, parse_lengths
from hybridcalc.engines import ENGINES
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import SEVERITIES
from hybridcalc.manifests import file_bytes
from hybridcalc.shell import Source
from hybridcalc.units import parse_bytes, parse_tokens

LARGEST_SETTINGS_BYTES = 2**20


class Settings(NamedTuple):
    """How to check: which rules count, and the figures that files do not hold. ``versions``: releases of engines."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    severity: Mapping[str, str] = {}
    fail_on: str = "error"
    allow_unresolved: bool = False
    exclude: tuple[str, ...] = ()
    baseline: str | None = None
    models: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    gpu: str | None = None
    weights: str | None = None
    rest: str | None = None
    available: str | None = None
    length: int | None = None
    lengths: str | None = None
    concurrency: int | None = None
    versions: Mapping[str, str] = {}

    @property
    def workload(self) -> Workload:
        """The workload of deployments that have none of their own."""
        if self.lengths is not None:
            return Workload(parse_lengths(self.lengths), self.concurrency)
        return Workload(((self.length, 1),) if self.length else (), self.concurrency)

    def counts(self, rule: str) -> bool:
        """Whether a rule is looked at; ids and prefixes of ids select and ignore."""
        chosen = not self.select or any(rule.startswith(name) for name in self.select)
        return chosen and not any(rule.startswith(name) for name in self.ignore)


def load_settings(start: Path) -> Settings:
    """The settings of the project a folder lies in; the defaults where it has none."""
    here = start.resolve()
    for folder in (here, *here.parents):
        own = folder / ".hybridcalc.yaml"
        if own.is_file():
            return settings_from(_yaml(own), str(own.name))
        project = folder / "pyproject.toml"
        if project.is_file():
            tools = _toml(project).get("tool")
            section = tools.get("hybridcalc") if isinstance(tools, dict) else None
            if section is not None:
                return settings_from(section, "pyproject.toml [tool.hybridcalc]")
        if (folder / ".git").exists():
            break
    return Settings()


def settings_from(section: Any, where: str) -> Settings:
    """Settings of a section. Raises InputError naming the key for what is no setting."""
    if not isinstance(section, Mapping):
        raise InputError(f"{where}: not a table of settings")
    given: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for key, value in section.items():
        name = str(key).replace("-", "_")
        engine = name.removesuffix("_version")
        if engine != name and engine in ENGINES:
            ENGINES[engine].note(str(value))
            versions[engine] = str(value)
            continue
        name = "variables" if name == "set" else name
        if name not in Settings._fields or name == "versions":
            raise InputError(f"{where}: {key!s:.40} is no setting", fix=f"one of {', '.join(_names())}")
        given[name] = _checked(name, value, f"{where}: {key}")
    return Settings(**given, versions=versions)


def _names() -> list[str]:
    """The settings as they are written."""
    named = ["set" if name == "variables" else name.replace("_", "-") for name in Settings._fields[:-1]]
    return named + [f"{engine}-version" for engine in ENGINES]


def _checked(name: str, value: Any, where: str) -> Any:
    default = Settings._field_defaults[name]
    if isinstance(default, tuple):
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise InputError(f"{where}: not a list of texts")
        return tuple(part.strip() for item in values for part in item.split(",") if part.strip())
    if isinstance(default, Mapping):
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: not a table")
        table = {str(key): str(item) for key, item in value.items()}
        if name == "severity" and any(item not in SEVERITIES for item in table.values()):
            raise InputError(f"{where}: not a severity", fix=f"write {', '.join(SEVERITIES)}")
        if name == "models":
            for item in table.values():
                _known(where, item)
        return table
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{where}: not true or false")
        return value
    if name == "fail_on" and value not in (*SEVERITIES, "never"):
        raise InputError(f"{where}: not a severity", fix=f"write {', '.join(SEVERITIES)} or never")
    if name in ("weights", "rest", "available"):
        parse_bytes(str(value))
    if name == "gpu":
        from hybridcalc.hardware import find_gpu

        try:
            find_gpu(str(value))
        except InputError as error:
            raise InputError(f"{where}: {error.message}", fix=error.fix) from None
    if name == "length":
        return parse_tokens(str(value))
    if name == "lengths":
        parse_lengths(str(value))
    if name == "concurrency" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"{where}: not a number of requests")
    return value if name == "concurrency" else str(value)


def _known(where: str, name: str) -> None:
    """Raises InputError for what names no model: a preset, or a file or folder that describes one."""
    if find_preset(name.removeprefix("hf://")) is None:
        try:
            load_model(name)
        except HybridcalcError as error:
            raise InputError(f"{where}: {error.message}", fix=error.fix) from None


def _bytes(path: Path) -> bytes:
    try:
        return file_bytes(str(path), LARGEST_SETTINGS_BYTES)
    except InputError as error:
        raise InputError(f"{path}: {error.message}") from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_bytes(path).decode("utf-8").removeprefix("\ufeff"))
    except (ValueError, RecursionError, OSError):
        raise InputError(f"{os.path.relpath(path)}: no TOML") from None


def _yaml(path: Path) -> Any:
    from hybridcalc.manifests.fields import plain
    from hybridcalc.manifests.yamltree import documents

    nodes = documents(Source.of_bytes(path.name, _bytes(path)))
    return plain(nodes[0]) if nodes else {}
