"""What would the fixes change? One value each, put in place of the old one; everything else stays to the byte.

Edits that overlap, that contradict each other, or whose file has changed since it was read are left out.
"""

import difflib
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hybridcalc.checks import Edit, Located
from hybridcalc.errors import InputError, printable
from hybridcalc.manifests import file_bytes
from hybridcalc.manifests.find import LARGEST_FILE_BYTES

_CONTROL = re.compile(r"\r(?!\n)|[^\r\n\t\x20-\x7e]")


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
        before = file_bytes(path, LARGEST_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError, InputError):
        raise InputError(f"{path}: cannot be rewritten", fix="it is not UTF-8, or not there any more") from None
    mark = len(before) - len(before.removeprefix("\ufeff"))  # places do not count a byte order mark
    parts: list[str] = []
    at = 0
    for edit in edits:
        begin, end = edit.begin + mark, edit.end + mark
        if before[begin:end] != edit.before:
            raise InputError(f"{path}: changed while it was checked", fix="run it again")
        parts += (before[at:begin], edit.text)
        at = end
    return before, "".join((*parts, before[at:]))


def diff(path: str, before: str, after: str, *, exact: bool = False) -> str:
    """A unified diff of a file. Control characters do not reach a terminal; an ``exact`` one is for a program."""
    name = printable(path).lstrip("/")
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}", n=2)
    shown = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    if exact:
        return shown
    return _CONTROL.sub(lambda match: match[0] if match[0].isprintable() else "?", shown)


def _lines(text: str) -> list[str]:
    """Lines as editors and diffs count them: a form feed ends none."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def write(path: str, text: str) -> None:
    """Put a text in a file's place, as a whole; its owner and mode stay, a link stays a link, and other names of the
    file keep naming it. Raises InputError for a file that is write-protected, OSError for one that cannot be written.
    """
    target = Path(os.path.realpath(path))
    status = target.stat()
    mode = status.st_mode & 0o7777
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise InputError(f"{path}: cannot be rewritten", fix="it is write-protected")
    if status.st_nlink > 1:
        with target.open("r+b") as stream:
            stream.write(text.encode("utf-8"))
            stream.truncate()
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
        made = os.stat(name)
        if hasattr(os, "chown") and (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
            os.chown(name, status.st_uid, status.st_gid)
        os.chmod(name, mode)
        os.replace(name, target)
    except OSError:
        os.unlink(name)
        raise
