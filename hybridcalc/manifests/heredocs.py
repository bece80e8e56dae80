"""Which files and scripts does a shell script hold in here-documents?

    cat > compose.yaml <<EOF ... EOF      bash <<EOF ... EOF      cat > /etc/systemd/system/k3.service <<EOF ... EOF

Told apart by the command that takes them, or the name of the file they go to. One that is only printed is passed over.
"""

import re
from bisect import bisect_left
from typing import NamedTuple

from hybridcalc.manifests.source import Text

_KINDS = (
    ("yaml", re.compile(r"\bkubectl\b|\boc\b|\.ya?ml\b")),
    ("unit", re.compile(r"\.(service|container)\b")),
    ("dockerfile", re.compile(r"\b(Docker|Container)file\b|\bdocker\s+build\b")),
    ("script", re.compile(r"\b(ba|z|k|da|s)?sh\b|\b(sbatch|srun)\b")),
)
"""What a command or a file's name makes of a here-document, the first that fits."""
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)\1")


ESCAPE = re.compile(r"\\(?:([\\$`])|\r?\n)")
"""What a backslash hides from the shell in a here-document that it expands."""


class HereDocument(NamedTuple):
    """A here-document: ``kind`` is "yaml", "unit", "dockerfile" or "script"; ``expanded`` whether the shell replaces
    the variables in it.
    """

    kind: str
    text: Text
    expanded: bool


def without_documents(text: Text) -> tuple[Text, list[HereDocument]]:
    """A script with its here-documents blanked out, and those that may launch something."""
    found: list[HereDocument] = []
    lines = text.text.replace("\r\n", " \n").split("\n")
    ends: dict[str, list[int]] = {}
    offset, number = 0, 0
    while number < len(lines):
        opening = lines[number]
        match = _HEREDOC.search(opening) if not opening.lstrip().startswith("#") else None
        offset += len(opening) + 1
        number += 1
        if match is None:
            continue
        if not ends:
            for index, line in enumerate(lines):
                ends.setdefault(line.strip(), []).append(index)
        later = ends.get(match[2], [])
        end = next(iter(later[bisect_left(later, number) :][:1]), None)
        if end is None:  # it was no here-document
            continue
        body = "\n".join(lines[number:end])
        kind = _kind(opening, body)
        if kind:
            found.append(HereDocument(kind, text.part(offset, offset + len(body)), not match[1]))
        for index in range(number, end + 1):
            offset += len(lines[index]) + 1
            lines[index] = " " * len(lines[index])
        number = end + 1
    return Text(text.source, "\n".join(lines), text.base, text.spots), found


def _kind(opening: str, body: str) -> str:
    if "sglang" not in body and "vllm" not in body:
        return ""
    named = next((kind for kind, pattern in _KINDS if pattern.search(opening)), "")
    return named or ("script" if re.match(r"#!.*sh\b", body) else "")
