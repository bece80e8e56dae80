"""What would the fixes change? One value each, put in place of the old one; everything else stays to the byte.

Edits that overlap, that contradict each other, or whose file has changed since it was read are left out.
"""

import difflib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hybridcalc.checks.results import Edit, Located
from hybridcalc.errors import InputError


def edits_by_file(findings: Iterable[Located]) -> dict[str, list[Edit]]:
    """The edits of findings that count, by file, from front to back, the first of those that overlap."""
    edits: dict[str, list[Edit]] = {}
    for item in findings:
        if item.edit is not None and item.suppressed is None and item.edit.path != "<stdin>":
            edits.setdefault(item.edit.path, []).append(item.edit)
    return {path: _apart(found) for path, found in sorted(edits.items())}


def _apart(edits: list[Edit]) -> list[Edit]:
    kept: list[Edit] = []
    for edit in sorted(set(edits)):
        if not kept or edit.begin >= kept[-1].end:
            kept.append(edit)
    return kept


def mended(path: str, edits: list[Edit]) -> tuple[str, str]:
    """The text of a file before and after. Raises InputError for one that is not UTF-8 or has changed."""
    try:
        before = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path}: cannot be rewritten", fix="it is not UTF-8, or not there any more") from None
    parts: list[str] = []
    at = 0
    for edit in edits:
        if before[edit.begin : edit.end] != edit.before:
            raise InputError(f"{path}: changed while it was checked", fix="run it again")
        parts += (before[at : edit.begin], edit.text)
        at = edit.end
    return before, "".join((*parts, before[at:]))


def diff(path: str, before: str, after: str) -> str:
    """A unified diff of a file."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=2
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write(path: str, text: str) -> None:
    """Put a text in a file's place as a whole; its mode stays. A link stays a link."""
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode & 0o7777
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
        os.chmod(name, mode)
        os.replace(name, target)
    except OSError:
        os.unlink(name)
        raise
