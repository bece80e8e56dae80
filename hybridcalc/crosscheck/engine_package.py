"""Does the engine installed beside hybridcalc still follow the rules? Its own classes, asked for shapes and tensors.

SGLang: the state shapes of configs/mamba_utils.py at this rank count, and the tensors of a MambaPool of two slots made
on torch's meta device. vLLM: the shapes of MambaStateShapeCalculator. Each is held against what is allocated here, so
that an upgrade of the engine shows at once. What does not import is said and counts as no answer. Leaves out: model
classes, weights, and KV pools, which an engine builds from a model.
"""

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from hybridcalc.crosscheck.subject import Subject, room_of
from hybridcalc.errors import HybridcalcError, InputError


class EngineRow(NamedTuple):
    """One shape or tensor: what the engine makes of it, and what is made of it here."""

    name: str
    engine: str
    here: str

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return self.engine == self.here


class EngineComparison(NamedTuple):
    """The installed engine's version, and everything that was compared."""

    package: str
    version: str
    rows: tuple[EngineRow, ...]

    @property
    def ok(self) -> bool:
        """Whether all of it is the same."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [{**row._asdict(), "ok": row.ok} for row in self.rows]
        return {"package": self.package, "version": self.version, "rows": rows, "ok": self.ok}


def compare_with_engine(subject: Subject) -> EngineComparison:
    """Hold the installed engine against ``subject``. Raises InputError when there is none or it does not import."""
    package = subject.engine
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise InputError(
            f"--engine-package: no {package} is installed beside hybridcalc",
            fix="run it in the environment that serves: pip install 'hybridcalc[torch]' there, then verify",
        ) from None
    what, compare = f"{package} {installed}", room_of(package).package_rows
    try:
        return EngineComparison(package, installed, tuple(compare(subject, what)))
    except HybridcalcError:
        raise
    except Exception as error:  # a class that moved, a signature that changed: whatever the engine raises
        said = " ".join(str(error).split())[:160]
        raise InputError(
            f"--engine-package: {what} no longer answers: {type(error).__name__}: {said}",
            fix="its classes have changed; this comparison knows SGLang 0.5.23 and vLLM 0.33.0",
        ) from error


def engine_module(name: str, what: str) -> Any:
    """A module of the engine. Raises InputError with the reason when it does not import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:  # an engine may fail to import in any way
        said = " ".join(str(error).split())[:160]
        raise InputError(
            f"--engine-package: {what} does not import: {name}: {type(error).__name__}: {said}",
            fix="run it where the server runs, with all that the engine needs",
        ) from error
