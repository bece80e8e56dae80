"""Deployment files for tests: those of tests/data, and ones that a test writes."""

from __future__ import annotations

from pathlib import Path

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.find import read_file

DATA = Path(__file__).parent.parent / "data" / "manifests"


def read(path: Path | str, **variables: str) -> tuple[Deployment, ...]:
    """The deployments of a file."""
    contents = read_file(str(DATA / path), variables)
    assert contents.troubles == ()
    return contents.deployments


def flags(deployment: Deployment) -> dict[str, int]:
    """``word -> line`` of every word, unknown ones with a question mark."""
    return {(f"?{w}" if w.why else str(w)): w.place.line for w in deployment.words}


def write(tmp_path: Path, name: str, text: str, **variables: str) -> tuple[Deployment, ...]:
    """The deployments of a file with this text."""
    (tmp_path / name).write_text(text)
    return read(tmp_path / name, **variables)


def opened(deployment: Deployment) -> dict[str, str]:
    """Unknown words and why."""
    return {str(word): word.why for word in deployment.words if word.why}
